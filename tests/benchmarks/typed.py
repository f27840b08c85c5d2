"""Typed columns: what they cost beside text, in Spark and in Parquet without it, and beside Spark's own from_json."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import functions as f

from django_events.contracts.rendering import rendered
from django_events.declarations import DeclaredTopic, schema_of
from django_events.exporting.export import Export, export
from django_events.exporting.file_columns import FileColumns
from django_events.exporting.local import LocalEngine
from django_events.reading.typed.columns import TYPED
from django_events.reading.typed.descriptions import SchemaSet
from django_events.spark.session import session
from tests.benchmarks.database import url
from tests.benchmarks.describing import OrderPlaced
from tests.benchmarks.harness import Effort, Row, figure, interleave, timed
from tests.benchmarks.pipeline import TOPIC, filled
from tests.benchmarks.samples import TYPE
from tests.benchmarks.transfer import declared

EVENTS = 1_000_000
THREADS = 2
COLUMNS = "offset, type, key"
BY_SPARK = (
    "id long, customer string, status string, currency string, total decimal(38, 18), placed_at timestamp, "
    "items array<struct<sku: string, quantity: long, price: decimal(38, 18)>>"
)


def described() -> SchemaSet:
    schema = schema_of(OrderPlaced)
    assert schema is not None
    return SchemaSet({TYPE: {schema.version: rendered(schema, OrderPlaced)}})


@figure("N15t", "typed columns against text and from_json, in Spark; and against text, in Parquet without Spark")
def typed(effort: Effort) -> Iterator[Row]:
    """Values of 150 to 213 bytes with two or three objects in them, all of which fit. Spark writes nowhere."""
    events = effort.events(EVENTS)
    with declared(TOPIC):
        filled(TOPIC, events)
        yield from _by_spark(effort, TOPIC, events)
        yield from _by_threads(effort, events)


def _by_spark(effort: Effort, topic: DeclaredTopic, events: int) -> Iterator[Row]:
    with session("N15t", master="local[2]") as spark:

        def read(columns: str, **options: str) -> Any:
            given = {"dsn": url(), "subscribe": topic.name, "columns": f"{COLUMNS}, {columns}", **options}
            return spark.read.format("django_events").options(**given).load()

        def rate(frame: Any) -> float:
            return events / timed(lambda: frame.write.format("noop").mode("overwrite").save())

        schemas = described().as_text()
        blocks = {
            "typed": lambda: rate(read("typed", schema=TYPE, schemas=schemas)),
            "text": lambda: rate(read("value")),
            "from_json": lambda: rate(read("value").withColumn("value", f.from_json("value", BY_SPARK))),
        }
        for block in blocks.values():
            block()
        samples = interleave(blocks, rounds=effort.rounds(5))
        yield samples.row("a batch in Spark", "typed", "text", unit="events/s")
        yield samples.row("a batch in Spark", "typed", "from_json", unit="events/s")


def _by_threads(effort: Effort, events: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")

        def rate(columns: dict[str, FileColumns]) -> float:
            shutil.rmtree(out, ignore_errors=True)
            wanted = Export(dsn=url(), topics=(TOPIC.name,), path=str(out), columns=columns)
            return events / timed(lambda: export(LocalEngine(threads=THREADS), wanted))

        def size() -> int:
            return sum(path.stat().st_size for path in out.rglob("*.parquet"))

        columns = {TOPIC.name: FileColumns.of(described().chosen(TYPED))}
        rate({})
        text = size()
        rate(columns)
        typed = size()
        samples = interleave({"typed": lambda: rate(columns), "text": lambda: rate({})}, rounds=effort.rounds(5))
        yield samples.row("Parquet without Spark", "typed", "text", unit="events/s")
        yield Row(what="bytes an event in Parquet, typed", unit="bytes", measured=typed / events)
        yield Row(what="bytes an event in Parquet, as text", unit="bytes", measured=text / events)
