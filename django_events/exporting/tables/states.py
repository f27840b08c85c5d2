"""The newest event of each key: what a table of states has a row of.

A key is gone when its newest event is a tombstone (the value is JSON null), was erased, or is of a type that deletes.
An event whose JSON couldn't be read is none of these: its row has no value, and metadata that say so. Typed columns
don't tell a tombstone from what was erased or couldn't be read, so events come with their values as text, too.
"""

from collections.abc import Collection, Iterable

import pyarrow as pa
import pyarrow.compute as pc

from django_events.exporting.blanking import is_of_erased
from django_events.exporting.file_columns import VALUE, FileColumns
from django_events.reading.typed.columns import DATA

GONE = pa.field("gone", pa.bool_())
NONE = pa.array([], pa.int64())


def greatest(rows: Iterable[pa.RecordBatch], gone: pa.Array = NONE, by: str = "offset") -> int:
    """The greatest id of the rows (`offset`, `key`) that are not of those which go, by their ids or keys; or 0."""
    found = 0
    for batch in rows:
        stays = pc.invert(pc.is_in(batch[by].cast(gone.type), value_set=gone))
        found = max(found, pc.max(batch["offset"].filter(stays)).as_py() or 0)
    return found


def newest(events: Iterable[pa.RecordBatch], deletes: Collection[str], columns: FileColumns) -> tuple[pa.Table, int]:
    """The newest event of each key, with whether the key is `gone`; and how many events have no key."""
    names = columns.schema.names
    table = pa.Table.from_batches(events, columns.schema if VALUE.name in names else columns.schema.append(VALUE))
    keyed = table.filter(pc.is_valid(table["key"]))
    last = keyed.select(["key", "offset"]).group_by("key").aggregate([("offset", "max")])["offset_max"]
    rows = keyed.filter(pc.is_in(keyed["offset"], value_set=last))
    is_tombstone = pc.fill_null(pc.equal(rows["value"], "null"), False)
    is_erased = pc.and_(pc.is_null(rows["value"]), pa.array(is_of_erased(rows["metadata"])))
    is_gone = pc.and_(pc.or_(is_tombstone, is_erased), pc.is_null(rows["body"]))
    if deletes:
        is_gone = pc.or_(is_gone, pc.is_in(rows["type"], value_set=pa.array(sorted(deletes), pa.string())))
    return rows.select(names).append_column(GONE, is_gone), table.num_rows - keyed.num_rows


def with_fields_of(known: pa.Schema, place: str, rows: pa.Table, columns: FileColumns) -> pa.Table:
    """Rows of `newest` with the fields, too, that a table has in its typed columns and this run doesn't know of."""
    if columns.typed is None:
        return rows
    columns = columns.after(known.field(DATA).type, place)
    batches = map(columns.conformed, rows.select(columns.schema.names).to_batches())
    return pa.Table.from_batches(batches, columns.schema).append_column(GONE, rows[GONE.name])
