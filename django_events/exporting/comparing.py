"""Whether what was exported and the log agree: range by range, and the first differences by their addresses.

    compared = compare(Comparison(dsn=dsn, topics=("orders",), path="/lake"))
    compared.offenders  # the differences

It only reads. Of both sides as many events are in memory at a time as `BYTES_AT_ONCE` holds. What the log doesn't have
any more, because it expired or a newer event of its key came, is no difference, and is counted.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from django_events.exceptions import Refused
from django_events.exporting.comparing_typed import TypedDifferences
from django_events.exporting.copies import BLANK, FOLDER_OF_ROW, Copy, copies, strays, topics_of_files, with_blank
from django_events.exporting.erasures import KeyNames, pending
from django_events.exporting.export import bytes_per_row
from django_events.exporting.writing import SCHEMA, folders_of
from django_events.observing.verifying.offenders import ERASED, Offenders
from django_events.phrases import count
from django_events.reading import topics
from django_events.reading.dsn import Connection, Dsn
from django_events.reading.ranges import Range
from django_events.reading.rows import RangeReader
from django_events.reading.topics import TopicLog
from django_events.reading.typed.columns import DATA, NAMES, NEEDED

BYTES_AT_ONCE = 64 << 20  # of one side
LEAST, MOST = 1_000, 200_000  # ids at once
FETCH_SIZE = 100_000
MISSING, STRANGE, TWICE, DIFFERS, NOT_ERASED = "missing", "strange", "twice", "differs", "not erased"


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
    """What was looked at of a topic: from which id to which, and how many events there both have."""

    topic: str
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


Tell = Callable[[str, int], None]  # a topic, and how many events of it were compared


def compare(wanted: Comparison, tell: Tell = lambda topic, events: None) -> Compared:
    """Compare what was exported with the log; Refused if it is not the export of these topics."""
    started, found, dsn = time.monotonic(), Compared(), Dsn(wanted.dsn)
    with dsn.connected() as connection:
        names = [log.name for log in topics.find(connection, topics.TopicChoice(names=wanted.topics))]
        if not names:
            names = [log.name for log in topics.find(connection, topics.TopicChoice(pattern=".*"))]
        logs = topics.find(connection, topics.TopicChoice(names=tuple(names)))
        for log, copy in copies(logs, wanted.path, wanted.catalog):
            _OfTopic(wanted, dsn, connection, log, copy, found, tell).compare()
        missing = sorted(set(wanted.topics) - {one.topic for one in found.topics})
        if not found.topics or missing:
            of = f" of topic {missing[0]!r}" if missing else ""
            raise Refused(
                f"{wanted.path} has no export{of}: expected a table of Delta or Iceberg in it, or Parquet files that "
                "export_events has written."
            )
        if not wanted.topics:
            for name in sorted(topics_of_files(wanted.path, wanted.catalog) - set(names)):
                found.notes.append(f"{wanted.path} has files of {name}, which the database doesn't have: not compared.")
            for name in strays(wanted.path, wanted.catalog):
                what = f"{wanted.path}/{name} is none of the export's, and readers of the folder take it for data."
                remedy = f"Find out what wrote it, and move it out of {wanted.path}."
                found.offenders.add(STRANGE, None, what, "Only what the export has written.", remedy)
    found.took = timedelta(seconds=time.monotonic() - started)
    return found


class Sides(NamedTuple):
    """A range as the log has it and as the copy has it, in the order of the ids."""

    log: pa.Table
    copy: pa.Table


class _OfTopic:
    """The comparison of one topic."""

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
        self._events = self._expired = self._compacted = self._erased = self._rows = 0
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
        ranges = self._ranges()
        for start, end in ranges:
            for first, last in self._pieces(start, end):
                self._compare_range(first, last)
                self._tell(log.name, self._events)
        self._compare_rest(ranges)
        first, last = (ranges[0][0], ranges[-1][1] - 1) if ranges else (0, 0)
        known = max((end for _, end in (*copy.ranges, *copy.removed)), default=0)
        behind = max(log.end - max(known, log.first), 0)
        self._found.topics.append(
            Agreed(log.name, first, last, self._events, self._expired, self._compacted, self._erased, behind)
        )
        if copy.lacks:
            self._found.notes.append(f"{copy.place} has no column {', '.join(copy.lacks)}: it was not compared.")
        if self._to_erase:
            self._found.notes.append(
                f"{count(self._to_erase_count, 'event')} of {log.name} that are erased in the log have their payloads "
                f"in {copy.place}, the first is {log.name}/{self._to_erase[0]}. Run export_events with --erase."
            )
        if self._unknown:
            self._found.notes.append(
                f"{count(self._unknown_count, 'event')} of {log.name} can't be upcast here as in {copy.place}, the "
                f"first is {log.name}/{self._unknown[0]}: values of these were not compared. Declare their upcasters."
            )
        if gaps := _gaps([*copy.ranges, *copy.removed]):
            start, end = gaps[0]
            more = f", and {count(len(gaps) - 1, 'more gap')}" if len(gaps) > 1 else ""
            self._found.notes.append(
                f"{copy.place} has nothing of {log.name} from {start:,} to {end - 1:,}{more}: no run has exported that."
            )
        for start, end in copy.removed:
            self._found.notes.append(f"The files of {log.name}, {start:,} to {end - 1:,}, were removed: not compared.")
        if ranges and not copy.removed and log.first < copy.ranges[0][0]:
            self._found.notes.append(
                f"{copy.place} begins at {copy.ranges[0][0]:,}, and the log of {log.name} at {log.first:,}: what is "
                "before was not compared."
            )

    def _ranges(self) -> list[tuple[int, int]]:
        """What the copy says that it has, as far as it is to be compared."""
        least = 0 if self._wanted.last is None else self._end - self._wanted.last
        return [(max(start, least), end) for start, end in self._copy.ranges if end > least]

    def _pieces(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        log = self._log
        while start < end:
            until = min(start + MOST, end)
            size = bytes_per_row(self._dsn, Range(log.name, log.id, min(max(start, log.first), until), until))
            until = min(start + min(max(int(BYTES_AT_ONCE / size), LEAST), MOST), end)
            yield start, until
            start = until

    def _compare_range(self, start: int, end: int) -> None:
        """Compare a range, and once more if the sides differ: the log may have been changed in between."""
        if not self._agrees(self._sides(start, end), says=False):
            self._log = topics.find(self._connection, topics.TopicChoice(names=(self._log.name,)))[0]
            self._agrees(self._sides(start, end), says=True)

    def _sides(self, start: int, end: int) -> Sides:
        copied = self._copy.read(start, end)
        log = self._log
        there = Range(log.name, log.id, min(max(start, log.first), end), end)
        names = [name for name in copied.column_names if name not in (*NAMES, FOLDER_OF_ROW, BLANK)]
        # What columns are typed by, rows lie in folders by, and what is erased.
        columns = tuple(dict.fromkeys((*names, *NEEDED, "timestamp", "body")))
        reader = RangeReader(dsn=self._dsn, columns=columns, fetch_size=FETCH_SIZE, fail_on_data_loss=False)
        schema = pa.schema([SCHEMA.field(name) for name in columns])
        logged = with_blank(pa.Table.from_batches(reader.read_by(self._connection, there), schema), columns)
        if FOLDER_OF_ROW in copied.column_names:
            logged = logged.append_column(FOLDER_OF_ROW, folders_of(logged, self._copy.by))
        types = [*logged.schema, *(copied.schema.field(name) for name in NAMES if name in copied.column_names)]
        by_name = {field.name: field for field in types}
        known = pa.schema([by_name[name] for name in copied.column_names])
        return Sides(logged, copied.cast(known).sort_by("offset"))

    def _agrees(self, sides: Sides, *, says: bool) -> bool:
        """Whether a range is the same on both sides; what differs is counted if `says`."""
        logged, copied = (side["offset"].to_numpy() for side in sides)
        unique = np.unique(copied)
        twice = unique if len(unique) == len(copied) else copied[1:][copied[1:] == copied[:-1]]
        has_twice = len(unique) != len(copied)
        missing = np.setdiff1d(logged, unique, assume_unique=True)
        gone = np.setdiff1d(unique, logged, assume_unique=True)
        expired = gone < self._log.first
        compacted = ~expired & (gone <= self._log.compacted_until)
        strange = gone[~expired & ~compacted]
        _, of_log, of_copy = np.intersect1d(logged, copied, return_indices=True)
        both = Sides(sides.log.take(pa.array(of_log)), sides.copy.take(pa.array(of_copy)))
        differing, erased, not_erased = _differing(both)
        unknown = np.array([], np.int64)
        if DATA in both.copy.column_names:
            typed, unknown = self._of_typed(both)
            differing |= typed
        agrees = not (has_twice or len(missing) or len(strange) or differing or len(not_erased))
        if agrees or says:
            self._events += len(of_log)
            self._expired += int(expired.sum())
            self._compacted += int(compacted.sum())
            self._erased += erased
            self._rows += len(copied)
            self._unknown += unknown.tolist()[: 1 - len(self._unknown)]
            self._unknown_count += len(unknown)
        if says:
            self._say(MISSING, missing, "The log has it, and the copy doesn't.", "An event in each of both.")
            self._say(STRANGE, strange, "The copy has it, and the log doesn't.", "No event that the log never had.")
            if has_twice:
                self._say(TWICE, twice, "The copy has it more than once.", "One row for each event.")
            for column, ids in differing.items():
                what = f"Its {column} is not that of the log."
                if column == FOLDER_OF_ROW:
                    what = "It lies in the folder of another time or type."
                self._say(DIFFERS, ids, what, "What the log has.")
            self._say_not_erased(both.copy, not_erased)
        return agrees

    def _of_typed(self, both: Sides) -> tuple[dict[str, "np.typing.NDArray[np.int64]"], Any]:
        """What typed columns say of events that have a payload in the log; an erased one has none of them."""
        is_there = pc.or_(pc.is_valid(both.log["value"]), pc.is_valid(both.log["body"]))
        typed = TypedDifferences(self._copy.values, fills_lists=self._copy.fills_lists)
        return typed.of(both.log.filter(is_there), both.copy.filter(is_there))

    def _say(self, kind: str, ids: "np.typing.NDArray[np.int64]", what: str, expected: str) -> None:
        offenders, place = self._found.offenders, self._copy.place
        for event_id in ids[:20].tolist():
            offenders.add(kind, self._log.name, what, expected, REMEDIES[kind].format(place=place), id=event_id)
        offenders.count(kind, max(len(ids) - 20, 0))

    def _compare_rest(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Rows of no id that the copy says to have: a reader would take them for events, too."""
        if self._wanted.last is None and (rest := self._copy.rows - self._rows) > 0:
            what = f"{count(rest, 'row')} with ids that the export has not written there."
            remedy = REMEDIES[STRANGE].format(place=self._copy.place)
            self._found.offenders.add(STRANGE, self._log.name, what, "Only rows of the export.", remedy)

    def _say_not_erased(self, copied: pa.Table, ids: "np.typing.NDArray[np.int64]") -> None:
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


def _gaps(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Between ranges of ids, in any order, those of none of them."""
    ordered = sorted(ranges)
    return [(end, start) for (_, end), (start, _) in pairwise(ordered) if end < start]


ANEW = "Find out what wrote to {place}. Export to another place."
REMEDIES = {
    MISSING: ANEW,
    STRANGE: ANEW,
    TWICE: ANEW,
    DIFFERS: ANEW,
    NOT_ERASED: "Find out what wrote to {place}, and delete the rows there, and what older versions have of them.",
}


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
