"""Rows of an Iceberg table that are written anew: files that are merged, and those in which something was erased.

PyIceberg replaces rows by a condition, and rewrites each file that has one of them. So whole files are put back: which
ids each of them has is said by its manifest, or else by the file itself.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.table import Table

MOST = 64 << 20  # bytes of files that are rewritten in memory at a time

Bounds = tuple[int | None, int | None]


class IdRange(NamedTuple):
    """The ids of some files, and how large these are together."""

    first: int
    last: int
    size: int
    files: int

    @property
    def within(self) -> str:
        """The condition of their rows."""
        return f"(offset >= {self.first} AND offset <= {self.last})"


class IcebergRanges:
    """Which ids the files of a table have. Of those that had to be opened it remembers that, as they never change."""

    def __init__(self) -> None:
        self._read: dict[str, Bounds] = {}

    def newest(self, table: Table) -> int | None:
        """The greatest id of a row; None if no file tells."""
        bounds = [self._bounds(table, file)[1] for file in _data_files(table)]
        return max((one for one in bounds if one is not None), default=None)

    def having(self, table: Table, offsets: list[int]) -> list[IdRange]:
        """Those that have some of these ids; files that overlap are one."""
        ranges, found = list[IdRange](), list[tuple[int, int, int]]()
        for file in _data_files(table):
            first, last = self._bounds(table, file)
            if first is not None and last is not None:  # rows of others may have no id
                found.append((first, last, file["file_size_in_bytes"]))
        for first, last, size in sorted(found):
            if ranges and first <= ranges[-1].last:
                before = ranges.pop()
                ranges.append(IdRange(before.first, max(last, before.last), before.size + size, before.files + 1))
            else:
                ranges.append(IdRange(first, last, size, 1))
        return [one for one in ranges if bisect_left(offsets, one.first) < bisect_right(offsets, one.last)]

    def small(self, table: Table, target_size: int, *, by_day: bool) -> Iterator[IdRange]:
        """Neighbouring files that are small, and if `by_day` of one day: each of these is to become one file."""
        files = sorted(
            (day, *file_bounds, file["file_size_in_bytes"])
            for file in _data_files(table)
            # Rows of others may have no time, and files of another partitioning no day.
            if None not in (day := _day_of(file) if by_day else "", *(file_bounds := self._bounds(table, file)))
        )
        limit = min(target_size, MOST)
        group: list[Any] = []
        for file in [*files, None]:
            fits = file and group and file[0] == group[0][0] and sum(one[3] for one in group) + file[3] <= limit
            if group and not fits:
                if len(group) > 1:
                    yield IdRange(group[0][1], group[-1][2], sum(one[3] for one in group), len(group))
                group = []
            if file and file[3] < limit:
                group.append(file)

    def _bounds(self, table: Table, file: dict[str, Any]) -> Bounds:
        """The least and the greatest id of a file; where its manifest doesn't say, it is opened."""
        said = file["readable_metrics"]["offset"]
        if said["lower_bound"] is not None and said["upper_bound"] is not None:
            return said["lower_bound"], said["upper_bound"]
        path = file["file_path"]
        if path not in self._read:
            with table.io.new_input(path).open() as opened:
                there = pq.ParquetFile(opened)
                has_ids = "offset" in there.schema_arrow.names
                ids = there.read(["offset"])["offset"] if has_ids else pa.array([], pa.int64())
            found = pc.min_max(ids).as_py()
            self._read[path] = found["min"], found["max"]
        return self._read[path]


def portions(ranges: list[IdRange]) -> Iterator[list[IdRange]]:
    """Ranges whose files are in memory at a time."""
    some: list[IdRange] = []
    for one in ranges:
        if some and sum(each.size for each in some) + one.size > MOST:
            yield some
            some = []
        some.append(one)
    if some:
        yield some


def rows_within(table: Table, within: str) -> pa.Table:
    """Rows to be written anew, by their ids, with all columns of the table."""
    return table.scan(row_filter=within).to_arrow().cast(table.schema().as_arrow()).sort_by("offset")


def overwrite(change: Any, *, rows: pa.Table, within: str, said: dict[str, str]) -> None:
    """Put rows back in the place of those within, as part of a commit."""
    change.overwrite(rows, within, snapshot_properties=said)


def _data_files(table: Table) -> list[dict[str, Any]]:
    """The files of rows; PyIceberg can't list those of a snapshot that has none."""
    snapshot = table.current_snapshot()
    if snapshot is None or not snapshot.manifests(table.io):
        return []
    files: list[dict[str, Any]] = table.inspect.data_files().to_pylist()
    return files


def _day_of(file: dict[str, Any]) -> Any:
    """Its partition; None if it is of another partitioning."""
    return file["partition"].get("day")
