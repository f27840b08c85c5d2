"""The plans of the consumers' statements on large logs: by index, and only in the segments they are about."""

import pytest
from django.db import connection

from django_events import Draft, consumer, declarations, publish_many, sql
from django_events.consuming.streams.leased_partitions import SQL as PARTITIONS_SQL
from django_events.consuming.streams.partitions import claim
from django_events.consuming.subscriptions import Subscription, subscriptions
from django_events.log.ends import SQL as ENDS_SQL
from django_events.models import Position
from django_events.statements import log_table
from django_events.syncing import sync
from django_events.workers.due_partitions import DuePartitions
from tests.plans.test_plans import explain, scans
from tests.support.fix_topics import transfer_all

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.few(1)]


@pytest.fixture
def serving(make_topic, request):
    """A partitioned consumer of a log of 20 segments, and what the workers know of it."""
    topic = make_topic("long", partitions=4, segment_size=2_000)
    declared = consumer(topic, name="reader", types=["wanted"])(lambda event: None)
    declarations_before = list(declarations.consumers)
    sync("default")
    for start in range(0, 40_000, 10_000):
        publish_many(topic, [Draft(value=start + i, key=str(i % 500), type="wanted") for i in range(10_000)])
    transfer_all()
    request.addfinalizer(lambda: declarations.consumers.discard(declared))
    assert declared in declarations_before
    [subscription] = subscriptions("default", [declared])
    return subscription


@pytest.fixture(params=["fresh statistics", "no statistics"])
def statistics(request, serving):
    if request.param == "fresh statistics":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE django_events_event")
    return request.param


def segments_of(plan, serving: Subscription) -> set[int]:
    """The first ids of the segments that a plan reads, all of them by index."""
    log = {(how, table) for how, table in scans(plan) if table.startswith(serving.log)}
    assert all("Index" in how or how == "Bitmap Heap Scan" for how, _ in log), log
    return {int(table.rsplit("_", 1)[1]) for _, table in log}


@pytest.mark.slow
@pytest.mark.requirement("D1")
def test_a_batch_is_read_from_the_segments_between_its_bounds(serving, statistics):
    plan = explain(
        sql.shared.next_events.on(
            log=serving.log,
            events=sql.shared.in_partition.on(partition=2),
            match=serving.match,
            after=20_500,
            upper=25_500,
            most=100,
        )
    )

    assert segments_of(plan, serving) == {20_001, 22_001, 24_001}


@pytest.mark.slow
@pytest.mark.requirement("D1")
def test_the_end_of_what_can_be_read_is_found_behind_the_position(serving, statistics):
    plan = explain(sql.shared.last_readable.on(log=serving.log, topic_id=serving.topic_id, after=36_500))

    assert min(segments_of(plan, serving)) == 36_001


@pytest.mark.slow
@pytest.mark.requirement("D1")
def test_looking_for_something_to_do_opens_no_segment_below_the_lowest_position(serving, statistics):
    Position.objects.filter(consumer_id=serving.consumer_id).update(position=36_500)
    due_partitions = DuePartitions("default", [serving])
    assert due_partitions.look(period=60)
    plan = explain(due_partitions._statement(serving))

    assert min(segments_of(plan, serving)) == 36_001


@pytest.mark.requirement("X4")
def test_settling_finds_the_row_where_it_was(serving):
    position_id, partition = serving.positions[0]
    lease = claim(serving, position_id, partition, holder="a test")
    assert lease is not None
    entry = {
        "position": 5,
        "number": 1,
        "careful_until": 0,
        "attempted": None,
        "attempts": 0,
        "pause": None,
        "failing_since": None,
        "stopped": False,
        "error": "",
        "handled": 1,
        "failed": 0,
        "ignored": 0,
        "dead_lettered": 0,
        "release": True,
        "lock": True,
    }
    known = {"position_id": position_id, "token": lease.token}

    with sql.batch("default"):  # the table is small here, and would rather be read as a whole
        by_address = scans(explain(PARTITIONS_SQL.settle, row_address=lease.row_address, **known, **entry))
        by_key = scans(explain(PARTITIONS_SQL.settle, row_address=None, **known, **entry))

    assert by_address == {("Tid Scan", "django_events_position")}
    assert by_key == {("Index Scan", "django_events_position")}


@pytest.mark.requirement("N12", "S13")
def test_the_numbers_of_the_last_events_are_read_by_index(serving, statistics):
    plan = explain(ENDS_SQL.numbers.on(log=log_table(serving.topic_id), partitions=4, since=0))

    assert all("partition" in node["Index Name"] for node in plan if "Index Name" in node)
