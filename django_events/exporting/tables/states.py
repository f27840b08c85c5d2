"""The newest event of each key: what a table of states has a row of.

A key is gone when its newest event is a tombstone (the value is JSON null), was erased, or is of a type that deletes.
"""

from collections.abc import Collection, Iterable

import pyarrow as pa
import pyarrow.compute as pc

from django_events.exporting.writing import SCHEMA

GONE = pa.field("gone", pa.bool_())


def newest(events: Iterable[pa.RecordBatch], deletes: Collection[str]) -> tuple[pa.Table, int]:
    """The newest event of each key, with whether the key is `gone`; and how many events have no key."""
    table = pa.Table.from_batches(events, SCHEMA)
    keyed = table.filter(pc.is_valid(table["key"]))
    last = keyed.group_by("key").aggregate([("offset", "max")])["offset_max"]
    rows = keyed.filter(pc.is_in(keyed["offset"], value_set=last))
    is_blank = pc.or_(pc.is_null(rows["value"]), pc.fill_null(pc.equal(rows["value"], "null"), False))
    is_gone = pc.and_(is_blank, pc.is_null(rows["body"]))
    if deletes:
        is_gone = pc.or_(is_gone, pc.is_in(rows["type"], value_set=pa.array(sorted(deletes), pa.string())))
    return rows.append_column(GONE, is_gone), table.num_rows - keyed.num_rows
