"""The columns of a read as Spark's schema."""

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from django_events.reading.columns import Column

SPARK: dict[pa.DataType, DataType] = {
    pa.binary(): BinaryType(),
    pa.bool_(): BooleanType(),
    pa.date32(): DateType(),
    pa.float64(): DoubleType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.string(): StringType(),
    pa.timestamp("us", "UTC"): TimestampType(),
}


def spark_type(type: pa.DataType) -> DataType:
    """Spark's type for one of Arrow."""
    if pa.types.is_struct(type):
        return StructType([StructField(field.name, spark_type(field.type)) for field in type])
    if pa.types.is_list(type):
        return ArrayType(spark_type(type.value_type))
    if pa.types.is_map(type):
        return MapType(spark_type(type.key_type), spark_type(type.item_type))
    if pa.types.is_decimal(type):
        return DecimalType(type.precision, type.scale)
    return SPARK[type]


def struct(columns: dict[str, Column]) -> StructType:
    """Spark's schema of these columns, in this order."""
    return StructType([StructField(name, spark_type(column.arrow)) for name, column in columns.items()])
