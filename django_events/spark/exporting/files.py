"""How events lie in files: formats, folders by day or type, and sizes."""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from django_events.exceptions import Invalid, did_you_mean

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameWriter, SparkSession

FORMATS = ("parquet", "json", "orc")
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
TARGET = 128 << 20
LONGEST = 60  # characters of four bytes, or of one that Spark writes as three: with event_type= below 255 bytes
FOR_NULL = "__HIVE_DEFAULT_PARTITION__"  # what Spark calls the folder of '' too
COMPRESSED = 5  # about how much smaller a file is than what is read


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
    short = f.concat(f.substring(name, 1, 50), f.lit("~"), f.substring(f.sha2(name, 256), 1, 8))
    return f.when((f.length(name) > LONGEST) | (name == FOR_NULL), short).otherwise(name)


# By name: what the folders are called, and their value. Times are of UTC, whatever the zone of the session is.
BY: dict[str, tuple[str, Callable[[], "Column"]]] = {
    "month": ("month", _month),
    "day": ("day", _day),
    "hour": ("hour", _hour),
    "type": ("event_type", _type),
}


def parse_by(text: str) -> tuple[str, ...]:
    """`day,type` as names; Invalid for one that is none."""
    names = tuple(part.strip() for part in text.split(",") if part.strip() and part.strip() != "none")
    for name in names:
        if name not in BY:
            raise Invalid(f"Events can't be put into folders by {name!r}. {did_you_mean(name, BY)}")
    if len(set(names)) < len(names):
        raise Invalid(f"Each of {text!r} can be said once.")
    return names


def parse_format(name: str) -> str:
    """Invalid if events can't be written in this format."""
    if name not in FORMATS:
        raise Invalid(f"There is no format {name!r}. Known are: {', '.join(FORMATS)}.")
    return name


def parse_size(text: str) -> int:
    """`128MB` in bytes."""
    units = {"KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30}
    number, unit = text[:-2].strip(), text[-2:].upper()
    if unit not in units or not re.fullmatch("[0-9]+", number) or not int(number):
        raise Invalid(f"{text!r} is no size, expected one like 128MB.")
    return int(number) * units[unit]


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
        folder, value = BY[name]
        frame = frame.withColumn(folder, value())
    return frame


def folders(by: tuple[str, ...]) -> list[str]:
    """What the levels of folders are called."""
    return [BY[name][0] for name in by]


def described(format: str, by: Sequence[str]) -> str:
    """A description of the format and the layout of a folder."""
    return f"in format {format}, by {', '.join(by) or 'nothing'}"


def writer(frame: "DataFrame", format: str, folders: list[str]) -> "DataFrameWriter":
    """Writes into a folder that is not there yet."""
    return frame.write.mode("error").format(format).options(**OPTIONS[format], **COMMITTER).partitionBy(*folders)


def count(spark: "SparkSession", format: str, place: str) -> int:
    """How many events the files have, whatever wrote them: Parquet and ORC say it in their footers."""
    reader = spark.read.option("recursiveFileLookup", "true")
    # JSON has a line for each.
    found = reader.text(place) if format == "json" else reader.format(format).schema("offset long").load(place)
    return int(found.count())
