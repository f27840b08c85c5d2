"""Following the log into files or into another system, as a streaming query that goes on where it stopped.

Each micro-batch is written where no reader looks, and becomes a folder of its own when the journal has decided so. The
journal knows the next id of each topic, and what is in the files already is left out: whatever Spark's checkpoint says,
a reader of the files sees each event once. Where Spark's tasks write the files of an export themselves, they do so
here: a micro-batch is the ranges of its events, and none of them passes the JVM. Into other formats, Spark's own sinks
write.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any

from django_events.exceptions import EventsMissing, Invalid, Refused
from django_events.exporting.batches import Batches, Reached
from django_events.exporting.export import SAMPLE, bytes_per_row
from django_events.exporting.file_columns import PLAIN, FileColumns
from django_events.exporting.journal import FOLDER
from django_events.exporting.layout import TARGET, folders, topic_folder
from django_events.exporting.locking import alone
from django_events.exporting.range_files import RangeFiles
from django_events.exporting.storage import OfDisk, SharedDisk
from django_events.exporting.writing import written
from django_events.reading import topics
from django_events.reading.dsn import Dsn
from django_events.reading.ranges import Range
from django_events.reading.topics import TopicLog
from django_events.spark.errors import in_short
from django_events.spark.exporting import files, tasks
from django_events.spark.exporting.storage import storage_of
from django_events.spark.reading.stream_ranges import PLANNED, stream_of_ranges

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery


_NOT_THEIRS = (
    "its checkpoint is not theirs. Remove the checkpoint, and without --from latest the query takes what is missing, "
    "or go on without it by --allow-loss."
)


@dataclass(frozen=True, kw_only=True)
class Follow:
    """What to follow, and where to."""

    dsn: str = field(repr=False)
    topics: tuple[str, ...]
    path: str | None = None
    format: str = "parquet"
    by: tuple[str, ...] = ("day",)
    sink: str | None = None
    sink_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    checkpoint: str | None = None
    start: str = "earliest"
    every: str | None = None
    once: bool = False
    most: int | None = None
    most_bytes: int | None = None
    consumer: str | None = None
    allow_loss: bool = False
    columns: FileColumns = PLAIN


class Following:
    """A query that is at work, and what it has written."""

    def __init__(
        self, spark: "SparkSession", wanted: Follow, query: "StreamingQuery", rows: int, logs: list[TopicLog]
    ) -> None:
        self.query, self._spark, self._wanted, self._rows, self._logs = query, spark, wanted, rows, logs

    @property
    def rows(self) -> int | None:
        """How many events it has added to its files; None where another sink writes."""
        if self._wanted.path is None:
            return None
        return Batches(storage_of(self._spark, self._wanted.path), self._wanted.path).rows - self._rows

    @staticmethod
    def events_of(progress: "StreamingQueryProgress") -> int:
        """How many events Spark has planned, or read, for a micro-batch."""
        planned = progress.observedMetrics.get(PLANNED)
        if planned is None:
            return progress.numInputRows
        [events] = planned.asDict().get("values", planned)  # Spark Connect gives the values of the row and its schema
        return int(events)

    def refuse_behind(self) -> None:
        """EventsMissing if the query has read all there was when it began, and the files end before that."""
        if self._wanted.path is None or self._wanted.allow_loss:
            return
        reached = Batches(storage_of(self._spark, self._wanted.path), self._wanted.path).reached
        for log in self._logs:
            known = reached.get(log.name)
            if known is not None and known.incarnation == log.incarnation and known.next < log.end:
                raise EventsMissing(
                    f"The files in {self._wanted.path} end before {known.next}, and the log of topic {log.name!r} "
                    f"before {log.end}: {_NOT_THEIRS}"
                )


@contextmanager
def following(spark: "SparkSession", wanted: Follow) -> Iterator[Following]:
    """Start the query, with the lock on its folder; Refused if another command has it, or when it is lost."""
    if wanted.path is None:
        yield Following(spark, wanted, _started(spark, wanted, None), 0, [])
        return
    with alone(Dsn(wanted.dsn), wanted.path) as lock:
        journal = Batches(storage_of(spark, wanted.path), wanted.path)
        journal.refuse_other_way(wanted.format, wanted.by)
        journal.values.refuse_other(wanted.columns.said, is_new=journal.is_new)
        if wanted.columns.typed is not None:
            wanted = replace(wanted, columns=journal.values.after("", wanted.columns, str(wanted.path)))
        if journal.is_new and not wanted.allow_loss:
            _refuse_used(spark, wanted)
        logs = _logs(wanted, journal)
        journal.begin(wanted.format, wanted.by)
        query = _started(spark, wanted, _Files(wanted, journal.run))
        with lock.watched(query.stop):
            yield Following(spark, wanted, query, journal.rows, logs)


def _refuse_used(spark: "SparkSession", wanted: Follow) -> None:
    """EventsMissing if the checkpoint of a new folder was used by a query already: it would leave out the rest."""
    checkpoint, done = _checkpoint(wanted), None
    with suppress(Invalid):  # where only Spark can look
        done = storage_of(spark, checkpoint).names(f"{checkpoint}/commits")
    if done:
        raise EventsMissing(
            f"{wanted.path} has no files yet, and the checkpoint {checkpoint} is that of a query that has written some "
            "elsewhere: what it has read already would be missing. Take another checkpoint, or remove it. To go on "
            "behind those files, say --allow-loss."
        )


def _checkpoint(wanted: Follow) -> str:
    return wanted.checkpoint or f"{wanted.path}/{FOLDER}/checkpoint"


def _logs(wanted: Follow, journal: Batches) -> list[TopicLog]:
    """The topics as they are; EventsMissing if ids that the files have are those of other events, or will be."""
    with Dsn(wanted.dsn).connected() as connection:
        found = topics.find(connection, topics.TopicChoice(names=wanted.topics), fail=False)
    for log in found:
        known = journal.reached.get(log.name)
        if known is None:
            continue
        if known.incarnation != log.incarnation:
            if not wanted.allow_loss:
                raise EventsMissing(
                    f"Topic {log.name!r} was made anew since {wanted.path} has events of it, and its ids began again. "
                    "Take another folder, or go on in this one by --allow-loss."
                )
        elif known.next > log.end:
            raise EventsMissing(
                f"The database is older than the files: {wanted.path} has topic {log.name!r} up to {known.next - 1}, "
                f"and the next event of its log will be {log.end}. From there on the same ids stand for other events. "
                "If this is a replica that is behind, wait for it. After a restore, take another folder."
            )
    return found


def _started(spark: "SparkSession", wanted: Follow, write: "_Files | None") -> "StreamingQuery":
    options = {
        "dsn": wanted.dsn,
        "subscribe": ",".join(wanted.topics),
        "startingOffsets": wanted.start,
        "failOnDataLoss": str(not wanted.allow_loss).lower(),
    }
    if wanted.columns.typed is not None:
        options |= {**wanted.columns.typed.options(), "types": "*"}  # the files have all events
    if wanted.most is not None:
        options["maxOffsetsPerTrigger"] = str(wanted.most)
    if wanted.most_bytes is not None:
        options["maxBytesPerTrigger"] = str(wanted.most_bytes)
    if wanted.consumer is not None:
        options["consumer"] = wanted.consumer
    if write is not None and tasks.disk_of(spark, wanted.format, str(wanted.path)) is not None:
        frame = stream_of_ranges(spark, options)
    else:
        frame = spark.readStream.format("django_events").options(**options).load()
    if write is not None:
        query = frame.writeStream.foreachBatch(write)
    else:
        shaped = for_kafka(frame) if wanted.sink == "kafka" else frame
        query = shaped.writeStream.format(str(wanted.sink)).options(**wanted.sink_options)
    query = query.queryName(f"stream_events {' '.join(wanted.topics)}")
    query = query.option("checkpointLocation", _checkpoint(wanted))
    if wanted.once:
        query = query.trigger(availableNow=True)
    elif wanted.every is not None:
        query = query.trigger(processingTime=wanted.every)
    return query.start()


def for_kafka(frame: "DataFrame") -> "DataFrame":
    """As Kafka's sink takes them: the value or the body as bytes, the rest of what an event says as headers.

    Kafka places them by their key, and the option topic or the event's own says where to.
    """
    from pyspark.sql import functions as f

    says = [
        f.struct(f.lit(name).alias("key"), f.col(name).cast("string").cast("binary").alias("value"))
        for name in ("offset", "type", "metadata", "published_at")
    ]
    # Without a value it would be a tombstone, which deletes the key: fitting for what was erased, and for nothing else.
    unreadable = f.when(f.get_json_object("metadata", "$.unreadable").isNotNull(), f.col("metadata"))
    value = f.coalesce(f.col("value"), f.when(f.col("body").isNull(), unreadable))
    value = f.coalesce(value.cast("binary"), f.col("body")).alias("value")
    return frame.select("topic", "key", value, f.array(*says).alias("headers"))


class _Files:
    """Writes micro-batches into folders. With Spark Connect it runs on the server, so it takes nothing along."""

    def __init__(self, wanted: Follow, run: str) -> None:
        self.wanted, self.run = wanted, run

    def __call__(self, frame: "DataFrame", batch: int) -> None:
        path, wanted, spark = str(self.wanted.path), self.wanted, frame.sparkSession
        journal = Batches(storage_of(spark, path), path, run=self.run)
        incarnations = {log.name: log.incarnation for log in _logs(self.wanted, journal)}
        known = {name: one for name, one in journal.reached.items() if incarnations.get(name) == one.incarnation}
        attempt = journal.attempt()
        place = journal.place_of(attempt)
        disk = tasks.disk_of(spark, wanted.format, place)
        try:
            if disk is None:
                sent = self._save(_without(frame, known), place)
                found = _found(spark, wanted.format, place, wanted.by)
            else:
                ranges = list(_left_of(frame, known))
                sent = self._write(spark, disk, ranges, place)
                found = _found_by_tasks(spark, disk, wanted, place, ranges)
        except (OSError, Refused):  # another run clears what it finds
            journal.refuse_replaced()
            raise
        rows = sum(one.rows for one in found)
        if rows != sent:
            raise Refused(
                f"{rows} of {sent} events of batch {batch} were written. Start it again: the batch is written anew."
            )
        if not rows:
            journal.give_up(attempt)
            return
        logs = {log.name: log for log in _logs(self.wanted, journal)}
        for one in found:
            self._refuse_gap(one, known.get(one.topic), logs.get(one.topic))
        if {log.name: log.incarnation for log in logs.values()} != incarnations:
            raise Refused("A topic was made anew or removed while its events were written. Start it again.")
        reached = {one.topic: Reached(incarnations[one.topic], one.last + 1) for one in found}
        journal.finish(attempt, rows, reached)

    def _write(self, spark: "SparkSession", disk: SharedDisk, ranges: list[Range], place: str) -> int:
        """Let Spark's tasks write the events of these ranges there; returns how many they have read."""
        wanted = self.wanted
        made = RangeFiles(
            dsn=Dsn(wanted.dsn),
            by=wanted.by,
            format=wanted.format,
            target_size=TARGET,
            columns=wanted.columns,
            allow_loss=wanted.allow_loss,
            by_topic=True,
        )
        at_once, cut = tasks.parallelism(spark), []
        for one in ranges:
            size = bytes_per_row(made.dsn, one) if len(one) > SAMPLE else 0
            cut += made.cut(one, bytes_per_row=size, at_once=at_once)
        try:
            return tasks.write(spark, disk, made, cut, place) if cut else 0
        except Refused:
            raise
        except Exception as error:
            raise in_short(error) from None

    def _save(self, frame: "DataFrame", place: str) -> int:
        """Write events there; returns how many Spark was given."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        seen = Observation()
        levels = ["topic", *folders(self.wanted.by)]
        together = files.with_folders(frame, self.wanted.by).hint("rebalance", *levels)
        together = together.observe(seen, f.count(f.lit(1)).alias("rows"))
        files.writer(together, self.wanted.format, levels).save(place)
        return int(seen.get["rows"])

    def _refuse_gap(self, found: "_Found", known: Reached | None, log: TopicLog | None) -> None:
        """EventsMissing if events are missing: but for compaction ids have no gaps, so it shows in the files."""
        if self.wanted.allow_loss:
            return
        compacted = 0 if log is None else log.compacted_until
        if known is not None and found.first != max(known.next, min(found.first, compacted + 1)):
            raise EventsMissing(
                f"The query goes on with event {found.first} of topic {found.topic!r}, and the files in "
                f"{self.wanted.path} end before {known.next}: {_NOT_THEIRS}"
            )
        least = found.last - max(found.first - 1, compacted)
        if not least <= found.rows <= found.last - found.first + 1:
            raise Refused(
                f"{found.rows} events between {found.first} and {found.last} of topic {found.topic!r} were written. "
                "Start it again: the batch is written anew."
            )


@dataclass(frozen=True)
class _Found:
    """What the files of an attempt hold of a topic."""

    topic: str
    rows: int
    first: int
    last: int


def _found(spark: "SparkSession", format: str, place: str, by: tuple[str, ...]) -> list[_Found]:
    from pyspark.sql import functions as f

    # A folder that only events without a type have is of no type if none is said, which ORC's reader refuses.
    schema = ", ".join(["offset long", *(f"{level} string" for level in ("topic", *folders(by)))])
    frame = spark.read.format(format).schema(schema).load(place).groupBy("topic")
    counted = frame.agg(f.count("*").alias("n"), f.min("offset").alias("a"), f.max("offset").alias("z"))
    return [_Found(row.topic, row.n, row.a, row.z) for row in counted.collect()]


def _found_by_tasks(
    spark: "SparkSession", disk: SharedDisk, wanted: Follow, place: str, ranges: list[Range]
) -> list[_Found]:
    """The same of what tasks have written: where this process sees the files, without a job of Spark's."""
    if not isinstance(disk, OfDisk):
        return _found(spark, wanted.format, place, wanted.by) if ranges else []
    found = ((one.topic, written(wanted.format, f"{place}/{topic_folder(one.topic)}")) for one in ranges)
    return [_Found(topic, one.rows, one.first, one.last) for topic, one in found if one is not None]


def _left_of(frame: "DataFrame", known: Mapping[str, Reached]) -> Iterator[Range]:
    """The ranges of a batch without what the files have."""
    for row in frame.collect():
        start = max(row.start, known[row.topic].next) if row.topic in known else row.start
        if start < row.end:
            yield Range(row.topic, row.topic_id, start, row.end)


def _without(frame: "DataFrame", known: Mapping[str, Reached]) -> "DataFrame":
    """Without what the files have: a batch may come again, and a checkpoint may be behind."""
    from pyspark.sql import functions as f

    there: list[Any] = [(f.col("topic") == name) & (f.col("offset") < one.next) for name, one in known.items()]
    return frame.where(~reduce(lambda one, other: one | other, there)) if there else frame
