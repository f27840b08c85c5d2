"""What commands write down beside files: records as lines of JSON, each added, none changed.

They are read and written by Spark itself, so they are on every file system and every cluster where it writes files.
"""

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from django_events.exceptions import ExportRefused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = "_django_events"  # readers of data pass over names that begin like this
VERSION = 1


def exists(spark: "SparkSession", path: str) -> bool:
    """Whether Spark finds something there; `*` in it is any name."""
    from pyspark.errors import AnalysisException

    try:
        # With Spark Connect nothing is looked at before the schema. What folders are called is no matter.
        _ = spark.read.option("recursiveFileLookup", "true").text(path).schema
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return False
    return True


class Records:
    """Records of one kind about a folder."""

    def __init__(self, spark: "SparkSession", path: str, name: str) -> None:
        self._spark = spark
        self.path = f"{path}/{FOLDER}/{name}"

    def read(self) -> list[dict[str, Any]]:
        """All records, in no order; ExportRefused if one can't be read."""
        if not exists(self._spark, self.path):
            return []
        frame = self._spark.read.text(self.path)
        rows = frame.select("value", "_metadata.file_path").collect()
        if len(frame.inputFiles()) > len({row.file_path for row in rows}):
            raise self.damaged("a file in it is empty")
        try:
            records = [json.loads(row.value) for row in rows]
            versions = {record.pop("version") for record in records}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self.damaged("a line in it is no record") from None
        if versions - {VERSION}:
            raise ExportRefused(f"{self.path} was written by a newer version. Upgrade, or take another folder.")
        return records

    def add(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write them down together, in a file of their own."""
        lines = [(json.dumps({"version": VERSION, **record}),) for record in records]
        self._spark.createDataFrame(lines, "value string").coalesce(1).write.mode("append").text(self.path)

    def damaged(self, why: str) -> ExportRefused:
        """What to raise for records that nobody can have written."""
        return ExportRefused(
            f"{self.path} is damaged, or something else wrote it: {why}. What is in the folder can't be known. Take "
            "another folder."
        )
