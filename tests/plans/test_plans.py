"""The plans of the hot statements on large tables: by index, and only in the tables they are about."""

import json
from typing import Any

import pytest
from django.db import connection

from django_events import Draft, publish_many, sql
from django_events.log.ends import SQL as ENDS_SQL
from django_events.log.pending import SQL as PENDING_SQL
from django_events.log.transfer import SQL as TRANSFER_SQL
from django_events.models import Event, Topic
from django_events.observing.searching import SQL as SEARCH_SQL
from django_events.statements import as_text, log_table
from tests.support.fix_topics import transfer_all

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.few(1)]


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for child in plan.get("Plans", []) for node in nodes(child))]


def explain(statement: sql.Statement, **parameters: Any) -> list[dict[str, Any]]:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (FORMAT JSON) {statement.text}", parameters)
        [[plan]] = cursor.fetchall()
    return nodes((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])


def scans(plan: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """How each table is read."""
    return {
        (node["Node Type"], node["Relation Name"])
        for node in plan
        if "Relation Name" in node and "Scan" in node["Node Type"]
    }


@pytest.fixture
def large(make_topic) -> int:
    """A log of 20 segments and a buffer of 30,000 events among other topics; returns the topic's id."""
    make_topic("small")
    topic = make_topic("large", partitions=4, timeline=True, segment_size=2_000)
    for start in range(0, 40_000, 10_000):
        publish_many(topic, [Draft(value=start + i, key=str(i % 500)) for i in range(10_000)])
    transfer_all()
    publish_many(topic, [Draft(value=i, key=str(i % 500)) for i in range(30_000)])
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE django_events_event")
        cursor.execute("ANALYZE django_events_bufferedevent")
    return Topic.objects.get(name="large").pk


@pytest.fixture(params=["fresh statistics", "statistics of an empty buffer"])
def statistics(request, large) -> str:
    """What the planner believes of the buffer: the truth, or that it is empty."""
    if request.param != "fresh statistics":
        with connection.cursor() as cursor:
            cursor.execute("CREATE TEMPORARY TABLE aside AS SELECT * FROM django_events_bufferedevent")
            cursor.execute("DELETE FROM django_events_bufferedevent")
            cursor.execute("VACUUM ANALYZE django_events_bufferedevent")
            cursor.execute(
                "INSERT INTO django_events_bufferedevent (topic_id, type, key, value, metadata)"
                " SELECT topic_id, type, key, value, metadata FROM aside"
            )
            cursor.execute("DROP TABLE aside")
    return request.param


@pytest.mark.slow
@pytest.mark.requirement("D1")
def test_looking_for_pending_events_reads_the_index_of_the_buffer(large, statistics):
    with sql.batch("default"):
        plan = explain(
            PENDING_SQL.pending,
            topic_ids=[large],
            marks=[5],
            only=None,
            batch_size=5_000,
            scheduled_from="-infinity",
        )

    limited = [node["Plans"][0] for node in plan if node["Node Type"] == "Limit"]
    limited = [node for node in limited if node["Relation Name"] == "django_events_bufferedevent"]
    assert len(limited) == 2  # whether there is one, and a share of them
    for scan in limited:
        assert scan["Node Type"] in ("Index Only Scan", "Index Scan")
        assert "topic_id" in scan["Index Cond"]
        assert "id >" in scan["Index Cond"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["move", "move_unpartitioned"])
@pytest.mark.requirement("D1")
def test_moving_reads_a_range_of_the_buffer_by_its_index(large, statistics, name):
    with sql.batch("default"):
        plan = explain(
            getattr(TRANSFER_SQL, name).on(ranges=TRANSFER_SQL.ranges, told=TRANSFER_SQL.told),
            topic_ids=[large],
            marks=[5],
            events=[5_000],
            last_ids=[40_000],
            partitions=[4],
            logged_ats=[None],
            number_topic_ids=[large],
            number_partitions=[0],
            numbers=[10],
            channel="any",
            longest=100,
        )

    buffer = [node for node in plan if node.get("Relation Name") == "django_events_bufferedevent"]
    counted, deleted = sorted(
        (node for node in buffer if "Scan" in node["Node Type"]), key=lambda n: "ROW" in n["Index Cond"]
    )
    assert counted["Node Type"] in ("Index Scan", "Index Only Scan")
    assert "topic_id =" in counted["Index Cond"]
    assert "id >" in counted["Index Cond"]
    assert deleted["Node Type"] == "Index Scan"
    assert deleted["Index Cond"].count("ROW(topic_id, id)") == 2
    assert not any(
        "Hash" in node["Node Type"] or "Merge" in node["Node Type"] for node in plan if deleted in nodes(node)
    )


@pytest.mark.slow
@pytest.mark.requirement("D1")
def test_the_end_of_a_log_is_read_from_its_newest_segments(large):
    known = 39_990
    with sql.batch("default"):
        plan = explain(ENDS_SQL.last.on(log=log_table(large), topic_id=large, known=known))

    read = {table for _, table in scans(plan) if table.startswith("django_events_event")}
    assert f"{log_table(large)}_38001" in read
    assert all(int(table.rsplit("_", 1)[1]) >= 38_001 for table in read)
    assert all("Index" in how for how, table in scans(plan) if table.startswith("django_events_event"))


@pytest.mark.slow
@pytest.mark.requirement("D1")
def test_the_numbers_of_partitions_are_read_by_their_index(large):
    with sql.batch("default"):
        plan = explain(ENDS_SQL.numbers.on(log=log_table(large), partitions=4, since=39_000))

    indexes = {node["Index Name"] for node in plan if "Index Name" in node}
    assert indexes
    assert all("partition" in index for index in indexes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ask", "segments"),
    [
        (lambda: Event.objects.of("large").filter(id=12_345), 1),
        (lambda: Event.objects.since("large", 38_500)[:100], 1),
        (lambda: Event.objects.peek("large", limit=20), 20),
        (lambda: Event.objects.timeline("large", "17"), 20),
        (lambda: Event.objects.timeline("large", key_prefix="17"), 20),
    ],
    ids=["at", "since", "peek", "timeline", "prefix"],
)
@pytest.mark.requirement("D1")
def test_readers_open_the_segments_they_need_by_index(large, ask, segments):
    publish_many("small", [Draft(value=i) for i in range(100)])  # another topic has events too
    transfer_all()
    plan = nodes(json.loads(ask().explain(format="json"))[0]["Plan"])

    prefix = f"{log_table(large)}_"
    assert all(table.startswith(prefix) for _, table in scans(plan))
    filled = {(how, table) for how, table in scans(plan) if int(table.removeprefix(prefix)) < 40_000}
    assert len({table for _, table in filled}) == segments
    assert all("Index" in how or how == "Bitmap Heap Scan" for how, _ in filled)


@pytest.mark.slow
@pytest.mark.requirement("H1")
@pytest.mark.parametrize("chosen", [{"key": "17"}, {"key_prefix": "17"}], ids=["key", "prefix"])
def test_a_timeline_is_found_by_its_index_whatever_the_collation(large, chosen):
    plan = nodes(json.loads(Event.objects.timeline("large", **chosen).explain(format="json"))[0]["Plan"])

    conditions = [node["Index Cond"] for node in plan if "Index Cond" in node]
    assert len(conditions) >= 20
    assert all("key" in condition for condition in conditions)


@pytest.mark.slow
@pytest.mark.requirement("H4")
@pytest.mark.parametrize("key", [None, "17"])
def test_a_portion_of_a_search_opens_its_own_segments(large, key):
    plan = explain(
        SEARCH_SQL.containing.on(
            log=log_table(large),
            topic_id=large,
            lower=21_500,
            upper=22_500,
            value=as_text("e", "value", small=64),
            metadata=as_text("e", "metadata", small=64),
        ),
        type=None,
        key=key,
        key_prefix=None,
        partition=None,
        patterns=["%a%"],
        bytes=b"a",
        most=20,
    )

    read = {(how, table) for how, table in scans(plan) if table.startswith("django_events_event")}
    assert {table for _, table in read} == {f"{log_table(large)}_20001", f"{log_table(large)}_22001"}
    assert all("Index" in how or how == "Bitmap Heap Scan" for how, _ in read)


@pytest.mark.slow
@pytest.mark.requirement("D1")
def test_a_query_of_another_model_opens_the_segments_of_the_topic_only(large):
    publish_many("small", [Draft(value=i) for i in range(100)])
    transfer_all()
    asked = Topic.objects.filter(id__in=Event.objects.of("large").filter(id=12_345).values("topic_id"))
    plan = nodes(json.loads(asked.explain(format="json"))[0]["Plan"])

    log = {table for _, table in scans(plan) if table.startswith(log_table(large).rsplit("_", 1)[0])}
    assert log == {f"{log_table(large)}_12001"}
