"""Registering consumers: what `migrate` makes of declarations, and what it refuses."""

import threading
from collections import Counter
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from django.core.management.base import CommandError
from django.db import connection, connections, transaction

from django_events import Backoff, Draft, publish, publish_many, sql
from django_events.consuming import registration
from django_events.consuming.subscriptions import subscriptions
from django_events.declarations import consumers
from django_events.exceptions import Invalid, LeaseLost, NotReady, UnknownName
from django_events.log.segments import segments
from django_events.models import Consumer, Event, Position, Topic
from django_events.operations import repartition
from django_events.syncing import sync_after_migrate
from tests.support.fix_consumers import (
    expire_leases,
    lease_of,
    position_of,
    positions,
    reached,
    serve_due,
    serve_lease,
    write_order,
    written,
)
from tests.support.fix_topics import transfer_all
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("transactional_db")


def fill(topic, count, *, key=str):
    """Publish events to a topic, each of another key, and move them into its log."""
    publish_many(topic, [Draft(value=n, key=key(n)) for n in range(count)])
    transfer_all()


def handled_ids():
    return [int(note.rpartition("/")[2]) for note in written()]


def write_down(event):
    write_order(event.address)


def sync():
    return [line for line in registration.sync("default") if "reader" in line]


# What is made


@pytest.mark.requirement("E12")
def test_a_declared_consumer_gets_a_row_and_a_position_in_each_partition(lanes, make_consumer):
    reader = make_consumer(lanes, handler=print, types=["order.*"], keys=["7"], where="$.total > 100")

    row = Consumer.objects.get(name="reader")
    assert (row.topic.name, row.partitioned, row.types, row.keys, row.where) == (
        "lanes",
        True,
        ["order.*"],
        ["7"],
        "$.total > 100",
    )
    assert row.paused_at is None
    assert list(positions(reader).values_list("partition", "position", "number", "token")) == [
        (partition, 0, 0, None) for partition in range(4)
    ]


@pytest.mark.requirement("E12")
def test_a_consumer_that_is_not_partitioned_has_one_position(lanes, make_consumer):
    reader = make_consumer(lanes, handler=print, partitioned=False)

    assert list(positions(reader).values_list("partition", "position")) == [(Position.ALL, 0)]


@pytest.mark.requirement("E12")
def test_a_consumer_of_several_topics_has_a_row_for_each(things, lanes, make_consumer, shelf):
    reader = make_consumer(things, lanes, handler=write_down)
    publish(things, 1)
    publish(lanes, 1)
    transfer_all()

    assert Counter(positions(reader).values_list("consumer__topic__name", flat=True)) == {"things": 1, "lanes": 4}
    assert serve_due(reader) == 2
    assert sorted(written()) == ["lanes/1", "things/1"]


@pytest.mark.slow
@pytest.mark.requirement("E12")
def test_registering_is_said_in_a_line_and_again_changes_nothing(things, make_consumer):
    make_consumer(things, handler=print)
    before = list(Consumer.objects.values())
    assert sync() == []
    assert sync() == []
    assert list(Consumer.objects.values()) == before

    Consumer.objects.filter(name="reader").delete()
    publish(things, 1)
    transfer_all()
    assert sync() == ["Consumer reader of things: registered, begins at 1."]
    assert sync() == []


@pytest.mark.requirement("E12")
def test_the_line_says_that_the_log_does_not_have_the_id_to_begin_at(things, make_consumer):
    make_consumer(things, handler=print, start=500)
    Consumer.objects.filter(name="reader").delete()

    assert sync() == ["Consumer reader of things: registered, begins at 1, the end of the log that is nearer to 500."]


@pytest.mark.requirement("E12")
def test_a_consumer_that_is_not_declared_any_more_stays(things, make_consumer):
    consumers.discard(make_consumer(things, handler=print))

    assert sync() == []
    assert Consumer.objects.filter(name="reader").exists()


@pytest.mark.slow
@pytest.mark.requirement("E12")
def test_several_syncs_at_once_register_a_consumer_once(lanes, make_consumer):
    reader = make_consumer(lanes, handler=print)
    Consumer.objects.filter(name="reader").delete()
    lines: list[str] = []
    errors: list[BaseException] = []
    together = threading.Barrier(6)

    def target():
        try:
            together.wait()
            lines.extend(sync())
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=target) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert lines == ["Consumer reader of lanes: registered, begins at 1."]
    assert positions(reader).count() == 4


def test_migrate_says_what_it_registered_and_what_it_refuses(things, make_consumer):
    reader = make_consumer(things, handler=print)
    Consumer.objects.filter(name="reader").delete()

    said = StringIO()
    sync_after_migrate(None, using="default", stdout=said)
    assert said.getvalue() == "  Consumer reader of things: registered, begins at 1."

    object.__setattr__(reader, "where", "$$$")
    with pytest.raises(CommandError, match=r"Consumer reader, declared at .*, has where='\$\$\$'"):
        sync_after_migrate(None, using="default", stdout=said)


# Where it begins


@pytest.mark.slow
@pytest.mark.requirement("E12")
@pytest.mark.parametrize("partitioned", [True, False])
@pytest.mark.parametrize(
    ("start", "first"), [("beginning", 1), (1, 1), (14, 14), (20, 20), (21, 21), ("end", 21)], ids=str
)
def test_a_consumer_begins_where_it_says(lanes, make_consumer, shelf, start, first, partitioned):
    fill(lanes, 20)
    reader = make_consumer(lanes, handler=write_down, start=start, partitioned=partitioned)
    assert_numbers(reader)
    fill(lanes, 5)
    serve_due(reader)

    assert sorted(handled_ids()) == list(range(first, 26))
    assert_numbers(reader)


def assert_numbers(reader):
    """A position's number is the count of the events up to it in its partition."""
    for position in positions(reader).select_related("consumer__topic"):
        events = Event.objects.of(position.consumer.topic.name).filter(id__lte=position.position)
        if position.partition != Position.ALL:
            events = events.filter(partition=position.partition)
        assert position.number == events.count()


@pytest.mark.requirement("E12")
def test_a_time_is_the_first_event_that_was_logged_then_or_later(things, make_consumer):
    for _ in range(4):
        publish_many(things, [Draft(value=0) for _ in range(3)])
        transfer_all()
    times = list(Event.objects.since(things).values_list("logged_at", flat=True))
    assert times[3] == times[5] < times[6], "events of a batch are logged at one time, and the next are later"
    tick = timedelta(microseconds=1)
    begins = {
        times[0] - timedelta(days=1): 1,
        times[0]: 1,
        times[0] + tick: 4,
        times[3] - tick: 4,
        times[3]: 4,
        times[6]: 7,
        times[11]: 10,
        times[11] + tick: 13,
        datetime(2999, 1, 1, tzinfo=UTC): 13,
    }

    found = {}
    for number, moment in enumerate(begins):
        reader = make_consumer(things, handler=print, name=f"reader{number}", start=moment)
        found[moment] = position_of(reader).position + 1
    assert found == begins


@pytest.mark.requirement("E12")
@pytest.mark.parametrize("start", ["beginning", "end", datetime(2026, 1, 1, tzinfo=UTC), 1])
def test_every_start_works_in_an_empty_log(things, make_consumer, shelf, start):
    reader = make_consumer(things, handler=write_down, start=start)
    fill(things, 3)
    serve_due(reader)

    assert handled_ids() == [1, 2, 3]


def test_what_is_in_the_buffer_when_it_registers_comes_after_the_end(things, make_consumer, shelf):
    fill(things, 3)
    publish(things, "not in the log yet")
    reader = make_consumer(things, handler=write_down, start="end")
    transfer_all()
    serve_due(reader)

    assert handled_ids() == [4]


@pytest.mark.requirement("E12")
def test_an_id_that_the_log_has_not_reached_is_its_end(things, make_consumer):
    """The declaration is the same for every database, also for a test's empty one."""
    fill(things, 3)
    reader = make_consumer(things, handler=print, start=500)

    assert reached(reader) == [3]
    assert sync() == []


@pytest.mark.requirement("E12")
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_log_whose_beginning_is_gone(make_topic, make_consumer, shelf, partitions):
    topic = make_topic("short", segment_size=100, partitions=partitions)
    fill(topic, 250)
    with connection.cursor() as cursor:
        for segment in segments("default", Topic.objects.get(name="short").pk)[:2]:
            cursor.execute(f"DROP TABLE {segment.table}")

    reader = make_consumer(topic, handler=write_down, start=200)
    serve_due(reader)
    assert sorted(handled_ids()) == list(range(201, 251))


def test_where_it_begins_counts_only_when_it_is_registered(things, make_consumer):
    fill(things, 3)
    reader = make_consumer(things, handler=print)
    make_consumer(things, handler=print, start="end")

    assert sync() == []
    assert reached(reader) == [0]


# What is refused


@pytest.mark.requirement("E12")
def test_a_topic_that_does_not_exist_comes_with_the_likely_one(things, make_consumer):
    with pytest.raises(UnknownName) as caught:
        make_consumer("thing", handler=print)

    [declared] = [one for one in consumers if one.name == "reader"]
    assert str(caught.value) == (
        f"Consumer reader is declared for topic 'thing', at {declared.declared_at}, and the database 'default' "
        "has no such topic. Did you mean 'things'?"
    )


@pytest.mark.requirement("S12")
@pytest.mark.parametrize("where", ["$.total >", "total > 100", "'; DROP TABLE x; --", '$.a like_regex "("', "{}", "%s"])
def test_a_predicate_that_is_none_is_refused_before_anything_is_made(things, make_consumer, where):
    with pytest.raises(Invalid) as caught:
        make_consumer(things, handler=print, where=where)

    [declared] = [one for one in consumers if one.name == "reader"]
    assert str(caught.value).startswith(
        f"Consumer reader, declared at {declared.declared_at}, has where={where!r}, which PostgreSQL can't use as a "
        "jsonpath predicate: "
    )
    assert "\n" not in str(caught.value)
    assert not Consumer.objects.filter(name="reader").exists()


@pytest.mark.requirement("S12")
@pytest.mark.parametrize("where", ["$.total", "$ ? (@.total > 100)", "$.lines[*].price", "$.total + 1"])
def test_a_path_that_says_neither_yes_nor_no_is_refused(things, make_consumer, where):
    """It looks like a filter, and nothing would ever match."""
    with pytest.raises(Invalid, match="is neither true nor false for any value, so no event would match"):
        make_consumer(things, handler=print, where=where)


def test_a_wrong_declaration_stops_all_before_anything_is_made(things, make_consumer):
    with pytest.raises(Invalid, match="batch_size=0"):
        make_consumer(things, handler=print, batch_size=0)

    assert not Consumer.objects.filter(name="reader").exists()


@pytest.mark.requirement("E12")
def test_workers_refuse_a_consumer_that_is_not_registered(things, lanes, make_consumer):
    reader = make_consumer(things, lanes, handler=print)
    Consumer.objects.filter(name="reader", topic__name="lanes").delete()

    with pytest.raises(NotReady) as caught:
        subscriptions("default", [reader])
    assert str(caught.value) == (
        "Consumer 'reader' is not registered for topic 'lanes' in the database 'default'. "
        "Run: manage.py migrate --database default"
    )


@pytest.mark.requirement("E12")
def test_workers_refuse_a_consumer_of_another_mode(lanes, make_queue):
    emails = make_queue(lanes, handler=print).subscription.consumer
    object.__setattr__(emails, "mode", "stream")

    with pytest.raises(NotReady, match=r"is registered with mode='queue' for topic 'lanes'"):
        subscriptions("default", [emails])


@pytest.mark.requirement("X7")
def test_workers_claim_in_the_order_that_is_registered(lanes, make_queue):
    emails = make_queue(lanes, handler=print, ordered=True).subscription.consumer
    object.__setattr__(emails, "ordered", False)

    [subscription] = subscriptions("default", [emails])
    assert subscription.ordered
    assert not subscription.outdated


@pytest.mark.requirement("X7")
def test_workers_read_as_the_database_says_whether_a_partition_at_a_time_or_all_together(lanes, make_consumer):
    """So workers of the last version and of the next one serve it side by side."""
    reader = make_consumer(lanes, handler=print)
    object.__setattr__(reader, "partitioned", False)
    [subscription] = subscriptions("default", [reader])

    assert [partition for _, partition in subscription.positions] == [0, 1, 2, 3]


# What changes


def test_changed_filters_take_effect_for_what_was_not_passed_yet(things, make_consumer, shelf):
    reader = make_consumer(things, handler=write_down, types=["a"])
    for kind in "abc":
        publish(things, 1, type=kind)
    transfer_all()
    serve_due(reader)
    reader = make_consumer(things, handler=write_down, types=["a", "b"], where="$ == 1")
    for kind in "abc":
        publish(things, 1, type=kind)
    publish(things, 2, type="a")
    transfer_all()
    serve_due(reader)

    assert handled_ids() == [1, 4, 5]
    row = Consumer.objects.get(name="reader")
    assert (row.types, row.keys, row.where) == (["a", "b"], None, "$ == 1")
    assert sync() == []


def test_a_change_is_said_with_what_was_before(things, make_consumer):
    reader = make_consumer(things, handler=print, types=["a"], where="$.a == 1")
    object.__setattr__(reader, "types", None)
    object.__setattr__(reader, "where", "$.a == 2")

    assert sync() == [
        "Consumer reader of things: types ['a'] → None, where $.a == 1 → $.a == 2, "
        "its filter is other from things/1 on, events below it are judged by the former."
    ]


def test_what_is_no_business_of_the_database_changes_without_it(things, make_consumer):
    make_consumer(things, handler=print)
    make_consumer(things, handler=print, retry=Backoff(attempts=2), lease=timedelta(seconds=5), batch_size=7)

    assert sync() == []


@pytest.mark.requirement("E12")
@pytest.mark.parametrize("to", [True, False])
def test_partitioned_or_not_changes_before_anything_was_handled(lanes, make_consumer, shelf, to):
    fill(lanes, 10)
    make_consumer(lanes, handler=write_down, partitioned=not to)
    reader = make_consumer(lanes, handler=write_down, partitioned=to)
    assert_numbers(reader)
    serve_due(reader)

    assert sorted(handled_ids()) == list(range(1, 11))
    assert_numbers(reader)


@pytest.mark.slow
@pytest.mark.requirement("E12")
def test_partitioned_or_not_changes_back_and_forth_between_events(lanes, make_consumer, shelf):
    """Each time with everything handled, and with more to come: nothing twice, nothing left out."""
    for round, partitioned in enumerate([True, False, False, True, True, False, True]):
        reader = make_consumer(lanes, handler=write_down, partitioned=partitioned)
        assert_numbers(reader)
        fill(lanes, 3 + round)
        serve_due(reader)
    last = Event.objects.of(lanes).count()

    assert sorted(handled_ids()) == list(range(1, last + 1))
    assert sync() == []


@pytest.mark.requirement("E12")
@pytest.mark.parametrize("handled", [0, 1, 5, 19, 20])
def test_one_position_for_all_becomes_one_for_each_wherever_it_is(lanes, make_consumer, shelf, handled):
    fill(lanes, 20)
    reader = make_consumer(lanes, handler=write_down, partitioned=False, batch_size=None)
    serve_some(reader, handled)
    assert reached(reader) == [handled]
    reader = make_consumer(lanes, handler=write_down, partitioned=True)
    assert reached(reader) == [handled] * 4
    assert_numbers(reader)
    serve_due(reader)

    assert sorted(handled_ids()) == list(range(1, 21))


def serve_some(reader, count, partition=None):
    """Serve so many events of a partition and stop."""
    before = len(written())
    if count:
        serve_lease(lease_of(reader, partition), stopping=lambda: len(written()) >= before + count)
    assert len(written()) == before + count


@pytest.mark.requirement("E12", "X7")
def test_partitions_that_are_not_equally_far_become_one_when_they_all_come_to_one_id(lanes, make_consumer, shelf):
    fill(lanes, 20)
    reader = make_consumer(lanes, handler=write_down)
    serve_lease(lease_of(reader, 2))
    object.__setattr__(reader, "partitioned", False)
    assert sync() == ["Consumer reader of lanes: partitioned True → False at 21, when all before it is handled."]
    assert sync() == []
    assert Consumer.objects.get(name="reader").partitioned
    fill(lanes, 5)
    assert positions(reader).count() == 4
    serve_due(reader)

    assert not Consumer.objects.get(name="reader").partitioned
    assert reached(reader) == [25]
    assert sorted(handled_ids()) == list(range(1, 26))
    assert handled_ids()[20:] == list(range(21, 26))
    assert_numbers(reader)


@pytest.mark.requirement("X7")
def test_a_turn_that_is_declared_back_before_it_came_is_forgotten(lanes, make_consumer, shelf):
    fill(lanes, 20)
    reader = make_consumer(lanes, handler=write_down)
    for partitioned in (False, True):
        object.__setattr__(reader, "partitioned", partitioned)
        sync()
    fill(lanes, 5)
    serve_due(reader)

    row = Consumer.objects.get(name="reader")
    assert (row.partitioned, row.turns_at) == (True, None)
    assert positions(reader).filter(barrier__isnull=False).count() == 0
    assert sorted(handled_ids()) == list(range(1, 26))


@contextmanager
def turning(change, in_thread):
    """Changes how consumers are read as soon as a worker has asked for them."""
    changed = []

    def change_behind(execute, sql, params, many, context):
        answer = execute(sql, params, many, context)
        if not changed and sql.startswith("SELECT") and "django_events_consumer" in sql:
            changed.append(in_thread(change).result(60))
        return answer

    with connection.execute_wrapper(change_behind):
        yield
    assert changed


@pytest.mark.requirement("E12", "X7")
@pytest.mark.parametrize("to", [True, False])
def test_a_consumer_that_turns_while_a_worker_looks_at_it_handles_each_event_once(
    lanes, make_consumer, shelf, in_thread, to
):
    """Before, a worker could read all partitions in each of them, or nothing in the one position for all."""
    reader = make_consumer(lanes, handler=write_down, partitioned=not to)
    fill(lanes, 20)
    if not to:  # it turns when what is there is handled
        serve_due(reader)
    object.__setattr__(reader, "partitioned", to)
    with turning(lambda: (sync(), fill(lanes, 5)), in_thread):
        serve_due(reader)
    serve_due(reader)

    assert Consumer.objects.get(name="reader").partitioned == to
    assert sorted(handled_ids()) == list(range(1, 26))


@pytest.mark.requirement("X7")
def test_a_topic_that_is_divided_while_a_worker_looks_at_it_is_handled_once(things, make_consumer, shelf, in_thread):
    reader = make_consumer(things, handler=write_down)
    fill(things, 5)
    serve_due(reader)
    with turning(lambda: repartition(things, 4), in_thread):
        serve_due(reader)
    fill(things, 5)
    serve_due(reader)

    assert sorted(handled_ids()) == list(range(1, 11))


@pytest.mark.requirement("E12")
def test_partitions_that_stand_at_different_ids_with_nothing_between_may_become_one(lanes, make_consumer, shelf):
    """An empty partition stays behind: it has nothing that could be handled twice."""
    reader = make_consumer(lanes, handler=write_down)
    fill(lanes, 6, key=lambda n: "the same")
    serve_due(reader)
    assert sorted(reached(reader)) == [0, 0, 0, 6]
    reader = make_consumer(lanes, handler=write_down, partitioned=False)
    fill(lanes, 3)
    serve_due(reader)

    assert handled_ids() == list(range(1, 10))


@pytest.mark.requirement("E12", "X7")
@pytest.mark.parametrize("partitioned", [True, False])
def test_while_a_worker_handles_events_it_waits_for_them(lanes, make_consumer, shelf, partitioned):
    fill(lanes, 3)
    reader = make_consumer(lanes, handler=write_down, partitioned=partitioned)
    lease = lease_of(reader, 3 if partitioned else Position.ALL, holder="host:7/1")
    object.__setattr__(reader, "partitioned", not partitioned)
    assert sync() == [
        f"Consumer reader of lanes: partitioned {partitioned} → {not partitioned} at 4, when all before it is handled."
    ]
    assert Consumer.objects.get(name="reader").partitioned is partitioned
    fill(lanes, 3)
    serve_lease(lease)
    serve_due(reader)

    assert Consumer.objects.get(name="reader").partitioned is not partitioned
    assert sorted(handled_ids()) == list(range(1, 7))
    assert_numbers(reader)


@pytest.mark.requirement("E12", "X7")
@pytest.mark.parametrize("comes_back", [True, False])
def test_a_worker_that_is_out_of_time_is_waited_for_or_taken_over(lanes, make_consumer, shelf, comes_back):
    fill(lanes, 8)
    reader = make_consumer(lanes, handler=write_down, partitioned=False)
    lease = lease_of(reader)
    expire_leases(reader)
    changed = make_consumer(lanes, handler=write_down)
    assert not Consumer.objects.get(name="reader").partitioned
    if comes_back:
        serve_lease(lease)
    serve_due(changed)
    if not comes_back:
        with pytest.raises(LeaseLost):
            serve_lease(lease)

    assert Consumer.objects.get(name="reader").partitioned
    assert sorted(handled_ids()) == list(range(1, 9))


@pytest.mark.slow
@pytest.mark.requirement("E12")
@pytest.mark.parametrize(("before", "after"), [(4, 8), (8, 4), (1, 3), (3, 1)])
@pytest.mark.parametrize("partitioned", [True, False])
def test_a_topic_that_gets_other_partitions_before_it_has_events(
    make_topic, make_consumer, shelf, before, after, partitioned
):
    topic = make_topic("growing", partitions=before)
    reader = make_consumer(topic, handler=write_down, partitioned=partitioned)
    object.__setattr__(topic, "partitions", after)
    make_topic("another")  # as the next migrate
    lines = sync()
    fill(topic, 20)
    serve_due(reader)

    assert lines == ([f"Consumer reader of growing: partitions {before} → {after}."] if partitioned else [])
    expected = range(after) if partitioned else [Position.ALL]
    assert list(positions(reader).values_list("partition", flat=True)) == list(expected)
    assert sorted(handled_ids()) == list(range(1, 21))
    assert_numbers(reader)


def test_a_sync_inside_a_transaction_goes_with_it(things, make_consumer):
    make_consumer(things, handler=print)
    Consumer.objects.filter(name="reader").delete()
    with pytest.raises(RuntimeError), transaction.atomic():
        assert sync() == ["Consumer reader of things: registered, begins at 1."]
        raise RuntimeError

    assert not Consumer.objects.filter(name="reader").exists()


@pytest.mark.requirement("E12")
def test_no_event_slips_between_the_end_of_the_log_and_a_new_consumer(things, make_consumer, shelf, connect):
    """While a transfer moves a batch into the log, registering waits: the end it finds is the real one."""
    fill(things, 3)
    other = connect()
    topic_id = Topic.objects.get(name="things").pk
    other.execute(sql.shared.lock_head.text, {"topic_id": topic_id})
    made = []
    thread = threading.Thread(target=lambda: made.append(registered_at_end()))

    def registered_at_end():
        try:
            return make_consumer(things, handler=write_down, start="end")
        finally:
            connections.close_all()

    thread.start()
    wait_for_lock(other)
    other.execute(
        "INSERT INTO django_events_event"
        " (topic_id, id, partition, number, type, value, metadata, published_at, logged_at)"
        " VALUES (%s, 4, 0, 4, '', '4', '{}', now(), clock_timestamp())",
        [topic_id],
    )
    other.commit()
    thread.join()
    fill(things, 2)
    serve_due(made[0])

    assert handled_ids() == [5, 6]


def wait_for_lock(session):
    """Until a session waits for what this one holds."""
    pid = session.info.backend_pid
    asked = "SELECT count(*) FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"

    def waiting():
        with connection.cursor() as cursor:
            cursor.execute(asked, [pid])
            return cursor.fetchone()[0]

    wait_until(waiting, what="a session waiting for the lock")
