"""A consumer gets another filter while events wait: from which id on it counts, and what older workers leave alone."""

from contextlib import contextmanager

import pytest

from django_events import Draft, declarations, publish, publish_many
from django_events.consuming import registration
from django_events.consuming.queues.deliveries import Queue
from django_events.consuming.subscriptions import refuse_outdated, subscriptions
from django_events.exceptions import NotReady
from django_events.models import Consumer, DeadLetter, Delivery, DeliveryLease
from django_events.models.functions import ClockTimestamp
from django_events.observing.problems import find_problems
from django_events.operations import resume, rewind, skip
from tests.support.fix_consumers import (
    due,
    expire_leases,
    lease_of,
    position_of,
    positions,
    run_once,
    serve_due,
    serve_lease,
    working,
    write_order,
    written,
)
from tests.support.fix_topics import transfer_all
from tests.support.processes import wait_until

pytestmark = [pytest.mark.usefixtures("transactional_db", "shelf"), pytest.mark.requirement("X7")]


def write_down(event):
    write_order(f"{event.id}{event.type}")


def fill(topic, types, *, keys=8):
    """Publish an event of each of these types, which have one letter, and move them into the log."""
    publish_many(topic, [Draft(value=n, key=str(n % keys), type=letter) for n, letter in enumerate(types)])
    transfer_all()


@contextmanager
def as_before(consumer, **options):
    """The declaration of older code, which is not the registered one."""
    now = {name: getattr(consumer, name) for name in options}
    try:
        for name, value in options.items():
            object.__setattr__(consumer, name, value)
        yield consumer
    finally:
        for name, value in now.items():
            object.__setattr__(consumer, name, value)


def ids(letter):
    return sorted(int(note[:-1]) for note in written() if note[-1] == letter)


def test_a_filter_counts_from_one_id_on_in_all_partitions(lanes, make_consumer):
    reader = make_consumer(lanes, handler=write_down, types=["a"])
    fill(lanes, "ab" * 20)
    assert serve_lease(lease_of(reader, 2))  # one partition is ahead
    reader = make_consumer(lanes, handler=write_down, types=["b"])
    fill(lanes, "ab" * 20)
    assert Consumer.objects.get(name="reader").former_filters == [
        {"until": 40, "types": ["a"], "keys": None, "where": None, "metadata": None, "vars": None}
    ]
    serve_due(reader)

    assert ids("a") == list(range(1, 41, 2))
    assert ids("b") == list(range(42, 81, 2))


def test_migrate_says_from_which_id_on_it_counts(things, make_consumer):
    reader = make_consumer(things, handler=write_down, types=["a"])
    fill(things, "abc")
    object.__setattr__(reader, "types", ("a", "b"))

    [line] = [line for line in registration.sync("default") if "reader" in line]
    assert line.endswith("its filter is other from things/4 on, events below it are judged by the former.")


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(None, ["b"]), (["a"], None), (["b"], ["b", "a"])])
def test_a_whole_worker_goes_over_from_one_filter_to_the_next(things, make_consumer, before, after):
    """By batches and by prepared statements, whatever is missing between the events that it reads."""
    make_consumer(things, handler=write_down, types=before)
    fill(things, "abc" * 70)
    reader = make_consumer(things, handler=write_down, types=after)
    fill(things, "abc" * 70)
    run_once(reader)

    expected = [
        f"{n}{letter}"
        for n, letter in enumerate("abc" * 140, 1)
        if (types := before if n <= 210 else after) is None or letter in types
    ]
    assert written() == expected
    fill(things, "abc")
    run_once(reader)
    assert len(written()) - len(expected) == (3 if after is None else len(after))


def test_filters_that_were_changed_twice_are_each_for_their_own_events(things, make_consumer):
    for letter in "abc":
        reader = make_consumer(things, handler=write_down, types=[letter])
        fill(things, "abc")
    serve_due(reader)
    assert written() == ["1a", "5b", "9c"]

    reader = make_consumer(things, handler=write_down, types=["a"])
    assert Consumer.objects.get(name="reader").former_filters is None, "nothing is left to judge by them"


def test_what_may_have_ended_a_worker_is_found_by_the_filter_of_that_time(things, make_consumer):
    reader = make_consumer(things, handler=write_down, types=["a"])
    fill(things, "bab")
    lease_of(reader).read()
    reader = make_consumer(things, handler=write_down, types=["b"])
    fill(things, "bab")
    expire_leases(reader)
    serve_due(reader)

    assert written() == ["2a", "4b", "6b"]
    assert position_of(reader).careful_until == 2


def test_what_a_rewind_brings_again_is_judged_by_the_filter_of_now(things, make_consumer):
    make_consumer(things, handler=write_down, types=["a"])
    fill(things, "ab")
    reader = make_consumer(things, handler=write_down, types=["b"])
    fill(things, "ab")
    serve_due(reader)
    [one] = subscriptions("default", [reader])
    rewind(reader, to=1)
    assert lease_of(reader) is not None
    expire_leases(reader)
    assert one.revision < Consumer.objects.get(name="reader").revision, "running workers find out"
    serve_due(reader)
    assert written() == ["1a", "4b", "2b", "4b"]


def test_a_filter_that_stopped_a_stream_is_not_kept(things, make_consumer):
    make_consumer(things, handler=write_down, where="$.a.double() > 1")
    publish(things, {"a": "x"})
    publish(things, {"a": 2})
    transfer_all()
    row = Consumer.objects.get(name="reader")
    positions(row).update(stopped_at=ClockTimestamp())
    reader = declarations.consumers.get("reader")
    object.__setattr__(reader, "where", "$.a == 2")

    [line] = [line for line in registration.sync("default") if "reader" in line]
    assert line.endswith("its filter is other from its positions on, because it was stopped.")
    resume(reader)
    serve_due(reader)
    assert written() == ["2"]


def test_an_event_is_skipped_by_the_filter_that_it_is_judged_by(things, make_consumer):
    def refuse(event):
        raise ValueError("no")

    make_consumer(things, handler=refuse, types=["a"])
    fill(things, "bab")
    reader = make_consumer(things, handler=refuse, types=["b"])
    fill(things, "b")
    skip(reader, 2, reason="a test")
    assert [letter.event_id for letter in DeadLetter.objects.of(reader)] == [2]
    skip(reader, 4, reason="a test")
    assert position_of(reader).position == 4


# Older workers


def test_an_older_worker_leaves_a_stream_to_newer_ones(things, make_consumer, caplog):
    reader = make_consumer(things, handler=write_down, types=["a", "b"])
    with as_before(reader, types=("a",)):
        fill(things, "ab")
        assert due(reader) == []
    assert [entry.message for entry in caplog.records] == [
        "Consumer 'reader' of 'things' is left to workers of the code that was registered: here it is declared with "
        "types=['a'] instead of ['a', 'b']. If this is the newer code, run: manage.py migrate --database default"
    ]
    assert serve_due(reader) == 2


def test_a_worker_that_was_asked_to_handle_all_refuses_what_it_would_leave(things, make_consumer):
    reader = make_consumer(things, handler=write_down, types=["a", "b"])
    with as_before(reader, types=("a",)), pytest.raises(NotReady, match=r"types=\['a'\] instead of .* migrate"):
        run_once(reader)
    with as_before(reader, types=("a",)), pytest.raises(NotReady):
        refuse_outdated(subscriptions("default", [reader]))


def test_a_worker_has_a_partition_in_hand_when_the_filter_changes(things, make_consumer):
    reader = make_consumer(things, handler=write_down, types=["a"])
    fill(things, "ab")
    lease = lease_of(reader)
    make_consumer(things, handler=write_down, types=["b"])
    fill(things, "ab")

    assert serve_lease(lease) == 1
    assert written() == ["1a"]
    assert position_of(reader).position == 2, "not behind what it knows how to judge"


def test_a_worker_that_has_not_heard_of_it_claims_nothing(things, make_consumer):
    reader = make_consumer(things, handler=write_down, types=["a"])
    with working(reader):
        fill(things, "a")
        wait_until(lambda: written() == ["1a"])
        newer = make_consumer(things, handler=write_down, types=["a", "b"])
        fill(things, "abb")
        with working(newer):
            wait_until(lambda: len(written()) == 4)
    assert written() == ["1a", "2a", "3b", "4b"]
    assert position_of(newer).failed == 0


def has_looked(pool):
    return hasattr(pool, "due_partitions") and pool.due_partitions._looked_at is not None


@pytest.mark.slow
def test_a_worker_that_was_started_before_migrate_begins_when_that_is_done(things, make_consumer):
    reader = make_consumer(things, handler=write_down, types=["a"])
    object.__setattr__(reader, "types", ("b",))
    with working(reader) as pool:
        fill(things, "ab")
        wait_until(lambda: has_looked(pool))
        registration.sync("default")
        fill(things, "ab")
        wait_until(lambda: len(written()) == 2)
    assert written() == ["1a", "4b"]


@pytest.mark.parametrize("ordered", [False, True])
def test_an_older_worker_claims_nothing_of_a_queue_and_takes_nothing_over(things, make_queue, ordered):
    queue = make_queue(things, handler=write_down, types=["a"], ordered=ordered)
    old = Queue(queue.subscription, holder="old")
    consumer = queue.subscription.consumer
    object.__setattr__(consumer, "types", ("a", "b"))
    registration.sync("default")
    fill(things, "ab")
    assert old.claim(10) is None
    [subscription] = subscriptions("default", [consumer])
    new = Queue(subscription, holder="new")
    assert len(new.claim(10).attempts) == 2
    DeliveryLease.objects.update(leased_until=ClockTimestamp())
    assert old.claim(10) is None
    assert len(Queue(subscription, holder="newer").claim(10).attempts) == 2


def test_a_queue_that_is_filled_from_the_log_says_where_it_changes(things, make_consumer):
    fill(things, "ab")
    reader = make_consumer(things, handler=write_down, mode="queue", types=["a"])
    assert not Consumer.objects.get(name="reader").live
    object.__setattr__(reader, "types", ("b",))
    [line] = [line for line in registration.sync("default") if "reader" in line]

    assert line.endswith("its filter is other from things/1 on, events below it are judged by the former.")
    run_once(reader)
    assert written() == ["2b"]
    assert not Delivery.objects.of(reader).exists()


def test_status_says_what_is_declared_otherwise_here(things, make_consumer):
    reader = make_consumer(things, handler=write_down, types=["a", "b"])
    with as_before(reader, types=("a",)):
        [found] = [one for one in find_problems("default", [], None, []) if one.kind == "declared otherwise"]
    assert found.subject.consumer == "reader"
    assert found.what.endswith(
        "with types=['a'] instead of ['a', 'b'] as registered: workers of this code leave it alone."
    )
    assert "manage.py migrate --database default" in found.remedy
    assert [one for one in find_problems("default", [], None, []) if one.kind == "declared otherwise"] == []
