"""A file of events as a comparison with the log reads it: what ids it has, and the rows of a range.

file = OPENED["json"](Path("/data/events/topic=orders/…/part-00000-….json"))
file.rows, file.bounds
file.read(["offset", "key"], 1, 1_000)
"""

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from django_events.exceptions import Refused
from django_events.exporting.writing import BUFFER, SCHEMA

LINES = 10_000  # that are parsed, and passed over, together


class FileOfEvents(Protocol):
    """A file of events. `bounds` are its least and its greatest id; None if it doesn't say."""

    rows: int
    schema: pa.Schema
    bounds: tuple[int, int] | None

    def read(self, names: Sequence[str], start: int, end: int) -> pa.Table:
        """The rows with ids from `start` to before `end`: of these columns those that it has."""


class ParquetEvents:
    """A file of Parquet; Refused if it is none of events."""

    def __init__(self, file: Path) -> None:
        self._file = file
        metadata = _footer(file)
        self.rows, self.schema = metadata.num_rows, metadata.schema.to_arrow_schema()
        self.bounds = _bounds(metadata)

    def read(self, names: Sequence[str], start: int, end: int) -> pa.Table:
        there = ds.dataset(str(self._file), format="parquet")
        known = [name for name in names if name in there.schema.names]
        return there.to_table(known, filter=within(start, end))


class _Lines(NamedTuple):
    """Some lines: where they begin, and their least and greatest id."""

    begin: int
    first: int
    last: int


class JsonEvents:
    """A file with a line of JSON for each event; Refused if a line is none. A name that a line lacks is NULL there."""

    schema = SCHEMA

    def __init__(self, file: Path) -> None:
        self._file, self._lines, self.rows = file, list[_Lines](), 0
        with _opened(file) as source:
            begin = 0
            while lines := list(islice(source, LINES)):
                ids = [row["offset"] for row in map(self._parsed, lines)]
                self._lines.append(_Lines(begin, min(ids), max(ids)))
                self.rows += len(ids)
                begin += sum(map(len, lines))
        firsts, lasts = [one.first for one in self._lines], [one.last for one in self._lines]
        self.bounds: tuple[int, int] | None = (min(firsts), max(lasts)) if self._lines else None

    def read(self, names: Sequence[str], start: int, end: int) -> pa.Table:
        rows = [row for row in self._parsed_of(start, end) if start <= row["offset"] < end]
        schema = pa.schema([field for field in SCHEMA if field.name in names])
        try:
            columns = [_column([row.get(field.name) for row in rows], field.type) for field in schema]
        except (ValueError, TypeError, OverflowError):
            raise self._refused() from None
        return pa.table(columns, schema=schema)

    def _parsed_of(self, start: int, end: int) -> Iterator[dict[str, Any]]:
        with _opened(self._file) as source:
            for one in self._lines:
                if one.first < end and one.last >= start:
                    source.seek(one.begin)
                    yield from map(self._parsed, list(islice(source, LINES)))

    def _parsed(self, line: bytes) -> dict[str, Any]:
        try:
            row = json.loads(line)
            if type(row) is dict and type(row["offset"]) is int:
                return row
        except (ValueError, KeyError, RecursionError):
            pass
        raise self._refused()

    def _refused(self) -> Refused:
        return Refused(f"{self._file} has a line that is no event. Find out what wrote it there.")


OPENED: dict[str, Callable[[Path], FileOfEvents]] = {"parquet": ParquetEvents, "json": JsonEvents}


def within(start: int, end: int) -> Any:
    """The condition on ids from `start` to before `end`."""
    return (pc.field("offset") >= start) & (pc.field("offset") < end)


def _column(values: list[Any], kind: pa.DataType) -> pa.Array:
    """A column of what JSON says: times and bytes are texts there."""
    if pa.types.is_binary(kind):
        return pa.array([None if value is None else base64.b64decode(value, validate=True) for value in values], kind)
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.string()).cast(kind)
    return pa.array(values, kind)


def _opened(file: Path) -> IO[bytes]:
    try:
        return file.open("rb", buffering=BUFFER)
    except FileNotFoundError:
        raise _removed(file) from None


def _footer(file: Path) -> Any:
    """What a file says of itself; Refused if it is none of events."""
    try:
        found = pq.read_metadata(file)
    except FileNotFoundError:
        raise _removed(file) from None
    except (pa.ArrowInvalid, OSError) as error:
        raise Refused(f"{file} can't be read: {str(error).splitlines()[0]} Find out what wrote it.") from None
    if "offset" not in found.schema.names:
        raise Refused(f"{file} has no column 'offset', so it holds no events. Find out what wrote it there.")
    return found


def _removed(file: Path) -> Refused:
    return Refused(f"{file} was removed while it was looked at. Run it again.")


def _bounds(metadata: Any) -> tuple[int, int] | None:
    """The least and the greatest id of a file; None if it doesn't say."""
    index = metadata.schema.names.index("offset")
    groups = [metadata.row_group(number).column(index).statistics for number in range(metadata.num_row_groups)]
    if not groups or any(one is None or not one.has_min_max for one in groups):
        return None
    return min(one.min for one in groups), max(one.max for one in groups)
