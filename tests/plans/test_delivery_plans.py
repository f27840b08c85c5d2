"""The plans of the statements on deliveries: by index, whatever the planner thinks of the table."""

import json
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.utils import timezone

from django_events import models, sql
from django_events.consuming.programs.handed_out import SQL as HANDED_OUT_SQL
from django_events.consuming.queues.claimed_deliveries import SQL as CLAIMED_DELIVERIES_SQL
from django_events.consuming.queues.deliveries import SQL as DELIVERIES_SQL
from django_events.consuming.queues.filling import SQL as FILLING_SQL
from django_events.maintaining.pruning import SQL as PRUNING_SQL
from django_events.observing.problems.serving import SQL as SERVING_SQL
from django_events.observing.queues import SQL as QUEUES_SQL
from django_events.observing.workers import SQL as WORKERS_SQL
from django_events.workers.partition_states import SQL as PARTITION_STATES_SQL
from tests.plans.test_plans import explain, nodes, scans

pytestmark = [pytest.mark.django_db, pytest.mark.few(1)]

MANY = 60_000
VERY_MANY = 1_000_000
DELIVERIES = "django_events_delivery"
PAST = "django_events_pastdelivery"
BY_ID = "event_id = (held.id)::bigint"
SETTLE = CLAIMED_DELIVERIES_SQL.settle_deliveries
IN_HAND = {"event_of_position": sql.shared.event_of_position, "first_in_hand": sql.shared.first_in_hand}


def make_deliveries(topic, count, *, leased=0):
    """A queue consumer whose first deliveries are in hands; of the others some wait, and one key has most of them."""
    row = models.Consumer.objects.create(
        name=f"queue{leased}", topic=topic, mode="queue", ordered=True, partitioned=False, live=True
    )
    row.positions.create(partition=models.Position.ALL)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {DELIVERIES} (consumer_id, event_id, key, received_at, first_at, last_at, token, visible_at)"
            " SELECT %s, n, CASE WHEN n %% 10 = 0 THEN 'key ' || n %% 1000 ELSE 'hot' END, now(), now(), now(),"
            " CASE WHEN n <= %s THEN n / 100 + 1 END, CASE WHEN n > %s AND n %% 50 = 0 THEN now() END"
            " FROM generate_series(1, %s) AS n",
            [row.pk, leased, leased, count],
        )
    return row.pk


@pytest.fixture
def topic(make_topic):
    return models.Topic.objects.get(name=str(make_topic("things")))


@pytest.fixture
def consumer_id(topic):
    """In a table as it is made: plans go by the heights of its indexes, which other tests' deliveries leave behind."""
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {DELIVERIES}")
    return make_deliveries(topic, MANY, leased=MANY // 3)


@pytest.fixture(params=["fresh statistics", "no statistics", "statistics of an empty table"])
def statistics(request, consumer_id):
    with connection.cursor() as cursor:
        if request.param == "fresh statistics":
            cursor.execute(f"ANALYZE {DELIVERIES}")
        elif request.param == "statistics of an empty table":  # as vacuum leaves them for a queue that is empty now
            cursor.execute(
                "UPDATE pg_class SET reltuples = 0, relpages = 1000, relallvisible = 0 WHERE oid = %s::regclass",
                [DELIVERIES],
            )
    return request.param


def of_claim(name, consumer_id, *, after=0):
    parameters = {
        "consumer_id": consumer_id,
        "revision": 0,
        "token": 2**60,
        "lease": timedelta(seconds=30),
        "holder": "a test",
        "after": after,
        "most": 100,
        "async_commit": True,
        "since": None,
        "until": None,
    }
    return {**parameters, "window": 200} if name == "claim_ordered" else parameters


TAKE_OVER = DELIVERIES_SQL.take_over.on(known=DELIVERIES_SQL.known_revision)


def of_settling(consumer_id, *, done, token=7):
    return {
        "consumer_id": consumer_id,
        "token": token,
        "done": done,
        "passed": None,
        "outcome": None,
        "history": True,
        "failed": done[-1] + 1,
        "attempts": 1,
        "pause": timedelta(seconds=1),
        "error": "",
        "released": [done[-1] + 2, done[-1] + 3],
        "ends": False,
        "lock": True,
    }


def of_taking_over(consumer_id):
    return {
        "consumer_id": consumer_id,
        "revision": 0,
        "token": 2**60,
        "lease": timedelta(seconds=30),
        "holder": "a test",
        "ours": [],
    }


def claim_statement(name):
    return getattr(DELIVERIES_SQL, name).on(
        open=DELIVERIES_SQL.open_to_claims,
        known=DELIVERIES_SQL.known_revision,
        waited=DELIVERIES_SQL.waited.on(received=DELIVERIES_SQL.received_in_window),
        received=DELIVERIES_SQL.received_in_window,
        leasing=DELIVERIES_SQL.lease_picked,
    )


def explained(statement, **parameters):
    with transaction.atomic():
        sql.fetch_each("default", sql.locally(sql.BY_INDEX))
        sql.fetch("default", DELIVERIES_SQL.enter, consumer_id=parameters["consumer_id"])
        return explain(statement, **parameters)


def how_deliveries_are_read(plan):
    return {how for how, table in scans(plan) if table == DELIVERIES}


def conditions_on_deliveries(plan):
    return [node["Index Cond"] for node in plan if node.get("Relation Name") == DELIVERIES and "Index Cond" in node]


@pytest.mark.requirement("D1")
@pytest.mark.parametrize("name", ["claim_unordered", "claim_ordered"])
def test_a_claim_reads_deliveries_by_index(consumer_id, statistics, name):
    plan = explained(claim_statement(name), **of_claim(name, consumer_id, after=MANY // 3))

    assert how_deliveries_are_read(plan) <= {"Index Scan", "Index Only Scan"}
    # Behind a place, by their ids, or by the time that they wait for: never all that a consumer has.
    conditions = conditions_on_deliveries(plan)
    assert len(conditions) >= 3
    assert not [node for node in plan if node.get("Join Type") == "Semi"], "keys times keys"
    assert all("event_id" in condition or "visible_at" in condition for condition in conditions), conditions


@pytest.mark.requirement("D4")
@pytest.mark.parametrize("name", ["claim_unordered", "claim_ordered"])
def test_a_claim_of_a_window_of_received_times_reads_deliveries_by_index(consumer_id, statistics, name):
    window = {"since": timezone.now() - timedelta(hours=8), "until": timezone.now()}
    plan = explained(claim_statement(name), **{**of_claim(name, consumer_id, after=MANY // 3), **window})

    assert how_deliveries_are_read(plan) <= {"Index Scan", "Index Only Scan"}
    conditions = conditions_on_deliveries(plan)
    assert len(conditions) >= 3
    assert all("event_id" in condition or "visible_at" in condition for condition in conditions), conditions


@pytest.mark.requirement("D1")
def test_settling_reads_deliveries_by_their_keys(consumer_id, statistics):
    plan = explained(
        SETTLE.on(told=CLAIMED_DELIVERIES_SQL.tell_nothing), **of_settling(consumer_id, done=list(range(1, 101)))
    )

    assert how_deliveries_are_read(plan) == {"Index Scan"}
    conditions = conditions_on_deliveries(plan)
    assert all("event_id" in condition for condition in conditions), conditions


@pytest.mark.requirement("D1")
def test_a_takeover_reads_deliveries_by_their_keys(consumer_id, statistics):
    plan = explained(TAKE_OVER, **of_taking_over(consumer_id))

    assert how_deliveries_are_read(plan) == {"Index Scan"}


def test_moving_up_reads_one_delivery(consumer_id, statistics):
    plan = explained(DELIVERIES_SQL.move_up, consumer_id=consumer_id, handled=1, failed=0, ignored=0, dead_lettered=0)

    assert how_deliveries_are_read(plan) <= {"Index Scan", "Index Only Scan"}


# Of a million


def rows_read(statement, **parameters):
    """How many rows of deliveries and their history a statement reads when it runs. What it does is undone."""
    with transaction.atomic():
        sql.fetch_each("default", sql.locally(sql.BY_INDEX))
        sql.fetch("default", DELIVERIES_SQL.enter, consumer_id=parameters.get("consumer_id", 0))
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON, TIMING OFF) {statement.text}", parameters)
            [[plan]] = cursor.fetchall()
        transaction.set_rollback(True)
    plan = nodes((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])
    return sum(
        int((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * node["Actual Loops"])
        for node in plan
        if node.get("Relation Name") in (DELIVERIES, PAST) and "Scan" in node["Node Type"]
    )


@pytest.fixture
def very_many(topic):
    """A consumer with a million that wait, one with a million in hands, and a history of a million."""
    waiting, leased = make_deliveries(topic, VERY_MANY), make_deliveries(topic, VERY_MANY, leased=VERY_MANY)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {PAST} (consumer_id, event_id, received_at, first_at, last_at, processed_at, attempts,"
            " delivered, outcome, worker)"
            " SELECT %s, n, now(), now(), now(), now() - make_interval(secs => n), 1, 1, 'handled', 'a test'"
            " FROM generate_series(1, %s) AS n",
            [waiting, VERY_MANY],
        )
        cursor.execute(
            "INSERT INTO django_events_deliverylease (token, consumer_id, leased_until, holder, event_ids)"
            " SELECT n / 100 + 1, %s, now() + CASE WHEN n < 100 THEN '-1 s' ELSE '1 h' END::interval, 'a test',"
            " jsonb_agg(n) FROM generate_series(1, %s) AS n GROUP BY 1, 2, 3",
            [leased, VERY_MANY],
        )
        cursor.execute(f"ANALYZE {DELIVERIES}, {PAST}, django_events_deliverylease")
    models.Consumer.objects.filter(pk=waiting).update(history=timedelta(days=1), max_pending=1_000)
    return waiting, leased


@pytest.mark.long
@pytest.mark.requirement("D1", "S11")
def test_of_a_million_that_wait_are_leased_or_kept_a_few_are_read(topic, very_many):
    waiting, leased = very_many
    ordered = claim_statement("claim_ordered")
    assert 0 < rows_read(ordered, **of_claim("claim_ordered", waiting)) < 2_000
    assert rows_read(ordered, **of_claim("claim_ordered", waiting, after=VERY_MANY // 2)) < 2_000
    assert rows_read(ordered, **of_claim("claim_ordered", leased)) <= 200  # a window of them
    settling = of_settling(leased, done=list(range(200, 300)), token=3)
    assert 0 < rows_read(SETTLE.on(told=CLAIMED_DELIVERIES_SQL.tell_outcomes), **settling) < 1_000
    assert 0 < rows_read(TAKE_OVER, **of_taking_over(leased)) < 1_000
    pending = FILLING_SQL.pending_deliveries
    assert rows_read(pending, consumer_id=waiting, most=1_000) <= 1_001
    prune = PRUNING_SQL.prune_history
    assert 0 < rows_read(prune, consumer_id=waiting, most=1_000) < 3_000
    redrive = PARTITION_STATES_SQL.due_redrive.on(condition=sql.shared.redrive_of_queue)
    look = PARTITION_STATES_SQL.due_queue.on(consumer_id=waiting, unclaimable=0, redrive=redrive)
    assert rows_read(look) < 2_000
    models.Consumer.objects.filter(pk=waiting).update(ordered=False)
    assert 0 < rows_read(claim_statement("claim_unordered"), **of_claim("claim_unordered", waiting)) < 2_000


@pytest.mark.requirement("S13")
def test_the_figures_of_a_queue_cost_the_same_however_much_waits(consumer_id, statistics):
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO django_events_deliverylease (token, consumer_id, leased_until, holder, event_ids)"
            f" SELECT d.token, d.consumer_id, now(), '', jsonb_agg(d.event_id) FROM {DELIVERIES} AS d"
            " WHERE d.token IS NOT NULL GROUP BY d.token, d.consumer_id"
        )
    with sql.by_index("default"):
        plan = explain(QUEUES_SQL.figures, consumer_ids=[consumer_id], most=1_000)

    looked_at = [node for node in plan if node.get("Relation Name") == DELIVERIES]
    assert len(looked_at) == 4  # the oldest, those in hand, those that wait for a time, those of dead letters
    for node in looked_at:
        assert "Index" in node["Node Type"], node
        assert "consumer_id" in node["Index Cond"], node
    assert [node for node in looked_at if BY_ID in node["Index Cond"]]
    limits = [node["Plan Rows"] for node in plan if node["Node Type"] == "Limit"]
    assert len(limits) == 4  # one for each that is in hand
    assert max(limits) <= 1_001


@pytest.mark.requirement("S2")
@pytest.mark.parametrize(
    ("statement", "parameters"),
    [
        (HANDED_OUT_SQL.deliveries_of_token, {"token": 7}),
        (WORKERS_SQL.leases.on(**IN_HAND), {"most": 100}),
        (SERVING_SQL.in_hand.on(**IN_HAND), {"age": timedelta(0)}),
    ],
    ids=lambda one: getattr(one, "name", ""),
)
def test_what_a_token_has_is_found_by_its_ids(consumer_id, statistics, statement, parameters):
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO django_events_deliverylease (token, consumer_id, leased_until, holder, event_ids)"
            f" SELECT d.token, d.consumer_id, now(), '', jsonb_agg(d.event_id) FROM {DELIVERIES} AS d"
            " WHERE d.token = 7 GROUP BY d.token, d.consumer_id"
        )
    plan = explain(statement, **{"most": 100, **parameters})

    [deliveries] = [node for node in plan if node.get("Relation Name") == DELIVERIES]
    assert BY_ID in deliveries["Index Cond"]
