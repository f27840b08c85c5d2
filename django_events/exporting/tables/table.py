"""What an export needs of a table, whatever its format.

Exactly once rests on `append`: events and the mark that says how far the table is become one commit, which fails if
another one came in between. So a process that was frozen, or has lost its lock, adds nothing when it wakes up.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from django_events.exceptions import Refused
from django_events.exporting.file_columns import PLAIN, FileColumns, told
from django_events.exporting.writing import SCHEMA
from django_events.reading.typed.evolution import evolved, plain

INCARNATION = "django-events.incarnation"  # a property of the table
COLUMNS = "django-events.columns"  # what its values are typed as, if they are
NEXT = "django-events.next"  # what a commit calls its mark, where people and `mark()` look what happened


class Conflict(Exception):
    """Another commit came first; nothing was added."""


@dataclass(frozen=True)
class Mark:
    """How far a table is: of which topic, and the next id that it doesn't have."""

    incarnation: str
    next: int


class EventTable(Protocol):
    """A table of the events of one topic."""

    def mark(self) -> Mark | None:
        """The mark as it is now; None if the table has none yet. What is appended follows what was seen here.

        Refused if the table was set back, so that rows are gone which the mark says are there, or if it has rows and no
        mark. Where neither history nor rows tell whether it was set back, a table that was opened with `allow_loss`
        goes on.
        """

    def append(self, events: Iterable[pa.RecordBatch], mark: Mark) -> None:
        """Add events and set the mark, in one commit; Conflict if another commit came first.

        If `events` raises, nothing is added, and that error is raised.
        """

    def refuse_other_values(self) -> None:
        """Refused if the table has its values in other columns than those it was opened with."""

    def compact(self, target_size: int) -> int:
        """Merge small files; returns how many became fewer. Conflict if another commit came first."""

    def close(self) -> None:
        """Give back what is open."""


def is_at(newest: int | None, mark: Mark) -> bool:
    """Whether the rows of a table reach its mark, where its history doesn't."""
    return newest is not None and newest >= mark.next - 1


def lost_end(place: str, mark: Mark) -> Refused:
    return Refused(
        f"{place} was set back to an earlier version, or its newest rows were deleted, and its history doesn't say any "
        f"more which: by its mark it has the events up to {mark.next - 1}, and no row reaches that. Nothing was added. "
        "If rows were deleted, go on behind the mark with --allow-loss, until an export has added events. Otherwise "
        "export to another place."
    )


def lost_mark(place: str) -> Refused:
    return Refused(
        f"{place} has rows, and no mark that says up to which event: another tool has added them or removed the mark. "
        "Nothing was added. Export to another place."
    )


def new_columns(known: pa.Schema, place: str, columns: FileColumns = PLAIN) -> list[pa.Field]:
    """Columns of events that a table lacks, or of which it lacks fields; Refused if one has another type."""
    missing = []
    for field in SCHEMA if columns.typed is None else columns.schema:
        if field.name not in known.names:
            missing.append(field)
            continue
        there = known.field(field.name).type
        if (both := evolved(there, field.type, field.name, place)) != plain(there):
            missing.append(pa.field(field.name, both))
    return missing


def refuse_other_values(said: str | None, columns: FileColumns, place: str) -> None:
    """Refused if a table has its values in other columns than this run has: readers would find half of them."""
    if (said or "") != columns.said:
        raise Refused(
            f"The values of {place} are {told(said or '')}. This run has them {told(columns.said)}. Take another place."
        )
