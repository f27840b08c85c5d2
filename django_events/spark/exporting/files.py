"""How Spark writes events into files: the layout that `exporting.layout` names, as columns and tasks of a frame."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from django_events.exporting.layout import BEGINNING, BY, COMPRESSED, FOR_NULL, LONGEST, folders

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameWriter, SparkSession

# How times are written where they are text: other readers of the files don't know the zone of the session.
AS_TEXT = {"timeZone": "UTC", "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
# Columns that Spark would have to name again, because a folder is called like one, stay in the files.
OPTIONS = {
    "parquet": {"compression": "zstd"},
    "orc": {"compression": "zstd"},
    "json": {**AS_TEXT, "ignoreNullFields": "false"},
}
# Of Hadoop's committers, the one whose tasks write into a place of their own until the whole job is done. By the other
# one a task that comes late writes beside files that are counted already.
COMMITTER = {"mapreduce.fileoutputcommitter.algorithm.version": "1"}


def _day() -> "Column":
    from pyspark.sql import functions as f

    return f.expr("date_from_unix_date(cast(floor(unix_micros(timestamp) / 86400000000D) as int))")


def _hour() -> "Column":
    from pyspark.sql import functions as f

    return f.expr("lpad(cast(pmod(cast(floor(unix_micros(timestamp) / 3600000000D) as bigint), 24) as string), 2, '0')")


def _month() -> "Column":
    from pyspark.sql import functions as f

    return f.substring(_day().cast("string"), 1, 7)


def _type() -> "Column":
    """The type, or what names a folder that any file system takes: a beginning and a digest."""
    from pyspark.sql import functions as f

    name = f.col("type")
    short = f.concat(f.substring(name, 1, BEGINNING), f.lit("~"), f.substring(f.sha2(name, 256), 1, 8))
    return f.when((f.length(name) > LONGEST) | (name == FOR_NULL), short).otherwise(name)


# Of each name in `BY`. Times are of UTC, whatever the zone of the session is.
VALUES: dict[str, Callable[[], "Column"]] = {"month": _month, "day": _day, "hour": _hour, "type": _type}


def arranged(
    frame: "DataFrame", by: tuple[str, ...], *, rows: int, bytes_per_row: float, target: int, least: int
) -> "DataFrame":
    """The same events with columns for their folders, in so many tasks that files get their size."""
    frame = with_folders(frame, by)
    if "type" in by:  # types are mixed in every range of ids: bring those of a folder together
        return frame.hint("rebalance", *folders(by))
    size = rows * bytes_per_row / COMPRESSED
    return frame.coalesce(max(int(size // target) + 1, min(least, int(size // (8 << 20)) + 1)))


def with_folders(frame: "DataFrame", by: tuple[str, ...]) -> "DataFrame":
    """With a column for each level of folders."""
    for name in by:
        frame = frame.withColumn(BY[name], VALUES[name]())
    return frame


def writer(frame: "DataFrame", format: str, folders: list[str]) -> "DataFrameWriter":
    """Writes into a folder that is not there yet."""
    return frame.write.mode("error").format(format).options(**OPTIONS[format], **COMMITTER).partitionBy(*folders)


def count(spark: "SparkSession", format: str, place: str) -> int:
    """How many events the files have, whatever wrote them: Parquet and ORC say it in their footers."""
    reader = spark.read.option("recursiveFileLookup", "true")
    # JSON has a line for each.
    found = reader.text(place) if format == "json" else reader.format(format).schema("offset long").load(place)
    return int(found.count())
