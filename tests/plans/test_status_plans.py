"""Looking after a site is cheap: by index, bounded, and without reading what is behind."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from django_events import models, sql
from django_events.log import inventory
from django_events.log.inventory import SQL as INVENTORY_SQL
from django_events.models import Consumer, DeadLetter, Position, Sample, Topic
from django_events.models.functions import ClockTimestamp
from django_events.observing import lag, samples, state
from django_events.observing.lag import SQL as LAG_SQL
from django_events.observing.samples import SQL as SAMPLES_SQL
from django_events.statements import log_table
from tests.plans.test_plans import explain, large, scans, statistics

__all__ = ["large", "statistics"]  # fixtures

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.few(1)]

CONSUMERS = 200


@pytest.fixture
def crowd(large: int) -> Iterator[int]:
    """Many consumers of a long log, one of which gave up on very many events; returns the topic's id."""
    topic = Topic.objects.get(pk=large)
    rows = Consumer.objects.bulk_create(Consumer(name=f"reader-{i}", topic=topic) for i in range(CONSUMERS))
    Position.objects.bulk_create(Position(consumer=row, partition=lane) for row in rows for lane in range(4))
    now = {"published_at": ClockTimestamp(), "logged_at": ClockTimestamp()}
    DeadLetter.objects.create(
        consumer=rows[0], event_id=1, partition=0, number=1, metadata={}, attempts=1, error="x" * 200, **now
    )
    same = ", ".join(
        field.column for field in DeadLetter._meta.concrete_fields if field.name not in ("id", "event_id", "number")
    )
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO django_events_deadletter (event_id, number, {same})"
            f" SELECT n, n, {same} FROM django_events_deadletter, generate_series(2, 20000) AS n"
        )
        for table in ("consumer", "position", "deadletter"):
            cursor.execute(f"ANALYZE django_events_{table}")
    yield large
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_events_deadletter")  # Consumer.delete() would look at each in Python
    Consumer.objects.filter(pk__in=[row.pk for row in rows]).delete()


def log_scans(plan: list[dict[str, Any]]) -> set[str]:
    return {how for how, table in scans(plan) if table.startswith("django_events_event")}


@pytest.mark.slow
@pytest.mark.requirement("S13")
def test_what_waits_is_counted_by_the_index_of_the_buffer_up_to_a_bound(large: int, statistics: str) -> None:
    with sql.batch("default"):
        plan = explain(INVENTORY_SQL.waiting, most=10_000)

    buffer = [node for node in plan if node.get("Relation Name") == "django_events_bufferedevent"]
    assert len(buffer) == 2  # the oldest, and as many as are counted
    assert all("Index" in node["Node Type"] and "topic_id" in node["Index Cond"] for node in buffer)
    limited = [node["Plans"][0] for node in plan if node["Node Type"] == "Limit"]
    assert all(node in limited for node in buffer)


@pytest.mark.slow
@pytest.mark.requirement("S13")
def test_the_buffer_as_a_whole_is_counted_by_its_index_up_to_a_bound(large: int, statistics: str) -> None:
    with sql.batch("default"):
        plan = explain(INVENTORY_SQL.buffered, most=10_000)

    buffer = [node for node in plan if node.get("Relation Name") == "django_events_bufferedevent"]
    assert len(buffer) == 2  # the oldest of each topic, and as many as are counted
    limited = [node["Plans"][0] for node in plan if node["Node Type"] == "Limit"]
    assert all("Index" in node["Node Type"] and node in limited for node in buffer)


@pytest.mark.slow
@pytest.mark.requirement("S13")
def test_the_ends_of_logs_are_read_by_index(large: int) -> None:
    log = log_table(large)
    for statement in (
        LAG_SQL.end_of_log.on(topic_id=large, log=log),
        INVENTORY_SQL.extent.on(topic_id=large, log=log),
        sql.shared.ends_of_partitions.on(topic_id=large, partitions=4, log=log),
    ):
        plan = explain(statement)

        assert {how for how in log_scans(plan) if "Index" not in how} <= {"Seq Scan"}, statement.name
        empty = {table for how, table in scans(plan) if how == "Seq Scan" and table.startswith(log)}
        assert all(int(table.rsplit("_", 1)[1]) > 40_000 for table in empty), statement.name
        assert any(node["Node Type"] == "Limit" for node in plan), statement.name


@pytest.mark.slow
@pytest.mark.requirement("S13")
def test_consumers_are_looked_at_without_their_events(crowd: int) -> None:
    ends = {"topic_ids": [crowd], "partitions": [0], "ends": [10_000]}
    parts = {"partitions": LAG_SQL.partitions, "state": sql.shared.state_of_position}
    counted = {"consumer_ids": None, "most_pending": 1_000, **ends}
    standings = explain(LAG_SQL.standings.on(**parts), most=1_000, **counted)
    progress = explain(LAG_SQL.progress.on(**parts), **counted)

    assert log_scans(standings) == log_scans(progress) == set()
    [letters] = [node for node in standings if node.get("Relation Name") == "django_events_deadletter"]
    assert "Index" in letters["Node Type"]
    assert "consumer_id" in letters["Index Cond"]


@pytest.mark.slow
@pytest.mark.requirement("S13")
def test_the_age_of_what_is_behind_is_one_look_by_index_per_partition(crowd: int) -> None:
    reader = Consumer.objects.get(name="reader-1")
    plan = explain(
        LAG_SQL.oldest_unpassed.on(
            consumer_ids=sql.literal([reader.pk]),
            topic_id=crowd,
            lowest=0,
            highest=3,
            log=log_table(crowd),
            events=sql.shared.in_its_partition,
        )
    )

    assert any(node["Node Type"] == "Limit" for node in plan)
    filled = [
        node
        for node in plan
        if str(node.get("Relation Name")).startswith(log_table(crowd))
        and int(node["Relation Name"].rsplit("_", 1)[1]) < 40_000
    ]
    assert filled
    assert all("Index" in node["Node Type"] for node in filled)


@pytest.mark.slow
@pytest.mark.requirement("N12")
def test_the_state_for_metrics_is_a_bounded_number_of_statements(
    crowd: int, django_assert_max_num_queries: Any
) -> None:
    with django_assert_max_num_queries(70):  # whatever the number of consumers
        samples = state.read("default")

    behind = [one for one in samples if one.metric is state.BEHIND and one.labels[1].startswith("reader-")]
    assert len(behind) == CONSUMERS
    assert all(one.value > 0 for one in behind)


@pytest.mark.slow
@pytest.mark.requirement("S13")
def test_looking_is_a_handful_of_statements_however_many_consumers_there_are(
    crowd: int, django_assert_max_num_queries: Any
) -> None:
    with django_assert_max_num_queries(6):  # three, and a transaction with its settings
        standings = lag.standings("default")
    with django_assert_max_num_queries(6):
        progress = lag.progress("default")
    with django_assert_max_num_queries(4):  # one, and the settings of its transaction
        inventory.waiting("default")
    with django_assert_max_num_queries(2):
        inventory.logs("default")

    of_crowd = [one for one in standings if one.consumer.startswith("reader-")]
    assert len(of_crowd) == CONSUMERS
    assert {one.lag for one in of_crowd} == {40_000}
    assert (of_crowd[0].dead_letters, of_crowd[0].more_dead_letters) == (1_000, True)
    assert sum(one.lag for one in progress if one.consumer == "reader-7") == 40_000


@pytest.mark.slow
@pytest.mark.requirement("H5")
def test_a_read_between_bounds_opens_only_the_segments_between_them(large: int) -> None:
    of_topic = sql.shared.in_topic.on(topic_id=large)
    bounds = {"after": sql.literal(11_000), "upper": sql.literal(12_500), "most": sql.literal(100)}
    plan = explain(sql.shared.next_events.on(log=log_table(large), events=of_topic, match=sql.all_of([]), **bounds))

    opened = {table for _, table in scans(plan)}
    assert opened == {f"{log_table(large)}_{first}" for first in (10_001, 12_001)}


@pytest.mark.slow
def test_a_floor_stands_for_segments_that_were_dropped(large: int) -> None:
    topic = Topic.objects.select_related("head").get(pk=large)
    numbers = {lane: end for (_, lane), end in lag.ends_of("default", [topic]).items()}
    assert numbers[models.Position.ALL] == 40_000
    assert sum(number for lane, number in numbers.items() if lane >= 0) == 40_000

    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {log_table(large)}")
    topic.head.id_floor, topic.head.number_floors = 40_000, [numbers[lane] for lane in range(4)]
    assert {lane: end for (_, lane), end in lag.ends_of("default", [topic]).items()} == numbers
    topic.head.save()
    [log] = [log for log in inventory.logs("default") if log.topic.pk == large]
    assert (log.first_id, log.last_id, log.events) == (40_001, 40_000, 0)


def test_very_many_topics_are_asked_in_parts(make_topic: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(5):
        make_topic(f"topic-{i}", partitions=1 + i % 2, retention=timedelta(days=1))
    monkeypatch.setattr(lag, "TOPICS_AT_ONCE", 2)
    monkeypatch.setattr(inventory, "TOPICS_AT_ONCE", 2)

    topics = list(Topic.objects.select_related("head"))
    assert {topic_id for topic_id, _ in lag.ends_of("default", topics)} == {topic.pk for topic in topics}
    assert [log.topic.name for log in inventory.logs("default")] == sorted(topic.name for topic in topics)


@pytest.fixture
def long_kept() -> Iterator[None]:
    """Samples of two weeks."""
    now = timezone.now().replace(second=0, microsecond=0)
    columns = {"published": 0, "handled": 0, "lag": 0, "buffered": 0}
    Sample.objects.bulk_create(
        Sample(at=at, taken_at=at, **columns) for at in (now - timedelta(minutes=i) for i in range(20_000))
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE django_events_sample")
    yield
    Sample.objects.all().delete()


@pytest.mark.slow
@pytest.mark.requirement("S13")
def test_charts_read_a_range_of_the_primary_key(long_kept: None) -> None:
    period = {"period": timedelta(hours=6), "step": timedelta(minutes=2)}
    for plan in (
        explain(SAMPLES_SQL.totals, **period),
        explain(SAMPLES_SQL.samples_of_consumer, consumer_id=7, **period),
        explain(SAMPLES_SQL.latest_sample, age=timedelta(seconds=30)),
    ):
        [(how, table)] = scans(plan)
        assert (how, table) == ("Index Scan", "django_events_sample")
        [scan] = [node for node in plan if node.get("Relation Name") == table]
        assert "at " in scan["Index Cond"]


@pytest.mark.slow
@pytest.mark.requirement("S13")
def test_a_sample_is_looked_for_stored_and_forgotten_by_the_primary_key(long_kept: None) -> None:
    with sql.batch("default"):
        looked = explain(SAMPLES_SQL.sampled)
        forgotten = explain(SAMPLES_SQL.forget_samples, age=timedelta(days=2), limit=1_000)
    found = {how for plan in (looked, forgotten) for how, table in scans(plan) if table == "django_events_sample"}
    assert found <= {"Index Scan", "Index Only Scan"}


@pytest.mark.slow
def test_taking_a_sample_is_a_handful_of_statements_however_many_consumers_there_are(
    crowd: int, django_assert_max_num_queries: Any
) -> None:
    # Eleven, and transactions with their settings, of which two keep no locks.
    with django_assert_max_num_queries(31):
        assert samples.take("default")
    Sample.objects.all().delete()
