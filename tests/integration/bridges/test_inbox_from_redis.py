"""Inboxes from a real Redis: what becomes an event, what is left out, what can't be read, what is gone."""

import json
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.test import override_settings

from django_events import Draft, Ignore, RetryLater, redis_source, redis_stream
from django_events.bridges.inboxes.inbox_worker import InboxWorker
from django_events.models import BufferedEvent
from django_events.operating.inboxes import restart_inbox
from django_events.testing import published
from django_events.workers.loop import run
from django_events.workers.stopping import Stop
from tests.support.fix_consumers import serve_due
from tests.support.fix_inboxes import error, row, take_in, values
from tests.support.fix_queues import fill_topic
from tests.support.processes import wait_until

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X21")]

SOURCE = redis_source("bank")


def add(redis, *numbers, stream="bank"):
    """Add payments, as another program does; returns the ids of the entries."""
    with redis.client() as client:
        return [client.xadd(stream, {"data": json.dumps({"n": number}), "key": f"k{number}"}) for number in numbers]


def payment(message):
    return Draft(value=message.json()["n"], type="payment", key=message.key)


def test_what_a_relay_of_ours_wrote_is_taken_in_as_it_was(things, make_topic, make_relay, make_inbox, redis):
    sent = make_topic("sent")
    fill_topic(sent, {"n": 1}, [2, None], "drei", type="order.placed", key="Ä/da")
    serve_due(make_relay(sent, to=redis_stream("bank"), partitioned=False))
    inbox = make_inbox(things, source=SOURCE)
    assert take_in(inbox) == 3

    events = published(things)
    assert [(one.value, one.type, one.key) for one in events] == [
        ({"n": 1}, "order.placed", "Ä/da"),
        ([2, None], "order.placed", "Ä/da"),
        ("drei", "order.placed", "Ä/da"),
    ]
    metadata = events[0].metadata
    assert metadata["inbox"] == "things-in"
    assert metadata["message"] == "bank/1-0"
    assert metadata["ce"]["id"] == "sent/1"
    assert metadata["ce"]["source"] == "/sent"
    assert metadata["ce"]["time"].endswith("Z")


@pytest.mark.parametrize("form", ["cloudevent", "value"])
def test_other_forms_of_a_relay_are_taken_in_too(things, make_topic, make_relay, make_inbox, redis, form):
    sent = make_topic("sent")
    fill_topic(sent, {"n": 1}, type="order.placed", key="Ada")
    serve_due(make_relay(sent, to=redis_stream("bank"), partitioned=False, form=form))
    take_in(make_inbox(things, source=SOURCE))

    [event] = published(things)
    assert (event.value, event.key, event.metadata["ce"]["id"]) == ({"n": 1}, "Ada", "sent/1")
    assert event.type == ("order.placed" if form == "cloudevent" else "")


def test_bodies_keep_their_bytes(things, make_inbox, redis):
    with redis.client() as client:
        client.xadd("bank", {"ce_id": "1", "ce_type": "scan", "content_type": "image/png", "data": b"\x00\xff"})
    take_in(make_inbox(things, source=SOURCE))

    [event] = published(things)
    assert (event.body, event.type) == (b"\x00\xff", "scan")


def test_order_is_kept_over_many_batches_and_what_is_left_out_counts(things, make_inbox, redis):
    add(redis, *range(50))

    def transform(message):
        value = message.json()["n"]
        if value % 10 == 5:
            raise Ignore("not ours")
        return None if value % 10 == 0 else payment(message)

    assert take_in(make_inbox(things, source=SOURCE, transform=transform, batch_size=7)) == 50
    assert values(things) == [n for n in range(50) if n % 5]
    assert (row().taken, row().left_out, row().lag) == (40, 10, 0)


def test_what_was_taken_in_is_not_taken_in_again_and_what_comes_later_is(things, make_inbox, redis):
    inbox = make_inbox(things, source=SOURCE, transform=payment)
    add(redis, 1, 2)
    assert (take_in(inbox), take_in(inbox)) == (2, 0)
    add(redis, 3)
    assert take_in(inbox) == 1
    assert values(things) == [1, 2, 3]


@pytest.mark.parametrize(("start", "expected"), [("beginning", [1, 2, 3, 4]), ("end", [4]), ("second", [3, 4])])
def test_an_inbox_begins_where_it_is_told(things, make_inbox, redis, start, expected):
    ids = add(redis, 1, 2, 3)
    inbox = make_inbox(things, source=SOURCE, transform=payment, start=ids[1] if start == "second" else start)
    take_in(inbox)
    add(redis, 4)
    take_in(inbox)
    assert values(things) == expected
    assert row().error == ""


def test_an_empty_place_is_waited_at(things, make_inbox, redis):
    inbox = make_inbox(things, source=SOURCE, transform=payment)
    assert take_in(inbox) == 0
    add(redis, 1)
    assert take_in(inbox) == 1


def test_a_twin_that_is_faster_leaves_nothing_to_do(things, make_inbox, redis):
    """While the first one makes events of a batch, another one takes the same batch in."""
    add(redis, *range(10))
    began = []

    def transform(message):
        if not began:
            began.append(message)
            assert take_in(inbox) == 10
        return payment(message)

    inbox = make_inbox(things, source=SOURCE, transform=transform)
    assert take_in(inbox) == 0
    assert values(things) == list(range(10))
    assert row().taken == 10


def test_positions_and_events_are_committed_together_or_not_at_all(things, make_inbox, redis):
    """The database refuses the events: the position stays where it is."""
    add(redis, 1, 2)
    inbox = make_inbox(things, source=SOURCE, transform=payment)
    table = connection.ops.quote_name(BufferedEvent._meta.db_table)
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} ADD CONSTRAINT none CHECK (type <> 'payment') NOT VALID")
    try:
        assert take_in(inbox) == 0
        assert "none" in error()
        assert row().taken == 0
    finally:
        with connection.cursor() as cursor:
            cursor.execute(f"ALTER TABLE {table} DROP CONSTRAINT none")
    assert take_in(inbox) == 2
    assert values(things) == [1, 2]
    assert row().error == ""
    assert row().failing_since is None


def test_a_message_that_cannot_be_read_is_an_event_with_its_bytes_in_its_place(things, make_inbox, redis):
    with redis.client() as client:
        client.xadd("bank", {"data": b'{"n": 1}', "key": "a"})
        poison = client.xadd("bank", {"data": b"\xffno JSON", "key": "b\0", "odd": b"\xfe"})
        client.xadd("bank", {"data": b'{"n": 3}', "key": "c"})
    assert take_in(make_inbox(things, source=SOURCE, transform=payment)) == 3

    first, unreadable, last = published(things)
    assert (first.value, last.value) == (1, 3)
    assert (unreadable.type, unreadable.body, unreadable.key) == ("inbox.unreadable", b"\xffno JSON", None)
    assert unreadable.metadata["message"] == f"bank/{poison}"
    assert "transform raised" in unreadable.metadata["error"]
    assert unreadable.metadata["fields"] == {"key": "YgA=", "odd": "/g=="}
    assert (row().taken, row().unreadable) == (2, 1)
    assert row().unreadable_at is not None


def test_what_is_no_cloudevent_needs_a_transform(things, make_inbox, redis):
    add(redis, 1)
    take_in(make_inbox(things, source=SOURCE))
    [event] = published(things)
    assert "is no CloudEvent" in event.metadata["error"]


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        ("text", "returned str, expected a Draft"),
        (Draft(value={"n": "\0"}), "U+0000"),
        (Draft(value=1, key="k" * 600), "key"),
        (Draft(value=1, shard_by="a"), "shard_by"),
        (Draft(value=1, metadata=[1]), "metadata"),
    ],
)
def test_what_cannot_be_published_cannot_be_read(things, make_inbox, redis, draft, said):
    add(redis, 1)
    take_in(make_inbox(things, source=SOURCE, transform=lambda message: draft))
    [event] = published(things)
    assert event.type == "inbox.unreadable"
    assert said in event.metadata["error"]


def test_a_transform_that_fails_is_tried_as_often_as_retry_says(things, make_inbox, redis):
    add(redis, 1, 2)
    attempts = []

    def transform(message):
        if message.json()["n"] == 2:
            attempts.append(message.id)
            if len(attempts) < 4:
                raise LookupError("not yet")
        return payment(message)

    take_in(make_inbox(things, source=SOURCE, transform=transform))
    assert len(attempts) == 4  # once behind the first one, which doesn't count, and three times
    assert values(things) == [1, 2]
    assert row().error == ""


def test_retry_later_waits_and_counts_no_attempt(things, make_inbox, redis):
    add(redis, 1)

    def transform(message):
        raise RetryLater("the rates are not there", after=timedelta(hours=1))

    assert take_in(make_inbox(things, source=SOURCE, transform=transform)) == 0
    assert "the rates are not there" in error()
    assert published(things) == []


def test_an_inbox_that_stops_in_front_of_what_it_cannot_read_goes_on_when_it_can(things, make_inbox, redis):
    add(redis, 1, 2, 3)
    readable = {1, 3}

    def transform(message):
        return payment(message) if message.json()["n"] in readable else 1 / 0

    inbox = make_inbox(things, source=SOURCE, transform=transform, on_unreadable="stop")
    take_in(inbox)
    assert values(things) == [1]
    assert "can't be read, and the inbox waits in front of it" in error()
    readable.add(2)
    take_in(inbox)
    assert values(things) == [1, 2, 3]
    assert row().error == ""


def test_a_topic_that_takes_no_unreadable_event_is_waited_for(make_topic, make_inbox, redis):
    big = make_topic("big")
    with redis.client() as client:
        client.xadd("bank", {"data": b"x" * 5_000})
    inbox = make_inbox(big, source=SOURCE, transform=payment)
    with override_settings(DJANGO_EVENTS={"MAX_PAYLOAD_BYTES": 1_000, "BROKERS": {"redis": redis.options}}):
        take_in(inbox)
        assert "doesn't take it as an event" in error()
    take_in(inbox)
    [event] = published(big)
    assert event.body == b"x" * 5_000


def test_entries_that_were_trimmed_are_said_and_nothing_is_passed_over(things, make_inbox, redis):
    inbox = make_inbox(things, source=SOURCE, transform=payment)
    add(redis, 1, 2)
    take_in(inbox)
    add(redis, *range(3, 10))
    with redis.client() as client:
        client.xtrim("bank", maxlen=2, approximate=False)
    assert take_in(inbox) == 0
    assert "5 messages of 'bank' behind" in error()
    assert "expired='skip'" in error()
    assert values(things) == [1, 2]
    with redis.client() as client:  # all of it
        client.xtrim("bank", maxlen=0, approximate=False)
    take_in(inbox)
    assert "7 messages of 'bank' behind" in error()


@pytest.mark.parametrize("left", [2, 0])
def test_an_inbox_goes_on_without_what_was_trimmed_if_it_is_told_to(things, make_inbox, redis, left):
    make_inbox(things, source=SOURCE, transform=payment, batch_size=3)
    inbox = make_inbox(things, source=SOURCE, transform=payment, batch_size=3, expired="skip")
    add(redis, 1, 2)
    take_in(inbox)
    add(redis, *range(3, 10))
    with redis.client() as client:
        client.xtrim("bank", maxlen=left, approximate=False)
    take_in(inbox)
    add(redis, 10)
    take_in(inbox)
    assert values(things) == [1, 2, *range(10 - left, 10), 10]
    assert row().gone == 7 - left
    assert row().error == ""


def test_trimming_what_was_taken_in_is_no_loss(things, make_inbox, redis):
    inbox = make_inbox(things, source=SOURCE, transform=payment)
    for n in range(5):
        add(redis, 2 * n, 2 * n + 1)
        take_in(inbox)
        with redis.client() as client:
            client.xtrim("bank", maxlen=n % 3, approximate=False)
    assert values(things) == list(range(10))
    assert row().gone == 0


def test_an_entry_that_was_deleted_before_it_was_taken_in_is_said(things, make_inbox, redis):
    inbox = make_inbox(things, source=SOURCE, transform=payment)
    add(redis, 1)
    take_in(inbox)
    _, middle, _ = add(redis, 2, 3, 4)
    with redis.client() as client:
        client.xdel("bank", middle)
    take_in(inbox)
    assert "1 message of 'bank' behind" in error()


@pytest.mark.parametrize("more", [0, 1, 4])
def test_a_stream_that_was_made_anew_is_refused(things, make_inbox, redis, more):
    """Its ids go on, because they are times; it may have fewer entries than the former one had, or more."""
    inbox = make_inbox(things, source=SOURCE, transform=payment)
    add(redis, 1, 2)
    take_in(inbox)
    with redis.client() as client:
        client.delete("bank")
    add(redis, *range(10, 10 + more))
    assert take_in(inbox) == 0
    assert "made anew" in error() or "not there any more" in error()
    assert "events inbox restart" in error()
    restart_inbox("things-in", start="beginning")
    assert take_in(inbox) == more
    assert values(things) == [1, 2, *range(10, 10 + more)]


def test_a_stream_that_was_made_anew_with_the_same_ids_is_refused(things, make_inbox, redis):
    """A relay gives entries the ids of its events, which begin again with its log."""
    inbox = make_inbox(things, source=SOURCE, transform=payment)
    for log, numbers in (("former", range(1, 4)), ("new", range(11, 17))):
        with redis.client() as client:
            client.delete("bank")
            for entry_id, number in enumerate(numbers, start=1):
                client.xadd("bank", {"data": json.dumps({"n": number})}, id=f"{entry_id}-0")
        assert take_in(inbox) == (3 if log == "former" else 0)

    assert "is not the one that the inbox has taken in" in error()
    restart_inbox("things-in", start="beginning")
    take_in(inbox)
    assert values(things) == [1, 2, 3, *range(11, 17)]


@pytest.mark.parametrize("media_type", ["application/JSON", "Application/Json; charset=utf-8"])
def test_the_case_of_a_media_type_says_nothing(things, make_inbox, redis, media_type):
    with redis.client() as client:
        client.xadd("bank", {"ce_id": "1", "ce_source": "s", "content_type": media_type, "data": '{"n": 1}'})
    take_in(make_inbox(things, source=SOURCE))

    assert values(things) == [{"n": 1}]


def test_a_source_of_another_name_has_no_place_of_it(things, make_inbox, redis):
    add(redis, 1)
    take_in(make_inbox(things, source=SOURCE, transform=payment))
    other = make_inbox(things, source=redis_source("elsewhere"), transform=payment)
    take_in(other)
    assert "a process declares it for redis elsewhere" in error()


def test_a_broker_that_is_away_is_said_without_its_password_and_waited_for(things, make_inbox, redis, caplog):
    add(redis, 1)
    inbox = make_inbox(things, source=SOURCE, transform=payment)
    options = {**redis.options, "url": "redis://default:hunter-two@127.0.0.1:1/0", "port": 1}
    with override_settings(DJANGO_EVENTS={"BROKERS": {"redis": options}}):
        take_in(inbox)
        assert "Redis 'redis'" in error()
        since = row().failing_since
        take_in(inbox)
        assert row().failing_since == since
    with override_settings(DJANGO_EVENTS={"BROKERS": {}}):
        take_in(inbox)
        assert "DJANGO_EVENTS['BROKERS'] has no 'redis'" in error()
    assert "takes nothing in since" in caplog.text
    assert "hunter-two" not in caplog.text + error()
    take_in(inbox)
    assert values(things) == [1]
    assert row().error == ""


@pytest.mark.slow
def test_a_broker_that_is_killed_is_found_again_by_the_same_worker(things, make_inbox, redis):
    inbox = make_inbox(things, source=SOURCE, transform=payment)
    worker, stop = InboxWorker("default", inbox, once=True), Stop()
    add(redis, 1)
    assert run(worker, stop, once=True) == 1
    redis.kill()
    run(worker, stop, once=True)
    assert "Redis 'redis'" in error()
    redis.start()
    add(redis, 2)
    wait_until(lambda: run(worker, stop, once=True) == 1, what="the second one")
    worker.close()
    stop.close()
    assert values(things) == [1, 2]


def test_an_inbox_that_is_begun_anew_while_a_worker_is_at_it_begins_anew(things, make_inbox, redis):
    add(redis, 1, 2)
    inbox = make_inbox(things, source=SOURCE, transform=payment)
    worker, stop = InboxWorker("default", inbox, once=True), Stop()
    assert run(worker, stop, once=True) == 2
    restart_inbox(inbox, start="beginning")
    add(redis, 3)
    assert run(worker, stop, once=True) == 3
    worker.close()
    stop.close()
    assert values(things) == [1, 2, 1, 2, 3]


def test_nothing_of_an_inbox_needs_a_transaction_of_the_caller(things, make_inbox, redis):
    add(redis, 1)
    inbox = make_inbox(things, source=SOURCE, transform=payment)
    with override_settings(DJANGO_EVENTS={"REQUIRE_TRANSACTION": True, "BROKERS": {"redis": redis.options}}):
        assert take_in(inbox) == 1
    with transaction.atomic():
        assert values(things) == [1]
