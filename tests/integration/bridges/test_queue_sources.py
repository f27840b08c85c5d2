"""Inboxes from a queue of a site's own: what the worker asks of its reader, and what is exact whatever a queue does."""

import threading
import time
from collections import deque
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.db import DatabaseError
from django.utils import timezone

from django_events import Draft, sqs_source
from django_events.bridges.inboxes import queue_worker
from django_events.bridges.inboxes.queue_sources import QueuedMessage, QueueInUse, dedup_key_of, identity_of
from django_events.bridges.inboxes.serving import worker_of
from django_events.bridges.inboxes.sources import InboxMessage, SourceUnavailable
from django_events.bridges.inboxes.sqs_source import SqsReader
from django_events.models import DedupKey, Inbox
from django_events.observing.inbox_states import state_of
from django_events.operations import pause_inbox, resume_inbox
from django_events.retries import RetryLater
from django_events.testing import published
from django_events.workers.loop import run
from django_events.workers.stopping import Stop
from tests.support.fix_inboxes import row, take_in, turn, values
from tests.support.processes import wait_until

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X21")]


@dataclass
class Letterbox:
    """A queue in memory that gives all that it has not forgotten to each reader that is opened."""

    letters: list[QueuedMessage] = field(default_factory=list)
    given_back: list[tuple[str, timedelta]] = field(default_factory=list)
    forgets: bool = True
    breaks: bool = False
    is_taken: bool = False  # by another reader
    is_silent: bool = False  # about how many letters it has
    refuses: bool = False  # to forget
    hides: bool = False  # what is to come again later
    holds: float = 60.0
    in_order = False
    is_queue = True
    window = timedelta(days=4)

    def put(self, *numbers, group=None, identity=True, again=False):
        for n in numbers:
            message = InboxMessage(id=str(n), log="letterbox", place=n, body=str(n).encode())
            self.letters.append(QueuedMessage(message, f"letter {n}" if identity else None, group, again))

    def __str__(self):
        return "letterbox"

    def problems(self):
        return iter(())

    def check_installed(self):
        pass

    def reader(self):
        return LetterboxReader(self)


class LetterboxReader:
    def __init__(self, box):
        self.box, self.in_order, self.holds = box, box.in_order, box.holds

    def open(self):
        if self.box.breaks:
            raise SourceUnavailable("the letterbox is jammed")
        self.waiting = deque(self.box.letters)

    def receive(self, most):
        if self.box.is_taken:
            raise QueueInUse("another one reads the letterbox.")
        return [self.waiting.popleft() for _ in range(min(most, len(self.waiting)))]

    def acknowledge(self, messages):
        if self.box.refuses:
            raise SourceUnavailable("not deleted")
        if self.box.forgets:
            taken = list(messages)
            self.box.letters = [one for one in self.box.letters if one not in taken]

    def give_back(self, messages, after):
        messages = list(messages)
        if not (self.box.hides and after):
            self.waiting = deque(one for one in self.box.letters if one in messages or one in self.waiting)
        self.box.given_back += [(one.message.id, after) for one in messages]

    def lag(self):
        if self.box.is_silent:
            raise SourceUnavailable("throttled")
        return len(self.waiting)

    def keep(self):
        pass

    def close(self):
        pass


@pytest.fixture
def box():
    return Letterbox()


def letter(message):
    return Draft(value=message.json(), type="letter")


def test_what_comes_again_is_published_once(things, make_inbox, box):
    """The queue never forgets: each reader gets all of it again."""
    box.forgets = False
    inbox = make_inbox(things, source=box, transform=letter, batch_size=2)
    box.put(1, 2, 3)
    assert take_in(inbox) == 3
    box.put(4)
    assert take_in(inbox) == 4

    assert values(things) == [1, 2, 3, 4]
    assert (row().taken, row().position) == (4, None)


def test_what_is_left_out_is_remembered_too(things, make_inbox, box):
    box.forgets = False
    box.put(1, 2)

    def transform(message):
        if message.json() == 1 and not opened:
            return None
        return letter(message)

    opened: list[bool] = []
    inbox = make_inbox(things, source=box, transform=transform)
    take_in(inbox)
    opened.append(True)
    take_in(inbox)

    assert values(things) == [2]
    assert (row().taken, row().left_out) == (1, 1)


def test_behind_its_window_a_message_is_a_new_one(things, make_inbox, box):
    box.forgets = False
    box.put(1)
    inbox = make_inbox(things, source=box, transform=letter)
    take_in(inbox)
    for key in DedupKey.objects.all():
        DedupKey.objects.filter(key=key.key).update(expires_at=key.expires_at - timedelta(days=5))
    take_in(inbox)

    assert values(things) == [1, 1]


def test_two_inboxes_of_a_topic_each_take_a_message_in(things, make_inbox, box):
    box.forgets = False
    box.put(1)
    take_in(make_inbox(things, source=box, transform=letter))
    take_in(make_inbox(things, source=box, transform=letter, name="others-in"))

    assert values(things) == [1, 1]


def test_a_message_without_identity_comes_each_time(things, make_inbox, box):
    box.forgets = False
    box.put(1, identity=False)
    inbox = make_inbox(things, source=box, transform=letter)
    take_in(inbox)
    take_in(inbox)

    assert values(things) == [1, 1]
    assert not DedupKey.objects.exists()


def test_what_was_not_committed_is_given_back_at_once(things, make_inbox, box, monkeypatch):
    def fail(*arguments, **options):
        raise DatabaseError("no space left")

    box.put(1, 2)
    inbox = make_inbox(things, source=box, transform=letter)
    with closing(worker_of("default", inbox)) as worker, monkeypatch.context() as patched:
        patched.setattr(queue_worker, "take_in_queued", fail)
        turn(worker)
    assert box.given_back == [("1", timedelta(0)), ("2", timedelta(0))]
    assert "no space left" in row().error
    take_in(inbox)

    assert values(things) == [1, 2]


def test_a_message_that_waits_is_given_back_with_its_group_and_others_go_on(things, make_inbox, box, caplog):
    box.put(1, 2, group="a")
    box.put(3, 4, group="b")
    box.put(5)

    def transform(message):
        if message.json() == 1:
            raise RetryLater("closed", after=timedelta(minutes=3))
        return letter(message)

    with closing(worker_of("default", make_inbox(things, source=box, transform=transform))) as worker:
        assert turn(worker) == 3
        assert box.given_back == [("1", timedelta(minutes=3)), ("2", timedelta(0))]
        assert "goes on around a message" in caplog.text
        turn(worker)
        assert "closed" in row().error

    assert values(things) == [3, 4, 5]


def test_a_queue_in_order_rests_in_front_of_a_message_that_waits(things, make_inbox, box):
    box.in_order = True
    box.put(1, 2, 3, group="")
    closed = [True]

    def transform(message):
        if message.json() == 2 and closed:
            raise RetryLater("closed", after=timedelta(0))
        return letter(message)

    inbox = make_inbox(things, source=box, transform=transform)
    with closing(worker_of("default", inbox)) as worker:
        assert turn(worker) == 1
        assert turn(worker) == 0
        assert "closed" in row().error
    closed.clear()
    take_in(inbox)

    assert values(things) == [1, 2, 3]
    assert row().error == ""


def test_since_when_nothing_could_be_taken_in_stays_what_it_was(things, make_inbox, box):
    box.put(1)

    def transform(message):
        raise RetryLater("closed", after=timedelta(0))

    with closing(worker_of("default", make_inbox(things, source=box, transform=transform))) as worker:
        turn(worker)
        since = row().failing_since
        worker._rests_until = 0
        turn(worker)

    assert since is not None
    assert row().failing_since == since


def test_an_inbox_that_waits_in_front_of_a_message_stays_failing_while_the_queue_hides_it(
    things, make_inbox, box, caplog
):
    box.hides, closed = True, [True]
    box.put(1)

    def transform(message):
        if closed and message.json() == 1:
            raise RetryLater("closed", after=timedelta(minutes=3))
        return letter(message)

    with (
        caplog.at_level("INFO", logger="django_events.inboxes"),
        closing(worker_of("default", make_inbox(things, source=box, transform=transform))) as worker,
    ):
        turn(worker)
        since = row().failing_since
        for numbers in ([], [2], [], [3]):
            worker._served = worker._rests_until = float("-inf")
            box.put(*numbers)
            worker._queue.waiting.extend(box.letters[1:])
            assert turn(worker) == len(numbers)
            assert "closed" in row().error
            assert row().failing_since == since is not None
        assert "works again" not in caplog.text
        closed.clear()
        worker._queue.waiting.extend(box.letters)
        assert turn(worker) == 1
        assert "works again" in caplog.text

    assert (row().error, row().failing_since) == ("", None)
    assert values(things) == [2, 3, 1]


def test_a_message_that_another_process_has_taken_in_since_holds_nothing_up(things, make_inbox, box):
    box.hides, box.holds = True, 0.0
    box.put(1)

    def transform(message):
        raise RetryLater("closed", after=timedelta(0))

    with closing(worker_of("default", make_inbox(things, source=box, transform=transform))) as worker:
        turn(worker)
        assert "closed" in row().error
        worker._queue.waiting.clear()
        wait_until(lambda: (turn(worker), row().error == "")[1], what="a row without an error")


def test_an_inbox_whose_queue_forgets_nothing_stays_failing(things, make_inbox, box):
    box.refuses = True
    box.put(1)
    with closing(worker_of("default", make_inbox(things, source=box, transform=letter))) as worker:
        turn(worker)
        since = row().failing_since
        worker._rests_until = 0
        turn(worker)
        assert row().error == "not deleted"
        assert row().failing_since == since is not None
        box.refuses, worker._rests_until = False, 0
        turn(worker)

    assert (row().error, row().failing_since) == ("", None)
    assert values(things) == [1]


def test_a_queue_in_other_hands_is_an_outage_unless_another_process_serves_the_inbox(things, make_inbox, box):
    box.is_taken = True
    inbox = make_inbox(things, source=box, transform=letter)
    with closing(worker_of("default", inbox)) as worker, closing(worker_of("default", inbox)) as twin:

        def stands_by(*, served):
            """After as long as another one may take to say that it serves."""
            worker._rests_until = 0
            worker._heard -= queue_worker.SERVES + 1
            if served:
                box.is_taken, twin._rests_until, twin._served = False, 0, float("-inf")
                turn(twin)
                box.is_taken = True
            turn(worker)
            return row().error == ""

        assert all(stands_by(served=True) for _ in range(5))
        assert not stands_by(served=False)
        assert row().error == "another one reads the letterbox. No other process serves this inbox."
        assert not any(stands_by(served=False) for _ in range(5))  # its own words are no sign of another one
        assert all(stands_by(served=True) for _ in range(5))
        box.is_taken, worker._rests_until = False, 0
        box.put(1)
        turn(worker)
    assert row().error == ""


def test_a_queue_that_does_not_tell_how_many_more_there_are_is_taken_in_from(things, make_inbox, box):
    box.is_silent = True
    box.put(1)
    take_in(make_inbox(things, source=box, transform=letter))

    assert values(things) == [1]
    assert (row().lag, row().error, box.given_back) == (None, "", [])


def test_a_paused_inbox_takes_nothing_in_and_what_was_received_is_given_back(things, make_inbox, box):
    box.put(1, 2)
    paused: list[bool] = []

    def transform(message):
        if not paused:
            paused.append(pause_inbox("things-in"))
        return letter(message)

    inbox = make_inbox(things, source=box, transform=transform)
    with closing(worker_of("default", inbox)) as worker:
        turn(worker)
        assert values(things) == []
        worker._rests_until = 0
        turn(worker)
    assert values(things) == []
    assert state_of(row(), timezone.now()) == "paused"
    resume_inbox(inbox)
    take_in(inbox)

    assert values(things) == [1, 2]
    assert state_of(row(), timezone.now()) == "serving"


@pytest.mark.parametrize("in_order", [False, True])
def test_a_batch_that_transform_is_too_slow_for_is_taken_in_as_far_as_there_is_time(
    things, make_inbox, box, in_order, monkeypatch
):
    """A queue gives messages to another reader if it hears nothing for too long."""
    box.in_order = in_order
    box.put(1, 2, 3, group="")
    with closing(worker_of("default", make_inbox(things, source=box, transform=letter))) as worker:
        monkeypatch.setattr(queue_worker, "SHARE", float("inf"))
        assert turn(worker) == 1
        assert [number for number, _ in box.given_back] == ["2", "3"]
        monkeypatch.undo()
        assert [turn(worker), turn(worker), turn(worker)] == [1, 1, 0]  # not more than there was time for

    assert values(things) == [1, 2, 3]


def test_a_message_that_took_longer_than_the_queue_waits_is_a_problem_and_is_not_transformed_again(
    things, make_inbox, box
):
    """The queue gives it out again. It would be transformed again, for as long, and come again, for ever."""
    box.forgets, box.holds, tried = False, 0.01, []
    box.put(1)

    def slow(message):
        tried.append(message.json())
        time.sleep(0.02)
        return letter(message)

    with closing(worker_of("default", make_inbox(things, source=box, transform=slow))) as worker:
        assert turn(worker) == 0
        assert "letterbox waits for 0.01 s, and it took " in row().error
        assert row().failing_since is not None
        box.letters.clear()
        box.put(1, again=True)
        box.forgets, box.holds, worker._rests_until = True, 60.0, 0
        assert turn(worker) == 1
        assert (row().error, row().failing_since) == ("", None)

    assert (values(things), tried, box.letters) == ([1], [1], [])
    assert (row().taken, row().left_out) == (1, 0)


def test_a_message_that_the_queue_gives_again_and_that_is_no_event_yet_is_taken_in(things, make_inbox, box):
    box.put(1, again=True)
    box.put(2, again=True, identity=False)
    take_in(make_inbox(things, source=box, transform=letter))

    assert values(things) == [1, 2]


def test_what_is_dropped_by_its_own_dedup_key_is_left_out(things, make_inbox, box):
    box.put(1, 2, 3)
    take_in(make_inbox(things, source=box, transform=lambda message: Draft(value=message.json() % 2, dedup_key="k")))

    assert values(things) == [1]
    assert (row().taken, row().left_out) == (1, 2)


@pytest.mark.parametrize("tells", [True, False])
def test_once_ends_at_what_was_there_although_more_comes_all_the_time(things, make_inbox, box, tells):
    box.is_silent = not tells
    box.put(*range(20))

    def busy(message):
        if tells or message.json() < 20:
            box.put(message.json() + 20)
            worker._queue.waiting.append(box.letters[-1])
        return letter(message)

    inbox = make_inbox(things, source=box, transform=busy, batch_size=7)
    with closing(Stop()) as stop, closing(worker_of("default", inbox, once=True)) as worker:
        run(worker, stop, once=True)

    assert values(things) == list(range(21 if tells else 40))


def test_attempts_count_for_each_message_by_itself(things, make_inbox, box):
    box.put(1, 2, 3)

    def transform(message):
        assert message.json() == 2
        return letter(message)

    with closing(worker_of("default", make_inbox(things, source=box, transform=transform))) as worker:
        turns = [turn(worker)]
        while box.letters and len(turns) < 10:
            worker._rests_until = 0
            turns.append(turn(worker))

    assert turns == [1, 0, 2]
    assert sorted(event.type for event in published(things)) == ["inbox.unreadable", "inbox.unreadable", "letter"]


def test_a_queue_that_is_away_is_said_and_waited_for(things, make_inbox, box):
    box.breaks = True
    box.put(1)
    inbox = make_inbox(things, source=box, transform=letter)
    take_in(inbox)
    assert row().error == "the letterbox is jammed"
    box.breaks = False
    take_in(inbox)

    assert values(things) == [1]
    assert (row().error, row().failing_since) == ("", None)


def test_sqs_that_deletes_not_all_says_so_after_the_others():
    asked = []

    def delete(**request):
        asked.append([entry["ReceiptHandle"] for entry in request["Entries"]])
        if len(asked) > 1:
            return {}
        return {"Failed": [{"Id": "0", "Code": "InvalidParameterValue", "Message": "The receipt handle has expired"}]}

    reader = SqsReader(sqs_source("letters.fifo"))
    reader._client = SimpleNamespace(delete_message_batch=delete)
    messages = [QueuedMessage(InboxMessage(id=str(n), log="letters.fifo", place=n), str(n), "g") for n in range(12)]
    with pytest.raises(SourceUnavailable, match=r"did not delete 1 message.*has expired.*visibility=0:01:00"):
        reader.acknowledge(messages)
    assert sorted(asked) == [list(range(10)), [10, 11]]


class BusySqs:
    """A client of SQS whose queue has so many messages; some of its answers come when others are asked for too."""

    def __init__(self, messages, *, together=()):
        self.left = messages
        self.together = dict(together)  # by the number of a request, what it waits for
        self.asked = []
        self.failing = set()  # numbers of requests that fail
        self.lock = threading.Lock()

    def receive_message(self, *, MaxNumberOfMessages, WaitTimeSeconds, **others):
        with self.lock:
            number = len(self.asked)
            self.asked.append((MaxNumberOfMessages, WaitTimeSeconds))
        if number in self.together:
            self.together[number].wait(30)
        if number in self.failing:
            raise OSError("no answer")
        with self.lock:
            first, self.left = self.left, max(self.left - MaxNumberOfMessages, 0)
            return {"Messages": [{"MessageId": str(n), "ReceiptHandle": str(n)} for n in range(self.left, first)]}


def reader_of(client):
    reader = SqsReader(sqs_source("letters"))
    reader._client = client
    return reader


def test_messages_of_sqs_are_asked_for_side_by_side_as_long_as_there_are_many():
    two, four, eight, ten = (threading.Barrier(n) for n in (2, 4, 8, 10))  # which break where fewer are under way
    together = {**dict.fromkeys((1, 2), two), **dict.fromkeys(range(3, 7), four), **dict.fromkeys(range(7, 15), eight)}
    client = BusySqs(355, together={**together, **dict.fromkeys(range(15, 35), ten)})
    reader = reader_of(client)
    received = reader.receive(345)
    assert len({one.message.id for one in received}) == len(received) == 345
    assert client.asked[0] == (10, 1)
    assert sorted(client.asked[1:]) == [(5, 0), *[(10, 0)] * 33]
    assert len(reader.receive(5)) == 5  # the queue had many, so this one doesn't wait
    assert client.asked[-1] == (5, 0)
    assert len(reader.receive(50)) == 5
    assert reader.receive(50) == []  # and this one does
    assert client.asked[-1] == (10, 1)


def test_what_is_received_beside_a_request_that_fails_is_not_lost():
    client = BusySqs(100)
    client.failing = {2}
    reader = reader_of(client)
    assert len(reader.receive(100)) == 20
    client.failing = {3}
    with pytest.raises(SourceUnavailable, match="OSError: no answer"):
        reader.receive(100)
    assert len(reader.receive(100)) == 80


def test_messages_of_sqs_are_deleted_side_by_side_and_all_that_can_be():
    ten, asked = threading.Barrier(10), []

    def delete(**request):
        handles = [entry["ReceiptHandle"] for entry in request["Entries"]]
        asked.extend(handles)
        ten.wait(30)
        if "0" in handles:
            raise OSError("no answer")
        return {}

    reader = reader_of(SimpleNamespace(delete_message_batch=delete))
    messages = [QueuedMessage(InboxMessage(id=str(n), log="letters", place=str(n)), str(n)) for n in range(200)]
    with pytest.raises(SourceUnavailable, match="OSError: no answer"):
        reader.acknowledge(messages)
    assert sorted(map(int, asked)) == list(range(200))


def test_an_inbox_that_is_removed_meanwhile_takes_nothing_in(things, make_inbox, box):
    box.put(1)
    inbox = make_inbox(things, source=box, transform=lambda message: (Inbox.objects.all().delete(), letter(message))[1])
    take_in(inbox)

    assert values(things) == []
    assert not DedupKey.objects.exists()
    assert len(box.letters) == 1


@pytest.mark.parametrize(
    ("headers", "identity"),
    [
        ({"ce_id": "7", "ce_source": "/s", "ce_time": "t"}, '["/s", "7", "t"]'),
        ({"cloudevents:id": "7", "cloudevents:source": "/s"}, '["/s", "7", ""]'),
        ({"ce-id": "7"}, '["fallback"]'),
        ({}, '["fallback"]'),
    ],
)
def test_a_cloudevent_is_the_same_whenever_it_is_sent(headers, identity):
    assert identity_of(headers, "fallback") == identity


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (({"ce_source": "s", "ce_id": "1 2"}, None), ({"ce_source": "s 1", "ce_id": "2"}, None)),
        (({"ce_source": "s", "ce_id": "7 t"}, None), ({"ce_source": "s", "ce_id": "7", "ce_time": "t"}, None)),
        (({"ce_source": "s", "ce_id": "7"}, None), ({}, '["s", "7", ""]')),
    ],
)
def test_different_messages_have_different_identities(one, other):
    assert identity_of(*one) != identity_of(*other)


def test_a_message_whose_broker_gives_it_an_empty_name_has_no_identity():
    assert identity_of({}, "") is None


def test_a_dedup_key_is_short():
    assert len(dedup_key_of("i" * 63, "x" * 10_000)) < 512
