"""Which columns the files and tables of a topic have: those of events, or typed ones in place of `value`."""

from dataclasses import dataclass, replace
from typing import Self

import pyarrow as pa

from django_events.reading.columns import COLUMNS, TOPIC
from django_events.reading.dsn import Dsn
from django_events.reading.rows import RangeReader
from django_events.reading.typed.columns import DATA, TYPED, TypedColumns
from django_events.reading.typed.evolution import conformed, evolved
from django_events.reading.typed.ranges import TypedRangeReader

VALUE = pa.field("value", pa.string())


@dataclass(frozen=True)
class FileColumns:
    """The columns of a topic's events as they are written."""

    schema: pa.Schema
    typed: TypedColumns | None = None

    @classmethod
    def of(cls, typed: TypedColumns) -> Self:
        """With the values of described events as columns."""
        types = typed.types
        names = [name for name in typed.names() if name != TOPIC]
        return cls(pa.schema([(name, types[name] if name in types else COLUMNS[name].arrow) for name in names]), typed)

    @property
    def said(self) -> str:
        """What a folder or a table is told apart by: its columns are of one kind for ever."""
        return "" if self.typed is None else self.typed.said

    def reader(
        self, dsn: Dsn, *, fetch_size: int, fail_on_data_loss: bool, with_values: bool = False
    ) -> RangeReader | TypedRangeReader:
        """What reads these columns, and the values as text if that is asked for."""
        columns = tuple(dict.fromkeys((*self.schema.names, *([VALUE.name] if with_values else []))))
        reader = RangeReader(dsn=dsn, columns=columns, fetch_size=fetch_size, fail_on_data_loss=fail_on_data_loss)
        return reader if self.typed is None else TypedRangeReader.of(reader, self.typed)

    def after(self, known: pa.DataType, place: str) -> Self:
        """With the fields that a place has already, too; Refused if the type of one has changed."""
        data = evolved(known, self.schema.field(DATA).type, DATA, place)
        return replace(self, schema=self.schema.set(self.schema.get_field_index(DATA), pa.field(DATA, data)))

    def elsewhere(self) -> Self:
        """The same for another process: it has the upcasters of the modules that are named, and no others."""
        return replace(self, typed=self.typed and replace(self.typed, upcasters=self.typed.upcasters or ()))

    def conformed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch with the fields of the place."""
        if self.typed is None or batch.schema.equals(self.schema):
            return batch
        arrays = [conformed(batch[field.name], field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def told(values: str) -> str:
    """How values are kept, in a sentence."""
    return "text" if not values else "columns of all types" if values == TYPED else f"columns of {values!r}"


PLAIN = FileColumns(pa.schema([(name, column.arrow) for name, column in COLUMNS.items() if name != TOPIC]))
