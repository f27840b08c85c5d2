"""Publishing from Spark: all of a batch once, or nothing, whatever fails and is tried again."""

import json
import shutil
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from django.db import connection

from django_events import Draft
from django_events.exceptions import Refused
from django_events.models import BufferedEvent, Event, SinkBatch, StagedEvent
from django_events.spark.options import for_sink
from django_events.spark.sink import BatchWriter, Sink, StreamWriter
from tests.spark.conftest import move
from tests.spark.test_batch import HOSTILE, publish
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture(autouse=True)
def nothing_staged(transactional_db: None) -> Any:
    yield
    left = StagedEvent.objects.count()
    StagedEvent.objects.all().delete()
    SinkBatch.objects.all().delete()
    assert left == 0


@pytest.fixture
def write(spark: Any, dsn: str) -> Callable[..., None]:
    def save(frame: Any, mode: str = "append", **options: Any) -> None:
        frame.write.format("django_events").option("dsn", dsn).options(**options).mode(mode).save()
        move()

    return save


def logged(topic: Any) -> list[tuple[Any, ...]]:
    move()
    events = Event.objects.since(topic)
    return [(e.type, e.key, e.value, None if e.body is None else bytes(e.body), e.metadata) for e in events]


@pytest.mark.quick
@pytest.mark.requirement("X1")
def test_rows_become_events(spark: Any, write: Callable[..., None], make_topic: Any) -> None:
    topic = make_topic(partitions=2)
    rows = [
        ("a", "k", json.dumps(value), None, json.dumps({"n": n})) for n, value in enumerate(HOSTILE) if value != 1e308
    ] + [
        (None, None, None, b"\0\xff", None),
        ("", "", None, b"", "{}"),
    ]
    frame = spark.createDataFrame(rows, "type string, key string, value string, body binary, metadata string")

    write(frame.coalesce(1), topic="things")

    assert logged(topic) == [
        (
            type or "",
            key,
            json.loads(value) if value else None,
            None if body is None else bytes(body),
            json.loads(meta or "{}"),
        )
        for type, key, value, body, meta in rows
    ]


def test_rows_may_say_nothing_but_their_values(spark: Any, write: Callable[..., None], make_topic: Any) -> None:
    topic = make_topic()
    columns = ("type", "key", "metadata")

    write(
        spark.sql(f"SELECT '1' AS value, {', '.join(f'CAST(NULL AS string) AS {c}' for c in columns)}"), topic="things"
    )

    assert logged(topic) == [("", None, 1, None, {})]


def test_a_row_may_name_its_topic_and_partition(spark: Any, write: Callable[..., None], make_topic: Any) -> None:
    for name in ("a", "b"):
        make_topic(name, partitions=3)
    frame = spark.createDataFrame(
        [("a", 2, "1"), ("b", 0, "2"), ("a", None, "3")], "topic string, partition int, value string"
    )

    write(frame.coalesce(1))

    assert [(e.partition, e.value) for e in Event.objects.since("a")][:1] == [(2, 1)]
    assert [e.value for e in Event.objects.since("a")] == [1, 3]
    assert [(e.partition, e.value) for e in Event.objects.since("b")] == [(0, 2)]


@pytest.mark.slow
def test_the_order_of_the_tasks_is_kept(spark: Any, write: Callable[..., None], make_topic: Any) -> None:
    topic = make_topic()

    write(spark.range(0, 5_000, 1, 4).selectExpr("cast(id as string) as value"), topic="things")

    assert [row[2] for row in logged(topic)] == list(range(5_000))


def test_nothing_to_publish_is_fine(spark: Any, write: Callable[..., None], make_topic: Any) -> None:
    topic = make_topic()

    write(spark.range(0).selectExpr("cast(id as string) as value"), topic="things")

    assert logged(topic) == []


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("'1' as value", {}, "Option 'topic' is missing"),
        ("'1' as value", {"topic": "thing"}, "There is no topic 'thing' in the database. Did you mean 'things'?"),
        ("'1' as value", {"topic": "things", "batchId": "1"}, "Option 'batchId' needs option 'sink'"),
        ("'1' as value", {"topic": "things", "sink": "s"}, "Option 'sink' needs option 'batchId'"),
        ("'1' as value", {"topic": "things", "subscribe": "x"}, "Option 'subscribe' is not for a sink"),
        ("'1' as key", {"topic": "things"}, "There is no column 'value'"),
        ("1 as value", {"topic": "things"}, "Column 'value' is int, expected string"),
        ("'1' as value, 1L as offset", {"topic": "things"}, "Column 'offset' can't be published"),
        ("'{nonsense' as value", {"topic": "things"}, "PostgreSQL refused a row"),
        ("'\"\\\\u0000\"' as value", {"topic": "things"}, "PostgreSQL refused a row"),
        ("repeat('k', 513) as key, '1' as value", {"topic": "things"}, "a key of 513 characters, at most 512 are"),
        ("repeat('t', 201) as type, '1' as value", {"topic": "things"}, "a type of 201 characters, at most 200 are"),
        ("cast(X'ff' as string) as key, '1' as value", {"topic": "things"}, "A row has a key that is no UTF-8"),
        ("cast(X'ff' as string) as topic, '1' as value", {}, "A row has a topic that is no UTF-8"),
        ("'1' as value, 2147483648L as partition", {"topic": "things"}, "A row has partition 2147483648, expected"),
        ("cast(null as string) as value", {"topic": "things"}, "both a value and a body, or neither"),
        ("'1' as value, X'00' as body", {"topic": "things"}, "both a value and a body, or neither"),
        ("'1' as value, '[]' as metadata", {"topic": "things"}, "metadata that is no JSON object"),
        ("'1' as value, -1 as partition", {"topic": "things"}, "A row has partition -1, expected one from 0 to"),
        ("'1' as value, cast(null as string) as topic", {}, "A row has no topic"),
    ],
)
def test_what_cannot_be_published_is_refused(
    spark: Any, write: Callable[..., None], make_topic: Any, columns: str, options: dict[str, str], said: str
) -> None:
    topic = make_topic()

    with pytest.raises(Exception, match="django_events") as raised:
        write(spark.sql(f"SELECT {columns} UNION ALL SELECT {columns}"), **options)

    assert said in str(raised.value)
    assert logged(topic) == []


def test_a_log_is_not_overwritten(spark: Any, write: Callable[..., None], make_topic: Any) -> None:
    make_topic()
    with pytest.raises(Exception, match="An event log is only ever added to"):
        write(spark.sql("SELECT '1' AS value"), mode="overwrite", topic="things")


@pytest.mark.slow
def test_a_failing_task_publishes_nothing(spark: Any, write: Callable[..., None], make_topic: Any) -> None:
    topic = make_topic()
    frame = spark.range(0, 4_000, 1, 4).selectExpr("if(id = 3999, '{', cast(id as string)) as value")

    with pytest.raises(Exception, match="PostgreSQL refused a row"):
        write(frame, topic="things")

    assert logged(topic) == []
    executors = spark.sparkContext._jsc.sc().statusStore()
    wait_until(lambda: executors.executorList(True).head().activeTasks() == 0, what="tasks that are given up")
    StagedEvent.objects.all().delete()  # of those that ended while the job was given up


def test_a_named_batch_is_published_once(spark: Any, write: Callable[..., None], make_topic: Any) -> None:
    topic = make_topic()
    frame = spark.sql("SELECT '1' AS value")

    for batch in (20261120, 20261120, 20261121):
        write(frame, topic="things", sink="daily", batchId=batch)
    assert len(logged(topic)) == 2
    with pytest.raises(Exception, match="Sink 'daily' has published batch 20261121, and this is batch 20261119"):
        write(frame, topic="things", sink="daily", batchId=20261119)
    with pytest.raises(Exception, match="has published batch 20261121 with 1 events, and now it has 2"):
        write(frame.union(frame), topic="things", sink="daily", batchId=20261121)
    assert len(logged(topic)) == 2


@pytest.mark.requirement("X1")
def test_a_stream_is_published_once_over_restarts(
    spark: Any, dsn: str, tmp_path: Path, log: Callable[..., Any], make_topic: Any
) -> None:
    source = log(*(Draft(value=n) for n in range(20)), name="source")
    make_topic("target")

    def run(checkpoint: str = "checkpoint") -> None:
        frame = spark.readStream.format("django_events").options(
            dsn=dsn, subscribe="source", startingOffsets="earliest", maxOffsetsPerTrigger=7
        )
        frame.load().selectExpr("value", "key").writeStream.format("django_events").options(
            dsn=dsn, topic="target", sink="copy", checkpointLocation=str(tmp_path / checkpoint)
        ).trigger(availableNow=True).start().awaitTermination()

    run()
    assert sorted(row[2] for row in logged("target")) == list(range(20))
    uncommit(tmp_path / "checkpoint")
    run()
    assert sorted(row[2] for row in logged("target")) == list(range(20))
    publish(source, *range(20, 25))
    run()
    assert sorted(row[2] for row in logged("target")) == list(range(25))
    with pytest.raises(Exception, match=r"Sink 'copy' belongs to query [-0-9a-f]{36}, not to query [-0-9a-f]{36}"):
        run("another")
    assert len(logged("target")) == 25


@pytest.mark.parametrize("by", ["format", "foreachBatch"])
def test_a_query_is_known_by_its_checkpoint_wherever_that_is(
    spark: Any, dsn: str, tmp_path: Path, log: Callable[..., Any], make_topic: Any, by: str
) -> None:
    log(*(Draft(value=n) for n in range(5)), name="source")
    make_topic("target")
    options = {"dsn": dsn, "topic": "target", "sink": "copy"}

    def save(frame: Any, batch: int) -> None:
        frame.write.format("django_events").options(**options, batchId=batch).mode("append").save()

    def run(checkpoint: str) -> str:
        frame = spark.readStream.format("django_events").options(
            dsn=dsn, subscribe="source", startingOffsets="earliest"
        )
        written = frame.load().select("value").writeStream.queryName("copy")
        written = written.foreachBatch(save) if by == "foreachBatch" else written.format("django_events")
        spark.conf.set("spark.sql.streaming.checkpointLocation", checkpoint)  # it makes a folder called `copy` in it
        try:
            query = written.options(**options).trigger(availableNow=True).start()
            query.awaitTermination()
        finally:
            spark.conf.unset("spark.sql.streaming.checkpointLocation")
        return str(query.id)

    name = run(str(tmp_path))
    assert SinkBatch.objects.get().query == name
    uncommit(tmp_path / "copy")
    assert run(f"{tmp_path.as_uri()}/") == name
    assert sorted(row[2] for row in logged("target")) == list(range(5))
    shutil.rmtree(tmp_path / "copy")  # the same place and as many events, and not the same query
    with pytest.raises(Exception, match="A query with a new checkpoint is another query"):
        run(str(tmp_path))
    assert len(logged("target")) == 5


def test_a_batch_of_a_query_has_the_number_that_spark_gives_it(
    spark: Any, dsn: str, tmp_path: Path, log: Callable[..., Any], make_topic: Any
) -> None:
    log(Draft(value=1), name="source")
    make_topic("target")

    def save(frame: Any, _batch: int) -> None:
        options = {"dsn": dsn, "topic": "target", "sink": "copy", "batchId": 20261120}
        frame.select("value").write.format("django_events").options(**options).mode("append").save()

    frame = spark.readStream.format("django_events").options(dsn=dsn, subscribe="source", startingOffsets="earliest")
    written = frame.load().writeStream.foreachBatch(save).option("checkpointLocation", str(tmp_path))
    with pytest.raises(Exception, match="Option 'batchId' is 20261120 in batch 0 of a streaming query"):
        written.trigger(availableNow=True).start().awaitTermination()
    assert logged("target") == []


def test_a_second_write_in_a_batch_needs_a_name_of_its_own(
    spark: Any, dsn: str, tmp_path: Path, log: Callable[..., Any], make_topic: Any
) -> None:
    """Taken for the first one that comes again, it would be lost."""
    log(Draft(value=1), name="source")
    make_topic("target")

    def save(*names: str) -> None:
        def each(frame: Any, batch: int) -> None:
            for name in names:
                options = {"dsn": dsn, "topic": "target", "sink": name, "batchId": batch}
                frame.select("value").write.format("django_events").options(**options).mode("append").save()

        frame = spark.readStream.format("django_events").options(
            dsn=dsn, subscribe="source", startingOffsets="earliest"
        )
        written = frame.load().writeStream.foreachBatch(each).option("checkpointLocation", str(tmp_path))
        written.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(Exception, match="Sink 'one' has published batch 0 already in this run of its query"):
        save("one", "one")
    save("one", "two")

    assert [row[2] for row in logged("target")] == [1, 1]


def uncommit(checkpoint: Path) -> None:
    """As if the driver had died after publishing and before Spark noted it: the last batch comes again."""
    last = max((checkpoint / "commits").glob("[0-9]"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)


def test_a_batch_of_a_query_that_comes_again_is_published_already(spark: Any, dsn: str, make_topic: Any) -> None:
    topic = make_topic()
    options = for_sink({"dsn": dsn, "topic": "things", "sink": "s"})
    writer = StreamWriter(options, schema(spark, "value string"), overwrite=False)

    def commit(batch: int, *values: str) -> None:
        message = replace(staged(writer.sink, *values), query="q")
        try:
            writer.commit([message], batch)
        except Refused:
            writer.abort([message], batch)
            raise

    for batch, values in ((3, ["1"]), (3, ["2", "3"]), (4, []), (4, ["5"])):
        commit(batch, *values)
    with pytest.raises(Refused, match=r"published batch 4, and this is batch 2.* Its checkpoint was set back"):
        commit(2, "6")

    assert [row[2] for row in logged(topic)] == [1, 5]


def test_nothing_is_published_for_a_query_that_is_not_known(spark: Any, dsn: str, make_topic: Any) -> None:
    topic = make_topic()
    options = for_sink({"dsn": dsn, "topic": "things", "sink": "s"})
    writer = StreamWriter(options, schema(spark, "value string"), overwrite=False)
    message = staged(writer.sink, "1")

    with pytest.raises(Refused, match="Spark doesn't say which query publishes to sink 's'"):
        writer.commit([message], 0)
    assert logged(topic) == []
    writer.abort([message], 0)


def test_a_stream_needs_a_name(spark: Any, dsn: str, tmp_path: Path, log: Callable[..., Any]) -> None:
    log(Draft(value=1))
    frame = spark.readStream.format("django_events").options(dsn=dsn, subscribe="things", startingOffsets="earliest")

    with pytest.raises(Exception, match="Option 'sink' is missing"):
        frame.load().select("value").writeStream.format("django_events").options(
            dsn=dsn, topic="things", checkpointLocation=str(tmp_path)
        ).trigger(availableNow=True).start().awaitTermination()


def schema(spark: Any, ddl: str) -> Any:
    return spark.createDataFrame([], ddl).schema


def staged(sink: Sink, *values: str) -> Any:
    return sink.stage(iter([pa.record_batch({"value": list(values)})]))


def test_a_task_that_is_tried_again_is_published_once(spark: Any, dsn: str, make_topic: Any) -> None:
    topic = make_topic()
    writer = BatchWriter(for_sink({"dsn": dsn, "topic": "things"}), schema(spark, "value string"), overwrite=False)
    lost = staged(writer.sink, "1", "2")  # its answer never arrived
    again = staged(writer.sink, "1", "2")

    writer.commit([again])

    assert [row[2] for row in logged(topic)] == [1, 2]
    writer.abort([lost])


def test_a_commit_whose_answer_is_lost_is_not_repeated(
    spark: Any, dsn: str, make_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic()
    writer = StreamWriter(
        for_sink({"dsn": dsn, "topic": "things", "sink": "s"}), schema(spark, "value string"), overwrite=False
    )
    plain = BatchWriter(for_sink({"dsn": dsn, "topic": "things"}), schema(spark, "value string"), overwrite=False)
    really, tries = Sink._publish, []

    def committed_and_lost(self: Sink, used: Any, *args: Any, **kwargs: Any) -> None:
        really(self, used, *args, **kwargs)
        tries.append(1)
        if len(tries) % 2:
            used.execute("COMMIT")
            raise psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr(Sink, "_publish", committed_and_lost)
    for commit in (
        lambda: writer.commit([replace(staged(writer.sink, "1"), query="q")], 0),
        lambda: plain.commit([staged(plain.sink, "2")]),
    ):
        commit()

    assert [row[2] for row in logged(topic)] == [1, 2]
    assert len(tries) == 4


def test_a_commit_that_failed_is_repeated(
    spark: Any, dsn: str, make_topic: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = make_topic()
    writer = BatchWriter(for_sink({"dsn": dsn, "topic": "things"}), schema(spark, "value string"), overwrite=False)
    really, tries = Sink._publish, []

    def lost(self: Sink, used: Any, *args: Any, **kwargs: Any) -> None:
        really(self, used, *args, **kwargs)
        tries.append(1)
        if len(tries) == 1:
            raise psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr(Sink, "_publish", lost)
    writer.commit([staged(writer.sink, "1")])

    assert [row[2] for row in logged(topic)] == [1]


def test_staged_rows_that_are_gone_are_missed(spark: Any, dsn: str, make_topic: Any) -> None:
    topic = make_topic()
    writer = BatchWriter(for_sink({"dsn": dsn, "topic": "things"}), schema(spark, "value string"), overwrite=False)
    message = staged(writer.sink, "1", "2")
    StagedEvent.objects.filter(value=1).delete()

    with pytest.raises(Refused, match="1 of 2 events that tasks staged are still there"):
        writer.commit([message])
    assert logged(topic) == []
    writer.abort([message])


def test_what_is_never_published_is_forgotten(dsn: str, make_topic: Any) -> None:
    from django_events.maintaining.pruning import forget_staged

    make_topic()
    for age in ("8 days", "6 days"):
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO django_events_stagedevent (attempt, topic_id, value, metadata, staged_at) "
                "SELECT %s, id, '1', '{}', now() - %s::interval FROM django_events_topic WHERE name = 'things'",
                [uuid.uuid4(), age],
            )

    assert forget_staged("default") == 1
    assert StagedEvent.objects.count() == 1
    StagedEvent.objects.all().delete()
    assert not BufferedEvent.objects.exclude(topic__name__in=["payments", "stock"]).exists()
