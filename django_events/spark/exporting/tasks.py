"""Spark's tasks write the files of an attempt themselves: they read, encode and write, and the JVM sees no event.

    rows = write(spark, disk, RangeFiles.of(export, "orders"), ranges, place)

A task may run twice at once, or wake up when another one has done its work. So each try of a task writes into a folder
of its own, beside the attempt, and only what Spark has told the driver of is moved into the attempt. Where the folder
of all tries is gone, none is made: what wakes up late fails.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from django_events.exceptions import NotReady
from django_events.exporting.paths import split
from django_events.exporting.range_files import RangeFiles
from django_events.exporting.storage import OfDisk, SharedDisk, keep_files, not_there
from django_events.exporting.writing import OUTPUTS
from django_events.reading.ranges import Range
from django_events.spark.errors import in_short, kind, told
from django_events.spark.exporting.storage import OfServer, storage_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

OF_TRIES = ".tasks"  # behind the name of an attempt, so that the next run clears it like one
ANSWER = "rows long, files array<string>"


def disk_of(spark: "SparkSession", format: str, path: str) -> SharedDisk | None:
    """The disk on which tasks write files of a format; None where Spark's own writer has to."""
    disk = storage_of(spark, path)
    return disk if format in OUTPUTS and isinstance(disk, OfDisk | OfServer) else None


def parallelism(spark: "SparkSession") -> int:
    """How many tasks run at once."""
    try:
        return spark.sparkContext.defaultParallelism
    except Exception:  # Spark Connect has none to ask
        return 8


def write(spark: "SparkSession", disk: SharedDisk, made: RangeFiles, ranges: Sequence[Range], place: str) -> int:
    """Write a range in each task, and gather the files in a place that is not there yet; returns how many events."""
    beside = f"{place}{OF_TRIES}"
    made = replace(made, columns=made.columns.elsewhere())
    disk.make(beside)
    try:
        rows, files = _answers(spark, ranges, partial(write_one, made, beside=split(beside)[2]))
    except Exception as error:
        if kind(error) == NotReady.__name__:
            raise NotReady(told(error)) from error
        raise
    disk.gather(files, beside, place)
    disk.remove(beside)
    return rows


def write_into_table(
    spark: "SparkSession", made: RangeFiles, ranges: Sequence[Range], folder: str
) -> tuple[int, list[str]]:
    """Write a range in each task straight into the folder of a table's rows; returns how many, and the files.

    A file that no commit names is not part of the table. So what another try of a task writes, or one that wakes up too
    late, needs no folder of its own.
    """
    made = replace(made, columns=made.columns.elsewhere())
    try:
        return _answers(spark, ranges, partial(write_rows, made, folder=folder))
    except Exception as error:
        raise in_short(error) from error


def _answers(
    spark: "SparkSession", ranges: Sequence[Range], write: Callable[..., tuple[int, list[str]]]
) -> tuple[int, list[str]]:
    """What Spark tells the driver of: one try of each task."""

    def work(batches: Iterator["pa.RecordBatch"]) -> Iterator["pa.RecordBatch"]:
        import pyarrow as pa

        for batch in batches:
            for task in batch.column(0).to_pylist():
                rows, files = write(ranges[task], task=task)
                answer = [pa.array([rows], pa.int64()), pa.array([files], pa.list_(pa.string()))]
                yield pa.RecordBatch.from_arrays(answer, ["rows", "files"])

    answers = spark.range(0, len(ranges), 1, len(ranges)).mapInArrow(work, ANSWER).collect()
    return sum(answer.rows for answer in answers), [file for answer in answers for file in answer.files]


def write_rows(made: RangeFiles, one: Range, *, folder: str, task: int) -> tuple[int, list[str]]:
    """A try of a task of a table; returns how many events it wrote, and its files by their names below the folder."""
    if not Path(folder).is_dir():
        raise not_there(folder)
    with made.dsn.connected() as connection:
        rows, files = made.write(connection, one, folder, task=task)
    keep_files(folder, files)
    return rows, files


def write_one(made: RangeFiles, one: Range, *, beside: str, task: int) -> tuple[int, list[str]]:
    """A try of a task; returns how many events it wrote, and its files by their names below the folder of all."""
    mine = Path(beside, f"{task:05d}-{uuid4()}")
    try:
        mine.mkdir()
    except FileNotFoundError:
        raise not_there(beside) from None
    with made.dsn.connected() as connection:
        rows, files = made.write(connection, one, str(mine), task=task)
    return rows, [f"{mine.name}/{file}" for file in files]
