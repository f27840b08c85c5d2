"""Spark as what writes the files of an export."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from django_events.exporting.export import Export
from django_events.exporting.layout import folders
from django_events.exporting.parts import Part
from django_events.exporting.range_files import RangeFiles
from django_events.exporting.storage import OfDisk, Storage
from django_events.exporting.writing import OUTPUTS, count
from django_events.reading.ranges import Range
from django_events.reading.topics import TopicLog
from django_events.spark.exporting import files, tasks
from django_events.spark.exporting.storage import storage_of
from django_events.spark.session import tagged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkEngine:
    """A session of Spark, whose tasks write the files."""

    def __init__(self, spark: "SparkSession") -> None:
        self._spark = spark

    def storage(self, wanted: Export) -> Storage:
        return storage_of(self._spark, wanted.path)

    def working(self) -> AbstractContextManager[Callable[[], object]]:
        return tagged(self._spark)

    def count(self, format: str, place: str) -> int:
        if format in OUTPUTS and isinstance(storage_of(self._spark, place), OfDisk):
            return count(format, place)
        return files.count(self._spark, format, place)

    def write(self, wanted: Export, topic: TopicLog, part: Part, place: str, bytes_per_row: float) -> int:
        disk = tasks.disk_of(self._spark, wanted.format, place)
        if disk is None:
            return self._write_by_the_jvm(wanted, part, place, bytes_per_row)
        made = RangeFiles.of(wanted, part.topic)
        whole = Range(topic.name, topic.id, part.start, part.end)
        ranges = made.cut(whole, bytes_per_row=bytes_per_row, at_once=tasks.parallelism(self._spark))
        return tasks.write(self._spark, disk, made, ranges, place)

    def _write_by_the_jvm(self, wanted: Export, part: Part, place: str, bytes_per_row: float) -> int:
        """Where PyArrow has no way to the place, or to the format."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as f

        seen, typed = Observation(), wanted.columns_of(part.topic).typed
        frame = (
            self._spark.read.format("django_events")
            .option("dsn", wanted.dsn)
            .option("subscribe", part.topic)
            .option("startingOffsets", f'{{"{part.topic}": {part.start}}}')
            .option("endingOffsets", f'{{"{part.topic}": {part.end}}}')
            .option("failOnDataLoss", str(not wanted.allow_loss).lower())
            .options(**({**typed.options(), "types": "*"} if typed else {}))
            .load()
            .drop("topic")
        )
        frame = files.arranged(
            frame,
            wanted.by,
            rows=len(part),
            bytes_per_row=bytes_per_row,
            target=wanted.target_size,
            least=tasks.parallelism(self._spark),
        )
        frame = frame.observe(seen, f.count(f.lit(1)).alias("rows"))  # last: Spark forgets what is below nothing
        files.writer(frame, wanted.format, folders(wanted.by)).save(place)
        return int(seen.get["rows"])

    def write_range(self, made: RangeFiles, whole: Range, folder: str, bytes_per_row: float) -> tuple[int, list[str]]:
        """Write the events of a range into the folder of a table's rows; returns how many, and the files."""
        ranges = made.cut(whole, bytes_per_row=bytes_per_row, at_once=tasks.parallelism(self._spark))
        return tasks.write_into_table(self._spark, made, ranges, folder)

    def share(self) -> float:
        """How much of the part is done, by the tasks of what Spark is doing now."""
        tracker: Any = getattr(self._spark, "_jsc", None) and self._spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()] if tracker else []
        of = sum(stage.numTasks for stage in stages if stage)
        return sum(stage.numCompletedTasks for stage in stages if stage) / of if of else 0.0
