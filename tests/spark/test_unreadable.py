"""Values that can't be made into text, as Spark reads them: each is without its value, and its neighbours are whole."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection

from django_events import Draft, models
from django_events.reading.dsn import Dsn
from django_events.spark.exporting.stream_export import for_kafka
from django_events.spark.reading.tables import TableReader
from tests.spark.conftest import move
from tests.support import worst_values

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("D4", "X1"), pytest.mark.quick]

LEFT_OUT = "It has numbers of more than 4,300 digits, or 900 decimals, or is nested more than 5,000 deep."
# What this server can't send: 4,000 arrays in each other are too many for the stack that the reader's session allows.
DEEP, SHALLOW = "(repeat('[', 4000) || repeat(']', 4000))::jsonb", "-c max_stack_depth=250kB"


def insert(topic: Any, *values: str, metadata: str = """'{"who": "ada"}'""") -> None:
    """By plain SQL, which nothing of ours can refuse."""
    with connection.cursor() as cursor:
        for value in values:
            cursor.execute(
                "INSERT INTO django_events_bufferedevent (topic_id, value, metadata) "
                f"SELECT id, {value}, {metadata} FROM django_events_topic WHERE name = %s",
                [str(topic)],
            )
    move()


def among_others(culprits: Any) -> list[str]:
    values = ["'0'::jsonb"]
    for place, culprit in enumerate(culprits, 1):
        values += [culprit, f"'{place}'::jsonb"]
    return values


@pytest.mark.slow
def test_each_reads_without_its_value_and_says_why(
    make_topic: Any, read: Callable[..., Any], spark: Any, dsn: str, tmp_path: Path
) -> None:
    topic = make_topic()
    insert(topic, *among_others(worst_values.EXPANDING.values()))
    insert(
        topic,
        "'9'::jsonb",
        metadata=f"jsonb_build_object('x', {worst_values.EXPANDING['13,000 arrays in each other']})",
    )

    def checked(rows: list[Any]) -> None:
        rows = sorted(rows, key=lambda row: row.offset)
        assert [row.offset for row in rows] == list(range(1, 11))
        assert [row.value for row in rows] == ["0", None, "1", None, "2", None, "3", None, "4", "9"]
        assert [json.loads(row.metadata) for row in rows] == [
            *[{"who": "ada"}, {"who": "ada", "unreadable": LEFT_OUT}] * 4,
            {"who": "ada"},
            {"unreadable": LEFT_OUT},
        ]

    checked(read(topic).collect())
    assert read(topic).count() == 10
    assert [row.value for row in read(topic, columns="value").collect()].count(None) == 4
    assert len(read(topic, columns="offset, key").collect()) == 10
    assert [row.offset for row in read(topic, where="$ == 2").collect()] == [5]

    stream = spark.readStream.format("django_events").options(dsn=dsn, subscribe=str(topic), startingOffsets="earliest")
    query = stream.load().writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start(str(tmp_path / "out"), format="parquet").awaitTermination()
    checked(spark.read.parquet(str(tmp_path / "out")).collect())

    sent = {row.headers[0].value: row.value for row in for_kafka(read(topic)).collect()}
    assert sent[b"1"] == b"0"
    assert json.loads(sent[b"2"]) == {"who": "ada", "unreadable": LEFT_OUT}  # not a tombstone

    call_command("export_events", str(topic), "--to", str(tmp_path / "export"), verbosity=0)
    checked(spark.read.option("recursiveFileLookup", "true").parquet(str(tmp_path / "export")).collect())


@pytest.mark.slow
def test_what_postgresql_cannot_send_is_read_without_its_payload(make_topic: Any, spark: Any, dsn: str) -> None:
    topic = make_topic()
    insert(topic, *among_others([DEEP, DEEP]), *["'5'::jsonb"] * 300, DEEP, "'6'::jsonb")
    options = {"dsn": psycopg.conninfo.make_conninfo(dsn, options=SHALLOW), "subscribe": str(topic)}
    rows = spark.read.format("django_events").options(**options).load().orderBy("offset").collect()

    assert [row.value for row in rows] == ["0", None, "1", None, "2", *["5"] * 300, None, "6"]
    said = json.loads(rows[1].metadata)
    assert said["who"] == "ada"
    assert said["unreadable"].startswith("PostgreSQL can't send it: stack depth limit exceeded")
    assert all(json.loads(row.metadata) == {"who": "ada"} for row in rows if row.value is not None)


@pytest.mark.slow
def test_a_row_that_no_reader_could_read_is_not_published(
    make_topic: Any, log: Callable[..., Any], spark: Any, dsn: str
) -> None:
    topic = make_topic()
    rows = spark.sql("SELECT '1' AS value UNION ALL SELECT concat('[', repeat('1e131000,', 8999), '1]')")
    with pytest.raises(Exception, match=r"A row was refused\. No reader could make this JSON into text"):
        rows.write.format("django_events").options(dsn=dsn, topic=str(topic)).mode("append").save()

    move()
    assert not models.Event.objects.since(topic).exists()
    assert not models.StagedEvent.objects.exists()


def test_dead_letters_are_read_as_well(make_topic: Any, log: Callable[..., Any], dsn: str) -> None:
    topic = log(*[Draft(value=n) for n in range(3)])
    row = models.Consumer.objects.create(
        name="giving-up", topic=models.Topic.objects.get(name=str(topic)), mode="stream", filled_until=0
    )
    try:
        for event_id, value in enumerate(["'1'", worst_values.EXPANDING["zeros with 16,383 decimals"], "'3'"], 1):
            with connection.cursor() as cursor:
                cursor.execute(
                    "INSERT INTO django_events_deadletter (consumer_id, event_id, partition, number, type, value,"
                    " metadata, published_at, logged_at, attempts, error, traceback)"
                    f" VALUES (%s, {event_id}, 0, {event_id}, '', {value}, '{{}}', now(), now(), 1, 'x', '')",
                    [row.pk],
                )
        found = [one for batch in TableReader(Dsn(dsn), "dead_letters").read(None) for one in batch.to_pylist()]
    finally:
        models.DeadLetter.objects.filter(consumer=row).delete()
        row.delete()

    found = sorted((one for one in found if one["topic"] == str(topic)), key=lambda one: one["offset"])
    assert [one["value"] for one in found] == ["1", None, "3"]
    assert [json.loads(one["metadata"]) for one in found] == [{}, {"unreadable": LEFT_OUT}, {}]
