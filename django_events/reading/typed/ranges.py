"""Ranges of the log whose values are columns: what a RangeReader reads, typed on the way."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import pyarrow as pa

from django_events.reading.dsn import Connection
from django_events.reading.ranges import Range
from django_events.reading.rows import RangeReader
from django_events.reading.typed.columns import NAMES, NEEDED, TypedColumns


@dataclass(frozen=True, kw_only=True)
class TypedRangeReader:
    """Reads ranges with typed columns. Spark sends it to the executors."""

    reader: RangeReader
    typed: TypedColumns
    columns: tuple[str, ...]

    @classmethod
    def of(cls, reader: RangeReader, typed: TypedColumns) -> Self:
        """What gives the columns of a reader, of which some are typed ones."""
        asked = dict.fromkeys((*(one for one in reader.columns if one not in NAMES), *NEEDED))
        return cls(reader=replace(reader, columns=tuple(asked)), typed=typed, columns=reader.columns)

    def read(self, part: Range) -> Iterator[pa.RecordBatch]:
        """As that of a RangeReader."""
        return self._typed(self.reader.read(part))

    def read_by(self, connection: Connection, part: Range) -> Iterator[pa.RecordBatch]:
        """The same by a connection of the caller's."""
        return self._typed(self.reader.read_by(connection, part))

    def _typed(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        opened = self.typed.opened()
        return (opened.completed(batch, self.columns) for batch in batches)
