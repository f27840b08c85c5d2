"""Erasing in files: each one that has an erased event is written anew beside it, and takes its name.

A reader that has the old file open reads it to its end; there is no moment without the file. A process that was frozen
can't put back what another one has erased since: what it writes is in the folder of its attempt, which the next run
removes before it looks at any file. If that run has begun before the folder was there, this one sees it and ends.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from django_events.exceptions import Invalid, Refused
from django_events.exporting.erasures import Erasures
from django_events.exporting.parts import Parts
from django_events.exporting.paths import split
from django_events.exporting.rewriting import REWRITERS
from django_events.exporting.storage import OfDisk, Storage, data_files

LEFT_IN_FILES = "Readers that have a file of {path} open read it as it was, and copies of it stay as they are."


@dataclass(kw_only=True)
class ErasedInFiles:
    """What was done: rows that had a payload or another key, and files that were written anew."""

    rows: int = 0
    files: int = 0


def refuse_other_files(storage: Storage, format: str, path: str) -> None:
    """Invalid if files of that kind can't be erased in."""
    if format not in REWRITERS or not isinstance(storage, OfDisk):
        raise Invalid(
            f"--erase can't erase in files of format {format!r} at {path!r}: it takes Parquet and JSON on a disk that "
            "this process sees. Remove the folder, and export it anew: what is erased in the log comes without its "
            "payload."
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
            if rows := _erase(file, place, journal.format, erasures):
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
            for file in data_files(f"{root}/{part.folder}"):
                if file.suffix != f".{journal.format}":
                    raise Refused(f"{file} is no file that can be erased in, expected one of {journal.format}.")
                yield file


def _erase(file: Path, place: Path, format: str, erasures: Erasures) -> int:
    """Blank what was erased in a file; returns how many rows were changed."""
    draft = place / file.name
    rows = REWRITERS[format](file, draft, erasures)
    if not rows:
        draft.unlink(missing_ok=True)
        return 0
    with suppress(FileNotFoundError):  # Hadoop's, of the old file
        (file.parent / f".{file.name}.crc").unlink()
    shutil.copymode(file, draft)
    os.replace(draft, file)  # noqa: PTH105  # one system call: fails if another run has cleared the place
    _keep(file.parent)
    return rows


def _keep(folder: Path) -> None:
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
