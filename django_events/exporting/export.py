"""Exporting a part of the log to files, exactly once: run it again and no event is written twice.

    export(LocalEngine(threads=2), Export(dsn=dsn, topics=("orders",), path="/data/events"))

A run plans which parts it is going to write, each with its bounds. It writes each where no reader looks, counts what is
in the files, and decides that this attempt is the part: see `journal`. Killed anywhere, or frozen, or without its lock,
it leaves nothing that readers see, and the next run writes the same parts. What writes the files is an engine: Spark,
or this process. The files, the folders and the journal are the same, so that a folder may have parts of both.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from django_events.exceptions import EventsMissing, Invalid, NotReady, Refused
from django_events.exporting.erasing import Applied, Erasing
from django_events.exporting.erasing_files import LEFT_IN_FILES, erase_in_files, refuse_other_files
from django_events.exporting.erasures import Erasures, before_reading, refuse_older_database
from django_events.exporting.file_columns import PLAIN, FileColumns
from django_events.exporting.layout import TARGET
from django_events.exporting.locking import FolderLock, alone, resting
from django_events.exporting.parts import Part, Parts
from django_events.exporting.storage import Storage
from django_events.reading import topics
from django_events.reading.dsn import Dsn
from django_events.reading.offsets import EARLIEST, LATEST, Boundary
from django_events.reading.ranges import Range
from django_events.reading.rows import RangeReader
from django_events.reading.topics import TopicLog

BEGINNING, END = Boundary(point=EARLIEST), Boundary(point=LATEST)
EVENTS_PER_PART = 5_000_000
SAMPLE = 500


@dataclass(frozen=True, kw_only=True)
class Export:
    """What to export, and how."""

    dsn: str = field(repr=False)
    topics: tuple[str, ...]
    path: str
    format: str = "parquet"
    by: tuple[str, ...] = ("day",)
    since: Boundary = BEGINNING
    until: Boundary = END
    target_size: int = TARGET
    events_per_part: int = EVENTS_PER_PART
    resume: bool = False
    allow_loss: bool = False
    erasing: Erasing | None = None
    columns: Mapping[str, FileColumns] = field(default_factory=dict)  # of topics with typed ones

    def columns_of(self, topic: str) -> FileColumns:
        return self.columns.get(topic, PLAIN)


@dataclass(frozen=True)
class Summary:
    """What a run has written: parts and events, how many the folder holds now, and how many the range has.

    `removed` were exported, and are in the folder no more.
    """

    parts: int
    events: int
    total: int
    meant: int
    removed: Sequence[Part]
    applied: Applied


class Engine(Protocol):
    """What writes the events of a part into files, and counts them there."""

    def storage(self, wanted: Export) -> Storage:
        """The file system of its folder; Invalid if the engine has no way to it, or to its format."""

    def working(self) -> AbstractContextManager[Callable[[], object]]:
        """Gives what ends the work of the block, from another thread."""

    def write(self, wanted: Export, topic: TopicLog, part: Part, place: str, bytes_per_row: float) -> int:
        """Write the events of a part into a folder that is not there yet; returns how many were read."""

    def count(self, format: str, place: str) -> int:
        """How many events the files below a folder have, by their footers or lines."""

    def share(self) -> float:
        """How much of what it is writing is done."""


Tell = Callable[[int, int, Part], None]  # events done, of how many, and the part that is being written


def export(engine: Engine, wanted: Export, tell: Tell = lambda done, total, part: None) -> Summary:
    """Export the events that the folder doesn't have; Refused if another run writes to it."""
    dsn = Dsn(wanted.dsn)
    with alone(dsn, wanted.path) as lock, resting(dsn) as connection:
        journal = Parts(storage := engine.storage(wanted), wanted.path)
        if wanted.erasing is not None:
            refuse_other_files(storage, wanted.format, wanted.path)
        journal.refuse_other_way(wanted.format, wanted.by)
        [kind] = {wanted.columns_of(name).said for name in wanted.topics}
        journal.values.refuse_other(kind, is_new=journal.is_new)
        found = topics.find(connection, topics.TopicChoice(names=wanted.topics))
        for topic in found:
            journal.refuse_other_topic(topic.name, topic.incarnation)
            _refuse_older(topic, wanted, journal)
            if (erased := journal.last_erasure(topic.name)).number:
                refuse_older_database(connection, topic, erased, wanted.path)
        wanted = replace(
            wanted,
            columns={
                name: journal.values.after(name, one, f"topic {name!r} in {wanted.path}")
                for name, one in wanted.columns.items()
            },
        )
        parts = [part for part in journal.unfinished if part.topic in wanted.topics]
        logs = {topic.name: topic for topic in found}
        for part in parts:
            _refuse_lost(part, logs[part.topic], wanted)
        ranges = [] if wanted.resume else _ranges(found, wanted)
        new = list(_new_parts(ranges, wanted, journal))
        for name in {part.topic for part in new} - {part.topic for part in journal.planned}:
            journal.note_erased(name, before_reading(connection, logs[name]))
        parts += new
        if parts or journal.has_left_over:
            journal.plan(new, wanted.format, wanted.by)
        total, done = sum(map(len, parts)), 0
        for part in parts:
            tell(done, total, part)
            _write(engine, wanted, part, journal, lock, logs[part.topic])
            done += len(part)
        if parts:
            tell(done, total, parts[-1])
        applied = Applied()
        if wanted.erasing is not None:
            _erase(found, wanted, wanted.erasing, journal, applied)
    removed = [part for name in {part.topic for part in journal.done} for part in journal.removed(name)]
    return Summary(
        parts=len(parts),
        events=sum(journal.done[part] for part in parts),
        total=sum(journal.done.values()) - sum(journal.done[part] for part in removed),
        meant=sum(max(end - start, 0) for _, start, end in ranges),
        removed=[part for part in removed if part.topic in wanted.topics],
        applied=applied,
    )


def _erase(found: list[TopicLog], wanted: Export, erasing: Erasing, journal: Parts, applied: Applied) -> None:
    """Blank in the files what was erased in the log since the last time."""
    for topic in found:
        if not any(part.topic == topic.name for part in journal.done):
            continue

        def work(erasures: Erasures, topic: TopicLog = topic) -> dict[str, Any]:
            if not journal.run:
                journal.begin(wanted.format, wanted.by)
            done = erase_in_files(journal, wanted.path, topic.name, erasures)
            journal.finish_erasing(topic.name, erasures.last)
            return {"rows": done.rows, "files": done.files, "left": LEFT_IN_FILES.format(path=wanted.path)}

        after = journal.erased.get(topic.name, 0)
        applied.apply(topic.connection, topic, erasing, place=wanted.path, after=after, work=work)


def _refuse_older(topic: TopicLog, wanted: Export, journal: Parts) -> None:
    """EventsMissing if ids that are exported are not given yet: other events will have them, or have them already."""
    end = max((part.end for part in journal.planned if part.topic == topic.name), default=0)
    if end > topic.end:
        raise EventsMissing(
            f"The database is older than the export: {wanted.path} has topic {topic.name!r} up to {end - 1}, and the "
            f"next event of its log will be {topic.end}. From there on the same ids stand for other events. If this "
            "is a replica that is behind, wait for it. After a restore, export to another folder."
        )


def _refuse_lost(part: Part, topic: TopicLog, wanted: Export) -> None:
    """EventsMissing if a part that was begun can't have all of its events any more."""
    if part.start < topic.first and not wanted.allow_loss:
        raise EventsMissing(
            f"Events {part.start} to {part.end - 1} of topic {topic.name!r} were begun by a run that was interrupted, "
            f"and its log begins at {topic.first}: what was before it has expired. Export what is left with "
            "--allow-loss."
        )


def _ranges(found: list[TopicLog], wanted: Export) -> list[tuple[TopicLog, int, int]]:
    """The range of each topic to export, as far as the log has it."""
    since, until, fail = wanted.since, wanted.until, not wanted.allow_loss
    for boundary in (since, until):
        boundary.refuse_others(found)
        for topic in found:
            _refuse_beyond(boundary, topic, wanted)
    return [
        (topic, since.of(topic, fail_on_data_loss=fail), until.of(topic, fail_on_data_loss=fail)) for topic in found
    ]


def _refuse_beyond(boundary: Boundary, topic: TopicLog, wanted: Export) -> None:
    """Say of an id that is not in the log what can be done with the options of the command."""
    point = boundary.point
    if boundary.by_topic is not None or not isinstance(point, int) or point < 0:  # a time, or an end
        return
    if point > topic.end:
        raise Invalid(
            f"{boundary.option} is {point}, and topic {topic.name!r} has no such event: the next one will be "
            f"{topic.end}. Expected an id up to that, or a day like 2026-11-20."
        )
    if point < topic.first and not wanted.allow_loss:
        raise EventsMissing(
            f"{boundary.option} is {point}, and the log of topic {topic.name!r} begins at {topic.first}: what was "
            "before it has expired. Export what is left with --allow-loss."
        )


def _new_parts(ranges: list[tuple[TopicLog, int, int]], wanted: Export, journal: Parts) -> Iterator[Part]:
    for topic, start, end in ranges:
        yield from _removed(topic, wanted, journal)
        for first, last in journal.missing(topic.name, start, end):
            for begin in range(first, last, wanted.events_per_part):
                yield _part(topic, begin, min(begin + wanted.events_per_part, last))


def _removed(topic: TopicLog, wanted: Export, journal: Parts) -> Iterator[Part]:
    """Parts of which no event is left, with --allow-loss; EventsMissing without. The next run knows of them.

    Between what earlier runs have planned and the log are events that this run was to export. With --since they are
    not meant.
    """
    starts = [part.start for part in journal.planned if part.topic == topic.name]
    if not starts or wanted.since is not BEGINNING:
        return
    for start, end in journal.missing(topic.name, min(starts), topic.first):
        if not wanted.allow_loss:
            raise EventsMissing(
                f"Events {start} to {end - 1} of topic {topic.name!r} have expired and were never exported to "
                f"{wanted.path}: its log begins at {topic.first}. Export what is left with --allow-loss."
            )
        yield _part(topic, start, end)


def _part(topic: TopicLog, start: int, end: int) -> Part:
    return Part(topic=topic.name, incarnation=topic.incarnation, start=start, end=end)


def _write(engine: Engine, wanted: Export, part: Part, journal: Parts, lock: FolderLock, topic: TopicLog) -> None:
    """Write a part, and record it as done if all of its events are in the files."""
    attempt = journal.attempt()
    place = journal.place_of(attempt)
    with engine.working() as cancel, lock.watched(cancel):
        try:
            size = bytes_per_row(Dsn(wanted.dsn), Range(topic.name, topic.id, part.start, part.end))
            sent = engine.write(wanted, topic, part, place, size)
            rows = engine.count(wanted.format, place)
        except NotReady as error:  # a topic's table goes with it
            if not is_the_same(topic):
                raise made_anew(topic) from error
            raise
        except (OSError, Refused):  # another run clears what it finds
            journal.refuse_replaced()
            raise
    if not is_the_same(topic):
        journal.give_up(attempt)
        raise made_anew(topic)
    is_whole = rows == len(part) or wanted.allow_loss or is_compacted(topic, part.start, part.end, rows)
    if rows != sent or not is_whole:
        journal.give_up(attempt)
        raise Refused(f"{rows} of {len(part)} events of {part.folder} were written. Run the export again.")
    journal.finish(part, attempt, rows)


def is_the_same(topic: TopicLog) -> bool:
    """Whether the name still means the topic that was looked at. Spark reads by name."""
    now = topics.find(topic.connection, topics.TopicChoice(names=(topic.name,)), fail=False)
    return [one.incarnation for one in now] == [topic.incarnation]


def made_anew(topic: TopicLog) -> Refused:
    """The error for a topic that isn't any more what it was at the start of the run."""
    return Refused(
        f"Topic {topic.name!r} was made anew or removed while its events were written: they may be those of another "
        "topic. What this run was writing doesn't count. Export to another place."
    )


def is_compacted(topic: TopicLog, start: int, end: int, rows: int) -> bool:
    """Whether compaction has left no more events of a range than so many. The reader has told what else is missing."""
    [now] = topics.find(topic.connection, topics.TopicChoice(names=(topic.name,)))
    return start <= now.compacted_until and end - start >= rows >= end - 1 - now.compacted_until


def bytes_per_row(dsn: Dsn, whole: Range) -> float:
    """How large events are in memory, from some in the middle."""
    start = max(whole.start, (whole.start + whole.end - SAMPLE) // 2)
    reader = RangeReader(
        dsn=dsn, columns=("value", "body", "metadata", "key", "type"), fetch_size=SAMPLE, fail_on_data_loss=False
    )
    batches = list(reader.read(replace(whole, start=start, end=min(start + SAMPLE, whole.end))))
    rows = sum(batch.num_rows for batch in batches)
    return sum(batch.nbytes for batch in batches) / rows if rows else 1
