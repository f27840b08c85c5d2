"""The due partitions of a process: what it claims unseen, what it looks at, and what it leaves to others."""

import threading
from contextlib import closing
from datetime import timedelta

import pytest
from django.db import connections, transaction

from django_events import Draft, publish_many
from django_events.consuming.streams.partitions import claim
from django_events.consuming.subscriptions import subscriptions
from django_events.models import Topic
from django_events.workers.due_partitions import DuePartitions
from django_events.workers.stopping import Stop
from tests.support.fix_consumers import pool_of, position_of, positions, serve_lease, working, write_order, written
from tests.support.fix_topics import transfer_all
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("transactional_db", "shelf")

NEVER = {"POLL_INTERVAL": timedelta(hours=1)}


@pytest.fixture
def wide(make_topic):
    return make_topic("wide", partitions=3)


def ignore(given):
    """Handle an event, or several."""


def fill(topic, *values, partition=None):
    publish_many(topic, [Draft(value=value, partition=partition) for value in values])
    transfer_all()


def due_partitions_of(*consumers):
    return DuePartitions("default", subscriptions("default", consumers))


def serve_next(due_partitions):
    """Take what is due next, claim and serve it, as a worker does; returns how many events were passed."""
    due = due_partitions.take()
    lease = claim(*due, holder="a test")
    assert lease is not None
    due_partitions.claimed(due.position_id)
    passed = serve_lease(lease)
    due_partitions.served(due.position_id, until=lease.position)
    return passed


def place(topic, partition=0):
    return Topic.objects.get(name=str(topic)).pk, partition


@pytest.mark.requirement("X6")
def test_a_partition_that_was_served_here_is_claimed_without_looking(wide, make_consumer, django_assert_num_queries):
    by_partition = make_consumer(wide, name="by_partition", handler=ignore)
    together = make_consumer(wide, name="together", handler=ignore, partitioned=False)
    due_partitions = due_partitions_of(by_partition, together)
    fill(wide, 1, partition=1)
    assert due_partitions.look(period=60)
    assert serve_next(due_partitions) + serve_next(due_partitions) == 2
    assert not due_partitions.look(period=60)

    fill(wide, 2, 3, partition=1)
    due_partitions.arrived([place(wide, 1)])
    with django_assert_num_queries(0):
        assert due_partitions.look(period=60)
    assert serve_next(due_partitions) + serve_next(due_partitions) == 4
    assert not due_partitions.look(period=60)
    assert due_partitions.take() is None
    assert position_of(by_partition, 1).position == position_of(together).position == 3


def test_a_flood_into_partitions_of_this_process_keeps_no_other_waiting(wide, make_consumer):
    """What is told all the time doesn't come before what is due, and doesn't put off the look that finds it."""
    reader = make_consumer(wide, handler=ignore)
    due_partitions = due_partitions_of(reader)
    for partition in (0, 1):
        fill(wide, 1, partition=partition)
    assert due_partitions.look(period=60)
    assert serve_next(due_partitions) + serve_next(due_partitions) == 2

    quiet = False
    for turn in range(10):
        for partition in (0, 1):
            fill(wide, turn, partition=partition)
        if turn == 3:
            fill(wide, "quiet", partition=2)
        due_partitions.arrived([place(wide, 0), place(wide, 1)] + [place(wide, 2)] * (turn == 3))
        assert due_partitions.look(period=60)
        serve_next(due_partitions)
        if quiet := position_of(reader, 2).position > 0:
            break
    assert quiet
    assert turn < 7


def test_a_partition_that_others_served_is_looked_at(wide, make_consumer, django_assert_num_queries, monkeypatch):
    monkeypatch.setattr("django_events.workers.partition_states.LONGEST_REFUSAL", 3_600.0)
    monkeypatch.setattr("django_events.workers.partition_states.FIRST_REFUSAL", 3_600.0)
    reader = make_consumer(wide, handler=ignore)
    due_partitions = due_partitions_of(reader)
    assert not due_partitions.look(period=60)
    fill(wide, 1, partition=1)
    due_partitions.arrived([place(wide, 1)])

    with django_assert_num_queries(1):
        assert due_partitions.look(period=60)
    due_partitions.refused(due_partitions.take().position_id)  # it was the others' again
    due_partitions.arrived([place(wide, 1)])
    with django_assert_num_queries(1):
        assert not due_partitions.look(period=60)  # not before a while
    for state in due_partitions._states.values():  # the while is over
        state.refused_until = due_partitions._next = 0.0
    assert due_partitions.look(period=60)
    assert serve_next(due_partitions) == 1


def test_after_a_turn_that_did_not_reach_the_end_a_partition_is_looked_at(wide, make_consumer):
    reader = make_consumer(wide, handler=ignore)
    due_partitions = due_partitions_of(reader)
    fill(wide, 1, partition=1)
    assert due_partitions.look(period=60)
    due = due_partitions.take()
    lease = claim(*due, holder="a test")
    due_partitions.claimed(due.position_id)
    due_partitions.arrived([place(wide, 1)])
    assert serve_lease(lease) == 1
    due_partitions.served(due.position_id, until=lease.position)
    assert not due_partitions.look(period=60)

    fill(wide, 2, partition=1)
    due_partitions.arrived([place(wide, 1)])
    assert due_partitions.look(period=60)
    assert serve_next(due_partitions) == 1


@pytest.mark.requirement("X6")
def test_where_all_that_was_there_is_handled_nothing_is_looked_at(wide, make_consumer, django_assert_num_queries):
    reader = make_consumer(wide, handler=ignore)
    due_partitions = due_partitions_of(reader)
    for partition in (0, 1):
        fill(wide, 1, partition=partition)
    assert due_partitions.look(period=60)
    for _ in range(2):
        due = due_partitions.take()
        lease = claim(*due, holder="a test")
        due_partitions.claimed(due.position_id)
        assert serve_lease(lease) == 1
        assert lease.ended
        due_partitions.served(due.position_id, until=lease.position, ended=True)
    with django_assert_num_queries(0):
        assert not due_partitions.look(period=60)

    fill(wide, 2, partition=1)
    due_partitions.arrived([place(wide, 1)])
    with django_assert_num_queries(0):
        assert due_partitions.look(period=60)


def test_what_comes_while_a_partition_is_served_is_claimed_after_the_turn(
    wide, make_consumer, django_assert_num_queries
):
    reader = make_consumer(wide, handler=ignore)
    due_partitions = due_partitions_of(reader)
    fill(wide, 1, partition=1)
    assert due_partitions.look(period=60)
    due = due_partitions.take()
    lease = claim(*due, holder="a test")
    due_partitions.claimed(due.position_id)
    fill(wide, 2, partition=1)
    due_partitions.arrived([place(wide, 1)])
    assert not due_partitions.more  # other threads can't have it
    assert serve_lease(lease) == 1
    due_partitions.served(due.position_id, until=lease.position, ended=True)

    with django_assert_num_queries(0):
        assert due_partitions.look(period=60)
    assert serve_next(due_partitions) == 1
    assert not due_partitions.look(period=60)


def test_a_claim_for_events_that_the_turn_had_read_is_no_refusal(wide, make_consumer, django_assert_num_queries):
    reader = make_consumer(wide, handler=ignore)
    due_partitions = due_partitions_of(reader)
    fill(wide, 1, partition=1)
    assert due_partitions.look(period=60)
    due = due_partitions.take()
    lease = claim(*due, holder="a test")
    due_partitions.claimed(due.position_id)
    due_partitions.arrived([place(wide, 1)])  # of the event that was read
    assert serve_lease(lease) == 1
    due_partitions.served(due.position_id, until=lease.position, ended=True)
    assert due_partitions.look(period=60)
    due = due_partitions.take()
    assert claim(*due, holder="a test") is None
    due_partitions.refused(due.position_id)
    assert not due_partitions.look(period=60)

    fill(wide, 2, partition=1)
    due_partitions.arrived([place(wide, 1)])
    assert due_partitions.look(period=60)  # at once: it is not left alone for a while
    assert serve_next(due_partitions) == 1


def test_after_a_turn_in_which_its_subscription_changed_a_partition_is_looked_at(wide, make_consumer):
    reader = make_consumer(wide, handler=ignore)
    due_partitions = due_partitions_of(reader)
    fill(wide, 1, partition=1)
    assert due_partitions.look(period=60)
    due = due_partitions.take()
    lease = claim(*due, holder="a test")
    due_partitions.claimed(due.position_id)
    fill(wide, 2, partition=1)
    due_partitions.arrived([place(wide, 1)])
    due_partitions._take_on(subscriptions("default", [reader]))
    assert serve_lease(lease) == 1
    due_partitions.served(due.position_id, until=lease.position, ended=True)

    assert due_partitions.look(period=60)
    assert serve_next(due_partitions) == 1


def test_what_another_thread_could_not_see_while_it_was_served_is_looked_for(wide, make_consumer):
    """Its look came after the claim, so it left the partition out, and what it was told of would stay there."""
    reader = make_consumer(wide, handler=ignore)
    due_partitions = due_partitions_of(reader)
    fill(wide, 1, partition=1)
    assert due_partitions.look(period=60)
    due = due_partitions.take()
    lease = claim(*due, holder="a test")
    batch = lease.read()
    fill(wide, 2, partition=1)
    due_partitions.arrived([place(wide, 1)])
    assert not due_partitions.look(period=60)  # another thread's, before this one says what it has claimed
    due_partitions.claimed(due.position_id)
    with transaction.atomic():
        settlement = lease.settle(batch.events)
    lease.settled(settlement)
    assert lease.ended
    due_partitions.served(due.position_id, until=lease.position, ended=True)

    assert due_partitions.look(period=60)
    assert serve_next(due_partitions) == 1
    assert position_of(reader, 1).position == 2


def test_where_an_event_waits_for_its_next_attempt_not_all_is_handled(wide, make_consumer):
    def fail(event):
        raise ValueError("not now")

    reader = make_consumer(wide, handler=fail)
    fill(wide, 1, partition=1)
    due_partitions = due_partitions_of(reader)
    assert due_partitions.look(period=60)
    lease = claim(*due_partitions.take(), holder="a test")
    serve_lease(lease)
    assert not lease.ended


def test_small_batches_wait_for_more_also_where_they_were_served_before(things, make_consumer):
    reader = make_consumer(things, handler=ignore, batch_size=10, min_batch=2, max_wait=timedelta(hours=1))
    due_partitions = due_partitions_of(reader)
    for n in range(2):
        fill(things, n)
        due_partitions.arrived([place(things)])
        assert due_partitions.look(period=60) is bool(n)
    assert serve_next(due_partitions) == 2
    fill(things, 2)
    due_partitions.arrived([place(things)])
    assert not due_partitions.look(period=60)


@pytest.mark.requirement("E13")
def test_when_a_worker_stops_others_go_on_at_once(things, make_consumer, settings, monkeypatch):
    """They don't look for an hour, and its lease would last as long."""
    settings.DJANGO_EVENTS = NEVER
    started, go_on = threading.Event(), threading.Event()

    def handler(event):
        started.set()
        assert go_on.wait(60)
        write_order(event.value)

    reader = make_consumer(things, handler=handler, lease=timedelta(hours=1))
    fill(things, *range(5))
    with pool_of([reader]) as first, closing(Stop()) as stop:

        def target():
            first.run(stop)
            connections.close_all()

        thread = threading.Thread(target=target)
        thread.start()
        assert started.wait(60)
        with working(reader) as second:
            wait_until(lambda: second._listener.listening and second.due_partitions._looked_at, what="the other worker")
            stop.request()
            go_on.set()
            thread.join()
            wait_until(lambda: position_of(reader).position == 5, seconds=30, what="what the first one left")
    assert written() == [str(n) for n in range(5)]
    assert not positions(reader).filter(token__isnull=False).exists()
