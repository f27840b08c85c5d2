"""A file of events written anew without what was erased, format by format.

    rows = REWRITERS["json"](file, draft, erasures)

The draft is there, and on the disk, if there are rows that had something to lose. What isn't erased stays as it was:
in JSON byte by byte, in Parquet row group by row group.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from django_events.exceptions import Refused
from django_events.exporting.blanking import LEFT, blanked
from django_events.exporting.erasures import Erasures
from django_events.exporting.writing import BUFFER, ROWS_PER_GROUP, by_offset, line_of, parquet_writer

AT_ONCE = 100_000  # rows whose keys are looked at
LINES_AT_ONCE = 1_000  # that are in memory with their payloads


def rewrite_parquet(file: Path, draft: Path, erasures: Erasures) -> int:
    """Write a file of Parquet anew; returns how many rows were changed."""
    with _opened(file) as source:
        batches = source.iter_batches(AT_ONCE, columns=["offset", "key"])
        erased = pa.concat_tables([erasures.chosen(batch) for batch in batches] or [erasures.nothing])
        if not erased.num_rows:
            return 0
        rows = 0
        with (
            _drafted(draft) as out,
            parquet_writer(out, source.schema_arrow, is_sorted=_is_sorted(source)) as written,
        ):
            for number in range(source.num_row_groups):
                group, changed = blanked(source.read_row_group(number), erased)
                written.write_table(group, row_group_size=ROWS_PER_GROUP)
                rows += changed
    return rows


def rewrite_json(file: Path, draft: Path, erasures: Erasures) -> int:
    """Write a file with a line of JSON per event anew; returns how many rows were changed."""
    with file.open("rb", buffering=BUFFER) as source:
        found = [erasures.chosen(rows) for rows in _keys(source, file)]
        erased = pa.concat_tables(found or [erasures.nothing])
        if not erased.num_rows:
            return 0
        rows, offsets = 0, set(erased["offset"].to_pylist())
        source.seek(0)
        with _drafted(draft) as out:
            while lines := list(islice(source, LINES_AT_ONCE)):
                known = [_parsed(line, file) for line in lines]
                at = [index for index, row in enumerate(known) if row["offset"] in offsets]
                new, changed = _blanked([known[index] for index in at], erased)
                for index, row in zip(at, new, strict=True):
                    lines[index] = line_of(row)
                out.writelines(lines)
                rows += changed
    return rows


REWRITERS: dict[str, Callable[[Path, Path, Erasures], int]] = {"parquet": rewrite_parquet, "json": rewrite_json}


@contextmanager
def _opened(file: Path) -> Iterator[pq.ParquetFile]:
    """A file of Parquet; Refused if it isn't whole."""
    try:
        with pq.ParquetFile(file) as source:
            yield source
    except pa.ArrowInvalid as error:
        raise Refused(
            f"{file} can't be read, so what is erased can't be found in it: {str(error).splitlines()[0]} Remove the "
            "folder, and export it anew."
        ) from None


@contextmanager
def _drafted(draft: Path) -> Iterator[IO[bytes]]:
    """A new file, which is on the disk when the block ends."""
    with draft.open("xb", buffering=BUFFER) as out:
        yield out
        out.flush()
        os.fsync(out.fileno())


def _is_sorted(source: pq.ParquetFile) -> bool:
    """Whether a file says that it is in the order of the ids; those that Spark has written say nothing."""
    order = by_offset(source.schema_arrow)
    groups = (source.metadata.row_group(number) for number in range(source.num_row_groups))
    return all(group.sorting_columns == order for group in groups)


def _keys(source: IO[bytes], file: Path) -> Iterator[pa.Table]:
    """`offset` and `key` of all lines."""
    while rows := [_place(_parsed(line, file)) for line in islice(source, AT_ONCE)]:
        offsets, keys = zip(*rows, strict=True)
        yield pa.table({"offset": pa.array(offsets, pa.int64()), "key": pa.array(keys, pa.string())})


def _place(row: dict[str, Any]) -> tuple[int, str | None]:
    return row["offset"], row.get("key")


def _parsed(line: bytes, file: Path) -> dict[str, Any]:
    """A line as a row; Refused if it is none: something else has written there."""
    try:
        row = json.loads(line)
        if type(row) is dict and type(row["offset"]) is int:
            return row
    except (ValueError, KeyError):
        pass
    raise Refused(
        f"{file} has a line that is no event, so what is erased can't be found in it. Remove the folder, and "
        "export it anew."
    )


def _blanked(rows: list[dict[str, Any]], erased: pa.Table) -> tuple[list[dict[str, Any]], int]:
    """Rows of JSON as `blanked` has them. It is told which payloads there are, and not what they say."""
    payload = dict.fromkeys(name for row in rows for name in row if name not in LEFT)
    columns = {
        "offset": pa.array([row["offset"] for row in rows], pa.int64()),
        "key": pa.array([row.get("key") for row in rows], pa.string()),
        "metadata": pa.array([row.get("metadata") for row in rows], pa.string()),
        **{name: pa.array([None if row.get(name) is None else True for row in rows], pa.bool_()) for name in payload},
    }
    table, changed = blanked(pa.table(columns), erased)
    if not changed:
        return rows, 0
    new = []
    for row, told in zip(rows, table.to_pylist(), strict=True):
        gone = {name: None for name in payload if name in row and told[name] is None}
        new.append({**row, "key": told["key"], "metadata": told["metadata"], **gone})
    return new, changed
