"""What the comparison of one topic counts and says, whatever its copy has a row for: an event, or a key.

The log's side is read by its columns and types as the copy has them, so that both can be compared column by column.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from django_events.exceptions import Refused
from django_events.exporting.comparing_typed import TypedDifferences
from django_events.exporting.copies import BLANK, FOLDER_OF_ROW, Copy, with_blank
from django_events.exporting.erasures import KeyNames, pending
from django_events.exporting.writing import SCHEMA, folders_of
from django_events.observing.verifying.offenders import ERASED, Offenders
from django_events.phrases import count
from django_events.reading import topics
from django_events.reading.dsn import Connection, Dsn
from django_events.reading.ranges import ChosenIds, Range
from django_events.reading.rows import RangeReader
from django_events.reading.topics import TopicLog
from django_events.reading.typed.columns import DATA, NAMES, NEEDED

BYTES_AT_ONCE = 64 << 20  # of one side
LEAST = 1_000  # rows or ids at once
FETCH_SIZE = 100_000
MISSING, STRANGE, TWICE, DIFFERS, NOT_ERASED = "missing", "strange", "twice", "differs", "not erased"
NOT_NEWEST, NOT_DELETED = "not newest", "not deleted"  # of tables of states
ANEW = "Find out what wrote to {place}. Export to another place."
REMEDIES = {
    MISSING: ANEW,
    STRANGE: ANEW,
    TWICE: ANEW,
    DIFFERS: ANEW,
    NOT_NEWEST: ANEW,
    NOT_DELETED: ANEW,
    NOT_ERASED: "Find out what wrote to {place}, and delete the rows there, and what older versions have of them.",
}

Tell = Callable[[str, int], None]  # a topic, and how many events of it were compared


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What to compare with the log."""

    dsn: str = field(repr=False)
    topics: tuple[str, ...]  # all that were exported there if there are none
    path: str
    catalog: str | None = None
    last: int | None = None  # only so many ids
    names: Callable[[str], KeyNames]  # how records of erasures call the keys of a topic


class Agreed(NamedTuple):
    """What was looked at of a topic: from which id to which, and how many events there both have.

    `kind` is what a row of the copy stands for: an event, or the state of a key.
    """

    topic: str
    kind: str
    first_id: int
    last_id: int
    events: int
    expired: int
    compacted: int
    erased: int
    not_compared: int


@dataclass(kw_only=True)
class Compared:
    """What a comparison found."""

    offenders: Offenders = field(default_factory=Offenders)
    topics: list[Agreed] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    took: timedelta = timedelta()


class Sides(NamedTuple):
    """The same events as the log has them and as the copy has them, in the order of the ids."""

    log: pa.Table
    copy: pa.Table


class TopicComparison:
    """The comparison of one topic with its copy."""

    kind: str

    def __init__(
        self,
        wanted: Comparison,
        dsn: Dsn,
        connection: Connection,
        log: TopicLog,
        copy: Copy,
        found: Compared,
        tell: Tell,
    ) -> None:
        self._wanted, self._dsn, self._connection, self._log, self._copy = wanted, dsn, connection, log, copy
        self._found, self._tell = found, tell
        self._events = self._expired = self._compacted = self._erased = 0
        self._end = copy.ranges[-1][1] if copy.ranges else 0
        self._to_erase: list[int] = []  # the first whose erasure is still to come to the copy
        self._to_erase_count = 0
        self._unknown: list[int] = []  # the first that can't be upcast
        self._unknown_count = 0

    def compare(self) -> None:
        log, copy = self._log, self._copy
        if copy.incarnation != log.incarnation:
            raise Refused(
                f"Topic {log.name!r} was made anew since it was exported to {copy.place}, and its ids began again: "
                "the two can't be compared."
            )
        self._compare()
        ranges = self._ranges()
        first, last = (ranges[0][0], ranges[-1][1] - 1) if ranges else (0, 0)
        known = max((end for _, end in (*copy.ranges, *copy.removed)), default=0)
        behind = max(log.end - max(known, log.first), 0)
        counts = (self._events, self._expired, self._compacted, self._erased)
        self._found.topics.append(Agreed(log.name, self.kind, first, last, *counts, behind))
        self._note(log.first < copy.ranges[0][0] if ranges else False)

    def _compare(self) -> None:
        """Compare all rows of the copy, and say what differs."""
        raise NotImplementedError

    def _ranges(self) -> list[tuple[int, int]]:
        """What the copy says that it has, as far as it is to be compared."""
        least = 0 if self._wanted.last is None else self._end - self._wanted.last
        return [(max(start, least), end) for start, end in self._copy.ranges if end > least]

    def _looked_at_again(self) -> None:
        """Have the log as it is now: it may have been changed since it was looked at."""
        self._log = topics.find(self._connection, topics.TopicChoice(names=(self._log.name,)))[0]

    def _logged(self, copied: Sequence[str], part: Range | ChosenIds) -> pa.Table:
        """Events as the log has them, with the columns that a copy with these is compared by."""
        names = [name for name in copied if name not in (*NAMES, FOLDER_OF_ROW, BLANK)]
        # What columns are typed by, rows lie in folders by, and what is erased.
        columns = tuple(dict.fromkeys((*names, *NEEDED, "timestamp", "body")))
        logged = self._read(columns, part)
        if FOLDER_OF_ROW in copied:
            logged = logged.append_column(FOLDER_OF_ROW, folders_of(logged, self._copy.by))
        return logged

    def _read(self, columns: Sequence[str], part: Range | ChosenIds) -> pa.Table:
        """These columns of events, and whether each is blank."""
        reader = RangeReader(dsn=self._dsn, columns=tuple(columns), fetch_size=FETCH_SIZE, fail_on_data_loss=False)
        schema = pa.schema([SCHEMA.field(name) for name in columns])
        return with_blank(pa.Table.from_batches(reader.read_by(self._connection, part), schema), columns)

    def _in_types_of(self, logged: pa.Table, copied: pa.Table) -> pa.Table:
        """Rows of the copy in the order of the ids, with the types that the log has."""
        types = [*logged.schema, *(copied.schema.field(name) for name in NAMES if name in copied.column_names)]
        by_name = {field.name: field for field in types}
        known = pa.schema([by_name[name] for name in copied.column_names])
        return copied.cast(known).sort_by("offset")

    def _differing(self, both: Sides) -> "Differences":
        """What differs in the columns of events that both sides have, typed ones too."""
        columns, erased, not_erased = _differing(both)
        unknown = np.array([], np.int64)
        if DATA in both.copy.column_names:
            typed, unknown = self._of_typed(both)
            columns |= typed
        return Differences(columns, erased, not_erased, unknown)

    def _of_typed(self, both: Sides) -> tuple[dict[str, Any], Any]:
        """What typed columns say of events that have a payload in the log; an erased one has none of them."""
        is_there = pc.or_(pc.is_valid(both.log["value"]), pc.is_valid(both.log["body"]))
        typed = TypedDifferences(self._copy.values, fills_lists=self._copy.fills_lists)
        return typed.of(both.log.filter(is_there), both.copy.filter(is_there))

    def _count_unknown(self, ids: Any) -> None:
        self._unknown += ids.tolist()[: 1 - len(self._unknown)]
        self._unknown_count += len(ids)

    def _say(self, kind: str, ids: Any, what: str, expected: str) -> None:
        offenders, place = self._found.offenders, self._copy.place
        for event_id in ids[:20].tolist():
            offenders.add(kind, self._log.name, what, expected, REMEDIES[kind].format(place=place), id=event_id)
        offenders.count(kind, max(len(ids) - 20, 0))

    def _say_differing(self, differing: "Differences", copied: pa.Table) -> None:
        for column, ids in differing.columns.items():
            what = f"Its {column} is not that of the log."
            if column == FOLDER_OF_ROW:
                what = "It lies in the folder of another time or type."
            self._say(DIFFERS, ids, what, "What the log has.")
        self._say_not_erased(copied, differing.not_erased)

    def _say_not_erased(self, copied: pa.Table, ids: Any) -> None:
        """What is erased in the log and not in the copy: a difference, unless its erasure is still to come there.

        The records are read behind the rows: an erasure is noted before it blanks the first event.
        """
        if not len(ids):
            return
        log, copy = self._log, self._copy
        erasures = pending(self._connection, log, after=copy.erased, names=self._wanted.names(log.name))
        to_erase = ids  # of what is at work, or has a key that can't be found, the events aren't known
        if not erasures.interrupted and not erasures.without and "key" in copied.column_names:
            rows = copied.filter(pc.is_in(copied["offset"], value_set=pa.array(ids)))
            to_erase = np.intersect1d(ids, erasures.chosen(rows)["offset"].to_numpy())
        self._to_erase += to_erase[: 1 - len(self._to_erase)].tolist()
        self._to_erase_count += len(to_erase)
        self._say(
            NOT_ERASED,
            np.setdiff1d(ids, to_erase),
            "It is erased in the log, and not in the copy.",
            f"Nothing of it: by its mark all erasures up to {copy.erased} are in the copy.",
        )

    def _note(self, begins_later: bool) -> None:
        log, copy, notes = self._log, self._copy, self._found.notes
        if copy.lacks:
            notes.append(f"{copy.place} has no column {', '.join(copy.lacks)}: it was not compared.")
        if self._to_erase:
            notes.append(
                f"{count(self._to_erase_count, 'event')} of {log.name} that are erased in the log have their payloads "
                f"in {copy.place}, the first is {log.name}/{self._to_erase[0]}. Run export_events with --erase."
            )
        if self._unknown:
            notes.append(
                f"{count(self._unknown_count, 'event')} of {log.name} can't be upcast here as in {copy.place}, the "
                f"first is {log.name}/{self._unknown[0]}: values of these were not compared. Declare their upcasters."
            )
        if gaps := _gaps([*copy.ranges, *copy.removed]):
            start, end = gaps[0]
            more = f", and {count(len(gaps) - 1, 'more gap')}" if len(gaps) > 1 else ""
            notes.append(
                f"{copy.place} has nothing of {log.name} from {start:,} to {end - 1:,}{more}: no run has exported that."
            )
        for start, end in copy.removed:
            notes.append(f"The files of {log.name}, {start:,} to {end - 1:,}, were removed: not compared.")
        if begins_later and not copy.removed:
            notes.append(
                f"{copy.place} begins at {copy.ranges[0][0]:,}, and the log of {log.name} at {log.first:,}: what is "
                "before was not compared."
            )


class Differences(NamedTuple):
    """Of events that both sides have: by column the ids of those that differ, how many are erased on both sides, the
    ids of those that are erased only in the log, and of those that no upcaster brings to the row's version.
    """

    columns: dict[str, Any]
    erased: int
    not_erased: Any
    unknown: Any

    def __bool__(self) -> bool:
        return bool(self.columns or len(self.not_erased))


def _gaps(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Between ranges of ids, in any order, those of none of them."""
    ordered = sorted(ranges)
    return [(end, start) for (_, end), (start, _) in pairwise(ordered) if end < start]


def _is_pseudonym(keys: pa.ChunkedArray) -> "np.typing.NDArray[np.bool_]":
    found = pc.fill_null(pc.match_substring_regex(keys.cast(pa.string()), ERASED), False)
    return np.asarray(found.to_numpy(zero_copy_only=False), bool)


def _differing(both: Sides) -> tuple[dict[str, "np.typing.NDArray[np.int64]"], int, "np.typing.NDArray[np.int64]"]:
    """By column the ids of events that differ; how many are erased on both sides; and the ids of those only in the log.

    An erasure notes its time in the metadata, which may be another one in the copy.
    """
    offsets = both.log["offset"].to_numpy()
    in_log, in_copy = (side[BLANK].to_numpy() for side in both)
    not_erased = in_log & ~in_copy
    found = {}
    for name in both.log.drop_columns(BLANK).column_names:
        if name not in both.copy.column_names:
            continue
        one, other = both.log[name], both.copy[name]
        if one.equals(other):
            continue
        is_same = pc.fill_null(pc.equal(one, other), False)
        is_same = pc.or_(is_same, pc.and_(pc.is_null(one), pc.is_null(other)))
        differs = ~is_same.to_numpy(zero_copy_only=False)
        if name == "key":  # a pseudonym took its place
            # Of a key that was erased twice, by two secrets, the log has the first pseudonym, and the copy the other.
            two = np.asarray(_is_pseudonym(one) & _is_pseudonym(other) & in_log & in_copy, bool)
            differs &= ~two
            not_erased |= in_log & differs
        differs &= ~(not_erased | (in_log & in_copy if name == "metadata" else np.zeros_like(in_log)))
        if differs.any():
            found[name] = offsets[differs]
    return found, int((in_log & in_copy & ~not_erased).sum()), offsets[not_erased]
