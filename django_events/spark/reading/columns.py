"""The columns of an event in Spark: named as in the Kafka source where they mean the same."""

from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

ARROW: dict[DataType, pa.DataType] = {
    BinaryType(): pa.binary(),
    DoubleType(): pa.float64(),
    IntegerType(): pa.int32(),
    LongType(): pa.int64(),
    StringType(): pa.string(),
    TimestampType(): pa.timestamp("us", "UTC"),
}


@dataclass(frozen=True)
class Column:
    """A column: its type in Spark, its name in the table of events, and whether it is JSON there.

    `topic` has no column in the table: the reader adds it.
    """

    type: DataType
    source: str
    json: bool = False

    @property
    def arrow(self) -> pa.DataType:
        return ARROW[self.type]


TOPIC = "topic"
COLUMNS = {
    TOPIC: Column(StringType(), ""),
    "partition": Column(IntegerType(), "partition"),
    "offset": Column(LongType(), "id"),
    "number": Column(LongType(), "number"),
    "timestamp": Column(TimestampType(), "logged_at"),
    "type": Column(StringType(), "type"),
    "key": Column(StringType(), "key"),
    "value": Column(StringType(), "value", json=True),
    "body": Column(BinaryType(), "body"),
    "metadata": Column(StringType(), "metadata", json=True),
    "published_at": Column(TimestampType(), "published_at"),
}


def struct(columns: dict[str, Column]) -> StructType:
    """Spark's schema of these columns, in this order."""
    return StructType([StructField(name, column.type) for name, column in columns.items()])
