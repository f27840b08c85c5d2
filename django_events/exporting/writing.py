"""Events in the shape of Arrow into files, each into the folder of its day or type, without Spark.

    with FolderFiles("/data/…/attempts/1f…", by=("day",), format="parquet", target_size=TARGET, task=0) as files:
        files.add(batch)

The files are what Spark writes: the same columns, types and names of folders. A row group has so many events that
DuckDB and Spark read several at a time, and `offset` rises in each file, so its statistics tell which to open.
"""

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from django_events.exporting.file_columns import PLAIN, FileColumns
from django_events.exporting.layout import BY, FOR_NULL, escaped, type_folder
from django_events.exporting.storage import data_files, make_below
from django_events.reading.columns import TIME
from django_events.reading.typed.columns import DATA, RESCUED, VERSION
from django_events.reading.typed.evolution import leaves

SCHEMA = PLAIN.schema

ROWS_PER_GROUP = 122_880  # what DuckDB reads as one piece of work
BYTES_PER_GROUP = 64 << 20  # in memory
MOST_PENDING = 128 << 20  # bytes of events that wait for the row groups of all folders
MOST_OPEN = 200  # files
PER_SPLIT = 16 << 20  # bytes of events that are put into folders at a time

# By these an event is looked for. Of what is long and never compared, statistics and dictionaries only cost time.
COMPARED = ["partition", "offset", "number", "timestamp", "type", "key", "published_at"]
COMPARED_TOO = [VERSION, RESCUED]  # where values are typed
REPEATED = ["partition", "type", "key", "metadata"]
ZSTD_LEVEL = 1
BUFFER = 1 << 20

SECOND = 1_000_000
DAY, HOUR = 86_400 * SECOND, 3_600 * SECOND


class Output(Protocol):
    """An open file of events."""

    def write(self, table: pa.Table) -> None: ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class FolderFiles:
    """Open files, one for each folder that has events, until each has its size."""

    def __init__(
        self,
        place: str,
        *,
        by: tuple[str, ...],
        format: str,
        target_size: int,
        task: int,
        columns: FileColumns = PLAIN,
    ) -> None:
        self._place, self._by, self._target, self._task = Path(place), by, target_size, task
        self._columns = columns
        self._kind, self._suffix = OUTPUTS[format]
        self._id = uuid4()
        self.files: list[str] = []  # that were begun, by their names below the place
        self._batches: list[pa.RecordBatch] = []
        self._size = 0
        self._folders: dict[str, _Pending] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._split()
                for pending in self._folders.values():
                    self._flush(pending)
                    self._close(pending)
        except BaseException as late:
            error = late
            raise
        finally:
            if error is not None:
                self._discard()

    def _discard(self) -> None:
        """Leave no file that isn't whole."""
        for pending in self._folders.values():
            with suppress(Exception):  # what went wrong first is what is said
                pending.close()
        for file in self.files:
            with suppress(OSError):
                (self._place / file).unlink(missing_ok=True)

    def add(self, batch: pa.RecordBatch) -> None:
        """Events in the order of their ids."""
        self._batches.append(self._columns.conformed(batch))
        self._size += batch.nbytes
        if self._size >= PER_SPLIT:
            self._split()

    def _split(self) -> None:
        if not self._batches:
            return
        table = pa.Table.from_batches(self._batches, self._columns.schema)
        self._batches, self._size = [], 0
        for folder, some in split(table, self._by):
            pending = self._folders.get(folder) or self._folders.setdefault(folder, _Pending(folder))
            pending.add(some)
            if pending.rows >= ROWS_PER_GROUP or pending.size >= BYTES_PER_GROUP:
                self._flush(pending)
        while sum(pending.size for pending in self._folders.values()) > MOST_PENDING:
            self._flush(max(self._folders.values(), key=lambda pending: pending.size))

    def _flush(self, pending: "_Pending") -> None:
        """Write what waits as row groups."""
        if not pending.rows:
            return
        table = pending.taken()
        if pending.output is None:
            self._close_one_of_many()
            pending.output = self._kind(self._new(pending.folder), self._columns.schema)
        pending.output.write(table)
        if pending.output.size() >= self._target:
            self._close(pending)

    def _close_one_of_many(self) -> None:
        opened = [pending for pending in self._folders.values() if pending.output is not None]
        if len(opened) >= MOST_OPEN:
            self._close(max(opened, key=lambda pending: pending.output.size() if pending.output else 0))

    def _close(self, pending: "_Pending") -> None:
        pending.close()

    def _new(self, folder: str) -> Path:
        """A new file; FileNotFoundError if another run has cleared the place."""
        at = make_below(self._place, folder)
        path = at / f"part-{self._task:05d}-{self._id}.c{len(self.files) + 1:03d}{self._suffix}"
        self.files.append(str(path.relative_to(self._place)))
        return path


class _Pending:
    """What waits for a folder, and its open file if it has one."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.rows = self.size = 0
        self.output: Output | None = None
        self._tables: list[pa.Table] = []

    def add(self, table: pa.Table) -> None:
        self._tables.append(table)
        self.rows += table.num_rows
        self.size += table.nbytes

    def taken(self) -> pa.Table:
        table = pa.concat_tables(self._tables)
        self._tables, self.rows, self.size = [], 0, 0
        return table

    def close(self) -> None:
        if self.output is not None:
            output, self.output = self.output, None
            output.close()


def split(table: pa.Table, by: tuple[str, ...]) -> Iterator[tuple[str, pa.Table]]:
    """The events of each folder, in the order that they have."""
    if not by or not table.num_rows:
        yield "", table
        return
    levels = list(_levels(table, by))
    codes = np.zeros(table.num_rows, np.int64)
    for names, indexes in levels:
        codes = codes * len(names) + indexes
    _, beginnings, which = np.unique(codes, return_index=True, return_inverse=True)
    is_in_order = bool((np.diff(which) >= 0).all())
    ends = [*beginnings[1:].tolist(), table.num_rows] if is_in_order else []
    for number, beginning in enumerate(beginnings.tolist()):
        folder = "/".join(names[indexes[beginning]] for names, indexes in levels)
        if is_in_order:
            yield folder, table.slice(beginning, ends[number] - beginning)
        else:
            yield folder, table.take(pa.array(np.flatnonzero(which == number)))


def folders_of(table: pa.Table, by: tuple[str, ...]) -> pa.Array:
    """The folder of each event."""
    if not table.num_rows:
        return pa.array([], pa.string())
    parts = [pa.array(names).take(pa.array(indexes)) for names, indexes in _levels(table, by)]
    return pc.binary_join_element_wise(*parts, "/")


def _levels(table: pa.Table, by: tuple[str, ...]) -> Iterator[tuple[list[str], Any]]:
    """Of each level the names of its folders, and for each event the index of its own."""
    for name in by:
        values, indexes = VALUES[name](table)
        yield [f"{BY[name]}={value}" for value in values], indexes


def _units(table: pa.Table, size: int) -> "np.typing.NDArray[np.int64]":
    """Which day, or hour, since 1970 each event was logged in, in UTC."""
    moments: np.typing.NDArray[np.int64] = table["timestamp"].cast(pa.int64()).to_numpy()
    return moments // size


def _named(values: "np.typing.NDArray[Any]", name: Callable[[Any], str]) -> tuple[list[str], Any]:
    found, which = np.unique(values, return_inverse=True)
    return [name(one) for one in found.tolist()], which


def _days(table: pa.Table) -> tuple[list[str], Any]:
    return _named(_units(table, DAY), lambda day: str(np.datetime64(day, "D")))


def _hours(table: pa.Table) -> tuple[list[str], Any]:
    return _named(_units(table, HOUR) % 24, lambda hour: f"{hour:02d}")


def _months(table: pa.Table) -> tuple[list[str], Any]:
    return _named(_units(table, DAY).astype("datetime64[D]").astype("datetime64[M]").astype(np.int64), _month)


def _month(number: int) -> str:
    return str(np.datetime64(number, "M"))


def _types(table: pa.Table) -> tuple[list[str], Any]:
    encoded = pc.dictionary_encode(table["type"], null_encoding="encode").combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.chunk(0)
    names = [FOR_NULL if name is None else escaped(type_folder(name)) for name in encoded.dictionary.to_pylist()]
    return names, encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


# Of each name in `layout.BY`: the names of its folders, and for each event the index of its own.
VALUES: dict[str, Callable[[pa.Table], tuple[list[str], Any]]] = {
    "month": _months,
    "day": _days,
    "hour": _hours,
    "type": _types,
}


def by_offset(schema: pa.Schema) -> tuple[pq.SortingColumn, ...]:
    """How a file says that it is in the order of the ids."""
    found: tuple[pq.SortingColumn, ...] = pq.SortingColumn.from_ordering(schema, [("offset", "ascending")])
    return found


def parquet_writer(file: IO[bytes], schema: pa.Schema, *, is_sorted: bool = True) -> pq.ParquetWriter:
    """A writer of events, so that readers open only the columns and row groups that they ask for."""
    typed = list(leaves(schema.field(DATA).type, DATA)) if DATA in schema.names else []
    return pq.ParquetWriter(
        file,
        schema,
        compression="zstd",
        compression_level=ZSTD_LEVEL,
        use_dictionary=[*(name for name in REPEATED if name in schema.names), *typed],
        write_statistics=[*(name for name in (*COMPARED, *COMPARED_TOO) if name in schema.names), *typed],
        sorting_columns=by_offset(schema) if is_sorted else None,
    )


class ParquetOutput:
    """A file of Parquet."""

    def __init__(self, path: Path, schema: pa.Schema = SCHEMA) -> None:
        self._file: IO[bytes] = path.open("xb", buffering=BUFFER)
        self._writer = parquet_writer(self._file, schema)

    def write(self, table: pa.Table) -> None:
        self._writer.write_table(table, row_group_size=ROWS_PER_GROUP)

    def size(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        with self._file:
            self._writer.close()


class JsonOutput:
    """A file with a line of JSON per event: all columns, NULLs included, bytes in base 64."""

    def __init__(self, path: Path, schema: pa.Schema = SCHEMA) -> None:
        self._file: IO[bytes] = path.open("xb", buffering=BUFFER)
        self._names = schema.names

    def write(self, table: pa.Table) -> None:
        for batch in table.to_batches(max_chunksize=1_000):
            columns = [_said(batch.column(name)) for name in self._names]
            rows = (dict(zip(self._names, row, strict=True)) for row in zip(*columns, strict=True))
            self._file.writelines(line_of(row) for row in rows)

    def size(self) -> int:
        return self._file.tell()

    def close(self) -> None:
        self._file.close()


def line_of(row: Mapping[str, Any]) -> bytes:
    """An event as a line of JSON."""
    return f"{json.dumps(row, ensure_ascii=False, separators=(',', ':'))}\n".encode()


def _said(column: pa.Array) -> list[Any]:
    if column.type == TIME:
        moments = column.to_numpy(zero_copy_only=False).astype("datetime64[us]")
        texts = np.datetime_as_string(moments, unit="us", timezone="UTC")  # PyArrow's own needs a database of zones
        return [None if np.isnat(moment) else str(text) for moment, text in zip(moments, texts, strict=True)]
    values = column.to_pylist()
    if pa.types.is_binary(column.type):
        return [None if value is None else base64.b64encode(value).decode() for value in values]
    return list(values)


OUTPUTS: dict[str, tuple[Callable[[Path, pa.Schema], Output], str]] = {
    "parquet": (ParquetOutput, ".zstd.parquet"),
    "json": (JsonOutput, ".json"),
}


def count(format: str, place: str) -> int:
    """How many events the files below a folder have, by their footers or lines."""
    counted = _rows_of_parquet if format == "parquet" else _lines
    return sum(map(counted, data_files(place)))


@dataclass(frozen=True)
class Written:
    """How many events files have, and the ids of the first and the last."""

    rows: int
    first: int
    last: int


def written(format: str, place: str) -> Written | None:
    """What the files below a folder have, by their footers or lines; None if that is no event."""
    read = _written_in_parquet if format == "parquet" else _written_in_lines
    found = [one for file in data_files(place) if (one := read(file)) is not None]
    if not found:
        return None
    rows, firsts, lasts = zip(*((one.rows, one.first, one.last) for one in found), strict=True)
    return Written(sum(rows), min(firsts), max(lasts))


def _written_in_parquet(file: Path) -> Written | None:
    footer = pq.read_metadata(file)
    column = footer.schema.names.index("offset")
    of_groups = [footer.row_group(number).column(column).statistics for number in range(footer.num_row_groups)]
    if not footer.num_rows:
        return None
    return Written(footer.num_rows, min(one.min for one in of_groups), max(one.max for one in of_groups))


def _written_in_lines(file: Path) -> Written | None:
    """By the first and the last line: ids rise in each file."""
    rows, first, last = 0, b"", b""
    with file.open("rb") as lines:
        for last in lines:
            first = first or last
            rows += 1
    return Written(rows, json.loads(first)["offset"], json.loads(last)["offset"]) if rows else None


def _rows_of_parquet(file: Path) -> int:
    return int(pq.read_metadata(file).num_rows)


def _lines(file: Path) -> int:
    with file.open("rb") as lines:
        return sum(1 for _ in lines)
