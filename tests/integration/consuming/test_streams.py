"""Stream consumers: in order, exactly once, and what becomes of events that fail."""

import asyncio
import logging
import sys
import threading
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from random import Random

import pytest
from django.db import DatabaseError, IntegrityError, connection, transaction

from django_events import Backoff, Draft, Ignore, RetryLater, publish, publish_many
from django_events.consuming import handling, subscriptions
from django_events.consuming.streams import batches
from django_events.consuming.streams import server as streams
from django_events.log.segments import segments
from django_events.models import Event, Position, Topic
from django_events.models.functions import ClockTimestamp
from django_events.operating.dead_letters import redrive
from django_events.operating.pausing import pause, resume
from testproject.shop.models import Payment, Product
from tests.support.fix_consumers import (
    dead_letters,
    due,
    end_pauses,
    exhaust,
    lease_of,
    position_of,
    positions,
    reached,
    run_once,
    serve_due,
    serve_lease,
    working,
    write_order,
    written,
)
from tests.support.fix_topics import log_values, transfer_all
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("transactional_db", "shelf")

NO_PAUSE = timedelta(0)
AT_ONCE = Backoff(attempts=3, base=NO_PAUSE)
ONE_ATTEMPT = Backoff(attempts=1)
BOTH_MODES = pytest.mark.parametrize("transactional", [True, False], ids=["transactional", "not transactional"])


def fill(topic, *values, **fields):
    """Publish values to a topic and move them into its log."""
    publish_many(topic, [Draft(value=value, **fields) for value in values])
    transfer_all()


class Broken(Exception):
    """What handlers of these tests raise."""


class Flaky:
    """A handler that writes down what it gets, and raises for some values, for the first few attempts or always."""

    def __init__(self, *failing, times=None, error=Broken):
        self.failing = failing
        self.left = dict.fromkeys(failing, times)
        self.error = error
        self.calls = []

    def __call__(self, given):
        events = given if isinstance(given, list) else [given]
        self.calls.append([event.value for event in events] if isinstance(given, list) else given.value)
        for event in events:
            write_order(event.value)
            if event.value in self.failing and self.left[event.value] != 0:
                if self.left[event.value] is not None:
                    self.left[event.value] -= 1
                raise self.error(f"no {event.value}, attempt {event.attempt}")


def assert_numbers(consumer):
    """A position's number is the count of the events up to it in its partition."""
    for position in positions(consumer).select_related("consumer__topic"):
        events = Event.objects.of(position.consumer.topic.name).filter(id__lte=position.position)
        if position.partition != Position.ALL:
            events = events.filter(partition=position.partition)
        assert position.number == events.count()


# Order, and exactly once


@pytest.mark.requirement("X2")
def test_events_are_handled_once_in_their_order(things, make_consumer):
    reader = make_consumer(things, handler=lambda event: write_order(event.value))
    fill(things, *range(250))

    assert run_once(reader) == 250
    assert run_once(reader) == 0
    assert written() == [str(n) for n in range(250)]
    position = position_of(reader)
    assert (position.position, position.number, position.handled, position.failed) == (250, 250, 250, 0)
    assert (position.token, position.leased_until, position.holder) == (None, None, "")


@pytest.mark.requirement("X2")
@pytest.mark.requirement("E9")
def test_batches_are_lists_of_at_most_so_many(things, make_consumer):
    handler = Flaky()
    reader = make_consumer(things, handler=handler, batch_size=40)
    fill(things, *range(100))
    serve_due(reader)

    assert [len(call) for call in handler.calls] == [40, 40, 20]
    assert written() == [str(n) for n in range(100)]


@pytest.mark.requirement("X2")
def test_what_the_handler_writes_and_the_progress_are_seen_together(things, make_consumer, connect, monkeypatch):
    """Another session sees the one with the other, or neither, while a handler runs."""
    monkeypatch.setattr(handling, "TRANSACTION", 0.0)  # each event is committed by itself
    other, seen = connect(autocommit=True), []

    def handler(event):
        write_order(event.value)
        effects = other.execute("SELECT count(*) FROM shop_order").fetchone()[0]
        [place] = other.execute(
            "SELECT p.position FROM django_events_position p JOIN django_events_consumer c ON c.id = p.consumer_id"
            " WHERE c.name = 'reader'"
        ).fetchone()
        seen.append((effects, place))

    reader = make_consumer(things, handler=handler)
    fill(things, *range(5))
    serve_due(reader)

    assert seen == [(n, n) for n in range(5)]
    assert written() == list("01234")


@pytest.mark.requirement("X2")
def test_what_the_handler_publishes_is_committed_with_its_progress(things, make_topic, make_consumer):
    derived = make_topic("derived")
    attempts = Counter()

    def handler(event):
        publish(derived, event.value)
        attempts[event.value] += 1
        if attempts[event.value] == 1 and event.value % 2:
            raise Broken

    reader = make_consumer(things, handler=handler, retry=AT_ONCE)
    fill(things, *range(6))
    exhaust(reader)
    transfer_all()

    assert log_values(derived) == list(range(6))


def test_a_consumer_that_publishes_to_its_own_topic_comes_to_an_end(things, make_consumer):
    def handler(event):
        write_order(event.value)
        if event.value:
            publish(things, event.value - 1)

    reader = make_consumer(things, handler=handler)
    fill(things, 3)
    for _ in range(4):
        serve_due(reader)
        transfer_all()

    assert written() == list("3210")


@pytest.mark.requirement("X2")
def test_hooks_of_the_handler_run_when_its_work_is_committed_and_only_then(things, make_consumer, connect):
    seen, other = [], connect(autocommit=True)

    def handler(event):
        def hook(value=event.value, attempt=event.attempt):
            seen.append((value, attempt, other.execute("SELECT count(*) FROM shop_order").fetchone()[0]))

        write_order(event.value)
        transaction.on_commit(hook)
        if event.value == 2 and event.attempt == 1:
            raise Broken

    reader = make_consumer(things, handler=handler, retry=AT_ONCE)
    fill(things, 1, 2, 3)
    exhaust(reader)

    assert [(value, attempt) for value, attempt, _ in seen] == [(1, 1), (2, 2), (3, 1)]
    assert [effects >= value for value, _, effects in seen] == [True] * 3


def test_a_long_batch_of_single_events_is_committed_on_the_way(things, make_consumer, monkeypatch):
    monkeypatch.setattr(handling, "TRANSACTION", 0.0)
    handler = Flaky(3)
    reader = make_consumer(things, handler=handler)
    fill(things, 1, 2, 3, 4)
    serve_due(reader)

    assert handler.calls == [1, 2, 3], "what is committed is not handled again when a later one fails"
    assert written() == ["1", "2"]


# Failures


@pytest.mark.requirement("E10")
@BOTH_MODES
def test_a_failure_keeps_the_work_before_it_and_waits(things, make_consumer, transactional):
    handler = Flaky(3)
    hour = Backoff(base=timedelta(hours=1), cap=timedelta(hours=1))
    reader = make_consumer(things, handler=handler, retry=hour, transactional=transactional)
    fill(things, 1, 2, 3, 4)

    assert serve_due(reader) == 2
    assert handler.calls.count(3) == 1, "it is not tried again before its time"
    assert written() == (["1", "2"] if transactional else ["1", "2", "3"])
    position = position_of(reader)
    assert (position.position, position.number, position.handled, position.failed) == (2, 2, 2, 1)
    assert (position.attempted, position.attempts, position.error) == (3, 1, "Broken: no 3, attempt 1")
    assert positions(reader).filter(
        retry_at__gt=ClockTimestamp() + timedelta(minutes=40), retry_at__lt=ClockTimestamp() + timedelta(minutes=61)
    )
    assert position.token is None, "others may look at it"
    assert due(reader) == []
    assert lease_of(reader) is None


@pytest.mark.requirement("E10")
@BOTH_MODES
def test_attempts_are_counted_until_it_works(things, make_consumer, transactional):
    seen = []

    def handler(event):
        seen.append((event.value, event.attempt))
        if event.value == 2 and event.attempt < 3:
            raise Broken

    reader = make_consumer(things, handler=handler, retry=Backoff(attempts=5), transactional=transactional)
    fill(things, 1, 2, 3)
    exhaust(reader)

    assert [one for one in seen if one[0] == 2] == [(2, 1), (2, 2), (2, 3)]
    assert {attempt for value, attempt in seen if value != 2} == {1}
    position = position_of(reader)
    assert (position.position, position.attempted, position.attempts, position.error) == (3, None, 0, "")
    assert (position.handled, position.failed, position.dead_lettered) == (3, 2, 0)
    assert dead_letters(reader) == []


@pytest.mark.requirement("E10")
@BOTH_MODES
@pytest.mark.parametrize("batch_size", [None, 1, 3, 10])
def test_the_last_failure_makes_a_dead_letter_and_the_others_go_on(things, make_consumer, transactional, batch_size):
    handler = Flaky(3, 7)
    reader = make_consumer(
        things, handler=handler, retry=AT_ONCE, transactional=transactional, batch_size=batch_size, name="reader"
    )
    fill(things, *range(1, 11))
    exhaust(reader)

    if transactional:
        assert written() == [str(n) for n in range(1, 11) if n not in (3, 7)]
    assert [(letter.event_id, letter.attempts, letter.error) for letter in dead_letters(reader)] == [
        (3, 3, "Broken: no 3, attempt 3"),
        (7, 3, "Broken: no 7, attempt 3"),
    ]
    position = position_of(reader)
    assert (position.position, position.handled, position.failed, position.dead_lettered) == (10, 8, 6, 2)
    assert (position.attempted, position.attempts, position.error) == (None, 0, "")


@pytest.mark.requirement("E10")
def test_a_dead_letter_is_a_full_copy_with_the_reason(lanes, make_consumer):
    def handler(event):
        raise Broken("no such order") from KeyError("order")

    reader = make_consumer(lanes, handler=handler, retry=ONE_ATTEMPT)
    publish(lanes, {"a": None}, type="order.placed", key="7", metadata={"trace": "abc"})
    publish(lanes, body=b"\0\xff")
    publish(lanes, None)
    transfer_all()
    exhaust(reader)

    copied = ("partition", "number", "type", "key", "value", "metadata", "published_at", "logged_at")
    assert len(dead_letters(reader)) == 3
    for letter in dead_letters(reader):
        event = Event.objects.at(lanes, letter.event_id)
        assert {name: getattr(letter, name) for name in copied} == {name: getattr(event, name) for name in copied}
        assert (letter.body and bytes(letter.body)) == (event.body and bytes(event.body))
        assert (letter.attempts, letter.error, letter.redrive_at) == (1, "Broken: no such order", None)
        assert "KeyError: 'order'" in letter.traceback
        assert letter.traceback.rstrip().endswith("Broken: no such order")
        assert 'raise Broken("no such order")' in letter.traceback


@pytest.mark.requirement("E10")
def test_a_dead_letter_is_kept_although_the_log_has_dropped_its_event(make_topic, make_consumer):
    """The worker was told to, between reading and failing."""
    topic = make_topic("short", segment_size=100)
    reader = make_consumer(topic, handler=Flaky(2), retry=ONE_ATTEMPT)
    fill(topic, *range(150))
    lease = lease_of(reader)
    event = lease.read().events[2]
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {segments('default', Topic.objects.get(name='short').pk)[0].table}")
    with transaction.atomic():
        lease.settled(lease.settle([], lease.judge(event, Broken("no"))))
    lease.release()

    assert [(letter.event_id, letter.value, letter.error) for letter in dead_letters(reader)] == [(3, 2, "Broken: no")]
    assert position_of(reader).dead_lettered == 1


@pytest.mark.requirement("E10")
@BOTH_MODES
def test_the_dead_letter_and_the_progress_are_written_in_one_transaction(things, make_consumer, transactional):
    reader = make_consumer(things, handler=Flaky(2), retry=ONE_ATTEMPT, transactional=transactional)
    fill(things, 1, 2)
    serve_due(reader)

    assert len(dead_letters(reader)) == 1
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(DISTINCT xmin::text) FROM ("
            " SELECT d.xmin FROM django_events_deadletter d UNION ALL"
            " SELECT p.xmin FROM django_events_position p JOIN django_events_consumer c ON c.id = p.consumer_id"
            " WHERE c.name = 'reader') AS rows"
        )
        assert cursor.fetchone() == (1,)


@pytest.mark.requirement("E10")
@BOTH_MODES
def test_a_consumer_may_stop_instead_and_says_so(lanes, make_consumer, caplog, transactional):
    handler = Flaky("bad")
    reader = make_consumer(lanes, handler=handler, retry=AT_ONCE, on_exhausted="stop", transactional=transactional)
    fill(lanes, "bad", "behind it", partition=2)
    fill(lanes, "elsewhere", partition=1)
    exhaust(reader)

    assert handler.calls.count("bad") == 3
    assert "behind it" not in handler.calls
    assert handler.calls.count("elsewhere") == 1
    [stopped] = positions(reader).filter(stopped_at__isnull=False)
    assert (stopped.partition, stopped.attempts, stopped.error) == (
        2,
        3,
        "Broken: no bad, attempt 3",
    )
    assert dead_letters(reader) == []
    assert due(reader) == []
    assert lease_of(reader, stopped.partition) is None
    assert "It was the last attempt: the partition stops here" in caplog.text

    handler.failing = ()
    resume(reader)
    exhaust(reader)
    assert handler.calls[-2:] == ["bad", "behind it"]


@pytest.mark.requirement("E10")
def test_a_handler_may_say_when_to_try_again(things, make_consumer):
    reader = make_consumer(things, handler=Flaky(1, error=lambda said: RetryLater(said, after=timedelta(hours=5))))
    fill(things, 1)
    serve_due(reader)

    between = (ClockTimestamp() + timedelta(hours=4, minutes=59), ClockTimestamp() + timedelta(hours=5, minutes=1))
    assert positions(reader).filter(retry_at__range=between, attempts=1, error="RetryLater: no 1, attempt 1").exists()


@pytest.mark.requirement("E10")
def test_asking_for_another_attempt_counts_as_one(things, make_consumer):
    handler = Flaky(1, error=lambda said: RetryLater(said, after=NO_PAUSE))
    reader = make_consumer(things, handler=handler, retry=AT_ONCE)
    fill(things, 1)
    exhaust(reader)

    assert handler.calls == [1, 1, 1]
    assert [letter.error for letter in dead_letters(reader)] == ["RetryLater: no 1, attempt 3"]


@pytest.mark.requirement("E10")
@BOTH_MODES
@pytest.mark.parametrize("batch_size", [None, 4])
def test_an_ignored_event_is_passed_and_what_the_handler_wrote_for_it_is_undone(
    things, make_consumer, caplog, transactional, batch_size
):
    caplog.set_level(logging.INFO)
    handler = Flaky(2, error=Ignore)
    reader = make_consumer(things, handler=handler, transactional=transactional, batch_size=batch_size)
    fill(things, 1, 2, 3)
    exhaust(reader)

    if transactional:
        assert written() == ["1", "3"]
    position = position_of(reader)
    assert (position.position, position.handled, position.ignored, position.failed) == (3, 2, 1, 0)
    assert dead_letters(reader) == []
    assert "event things/2, attempt 1: Ignore: no 2, attempt 1. It is ignored." in caplog.text


@pytest.mark.requirement("E10")
@pytest.mark.requirement("X2")
def test_a_batch_that_fails_is_narrowed_down_to_the_event_it_failed_on(things, make_consumer):
    handler = Flaky(4)
    reader = make_consumer(things, handler=handler, batch_size=5, retry=AT_ONCE)
    fill(things, *range(1, 12))
    exhaust(reader)

    assert handler.calls[:8] == [[1, 2, 3, 4, 5], [1], [2], [3], [4], [4], [4], [5]]
    assert handler.calls[8:] == [[6, 7, 8, 9, 10], [11]], "and then as before"
    assert written() == [str(n) for n in range(1, 12) if n != 4]
    [letter] = dead_letters(reader)
    assert (letter.event_id, letter.attempts) == (4, 3)


def test_a_batch_that_only_fails_together_passes_one_by_one(things, make_consumer):
    def handler(events):
        for event in events:
            write_order(event.value)
        if len(events) > 1:
            raise Broken

    reader = make_consumer(things, handler=handler, batch_size=5, retry=ONE_ATTEMPT)
    fill(things, 1, 2, 3)
    serve_due(reader)

    assert written() == ["1", "2", "3"]
    assert dead_letters(reader) == []
    assert position_of(reader).failed == 0


@pytest.mark.requirement("X2")
def test_what_a_handler_does_to_a_value_is_gone_when_the_event_is_handled_again(things, make_consumer):
    """The one before a failing event is handled again for the commit: as if for the first time."""

    def handler(event):
        event.value["total"] += 1
        event.metadata["seen"] = event.metadata.get("seen", 0) + 1
        write_order(f"{event.id}: {event.value['total']} {event.metadata['seen']}")
        if event.id == 3:
            raise Broken

    reader = make_consumer(things, handler=handler, retry=ONE_ATTEMPT)
    fill(things, *[{"total": 100}] * 4)
    serve_due(reader)

    assert written() == ["1: 101 1", "2: 101 1", "4: 101 1"]


@pytest.mark.requirement("X2")
def test_values_are_fresh_also_where_only_some_of_the_work_is_repeated(things, make_consumer, monkeypatch):
    """The first round fails at the third; in the second, time is up after the first: two and three come again."""

    def handler(event):
        event.value["total"] += 1
        write_order(f"{event.id}: {event.value['total']}")
        if event.id == 3 and not failed:
            failed.append(event)
            monkeypatch.setattr(streams._Turn, "_enough", lambda turn: True)
            raise Broken

    failed = []
    reader = make_consumer(things, handler=handler, retry=AT_ONCE)
    fill(things, *[{"total": 100}] * 4)
    exhaust(reader)

    assert written() == [f"{n}: 101" for n in range(1, 5)]


# Errors at and after the commit


def write_payment_of_nothing():
    """Its foreign key is checked at COMMIT."""
    Payment.objects.create(order_id=999_999_999, amount=1)


@pytest.mark.requirement("X2")
@pytest.mark.parametrize("batch_size", [None, 10])
def test_an_error_at_commit_is_charged_to_the_event_that_caused_it(things, make_consumer, batch_size):
    def handler(given):
        for event in given if batch_size else [given]:
            write_order(event.value)
            if event.value == 3:
                write_payment_of_nothing()

    reader = make_consumer(things, handler=handler, retry=AT_ONCE, batch_size=batch_size)
    fill(things, 1, 2, 3, 4)
    exhaust(reader)

    assert written() == ["1", "2", "4"]
    [letter] = dead_letters(reader)
    assert (letter.event_id, letter.attempts) == (3, 3)
    assert letter.error.startswith("IntegrityError: ")
    position = position_of(reader)
    assert (position.position, position.handled, position.failed, position.dead_lettered) == (4, 3, 3, 1)


@pytest.fixture
def first_commits_fail():
    """The first two transactions that write an order are told at COMMIT that they could not be serialized."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            CREATE SEQUENCE commits_so_far;
            CREATE FUNCTION fail_first_commits() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                IF nextval('commits_so_far') <= 2 THEN
                    RAISE EXCEPTION 'could not serialize access' USING ERRCODE = '40001';
                END IF;
                RETURN NULL;
            END $$;
            CREATE CONSTRAINT TRIGGER fail_first_commits AFTER INSERT ON shop_order
                DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fail_first_commits();
            """
        )
    yield
    with connection.cursor() as cursor:
        cursor.execute(
            "DROP TRIGGER fail_first_commits ON shop_order;"
            "DROP FUNCTION fail_first_commits(); DROP SEQUENCE commits_so_far"
        )


@pytest.mark.requirement("X2")
@pytest.mark.parametrize("batch_size", [None, 10])
@pytest.mark.parametrize("count", [1, 4])
def test_a_transaction_that_could_not_be_serialized_is_done_again(
    things, make_consumer, first_commits_fail, batch_size, count
):
    handler = Flaky()
    reader = make_consumer(things, handler=handler, batch_size=batch_size, retry=AT_ONCE)
    fill(things, *range(count))
    exhaust(reader)

    assert written() == [str(n) for n in range(count)]
    assert dead_letters(reader) == []
    assert reached(reader) == [count]


@pytest.mark.requirement("X2")
@pytest.mark.parametrize("error", [Broken, IntegrityError])
def test_a_hook_that_raises_after_the_commit_takes_nothing_back(things, make_consumer, caplog, error):
    def handler(event):
        write_order(event.value)
        if event.value == 2:
            transaction.on_commit(raise_it)

    def raise_it():
        raise error("the mail server is away")

    reader = make_consumer(things, handler=handler, retry=AT_ONCE)
    fill(things, 1, 2, 3)
    exhaust(reader)

    assert written() == ["1", "2", "3"]
    position = position_of(reader)
    assert (position.position, position.handled, position.failed, position.attempts) == (3, 3, 0, 0)
    assert "a function that its handler gave to on_commit() raised" in caplog.text
    assert "the mail server is away" in caplog.text


@pytest.mark.requirement("X2")
@pytest.mark.parametrize("end", [Broken, Ignore])
def test_a_hook_that_raises_beside_a_failure_does_not_bring_the_failed_event_back(things, make_consumer, end):
    """The event before is committed, its hook raises, and the failed one was passed in the same commit."""
    failed = []

    def handler(event):
        write_order(event.value)
        if event.value == 1:
            transaction.on_commit(raise_it)
        if event.value == 2 and not failed:
            failed.append(event)
            raise end("once")

    def raise_it():
        raise Broken("the mail server is away")

    reader = make_consumer(things, handler=handler, retry=ONE_ATTEMPT)
    fill(things, 1, 2, 3)
    exhaust(reader)

    assert written() == ["1", "3"]
    position = position_of(reader)
    assert (position.handled, position.dead_lettered, position.ignored) == (
        2,
        int(end is Broken),
        int(end is Ignore),
    )


# Handlers that do what they should not


def swallow(event):
    with suppress(DatabaseError), connection.cursor() as cursor:
        cursor.execute("SELECT 1/0")


def break_the_orm(event):
    with suppress(IntegrityError):
        Product.objects.create(sku="tea", price=1, on_shelf=1)


def set_rollback(event):
    transaction.set_rollback(True)


def close_connection(event):
    connection.close()


def roll_back_by_hand(event):
    with connection.cursor() as cursor:
        cursor.execute("ROLLBACK")


def exit_process(event):
    sys.exit("the handler had enough")


def cancel(event):
    raise asyncio.CancelledError


def recurse(event):
    recurse(event)


def open_transaction(event):
    transaction.set_autocommit(False)


class Unspeakable(Exception):
    def __str__(self):
        raise ValueError("no words")


class Unprintable(Exception):
    def __str__(self):
        return 7


def raise_unspeakable(event):
    raise Unspeakable


def raise_unprintable(event):
    raise Unprintable


def raise_unstorable(event):
    raise ValueError("nul \0, surrogate \ud800, emoji 🙂")


def raise_endless(event):
    raise ValueError("x" * 5_000_000)


def leave_a_coroutine(event):
    return asyncio.sleep(0)


def leave_a_generator(event):
    return (write_order("never") for _ in range(1))


def raise_group(event):
    raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])


MISBEHAVIOUR = {
    swallow: "BrokenTransaction: The handler caught an error of the database",
    break_the_orm: "BrokenTransaction: The handler caught an error of the database",
    set_rollback: "BrokenTransaction: ",
    close_connection: "BrokenTransaction: The handler closed its connection",
    roll_back_by_hand: "BrokenTransaction: The handler ended the transaction",
    exit_process: "SystemExit: the handler had enough",
    cancel: "CancelledError",
    recurse: "RecursionError: maximum recursion depth exceeded",
    open_transaction: "TransactionManagementError: ",
    raise_unspeakable: "Unspeakable: (its text can't be made)",
    raise_unprintable: "Unprintable: (its text can't be made)",
    raise_unstorable: "ValueError: nul \\0, surrogate \\ud800, emoji 🙂",
    raise_endless: "ValueError: xxxx",
    raise_group: "ExceptionGroup: several (2 sub-exceptions)",
}


@pytest.mark.slow
@pytest.mark.requirement("E10")
@pytest.mark.requirement("X2")
@pytest.mark.parametrize("batch_size", [None, 5], ids=["single", "batch"])
@pytest.mark.parametrize("misbehave", MISBEHAVIOUR, ids=lambda function: function.__name__)
@pytest.mark.few(6)
def test_a_handler_that_misbehaves_fails_alone(things, make_consumer, monkeypatch, misbehave, batch_size):
    """Its event is tried again and then dead, its writes are undone, and its neighbours never notice."""
    if misbehave in (raise_unstorable, raise_endless):  # pytest-xdist can't pass such a log on
        monkeypatch.setattr(logging.getLogger("django_events.consumer"), "disabled", True)

    def handler(given):
        for event in given if batch_size else [given]:
            write_order(event.value)
            if event.value == 3:
                misbehave(event)

    reader = make_consumer(things, handler=handler, retry=Backoff(attempts=2, base=NO_PAUSE), batch_size=batch_size)
    fill(things, 1, 2, 3, 4)
    for _ in range(2):
        run_once(reader)

    assert written() == ["1", "2", "4"]
    [letter] = dead_letters(reader)
    assert (letter.event_id, letter.attempts) == (3, 2)
    assert letter.error.startswith(MISBEHAVIOUR[misbehave])
    assert len(letter.error) <= 3_000
    assert len(letter.traceback) <= 20_000
    position = position_of(reader)
    assert (position.position, position.handled, position.dead_lettered) == (4, 3, 1)


def test_a_handler_that_closes_its_connection_and_fails_is_a_failure_like_any_other(things, make_consumer):
    """Who calls the outside world does well to give the connection back meanwhile."""
    attempts = []

    def handler(event):
        connection.close()
        attempts.append((event.value, event.attempt))
        if event.value == 2 and event.attempt == 1:
            raise RetryLater("the bank is closed", after=timedelta(hours=5))

    reader = make_consumer(things, handler=handler, transactional=False)
    fill(things, 1, 2, 3)
    run_once(reader)

    position = position_of(reader)
    assert (position.position, position.attempts, position.error) == (1, 1, "RetryLater: the bank is closed")
    end_pauses(reader)
    run_once(reader)
    assert attempts == [(1, 1), (2, 1), (2, 2), (3, 1)]


def test_a_handler_may_catch_errors_of_the_database_in_a_savepoint(things, make_consumer):
    def handler(event):
        with pytest.raises(IntegrityError), transaction.atomic():
            Product.objects.create(sku="tea", price=1, on_shelf=1)
        write_order(event.value)

    reader = make_consumer(things, handler=handler, retry=ONE_ATTEMPT)
    fill(things, 1, 2)
    serve_due(reader)

    assert written() == ["1", "2"]


def test_an_interrupt_stops_the_worker_settles_nothing_and_is_charged_to_the_event(things, make_consumer):
    def handler(event):
        write_order(event.value)
        if event.value == 2:
            raise KeyboardInterrupt

    reader = make_consumer(things, handler=handler, retry=Backoff(attempts=2))
    fill(things, 1, 2, 3)

    with pytest.raises(KeyboardInterrupt):
        run_once(reader)
    assert (written(), reached(reader)) == ([], [0])
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run_once(reader)
        assert (written(), reached(reader)) == (["1"], [1])
    run_once(reader)
    assert written() == ["1", "3"]
    [letter] = dead_letters(reader)
    assert (letter.event_id, letter.attempts, letter.error.partition(":")[0]) == (2, 2, "WorkerEnded")


def test_a_broken_handler_path_stops_only_its_own_consumer(things, make_consumer, caplog):
    reader = make_consumer(things, handler=lambda event: write_order(event.value))
    lost = make_consumer(things, handler=print, name="lost")
    object.__setattr__(lost, "handler", "shop.nowhere.handle")
    fill(things, 1)
    with working(reader, lost) as pool:
        wait_until(written)

    assert [str(error)[:47] for error in pool.broken] == ["The handler 'shop.nowhere.handle' of consumer '"]
    assert "Consumer 'lost' is not served." in caplog.text
    assert reached(lost) == [0]


# Async


@pytest.mark.requirement("X2")
@pytest.mark.parametrize("batch_size", [None, 3], ids=["single", "batch"])
@pytest.mark.parametrize("error", [Broken, asyncio.CancelledError, SystemExit, Ignore])
def test_async_handlers_write_in_the_same_transaction(things, make_consumer, batch_size, error):
    async def handler(given):
        for event in given if batch_size else [given]:
            product = await Product.objects.aget(sku="tea")
            await product.orders.acreate(customer=str(event.value), quantity=1, total=1)
            await asyncio.sleep(0)
            if event.value == 2:
                raise error("no")

    reader = make_consumer(things, handler=handler, retry=ONE_ATTEMPT, batch_size=batch_size)
    fill(things, 1, 2, 3)
    exhaust(reader)

    assert written() == ["1", "3"]
    position = position_of(reader)
    assert (position.position, position.handled, position.ignored) == (3, 2, int(error is Ignore))
    assert len(dead_letters(reader)) == int(error is not Ignore)


def test_an_object_with_an_async_call_is_awaited(things, make_consumer):
    class Handler:
        async def __call__(self, event):
            product = await Product.objects.aget(sku="tea")
            await product.orders.acreate(customer=str(event.value), quantity=1, total=1)

    reader = make_consumer(things, handler=Handler())
    fill(things, 1)
    run_once(reader)

    assert written() == ["1"]


@pytest.mark.parametrize("batch_size", [None, 1], ids=["single", "batch"])
@pytest.mark.parametrize("leave", [leave_a_coroutine, leave_a_generator])
def test_a_handler_that_leaves_its_work_undone_is_found_out(things, make_consumer, leave, batch_size):
    """As with a decorator that calls an async function and forgets to await it; a plain generator is no handler."""
    reader = make_consumer(things, handler=leave, retry=ONE_ATTEMPT, batch_size=batch_size)
    fill(things, 1)
    serve_due(reader)

    [letter] = dead_letters(reader)
    kind = leave.__name__.removeprefix("leave_a_")
    assert letter.error.startswith(f"TypeError: The handler returned <{kind} object ")
    assert written() == []


# Handlers outside the transaction


@pytest.mark.parametrize("error", [Broken, KeyboardInterrupt])
def test_without_a_transaction_each_event_is_settled_by_itself(things, make_consumer, error):
    """So a failure, or the end of the process, repeats one call at most."""
    handler = Flaky(3, times=1, error=error)
    reader = make_consumer(things, handler=handler, transactional=False, retry=AT_ONCE)
    fill(things, *range(1, 6))
    if error is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            run_once(reader)
    run_once(reader)
    run_once(reader)

    assert handler.calls == [1, 2, 3, 3, 4, 5]
    assert written() == ["1", "2", "3", "3", "4", "5"]
    assert reached(reader) == [5]


def test_without_a_transaction_the_progress_of_each_event_is_there_before_the_next(things, make_consumer, connect):
    other, seen = connect(autocommit=True), []

    def handler(event):
        assert not connection.in_atomic_block
        [place] = other.execute(
            "SELECT p.position FROM django_events_position p JOIN django_events_consumer c ON c.id = p.consumer_id"
            " WHERE c.name = 'reader'"
        ).fetchone()
        seen.append(place)

    reader = make_consumer(things, handler=handler, transactional=False)
    fill(things, *range(5))
    serve_due(reader)

    assert seen == [0, 1, 2, 3, 4]


def test_without_a_transaction_a_failed_batch_is_handled_one_by_one(things, make_consumer):
    handler = Flaky(2)
    reader = make_consumer(things, handler=handler, transactional=False, batch_size=3, retry=AT_ONCE)
    fill(things, 1, 2, 3, 4)
    exhaust(reader)

    assert handler.calls == [[1, 2, 3], [1], [2], [2], [2], [3], [4]]


# Filters


@pytest.mark.requirement("S12")
@pytest.mark.parametrize("partitioned", [True, False])
@pytest.mark.parametrize("batch_size", [None, 2])
def test_a_filtered_consumer_gets_its_events_and_passes_the_others(
    lanes, make_consumer, monkeypatch, partitioned, batch_size
):
    monkeypatch.setattr(batches, "RANGE", 25)  # so that there are ranges without a match
    handler = Flaky()
    reader = make_consumer(
        lanes,
        handler=handler,
        types=["order.*", "refund"],
        keys=["k.>"],
        where="$ >= 20",
        partitioned=partitioned,
        batch_size=batch_size,
    )
    dice = Random(4)
    drafts = [
        Draft(
            value=n,
            type=dice.choice(["order.placed", "refund", "payment", "order.a.b", ""]),
            key=dice.choice(["k.1", "k.2.3", "j.1", "k", None]),
        )
        for n in range(200)
    ]
    publish_many(lanes, drafts)
    transfer_all()
    expected = [
        draft.value
        for draft in drafts
        if draft.type in ("order.placed", "refund") and draft.key in ("k.1", "k.2.3") and draft.value >= 20
    ]
    serve_due(reader)

    assert 5 < len(expected) < 100
    assert sorted(int(note) for note in written()) == expected
    assert due(reader) == []
    assert_numbers(reader)
    assert sum(positions(reader).values_list("handled", flat=True)) == len(expected)
    last = {event.partition: event.id for event in Event.objects.since(lanes)}
    assert reached(reader) == ([200] if not partitioned else [200] * 4) or all(
        position.position >= last.get(position.partition, 0) for position in positions(reader)
    )


@pytest.mark.slow
@pytest.mark.requirement("S12")
@pytest.mark.parametrize("partitioned", [True, False])
def test_numbers_stay_right_wherever_a_filtered_consumer_stops(lanes, make_consumer, monkeypatch, partitioned):
    monkeypatch.setattr(batches, "RANGE", 10)
    monkeypatch.setattr(subscriptions, "READ_AHEAD", 3)
    reader = make_consumer(
        lanes, handler=Flaky(40, 41, 42, 43), where="$ > 10", retry=ONE_ATTEMPT, partitioned=partitioned
    )
    fill(lanes, *range(60))
    for _ in range(200):
        if not (lanes_due := due(reader)):
            break
        before = sum(positions(reader).values_list("handled", flat=True))
        lease = lease_of(reader, lanes_due[0].partition)
        serve_lease(
            lease,
            stopping=lambda: sum(positions(reader).values_list("handled", flat=True)) > before,
        )
        assert_numbers(reader)

    assert due(reader) == []
    assert len(written()) == 45


@pytest.mark.requirement("S12")
def test_a_predicate_that_fails_on_an_event_stops_its_partition_and_nothing_else(
    things, make_topic, make_consumer, caplog
):
    """Dates with and without a time zone can't be compared, and PostgreSQL says so even to `@@`."""
    where = '$.at.datetime() < "2026-01-01T00:00:00+00".datetime()'
    reader = make_consumer(things, handler=lambda event: write_order(event.id), where=where)
    other_topic = make_topic("another")
    other = make_consumer(other_topic, handler=lambda event: write_order("another"), name="other")
    fill(things, {"at": "2025-01-01T00:00:00+00"}, {"at": "2025-01-01"})
    fill(other_topic, 1)
    run_once(reader, other)
    run_once(reader, other)

    assert "another" in written()
    position = position_of(reader)
    assert position.stopped_at is not None
    assert "cannot convert value" in position.error
    assert "can't be read" in caplog.text
    assert due(reader) == []


# Waiting for a batch


def oldest(topic):
    return Event.objects.since(topic).first().logged_at


@pytest.mark.requirement("E9")
def test_a_batch_waits_for_its_least_number_and_holds_at_most_its_size(things, make_consumer):
    handler = Flaky()
    reader = make_consumer(things, handler=handler, batch_size=10, min_batch=5, max_wait=timedelta(hours=1))
    fill(things, *range(4))
    assert serve_due(reader) == 0
    assert due(reader) == []
    fill(things, 4)
    assert serve_due(reader) == 5
    fill(things, *range(5, 28))
    assert serve_due(reader) == 20

    assert [len(call) for call in handler.calls] == [5, 10, 10]
    assert due(reader) == []
    assert reached(reader) == [25]


@pytest.mark.requirement("E9")
@pytest.mark.parametrize("partitioned", [True, False])
def test_fewer_are_handed_over_when_the_first_has_waited_long_enough(lanes, make_consumer, partitioned):
    handler = Flaky()
    reader = make_consumer(
        lanes,
        handler=handler,
        batch_size=10,
        min_batch=5,
        max_wait=timedelta(milliseconds=100),
        partitioned=partitioned,
    )
    fill(lanes, 1, 2, 3, key="one")
    with working(reader):
        wait_until(lambda: len(written()) == 3)

    assert handler.calls == [[1, 2, 3]]


@pytest.mark.requirement("E9")
def test_a_worker_that_waits_for_a_batch_knows_when_to_look_again(things, make_consumer):
    reader = make_consumer(things, handler=Flaky(), batch_size=10, min_batch=5, max_wait=timedelta(hours=1))
    fill(things, 1)
    due_partitions = due_partitions_of(reader)
    assert not due_partitions.look(period=10**6)

    assert 3_000 < due_partitions.seconds_to_next(period=10**6) <= 3_600


def due_partitions_of(consumer):
    from django_events.consuming.subscriptions import subscriptions as all_subscriptions
    from django_events.workers.due_partitions import DuePartitions

    return DuePartitions("default", all_subscriptions("default", [consumer]))


@pytest.mark.requirement("E9")
def test_only_what_matches_counts_for_a_batch(things, make_consumer):
    handler = Flaky()
    reader = make_consumer(
        things, handler=handler, types=["a"], batch_size=10, min_batch=3, max_wait=timedelta(hours=1)
    )
    fill(things, *range(50), type="b")
    fill(things, "x", "y", type="a")
    fill(things, *range(50), type="b")
    serve_due(reader)
    assert handler.calls == []
    fill(things, "z", type="a")
    serve_due(reader)

    assert handler.calls == [["x", "y", "z"]]
    assert due(reader) == []


@pytest.mark.requirement("E9")
@pytest.mark.parametrize("place", [0, 7, 29])
def test_waiting_among_many_events_that_do_not_match_is_no_spinning(things, make_consumer, monkeypatch, place):
    """More than a worker looks at, and one among them that waits for others."""
    monkeypatch.setattr("django_events.workers.partition_states.MOST_LOOKED_AT", 10)
    handler = Flaky()
    reader = make_consumer(
        things, handler=handler, types=["a"], batch_size=10, min_batch=2, max_wait=timedelta(hours=1)
    )
    publish_many(things, [Draft(value=n, type="a" if n == place else "b") for n in range(30)])
    transfer_all()
    serve_due(reader)  # which raises if it finds no end

    assert handler.calls == []
    assert due(reader) == []
    fill(things, "another", type="a")
    assert serve_due(reader, patient=False) == 2


@pytest.mark.requirement("E9")
def test_a_batch_that_waits_is_handled_at_once_by_who_has_no_patience(things, make_consumer):
    handler = Flaky()
    reader = make_consumer(things, handler=handler, batch_size=10, min_batch=5, max_wait=timedelta(hours=1))
    fill(things, 1, 2)
    assert serve_due(reader, patient=False) == 2
    assert handler.calls == [[1, 2]]


@pytest.mark.requirement("E9")
def test_an_event_of_a_small_batch_that_failed_is_tried_again_and_not_kept_waiting_for_ever(things, make_consumer):
    handler = Flaky(2)
    reader = make_consumer(
        things, handler=handler, batch_size=4, min_batch=4, max_wait=timedelta(milliseconds=1), retry=AT_ONCE
    )
    fill(things, 1, 2, 3, 4)
    wait_until(lambda: due(reader))
    exhaust(reader)

    assert handler.calls == [[1, 2, 3, 4], [1], [2], [2], [2], [3], [4]]


# Workers that share


@pytest.mark.requirement("S7")
def test_empty_partitions_are_never_served(make_topic, make_consumer):
    topic = make_topic("mostly_empty", partitions=10)
    reader = make_consumer(topic, handler=lambda event: write_order(event.value))
    fill(topic, *range(50), key="the one")
    run_once(reader, threads=3)

    assert written() == [str(n) for n in range(50)]
    assert sorted(positions(reader).values_list("handled", flat=True)) == [0] * 9 + [50]
    assert positions(reader).filter(served_at__isnull=False).count() == 1


def one_batch_a_turn(monkeypatch):
    """As if each batch took as long as a turn may."""
    monkeypatch.setattr(streams._Turn, "_over", lambda turn: turn.lease.batch is not None or turn.stopping())


@pytest.mark.requirement("S7")
def test_partitions_take_turns_so_that_a_busy_one_starves_no_other(make_topic, make_consumer, monkeypatch):
    """Each turn is one batch here: while one partition has many, the others are served after one turn each."""
    one_batch_a_turn(monkeypatch)
    topic = make_topic("busy", partitions=3)
    turns = []
    reader = make_consumer(topic, handler=lambda events: turns.append(events[0].partition), batch_size=10)
    publish_many(topic, [Draft(value=n, partition=0) for n in range(100)])
    publish_many(topic, [Draft(value=n, partition=lane) for lane in (1, 2) for n in range(20)])
    transfer_all()
    serve_due(reader)

    assert turns[:6] in ([0, 1, 2, 0, 1, 2], [0, 2, 1, 0, 2, 1])
    assert turns[6:] == [0] * 8


@pytest.mark.requirement("S7")
def test_who_looks_anew_begins_with_what_was_served_longest_ago(make_topic, make_consumer, monkeypatch):
    one_batch_a_turn(monkeypatch)
    topic = make_topic("busy", partitions=3)
    reader = make_consumer(topic, handler=lambda events: None, batch_size=2)
    publish_many(topic, [Draft(value=n, partition=n % 3) for n in range(30)])
    transfer_all()
    for lane in (0, 2, 1, 2):
        serve_lease(lease_of(reader, lane))

    assert [lane.partition for lane in due(reader)] == [0, 1, 2]
    serve_lease(lease_of(reader, 0))
    assert [lane.partition for lane in due(reader)] == [1, 2, 0]


@pytest.mark.requirement("S7")
def test_a_partition_that_waits_for_a_retry_keeps_no_other_waiting(make_topic, make_consumer):
    topic = make_topic("busy", partitions=3)
    reader = make_consumer(topic, handler=Flaky("bad"), retry=Backoff(base=timedelta(hours=1)))
    publish_many(topic, [Draft(value="bad" if lane == 1 else f"{lane}", partition=lane) for lane in range(3)])
    transfer_all()
    run_once(reader)

    assert sorted(written()) == ["0", "2"]


class OneAtATime:
    """A handler that finds out if two are in the same partition at once."""

    def __init__(self, lane_of=lambda event: event.partition):
        self.lane_of = lane_of
        self.inside = Counter()
        self.together = []
        self.workers = set()
        self._lock = threading.Lock()

    def __call__(self, event):
        lane = self.lane_of(event)
        with self._lock:
            self.inside[lane] += 1
            if self.inside[lane] > 1:
                self.together.append(event)
            self.workers.add(threading.current_thread().name)
        try:
            self.handle(event)
        finally:
            with self._lock:
                self.inside[lane] -= 1

    def handle(self, event):
        write_order(event.id)


@pytest.mark.requirement("E7")
def test_of_fifty_workers_one_at_a_time_handles_a_topic_in_its_global_order(make_topic, make_consumer, monkeypatch):
    one_batch_a_turn(monkeypatch)
    monkeypatch.setattr(subscriptions, "READ_AHEAD", 5)
    topic = make_topic("wide", partitions=4)
    handler = OneAtATime(lane_of=lambda event: "all")
    reader = make_consumer(topic, handler=handler, partitioned=False)
    fill(topic, *range(150))
    with working(reader, threads=50):
        fill(topic, *range(50))
        wait_until(lambda: len(written()) >= 200, seconds=60)

    assert handler.together == []
    assert written() == [str(n) for n in range(1, 201)]
    assert reached(reader) == [200]


@pytest.mark.requirement("E8")
def test_ten_workers_share_ten_partitions_and_each_is_handled_by_one_at_a_time(make_topic, make_consumer, monkeypatch):
    one_batch_a_turn(monkeypatch)
    monkeypatch.setattr(subscriptions, "READ_AHEAD", 5)
    all_at_once = threading.Barrier(10)

    class Sharing(OneAtATime):
        def handle(self, event):
            if event.number == 1:  # the first of each partition: they only go on when all ten are there
                all_at_once.wait(timeout=60)
            write_order(f"{event.partition}/{event.number}")

    topic = make_topic("ten", partitions=10)
    handler = Sharing()
    reader = make_consumer(topic, handler=handler, retry=ONE_ATTEMPT)
    publish_many(topic, [Draft(value=n, partition=n % 10) for n in range(200)])
    transfer_all()
    with working(reader, threads=10):
        wait_until(lambda: len(written()) >= 200, seconds=60)

    assert len(handler.workers) == 10
    assert handler.together == []
    for lane in range(10):
        assert [note for note in written() if note.startswith(f"{lane}/")] == [f"{lane}/{n}" for n in range(1, 21)]
    assert len(written()) == 200
    assert dead_letters(reader) == []


@pytest.mark.slow
@pytest.mark.requirement("X2")
@pytest.mark.requirement("E8")
@pytest.mark.parametrize("batch_size", [None, 7], ids=["single", "batch"])
@pytest.mark.parametrize("seed", range(2))
def test_with_failures_of_every_kind_each_event_has_its_effect_once_and_in_order(
    lanes, make_consumer, batch_size, seed
):
    dice, lock = Random(seed), threading.Lock()
    mishaps = [lambda event: (_ for _ in ()).throw(Broken()), swallow, set_rollback, exit_process, cancel]

    def handler(given):
        for event in given if batch_size else [given]:
            write_order(f"{event.partition}/{event.number}")
            with lock:
                mishap = dice.choice(mishaps) if dice.random() < 0.1 else None
                late = dice.random() < 0.03
            if mishap:
                mishap(event)
            if late:
                write_payment_of_nothing()

    reader = make_consumer(lanes, handler=handler, retry=Backoff(attempts=100, base=NO_PAUSE), batch_size=batch_size)
    publish_many(lanes, [Draft(value=n, partition=n % 4) for n in range(120)])
    transfer_all()
    with working(reader, threads=4):
        wait_until(lambda: len(written()) >= 120, seconds=60)

    for lane in range(4):
        assert [note for note in written() if note.startswith(f"{lane}/")] == [f"{lane}/{n}" for n in range(1, 31)]
    assert len(written()) == 120
    assert dead_letters(reader) == []
    assert_numbers(reader)


@pytest.mark.slow
@pytest.mark.requirement("X2")
@pytest.mark.requirement("S8")
@pytest.mark.parametrize("batch_size", [None, 7], ids=["single", "batch"])
def test_with_leases_that_are_taken_over_all_the_time_each_event_has_its_effect_once_and_in_order(
    lanes, make_consumer, batch_size, monkeypatch
):
    """A process ends the leases of healthy workers, again and again: they end each other's transactions."""
    monkeypatch.setattr(handling, "TURN", 0.01)
    monkeypatch.setattr("django_events.workers.loop.FIRST_RETRY", 0.001)
    monkeypatch.setattr("django_events.workers.loop.LONGEST_RETRY", 0.01)

    def handler(given):
        for event in given if batch_size else [given]:
            write_order(f"{event.partition}/{event.number}")

    reader = make_consumer(lanes, handler=handler, retry=Backoff(attempts=1_000), batch_size=batch_size)
    publish_many(lanes, [Draft(value=n, partition=n % 4) for n in range(400)])
    transfer_all()
    ended, done = 0, 0
    with working(reader, threads=6):
        while done < 400:
            if ended < 60 and done >= ended * 4:  # on a quiet machine they may be through before one is ended
                ended += positions(reader).filter(token__isnull=False).update(leased_until=ClockTimestamp())
            done = wait_until(lambda: len(written()))

    assert done == 400
    for lane in range(4):
        assert [note for note in written() if note.startswith(f"{lane}/")] == [f"{lane}/{n}" for n in range(1, 101)]
    assert len(written()) == 400
    assert dead_letters(reader) == []
    assert positions(reader).filter(failed__gt=0).count() == 0
    assert_numbers(reader)


def test_two_consumers_of_a_topic_know_nothing_of_each_other(things, make_consumer):
    good = make_consumer(things, handler=lambda event: write_order(event.value), name="good")
    bad = make_consumer(things, handler=Flaky(1), name="bad")
    fill(things, 1, 2)
    run_once(good, bad)

    assert written() == ["1", "2"]
    assert (reached(good), reached(bad)) == ([2], [0])


def test_a_consumer_of_two_topics_is_served_in_both(things, lanes, make_consumer):
    reader = make_consumer(things, lanes, handler=lambda event: write_order(event.address))
    fill(things, *range(3))
    fill(lanes, *range(3))
    run_once(reader)

    assert sorted(written()) == ["lanes/1", "lanes/2", "lanes/3", "things/1", "things/2", "things/3"]


def test_a_paused_consumer_is_left_alone(things, make_consumer):
    reader = make_consumer(things, handler=lambda event: write_order(event.value))
    fill(things, 1)
    pause(reader)
    assert run_once(reader) == 0
    assert lease_of(reader) is None
    resume(reader)

    assert run_once(reader) == 1


# Dead letters that are handled again


def bury(reader, topic, *values, **fields):
    fill(topic, *values, **fields)
    exhaust(reader)
    return dead_letters(reader)


@pytest.mark.requirement("S9")
@BOTH_MODES
@pytest.mark.parametrize("batch_size", [None, 5])
def test_a_dead_letter_is_handled_again_and_is_gone(lanes, make_consumer, transactional, batch_size):
    handler = Flaky(1, 2)
    reader = make_consumer(
        lanes, handler=handler, retry=ONE_ATTEMPT, transactional=transactional, batch_size=batch_size
    )
    letters = bury(reader, lanes, 1, 2, 3, key="k")
    before = reached(reader)
    handler.failing, handler.calls = (), []
    redrive(letters)
    serve_due(reader)

    assert handler.calls == ([1, 2] if batch_size is None else [[1], [2]])
    assert dead_letters(reader) == []
    assert reached(reader) == before
    if transactional:
        assert written() == ["3", "1", "2"]


@pytest.mark.requirement("S9")
@BOTH_MODES
def test_a_dead_letter_that_fails_again_has_all_its_attempts_and_its_new_error(lanes, make_consumer, transactional):
    handler = Flaky(1)
    reader = make_consumer(lanes, handler=handler, retry=AT_ONCE, transactional=transactional)
    [letter] = bury(reader, lanes, 1)
    handler.calls = []
    redrive(letter)
    for _ in range(5):
        serve_due(reader)

    assert handler.calls == [1, 1, 1]
    [letter] = dead_letters(reader)
    assert (letter.attempts, letter.error, letter.redrive_at) == (3, "Broken: no 1, attempt 3", None)
    assert due(reader) == []


@pytest.mark.requirement("S9")
def test_a_dead_letter_that_its_handler_ignores_is_gone(things, make_consumer):
    handler = Flaky(1)
    reader = make_consumer(things, handler=handler, retry=ONE_ATTEMPT)
    letters = bury(reader, things, 1)
    handler.error = Ignore
    redrive(letters)
    serve_due(reader)

    assert dead_letters(reader) == []
    assert written() == []
    assert position_of(reader).ignored == 1


@pytest.mark.requirement("S9")
def test_dead_letters_and_new_events_of_a_partition_are_handled_by_one_worker(things, make_consumer):
    handler = Flaky(1, 2)
    reader = make_consumer(things, handler=handler, retry=ONE_ATTEMPT)
    letters = bury(reader, things, 1, 2)
    handler.failing = ()
    redrive(letters)
    fill(things, 3, 4)
    lease = lease_of(reader)
    assert lease_of(reader) is None
    serve_lease(lease)
    assert written() == ["1", "3", "4"], "one of them, and then what is new: many must not keep it waiting"

    exhaust(reader)
    assert written() == ["1", "3", "4", "2"]
