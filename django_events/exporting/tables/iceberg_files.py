"""Files of rows in the words of Iceberg: columns by the numbers of the table, and statistics for its manifests.

PyIceberg describes files by their footers, but takes the bounds of the row groups that say some for those of the file,
though one that has a long text says none. So a reader would pass over rows: here such a column has no bounds.
"""

from dataclasses import replace
from datetime import date
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from django_events.exporting.tables.rows_files import RowsFile, bounds

EPOCH = date(1970, 1, 1)
NUMBER = "PARQUET:field_id"  # what PyArrow writes into a file as the number of a column


def numbered(schema: pa.Schema, known: Schema) -> pa.Schema:
    """The columns with their numbers in a table: by these readers find them in a file, whatever they are called."""
    return pa.schema([_numbered(field, known.find_field(field.name)) for field in schema])


def _numbered(field: pa.Field, known: NestedField) -> pa.Field:
    return _with_number(pa.field(field.name, _type(field.type, known.field_type), field.nullable), known.field_id)


def _type(type: pa.DataType, known: IcebergType) -> pa.DataType:
    if isinstance(known, StructType):
        by_name = {field.name: field for field in known.fields}
        return pa.struct([_numbered(field, by_name[field.name]) for field in type])
    if isinstance(known, ListType):
        element = pa.field(type.value_field.name, _type(type.value_type, known.element_type))
        return pa.list_(_with_number(element, known.element_id))
    if isinstance(known, MapType):
        key = pa.field("key", _type(type.key_type, known.key_type), nullable=False)
        value = pa.field("value", _type(type.item_type, known.value_type))
        return pa.map_(_with_number(key, known.key_id), _with_number(value, known.value_id))
    return type


def _with_number(field: pa.Field, number: int) -> pa.Field:
    return field.with_metadata({NUMBER: str(number)})


def described(file: RowsFile, table: Table, address: str) -> DataFile:
    """A file of one day at an address, as a manifest of a table names it."""
    numbers, known = parquet_path_to_id_mapping(table.schema()), bounds(file)
    has_bounds = {numbers[path] for path, one in known.items() if one.least is not None}
    has_counts = {numbers[path] for path in known}
    plan: dict[int, Any] = {}
    for number, column in compute_statistics_plan(table.schema(), table.properties).items():
        least = MetricModeTypes.COUNTS if number in has_counts else MetricModeTypes.NONE
        is_more = number not in has_bounds and column.mode.type != MetricModeTypes.NONE
        plan[number] = replace(column, mode=MetricsMode(least)) if is_more else column
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=file.footer, stats_columns=plan, parquet_column_mapping=numbers
    )
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=address,
        file_format=FileFormat.PARQUET,
        partition=Record((date.fromisoformat(file.day) - EPOCH).days),
        file_size_in_bytes=file.size,
        sort_order_id=None,
        spec_id=table.spec().spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )
