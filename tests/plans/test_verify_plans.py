"""The plans of what `events verify` asks in its snapshot: each row is looked at once, however large a hand is."""

from datetime import timedelta

import pytest
from django.db import connection

from django_events import models, sql
from django_events.matching import condition
from django_events.observing.verifying.dead_letters import SQL as DEAD_LETTERS_SQL
from django_events.observing.verifying.deliveries import SQL as DELIVERIES_SQL
from django_events.observing.verifying.logs import SQL as LOGS_SQL
from django_events.observing.verifying.offenders import SHOWN
from django_events.observing.verifying.rests import SQL as RESTS_SQL
from django_events.statements import log_table
from tests.plans.test_delivery_plans import DELIVERIES, make_deliveries
from tests.plans.test_plans import explain, nodes, scans

pytestmark = [pytest.mark.django_db, pytest.mark.requirement("X3"), pytest.mark.few(1)]

IN_HAND = 20_000
LEASES = "django_events_deliverylease"


@pytest.fixture
def topic(make_topic):
    return models.Topic.objects.get(name=str(make_topic("things")))


@pytest.fixture
def consumer_id(topic):
    consumer_id = make_deliveries(topic, IN_HAND + 1_000, leased=IN_HAND)
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {DELIVERIES} SET token = 1, visible_at = NULL WHERE event_id <= %s", [IN_HAND])
        cursor.execute(
            f"INSERT INTO {LEASES} (token, consumer_id, leased_until, holder, event_ids)"
            " SELECT 1, %s, now(), 'a test', jsonb_agg(n) FROM generate_series(1, %s) AS n",
            [consumer_id, IN_HAND],
        )
    return consumer_id


@pytest.fixture(params=["fresh statistics", "no statistics", "statistics of others"])
def statistics(request, topic, consumer_id):
    """The last: the planner knows the table, and that this consumer has nothing in it."""
    with connection.cursor() as cursor:
        if request.param == "fresh statistics":
            cursor.execute(f"ANALYZE {DELIVERIES}")
            cursor.execute(f"ANALYZE {LEASES}")
        elif request.param == "statistics of others":
            cursor.execute(f"UPDATE {DELIVERIES} SET consumer_id = -consumer_id")
            cursor.execute(f"ANALYZE {DELIVERIES}")
            cursor.execute(f"UPDATE {DELIVERIES} SET consumer_id = -consumer_id")
    return request.param


def test_a_large_hand_is_unfolded_once(topic, statistics):
    plan = explain(DELIVERIES_SQL.verify_deliveries, topic_id=topic.pk, last_id=IN_HAND + 1_000, id_floor=0, most=SHOWN)

    [join] = [node for node in plan if node.get("Join Type") == "Full"]
    assert join["Node Type"] in ("Hash Join", "Merge Join")
    [unfolding] = [node for node in plan if node["Node Type"] == "Function Scan"]
    assert unfolding in nodes(join)
    sides = [node["Plans"] for node in plan if node["Node Type"] == "Nested Loop"]
    loops = [(outer, inner) for outer, inner in sides if inner["Node Type"] != "Materialize"]  # that is done once
    assert not [inner for _, inner in loops if join in nodes(inner)]
    # For each delivery, or event that a hand names, a delivery is looked up, and never found by walking over all of
    # them; they may be walked over once for each consumer.
    rows = [inner for outer, inner in loops if unfolding in nodes(outer) or DELIVERIES in tables(outer)]
    assert not [
        node
        for inner in rows
        for node in nodes(inner)
        if node["Node Type"] == "Seq Scan" and node["Relation Name"] == DELIVERIES
    ]


def tables(plan):
    return {node.get("Relation Name") for node in nodes(plan)}


@pytest.mark.parametrize("behind", [0, IN_HAND // 2])
def test_keys_are_compared_by_ranges(topic, consumer_id, statistics, behind):
    """No delivery before the range is read, and of the log only the segments in it."""
    with sql.batch("default"):
        ahead = DELIVERIES_SQL.next_deliveries.on(
            consumer_id=consumer_id, after=behind, last_id=IN_HAND * 2, most=5_000
        )
        plans = [explain(ahead)]
        comparing = DELIVERIES_SQL.verify_keys.on(
            log=log_table(topic.pk), topic_id=topic.pk, consumer_id=consumer_id, after=behind, upper=behind + 5_000
        )
        plans.append(explain(comparing, erased="^erased", most=SHOWN))

    for plan in plans:
        assert {how for how, table in scans(plan) if table == DELIVERIES} <= {"Index Scan", "Index Only Scan"}
        conditions = [node["Index Cond"] for node in plan if node.get("Relation Name") == DELIVERIES]
        assert all("event_id" in condition for condition in conditions), conditions
    logs = {(how, table) for how, table in scans(plans[1]) if table.startswith(log_table(topic.pk))}
    assert [how for how, _ in logs] == ["Index Scan"], logs


def test_what_a_queue_never_got_is_looked_for_by_ranges(topic, consumer_id, statistics):
    """Its history and its deliveries are read within the range, however long both are."""
    with sql.batch("default"), connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO django_events_pastdelivery (consumer_id, event_id, received_at, first_at, last_at,"
            " processed_at, attempts, delivered, outcome, worker)"
            " SELECT %s, n, now(), now(), now(), now(), 1, 1, 'handled', 'w' FROM generate_series(1, 20000) AS n",
            [consumer_id],
        )
        looking = DELIVERIES_SQL.verify_absent.on(
            log=log_table(topic.pk),
            topic_id=topic.pk,
            consumer_id=consumer_id,
            after=5_000,
            upper=10_000,
            match=condition(models.Consumer(types=["a", "b.*"])),
        )
        plan = explain(looking, most=SHOWN)

    for table in (DELIVERIES, "django_events_pastdelivery", "django_events_deadletter"):
        reading = [node for node in plan if node.get("Relation Name") == table]
        assert {node["Node Type"] for node in reading} <= {"Index Scan", "Index Only Scan"}
        assert reading and all("event_id" in node["Index Cond"] for node in reading), reading
    logs = {(how, table) for how, table in scans(plan) if table.startswith(log_table(topic.pk))}
    assert {how for how, _ in logs} == {"Index Scan"}, logs


def test_copies_are_compared_by_ranges(topic, consumer_id):
    with sql.batch("default"):
        ahead = DEAD_LETTERS_SQL.next_dead_letters.on(consumer_id=consumer_id, after=10, last_id=100, most=5)
        comparing = DEAD_LETTERS_SQL.verify_copies.on(
            log=log_table(topic.pk), topic_id=topic.pk, consumer_id=consumer_id, after=10, upper=100
        )
        plans = [explain(ahead), explain(comparing, erased="^erased", most=SHOWN)]
    for plan in plans:
        [reading] = [node for node in plan if node.get("Relation Name") == "django_events_deadletter"]
        assert "event_id" in reading["Index Cond"]


def test_rests_and_hands_are_found_by_consumers_and_times(topic, consumer_id, statistics):
    day = timedelta(days=1)
    with sql.batch("default"):
        rests = explain(
            RESTS_SQL.verify_rests, topic_id=topic.pk, lease=day, hold=day, claim=day, pause=day, most=SHOWN
        )
        buffer = explain(LOGS_SQL.verify_buffer, topic_id=topic.pk, partitions=1, most=SHOWN)
    [reading] = [node for node in rests if node.get("Relation Name") == DELIVERIES]
    assert reading["Index Name"] in ("django_events_delivery_visible", "django_events_delivery_pkey")
    if statistics == "fresh statistics":
        assert reading["Index Name"] == "django_events_delivery_visible", "what waits for nothing is not read"
    assert {how for how, _ in scans(buffer)} <= {"Index Scan", "Index Only Scan"}
