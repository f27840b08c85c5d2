"""The plans of folding: only the segments of the range are read, and a live event touches a few rows of the table."""

import json
from datetime import timedelta

import pytest
from django.db import connection

from django_events import Draft, publish_many
from django_events.deriving.rolling_up import FILTERLESS, fold_statement
from django_events.models import Topic
from tests.plans.test_plans import explain, nodes, scans
from tests.support.fix_rollups import row_of, table_of
from tests.support.fix_topics import transfer_all

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("H3"), pytest.mark.few(1)]

GROUPS = 10_000


@pytest.fixture(params=["fresh statistics", "no statistics"])
def folding(request, make_topic, make_rollup):
    """A roll-up that knows 10,000 groups in 20 buckets, and a log of ten segments."""
    topic = make_topic("long", segment_size=1_000)
    rollup = make_rollup(topic, every=timedelta(hours=1), by={"store": "$.store"}, sums={"total": "$.n"})
    publish_many(topic, [Draft(value={"store": f"s{n % GROUPS}", "n": n}) for n in range(GROUPS)])
    transfer_all()
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table_of(rollup)} (bucket, store, count, skipped, total)"
            " SELECT now() - interval '1 hour' * hour, 's' || n, 1, 0, n"
            f" FROM generate_series(1, {GROUPS}) AS n, generate_series(1, 20) AS hour"
            f" UNION ALL SELECT '-infinity', 's' || n, 0, 0, NULL FROM generate_series(1, {GROUPS}) AS n"
        )
        if request.param == "fresh statistics":
            cursor.execute(f"ANALYZE {table_of(rollup)}")
            cursor.execute("ANALYZE django_events_event")
    return rollup


def statement(rollup, after, upper):
    topic_id = Topic.objects.get(name="long").pk
    table, most = table_of(rollup), row_of(rollup).most_groups
    return fold_statement(rollup, table, topic_id, FILTERLESS, after=after, upper=upper, most_groups=most)


@pytest.mark.slow
def test_a_range_is_read_from_its_segments(folding):
    tables = {table for _, table in scans(explain(statement(folding, 2_500, 4_500)))}
    log = {table for table in tables if table.startswith("django_events_event_")}
    assert {int(table.rsplit("_", 1)[1]) for table in log} == {2_001, 3_001, 4_001}


@pytest.mark.slow
def test_a_live_event_looks_its_group_up_by_the_index(folding):
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (ANALYZE, FORMAT JSON) " + statement(folding, 5_000, 5_001).text)
        [[found]] = cursor.fetchall()
    plan = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    assert all("Seq" not in how for how, table in scans(nodes(plan)) if table.startswith("django_events_rollup"))
    assert rows_read(plan) < 50


def rows_read(node):
    """How many rows of the table were read, that are no result of another node."""
    own = node.get("Relation Name", "").startswith("django_events_rollup") and "Scan" in node["Node Type"]
    read = (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"] if own else 0
    return read + sum(map(rows_read, node.get("Plans", ())))
