"""Files of rows that are written for a commit, and named by it afterwards: by tasks of Spark, or by threads.

A file that no commit names is not part of a table, so they write straight into its folder, by names that are unique.
What one leaves that was killed, or wakes up too late, `expire` removes. A file that a commit names was written after
the version was read that the commit stands on. So it is not among the files that another run has found unnamed before.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from django_events.exceptions import Invalid, Refused
from django_events.exporting.paths import split
from django_events.exporting.range_files import RangeFiles
from django_events.exporting.storage import not_there
from django_events.reading.ranges import Range


class RowsWriter(Protocol):
    """What writes the events of a commit into files, so that they don't pass through this process."""

    def working(self) -> AbstractContextManager[Callable[[], object]]:
        """Gives what ends the work of the block, from another thread."""

    def write_range(self, made: RangeFiles, whole: Range, folder: str, bytes_per_row: float) -> tuple[int, list[str]]:
        """Write the events of a range into a folder; returns how many were read, and the files by their names."""


@dataclass(frozen=True)
class RowsFile:
    """A file of rows: its name below the folder that holds them, its bytes, and what its footer says."""

    name: str
    size: int
    footer: Any

    @property
    def rows(self) -> int:
        return int(self.footer.num_rows)

    @property
    def day(self) -> str:
        """The day of its rows: it is in the folder of that day."""
        return self.name.partition("/")[0].partition("=")[2]


@dataclass(frozen=True)
class Bounds:
    """What a column of a file has: the least and the greatest value, and how many NULLs. None is not known."""

    least: Any
    greatest: Any
    nulls: int


def read_footers(folder: str, names: Iterable[str]) -> list[RowsFile]:
    """The files by their names; Refused if this machine doesn't find one, or not the whole of it."""
    found = []
    for name in names:
        path = Path(folder, name)
        try:
            found.append(RowsFile(name, path.stat().st_size, pq.read_metadata(path)))
        except (FileNotFoundError, pa.ArrowInvalid):
            raise not_there(str(path)) from None
    return found


def bounds(file: RowsFile) -> dict[str, Bounds]:
    """Of each column that has statistics in all row groups. A text that is long has none, so then no bound is known."""
    groups = [file.footer.row_group(number) for number in range(file.footer.num_row_groups)]
    found = {}
    for index in range(file.footer.num_columns):
        columns = [group.column(index) for group in groups]
        known = [column.statistics for column in columns]
        if not columns or not all(one is not None and one.has_null_count for one in known):
            continue
        with_values = [one for one, column in zip(known, columns, strict=True) if one.null_count < column.num_values]
        is_known = bool(with_values) and all(one.has_min_max for one in with_values)
        least = greatest = None
        with suppress(OverflowError):  # PostgreSQL has times that Python hasn't
            if is_known:
                least, greatest = min(one.min for one in with_values), max(one.max for one in with_values)
        nulls = sum(one.null_count for one in known)
        found[columns[0].path_in_schema] = Bounds(least=least, greatest=greatest, nulls=nulls)
    return found


def folder_on_disk(address: str) -> str:
    """The folder at an address; Invalid if it is in an object store."""
    scheme, _, path = split(address)
    if scheme not in ("", "file"):
        raise Invalid(
            f"Neither Spark's tasks nor threads write the files of a table to {address!r}: they write to a disk, and "
            "the library of the format has the keys of the store. Leave --engine spark and --threads out, or take a "
            "folder that this machine and all of Spark's see."
        )
    return path


def other_partitions(place: str, by: str) -> Refused:
    return Refused(
        f"{place} is partitioned by {by}, and Spark's tasks, or threads, write files for a day each. Nothing was "
        "added. Leave --engine spark and --threads out, or partition it by day."
    )
