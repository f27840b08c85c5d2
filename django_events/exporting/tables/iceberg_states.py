"""The newest event of each key of a topic as an Iceberg table: rows go and come in one transaction.

PyIceberg's own upsert compares rows by a condition for each key, and to delete by keys it binds each many times.
What a log says last needs no comparison: files that have a changed key are read, and put back without it.
"""

import warnings
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from django_events.exporting.tables.iceberg import IcebergEvents
from django_events.exporting.tables.iceberg_rewriting import portions
from django_events.exporting.tables.states import GONE, greatest, newest, with_fields_of
from django_events.exporting.tables.table import (
    GREATEST,
    KIND,
    NEXT,
    STATES,
    Mark,
    is_at,
    said_of_states,
    types_that_delete,
)


class IcebergStates(IcebergEvents):
    """An Iceberg table with one row for each key."""

    kind = STATES
    _by_day = False

    def append(self, events: Iterable[pa.RecordBatch], mark: Mark) -> None:
        self._make_ready()
        rows, left_out = newest(events, self._deletes, self._columns)
        rows = with_fields_of(self._table.schema().as_arrow(), self.place, rows, self._columns)
        there = rows.filter(pc.invert(rows[GONE.name])).drop_columns(GONE.name)
        self._replace(self._offsets_of(rows["key"]), there, self._marking(mark))
        self.left_out += left_out
        self.lost_end = False

    def blank(self, erased: pa.Table, mark: Mark) -> int:
        """What was erased is no state any more: the row goes."""
        self._make_ready()
        self._replace(erased["offset"].to_pylist(), self._schema.empty_table(), {NEXT: str(mark.next)})
        return int(erased.num_rows)

    def deletes(self) -> tuple[str, ...]:
        return types_that_delete(self._table.properties)

    def _said_of_rows(self) -> dict[str, str]:
        return {KIND: self.kind, **said_of_states(self._deletes)}

    def _offsets_of(self, keys: pa.ChunkedArray) -> list[int]:
        """The ids of the rows that have one of these keys."""
        wanted, found = keys.combine_chunks(), list[int]()
        if len(wanted) and self._table.current_snapshot() is not None:
            scan = self._table.scan(selected_fields=("offset", "key"))
            with self._unless_moved():
                for batch in scan.to_arrow_batch_reader():
                    is_one = pc.is_in(batch["key"].cast(pa.string()), value_set=wanted)
                    found += batch["offset"].filter(is_one).to_pylist()
        return sorted(found)

    def _replace(self, offsets: list[int], rows: pa.Table, said: dict[str, str]) -> None:
        """Rows in the place of those with these ids, in one commit."""
        gone = pa.array(offsets, pa.int64())
        found = pc.max(rows["offset"]).as_py() or greatest(self.keys(int(said[NEXT])), gone)
        said = {**said, GREATEST: str(found)}
        saying = self._saying(said)

        def work(change: Any) -> None:
            for ranges in portions(self._ranges.having(self._table, offsets)):
                within = " OR ".join(one.within for one in ranges)
                there = self._rows_within(within)
                kept = there.filter(pc.invert(pc.is_in(there["offset"], value_set=gone)))
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # that no row is left
                    change.delete(within, snapshot_properties=saying)
                change.append(kept, snapshot_properties=saying)
            change.append(rows, snapshot_properties=saying)

        self._commit(work, said)

    def _is_whole(self, mark: Mark) -> bool:
        if (said := self._table.properties.get(GREATEST)) is None:
            return is_at(self._ranges.newest(self._table), mark)
        # Statistics may still count rows that were deleted.
        return (self._ranges.newest(self._table) or 0) == int(said) or greatest(self.keys(mark.next)) == int(said)

    def _make(self, properties: dict[str, str]) -> None:
        self._catalog.create_table(self._name, self._schema, properties=properties)
