"""Exporting topics to tables, exactly once: the table itself knows how far it is.

    with stop_on_signals() as stop:
        export_to_tables(TableExport(dsn=dsn, topics=("orders",), path="/lake", format="delta"), stop=stop)

A commit has a range of ids and moves the table's mark behind it. With `follow` it goes on until it is stopped: a commit
when enough events wait, or when they have waited for long enough.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from threading import Event
from typing import Any, Protocol

import pyarrow as pa

from django_events.exceptions import EventsMissing, NotReady, Refused
from django_events.exporting.erasing import Applied, Erasing
from django_events.exporting.erasures import Erasures, LastErasure, before_reading, newest, refuse_older_database
from django_events.exporting.export import BEGINNING, END, bytes_per_row, is_compacted, is_the_same, made_anew
from django_events.exporting.file_columns import PLAIN, FileColumns
from django_events.exporting.layout import TARGET
from django_events.exporting.local import Connections
from django_events.exporting.locking import COMMITTED, FolderLock, alone, resting
from django_events.exporting.range_files import RangeFiles
from django_events.exporting.storage import keep_files
from django_events.exporting.tables.erasing import erase_in_table
from django_events.exporting.tables.expiring import RemovedVersions
from django_events.exporting.tables.rows_files import RowsWriter, folder_on_disk, read_footers
from django_events.exporting.tables.table import Conflict, EventTable, Mark, Opening
from django_events.reading import topics
from django_events.reading.dsn import Connection, Dsn
from django_events.reading.following import Follower
from django_events.reading.offsets import Boundary
from django_events.reading.ranges import Range
from django_events.reading.topics import TopicLog

FORMATS = ("delta", "iceberg")
EVENTS_PER_COMMIT = 500_000
BYTES_PER_COMMIT = 256 << 20  # in memory: Iceberg's files are written when all of a commit is there
FETCH_SIZE = 100_000
LOOK_EVERY = 1.0  # seconds, at most, while following
TIDY_EVERY = 3600.0  # seconds, while following
TRIES = 3  # of merging or removing, when a commit of others comes first; a follower does it the next hour
CONFLICTS = 20  # commits of others, like compaction by another tool, that may come first


class StopRequest(Protocol):
    """A request to stop; `workers.stopping` has the one of signals."""

    requested: bool

    def wait(self, seconds: float | None) -> None: ...


@dataclass(frozen=True, kw_only=True)
class TableExport:
    """What to export to tables, and how."""

    dsn: str = field(repr=False)
    topics: tuple[str, ...]
    path: str
    format: str
    catalog: str | None = None
    since: Boundary = BEGINNING
    until: Boundary = END
    events_per_commit: int = EVENTS_PER_COMMIT
    target_size: int = TARGET
    follow: bool = False
    every: float = 60.0
    compact: bool = False
    expire: timedelta | None = None  # the age from which on former versions, and files that none names, go
    thin: timedelta | None = None  # the age by which snapshots of Iceberg are thinned out after commits; files stay
    consumer: str | None = None
    allow_loss: bool = False
    erasing: Erasing | None = None
    upsert: bool = False
    deletes: tuple[str, ...] = ()  # with upsert: the types of events by which their key is gone
    columns: Mapping[str, FileColumns] = field(default_factory=dict)  # of topics with typed ones

    def columns_of(self, topic: str) -> FileColumns:
        return self.columns.get(topic, PLAIN)


@dataclass(kw_only=True)
class TableSummary:
    """What a run has done."""

    events: int = 0
    commits: int = 0
    files_fewer: int = 0
    unmerged: dict[str, str] = field(default_factory=dict)  # by the place of a table, why small files are left
    left_out: int = 0
    applied: Applied = field(default_factory=Applied)
    expired: RemovedVersions = field(default_factory=RemovedVersions)


Tell = Callable[[str, int, int], None]  # a topic, how many events a commit has added, and how many wait
Warn = Callable[[str], None]  # why something wasn't merged or removed, when that is new


def export_to_tables(
    wanted: TableExport,
    *,
    stop: StopRequest,
    tell: Tell = lambda topic, added, waiting: None,
    warn: Warn = lambda why: None,
    writer: RowsWriter | None = None,
) -> TableSummary:
    """Bring the tables to the end of the log, or keep them there; InUse if another command writes to the place.

    Without a writer, events pass through this process.
    """
    dsn = Dsn(wanted.dsn)
    place = f"catalog {wanted.catalog}/{wanted.path}" if wanted.catalog else wanted.path
    if writer is not None and wanted.catalog is None:
        folder_on_disk(wanted.path)
    connections, lost = Connections(), Event()

    with (
        writer.working() if writer else nullcontext(connections.cut) as end,
        alone(dsn, place, of_what_is_written=COMMITTED) as lock,
        resting(dsn) as connection,
        lock.watched(partial(_cancel, lost, connections.cut, end)),
        closing(_Run(wanted, connection, connections, stop, tell, warn, lock, writer)) as run,
    ):
        run.open()
        run.once()
        run.erase()
        while wanted.follow and not stop.requested and not lost.is_set():
            stop.wait(min(LOOK_EVERY, wanted.every))
            run.again()
        if not wanted.follow and not lost.is_set():
            run.tidy()
    return run.summary


def _cancel(lost: Event, *ends: Callable[[], object]) -> None:
    lost.set()
    for end in ends:
        end()


class _Run:
    """A run with its tables."""

    def __init__(
        self,
        wanted: TableExport,
        connection: Connection,
        connections: Connections,
        stop: StopRequest,
        tell: Tell,
        warn: Warn,
        lock: FolderLock,
        writer: RowsWriter | None,
    ) -> None:
        self._wanted, self._connection, self._connections = wanted, connection, connections
        self._stop, self._tell, self._warn, self._lock = stop, tell, warn, lock
        self._writer = writer
        self._dsn = Dsn(wanted.dsn)
        self._follower = Follower(wanted.consumer) if wanted.consumer else None
        self._waiting_since: dict[str, float] = {}
        self._tidied_at = time.monotonic()
        self.summary = TableSummary()
        self._tables: dict[str, EventTable] = {}
        self._known_erasures: set[LastErasure] = set()  # that are done in this database
        self._newest_erasure: dict[str, tuple[int, int]] = {}  # that was looked at, by topic
        self._erased_at = time.monotonic()

    def open(self) -> None:
        """Make the tables that are not there yet."""
        for log in self._logs():
            self._tables[log.name] = table = opened(self._wanted, log)
            table.refuse_other_values()
            if self._writer is not None:
                table.folder_of_rows()  # or Invalid, before anything is read

    def close(self) -> None:
        self.summary.left_out = sum(table.left_out for table in self._tables.values())
        for table in self._tables.values():
            table.close()

    def once(self) -> None:
        """All that is in the log now."""
        for log in self._logs():
            self._bring(log, self._wanted.until.of(log, fail_on_data_loss=not self._wanted.allow_loss))
        self._tell_positions()

    def again(self) -> None:
        """What has waited for long enough, or is enough for a commit."""
        for log in self._logs():
            start = self._start(log)
            if start >= log.end:
                self._waiting_since.pop(log.name, None)
                continue
            since = self._waiting_since.setdefault(log.name, time.monotonic())
            if log.end - start >= self._wanted.events_per_commit or time.monotonic() - since >= self._wanted.every:
                self._waiting_since.pop(log.name, None)
                self._bring(log, log.end)
        if time.monotonic() - self._erased_at >= self._wanted.every:
            self.erase()
        if time.monotonic() - self._tidied_at >= TIDY_EVERY:
            self.tidy()

    def erase(self) -> None:
        """Apply erasures, if that is wanted: those of topics that had another one since the last look."""
        self._erased_at = time.monotonic()
        if self._wanted.erasing is None:
            return
        for log in self._logs():
            table, number = self._tables[log.name], newest(self._connection, log)
            if self._stop.requested or number == self._newest_erasure.get(log.name):
                continue
            table.mark()  # or Refused: what was set back is not written to
            self._refuse_older(log)
            self.summary.applied.apply(
                self._connection,
                log,
                self._wanted.erasing,
                place=self._place(log),
                after=table.erased(),
                work=partial(self._erase_in, table, log.name),
            )
            self._newest_erasure[log.name] = number

    def _erase_in(self, table: EventTable, topic: str, erasures: Erasures) -> dict[str, Any]:
        done = erase_in_table(table, topic, self._wanted.format, erasures)
        self._lock.check()  # as after a commit of events
        return done

    def _place(self, log: TopicLog) -> str:
        catalog = f"catalog {self._wanted.catalog}, " if self._wanted.catalog else ""
        return f"{catalog}{self._wanted.path}/{log.name}"

    def tidy(self) -> None:
        """Merge small files, and remove former versions, as far as that is wanted. What comes in between waits."""
        self._tidied_at = time.monotonic()
        for topic, table in self._tables.items():
            if self._wanted.compact and not self._stop.requested:
                self._compact(table)
            if self._wanted.expire is not None and not self._stop.requested:
                self._expire(topic, table, self._wanted.expire)

    def _compact(self, table: EventTable) -> None:
        """Merge small files, again if commits of others come first; what is left then is said, once by a follower."""
        left, place = self.summary.unmerged, table.place
        is_known = left.pop(place, None) is not None
        for _ in range(1 if self._wanted.follow else TRIES):
            self._lock.check()
            with suppress(Conflict):
                for fewer in table.compact(self._wanted.target_size):
                    self.summary.files_fewer += fewer
                    if self._stop.requested:
                        break
                return
        left[place] = (
            f"{place} had commits of other writers, and not all of its files were merged: the next --compact does it."
        )
        if self._wanted.follow and not is_known:
            self._warn(left[place])

    def _expire(self, topic: str, table: EventTable, age: timedelta) -> None:
        known, place = self.summary.expired, table.place
        is_known = place in known.left
        for _ in range(1 if self._wanted.follow else TRIES):
            self._lock.check()
            with suppress(Conflict):
                done = table.expire(age, lambda: self._stop.requested)
                if not self._stop.requested:
                    known.left.pop(place, None)
                known.add(done)
                if done.is_all:
                    self.summary.applied.left.pop(topic, None)  # that is removed
                break
        else:
            if not self._wanted.follow:
                known.left[place] = f"{place} had commits of other writers, and not all was removed: run it again."
        if self._wanted.follow and not is_known and place in known.left:
            self._warn(known.left[place])

    def _logs(self) -> list[TopicLog]:
        return topics.find(self._connection, topics.TopicChoice(names=self._wanted.topics))

    def _bring(self, log: TopicLog, end: int) -> None:
        """Bring a table up to before an id."""
        start = self._start(log)
        if start >= end and self._tables[log.name].lost_end:
            self._say_mark(log, start)
        while start < end and not self._stop.requested:
            size = bytes_per_row(self._dsn, Range(log.name, log.id, start, end))
            most = self._wanted.events_per_commit
            if self._writer is None:
                most = max(min(most, int(BYTES_PER_COMMIT / size)), 1)
            until = min(start + most, end)
            self._commit(log, start, until, size)
            if self._wanted.thin is not None:
                with suppress(Conflict):
                    self.summary.expired.add(self._tables[log.name].thin(self._wanted.thin))
            self._tell(log.name, until - start, max(log.end - until, 0))
            start = until
            if self._follower is not None:
                self._follower.tell(self._connection, {log.id: until})

    def _say_mark(self, log: TopicLog, start: int) -> None:
        """Say the mark again in a commit of no events, so that the next run finds it in the history."""
        try:
            self._tables[log.name].append([], Mark(log.incarnation, start))
        except Conflict:  # the next run does it
            return

    def _refuse_older(self, log: TopicLog) -> None:
        """EventsMissing if the database lacks an erasure that the table has: a replica may be behind."""
        erased = self._tables[log.name].last_erasure()
        if erased.number and erased not in self._known_erasures:
            refuse_older_database(self._connection, log, erased, self._wanted.path)
            self._known_erasures.add(erased)

    def _start(self, log: TopicLog) -> int:
        """The first id that the table lacks; Refused or EventsMissing if it can't be had any more."""
        mark = self._tables[log.name].mark()
        if mark is None:
            return self._wanted.since.of(log, fail_on_data_loss=not self._wanted.allow_loss)
        if mark.incarnation != log.incarnation:
            raise Refused(
                f"Topic {log.name!r} was made anew since it was exported, and its ids began again. Export to another "
                f"place than {self._wanted.path}."
            )
        if mark.next > log.end:
            raise EventsMissing(
                f"The database is older than the table: it has topic {log.name!r} up to {mark.next - 1}, and the next "
                f"event of its log will be {log.end}. From there on the same ids stand for other events. If this is a "
                "replica that is behind, wait for it. After a restore, export to another place."
            )
        if mark.next < log.first and not self._wanted.allow_loss:
            raise EventsMissing(
                f"Events {mark.next} to {log.first - 1} of topic {log.name!r} have expired and were never exported: "
                f"its log begins at {log.first}. Export what is left with --allow-loss."
            )
        return max(mark.next, log.first)

    def _commit(self, log: TopicLog, start: int, end: int, bytes_per_row: float) -> None:
        """Add a range in one commit; Refused if another run has moved the mark."""
        table = self._tables[log.name]
        before = table.mark()
        mark = Mark(log.incarnation, end, first=start if before is None else None)
        if before is not None and before.next > start:
            raise self._replaced(log)
        if before is None:
            table.first_erased = before_reading(self._connection, log)
        self._rows = 0  # where another run has made the same commit, the events may not even be read
        for _ in range(CONFLICTS):
            self._refuse_older(log)
            try:
                if self._writer is None:
                    table.append(self._events(log, start, end), mark)
                else:
                    self._add(self._writer, table, log, mark, Range(log.name, log.id, start, end), bytes_per_row)
                break
            except Conflict:
                now = table.mark()
                if now == mark:
                    break  # the commit is there: its answer was lost, and it was sent again
                if now == before:
                    continue  # a commit of another kind, like compaction
                raise self._replaced(log) from None
            except NotReady as error:  # a topic's table goes with it
                if not is_the_same(log):
                    raise made_anew(log) from error
                raise
            except Exception:
                # The answer may be lost, and the commit there.
                if table.mark() != mark:
                    raise
                break
        else:
            raise Refused(f"Table {log.name!r} had {CONFLICTS} commits of others in turn. Run it again.")
        # Delta's commit is a file that isn't there yet. Of a process that was held up just before, another run may have
        # removed the file of that version, with all that is behind a checkpoint: then the commit is none.
        self._lock.check()
        self.summary.events += self._rows
        self.summary.commits += 1

    def _events(self, log: TopicLog, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """The events of a range. If some are missing, an error at the end of it, so that nothing is committed."""
        self._rows = 0
        columns, wanted = self._wanted.columns_of(log.name), self._wanted
        reader = columns.reader(
            self._dsn, fetch_size=FETCH_SIZE, fail_on_data_loss=not wanted.allow_loss, with_values=wanted.upsert
        )
        with self._connections.one(self._dsn) as connection:
            for batch in reader.read_by(connection, Range(log.name, log.id, start, end)):
                self._rows += batch.num_rows
                yield batch
        self._refuse_incomplete(log, start, end)

    def _add(
        self, writer: RowsWriter, table: EventTable, log: TopicLog, mark: Mark, whole: Range, bytes_per_row: float
    ) -> None:
        """Add a range whose events are written by others. What the footers of the files say is what counts."""
        made = RangeFiles(
            dsn=self._dsn,
            by=("day",),
            format="parquet",
            target_size=self._wanted.target_size,
            columns=table.columns_of_rows(),
            allow_loss=self._wanted.allow_loss,
        )
        folder = table.folder_of_rows()
        sent, names = writer.write_range(made, whole, folder, bytes_per_row)
        keep_files(folder, names)
        files = read_footers(folder, names)
        self._rows = sum(file.rows for file in files)
        if self._rows != sent:
            raise Refused(f"{self._rows} of {sent} events from {whole.start} on were written. Run the export again.")
        self._refuse_incomplete(log, whole.start, whole.end)
        table.add(files, mark)

    def _refuse_incomplete(self, log: TopicLog, start: int, end: int) -> None:
        if self._rows != end - start and not self._wanted.allow_loss and not is_compacted(log, start, end, self._rows):
            raise Refused(f"{self._rows} of {end - start} events from {start} on were read. Run the export again.")

    def _tell_positions(self) -> None:
        if self._follower is not None:
            offsets = {log.id: self._start(log) for log in self._logs()}
            self._follower.tell(self._connection, offsets)

    def _replaced(self, log: TopicLog) -> Refused:
        return Refused(
            f"Another run has taken the table of topic {log.name!r} over while this one was held up, or had lost its "
            "lock. What this one was writing doesn't count, and nothing was added. Run it again."
        )


def opened(wanted: TableExport, log: TopicLog) -> EventTable:
    """The table of a topic, made if it isn't there."""
    how = Opening(deletes=wanted.deletes, allow_loss=wanted.allow_loss, columns=wanted.columns_of(log.name))
    if wanted.format == "delta":
        from django_events.exporting.tables.delta import DeltaEvents
        from django_events.exporting.tables.delta_states import DeltaStates

        made = DeltaStates if wanted.upsert else DeltaEvents
        return made(f"{wanted.path}/{log.name}", log.name, log.incarnation, how)
    from django_events.exporting.tables.iceberg import IcebergEvents
    from django_events.exporting.tables.iceberg_catalogs import configured, in_folder
    from django_events.exporting.tables.iceberg_states import IcebergStates

    namespace = configured(wanted.catalog, wanted.path) if wanted.catalog else in_folder(wanted.path)
    kind = IcebergStates if wanted.upsert else IcebergEvents
    return kind(namespace, log.name, log.incarnation, how)
