"""Inboxes from a real RabbitMQ and from moto's SQS: what becomes an event, what comes again, and what is given back."""

import json
import time
from base64 import b64decode
from contextlib import closing
from datetime import UTC, datetime, timedelta

import amqp
import pytest
from django.db import DatabaseError
from django.test import override_settings

from django_events import Backoff, Draft, rabbitmq_source, sqs, sqs_source
from django_events import rabbitmq as rabbitmq_queue
from django_events.bridges.inboxes import queue_worker
from django_events.bridges.inboxes.queue_worker import QueueInboxWorker
from django_events.bridges.inboxes.serving import worker_of
from django_events.exceptions import Refused
from django_events.models import DedupKey, Inbox
from django_events.operations import restart_inbox
from django_events.retries import RetryLater
from django_events.testing import published
from tests.support.fix_consumers import serve_due
from tests.support.fix_inboxes import row, take_in, turn, values
from tests.support.fix_queues import fill_topic
from tests.support.processes import wait_until

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X21"), pytest.mark.slow]

SOONER = 40.0  # seconds: a message that is left to itself comes again after the minute for which SQS hides it


class Rabbit:
    """What a test asks of RabbitMQ."""

    def __init__(self, server):
        self.server = server
        server.declare("letters", kind="classic")

    def source(self, **options):
        return rabbitmq_source("letters", **options)

    def send(self, *numbers, name="m"):
        for n in numbers:
            self.server.publish("letters", json.dumps(n).encode(), message_id=f"{name}{n}")

    def waiting(self):
        with closing(self.server.connection()) as connection:
            return connection.channel().queue_declare("letters", passive=True).message_count

    def close(self):
        self.server.remove("letters")


class Sqs:
    """What a test asks of SQS."""

    def __init__(self, server):
        self.server = server
        server.make_queue("letters.fifo")

    def source(self, **options):
        return sqs_source("letters.fifo", **options)

    def send(self, *numbers, group="g"):
        self.server.send("letters.fifo", *map(json.dumps, numbers), MessageGroupId=group)

    def waiting(self):
        client = self.server.client("sqs")
        url = client.get_queue_url(QueueName="letters.fifo")["QueueUrl"]
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        return sum(map(int, client.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"].values()))

    def close(self):
        pass


@pytest.fixture(params=["rabbitmq", "aws"])
def queue(request):
    kind = {"rabbitmq": Rabbit, "aws": Sqs}[request.param]
    with closing(kind(request.getfixturevalue(request.param))) as made:
        yield made


def letter(message):
    return Draft(value=message.json(), type="letter")


def test_messages_are_events_in_their_order_and_the_queue_forgets_them(things, make_inbox, queue):
    queue.send(*range(25))
    assert take_in(make_inbox(things, source=queue.source(), transform=letter, batch_size=7)) == 25

    assert values(things) == list(range(25))
    assert queue.waiting() == 0
    assert (row().taken, row().position, row().error) == (25, None, "")
    assert published(things)[0].metadata["inbox"] == "things-in"
    assert published(things)[0].metadata["message"].startswith("letters")


def test_what_is_committed_and_not_acknowledged_comes_again_and_is_recognised(things, make_inbox, queue, monkeypatch):
    """The process ends between the COMMIT and the acknowledgement."""
    queue.send(1, 2, 3)
    inbox = make_inbox(
        things,
        source=queue.source(visibility=timedelta(seconds=1)) if isinstance(queue, Sqs) else queue.source(),
        transform=letter,
    )
    worker = worker_of("default", inbox)
    reader = worker._open_queue()
    monkeypatch.setattr(reader, "acknowledge", lambda messages: None)
    assert turn(worker) == 3
    worker.close()
    assert values(things) == [1, 2, 3]
    assert queue.waiting() == 3
    queue.send(4)
    wait_until(lambda: (take_in(inbox), queue.waiting() == 0)[1], what="an empty queue")

    assert values(things) == [1, 2, 3, 4]
    assert row().taken == 4


def test_what_is_not_committed_comes_again(things, make_inbox, queue, monkeypatch):
    """The transaction fails: the messages are with the queue, or in front of all others."""
    queue.send(1, 2, 3)
    inbox = make_inbox(things, source=queue.source(), transform=letter)

    def fail(*arguments, **options):
        raise DatabaseError("the disk is full")

    with closing(worker_of("default", inbox)) as worker:
        monkeypatch.setattr(queue_worker, "take_in_queued", fail)
        assert turn(worker) == 0
        assert "the disk is full" in row().error
        monkeypatch.undo()
        worker._rests_until = 0
        wait_until(lambda: turn(worker), seconds=SOONER, what="messages that come again")

    assert values(things) == [1, 2, 3]
    assert queue.waiting() == 0


def test_the_window_is_for_how_long_a_message_is_recognised(things, make_inbox, queue):
    queue.send(1)
    take_in(make_inbox(things, source=queue.source(window=timedelta(days=2)), transform=letter))
    [key] = DedupKey.objects.all()
    assert key.key.startswith("inbox things-in ")
    moved = DedupKey.objects.extra(where=["expires_at - now() BETWEEN interval '47 hours' AND interval '48 hours'"])
    assert moved.count() == 1


def test_what_a_relay_of_ours_sent_twice_is_taken_in_once(things, make_topic, make_relay, make_inbox, queue):
    """It is the same CloudEvent, although the broker gave each of them an id of its own."""
    sent = make_topic("sent")
    fill_topic(sent, {"n": 1}, {"n": 2}, type="order.placed", key="Ada")
    if isinstance(queue, Rabbit):
        first = second = rabbitmq_queue("letters")
        source = rabbitmq_source("letters")
    else:
        queue.server.make_queue("plain")
        first = second = sqs("plain")
        source = sqs_source("plain")
    serve_due(make_relay(sent, to=first))
    serve_due(make_relay(sent, to=second, name="again"))
    take_in(make_inbox(things, source=source))

    events = published(things)
    assert sorted(one.value["n"] for one in events) == [1, 2]
    assert {(one.type, one.key, one.metadata["ce"]["source"]) for one in events} == {("order.placed", "Ada", "/sent")}


def test_a_message_that_transform_fails_for_is_tried_again_and_then_published_as_unreadable(things, make_inbox, queue):
    tried = []

    def transform(message):
        tried.append(message.json())
        assert message.json() != 2
        return letter(message)

    queue.send(1, 2, 3)
    inbox = make_inbox(things, source=queue.source(), transform=transform)
    with closing(worker_of("default", inbox)) as worker:
        wait_until(lambda: (turn(worker), len(published(things)) == 3)[1], seconds=SOONER, what="all of them")

    assert [(one.type, one.value if one.type == "letter" else one.body) for one in published(things)] == [
        ("letter", 1),
        ("inbox.unreadable", b"2"),
        ("letter", 3),
    ]
    assert tried.count(2) == 3
    assert (row().taken, row().unreadable) == (2, 1)


def test_a_message_that_has_to_wait_holds_up_its_group_alone(things, make_inbox, aws):
    queue, closed = Sqs(aws), [True]
    queue.send(1, 2, group="a")
    queue.send(3, 4, group="b")

    def transform(message):
        if closed and message.headers["message-group-id"] == "a":
            raise RetryLater("closed", after=timedelta(seconds=1))
        return letter(message)

    with closing(worker_of("default", make_inbox(things, source=queue.source(), transform=transform))) as worker:
        wait_until(lambda: (turn(worker), values(things) == [3, 4])[1], seconds=SOONER, what="the other group")
        closed.clear()
        wait_until(lambda: (turn(worker), queue.waiting() == 0)[1], seconds=SOONER, what="an empty queue")

    assert values(things) == [3, 4, 1, 2]


def test_a_queue_that_is_read_by_one_keeps_its_order_while_a_message_waits(things, make_inbox, rabbitmq):
    queue, closed = Rabbit(rabbitmq), [True]
    try:
        queue.send(1, 2, 3)

        def transform(message):
            if closed and message.json() == 2:
                raise RetryLater("closed", after=timedelta(0))
            return letter(message)

        with closing(worker_of("default", make_inbox(things, source=queue.source(), transform=transform))) as worker:
            assert turn(worker) == 1
            assert "closed" in row().error
            queue.send(4)
            turn(worker)
            closed.clear()
            wait_until(lambda: (turn(worker), queue.waiting() == 0, len(values(things)) == 4)[2], what="all of them")
        assert values(things) == [1, 2, 3, 4]
    finally:
        queue.close()


def test_a_second_process_stands_by_and_goes_on_when_the_first_one_ends(things, make_inbox, rabbitmq, caplog):
    queue = Rabbit(rabbitmq)
    try:
        inbox = make_inbox(things, source=queue.source(), transform=letter)
        first, second = worker_of("default", inbox), worker_of("default", inbox)
        with closing(second):
            with closing(first):
                queue.send(1)
                assert turn(first) == 1
                assert turn(second) == 0
                assert row().failing_since is None
                assert "stands by" in caplog.text
            queue.send(2)
            wait_until(lambda: (turn(second), len(values(things)) == 2)[1], what="the second process")
        assert values(things) == [1, 2]
    finally:
        queue.close()


def test_a_transform_that_is_too_slow_for_a_batch_loses_no_acknowledgement(things, make_inbox, rabbitmq):
    """The server closes a connection of which it hears nothing for two heartbeats, and gives all of it out again."""
    queue = Rabbit(rabbitmq)
    options = {**rabbitmq.options, "heartbeat": 3}
    try:
        rabbitmq.publish("letters", *(b"%d" % n for n in range(30)))  # none of which is recognised
        inbox = make_inbox(
            things, source=queue.source(), transform=lambda message: (time.sleep(0.3), letter(message))[1]
        )
        with override_settings(DJANGO_EVENTS={"BROKERS": {"rabbitmq": options}}):
            assert take_in(inbox) == 30
        assert values(things) == list(range(30))
        assert queue.waiting() == 0
    finally:
        queue.close()


def test_a_transform_that_is_slower_than_the_queue_waits_is_called_once_and_is_said(things, make_inbox, queue):
    """RabbitMQ closes the connection meanwhile, and gives the message out again; SQS shows it again."""
    tried, said, options = [], set(), queue.server.options
    is_sqs = isinstance(queue, Sqs)
    source = queue.source(visibility=timedelta(seconds=1)) if is_sqs else queue.source()
    holds = 1 if is_sqs else 2

    def slow(message):
        tried.append(message.json())
        time.sleep(holds + 2)
        return letter(message)

    def is_done():
        turn(worker)
        said.add(row().error)
        return bool(tried) and queue.waiting() == 0 and not row().error

    queue.send(1)
    with (
        override_settings(
            DJANGO_EVENTS={"BROKERS": {queue.server.name: options | ({} if is_sqs else {"heartbeat": 1})}}
        ),
        closing(worker_of("default", make_inbox(things, source=source, transform=slow))) as worker,
    ):
        wait_until(is_done, seconds=60, what="an empty queue")

    assert (values(things), tried) == ([1], [1])
    assert any(f"waits for {holds} s, and it took {holds + 2}." in error for error in said)


def test_properties_that_amqp_can_not_decode_make_a_message_unreadable_and_others_go_on(things, make_inbox, rabbitmq):
    queue = Rabbit(rabbitmq)
    try:
        rabbitmq.publish("letters", b"0", message_id=b"caf\xe9", content_type="text/plain")
        rabbitmq.publish("letters", b"1", message_id="1", timestamp=1_700_000_000_000)  # in another unit
        rabbitmq.publish("letters", b"2", message_id="2", timestamp=2**64 - 1)
        rabbitmq.publish("letters", b"", type=b"\xff")
        rabbitmq.declare("letters", kind="classic", exchange="letters", key="#")
        with closing(rabbitmq.connection()) as connection:
            connection.channel().basic_publish(amqp.Message(b"3"), "letters", b"caf\xe9")
        rabbitmq.publish("letters", b"4", message_id="4", timestamp=1_700_000_000)
        seen = []

        def transform(message):
            seen.append((message.sent_at, message.headers.get("timestamp"), message.subject))
            assert "unreadable" not in message.headers
            return letter(message)

        take_in(make_inbox(things, source=queue.source(), transform=transform, retry=Backoff(attempts=1)))
        assert values(things) == [None, 1, 2, None, 3, 4]
        assert [(one.type, one.body) for one in published(things) if one.value is None] == [
            ("inbox.unreadable", b"0"),
            ("inbox.unreadable", b""),
        ]
        metadata = published(things)[0].metadata
        assert metadata["headers"]["unreadable"] == (
            "RabbitMQ's client can't decode its properties: UnicodeDecodeError"
        )
        assert b"caf\xe9" in b64decode(metadata["fields"]["properties"])
        assert seen[1:3] == [(None, "1700000000000", "letters"), (None, str(2**64 - 1), "letters")]
        assert seen[-2][2] == "caf?"
        assert seen[-1][0] == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)
        assert queue.waiting() == 0
    finally:
        queue.close()


@pytest.mark.parametrize("single", [True, False])
def test_a_queue_that_can_not_be_had_exclusively_is_said(things, make_inbox, rabbitmq, monkeypatch, single):
    """A classic queue with a single active consumer takes no exclusive one; nor does one that others read."""
    monkeypatch.setattr(queue_worker, "SERVES", 0.1)
    rabbitmq.declare("letters", kind="classic", **({"x-single-active-consumer": True} if single else {}))
    queue = Rabbit.__new__(Rabbit)
    queue.server = rabbitmq
    try:
        with closing(rabbitmq.connection()) as other:
            if not single:
                other.channel().basic_consume("letters")
            inbox = make_inbox(things, source=queue.source(), transform=letter)
            with closing(worker_of("default", inbox)) as worker:
                wait_until(lambda: (turn(worker), row().error)[1], what="an error")
            assert "exclusive=False" in row().error
            if single:
                queue.send(1)
                Inbox.objects.all().delete()
                take_in(make_inbox(things, source=queue.source(exclusive=False), transform=letter))
                assert values(things) == [1]
    finally:
        queue.close()


def test_a_message_without_any_identity_is_taken_in(things, make_inbox, rabbitmq):
    queue = Rabbit(rabbitmq)
    try:
        rabbitmq.publish("letters", b"1", b"1")
        take_in(make_inbox(things, source=queue.source(), transform=letter))
        assert values(things) == [1, 1]
        assert DedupKey.objects.count() == 0
    finally:
        queue.close()


def test_messages_with_an_empty_name_are_not_taken_for_one(things, make_inbox, rabbitmq):
    queue = Rabbit(rabbitmq)
    try:
        rabbitmq.publish("letters", b"1", b"2", message_id="")
        take_in(make_inbox(things, source=queue.source(), transform=letter))
        assert values(things) == [1, 2]
    finally:
        queue.close()


@pytest.mark.parametrize("exclusive", [True, False])
def test_a_queue_of_the_type_stream_is_refused_before_anything_is_published(things, make_inbox, rabbitmq, exclusive):
    """It gives a reader what comes while it is there, and forgets nothing that is acknowledged."""
    rabbitmq.declare("letter-stream", kind="stream")
    inbox = make_inbox(things, source=rabbitmq_source("letter-stream", exclusive=exclusive), transform=letter)
    with closing(worker_of("default", inbox)) as worker:
        turn(worker)
        rabbitmq.publish("letter-stream", b"1")
        wait_until(lambda: turn(worker) or "of the type stream" in row().error, what="the refusal")
    rabbitmq.remove("letter-stream")

    assert values(things) == []


def test_a_queue_that_is_not_there_or_goes_is_said(things, make_inbox, rabbitmq):
    inbox = make_inbox(things, source=rabbitmq_source("letters"), transform=letter)
    take_in(inbox)
    assert "no queue 'letters'" in row().error
    queue = Rabbit(rabbitmq)
    with closing(worker_of("default", inbox)) as worker:
        turn(worker)
        assert row().error == ""
        queue.close()
        turn(worker)
        assert "was deleted" in row().error


def test_an_inbox_from_a_queue_has_no_place_to_begin_at(things, make_inbox, aws):
    queue = Sqs(aws)
    inbox = make_inbox(things, source=queue.source(), transform=letter)
    with pytest.raises(Refused, match="has no places to begin at"):
        restart_inbox(inbox, start="beginning")
    with pytest.raises(Refused):
        make_inbox(things, source=queue.source(), name="other", start="end")


def test_what_is_wrong_with_the_settings_is_said_without_secrets(things, make_inbox, queue):
    inbox = make_inbox(things, source=queue.source(), transform=letter)
    wrong = {**queue.server.options, "secret": "tops3cret"}
    with override_settings(DJANGO_EVENTS={"BROKERS": {queue.server.name: wrong}}):
        take_in(inbox)
    assert "secret" in row().error
    assert "tops3cret" not in row().error


def test_the_lag_is_what_the_queue_has(things, make_inbox, queue):
    queue.send(*range(5))
    inbox = make_inbox(things, source=queue.source(), transform=letter, batch_size=2)
    with closing(worker_of("default", inbox)) as worker:
        assert isinstance(worker, QueueInboxWorker)
        turn(worker)
        assert 0 < row().lag <= 5


def test_retries_pause_as_they_are_told(things, make_inbox, aws):
    queue = Sqs(aws)
    queue.send(1)
    inbox = make_inbox(
        things,
        source=queue.source(),
        transform=lambda message: 1 / 0,
        retry=Backoff(attempts=3, base=timedelta(hours=1)),
    )
    with closing(worker_of("default", inbox)) as worker:
        turn(worker)
        worker._rests_until = 0
        assert turn(worker) == 0
    assert queue.waiting() == 1
    assert values(things) == []
    assert "can't be read, and is tried again" in row().error
