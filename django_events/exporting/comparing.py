"""Whether what was exported and the log agree, and the first differences by their addresses.

    compared = compare(Comparison(dsn=dsn, topics=("orders",), path="/lake"))
    compared.offenders  # the differences

It only reads. Of both sides as many events are in memory at a time as `BYTES_AT_ONCE` holds. What the log doesn't have
any more, because it expired or a newer event of its key came, is no difference, and is counted. Of events it goes range
by range, of a table of states row by row: see `comparing_states`.
"""

import time
from collections.abc import Iterator
from datetime import timedelta

import numpy as np
import pyarrow as pa

from django_events.exceptions import Refused
from django_events.exporting.comparing_states import StatesComparison
from django_events.exporting.comparison import (
    BYTES_AT_ONCE,
    LEAST,
    MISSING,
    REMEDIES,
    STRANGE,
    TWICE,
    Compared,
    Comparison,
    Sides,
    Tell,
    TopicComparison,
)
from django_events.exporting.copies import copies, strays, topics_of_files
from django_events.exporting.export import bytes_per_row
from django_events.exporting.tables.table import EVENTS
from django_events.phrases import count
from django_events.reading import topics
from django_events.reading.dsn import Dsn
from django_events.reading.ranges import Range

MOST = 200_000  # ids at once


def compare(wanted: Comparison, tell: Tell = lambda topic, events: None) -> Compared:
    """Compare what was exported with the log; Refused if it is not the export of these topics."""
    started, found, dsn = time.monotonic(), Compared(), Dsn(wanted.dsn)
    with dsn.connected() as connection:
        names = [log.name for log in topics.find(connection, topics.TopicChoice(names=wanted.topics))]
        if not names:
            names = [log.name for log in topics.find(connection, topics.TopicChoice(pattern=".*"))]
        logs = topics.find(connection, topics.TopicChoice(names=tuple(names)))
        for log, copy in copies(logs, wanted.path, wanted.catalog):
            topic = (wanted, dsn, connection, log, copy, found, tell)
            (EventsComparison(*topic) if copy.states is None else StatesComparison(copy.states, *topic)).compare()
        missing = sorted(set(wanted.topics) - {one.topic for one in found.topics})
        if not found.topics or missing:
            of = f" of topic {missing[0]!r}" if missing else ""
            raise Refused(
                f"{wanted.path} has no export{of}: expected a table of Delta or Iceberg in it, or files of Parquet "
                "or JSON that export_events has written."
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


class EventsComparison(TopicComparison):
    """The comparison of a topic whose copy has a row for each event: range by range."""

    kind = EVENTS

    def _compare(self) -> None:
        self._rows = 0
        ranges = self._ranges()
        for start, end in ranges:
            for first, last in self._pieces(start, end):
                self._compare_range(first, last)
                self._tell(self._log.name, self._events)
        self._compare_rest()

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
            self._looked_at_again()
            self._agrees(self._sides(start, end), says=True)

    def _sides(self, start: int, end: int) -> Sides:
        copied, log = self._copy.read(start, end), self._log
        there = Range(log.name, log.id, min(max(start, log.first), end), end)
        logged = self._logged(copied.column_names, there)
        return Sides(logged, self._in_types_of(logged, copied))

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
        differing = self._differing(both)
        agrees = not (has_twice or len(missing) or len(strange) or differing)
        if agrees or says:
            self._events += len(of_log)
            self._expired += int(expired.sum())
            self._compacted += int(compacted.sum())
            self._erased += differing.erased
            self._rows += len(copied)
            self._count_unknown(differing.unknown)
        if says:
            self._say(MISSING, missing, "The log has it, and the copy doesn't.", "An event in each of both.")
            self._say(STRANGE, strange, "The copy has it, and the log doesn't.", "No event that the log never had.")
            if has_twice:
                self._say(TWICE, twice, "The copy has it more than once.", "One row for each event.")
            self._say_differing(differing, both.copy)
        return agrees

    def _compare_rest(self) -> None:
        """Rows of no id that the copy says to have: a reader would take them for events, too."""
        if self._wanted.last is None and (rest := self._copy.rows - self._rows) > 0:
            what = f"{count(rest, 'row')} with ids that the export has not written there."
            remedy = REMEDIES[STRANGE].format(place=self._copy.place)
            self._found.offenders.add(STRANGE, self._log.name, what, "Only rows of the export.", remedy)
