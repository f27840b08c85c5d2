"""What an export has written and what it is about to write: records beside the files, each added, none changed.

They are read and written by Spark itself, so an export works on every file system and every cluster that Spark does.
"""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from django_events.exceptions import ExportRefused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = "_django_events"  # readers of data pass over names that begin like this
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of an export: the ids of a topic from `start` to before `end`, in a folder of its own."""

    topic: str
    incarnation: str
    start: int
    end: int
    format: str
    by: tuple[str, ...]

    @property
    def folder(self) -> str:
        return f"topic={self.topic}/ids={self.start:012d}-{self.end - 1:012d}"

    def __len__(self) -> int:
        return self.end - self.start


def exists(spark: "SparkSession", path: str) -> bool:
    """Whether Spark finds something there."""
    from pyspark.errors import AnalysisException

    try:
        _ = spark.read.text(path).schema  # with Spark Connect nothing is looked at before
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        return False
    return True


class Journal:
    """The records of one export."""

    def __init__(self, spark: "SparkSession", path: str) -> None:
        self._spark = spark
        self._path = f"{path}/{FOLDER}/journal"
        self.planned: list[Part] = []
        self.done: dict[Part, int] = {}
        for record in self._records():
            self._take(record)

    @property
    def unfinished(self) -> list[Part]:
        """Parts that an interrupted run has begun, or was going to."""
        return [part for part in self.planned if part not in self.done]

    def plan(self, parts: Iterable[Part]) -> None:
        """Say what is going to be written, before anything is."""
        parts = list(parts)
        self._add([{"state": "planned", **asdict(part)} for part in parts])
        self.planned += parts

    def finish(self, part: Part, rows: int) -> None:
        """Say that a part is complete."""
        self._add([{"state": "done", "rows": rows, **asdict(part)}])
        self.done[part] = rows

    def missing(self, topic: str, start: int, end: int) -> list[tuple[int, int]]:
        """What of a range no run has planned yet."""
        gaps = []
        for one in sorted((part.start, part.end) for part in self.planned if part.topic == topic):
            if start < min(one[0], end):
                gaps.append((start, min(one[0], end)))
            start = max(start, one[1])
        return [*gaps, (start, end)] if start < end else gaps

    def refuse_other(self, topic: str, incarnation: str, format: str, by: tuple[str, ...]) -> None:
        """ExportRefused if what is there was exported in another way, or from another topic of that name."""
        for part in self.planned:
            if (part.format, part.by) != (format, by):
                raise ExportRefused(
                    f"{self._path} tells of files in format {part.format}, by {', '.join(part.by) or 'nothing'}. This "
                    f"export is in format {format}, by {', '.join(by) or 'nothing'}. Export to another folder."
                )
            if part.topic == topic and part.incarnation != incarnation:
                raise ExportRefused(
                    f"Topic {topic!r} was made anew since it was exported, and its ids began again. Export to "
                    "another folder."
                )

    def _records(self) -> list[dict[str, object]]:
        if not exists(self._spark, self._path):
            return []
        rows = self._spark.read.text(self._path).collect()
        try:
            records = [json.loads(row.value) for row in rows]
            unknown = {record["version"] for record in records} - {VERSION}
        except (ValueError, KeyError, TypeError):
            raise ExportRefused(f"{self._path} is no journal of an export. Export to another folder.") from None
        if unknown:
            raise ExportRefused(f"{self._path} was written by a newer version. Upgrade, or export to another folder.")
        return records

    def _take(self, record: dict[str, object]) -> None:
        of_part: dict[str, object] = {name: record[name] for name in Part.__dataclass_fields__}
        by = of_part.pop("by")
        part = Part(**of_part, by=tuple(by))  # type: ignore[arg-type]  # as they were written
        if record["state"] == "done":
            self.done[part] = int(str(record["rows"]))
        else:
            self.planned.append(part)

    def _add(self, records: list[dict[str, object]]) -> None:
        lines = [(json.dumps({"version": VERSION, **record}),) for record in records]
        self._spark.createDataFrame(lines, "value string").coalesce(1).write.mode("append").text(self._path)
