"""Erasing in files of Parquet: each file that has an erased event is written anew beside it, and takes its name.

A reader that has the old file open reads it to its end; there is no moment without the file. A process that was frozen
can't put back what another one has erased since: what it writes is in the folder of its attempt, which the next run
removes before it looks at any file. If that run has begun before the folder was there, this one sees it and ends.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from django_events.exceptions import Invalid
from django_events.exporting.blanking import blanked
from django_events.exporting.erasures import Erasures
from django_events.exporting.parts import Parts
from django_events.exporting.paths import split
from django_events.exporting.storage import OfDisk, Storage
from django_events.exporting.writing import ROWS_PER_GROUP, by_offset, parquet_writer

LEFT_IN_FILES = "Readers that have a file of {path} open read it as it was, and copies of it stay as they are."
AT_ONCE = 100_000  # rows whose keys are looked at


@dataclass(kw_only=True)
class ErasedInFiles:
    """What was done: rows that had a payload or another key, and files that were written anew."""

    rows: int = 0
    files: int = 0


def refuse_other_files(storage: Storage, format: str, path: str) -> None:
    """Invalid if files of that kind can't be erased in."""
    if format != "parquet" or not isinstance(storage, OfDisk):
        raise Invalid(
            f"--erase can't erase in files of format {format!r} at {path!r}: it takes Parquet on a disk, by --engine "
            "local. Remove the folder, and export it anew: what is erased in the log comes without its payload."
        )


def erase_in_files(journal: Parts, root: str, topic: str, erasures: Erasures) -> ErasedInFiles:
    """Blank what was erased in all parts of a topic; Refused if another run has taken the folder over.

    The caller's run has begun: no other one writes parts that it doesn't see here.
    """
    done, attempt = ErasedInFiles(), journal.attempt()
    place = Path(split(journal.place_of(attempt))[2])
    place.mkdir(parents=True)
    journal.refuse_replaced()  # a run that began before the folder was there has not cleared it
    try:
        for file in list(_files(journal, root, topic, erasures.last_id)):
            if rows := _erase(file, place, erasures):
                done.rows += rows
                done.files += 1
    except FileNotFoundError:  # another run clears what it finds
        journal.refuse_replaced()
        raise
    journal.give_up(attempt)
    return done


def _files(journal: Parts, root: str, topic: str, last_id: int) -> Iterator[Path]:
    for part in sorted(journal.done, key=lambda part: part.start):
        if part.topic == topic and part.start <= last_id:
            yield from sorted(Path(split(root)[2], part.folder).rglob("part-*.parquet"))


def _erase(file: Path, place: Path, erasures: Erasures) -> int:
    """Blank what was erased in a file; returns how many rows were changed."""
    with pq.ParquetFile(file) as source:
        batches = source.iter_batches(AT_ONCE, columns=["offset", "key"])
        erased = pa.concat_tables([erasures.chosen(batch) for batch in batches] or [erasures.nothing])
        if not erased.num_rows:
            return 0
        rows = 0
        draft = place / file.name
        with (
            draft.open("xb") as out,
            parquet_writer(out, source.schema_arrow, is_sorted=_is_sorted(source)) as written,
        ):
            for number in range(source.num_row_groups):
                group, changed = blanked(source.read_row_group(number), erased)
                written.write_table(group, row_group_size=ROWS_PER_GROUP)
                rows += changed
            written.close()
            out.flush()
            os.fsync(out.fileno())
    if not rows:
        draft.unlink()
        return 0
    with suppress(FileNotFoundError):  # Hadoop's, of the old file
        (file.parent / f".{file.name}.crc").unlink()
    os.replace(draft, file)  # noqa: PTH105  # one system call: fails if another run has cleared the place
    _keep(file.parent)
    return rows


def _is_sorted(source: pq.ParquetFile) -> bool:
    """Whether a file says that it is in the order of the ids; those that Spark has written say nothing."""
    order = by_offset(source.schema_arrow)
    groups = (source.metadata.row_group(number) for number in range(source.num_row_groups))
    return all(group.sorting_columns == order for group in groups)


def _keep(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
