"""Spark as what writes the files of an export."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from django_events.exporting.export import Export
from django_events.exporting.layout import folders
from django_events.exporting.parts import Part
from django_events.exporting.storage import Storage
from django_events.reading.topics import TopicLog
from django_events.spark.exporting import files
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
        return files.count(self._spark, format, place)

    def write(self, wanted: Export, topic: TopicLog, part: Part, place: str, bytes_per_row: float) -> int:
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
            .options(**(typed.options() if typed else {}))
            .load()
            .drop("topic")
        )
        frame = files.arranged(
            frame,
            wanted.by,
            rows=len(part),
            bytes_per_row=bytes_per_row,
            target=wanted.target_size,
            least=self._parallelism,
        )
        frame = frame.observe(seen, f.count(f.lit(1)).alias("rows"))  # last: Spark forgets what is below nothing
        files.writer(frame, wanted.format, folders(wanted.by)).save(place)
        return int(seen.get["rows"])

    def share(self) -> float:
        """How much of the part is done, by the tasks of what Spark is doing now."""
        tracker: Any = getattr(self._spark, "_jsc", None) and self._spark.sparkContext.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()] if tracker else []
        tasks = sum(stage.numTasks for stage in stages if stage)
        return sum(stage.numCompletedTasks for stage in stages if stage) / tasks if tasks else 0.0

    @property
    def _parallelism(self) -> int:
        try:
            return self._spark.sparkContext.defaultParallelism
        except Exception:  # Spark Connect has none to ask
            return 8
