"""What an export needs of a table, whatever its format.

Exactly once rests on `append`: events and the mark that says how far the table is become one commit, which fails if
another one came in between. So a process that was frozen, or has lost its lock, adds nothing when it wakes up.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

import pyarrow as pa

from django_events.exceptions import Refused
from django_events.exporting.erasures import LastErasure
from django_events.exporting.file_columns import PLAIN, FileColumns, told
from django_events.exporting.tables.expiring import RemovedVersions
from django_events.exporting.tables.rows_files import RowsFile
from django_events.exporting.writing import SCHEMA
from django_events.reading.typed.evolution import evolved, plain

INCARNATION = "django-events.incarnation"  # a property of the table
COLUMNS = "django-events.columns"  # what its values are typed as, if they are
NEXT = "django-events.next"  # what a commit calls its mark, where people and `mark()` look what happened
FIRST = "django-events.first"  # the id that the table begins at, beside its mark
GREATEST = "django-events.greatest"  # the greatest id of a row that a table of states had then
ERASED = "django-events.erased"  # the same of the erasures that are applied
ERASED_AT = "django-events.erased-at"  # and when the last of them began
KIND = "django-events.kind"  # a property of the table, where it isn't a table of events
DELETES = "django-events.deletes"  # one of a table of states: the types by which a key is gone, as a list in JSON
EVENTS, STATES = "events", "states"


class Conflict(Exception):
    """Another commit came first; nothing was added."""


@dataclass(frozen=True)
class Mark:
    """How far a table is: of which topic, and the next id that it doesn't have.

    `first` is the id that it begins at, which the commit that begins it says: rows may be deleted later.
    """

    incarnation: str
    next: int
    first: int | None = field(default=None, compare=False)


class EventTable(Protocol):
    """A table of the events of one topic.

    `lost_end` is whether its newest rows were deleted, and its history doesn't say so any more: `append` says it again.
    `left_out` is how many events a table of states could not take, because they have no key. `first_erased` is the mark
    of erasures that the first events bring with them.
    """

    lost_end: bool
    left_out: int
    first_erased: LastErasure

    @property
    def place(self) -> str:
        """What messages call it."""

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

    def folder_of_rows(self) -> str:
        """The folder that files of rows are written into by others, each below that of its day; Invalid in a store."""

    def columns_of_rows(self) -> FileColumns:
        """The columns of these files, which the table is given if it lacks some; Refused if it needs another writer.

        Conflict if another commit came first, as then `mark` hasn't seen it.
        """

    def add(self, files: Sequence[RowsFile], mark: Mark) -> None:
        """As `append`, of files that were written after `mark` and `columns_of_rows` were asked."""

    def refuse_other_values(self) -> None:
        """Refused if the table has its values in other columns than those it was opened with, or other states."""

    def deletes(self) -> tuple[str, ...]:
        """Of a table of states the types of events by which a key is gone."""

    def erased(self) -> int:
        """Up to which erasure rows are blanked, as `mark` has seen it; 0 if none was applied."""

    def last_erasure(self) -> LastErasure:
        """The same, with when that erasure began."""

    def version(self) -> int:
        """The number of the version that `mark` has seen."""

    def keys(self, until: int) -> Iterator[pa.RecordBatch]:
        """`offset` and `key` of the rows up to an id, in the version that `mark` has seen."""

    def blank(self, erased: pa.Table, mark: Mark) -> int:
        """Blank rows: `offset`, and the `key` and `metadata` that they get. Returns how many had something to lose.

        In commits of its own, which an append that was begun before conflicts with, as it has read the log before.
        Conflict if another commit came first.
        """

    def say_erased(self, last: LastErasure, mark: Mark) -> None:
        """Set the mark of erasures, in a commit like those of `blank`."""

    def compact(self, target_size: int) -> Iterator[int]:
        """Merge small files; says of each commit how many became fewer. Conflict if another commit came first."""

    def expire(self, age: timedelta, stopped: Callable[[], bool]) -> RemovedVersions:
        """Remove former versions, and then files that are that old and that no other version names.

        What was begun before, and isn't committed yet, conflicts with it: its files may be gone. Conflict if another
        commit came first. What it has not removed when it is to stop, or is killed, the next one removes. Why
        something can't be removed is in `left`.
        """

    def thin(self, age: timedelta) -> RemovedVersions:
        """Remove former versions, if commits take longer by them. Files stay. Conflict if another commit came first."""

    def close(self) -> None:
        """Give back what is open."""


@dataclass(frozen=True, kw_only=True)
class Opening:
    """How a run opens a table: with the types that delete keys of a table of states, and its columns of values.

    With `allow_loss` it goes on where rows are gone and the table's history doesn't say any more which.
    """

    deletes: Collection[str] = ()
    allow_loss: bool = False
    columns: FileColumns = PLAIN


DEFAULTS = Opening()


class OpenedTable:
    """What tables of all formats have in common, once they are opened: see `EventTable`."""

    kind = EVENTS

    def __init__(self, how: Opening) -> None:
        self._deletes, self._allow_loss, self._columns = how.deletes, how.allow_loss, how.columns
        self.lost_end = False
        self.left_out = 0
        self.first_erased = LastErasure()

    @property
    def place(self) -> str:
        raise NotImplementedError

    def values(self) -> str:
        """What its values are typed as; nothing where they are text."""
        raise NotImplementedError

    def deletes(self) -> tuple[str, ...]:
        return ()

    def _said_of_rows(self) -> dict[str, str]:
        """What the table says for ever of what its rows stand for."""
        return {}

    def refuse_other_values(self) -> None:
        _refuse_other_values(self.values(), self._columns, self.place)
        _refuse_other_deletes(self.deletes(), self._deletes, self.place)


def is_at(newest: int | None, mark: Mark) -> bool:
    """Whether the rows of a table reach its mark, where its history doesn't."""
    return newest is not None and newest >= mark.next - 1


def lost_end(place: str, mark: Mark) -> Refused:
    return Refused(
        f"{place} was set back to an earlier version, or its newest rows were deleted, and its history doesn't say any "
        f"more which: by its mark it has the events up to {mark.next - 1}, and its newest row isn't the one that it "
        "had then. Nothing was added. If rows were deleted, go on behind the mark with --allow-loss, once. Otherwise "
        "export to another place."
    )


def lost_mark(place: str) -> Refused:
    return Refused(
        f"{place} has rows, and no mark that says up to which event: another tool has added them or removed the mark. "
        "Nothing was added. Export to another place."
    )


def other_kind(place: str, kind: str) -> Refused:
    if kind == EVENTS:
        return Refused(f"{place} has a row for each event. Leave --upsert out, or export to another place.")
    return Refused(
        f"{place} has a row for each key, by --upsert, and none for each event. Say --upsert to export there, or "
        "export to another place."
    )


def said_of_states(deletes: Iterable[str]) -> dict[str, str]:
    """What a table of states says of itself, besides its kind, for as long as it is there."""
    return {DELETES: json.dumps(sorted(set(deletes)))}


def types_that_delete(known: Mapping[str, str | None]) -> tuple[str, ...]:
    """The types of events by which a key is gone, by the properties of a table of states."""
    return tuple(json.loads(known.get(DELETES) or "[]"))


def _refuse_other_deletes(there: Collection[str], deletes: Collection[str], place: str) -> None:
    """Refused if a run would delete keys by other types than the table's rows went by: it would have half of both."""
    if set(there) != set(deletes):
        raise Refused(
            f"Keys of {place} go by events of {_types(there)}. In this run they would go by those of "
            f"{_types(deletes)}. Say --deletes as the first time, or export to another place."
        )


def _types(deletes: Collection[str]) -> str:
    return f"type {', '.join(map(repr, sorted(set(deletes))))}" if deletes else "no type"


def new_columns(known: pa.Schema, place: str, columns: FileColumns = PLAIN) -> list[pa.Field]:
    """Columns of events that a table lacks, or of which it lacks fields; Refused if one has another type."""
    missing = []
    for one in SCHEMA if columns.typed is None else columns.schema:
        if one.name not in known.names:
            missing.append(one)
            continue
        there = known.field(one.name).type
        if (both := evolved(there, one.type, one.name, place)) != plain(there):
            missing.append(pa.field(one.name, both))
    return missing


def _refuse_other_values(said: str, columns: FileColumns, place: str) -> None:
    """Refused if a table has its values in other columns than this run has: readers would find half of them."""
    if said != columns.said:
        raise Refused(
            f"The values of {place} are {told(said)}. This run has them {told(columns.said)}. Take another place."
        )
