"""What jobs read: the log through the source or files that were exported from it, and the tables beside it."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StringType, StructField, StructType

from django_events.exceptions import Invalid
from django_events.reading.columns import COLUMNS
from django_events.reading.typed.columns import DATA, RESCUED, TYPED, UNNAMED, field_of
from django_events.spark.jobs.registry import Job
from django_events.spark.reading.schema import struct

ENDING = r"\.(json|orc)(\.[a-z0-9]+)?$"
# A line that isn't JSON fails the job: skipped, it would be an event that is missing unnoticed.
JSON = {"mode": "FAILFAST", "timeZone": "UTC"}
ALL_TOPICS = ".*"


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """Where events are: in the database, or at a path. No topics are all of them."""

    spark: SparkSession
    dsn: str
    topics: Sequence[str] = ()
    path: str | None = None
    typing: Mapping[str, str] = field(default_factory=dict)  # options of the source that make values columns

    def of(self, job: Job) -> list[DataFrame]:
        """What a job's function takes."""
        return [self._events(job.columns) if name == "events" else self._table(name) for name in job.reads]

    def _events(self, columns: Sequence[str]) -> DataFrame:
        if self.path is not None:
            return self._chosen(self._files(self.path, columns))
        subscription = {"subscribe": ",".join(self.topics)} if self.topics else {"subscribePattern": ALL_TOPICS}
        if not self.typing:
            return self._source(columns=",".join(columns), **subscription)
        asked = ",".join(TYPED if name == "value" else name for name in columns)
        frame = self._source(**{**self.typing, **subscription, "columns": asked})
        kinds = json.loads(self.typing["schemas"])
        value = _of_one_type(frame) if "schema" in self.typing else _of_its_type(frame, kinds)
        return frame.withColumn("value", value).select(*columns)

    def _table(self, name: str) -> DataFrame:
        return self._chosen(self._source(table=name))

    def _source(self, **options: str) -> DataFrame:
        return self.spark.read.format("django_events").options(dsn=self.dsn, **options).load()

    def _chosen(self, frame: DataFrame) -> DataFrame:
        return frame.where(frame.topic.isin(*self.topics)) if self.topics else frame

    def _files(self, path: str, columns: Sequence[str]) -> DataFrame:
        """Parquet, or what the names of files say."""
        kind = self._format(path)
        # JSON doesn't say what its columns are; an object in place of a text is taken as its text then.
        reader = self.spark.read if kind != "json" else self.spark.read.schema(struct(COLUMNS))
        reader = reader.format(kind).options(**(JSON if kind == "json" else {}))
        frame = reader.load(path)
        if any(isinstance(field.dataType, NullType) for field in frame.schema):
            frame = reader.schema(_named(frame.schema)).load(path)
        if "value" not in frame.columns and {DATA, RESCUED} <= set(frame.columns):
            frame = frame.withColumn("value", _as_text(frame))
        if missing := [name for name in columns if name not in frame.columns]:
            raise Invalid(
                f"The files in {path!r} have no column {', '.join(map(repr, missing))}, expected those of events: "
                f"{', '.join(COLUMNS)}. They have {', '.join(frame.columns)}."
            )
        return frame.select(*columns)

    def _format(self, path: str) -> str:
        found = self.spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(path).select("path")
        named = f.regexp_extract("path", ENDING, 1).alias("format")
        other = found.select(named).where("format <> ''").first()
        return other["format"] if other else "parquet"


def _named(schema: StructType) -> StructType:
    """A schema in which each column has a type: folders of events without one have none, which ORC's reader refuses."""
    return StructType(
        [StructField(one.name, StringType()) if isinstance(one.dataType, NullType) else one for one in schema]
    )


def _as_text(frame: DataFrame) -> Column:
    """The values of files with typed columns as JSON again: of all types, those of one are a field of `data`."""
    data: Any = frame.schema[DATA].dataType
    named = f.regexp_replace("type", UNNAMED, "_")
    if not isinstance(data, StructType):  # what has no columns is JSON already
        return f.coalesce(f.col(RESCUED), f.col(DATA))
    kinds = [field.name for field in data.fields if isinstance(field.dataType, StructType)]
    parts = [f.when(named == name, f.to_json(f.col(f"{DATA}.`{name}`"))) for name in kinds]
    return f.coalesce(f.col(RESCUED), *parts, f.to_json(DATA))


def _of_one_type(frame: DataFrame) -> Column:
    """The values as JSON in the version of their columns; none where a value can't be brought to it."""
    return _as_json(f.col(DATA), frame.schema[DATA].dataType)


def _of_its_type(frame: DataFrame, kinds: Iterable[str]) -> Column:
    """The same where each type has a field of `data`. Values of types that no schema describes stay what they are."""
    data: Any = frame.schema[DATA].dataType
    value = f.col(RESCUED)
    for kind in kinds:
        name = field_of(kind)
        value = f.when(f.col("type") == kind, _as_json(f.col(DATA)[name], data[name].dataType)).otherwise(value)
    return value


def _as_json(value: Column, type: DataType) -> Column:
    """A column as JSON: one of text is what it says, since parts without a type of their own are JSON already."""
    return f.to_json(value) if isinstance(type, StructType | ArrayType | MapType) else value.cast("string")
