"""A stream of ranges instead of events: a micro-batch has a row for each topic, and its events are read by its writer.

    stream_of_ranges(spark, {"dsn": dsn, "subscribe": "orders"}).writeStream.foreachBatch(write)

The options, the offsets in the checkpoint and the errors are those of the stream of events, so a query may go on with
the checkpoint of the other one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructField, StructType

from django_events.reading.ranges import Range
from django_events.spark import options
from django_events.spark.reading.schema import spark_type
from django_events.spark.reading.streaming import Offsets, StreamReader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PLANNED = "planned"  # under which name the progress of a query tells it
SCHEMA = pa.schema([("topic", pa.string()), ("topic_id", pa.int64()), ("start", pa.int64()), ("end", pa.int64())])


def stream_of_ranges(spark: "SparkSession", options: Mapping[str, str]) -> "DataFrame":
    """The ranges of a query's micro-batches, as a frame; each batch's progress tells how many events they have."""
    from pyspark.sql import functions as f

    spark.dataSource.register(RangesSource)
    frame = spark.readStream.format(RangesSource.name()).options(**options).load()
    events = f.coalesce(f.sum(f.col("end") - f.col("start")), f.lit(0))
    return frame.observe(PLANNED, events.alias("events"))


class RangesSource(DataSource):
    """The same log as that of `EventsSource`, planned and not read."""

    @classmethod
    def name(cls) -> str:
        return "django_events_ranges"

    def schema(self) -> StructType:
        return StructType([StructField(field.name, spark_type(field.type)) for field in SCHEMA])

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        return RangesReader(options.for_stream(self.options))


class RangesReader(StreamReader):
    """Plans as the reader of events does, and gives what it has planned in one task."""

    def partitions(self, start: Offsets, end: Offsets) -> list[InputPartition]:
        return [InputPartition([one for one in self.planned(start, end) if len(one)])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        planned: list[Range] = partition.value or []
        yield pa.RecordBatch.from_pylist([asdict(one) for one in planned], SCHEMA)
