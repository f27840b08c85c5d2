"""What an export has written and what it is about to write: records beside the files."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from django_events.exceptions import ExportRefused
from django_events.spark.files import described
from django_events.spark.records import Records, exists

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "journal"
FIELDS = {"state": str, "topic": str, "incarnation": str, "start": int, "end": int, "format": str, "by": list}


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


class Journal:
    """The records of one export; ExportRefused if they can't be all."""

    def __init__(self, spark: "SparkSession", path: str) -> None:
        self._records = Records(spark, path, NAME)
        self.planned: list[Part] = []
        self.done: dict[Part, int] = {}
        for record in self._records.read():
            self._take(record)
        if self.done.keys() - set(self.planned):
            raise self._records.damaged("a part is complete that was never planned")
        if not self.planned and exists(spark, f"{path}/topic=*"):
            raise ExportRefused(
                f"{path} holds folders of topics, and no journal that says what is in them. Export to another folder."
            )

    @property
    def unfinished(self) -> list[Part]:
        """Parts that an interrupted run has begun, or was going to."""
        return [part for part in self.planned if part not in self.done]

    def plan(self, parts: Iterable[Part]) -> None:
        """Say what is going to be written, before anything is."""
        parts = list(parts)
        self._records.add({"state": "planned", **asdict(part)} for part in parts)
        self.planned += parts

    def finish(self, part: Part, rows: int) -> None:
        """Say that a part is complete."""
        self._records.add([{"state": "done", "rows": rows, **asdict(part)}])
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
                    f"{self._records.path} tells of files {described(part.format, part.by)}. This export is "
                    f"{described(format, by)}. Export to another folder."
                )
            if part.topic == topic and part.incarnation != incarnation:
                raise ExportRefused(
                    f"Topic {topic!r} was made anew since it was exported, and its ids began again. Export to "
                    "another folder."
                )

    def _take(self, record: Mapping[str, Any]) -> None:
        if not all(type(record.get(name)) is kind for name, kind in FIELDS.items()):
            raise self._records.damaged(f"expected {', '.join(FIELDS)} in {dict(record)}")
        names = Part.__dataclass_fields__
        part = Part(**{name: record[name] for name in names if name != "by"}, by=tuple(map(str, record["by"])))
        rows = record.get("rows")
        if not 0 < part.start < part.end:
            raise self._records.damaged(f"{dict(record)} has no ids")
        if record["state"] == "planned":
            self.planned.append(part)
        elif record["state"] == "done" and type(rows) is int and 0 <= rows <= len(part):
            self.done[part] = rows
        else:
            raise self._records.damaged(f"{dict(record)} is neither planned nor done")
