"""More or fewer partitions for a topic that has events: what is said, recorded and shown, and who waits for whom."""

import json
from datetime import timedelta
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from django_events import Backoff, Draft, declarations, publish, publish_many
from django_events.consuming import registration
from django_events.consuming.streams import layouts
from django_events.consuming.streams.partitions import claim
from django_events.consuming.subscriptions import subscriptions
from django_events.exceptions import InUse, Invalid, UnknownName
from django_events.log import retention, topics
from django_events.models import Consumer, DeadLetter, Event, Intervention, Position, Topic
from django_events.models.functions import ClockTimestamp
from django_events.observing.barriers import barriers
from django_events.operations import lag, redrive, repartition, replay, rewind
from django_events.outcomes import Repartitioned
from django_events.statements import log_table
from django_events.testing import drain
from django_events.workers.due_partitions import DuePartitions
from testproject.shop.models import Product
from tests.support.fix_consumers import lease_of, positions, reached, serve_due, serve_lease, write_order, written
from tests.support.fix_topics import transfer_all
from tests.support.processes import wait_until

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("E15", "X7")]


def fill(topic, count=20):
    publish_many(topic, [Draft(value=n, key=str(n % 7)) for n in range(count)])
    transfer_all()


def write_down(event):
    write_order(event.address)


def handled():
    return [int(note.rpartition("/")[2]) for note in written()]


def events(*arguments):
    out = StringIO()
    call_command("events", *arguments, stdout=out)
    return out.getvalue()


# What is done


@pytest.mark.slow
def test_it_says_from_which_event_on_and_who_is_held_back(lanes, make_consumer, shelf):
    fill(lanes)
    make_consumer(lanes, handler=write_down)
    make_consumer(lanes, handler=write_down, name="together", partitioned=False)
    ahead = make_consumer(lanes, handler=lambda event: None, name="ahead")
    serve_due(ahead)
    would = repartition("lanes", 8, dry_run=True)
    assert would == Repartitioned("lanes", 4, 8, 21, ("reader",))
    assert Topic.objects.get(name="lanes").layouts == []

    assert lanes.repartition(8, by="ada", reason="it grew") == would
    assert Topic.objects.get(name="lanes").layouts == [[1, 4], [21, 8]]
    record = Intervention.objects.get()
    assert (record.by, record.action, record.topic, record.consumer) == ("ada", "repartition", "lanes", "")
    assert record.details == {
        "before": 4, "after": 8, "first_id": 21, "held_back": ["reader"], "reason": "it grew",
    }  # fmt: skip
    assert [one.layout for one in positions(ahead)] == [1] * 8
    assert repartition("lanes", 8) == would._replace(before=8)
    assert Intervention.objects.count() == 1


def test_it_goes_with_the_callers_transaction(lanes, make_consumer):
    make_consumer(lanes, handler=print)
    fill(lanes)
    with pytest.raises(RuntimeError), transaction.atomic():
        repartition("lanes", 8)
        raise RuntimeError
    row = Topic.objects.get(name="lanes")

    assert (row.partitions, row.layouts) == (4, [])


@pytest.mark.slow
def test_what_it_refuses(lanes, connect):
    with pytest.raises(UnknownName, match="has no topic 'lane'"):
        repartition("lane", 8)
    for wrong in (0, 1_001, "8", True):
        with pytest.raises(Invalid, match="expected a whole number from 1 to 1,000"):
            repartition("lanes", wrong)
    other = connect()
    other.execute("SELECT FROM django_events_topichead FOR UPDATE")
    with pytest.raises(InUse, match="Topic lanes is locked, by"):
        repartition("lanes", 8)


@pytest.mark.slow
@pytest.mark.parametrize("before", [1, 4])
def test_workers_that_run_go_on_by_the_new_number(make_topic, make_consumer, shelf, before):
    """They know the former positions, and are told nothing but that something came."""
    topic = make_topic("growing", partitions=before)
    reader = make_consumer(topic, handler=write_down)
    worker = DuePartitions("default", subscriptions("default", [reader]))
    for partitions in (8, 3, 5, 1):
        fill(topic)
        repartition("growing", partitions)
        fill(topic)
        serve(worker)

    assert handled() == sorted(handled(), key=handled().index)
    assert sorted(handled()) == list(range(1, 161))
    by_key = {}
    for event_id in handled():
        by_key.setdefault(event_id % 20 % 7, []).append(event_id)
    keys = dict(Event.objects.of("growing").values_list("id", "key"))
    for key in set(keys.values()):
        mine = [event_id for event_id in handled() if keys[event_id] == key]
        assert mine == sorted(mine)
    assert lag(reader) == 0
    assert barriers("default") == []


def serve(worker):
    topic_ids = {one.topic_id for one in worker._subscriptions}
    for _ in range(200):
        worker.look_at(topic_ids)
        if not worker.look(period=1e9) or (due := worker.take()) is None:
            return
        if (lease := claim(*due, holder="a test")) is not None:
            worker.claimed(due.position_id)
            serve_lease(lease)
            worker.served(due.position_id, until=lease.reached)
    raise AssertionError("something is still due")


def test_a_claim_by_a_former_layout_leases_nothing(lanes, make_consumer, shelf):
    fill(lanes)
    reader = make_consumer(lanes, handler=write_down)
    [former] = subscriptions("default", [reader])
    serve_due(reader)
    repartition("lanes", 8)
    fill(lanes)

    assert all(claim(former, position_id, lane, holder="late") is None for position_id, lane in former.positions)
    serve_due(reader)
    assert sorted(handled()) == list(range(1, 41))


def test_a_worker_in_the_middle_of_a_turn_reads_nothing_behind_the_barrier(lanes, make_consumer, shelf):
    fill(lanes)
    reader = make_consumer(lanes, handler=write_down)
    lease = lease_of(reader, 1)
    repartition("lanes", 8)
    fill(lanes)
    serve_lease(lease)

    assert max(handled()) <= 20
    assert reached(reader)[1] <= 20
    serve_due(reader)
    assert sorted(handled()) == list(range(1, 41))


def test_a_dead_letter_is_handled_where_its_key_is_now(lanes, make_consumer, shelf):
    def refuse(event):
        raise ValueError("no")

    fill(lanes, 7)
    reader = make_consumer(lanes, handler=refuse, retry=Backoff(attempts=1))
    serve_due(reader)
    repartition("lanes", 5)
    reader = make_consumer(lanes, handler=write_down, retry=Backoff(attempts=1))
    fill(lanes, 7)
    serve_due(reader)
    redrive(DeadLetter.objects.of(reader))
    due = DuePartitions("default", subscriptions("default", [reader]))
    due.look(period=0)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT DISTINCT ((hashtextextended(key, 0) & 9223372036854775807) % 5)::int"
            " FROM django_events_deadletter ORDER BY 1"
        )
        expected = [lane for (lane,) in cursor.fetchall()]
    assert sorted(one.partition for one in iter(due.take, None)) == expected
    serve_due(reader)

    assert sorted(handled()) == list(range(1, 15))
    assert not DeadLetter.objects.exists()


def test_a_rewind_of_one_partition_to_before_the_barrier_makes_it_stand_again(lanes, make_consumer, shelf):
    fill(lanes)
    reader = make_consumer(lanes, handler=write_down)
    repartition("lanes", 2)
    fill(lanes)
    serve_due(reader)
    [move] = rewind(reader, to=1, partition=1)
    again = list(Event.objects.of("lanes").filter(partition=1).values_list("id", flat=True))
    assert move.again == len(again)
    [barrier] = barriers("default")
    assert (barrier.event, barrier.partitions, [one.partition for one in barrier.held_back_by]) == (21, 2, [1])
    before = len(handled())
    serve_due(reader)

    assert handled()[before:] == again
    assert barriers("default") == []


def test_an_event_of_a_partition_that_is_gone_can_be_replayed(lanes, make_consumer, shelf):
    fill(lanes)
    reader = make_consumer(lanes, handler=write_down)
    repartition("lanes", 1)
    serve_due(reader)
    of_last = Event.objects.of("lanes").filter(partition__gt=0).order_by("id").last()
    assert replay(reader, ids=[of_last.id], reason="a test").events == 1
    serve_due(reader)

    assert handled()[20:] == [of_last.id]
    assert [fate.state for fate in of_last.fate() if fate.consumer == "reader"] == ["passed"]


# What is shown


@pytest.mark.slow
def test_who_stands_at_a_barrier_is_shown(lanes, make_consumer, shelf, client, admin_user):
    fill(lanes)
    reader = make_consumer(lanes, handler=write_down)
    serve_lease(lease_of(reader, 1))
    repartition("lanes", 8)
    fill(lanes)
    left = {
        lane: Event.objects.of("lanes").filter(partition=lane, id__lte=20).count() for lane in (0, 2, 3)
    }  # fmt: skip
    left = {lane: count for lane, count in left.items() if count}
    [barrier] = barriers("default")
    assert {one.partition: one.left for one in barrier.held_back_by} == left
    [told] = json.loads(events("consumers", "reader", "--format", "json"))
    assert told["barrier"] == json.loads(json.dumps(barrier.flat()))

    for said in (events("consumers", "reader"), events("status")):
        assert "reader of lanes: it reads by 8 partitions from event 21 on. Before that: partition" in said
    client.force_login(admin_user)
    page = client.get(f"/admin/django_events/consumer/{barrier.consumer_id}@default/change/", follow=True)
    assert page.status_code == 200
    assert "Reads another way" in page.content.decode()
    serve_due(reader)
    assert "Before that" not in events("consumers", "reader")


def test_the_command_says_that_the_declaration_counts(lanes):
    fill(lanes)
    assert "Pass --execute" in events("repartition", "lanes", "8") or "--execute" in events("repartition", "lanes", "8")
    said = events("repartition", "lanes", "8", "--execute")

    assert "partitions            4 → 8" in said or "4 → 8" in said
    assert f"It is declared with partitions=4, at {lanes.declared_at}. Change that too" in said
    assert "has 8 partitions already" in events("repartition", "lanes", "8", "--execute")


@pytest.mark.slow
def test_the_admin_asks_for_the_number_and_says_that_the_declaration_counts(lanes, client, admin_user):
    fill(lanes)
    client.force_login(admin_user)
    row = Topic.objects.get(name="lanes")
    page = f"/admin/django_events/topic/{row.pk}/repartition/"
    assert "Other partitions for topic lanes?" in client.get(page).content.decode()
    assert "less than or equal to 1000" in client.post(page, {"partitions": "1001"}).content.decode()
    answer = client.post(page, {"partitions": "8", "reason": "it grew"}, follow=True).content.decode()

    assert "Topic lanes has 8 partitions from event 21 on." in answer
    assert "It is declared with another number: the next migrate follows that." in answer
    record = Intervention.objects.get()
    assert (record.action, record.by, record.details["reason"]) == ("repartition", str(admin_user), "it grew")
    row.refresh_from_db()
    assert row.layouts == [[1, 4], [21, 8]]

    again = client.post(page, {"partitions": "8", "reason": "once more"}, follow=True).content.decode()
    assert "Nothing was changed: there was nothing to do." in again
    assert Intervention.objects.count() == 1


def test_a_consumer_that_waits_for_enough_events_handles_what_is_left_before_the_barrier(lanes, make_consumer, shelf):
    def write_all(events):
        for event in events:
            write_order(event.address)

    fill(lanes)
    reader = make_consumer(lanes, handler=write_all, batch_size=50, min_batch=50, max_wait=timedelta(days=1))
    assert serve_due(reader) == 0
    repartition("lanes", 8)
    fill(lanes)
    serve_due(reader)

    assert sorted(handled()) == list(range(1, 21))
    assert barriers("default") == []


# What might hold a consumer up for ever


def turn(reader, *, partitioned):
    object.__setattr__(reader, "partitioned", partitioned)
    return registration.register("default", reader)


@pytest.mark.slow
def test_a_rewind_that_waited_goes_by_the_partitions_that_there_are_then(lanes, make_consumer, shelf, in_thread):
    fill(lanes)
    reader = make_consumer(lanes, handler=write_down)
    lease = lease_of(reader, 0)
    rewinding = in_thread(rewind, reader, to=5)
    wait_until(lambda: Consumer.objects.get(name="reader").held_until, what="a rewind that waits")
    repartition("lanes", 8)
    fill(lanes)
    lease.release()
    rewinding.result()
    serve_due(reader)

    assert sorted(handled()) == list(range(5, 41))
    assert lag(reader) == 0


def test_a_rewind_of_one_partition_is_refused_if_its_topic_changes_meanwhile(lanes, make_consumer, in_thread):
    fill(lanes)
    reader = make_consumer(lanes, handler=print)
    lease = lease_of(reader, 0)
    rewinding = in_thread(rewind, reader, to=5, partition=0)
    wait_until(lambda: Consumer.objects.get(name="reader").held_until, what="a rewind that waits")
    repartition("lanes", 8)
    lease.release()

    with pytest.raises(InUse, match=r"got another number of partitions in this moment\. Nothing was changed"):
        rewinding.result()


def test_a_turn_that_is_taken_back_while_a_worker_has_a_lease_holds_nothing_back(things, make_consumer, shelf):
    fill(things, 5)
    reader = make_consumer(things, handler=write_down, partitioned=False)
    lease = lease_of(reader)
    turn(reader, partitioned=True)
    turn(reader, partitioned=False)
    lease.release()
    fill(things, 5)
    serve_due(reader)

    assert handled() == list(range(1, 11))


def test_a_turn_comes_behind_the_event_that_is_being_tried_again(things, make_consumer, shelf):
    def write_or_fail(event):
        if event.id == 3 and not Product.objects.filter(sku="coffee").exists():
            raise ValueError("not yet")
        write_order(event.address)

    fill(things, 5)
    reader = make_consumer(things, handler=write_or_fail, partitioned=False, retry=Backoff(attempts=9))
    serve_due(reader)
    turn(reader, partitioned=True)
    assert [one.event for one in barriers("default")] == [4]
    Product.objects.create(sku="coffee", price=1, on_shelf=1)
    positions(reader).update(retry_at=None)
    serve_due(reader)

    assert handled() == list(range(1, 6))
    assert Consumer.objects.get(name="reader").partitioned


def test_a_barrier_below_what_retention_dropped_is_passed(make_topic, make_consumer, shelf):
    topic = make_topic("brief", segment_size=100, keep_unread=False, retention_events=20)
    fill(topic, 4)
    reader = make_consumer(topic, handler=write_down)
    Consumer.objects.update(paused_at=Now())
    turn(reader, partitioned=False)
    fill(topic, 416)
    for _ in range(3):
        with retention.writing("default", Topic.objects.get(name="brief").pk) as row:
            if old := retention.outlived("default", row):
                retention.remove("default", row, old)
    floor = Topic.objects.get(name="brief").head.id_floor
    assert floor > 4
    Consumer.objects.update(paused_at=None)
    serve_due(reader)

    assert handled() == list(range(floor + 1, 421))
    assert not Consumer.objects.get(name="reader").partitioned


def test_the_next_look_takes_a_consumer_on_whose_worker_died_at_the_barrier(lanes, make_consumer, shelf, monkeypatch):
    fill(lanes)
    reader = make_consumer(lanes, handler=write_down)
    repartition("lanes", 2)
    fill(lanes)
    repartition("lanes", 4)
    with monkeypatch.context() as patch:
        patch.setattr(layouts, "pass_barrier", lambda using, consumer_id: False)
        serve_due(reader)
    publish(lanes, 1, partition=3)
    transfer_all()
    serve_due(reader)

    assert sorted(handled()) == list(range(1, 42))
    assert barriers("default") == []


def test_looks_at_a_consumer_that_is_held_back_lock_nothing(lanes, make_consumer):
    fill(lanes)
    reader = make_consumer(lanes, handler=print)
    lease = lease_of(reader, 0)
    for partition in (1, 2, 3):
        serve_lease(lease_of(reader, partition))
    repartition("lanes", 2)
    fill(lanes)
    worker = DuePartitions("default", subscriptions("default", [reader]))
    with CaptureQueriesContext(connection) as captured:
        for _ in range(5):
            worker.look_at([worker._subscriptions[0].topic_id])
            worker.look(period=1e9)

    assert not [one["sql"] for one in captured if "FOR UPDATE" in one["sql"]]
    assert len(captured) <= 5 * 5
    lease.release()


def test_a_lease_that_its_worker_lost_with_nothing_left_to_handle_holds_nothing_up(lanes, make_consumer, shelf):
    fill(lanes)
    reader = make_consumer(lanes, handler=write_down)
    lease = lease_of(reader, 0)
    batch = lease.read()
    with transaction.atomic():
        lease.settled(lease.settle(batch.events[:-1]))
    Position.objects.filter(token=lease.token).update(
        position=20, number=Event.objects.of("lanes").filter(partition=0).count(), leased_until=ClockTimestamp()
    )
    repartition("lanes", 2)
    fill(lanes)
    serve_due(reader)

    assert max(handled()) == 40
    assert barriers("default") == []


@pytest.mark.slow
def test_a_log_that_was_made_anew_has_one_layout(lanes, make_consumer, shelf):
    fill(lanes)
    reader = make_consumer(lanes, handler=write_down)
    serve_due(reader)
    repartition("lanes", 8)
    declarations.registry.discard(lanes)
    object.__setattr__(lanes, "partitions", 8)
    declarations.registry.add(lanes)
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {log_table(Topic.objects.get(name='lanes').pk)} CASCADE")
    topics.sync("default")
    registration.sync("default")
    fill(lanes)
    serve_due(reader)

    assert Topic.objects.get(name="lanes").layouts == []
    assert sorted(handled()[20:]) == list(range(1, 21))


def test_drain_goes_across_a_barrier(lanes, make_consumer, shelf):
    fill(lanes)
    make_consumer(lanes, handler=write_down)
    repartition("lanes", 2)
    publish_many(lanes, [Draft(value=n, key=str(n)) for n in range(20)])
    drain()

    assert sorted(handled()) == list(range(1, 41))


def test_a_consumer_that_is_unregistered_in_this_moment_has_no_barrier_to_pass(
    lanes, make_consumer, in_thread, connect
):
    fill(lanes)
    make_consumer(lanes, handler=print)
    repartition("lanes", 2)
    other, row = connect(), Consumer.objects.get(name="reader")
    other.execute("SELECT FROM django_events_topichead FOR UPDATE")
    passing = in_thread(layouts.pass_barrier, "default", row.pk)
    other.execute("DELETE FROM django_events_position WHERE consumer_id = %s", [row.pk])
    other.execute("DELETE FROM django_events_consumer WHERE id = %s", [row.pk])
    other.commit()

    assert passing.result() is False
