"""Exporting a part of the log to files, exactly once: run it again and no event is written twice.

    export(spark, Export(dsn=dsn, topics=("orders",), path="/data/events"))

A run plans which parts it is going to write, each with its bounds. It writes each where no reader looks, counts what is
in the files, and decides that this attempt is the part: see `journal`. Killed anywhere, or frozen, or without its lock,
it leaves nothing that readers see, and the next run writes the same parts.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from django_events.exceptions import EventsMissing, Invalid, Refused
from django_events.spark.dsn import Dsn
from django_events.spark.exporting import files
from django_events.spark.exporting.locking import FolderLock, alone
from django_events.spark.exporting.parts import Part, Parts
from django_events.spark.exporting.storage import storage_of
from django_events.spark.reading import topics
from django_events.spark.reading.offsets import EARLIEST, LATEST, Boundary
from django_events.spark.reading.ranges import Range
from django_events.spark.reading.rows import RangeReader
from django_events.spark.reading.topics import TopicLog
from django_events.spark.session import tagged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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
    target_size: int = files.TARGET
    events_per_part: int = EVENTS_PER_PART
    resume: bool = False
    allow_loss: bool = False


@dataclass(frozen=True)
class Summary:
    """What a run has written: parts and events, how many the folder holds now, and how many the range has."""

    parts: int
    events: int
    total: int
    meant: int


Tell = Callable[[int, int, Part], None]  # events done, of how many, and the part that is being written


def export(spark: "SparkSession", wanted: Export, tell: Tell = lambda done, total, part: None) -> Summary:
    """Export the events that the folder doesn't have; Refused if another run writes to it."""
    dsn = Dsn(wanted.dsn)
    with alone(dsn, wanted.path) as lock, dsn.connected() as connection:
        journal = Parts(storage_of(spark, wanted.path), wanted.path)
        journal.refuse_other_way(wanted.format, wanted.by)
        found = topics.find(connection, topics.TopicChoice(names=wanted.topics))
        for topic in found:
            journal.refuse_other_topic(topic.name, topic.incarnation)
            _refuse_older(topic, wanted, journal)
        parts = [part for part in journal.unfinished if part.topic in wanted.topics]
        logs = {topic.name: topic for topic in found}
        for part in parts:
            _refuse_lost(part, logs[part.topic], wanted)
        ranges = [] if wanted.resume else _ranges(found, wanted)
        new = list(_new_parts(ranges, wanted, journal))
        parts += new
        if parts or journal.has_left_over:
            journal.plan(new, wanted.format, wanted.by)
        total, done = sum(map(len, parts)), 0
        for part in parts:
            tell(done, total, part)
            _write(spark, wanted, part, journal, lock, logs[part.topic])
            done += len(part)
        if parts:
            tell(done, total, parts[-1])
    return Summary(
        parts=len(parts),
        events=sum(journal.done[part] for part in parts),
        total=sum(journal.done.values()),
        meant=sum(max(end - start, 0) for _, start, end in ranges),
    )


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


def _write(
    spark: "SparkSession", wanted: Export, part: Part, journal: Parts, lock: FolderLock, topic: TopicLog
) -> None:
    """Write a part, and record it as done if all of its events are in the files."""
    bytes_per_row = _bytes_per_row(Dsn(wanted.dsn), part, topic.id)
    attempt = journal.attempt()
    place = journal.place_of(attempt)
    with tagged(spark) as cancel, lock.watched(cancel):
        sent = _save(spark, wanted, part, place, bytes_per_row)
        rows = files.count(spark, wanted.format, place)
    if rows != sent or (rows != len(part) and not wanted.allow_loss and not _is_compacted(topic, part, rows)):
        journal.give_up(attempt)
        raise Refused(f"{rows} of {len(part)} events of {part.folder} were written. Run the export again.")
    journal.finish(part, attempt, rows)


def _is_compacted(topic: TopicLog, part: Part, rows: int) -> bool:
    """Whether compaction has left no more events of a part than so many. The reader has told what else is missing."""
    [now] = topics.find(topic.connection, topics.TopicChoice(names=(topic.name,)))
    return part.start <= now.compacted_until and len(part) >= rows >= part.end - 1 - now.compacted_until


def _save(spark: "SparkSession", wanted: Export, part: Part, place: str, bytes_per_row: float) -> int:
    """Write the events of a part there; returns how many Spark was given."""
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    seen = Observation()
    frame = (
        spark.read.format("django_events")
        .option("dsn", wanted.dsn)
        .option("subscribe", part.topic)
        .option("startingOffsets", f'{{"{part.topic}": {part.start}}}')
        .option("endingOffsets", f'{{"{part.topic}": {part.end}}}')
        .option("failOnDataLoss", str(not wanted.allow_loss).lower())
        .load()
        .drop("topic")
    )
    frame = files.arranged(
        frame,
        wanted.by,
        rows=len(part),
        bytes_per_row=bytes_per_row,
        target=wanted.target_size,
        least=_parallelism(spark),
    )
    frame = frame.observe(seen, f.count(f.lit(1)).alias("rows"))  # last: Spark forgets what is below nothing
    files.writer(frame, wanted.format, files.folders(wanted.by)).save(place)
    return int(seen.get["rows"])


def _bytes_per_row(dsn: Dsn, part: Part, topic_id: int) -> float:
    """How large events are in memory, from some in the middle."""
    start = max(part.start, (part.start + part.end - SAMPLE) // 2)
    reader = RangeReader(
        dsn=dsn, columns=("value", "body", "metadata", "key", "type"), fetch_size=SAMPLE, fail_on_data_loss=False
    )
    batches = list(reader.read(Range(part.topic, topic_id, start, min(start + SAMPLE, part.end))))
    rows = sum(batch.num_rows for batch in batches)
    return sum(batch.nbytes for batch in batches) / rows if rows else 1


def _parallelism(spark: "SparkSession") -> int:
    try:
        return spark.sparkContext.defaultParallelism
    except Exception:  # Spark Connect has none to ask
        return 8
