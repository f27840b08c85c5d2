"""What every kind of consumer promises: streams, queues, and queues that keep the order of keys."""

import uuid
from collections import Counter
from contextlib import suppress
from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, transaction

from django_events import Backoff, Draft, Ignore, RetryLater, declarations, publish, publish_many, testing
from django_events.consuming.handlers import BoundHandler
from django_events.consuming.handling import log_failure
from django_events.consuming.queues.filling import fill_some
from django_events.consuming.queues.server import serve_deliveries
from django_events.exceptions import InUse, LeaseLost, Refused
from django_events.models import Consumer, DeadLetter, Delivery, DeliveryLease, Event, PastDelivery, Position
from django_events.models.functions import ClockTimestamp
from django_events.operations import discard, lag, pause, redrive, resume, rewind, unregister
from testproject.shop.models import Payment, Product
from tests.support.fix_consumers import (
    MOST_TURNS,
    dead_letters,
    lease_of,
    position_of,
    positions,
    run_once,
    serve_lease,
    working,
    write_order,
    written,
)
from tests.support.fix_queues import fill_topic, queue_of
from tests.support.fix_topics import log_values, transfer_all
from tests.support.processes import wait_until

pytestmark = [pytest.mark.usefixtures("transactional_db", "shelf"), pytest.mark.few(3)]

AT_ONCE = Backoff(attempts=3, base=timedelta(0))
HOUR = timedelta(hours=1)
OF_CONSUMERS = (Position, DeadLetter, Delivery, DeliveryLease, PastDelivery)
KINDS = [
    pytest.param({"mode": "stream"}, id="stream"),
    pytest.param({"mode": "queue"}, id="queue"),
    pytest.param({"mode": "queue", "ordered": True}, id="ordered queue"),
]
IN_ORDER = [KINDS[0], KINDS[2]]
BOTH_MODES = pytest.mark.parametrize("transactional", [True, False], ids=["transactional", "not transactional"])
BOTH_SIZES = pytest.mark.parametrize("batch_size", [None, 4], ids=["single", "batch"])


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def make(things, make_consumer, kind):
    """Declare a consumer of this kind, by default of `things`; what it had is gone when the test ends."""
    ids = set()

    def make_one(handler, *topics, name="reader", **options):
        made = make_consumer(*topics or [things], handler=handler, name=name, **kind, **{"retry": AT_ONCE, **options})
        ids.update(Consumer.objects.filter(name=name).values_list("pk", flat=True))
        return made

    yield make_one
    for model in (Delivery, DeliveryLease, PastDelivery):
        model.objects.filter(consumer_id__in=ids).delete()


class Broken(Exception):
    """What handlers of these tests raise."""


class Handler:
    """Writes an order for each event, and raises an error at some values: always, or at the first few attempts."""

    def __init__(self, *failing, times=None, error=Broken):
        self.failing, self.times, self.error = failing, times, error
        self.calls = []

    def __call__(self, given):
        events = given if isinstance(given, list) else [given]
        self.calls.append([(event.value, event.attempt) for event in events])
        for event in events:
            write_order(event.value)
            if event.value in self.failing and (self.times is None or event.attempt <= self.times):
                raise self.error(f"no {event.value}")

    @property
    def handled(self):
        return [one for call in self.calls for one in call]

    def attempts_at(self, value):
        return [attempt for handled, attempt in self.handled if handled == value]


def values_written():
    return sorted(map(int, written()))


def waiting(consumer):
    """What waits for another attempt: positions of a stream, deliveries of a queue."""
    queued = Delivery.objects.filter(consumer__name=consumer.name, visible_at__isnull=False)
    return positions(consumer).filter(retry_at__isnull=False).count() + queued.count()


def end_pauses(consumer):
    """As if the time until the next attempt were over."""
    assert waiting(consumer)
    positions(consumer).filter(retry_at__isnull=False).update(retry_at=ClockTimestamp())
    queued = Delivery.objects.filter(consumer__name=consumer.name, visible_at__isnull=False)
    queued.update(visible_at=ClockTimestamp())


def expire(consumer):
    """As if the time of what is in hand were over."""
    leases = DeliveryLease.objects.filter(consumer__name=consumer.name)
    expired = leases.update(leased_until=ClockTimestamp())
    expired += positions(consumer).filter(token__isnull=False).update(leased_until=ClockTimestamp())
    assert expired


def exhaust(consumer, **options):
    """Serve a consumer, without its pauses, until nothing waits any more; returns how many events were passed."""
    passed = run_once(consumer, **options)
    for _ in range(MOST_TURNS):
        if not waiting(consumer):
            return passed
        end_pauses(consumer)
        passed += run_once(consumer, **options)
    raise AssertionError("it is tried again and again")


def take(consumer):
    """What a worker would handle next, and the events of it."""
    if consumer.mode == "stream":
        lease = lease_of(consumer)
        return lease, lease.read().events
    queue = queue_of(consumer)
    while fill_some(queue.subscription):
        pass
    hand = queue.claim(queue.subscription.most)
    hand.next(1)
    return hand, hand.events


def settle(held, events):
    with transaction.atomic():
        settlement = held.settle(events)
    held.settled(settlement)


def die(consumer):
    """A worker that its handler ends: nothing is settled, and the time of what it had in hand goes by."""
    held, _ = take(consumer)
    with pytest.raises(KeyboardInterrupt):
        if consumer.mode == "stream":
            serve_lease(held)
        else:
            serve_deliveries(held, BoundHandler(consumer), on_failure=log_failure(held))
    expire(consumer)


def nothing_is_left(consumer):
    assert lag(consumer) == 0
    assert not Delivery.objects.exists()
    assert not DeliveryLease.objects.exists()
    assert not positions(consumer).filter(token__isnull=False).exists()
    return True


# Each event once


@pytest.mark.slow
@pytest.mark.requirement("X2", "D4", "S2")
@pytest.mark.parametrize("threads", [1, 4])
def test_each_event_is_handled_once(things, make, threads):
    reader = make(Handler())
    publish_many(things, [Draft(value=n, key=str(n % 7)) for n in range(150)])
    transfer_all()

    assert run_once(reader, threads=threads) == 150
    assert run_once(reader, threads=threads) == 0
    assert values_written() == list(range(150))
    assert nothing_is_left(reader)
    position = position_of(reader)
    assert (position.handled, position.failed, position.ignored, position.dead_lettered) == (150, 0, 0, 0)


def test_a_handler_gets_all_that_was_published(things, make):
    got = []
    reader = make(got.append)
    publish(things, {"total": 120}, type="order.placed", key="7", metadata={"trace": "abc"})
    publish(things, body=b"\0\xff")
    transfer_all()
    run_once(reader)

    first, second = got
    stored = Event.objects.at(things, 1)
    assert (first.id, first.partition, first.number, first.type, first.key) == (1, 0, 1, "order.placed", "7")
    assert (first.value, first.metadata, first.body) == ({"total": 120}, {"trace": "abc"}, None)
    assert (first.published_at, first.logged_at) == (stored.published_at, stored.logged_at)
    assert (first.topic, first.consumer, first.attempt, first.address) == ("things", "reader", 1, "things/1")
    assert (second.value, second.body, second.type, second.key) == (None, b"\0\xff", "", None)


@pytest.mark.slow
@pytest.mark.requirement("D2")
def test_consumers_of_a_topic_know_nothing_of_each_other(things, make):
    handlers = {name: Handler(*failing) for name, failing in [("good", ()), ("bad", (1, 2)), ("late", ())]}
    good, bad = (make(handlers[name], name=name) for name in ("good", "bad"))
    fill_topic(things, 1, 2)
    for consumer in (good, bad):
        exhaust(consumer)
    late = make(handlers["late"], name="late")
    run_once(late)

    assert handlers["good"].handled == handlers["late"].handled == [(1, 1), (2, 1)]
    assert [letter.event_id for letter in dead_letters(bad)] == [1, 2]
    assert dead_letters(good) == []


def test_a_worker_that_waits_is_told_of_events(things, make):
    reader = make(Handler())
    with working(reader):
        fill_topic(things, 1)
        wait_until(lambda: values_written() == [1], what="an effect")
        fill_topic(things, 2, 3)
        wait_until(lambda: values_written() == [1, 2, 3], what="effects")


@pytest.mark.requirement("X2")
def test_what_a_handler_publishes_is_committed_with_its_effects(things, make, make_topic):
    derived = make_topic("derived")
    attempts = Counter()

    def handler(event):
        publish(derived, event.value)
        attempts[event.value] += 1
        if attempts[event.value] == 1 and event.value % 2:
            raise Broken

    reader = make(handler)
    fill_topic(things, *range(6))
    exhaust(reader)
    transfer_all()

    assert sorted(log_values(derived)) == list(range(6))


@pytest.mark.requirement("X2")
def test_hooks_of_a_handler_run_when_its_work_is_committed_and_only_then(things, make):
    ran = []

    def handler(event):
        transaction.on_commit(lambda value=event.value, attempt=event.attempt: ran.append((value, attempt)))
        if event.value == 2 and event.attempt == 1:
            raise Broken

    reader = make(handler)
    fill_topic(things, 1, 2, 3)
    exhaust(reader)

    assert sorted(ran) == [(1, 1), (2, 2), (3, 1)]


@pytest.mark.requirement("X2")
@BOTH_SIZES
def test_a_handler_works_in_a_transaction_unless_it_wants_none(things, make, batch_size):
    seen = []

    def handler(given):
        seen.append(connection.in_atomic_block)

    for name, transactional in [("with", True), ("without", False)]:
        reader = make(handler, name=name, transactional=transactional, batch_size=batch_size)
        fill_topic(things, 1)
        run_once(reader)
        assert set(seen) == {transactional}
        seen.clear()


# Order


@pytest.mark.slow
@pytest.mark.requirement("S5")
@pytest.mark.parametrize("kind", IN_ORDER, indirect=True)
@pytest.mark.parametrize("threads", [1, 4])
@BOTH_SIZES
def test_each_key_is_handled_in_its_order(lanes, make, threads, batch_size):
    """Although some of its events fail, and are tried again."""
    reader = make(Handler(7, 20, 21, times=2), lanes, batch_size=batch_size)
    publish_many(lanes, [Draft(value=n, key=str(n % 5)) for n in range(60)])
    transfer_all()
    exhaust(reader, threads=threads)

    for key in range(5):
        assert [n for n in map(int, written()) if n % 5 == key] == list(range(key, 60, 5))


@pytest.mark.requirement("S5", "S6")
@pytest.mark.parametrize("kind", IN_ORDER, indirect=True)
def test_a_key_goes_on_behind_its_dead_letter(things, make):
    handler = Handler(1)
    reader = make(handler)
    publish_many(things, [Draft(value=n, key="k") for n in range(3)])
    transfer_all()
    exhaust(reader)

    assert [one for one, attempt in handler.handled if one != 1][-1] == 2
    assert handler.attempts_at(1) == [1, 2, 3]
    assert written() == ["0", "2"]


# What fails


@pytest.mark.requirement("E10", "S6", "X2")
@BOTH_MODES
@BOTH_SIZES
def test_what_fails_is_tried_again_with_the_number_of_its_attempt(things, make, transactional, batch_size):
    handler = Handler(3, times=2)
    reader = make(handler, transactional=transactional, batch_size=batch_size)
    fill_topic(things, *range(1, 7))
    exhaust(reader)

    assert handler.attempts_at(3)[-3:] == [1, 2, 3]
    assert {attempt for value, attempt in handler.handled if value != 3} == {1}
    if transactional:
        assert values_written() == list(range(1, 7))
    assert dead_letters(reader) == []
    assert nothing_is_left(reader)
    position = position_of(reader)
    assert (position.handled, position.failed, position.dead_lettered) == (6, 2, 0)


@pytest.mark.requirement("E10", "S4")
@BOTH_MODES
def test_it_is_not_tried_again_before_its_time(things, make, transactional):
    handler = Handler(2)
    reader = make(handler, transactional=transactional, retry=Backoff(attempts=3, base=HOUR, cap=HOUR))
    fill_topic(things, 1, 2)
    run_once(reader)
    run_once(reader)

    assert handler.attempts_at(2) == [1]
    assert waiting(reader) == 1
    assert lag(reader) == 1
    end_pauses(reader)
    run_once(reader)
    assert handler.attempts_at(2) == [1, 2]


@pytest.mark.requirement("E10", "S6")
@BOTH_MODES
@BOTH_SIZES
def test_after_its_last_attempt_it_is_a_dead_letter_and_others_go_on(things, make, transactional, batch_size):
    handler = Handler(3, 6)
    reader = make(handler, transactional=transactional, batch_size=batch_size)
    fill_topic(things, *range(1, 10))
    assert exhaust(reader) == 9

    letters = dead_letters(reader)
    assert [(letter.event_id, letter.attempts, letter.error) for letter in letters] == [
        (3, 3, "Broken: no 3"),
        (6, 3, "Broken: no 6"),
    ]
    if transactional:
        assert values_written() == [1, 2, 4, 5, 7, 8, 9]
    assert nothing_is_left(reader)
    position = position_of(reader)
    assert (position.handled, position.failed, position.dead_lettered) == (7, 6, 2)


@pytest.mark.requirement("E10", "S6")
def test_a_dead_letter_is_a_full_copy_with_the_reason(things, make):
    def handler(event):
        raise Broken("no such order") from KeyError("order")

    reader = make(handler)
    publish(things, {"a": None}, type="order.placed", key="7", metadata={"trace": "abc"})
    publish(things, body=b"\0\xff")
    publish(things, None)
    transfer_all()
    exhaust(reader)

    copied = ("partition", "number", "type", "key", "value", "metadata", "published_at", "logged_at")
    assert len(dead_letters(reader)) == 3
    for letter in dead_letters(reader):
        event = Event.objects.at(things, letter.event_id)
        assert {name: getattr(letter, name) for name in copied} == {name: getattr(event, name) for name in copied}
        assert (letter.body and bytes(letter.body)) == (event.body and bytes(event.body))
        assert (letter.attempts, letter.error, letter.redrive_at) == (3, "Broken: no such order", None)
        assert "KeyError: 'order'" in letter.traceback
        assert letter.traceback.rstrip().endswith("Broken: no such order")
        assert letter.fingerprint == "Broken in tests.integration.consuming.test_conformance:handler: no such order"


def test_the_record_of_a_failure_has_fields(things, make, caplog):
    def handler(event):
        raise Broken

    reader = make(handler)
    publish(things, None, type="order.placed", key="7")
    transfer_all()
    exhaust(reader)

    records = [record for record in caplog.records if hasattr(record, "outcome")]
    assert [(record.attempt, record.outcome) for record in records] == [
        (1, "retried"), (2, "retried"), (3, "dead_lettered")
    ]  # fmt: skip
    for record in records:
        about = (record.database, record.consumer, record.topic, record.partition, record.event_id, record.event_type)
        assert about == ("default", str(reader), "things", 0, 1, "order.placed")


@pytest.mark.requirement("E10", "S6")
def test_dead_letters_of_one_cause_have_one_fingerprint(things, make):
    """What is told apart after a redrive is the error of the last attempt."""

    def handler(event):
        raise Broken(f"no order {event.id} at {object()!r}, for the {event.attempt}. time, request {uuid.uuid4()}")

    reader = make(handler)
    place = "Broken in tests.integration.consuming.test_conformance"
    fill_topic(things, "a", "b")
    exhaust(reader)
    assert {letter.fingerprint for letter in dead_letters(reader)} == {
        f"{place}:handler: no order # at <object object at #>, for the #. time, request #"
    }
    DeadLetter.objects.update(fingerprint="old")
    redrive(dead_letters(reader))
    exhaust(reader)
    [group] = DeadLetter.objects.of(reader).by_error()
    assert (group["letters"], group["fingerprint"].startswith(f"{place}:handler")) == (2, True)


@pytest.fixture
def no_dead_letters():
    """The table of dead letters takes none, as if the disk were full."""
    with connection.cursor() as cursor:
        cursor.execute(
            "ALTER TABLE django_events_deadletter ADD CONSTRAINT full_disk CHECK (event_id IS NULL) NOT VALID"
        )

    def repair():
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE django_events_deadletter DROP CONSTRAINT IF EXISTS full_disk")

    yield repair
    repair()


@pytest.mark.requirement("E10", "S6")
@BOTH_MODES
def test_there_is_no_progress_without_the_dead_letter(things, make, no_dead_letters, transactional):
    reader = make(Handler(2), retry=Backoff(attempts=1), transactional=transactional)
    fill_topic(things, 1, 2)
    held, [_, bad] = take(reader)
    failure = held.judge(bad, Broken("no"))
    with pytest.raises(IntegrityError), transaction.atomic():
        held.settle([], failure)
    held.release()
    assert lag(reader) == 2
    no_dead_letters()
    exhaust(reader)

    assert [letter.event_id for letter in dead_letters(reader)] == [2]
    assert nothing_is_left(reader)


@pytest.mark.requirement("E10", "S4")
@BOTH_MODES
def test_a_handler_may_say_when_it_is_tried_again(things, make, transactional):
    handler = Handler(2, times=1, error=lambda reason: RetryLater(reason, after=HOUR))
    reader = make(handler, transactional=transactional)
    fill_topic(things, 1, 2)
    run_once(reader)
    assert handler.attempts_at(2) == [1]
    assert waiting(reader) == 1
    end_pauses(reader)
    run_once(reader)

    assert handler.attempts_at(2) == [1, 2]
    assert nothing_is_left(reader)


@pytest.mark.requirement("E10", "S6")
def test_to_ask_for_another_attempt_is_an_attempt(things, make):
    handler = Handler(1, error=lambda reason: RetryLater(reason, after=timedelta(0)))
    reader = make(handler)
    fill_topic(things, 1)
    exhaust(reader)

    assert handler.attempts_at(1) == [1, 2, 3]
    assert [letter.error for letter in dead_letters(reader)] == ["RetryLater: no 1"]


@pytest.mark.requirement("E10", "X2")
@BOTH_MODES
@BOTH_SIZES
def test_what_is_ignored_is_passed_without_its_effects(things, make, transactional, batch_size):
    reader = make(Handler(2, error=Ignore), transactional=transactional, batch_size=batch_size)
    fill_topic(things, 1, 2, 3)
    exhaust(reader)

    if transactional:
        assert values_written() == [1, 3]
    assert dead_letters(reader) == []
    assert nothing_is_left(reader)
    position = position_of(reader)
    assert (position.handled, position.failed, position.ignored) == (2, 0, 1)


@pytest.mark.requirement("S2")
def test_batches_are_lists_of_at_most_so_many(things, make):
    handler = Handler()
    reader = make(handler, batch_size=4)
    fill_topic(things, *range(10))
    run_once(reader)

    assert [len(call) for call in handler.calls] == [4, 4, 2]
    assert values_written() == list(range(10))


@pytest.mark.requirement("X2", "E10")
def test_of_a_batch_that_fails_each_is_handled_by_itself(things, make):
    handler = Handler(3)
    reader = make(handler, batch_size=4, retry=Backoff(attempts=1))
    fill_topic(things, *range(1, 9))
    exhaust(reader)

    assert handler.calls[0] == [(1, 1), (2, 1), (3, 1), (4, 1)]
    assert handler.calls[1:5] == [[(1, 1)], [(2, 1)], [(3, 1)], [(4, 1)]]
    assert values_written() == [1, 2, 4, 5, 6, 7, 8]
    assert [letter.event_id for letter in dead_letters(reader)] == [3]


# Errors of the database


@pytest.mark.requirement("X2", "E10")
@BOTH_SIZES
def test_an_error_of_the_database_is_the_events_own(things, make, batch_size):
    def handler(given):
        for event in given if batch_size else [given]:
            write_order(event.value)
            if event.value == 2:
                Product.objects.create(sku="tea", price=1, on_shelf=1)

    reader = make(handler, batch_size=batch_size)
    fill_topic(things, 1, 2, 3)
    exhaust(reader)

    assert values_written() == [1, 3]
    [letter] = dead_letters(reader)
    assert (letter.event_id, letter.attempts) == (2, 3)
    assert letter.error.startswith("IntegrityError: ")


@pytest.mark.requirement("X2", "E10")
def test_an_error_of_the_database_that_a_handler_swallows_is_found_out(things, make):
    def handler(event):
        write_order(event.value)
        if event.value == 2:
            with suppress(IntegrityError):
                Product.objects.create(sku="tea", price=1, on_shelf=1)

    reader = make(handler)
    fill_topic(things, 1, 2, 3)
    exhaust(reader)

    assert values_written() == [1, 3]
    [letter] = dead_letters(reader)
    assert letter.error.startswith("BrokenTransaction: ")


@pytest.mark.requirement("X2", "E10")
@BOTH_SIZES
def test_an_error_at_commit_is_the_events_own(things, make, batch_size):
    """A foreign key is checked when all is written."""

    def handler(given):
        for event in given if batch_size else [given]:
            write_order(event.value)
            if event.value == 3:
                Payment.objects.create(order_id=999_999_999, amount=1)

    reader = make(handler, batch_size=batch_size)
    fill_topic(things, 1, 2, 3, 4)
    exhaust(reader)

    assert values_written() == [1, 2, 4]
    [letter] = dead_letters(reader)
    assert (letter.event_id, letter.attempts) == (3, 3)
    assert letter.error.startswith("IntegrityError: ")
    position = position_of(reader)
    assert (position.handled, position.failed, position.dead_lettered) == (3, 3, 1)


# Which events


@pytest.mark.requirement("S12", "P4")
@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ({"types": ["order.*"]}, [1, 2, 3]),
        ({"types": ["order.placed", "user"]}, [1, 2, 4]),
        ({"keys": ["eu.1", "us.>"]}, [1, 3, 4]),
        ({"where": "$.total > 10"}, [2, 4]),
        ({"types": ["order.placed"], "keys": ["eu.>"], "where": "$.total > 1"}, [1, 2]),
        ({"types": ["nothing"]}, []),
    ],
    ids=lambda given: "+".join(given) if isinstance(given, dict) else "",
)
@pytest.mark.parametrize("registered", ["before", "after"])
def test_only_what_fits_its_filters_is_handled(things, make, filters, wanted, registered):
    got = []

    def declare():
        return make(lambda event: got.append(event.id), **filters)

    if registered == "before":
        run_once(declare())
    publish_many(
        things,
        [
            Draft(value={"total": 5}, type="order.placed", key="eu.1"),
            Draft(value={"total": 50}, type="order.placed", key="eu.2"),
            Draft(value={}, type="order.changed", key="eu.1"),
            Draft(value={"total": 11}, type="user", key="us.1.2"),
            Draft(value=[1], type="", key=None),
            Draft(body=b"\0", type="", key=None),
        ],
    )
    transfer_all()
    reader = declare()
    run_once(reader)

    assert got == wanted
    assert nothing_is_left(reader)


@pytest.mark.requirement("D5", "S11")
@pytest.mark.parametrize(("start", "first"), [("beginning", 1), ("end", 6), (4, 4), (99, 6)])
def test_who_comes_later_begins_where_it_says(things, make, start, first):
    fill_topic(things, *range(1, 6))
    reader = make(Handler(), start=start)
    fill_topic(things, 6, 7)
    run_once(reader)

    assert values_written() == list(range(first, 8))


# Moved by people


@pytest.mark.requirement("S11")
def test_who_is_paused_handles_nothing_and_goes_on_where_it_was(things, make):
    reader = make(Handler())
    fill_topic(things, 1)
    run_once(reader)
    pause(reader)
    fill_topic(things, 2, 3)
    assert run_once(reader) == 0
    assert lag(reader) == 2
    resume(reader)

    assert run_once(reader) == 2
    assert values_written() == [1, 2, 3]


@pytest.mark.requirement("E10")
def test_resume_tries_again_what_waits_as_if_for_the_first_time(things, make):
    handler = Handler(1, times=1)
    reader = make(handler, retry=Backoff(attempts=2, base=HOUR, cap=HOUR))
    fill_topic(things, 1)
    run_once(reader)
    assert resume(reader)
    assert resume(reader) == []
    run_once(reader)

    assert handler.attempts_at(1) == [1, 1]


@pytest.mark.requirement("D5", "S11")
@pytest.mark.parametrize("to", [1, 3, 6, "beginning", "end"])
def test_a_rewind_has_all_from_there_on_handled_again(things, make, to):
    reader = make(Handler())
    fill_topic(things, *range(1, 6))
    run_once(reader)
    rewind(reader, to=to)
    fill_topic(things, 6)
    run_once(reader)

    first = {"beginning": 1, "end": 6}.get(to, to)
    assert values_written() == sorted([*range(1, 7), *range(first, 6)])
    assert nothing_is_left(reader)


@pytest.mark.slow
@pytest.mark.requirement("D5")
def test_a_rewind_takes_the_dead_letters_whose_events_come_again(things, make):
    handler = Handler(2, 4)
    reader = make(handler)
    fill_topic(things, *range(1, 6))
    exhaust(reader)
    handler.failing = ()
    [move] = rewind(reader, to=3)
    assert move.dead_letters == 1
    run_once(reader)

    assert [letter.event_id for letter in dead_letters(reader)] == [2]
    assert values_written() == [1, 3, 3, 4, 5, 5]


@pytest.mark.requirement("D5")
def test_a_rewind_waits_for_what_is_in_hand(things, make):
    reader = make(Handler())
    fill_topic(things, 1, 2)
    held, _ = take(reader)
    with pytest.raises(InUse, match="still handling events after 0 s"):
        rewind(reader, to=1, wait=timedelta(0))
    held.release()
    rewind(reader, to=1)
    run_once(reader)

    assert values_written() == [1, 2]


@pytest.mark.requirement("S6")
@BOTH_MODES
@BOTH_SIZES
def test_a_dead_letter_is_handled_again_and_is_gone(things, make, transactional, batch_size):
    handler = Handler(2, 3)
    reader = make(handler, transactional=transactional, batch_size=batch_size)
    fill_topic(things, *range(1, 5))
    exhaust(reader)
    handler.failing, handler.calls = (3,), []
    assert redrive(DeadLetter.objects.of(reader)) == 2
    exhaust(reader)

    assert handler.handled[0] == (2, 1), "as if for the first time"
    assert handler.attempts_at(3)[-3:] == [1, 2, 3]
    [letter] = dead_letters(reader)
    assert (letter.event_id, letter.attempts, letter.redrive_at) == (3, 3, None)
    if transactional:
        assert values_written() == [1, 2, 4]
    assert nothing_is_left(reader)


@pytest.mark.requirement("S6")
def test_a_dead_letter_that_is_not_wanted_is_discarded(things, make):
    reader = make(Handler(1))
    fill_topic(things, 1)
    exhaust(reader)
    redrive(DeadLetter.objects.of(reader))
    discard(DeadLetter.objects.of(reader), reason="a test")

    assert run_once(reader) == 0
    assert dead_letters(reader) == []


@pytest.mark.requirement("D2")
def test_who_is_unregistered_leaves_nothing(things, make):
    reader = make(Handler(2))
    [row] = Consumer.objects.filter(name="reader")
    fill_topic(things, 1, 2)
    exhaust(reader)
    fill_topic(things, 3)
    held, _ = take(reader)
    declarations.consumers.discard(reader)
    with pytest.raises(InUse, match="handling events now"):
        unregister("reader")
    held.release()
    with pytest.raises(Refused, match="1 dead letters"):
        unregister("reader")
    discard(DeadLetter.objects.of(reader), reason="a test")
    unregister("reader")

    assert not Consumer.objects.filter(pk=row.pk).exists()
    assert not [model for model in OF_CONSUMERS if model.objects.filter(consumer_id=row.pk).exists()]
    fill_topic(things, 4)
    assert not Delivery.objects.filter(consumer_id=row.pk).exists()


# Workers that die or freeze


@pytest.mark.requirement("S1", "S3", "X8")
def test_who_lost_the_lease_settles_nothing(things, make):
    reader = make(Handler())
    fill_topic(things, 1, 2)
    late, events = take(reader)
    expire(reader)
    held, again = take(reader)
    assert [event.id for event in events] == [1, 2]
    assert again[0].id == 1
    assert held.lost_token == late.token
    with pytest.raises(LeaseLost):
        settle(late, events)
    with pytest.raises(LeaseLost):
        late.release()
    assert lag(reader) == 2

    settle(held, again)
    with pytest.raises(LeaseLost):
        settle(late, events)
    held.release()
    exhaust(reader)
    assert nothing_is_left(reader)


@pytest.mark.requirement("S1", "X8")
def test_what_was_in_the_hands_of_a_dead_worker_comes_again(things, make):
    reader = make(Handler())
    fill_topic(things, 1, 2, 3)
    take(reader)
    assert run_once(reader) == 0
    expire(reader)

    assert run_once(reader) == 3
    assert values_written() == [1, 2, 3]


@pytest.mark.requirement("E10", "X8")
@BOTH_MODES
@BOTH_SIZES
def test_attempts_of_dead_workers_count_for_the_event_that_ended_them(things, make, transactional, batch_size):
    """Once among others, when the event is not known yet, and then by itself."""
    handler = Handler(3, error=KeyboardInterrupt)
    reader = make(handler, transactional=transactional, batch_size=batch_size)
    fill_topic(things, *range(1, 7))
    for _ in range(4):
        die(reader)
    exhaust(reader)

    assert handler.attempts_at(3) == [1, 1, 2, 3]
    assert {attempt for value, attempt in handler.handled if value != 3} == {1}
    [letter] = dead_letters(reader)
    assert (letter.event_id, letter.attempts) == (3, 3)
    assert letter.error.startswith("WorkerEnded: ")
    if transactional:
        assert values_written() == [1, 2, 4, 5, 6]
    assert nothing_is_left(reader)


@pytest.mark.requirement("E10", "X8")
def test_after_a_death_events_are_handled_one_by_one_and_counted_before(things, make):
    handler = Handler(2, error=KeyboardInterrupt, times=1)
    reader = make(handler, batch_size=4)
    fill_topic(things, *range(1, 7))
    die(reader)
    counted = []

    def counting(events):
        counted.append(([event.value for event in events], attempts_counted(reader)))
        write_order(events[0].value)

    reader = make(counting, batch_size=4)
    exhaust(reader)

    assert counted == [([1], 1), ([2], 1), ([3], 1), ([4], 1), ([5, 6], 0)]


def attempts_counted(consumer):
    """At the event that is handled now, as the handler's transaction sees it."""
    if consumer.mode == "stream":
        return position_of(consumer).attempts
    return sum(Delivery.objects.filter(consumer__name=consumer.name).values_list("attempts", flat=True))


@pytest.mark.requirement("E10", "X8")
def test_a_death_for_another_reason_costs_no_event_its_last_attempt(things, make):
    handler = Handler(2, error=KeyboardInterrupt)
    reader = make(handler, retry=Backoff(attempts=1))
    fill_topic(things, 1, 2, 3)
    die(reader)
    handler.failing = ()
    exhaust(reader)

    assert values_written() == [1, 2, 3]
    assert dead_letters(reader) == []


# Tests of sites


@pytest.mark.requirement("X2")
@BOTH_MODES
@BOTH_SIZES
def test_drain_works_in_the_transaction_of_a_test_and_leaves_nothing(things, make, transactional, batch_size):
    def handler(given):
        for event in given if batch_size else [given]:
            write_order(event.value)
            if event.value < 5:
                publish(things, event.value + 1)

    reader = make(handler, transactional=transactional, batch_size=batch_size)
    with transaction.atomic():
        publish(things, 1)
        assert testing.drain(reader) == 5
        assert values_written() == [1, 2, 3, 4, 5]
        assert lag(reader) == 0
        transaction.set_rollback(True)

    assert written() == []
    assert nothing_is_left(reader)


def test_drain_raises_what_a_handler_raises_or_goes_on(things, make):
    reader = make(Handler(2))
    with transaction.atomic():
        publish_many(things, [Draft(value=n) for n in (1, 2, 3)])
        with pytest.raises(Broken, match="no 2") as caught:
            testing.drain(reader)
        assert caught.value.__notes__ == ["Consumer 'reader', event things/2, attempt 1. Nothing of it is settled."]
        assert values_written() == [1]
        testing.drain(reader, raise_errors=False)
        assert values_written() == [1, 3]
        assert [letter.attempts for letter in dead_letters(reader)] == [3]
        transaction.set_rollback(True)
