"""`manage.py events verify` on what consumers stand on: one offender at a time is planted, found and named."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, transaction

from django_events import Backoff, Draft, declarations, publish, publish_many
from django_events.consuming.queues.filling import fill_some
from django_events.consuming.registration import register
from django_events.models import (
    BufferedEvent,
    Consumer,
    DeadLetter,
    Delivery,
    DeliveryLease,
    Event,
    PastDelivery,
    Position,
    Topic,
)
from django_events.observing.findings import Finding
from django_events.observing.verifying import dead_letters, deliveries
from django_events.observing.verifying.proving import Verified, verify
from django_events.operating.dead_letters import discard, redrive
from django_events.operating.rewinding import rewind
from django_events.operating.skipping import skip
from django_events.operations import erase
from tests.support.fix_consumers import serve_due
from tests.support.fix_queues import deliveries as deliveries_of
from tests.support.fix_queues import fail, fill_topic, finish, row_of, settle
from tests.support.fix_topics import transfer_all

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X3")]

ONE_ATTEMPT = Backoff(attempts=1)
LONG = timedelta(days=1)


def raw(statement: str, *parameters: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)


def verified(topic: declarations.DeclaredTopic) -> Verified:
    return verify("default", topic=Topic.objects.get(name=topic.name))


def offenders(topic: declarations.DeclaredTopic) -> list[Finding]:
    return list(verified(topic).offenders)


def places(topic: declarations.DeclaredTopic) -> list[tuple[str, str | None, int | None, int | None]]:
    return [(one.kind, one.subject.consumer, one.subject.partition, one.subject.id) for one in offenders(topic)]


@contextmanager
def without(table: str, *constraints: str) -> Iterator[None]:
    """As in a database where a session dropped them, until what was planted is gone again."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint"
            " WHERE conrelid = %s::regclass AND conname = ANY(%s)",
            [table, list(constraints)],
        )
        kept = cursor.fetchall()
    assert len(kept) == len(constraints)
    for name, _ in kept:
        raw(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
    try:
        yield
    finally:
        for name, definition in kept:
            raw(f"ALTER TABLE {table} ADD CONSTRAINT {name} {definition}")


def bad(event: Any) -> None:
    raise ValueError("never")


# --- times that clients can't read are refused by the database


@pytest.mark.parametrize("time", ["infinity", "-infinity", "12000-01-01 UTC", "0044-03-15 UTC BC"])
def test_a_time_that_no_client_reads_is_refused(lanes, make_consumer, make_queue, time: str) -> None:
    reader, queue = make_consumer(lanes, handler=bad, retry=ONE_ATTEMPT), make_queue(lanes)
    fill_topic(lanes, 1)
    serve_due(reader)
    assert queue.claim(1) is not None
    for table, columns in {
        "consumer": ["paused_at", "held_until"],
        "position": ["retry_at", "failing_since", "stopped_at", "leased_until", "served_at"],
        "delivery": ["visible_at"],
        "deliverylease": ["leased_until"],
        "deadletter": ["redrive_at"],
    }.items():
        for column in columns:
            with pytest.raises(IntegrityError, match=f"django_events_{table}_times"), transaction.atomic():
                raw(f"UPDATE django_events_{table} SET {column} = '{time}'")


def test_a_token_without_an_end_of_its_lease_is_refused(lanes, make_consumer) -> None:
    make_consumer(lanes, handler=print)
    with pytest.raises(IntegrityError, match="django_events_position_lease"), transaction.atomic():
        raw("UPDATE django_events_position SET token = 7")


# --- leases, holds and pauses


FOREVER = [("infinity", "never"), ("2199-01-01 UTC", "2199-01-01")]


@pytest.mark.parametrize(("until", "told"), FOREVER)
def test_a_lease_of_a_partition_without_an_end(lanes, make_consumer, until: str, told: str) -> None:
    make_consumer(lanes, handler=print)
    fill_topic(lanes, 1)
    with without("django_events_position", "django_events_position_times"):
        raw(f"UPDATE django_events_position SET token = 7, leased_until = '{until}', holder = 'h' WHERE partition = 2")
        [found] = offenders(lanes)
        raw("UPDATE django_events_position SET token = NULL, leased_until = NULL")
    assert (found.kind, found.subject.consumer, found.subject.partition) == ("position", "reader", 2)
    assert found.what.startswith(f"Its lease, of h, ends {told}")
    assert "leased_until = now()" in found.remedy
    assert places(lanes) == []


def test_a_token_without_an_end(lanes, make_consumer) -> None:
    make_consumer(lanes, handler=print)
    with without("django_events_position", "django_events_position_lease"):
        raw("UPDATE django_events_position SET token = 7 WHERE partition = 1")
        [found] = offenders(lanes)
        raw("UPDATE django_events_position SET token = NULL")
    assert (found.subject.partition, found.what) == (1, "Its lease, of an unknown worker, ends never.")


@pytest.mark.parametrize(("until", "told"), FOREVER)
def test_a_pause_of_a_partition(lanes, make_consumer, until: str, told: str) -> None:
    reader = make_consumer(lanes, handler=bad)
    fill_topic(lanes, 1, key="a")
    serve_due(reader)
    waiting = Position.objects.get(retry_at__isnull=False)
    assert places(lanes) == []
    with without("django_events_position", "django_events_position_times"):
        raw(f"UPDATE django_events_position SET retry_at = '{until}' WHERE id = {waiting.pk}")
        [found] = offenders(lanes)
        raw("UPDATE django_events_position SET retry_at = NULL")
    assert (found.kind, found.subject.partition, found.subject.id) == ("position", waiting.partition, 1)
    assert told in found.what
    assert found.remedy == "Have it tried now: manage.py events retry-now reader --topic lanes"


@pytest.mark.parametrize(("until", "told"), FOREVER)
def test_a_consumer_that_is_held(lanes, make_consumer, until: str, told: str) -> None:
    make_consumer(lanes, handler=print)
    with without("django_events_consumer", "django_events_consumer_times"):
        raw(f"UPDATE django_events_consumer SET held_until = '{until}'")
        [found] = offenders(lanes)
        raw("UPDATE django_events_consumer SET held_until = NULL")
    assert (found.kind, found.subject.consumer) == ("consumer", "reader")
    assert found.what.startswith(f"It is held until {told}")
    assert "held_until = NULL" in found.remedy


@pytest.mark.parametrize(("until", "told"), FOREVER)
def test_a_delivery_and_a_hand_that_wait_for_ever(things, make_queue, until: str, told: str) -> None:
    queue = make_queue(things)
    fill_topic(things, *range(5))
    assert queue.claim(2) is not None
    with (
        without("django_events_delivery", "django_events_delivery_times"),
        without("django_events_deliverylease", "django_events_deliverylease_times"),
    ):
        raw(f"UPDATE django_events_delivery SET visible_at = '{until}' WHERE event_id = 4")
        raw(f"UPDATE django_events_deliverylease SET leased_until = '{until}'")
        found = offenders(things)
        raw("UPDATE django_events_delivery SET visible_at = NULL")
        raw("UPDATE django_events_deliverylease SET leased_until = now()")
    assert sorted((one.kind, one.subject.id) for one in found) == [("delivery", 4), ("lease", None)]
    assert all(told in one.what for one in found)
    assert places(things) == []


def test_a_delay_of_years_is_none_too_long(things, make_queue) -> None:
    queue = make_queue(things, delay=timedelta(days=3_000))
    fill_topic(things, 1)
    assert deliveries_of(queue).get().visible_at is not None
    assert places(things) == []


def test_a_redrive_that_never_comes(things, make_consumer) -> None:
    reader = make_consumer(things, handler=bad, retry=ONE_ATTEMPT)
    fill_topic(things, 1)
    serve_due(reader)
    raw("UPDATE django_events_deadletter SET redrive_at = '2199-01-01'")
    assert places(things) == [("dead letter", "reader", 0, 1)]


# --- attempts


@pytest.mark.parametrize("column", ["attempted", "careful_until"])
def test_attempts_at_no_event_of_the_partition(lanes, make_consumer, column: str) -> None:
    make_consumer(lanes, handler=print)
    publish_many(lanes, [Draft(value=n, partition=n % 4) for n in range(20)])
    transfer_all()
    by_partition = dict(Event.objects.of(lanes).values_list("partition", "id"))
    mine = Position.objects.filter(consumer__name="reader", partition=1)
    # A consumer that turned goes on with care up to an event that may be of another partition.
    for strange in (99, -4, *([by_partition[2]] if column == "attempted" else [])):
        mine.update(**{column: strange})
        assert places(lanes) == [("position", "reader", 1, strange)]
    mine.update(**{column: by_partition[1]})
    assert places(lanes) == []
    assert "no event of partition 1" not in str(offenders(lanes))


def test_attempts_of_all_partitions_together(lanes, make_consumer) -> None:
    make_consumer(lanes, handler=print, partitioned=False)
    fill_topic(lanes, *range(20))
    for event_id, found in ((7, []), (21, [("position", "reader", -1, 21)])):
        Position.objects.filter(consumer__name="reader").update(attempted=event_id)
        assert places(lanes) == found


# --- queues


def test_a_lease_of_deliveries_that_dont_exist(things, make_queue) -> None:
    queue = make_queue(things)
    fill_topic(things, *range(5))
    hand = queue.claim(2)
    assert hand is not None
    lease = DeliveryLease.objects.filter(token=hand.token)
    for event_ids in ([99], [1, 2, 0], ["x"], [1, None]):
        lease.update(event_ids=event_ids)
        kinds = {(one.kind, one.what.split(" names ")[1][:12]) for one in offenders(things) if one.kind == "lease"}
        assert len(kinds) == 1, event_ids
    lease.update(event_ids=[1, 2])
    assert places(things) == []

    settle(hand, *hand.events[:1])
    assert (places(things), verified(things).notes) == ([], [])
    Delivery.objects.all().delete()
    lease.update(leased_until="2026-01-01T00:00Z")
    found = verified(things)
    assert not found.offenders
    assert "with no delivery under them" in found.notes[-1]


def test_a_delivery_that_was_deleted(things, make_queue) -> None:
    """What became of the others stands in the history, and with it nothing else is missed."""
    queue = make_queue(things, history=LONG, retry=ONE_ATTEMPT)
    settled_since(queue)
    fill_topic(things, *range(10))
    assert places(things) == []
    hand = queue.claim(3)
    assert hand is not None
    fail(hand, hand.events[0])
    assert places(things) == []
    finish(hand)
    skip("queue", 4, reason="no")
    discard(DeadLetter.objects.filter(event_id=4), reason="no")
    redrive(DeadLetter.objects.filter(event_id=1))
    assert places(things) == []

    deliveries_of(queue).filter(event_id__in=[6, 8]).delete()
    assert places(things) == [("delivery", "queue", None, 6), ("delivery", "queue", None, 8)]
    [found, _] = offenders(things)
    assert found.remedy.endswith("events rewind queue --topic things --to 6 --execute")
    rewind("queue", to=6)
    while fill_some(queue.subscription):
        pass
    assert places(things) == []


def settled_since(queue: Any) -> None:
    """As if it had been declared as it is for a while."""
    Consumer.objects.filter(pk=queue.subscription.consumer_id).update(changed_at="2026-01-01T00:00Z")


def test_a_queue_marked_as_filled_further_than_it_is(things, make_queue) -> None:
    queue = make_queue(things, history=LONG, live=False, start="beginning")
    settled_since(queue)
    fill_topic(things, *range(10))
    assert places(things) == []
    Consumer.objects.update(filled_until=7)
    assert [one[3] for one in places(things)] == [1, 2, 3, 4, 5, 6, 7]
    Consumer.objects.update(filled_until=0, live=True)
    assert len(places(things)) == 10
    Consumer.objects.update(live=False)
    assert places(things) == []


def test_a_position_of_a_queue_ahead_of_what_was_handled(things, make_queue) -> None:
    queue = make_queue(things, history=LONG)
    settled_since(queue)
    fill_topic(things, *range(10))
    Position.objects.update(position=5, number=5)
    deliveries_of(queue).filter(event_id__lte=5).delete()
    assert [one[3] for one in places(things)] == [1, 2, 3, 4, 5]


def test_what_no_history_tells_is_not_asked(things, make_queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the history began, with another filter, without one, behind a rewind: nothing can be derived."""
    monkeypatch.setattr(deliveries, "AT_ONCE", 3)
    queue = make_queue(things)
    settled_since(queue)
    fill_topic(things, *range(10))
    deliveries_of(queue).filter(event_id=2).delete()
    assert places(things) == []

    raw("UPDATE django_events_consumer SET history = interval '1 day'")
    assert places(things) == [("delivery", "queue", None, 2)]
    raw("UPDATE django_events_consumer SET changed_at = clock_timestamp()")
    assert places(things) == []
    settled_since(queue)
    raw("UPDATE django_events_consumer SET types = '[\"other\"]'")
    assert places(things) == []
    raw("UPDATE django_events_consumer SET types = NULL, history = interval '1 minute'")
    assert places(things) == []
    raw("UPDATE django_events_consumer SET history = interval '1 day'")
    rewind("queue", to="end")
    assert places(things) == []


def test_a_changed_filter_or_history_is_noted(things, make_consumer, make_queue) -> None:
    queue = make_queue(things)
    before = row_of(queue).changed_at
    declared = queue.subscription.consumer
    register("default", declared)
    assert row_of(queue).changed_at == before
    for changed in ({"history": LONG}, {"types": ("a.*",)}, {"where": "$.a == 1"}):
        declared = replace(declared, **changed)
        register("default", declared)
        assert row_of(queue).changed_at > before
        before = row_of(queue).changed_at


def test_a_filter_that_fails_is_a_note(things, make_queue) -> None:
    queue = make_queue(things, history=LONG)
    settled_since(queue)
    fill_topic(things, {"at": "2026-01-01"})
    Delivery.objects.all().delete()
    raw("UPDATE django_events_consumer SET \"where\" = '$.a == $nothing'")
    found = verified(things)
    assert not found.offenders
    assert "its filter fails on an event from 1 to 1" in found.notes[-1]


def test_an_erased_event_is_not_missed(lanes, make_queue) -> None:
    queue = make_queue(lanes, history=LONG, where="$ < 100")
    settled_since(queue)
    fill_topic(lanes, 1, 2, 3, key="a")
    fill_topic(lanes, 1_000, key="b")
    erase(lanes, key="a", reason="asked for")
    assert places(lanes) == []


def test_the_registered_history_counts_and_not_that_of_a_workers_code(things, make_queue) -> None:
    """A worker that was started before it was declared writes it too, or events would seem to be missing."""
    queue = make_queue(things)
    fill_topic(things, 1)
    raw("UPDATE django_events_consumer SET history = interval '1 day'")
    hand = queue.claim(1)
    assert hand is not None
    finish(hand)
    assert PastDelivery.objects.count() == 1


# --- copies and the buffer


def test_a_dead_letter_whose_payload_is_not_the_events(lanes, make_consumer, monkeypatch) -> None:
    monkeypatch.setattr(dead_letters, "AT_ONCE", 2)
    reader = make_consumer(lanes, handler=bad, retry=ONE_ATTEMPT)
    publish_many(lanes, [Draft(value={"n": n}, key=str(n), type="t", metadata={"m": n}) for n in range(5)])
    publish(lanes, body=b"bytes")
    publish(lanes, None)
    transfer_all()
    serve_due(reader)
    assert DeadLetter.objects.count() == 7
    assert places(lanes) == []
    letters = DeadLetter.objects.order_by("event_id")
    kept = {letter.event_id: letter for letter in letters}
    changes = {
        1: ("type", "other"),
        2: ("key", "other"),
        3: ("value", {"n": 9}),
        4: ("metadata", {}),
        6: ("body", b"b"),
    }
    for event_id, (column, value) in changes.items():
        letters.filter(event_id=event_id).update(**{column: value})
        [found] = offenders(lanes)
        assert (found.kind, found.subject.id, found.what) == (
            "dead letter",
            event_id,
            f"Its {column} is not that of the event.",
        )
        letters.filter(event_id=event_id).update(**{column: getattr(kept[event_id], column)})
    erase(lanes, key="1", reason="asked for", forget_key=True)
    assert places(lanes) == []


def test_the_sequence_of_the_buffer_below_its_rows(things, lanes) -> None:
    publish(things, 1)
    publish(lanes, 2)
    assert places(things) == []
    last = BufferedEvent.objects.order_by("-id").values_list("id", flat=True)[0]
    sequence = "pg_get_serial_sequence('django_events_bufferedevent', 'id')"
    raw(f"SELECT setval({sequence}, 1)")
    try:
        [found] = [one for one in verify("default").offenders if one.subject.topic == "lanes"]
    finally:
        raw(f"SELECT setval({sequence}, {last})")
    assert (found.kind, found.remedy) == (
        "buffer",
        f"Stop the publishers and transfers, and: SELECT setval({sequence}, {last})",
    )
    assert f"The ticket {last:,} waits" in found.what


def test_a_partition_that_the_topic_doesnt_have_is_a_note(lanes) -> None:
    raw(
        "INSERT INTO django_events_bufferedevent (topic_id, partition, value) VALUES (%s, 77, '1')",
        Topic.objects.get(name="lanes").pk,
    )
    found = verified(lanes)
    assert not found.offenders
    assert "1 event in the buffer with a partition that the topic doesn't have" in found.notes[-1]
    transfer_all()
    assert Event.objects.at(lanes, 1).partition == 77 % 4
    assert verified(lanes).notes == []


# --- beside others


@pytest.mark.slow
def test_beside_claims_and_rewinds_nothing_is_missed(things, make_queue, in_thread: Callable[..., Any]) -> None:
    queue = make_queue(things, history=LONG, retry=Backoff(attempts=2, base=timedelta(0)))
    settled_since(queue)
    done = threading.Event()

    def until_done(work: Callable[[], object]) -> None:
        while not done.is_set():
            work()
            done.wait(0.002)

    def handle_some() -> None:
        if hand := queue.claim(7):
            fail(hand, hand.events[0])
            if hand.events:  # else its lease is over: it had one event
                settle(hand, *hand.events[:4])
                hand.release()

    def publish_some() -> None:
        fill_topic(things, *range(20))

    def move_about() -> None:
        redrive(DeadLetter.objects.filter(redrive_at=None)[:3])
        discard(DeadLetter.objects.filter(redrive_at=None)[:1], reason="no")
        done.wait(0.05)

    threads = [in_thread(until_done, work) for work in (publish_some, handle_some, move_about)]
    try:
        for _ in range(15):
            assert places(things) == []
    finally:
        done.set()
        for thread in threads:
            thread.result()
    assert PastDelivery.objects.count() > 10
