"""The newest event of each key of a topic as a Delta table: one MERGE for each commit, with the mark of the events."""

from collections.abc import Iterable, Iterator
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties
from deltalake.exceptions import CommitFailedError

from django_events.exporting.file_columns import FileColumns
from django_events.exporting.tables.delta import WRITER, DeltaEvents
from django_events.exporting.tables.states import GONE, greatest, newest, with_fields_of
from django_events.exporting.tables.table import (
    KIND,
    STATES,
    Conflict,
    Mark,
    is_at,
    new_columns,
    said_of_states,
    types_that_delete,
)

OF_KEY = 't."key" = s."key"'


class DeltaStates(DeltaEvents):
    """A Delta table with one row for each key."""

    kind = STATES
    _partitions: ClassVar = []

    def append(self, events: Iterable[pa.RecordBatch], mark: Mark) -> None:
        self._refuse_anew(mark)
        self._add_fields(mark)
        rows, left_out = newest(events, self._deletes, self._columns)
        there = rows.filter(pc.invert(rows[GONE.name]))
        found = pc.max(there["offset"]).as_py() or greatest(self.keys(mark.next), rows["key"].combine_chunks(), "key")
        saying, version = self._saying(mark, greatest=found), self._table.version()
        if rows.num_rows:
            self._merge(rows, saying)
        if self._table.version() == version:  # a MERGE that finds nothing to change makes no commit
            self._append([], saying)
        self.left_out += left_out
        self.lost_end = False

    def blank(self, erased: pa.Table, mark: Mark) -> int:
        """What was erased is no state any more: the row goes."""
        self._refuse_changes()
        found = greatest(self.keys(mark.next), erased["offset"].combine_chunks())
        first, last = erased["offset"][0].as_py(), erased["offset"][-1].as_py()
        within = f't."offset" = s."offset" AND t."offset" >= {first} AND t."offset" <= {last}'
        try:
            merging = self._table.merge(
                erased.select(["offset"]),
                within,
                source_alias="s",
                target_alias="t",
                writer_properties=WRITER,
                commit_properties=self._saying(mark, greatest=found),
            )
            done = merging.when_matched_delete().execute()
        except CommitFailedError as error:
            raise Conflict(str(error)) from error
        return int(done["num_target_rows_deleted"])

    def deletes(self) -> tuple[str, ...]:
        return types_that_delete(self._table.metadata().configuration)

    def _said_of_rows(self) -> dict[str, str]:
        return {KIND: self.kind, **said_of_states(self._deletes)}

    def _add_fields(self, mark: Mark) -> None:
        """Give the table the columns and fields that it lacks, in a commit of no rows that says its mark again.

        A MERGE of delta-rs that adds a field to a struct makes that column NULL in all rows that it doesn't change.
        """
        if new_columns(pa.schema(self._table.schema().to_arrow()), self._place, self._columns):
            seen = self._marked(mark)
            said = CommitProperties() if seen is None else self._saying(Mark(mark.incarnation, seen + 1))
            self._append([], said)
            if self._marked(mark) != seen:  # nothing was said that another exporter's commit conflicts with
                raise Conflict(f"{self._place} had a commit of another writer.")

    def _merge(self, rows: pa.Table, saying: CommitProperties) -> None:
        names = [name for name in rows.column_names if name != GONE.name]
        columns = {f'"{name}"': f's."{name}"' for name in names}
        known = pa.schema(self._table.schema().to_arrow())
        rows = with_fields_of(known, self._place, rows, self._columns)
        try:
            (
                self._table.merge(
                    rows,
                    OF_KEY,
                    source_alias="s",
                    target_alias="t",
                    writer_properties=WRITER,
                    commit_properties=saying,
                )
                .when_matched_delete(f's."{GONE.name}"')
                .when_matched_update(columns)
                .when_not_matched_insert(columns, f'NOT s."{GONE.name}"')
                .execute()
            )
        except CommitFailedError as error:
            raise Conflict(str(error)) from error

    def _is_whole(self, mark: Mark) -> bool:
        said = self._greatest(mark)
        if said is None:
            return is_at(self._newest_offset(), mark)
        # Statistics may still count rows that were deleted.
        return (self._newest_offset() or 0) == said or greatest(self.keys(mark.next)) == said

    def _shaped(self, events: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        return iter(events)

    def _shape_of(self, columns: FileColumns) -> pa.Schema:
        return columns.schema
