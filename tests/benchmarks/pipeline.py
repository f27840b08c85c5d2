"""The log into Spark: a batch into Parquet beside Spark's JDBC source, and a stream that catches up and keeps up."""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import quantiles
from typing import Any

from django.db import transaction

from django_events import publish_many
from django_events.declarations import DeclaredTopic
from django_events.exporting.export import Export, export
from django_events.log.transfer import Transfer
from django_events.spark.exporting.engine import SparkEngine
from django_events.spark.session import session
from tests.benchmarks.database import settle, truncate, url
from tests.benchmarks.end_to_end import cast
from tests.benchmarks.harness import Effort, Row, at_least, at_most, figure, interleave, timed
from tests.benchmarks.samples import draft
from tests.benchmarks.transfer import BUFFER, LOG, declared

EVENTS = 2_000_000
STREAMED = 1_000_000
RATE = 1_000  # events per second
TICKS = 20
SECONDS = 30
DRIVER = Path("/usr/share/java/postgresql.jar")  # of Debian's libpostgresql-jdbc-java
PARTS = 8
TOPIC = DeclaredTopic(name="bench", partitions=8)
# What a user of JDBC has to write by hand: a query in the shape of the source's columns, and where to cut it.
QUERY = """(
    SELECT 'bench' AS topic, partition, id AS "offset", number, logged_at AS timestamp, type, key,
           value::text AS value, body, metadata::text AS metadata, published_at
    FROM django_events_event
    WHERE topic_id = (SELECT id FROM django_events_topic WHERE name = 'bench')
) AS events"""


def filled(topic: DeclaredTopic, events: int) -> None:
    truncate(BUFFER, LOG)
    transfer = Transfer("default")
    for first in range(0, events, 10_000):
        with transaction.atomic():
            publish_many(topic, [draft(n) for n in range(first, min(first + 10_000, events))])
        while transfer.move():
            pass
    settle(LOG)


def publish_at_the_rate(seconds: int) -> None:
    """Twenty transactions a second, each of a twentieth of the rate."""
    started = time.perf_counter()
    for tick in range(seconds * TICKS):
        with transaction.atomic():
            publish_many(TOPIC, [draft(n) for n in range(RATE // TICKS)])
        time.sleep(max(started + (tick + 1) / TICKS - time.perf_counter(), 0))


def ours(spark: Any, topic: DeclaredTopic) -> Any:
    return spark.read.format("django_events").option("dsn", url()).option("subscribe", topic.name).load()


def by_jdbc(spark: Any, events: int, parts: int) -> Any:
    address = "jdbc:" + url().replace("postgres:@", "")
    reader = spark.read.format("jdbc").option("driver", "org.postgresql.Driver").option("dbtable", QUERY)
    reader = reader.option("url", address).option("user", "postgres").option("fetchsize", 10_000)
    if parts > 1:
        bounds = {"partitionColumn": "offset", "lowerBound": 1, "upperBound": events + 1, "numPartitions": parts}
        reader = reader.options(**bounds)
    return reader.load()


@figure("N15", "a batch of the log into Parquet, against Spark's JDBC source in the same session")
def batch(effort: Effort) -> Iterator[Row]:
    events = effort.events(EVENTS)
    settings = {"spark.driver.extraClassPath": str(DRIVER)}
    with (
        declared(TOPIC),
        tempfile.TemporaryDirectory() as folder,
        session("N15", master="local[2]", settings=settings) as spark,
    ):
        filled(TOPIC, events)

        def written(frame: Callable[[], Any]) -> float:
            return events / timed(lambda: frame().write.mode("overwrite").parquet(f"{folder}/out"))

        def exported() -> float:
            shutil.rmtree(f"{folder}/exported", ignore_errors=True)
            wanted = Export(dsn=url(), topics=(TOPIC.name,), path=f"{folder}/exported")
            return events / timed(lambda: export(SparkEngine(spark), wanted))

        blocks = {"the export": exported, "the source": lambda: written(lambda: ours(spark, TOPIC))}
        if DRIVER.exists():
            blocks[f"JDBC in {PARTS} parts"] = lambda: written(lambda: by_jdbc(spark, events, PARTS))
            blocks["JDBC as it is"] = lambda: written(lambda: by_jdbc(spark, events, 1))
        for block in blocks.values():
            block()  # the first time loads classes and starts workers
        samples = interleave(blocks, rounds=effort.rounds(5))
        if not DRIVER.exists():
            for what, rates in samples.values.items():
                middle = sorted(rates)[len(rates) // 2]
                yield Row(what=f"Parquet, {what} (no JDBC driver here)", unit="events/s", measured=middle)
            return
        goal = at_least(1.5)
        yield samples.row("Parquet by tasks", "the export", f"JDBC in {PARTS} parts", unit="events/s", goal=goal)
        yield samples.row("Parquet by tasks", "the export", "the source", unit="events/s")
        goal = at_least(1.1)
        yield samples.row("Parquet", "the source", f"JDBC in {PARTS} parts", unit="events/s", goal=goal)
        yield samples.row("Parquet", "the source", "JDBC as it is", unit="events/s", goal=goal)


@figure("N16", "a stream: catching up, and how far it is behind at 1,000 events/s")
def stream(effort: Effort) -> Iterator[Row]:
    events = effort.events(STREAMED)
    with (
        declared(TOPIC),
        tempfile.TemporaryDirectory() as folder,
        session("N16", master="local[2]") as spark,
    ):
        filled(TOPIC, events)
        frame = spark.readStream.format("django_events").options(
            dsn=url(), subscribe=TOPIC.name, startingOffsets="earliest", maxOffsetsPerTrigger=250_000, minPartitions=2
        )

        def caught_up(n: int) -> float:
            query = frame.load().writeStream.format("noop").option("checkpointLocation", f"{folder}/{n}")
            return events / timed(lambda: query.trigger(availableNow=True).start().awaitTermination())

        caught_up(0)
        rates = sorted(caught_up(n) for n in range(1, effort.rounds(5) + 1))
        goal = at_least(100_000, of="measured")
        yield Row(what="catching up", unit="events/s", measured=rates[len(rates) // 2], goal=goal)

        behind: list[float] = []

        def note(batch: Any, number: int) -> None:
            [[first]] = batch.selectExpr("unix_micros(min(published_at))").collect()
            if first is not None:
                behind.append(time.time() - first / 1_000_000)

        with cast() as processes:
            processes.transfer()
            query = frame.option("startingOffsets", "latest").load().writeStream.foreachBatch(note)
            running = query.option("checkpointLocation", f"{folder}/live").start()
            publish_at_the_rate(effort.events(SECONDS))
            while running.status["isTriggerActive"]:
                time.sleep(0.01)
            running.stop()
        p99 = quantiles(behind[2:], n=100)[98]  # the first batch plans and starts workers
        what = "behind at 1,000 events/s, the oldest event of a batch when it is done, p99"
        yield Row(what=what, unit="s", measured=p99, goal=at_most(3, of="measured"))
