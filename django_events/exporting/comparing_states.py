"""Whether a table of states and the log agree: the row of a key is the newest event of it that the table was given.

First the log is asked, in one statement, for the newest event of each key. Then the table is read once, some rows at a
time and in its own order, and the log is asked for their events by ids: rows of a table that was merged again and again
lie in no order. At the end, keys of the log without a row are told, and keys with several.

Here a key is 16 bytes of its SHA-256, which the server makes too. They are in temporary files, 24 bytes for each key of
the log and 16 for each row, so the memory that is needed doesn't grow with the keys.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from hashlib import sha256
from tempfile import TemporaryFile
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from django_events.exceptions import Refused
from django_events.exporting.blanking import ERASED_METADATA
from django_events.exporting.comparison import (
    BYTES_AT_ONCE,
    LEAST,
    MISSING,
    NOT_DELETED,
    NOT_NEWEST,
    REMEDIES,
    STRANGE,
    TWICE,
    Sides,
    TopicComparison,
)
from django_events.exporting.copies import BLANK, States
from django_events.exporting.export import bytes_per_row
from django_events.exporting.tables.table import STATES
from django_events.observing.verifying.offenders import SHOWN
from django_events.phrases import count
from django_events.reading.dsn import Connection, copied, fetch
from django_events.reading.ranges import ChosenIds, Range
from django_events.reading.topics import TopicLog
from django_events.statements import beside, literal, log_table, shared

SQL = beside(__name__)
MOST = 50_000  # rows at once
NAMES_AT_ONCE = 1 << 20  # of what is in files
SETTINGS = {"statement_timeout": "0", "row_security": "off", "jit": "off"}
ENDLESS = (1 << 63) - 1
NAME = np.dtype("S16")  # what stands for a key
SAID = np.dtype([("name", NAME), ("state", ">i8")])


class StatesComparison(TopicComparison):
    """The comparison of a topic whose copy has a row for each key."""

    kind = STATES

    def __init__(self, states: States, *topic: Any) -> None:
        super().__init__(*topic)
        self._states = states

    def _compare(self) -> None:
        copy, log = self._copy, self._log
        if lacking := [name for name in ("offset", "key") if name in copy.lacks]:
            raise Refused(f"{copy.place} has no column {lacking[0]!r}, so it can't be told which key a row is of.")
        self._given = copy.ranges[0] if copy.ranges else (0, 0)
        [(self._least, end)] = self._ranges() or [(0, 0)]
        size = bytes_per_row(self._dsn, Range(log.name, log.id, min(max(self._least, log.first), end), end))
        self._at_once = min(max(int(BYTES_AT_ONCE / size), LEAST), MOST)
        self._unkeyed = 0
        with NewestEvents() as self._newest, NamesOfRows() as self._there:
            self._newest.read(self._connection, log, max(self._least, log.first), end, self._states.deletes)
            for rows in self._states.pieces(self._at_once):
                self._compare_rows(rows)
                self._tell(log.name, self._events)
            self._there.sort()
            self._say_twice()
            self._say_missing()
        if self._unkeyed:
            what = f"{count(self._unkeyed, 'row')} without an id or a key."
            remedy = REMEDIES[STRANGE].format(place=copy.place)
            self._found.offenders.add(STRANGE, log.name, what, "Only rows of the export.", remedy)

    def _compare_rows(self, rows: pa.Table) -> None:
        """Compare some rows, and once more if they differ: the log may have been changed in between."""
        has_both = pc.and_(pc.is_valid(rows["offset"]), pc.is_valid(rows["key"]))
        keyed = rows.filter(has_both).sort_by("offset")
        self._unkeyed += rows.num_rows - keyed.num_rows
        names = names_of(keyed["key"])
        self._there.add(names)
        if not self._agrees(keyed, names, says=False):
            self._looked_at_again()
            self._agrees(keyed, names, says=True)

    def _agrees(self, rows: pa.Table, names: Any, *, says: bool) -> bool:
        """Whether rows are what the log has; what differs is counted if `says`."""
        log, offsets = self._log, rows["offset"].to_numpy().astype(np.int64)
        newest, lives = self._newest.of(names)
        is_given = (offsets >= self._given[0]) & (offsets < self._given[1])
        is_older = is_given & (newest > offsets)
        is_wanted = is_given & ~is_older & (offsets >= self._least)
        ids = np.unique(offsets[is_wanted & (offsets >= log.first)]).tolist()
        logged = self._logged(rows.column_names, ChosenIds(log.name, log.id, ids))
        copied = self._in_types_of(logged, rows)
        there = logged["offset"].to_numpy()
        is_there = is_wanted & np.isin(offsets, there)
        is_absent = is_wanted & ~is_there
        is_expired = is_absent & (offsets < log.first)
        is_compacted = is_absent & ~is_expired & (offsets <= log.compacted_until)
        strange = offsets[~is_given | (is_absent & ~is_expired & ~is_compacted)]
        matching = pa.array(np.searchsorted(there, offsets[is_there]))
        both = Sides(logged.take(matching), copied.filter(pa.array(is_there)))
        is_blank, is_blank_here = (side[BLANK].to_numpy() for side in both)
        is_gone = (newest == offsets)[is_there] & ~lives[is_there] & ~is_blank  # what is erased is told of by itself
        gone = np.concatenate([offsets[is_older & ~lives], offsets[is_there][is_gone | (is_blank & is_blank_here)]])
        older = offsets[is_older & lives]
        differing = self._differing(both)
        agrees = not (len(strange) or len(gone) or len(older) or differing)
        if agrees or says:
            self._events += both.log.num_rows
            self._expired += int(is_expired.sum())
            self._compacted += int(is_compacted.sum())
            self._count_unknown(differing.unknown)
        if says:
            self._say(STRANGE, strange, "The copy has it, and the log doesn't.", "No event that the log never had.")
            what, expected = (
                "It is no row's newest event: the log has a newer one of its key.",
                "The newest of each key.",
            )
            self._say(NOT_NEWEST, older, what, expected)
            what = "By the newest event of its key in the log, the key is gone."
            self._say(NOT_DELETED, np.sort(gone), what, "No row.")
            self._say_differing(differing, both.copy)
        return agrees

    def _say_twice(self) -> None:
        """Keys that have several rows: all rows but the newest one."""
        names, total = self._there.twice()
        if not total:
            return
        found: dict[bytes, list[int]] = {}
        for rows in self._states.pieces(self._at_once):
            keyed = rows.filter(pc.and_(pc.is_valid(rows["offset"]), pc.is_valid(rows["key"])))
            of_rows = names_of(keyed["key"])
            for index in np.flatnonzero(np.isin(of_rows, names)).tolist():
                found.setdefault(of_rows[index : index + 1].tobytes(), []).append(keyed["offset"][index].as_py())
        ids = np.array(sorted(event_id for some in found.values() for event_id in sorted(some)[:-1])[:SHOWN], np.int64)
        self._say(TWICE, ids, "The copy has another row of its key.", "One row for each key.")
        self._found.offenders.count(TWICE, total - len(ids))

    def _say_missing(self) -> None:
        """Keys of the log that live and have no row. What was erased or removed since it was asked for is none."""
        first, total = np.array([], np.int64), 0
        for names, newest, lives in self._newest.pieces():
            ids = np.sort(newest[lives & ~self._there.has(names)])
            for start in range(0, len(ids), self._at_once):
                some = self._still_there(ids[start : start + self._at_once])
                first = np.sort(np.concatenate([first, some[:SHOWN]]))[:SHOWN]
                total += len(some)
        what = "It is the newest event of its key in the log, and the copy has no row of it."
        self._say(MISSING, first, what, "A row for each key that is not gone.")
        self._found.offenders.count(MISSING, total - len(first))

    def _still_there(self, ids: Any) -> Any:
        """Those of these ids that the log has an event of which isn't erased."""
        chosen = ChosenIds(self._log.name, self._log.id, ids.tolist())
        logged = self._read(("offset", "value", "body", "metadata"), chosen)
        return logged["offset"].to_numpy()[~logged[BLANK].to_numpy()]


def names_of(keys: pa.ChunkedArray) -> Any:
    """What stands for each of these keys."""
    digests = (sha256(key.encode()).digest()[: NAME.itemsize] for key in keys.to_pylist())
    return np.frombuffer(b"".join(digests), NAME)


class _InFile:
    """Numbers or names of one kind in a temporary file."""

    def __init__(self, kind: "np.typing.DTypeLike") -> None:
        self._kind, self._file = np.dtype(kind), _temporary()
        self.all: Any = np.array([], self._kind)

    def add(self, some: Any) -> None:
        self._file.write(np.ascontiguousarray(some, self._kind).tobytes())

    def finish(self) -> None:
        """Have all that was added in `all`."""
        self._file.flush()
        if self._file.tell():  # nothing can't be mapped
            self.all = np.memmap(self._file, self._kind, "r+")

    def close(self) -> None:
        self.all = np.array([], self._kind)
        self._file.close()


def _temporary() -> IO[bytes]:
    return TemporaryFile()  # closed by what has it


class _Closing:
    """What has files that are closed at the end of a block."""

    def __init__(self) -> None:
        self._stack = ExitStack()

    def _in_file(self, kind: "np.typing.DTypeLike") -> _InFile:
        opened = _InFile(kind)
        self._stack.callback(opened.close)
        return opened

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


class OfKeys(NamedTuple):
    """Some keys, the ids of their newest events, and whether they live by these."""

    names: Any
    newest: Any
    lives: Any


class NewestEvents(_Closing):
    """The newest event of each key that the log has."""

    def __init__(self) -> None:
        super().__init__()
        self._names, self._states = self._in_file(NAME), self._in_file(np.int64)

    def read(self, connection: Connection, log: TopicLog, first: int, until: int, deletes: Sequence[str]) -> None:
        """Ask the log for the events from `first` to before `until`."""
        asked = SQL.newest_of_keys.on(
            log=log_table(log.id),
            topic_id=log.id,
            first=first,
            until=until,
            end=ENDLESS if log.compacted_until else until,
            deletes=literal(list(deletes)),
            erased=literal(ERASED_METADATA),
        )
        with connection.transaction():
            fetch(connection, shared.set_locally, names=list(SETTINGS), values=list(SETTINGS.values()))
            for (said,) in copied(connection, asked, ["bytea"]):
                keys = np.frombuffer(said, SAID)
                self._names.add(keys["name"])
                self._states.add(keys["state"])
        self._names.finish()
        self._states.finish()

    def of(self, names: Any) -> tuple[Any, Any]:
        """The newest ids of keys, 0 for one that isn't known, and whether these live."""
        at, is_known = _found(self._names.all, names)
        states = np.zeros(len(names), np.int64)
        states[is_known] = self._states.all[at[is_known]]
        return states // 2, states % 2 == 1

    def pieces(self) -> Iterator[OfKeys]:
        """All of them, some at a time."""
        for start in range(0, len(self._names.all), NAMES_AT_ONCE):
            states = np.array(self._states.all[start : start + NAMES_AT_ONCE])
            yield OfKeys(np.array(self._names.all[start : start + NAMES_AT_ONCE]), states // 2, states % 2 == 1)


class NamesOfRows(_Closing):
    """The keys of all rows of a table, in the order of their names once they are sorted."""

    def __init__(self) -> None:
        super().__init__()
        self._names = self._in_file(NAME)

    def add(self, names: Any) -> None:
        self._names.add(names)

    def sort(self) -> None:
        self._names.finish()
        self._names.all.sort()

    def has(self, names: Any) -> Any:
        """Which of these keys have a row."""
        return _found(self._names.all, names)[1]

    def twice(self) -> tuple[Any, int]:
        """The first keys that have several rows, and how many rows there are more than keys."""
        names, first, total = self._names.all, np.array([], NAME), 0
        for start in range(0, len(names), NAMES_AT_ONCE):
            some = np.array(names[start : start + NAMES_AT_ONCE + 1])
            again = some[1:][some[1:] == some[:-1]]
            first = np.unique(np.concatenate([first, again[:SHOWN]]))[:SHOWN]
            total += len(again)
        return first, total


def _found(known: Any, names: Any) -> tuple[Any, Any]:
    """Where in names in their order these are, and whether they are there."""
    if not len(known):
        return np.zeros(len(names), np.int64), np.zeros(len(names), bool)
    at = np.minimum(np.searchsorted(known, names), len(known) - 1)
    return at, known[at] == names
