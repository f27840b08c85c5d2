"""Events that a worker doesn't find: what retention dropped is gone, and nothing else is taken for gone."""

from contextlib import suppress
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.db import connection, transaction

from django_events import Draft, publish_many
from django_events.consuming import handling
from django_events.consuming.handlers import BoundHandler
from django_events.consuming.handling import log_failure
from django_events.consuming.queues.server import serve_deliveries
from django_events.consuming.reading import ALL
from django_events.exceptions import EventsMissing, LeaseLost, Refused
from django_events.log import setbacks
from django_events.log.inventory import waiting
from django_events.models import DeadLetter, Intervention, Topic, TopicHead
from django_events.observing.lag import standings
from django_events.observing.problems import find_problems
from django_events.operations import skip
from django_events.statements import log_table
from tests.support.fix_consumers import (
    expire_leases,
    lease_of,
    position_of,
    reached,
    run_once,
    serve_due,
    serve_lease,
    working,
)
from tests.support.fix_queues import AT_ONCE, deliveries, fill_topic, pending, queue_of, values
from tests.support.fix_topics import transfer_all
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("transactional_db", "shelf")


def remove(topic, *event_ids):
    """As by hand, or by a disk: nothing of ours removes one event."""
    table = log_table(Topic.objects.get(name=topic.name).pk)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(f"DELETE FROM {table} WHERE id = ANY(%s)", [list(event_ids)])
        assert cursor.rowcount == len(event_ids)


def drop(topic, *event_ids):
    """As retention does: the floor says so."""
    remove(topic, *event_ids)
    TopicHead.objects.filter(topic__name=topic.name).update(id_floor=max(event_ids), number_floors=[max(event_ids)])


def told():
    found = find_problems("default", waiting("default"), None, standings("default"))
    return [one for one in found if one.kind == "set aside"]


# Streams and queues


@pytest.mark.parametrize("types", [None, ["a"]])
def test_a_queue_is_not_filled_past_what_is_missing(things, make_consumer, monkeypatch, types):
    monkeypatch.setattr(setbacks, "FIRST_REST", 0.05)
    got = []
    publish_many(things, [Draft(value=n, type="a") for n in range(1, 9)])
    transfer_all()
    drop(things, 1, 2)
    remove(things, 4, 5)
    options = {} if types is None else {"types": types}
    queue = make_consumer(
        things, handler=lambda event: got.append(event.value), mode="queue", start="beginning", **options
    )
    with working(queue) as pool:
        wait_until(lambda: pool._errors or told())
        assert not pool._errors
    [problem] = told()
    assert "One of the events things/" in problem.what
    assert got == []


def test_a_queue_is_filled_where_retention_has_dropped_the_beginning(things, make_consumer):
    fill_topic(things, *range(1, 9))
    drop(things, 1, 2)
    queue = make_consumer(things, handler=lambda event: None, mode="queue", start="beginning")
    assert run_once(queue) == 6


@pytest.mark.slow
def test_a_stream_of_a_whole_topic_with_partitions_is_set_aside_and_others_are_served(
    make_topic, make_consumer, monkeypatch
):
    monkeypatch.setattr(setbacks, "FIRST_REST", 0.05)
    lanes, others = make_topic("lanes", partitions=4), make_topic("others")
    got = []
    reader = make_consumer(lanes, handler=got.append, partitioned=False, name="reader")
    other = make_consumer(others, handler=lambda event: got.append(event.value), name="other")
    publish_many(lanes, [Draft(value=n, key=str(n)) for n in range(10)])
    transfer_all()
    remove(lanes, 6)
    with working(reader, other) as pool:
        wait_until(lambda: pool._errors or told())
        assert not pool._errors
        publish_many(others, [Draft(value=1)])
        transfer_all()
        wait_until(lambda: got == [1])
    [problem] = told()
    assert "Event lanes/6 is missing" in problem.what


@pytest.mark.parametrize(
    ("lost", "batch_size"),
    [(1, None), (3, 2), (5, 10)]
    + [pytest.param(*one, marks=pytest.mark.long) for one in ((1, 2), (1, 10), (3, None), (3, 10), (5, None), (5, 2))],
)
def test_a_stream_stops_before_what_is_missing_and_goes_on_when_told(
    things, make_consumer, monkeypatch, lost, batch_size
):
    """Before, it passed over it without a word."""
    monkeypatch.setattr(setbacks, "FIRST_REST", 0.05)
    got = []

    def handle(given):
        got.extend(event.id for event in (given if isinstance(given, list) else [given]))

    reader = make_consumer(things, handler=handle, batch_size=batch_size)
    fill_topic(things, *range(6))
    remove(things, lost)
    with working(reader):
        [problem] = wait_until(told)
        assert f"Event things/{lost} is missing: it is not in the log" in problem.what
        assert problem.remedy == (
            "Find out what is missing: manage.py events verify --topic things. If it is gone for good, go on without "
            "it: manage.py events rewind reader --to ID"
        )
        assert max(reached(reader)) < lost
        assert all(one < lost for one in got)
        call_command("events", "rewind", "reader", "--to", str(lost + 1), "--execute")
        wait_until(lambda: reached(reader) == [6])
        wait_until(lambda: not told())
    assert {*range(lost + 1, 7)} <= set(got) <= {1, 2, 3, 4, 5, 6} - {lost}


def test_a_partition_that_lacks_a_number_is_found_out(lanes, make_consumer):
    reader = make_consumer(lanes, handler=print)
    publish_many(lanes, [Draft(value=n, partition=n % 2) for n in range(10)])
    transfer_all()
    remove(lanes, 6)
    said = "^Event number 3 of partition 1, which comes before lanes/8, is missing: it is not in the log, and"
    with pytest.raises(EventsMissing, match=said):
        lease_of(reader, 1).read()
    assert lease_of(reader, 0).read().number == 5, "the others go on"


def test_what_retention_dropped_is_passed_over(things, make_consumer):
    """A worker that was frozen meanwhile reads on: it settles nothing, and doesn't tell of a loss either."""
    got = []
    reader = make_consumer(things, handler=lambda event: got.append(event.id))
    fill_topic(things, *range(5))
    drop(things, 1, 2)
    run_once(reader)
    assert got == [3, 4, 5]
    drop(things, 3, 4, 5)
    fill_topic(things, 6)
    run_once(reader)
    assert got == [3, 4, 5, 6]


def test_a_worker_that_was_frozen_while_others_went_on_misses_nothing(things, make_consumer):
    """What it had before it was handled by another one, and dropped: it lost its lease, and that is all."""
    reader = make_consumer(things, handler=print)
    fill_topic(things, *range(5))
    frozen = lease_of(reader)
    expire_leases(reader)
    assert serve_due(reader) == 5
    drop(things, *range(1, 6))
    fill_topic(things, 6)
    with pytest.raises(LeaseLost, match="taken over"):
        serve_lease(frozen)
    assert reached(reader) == [5]


def test_a_floor_in_front_of_a_gap_hides_it_not(things, make_consumer):
    reader = make_consumer(things, handler=print)
    fill_topic(things, *range(6))
    drop(things, 1, 2)
    remove(things, 4)
    with pytest.raises(EventsMissing, match="Event things/4 is missing"):
        lease_of(reader).read()


def test_a_filter_leaves_out_as_before(things, make_consumer):
    got = []
    reader = make_consumer(things, handler=lambda event: got.append(event.value), types=["wanted"])
    publish_many(things, [Draft(value=n, type="wanted" if n % 3 else "other") for n in range(9)])
    transfer_all()
    run_once(reader)
    assert got == [1, 2, 4, 5, 7, 8]


# Queues


@pytest.mark.parametrize("ordered", [False, True])
def test_a_delivery_whose_event_is_missing_is_kept(things, make_queue, caplog, ordered):
    """Before, it was deleted: the event was lost without having been handled."""
    queue = make_queue(things, ordered=ordered)
    fill_topic(things, *range(5), key="k")
    remove(things, 3)
    with pytest.raises(EventsMissing, match="Event things/3 is missing: it is not in the log, and"):
        queue.claim(10)
    assert pending(queue) == [1, 2, 3, 4, 5]
    assert not deliveries(queue).filter(token__isnull=False).exists(), "it is given back"
    assert not deliveries(queue).filter(attempts__gt=0).exists(), "no worker attempted anything"


def test_a_queue_is_set_aside_and_goes_on_when_it_is_told_to_skip(
    things, make_queue, make_topic, make_consumer, monkeypatch
):
    monkeypatch.setattr(setbacks, "FIRST_REST", 0.05)
    got = []
    queue = make_queue(things, handler=lambda event: got.append(event.id))
    fill_topic(things, *range(5))
    remove(things, 3)
    with working(queue.subscription.consumer):
        [problem] = wait_until(told)
        assert "Event things/3 is missing" in problem.what
        assert problem.remedy.endswith("manage.py events skip queue things/ID --reason …")
        skipped = skip("queue", 3, reason="a disk was lost")
        assert (skipped.event_id, skipped.partition) == (3, -1)
        wait_until(lambda: got == [1, 2, 4, 5])
        wait_until(lambda: not told())
    assert not DeadLetter.objects.filter(consumer__name="queue").exists(), "there is nothing to keep"
    [record] = Intervention.objects.filter(action="skip")
    assert (record.details["event"], record.details["reason"]) == (3, "a disk was lost")
    assert position_of(queue.subscription.consumer).dead_lettered == 0


@pytest.mark.requirement("S6")
def test_an_event_that_enters_the_log_while_it_is_skipped_becomes_a_dead_letter(things, make_queue, in_thread):
    """Before, it was taken for missing, because the log was asked before the deliveries: no dead letter was left."""
    queue = make_queue(things)
    publish_many(things, [Draft(value=1)])
    moved = []

    def move_between(execute, sql, params, many, context):
        answer = execute(sql, params, many, context)
        if not moved and sql.startswith("SELECT") and ("django_events_event" in sql or "django_events_delivery" in sql):
            moved.append(in_thread(transfer_all).result(60))
        return answer

    with connection.execute_wrapper(move_between), suppress(Refused):
        skip("queue", 1, reason="a race")
    assert moved
    if pending(queue):
        skip("queue", 1, reason="once more")
    assert list(DeadLetter.objects.filter(consumer__name="queue").values_list("event_id", flat=True)) == [1]
    assert position_of(queue.subscription.consumer).dead_lettered == 1


def test_a_stream_can_not_skip_what_is_missing_and_is_told_the_way(things, make_consumer):
    make_consumer(things, handler=print)
    fill_topic(things, *range(5))
    remove(things, 1)
    with pytest.raises(Refused, match=r"manage\.py events rewind reader --to 2"):
        skip("reader", 1, reason="it is gone")


def test_a_delivery_of_what_retention_dropped_is_done(things, make_queue, caplog):
    queue = make_queue(things)
    fill_topic(things, *range(5))
    drop(things, 1, 2)
    assert values(queue.claim(10)) == [2, 3, 4]
    assert pending(queue) == [3, 4, 5]
    assert "retention has removed event 1 before it was handled" in caplog.text


# Read by itself


def large(topic, count=1):
    fill_topic(topic, *("x" * 50_000 for _ in range(count)))


@pytest.fixture
def little_memory(settings):
    settings.DJANGO_EVENTS = {"MAX_BATCH_BYTES": 10_000}


def serve_here(reader):
    if reader.mode == "stream":
        serve_due(reader)
    elif hand := queue_of(reader).claim(10):
        serve_deliveries(hand, BoundHandler(reader), on_failure=log_failure(hand))


class Short:
    """A server that has no memory for payloads: for those that are weighed, or only for one that is too large."""

    def __init__(self, *, times=None, of="e.total"):
        self.times = times
        self.of = of

    def __call__(self, execute, sql, params, many, context):
        if self.of in sql and "e.total <= 0 " not in sql and self.times != 0:
            if self.times is not None:
                self.times -= 1
            with connection.cursor() as cursor:
                cursor.execute("DO $$ BEGIN RAISE 'out of memory' USING ERRCODE = '53200'; END $$")
        return execute(sql, params, many, context)


@pytest.mark.parametrize("mode", ["stream", "queue"])
@pytest.mark.usefixtures("little_memory")
def test_a_server_short_of_memory_costs_a_small_event_no_attempt(things, make_consumer, mode, monkeypatch, caplog):
    """It is read by itself because it didn't fit with others: 3,000 bytes each."""
    monkeypatch.setattr(handling, "SHORT_OF_MEMORY", timedelta(0))
    got = []
    reader = make_consumer(
        things, handler=lambda event: got.append((event.id, event.attempt)), retry=AT_ONCE, mode=mode
    )
    fill_topic(things, *("x" * 5_000 for _ in range(3)))
    with connection.execute_wrapper(Short(times=2 * AT_ONCE.attempts + 3)):
        for _ in range(20):
            serve_here(reader)
    assert sorted(got) == [(1, 1), (2, 1), (3, 1)]
    assert "attempt 1: OperationalError: out of memory" in caplog.text
    assert "attempt 0" not in caplog.text
    assert not DeadLetter.objects.exists()


@pytest.mark.parametrize("mode", ["stream", "queue"])
@pytest.mark.usefixtures("little_memory")
def test_a_large_event_for_which_there_is_no_memory_runs_out_of_attempts(things, make_consumer, mode):
    got = []
    reader = make_consumer(things, handler=lambda event: got.append(event.value), retry=AT_ONCE, mode=mode)
    large(things)
    fill_topic(things, "small")
    with connection.execute_wrapper(Short(of=f"e.total <= {ALL}")):
        for _ in range(6):
            serve_here(reader)
    [letter] = DeadLetter.objects.all()
    assert (letter.event_id, letter.attempts) == (1, AT_ONCE.attempts)
    assert "out of memory" in letter.error
    serve_here(reader)
    assert got == ["small"]
