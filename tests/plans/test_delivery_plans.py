"""The plans of the statements on deliveries: by index, whatever the planner thinks of the table."""

from datetime import timedelta

import pytest
from django.db import connection, transaction

from django_events import models, sql
from django_events.consuming.deliveries import FOR_CLAIMS
from tests.plans.test_plans import explain, scans

pytestmark = pytest.mark.django_db

MANY = 60_000
DELIVERIES = "django_events_delivery"


@pytest.fixture
def consumer_id(make_topic):
    """A consumer with many deliveries: a third of them in hands, some that wait, and one key that has most of them."""
    topic = models.Topic.objects.get(name=str(make_topic("things")))
    row = models.Consumer.objects.create(name="queue", topic=topic, mode="queue", partitioned=False, live=True)
    row.positions.create(partition=models.Position.ALL)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {DELIVERIES} (consumer_id, event_id, key, received_at, token, visible_at)"
            " SELECT %s, n, CASE WHEN n %% 10 = 0 THEN 'key ' || n %% 1000 ELSE 'hot' END, now(),"
            " CASE WHEN n <= %s THEN n %% 100 + 1 END, CASE WHEN n > %s AND n %% 50 = 0 THEN now() END"
            " FROM generate_series(1, %s) AS n",
            [row.pk, MANY // 3, MANY // 3, MANY],
        )
    return row.pk


@pytest.fixture(params=["fresh statistics", "no statistics"])
def statistics(request, consumer_id):
    if request.param == "fresh statistics":
        with connection.cursor() as cursor:
            cursor.execute(f"ANALYZE {DELIVERIES}")
    return request.param


def explained(name, **parameters):
    with transaction.atomic():
        sql.fetch_each("default", sql.locally(FOR_CLAIMS))
        return explain(sql.statement(name), **parameters)


def how_deliveries_are_read(plan):
    return {how for how, table in scans(plan) if table == DELIVERIES}


def conditions_on_deliveries(plan):
    return [node["Index Cond"] for node in plan if node.get("Relation Name") == DELIVERIES and "Index Cond" in node]


@pytest.mark.requirement("D1")
@pytest.mark.parametrize("name", ["claim_unordered", "claim_ordered"])
def test_a_claim_reads_deliveries_by_index(consumer_id, statistics, name):
    parameters = {
        "consumer_id": consumer_id,
        "token": 7,
        "lease": timedelta(seconds=30),
        "holder": "a test",
        "after": MANY // 3,
        "most": 100,
        "hurry": True,
    }
    if name == "claim_ordered":
        parameters["window"] = 200
    plan = explained(name, **parameters)

    assert how_deliveries_are_read(plan) <= {"Index Scan", "Index Only Scan"}
    # Behind a place, by their ids, or by the time that they wait for: never all that a consumer has.
    conditions = [
        node["Index Cond"] for node in plan if node.get("Relation Name") == DELIVERIES and "Index Cond" in node
    ]
    assert len(conditions) >= 3
    assert all("event_id" in condition or "visible_at" in condition for condition in conditions), conditions


@pytest.mark.requirement("D1")
def test_settling_reads_deliveries_by_their_keys(consumer_id, statistics):
    plan = explained(
        "settle_deliveries",
        consumer_id=consumer_id,
        token=7,
        done=list(range(1, 101)),
        failed=101,
        attempts=1,
        pause=timedelta(seconds=1),
        error="",
        released=[102, 103],
        ends=False,
        hold=True,
    )

    assert how_deliveries_are_read(plan) == {"Index Scan"}
    conditions = [
        node["Index Cond"] for node in plan if node.get("Relation Name") == DELIVERIES and "Index Cond" in node
    ]
    assert all("event_id" in condition for condition in conditions), conditions


@pytest.mark.requirement("D1")
def test_a_takeover_reads_deliveries_by_their_keys(consumer_id, statistics):
    plan = explained("take_over", consumer_id=consumer_id, token=7, lease=timedelta(seconds=30), holder="a test")

    assert how_deliveries_are_read(plan) == {"Index Scan"}


def test_moving_up_reads_one_delivery(consumer_id, statistics):
    plan = explained("move_up", consumer_id=consumer_id)

    assert how_deliveries_are_read(plan) <= {"Index Scan", "Index Only Scan"}
