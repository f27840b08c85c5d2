"""The columns of a read as Spark's schema."""

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

from django_events.reading.columns import Column

SPARK: dict[pa.DataType, DataType] = {
    pa.binary(): BinaryType(),
    pa.float64(): DoubleType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.string(): StringType(),
    pa.timestamp("us", "UTC"): TimestampType(),
}


def struct(columns: dict[str, Column]) -> StructType:
    """Spark's schema of these columns, in this order."""
    return StructType([StructField(name, SPARK[column.arrow]) for name, column in columns.items()])
