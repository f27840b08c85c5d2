"""The journal of `export_events`: the parts of an export, each planned before it is written, and counted when it is."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django_events.exceptions import Refused
from django_events.exporting.file_columns import FileColumns, told
from django_events.exporting.journal import Journal
from django_events.exporting.storage import Storage
from django_events.reading.typed.columns import DATA
from django_events.reading.typed.evolution import as_json, of_json


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of an export: the ids of a topic from `start` to before `end`, in a folder of its own."""

    topic: str
    incarnation: str
    start: int
    end: int

    @property
    def folder(self) -> str:
        return f"topic={self.topic}/ids={self.start:012d}-{self.end - 1:012d}"

    def __len__(self) -> int:
        return self.end - self.start


class Parts(Journal):
    """Which parts are planned, and which of them are done."""

    def __init__(self, storage: Storage, path: str) -> None:
        self.planned: list[Part] = []
        self.done: dict[Part, int] = {}
        self._attempt_of: dict[Part, str] = {}
        self._values = ""  # what values are typed as; nothing where they are text
        self._data: dict[str, Any] = {}  # the type of each topic's column `data`
        super().__init__(storage, path, "export_events")

    @property
    def unfinished(self) -> list[Part]:
        """Parts that an interrupted run has begun, or was going to."""
        return [part for part in self.planned if part not in self.done]

    def plan(self, parts: Iterable[Part], format: str, by: tuple[str, ...]) -> None:
        """Take the folder over, and say what is going to be written before anything is."""
        self.planned += parts
        self.begin(format, by)

    def finish(self, part: Part, attempt: str, rows: int) -> None:
        """Record this attempt as the part."""
        self.done[part], self._attempt_of[part] = rows, attempt
        self._decide(attempt)

    def missing(self, topic: str, start: int, end: int) -> list[tuple[int, int]]:
        """The pieces of a range that no run has planned yet."""
        gaps = []
        for one in sorted((part.start, part.end) for part in self.planned if part.topic == topic):
            if start < min(one[0], end):
                gaps.append((start, min(one[0], end)))
            start = max(start, one[1])
        return [*gaps, (start, end)] if start < end else gaps

    def refuse_other_topic(self, topic: str, incarnation: str) -> None:
        """Refused if the files were exported from another topic of that name."""
        if any(part.topic == topic and part.incarnation != incarnation for part in self.planned):
            raise Refused(
                f"Topic {topic!r} was made anew since it was exported, and its ids began again. Export to "
                "another folder."
            )

    def refuse_other_values(self, kinds: Collection[str]) -> None:
        """Refused if the existing files have their values in other columns than this run has."""
        [kind] = kinds
        if self.is_new:
            self._values = kind
        elif self._values != kind:
            raise Refused(
                f"{self.path} tells of files whose values are {told(self._values)}. This run has them {told(kind)}. "
                "Take another folder."
            )

    def columns_after(self, topic: str, columns: FileColumns) -> FileColumns:
        """The columns for the next files of a topic: with the fields that the existing ones have."""
        if topic in self._data:
            columns = columns.after(of_json(self._data[topic]), f"topic {topic!r} in {self._root}")
        self._data[topic] = as_json(columns.schema.field(DATA).type)
        return columns

    def decided(self) -> dict[str, str]:
        return {attempt: part.folder for part, attempt in self._attempt_of.items()}

    def content(self) -> dict[str, Any]:
        said: dict[str, Any] = {"parts": [self._said(part) for part in self.planned]}
        return {**said, "values": self._values, "data": self._data} if self._values else said

    def take(self, record: Mapping[str, Any]) -> None:
        self._values, self._data = record.get("values", ""), record.get("data", {})
        if type(self._values) is not str or not all(of_json(one) for one in self._data.values()):
            raise ValueError(record)
        for said in record["parts"]:
            part = Part(topic=said["topic"], incarnation=said["incarnation"], start=said["start"], end=said["end"])
            rows, attempt = said.get("rows"), said.get("attempt")
            if not (type(part.topic) is type(part.incarnation) is str and type(part.start) is type(part.end) is int):
                raise ValueError(said)
            if not 0 < part.start < part.end or part in self.planned or (rows is None) != (attempt is None):
                raise ValueError(said)
            self.planned.append(part)
            if rows is not None:
                if type(rows) is not int or not 0 <= rows <= len(part) or type(attempt) is not str:
                    raise ValueError(said)
                self.done[part], self._attempt_of[part] = rows, attempt

    def _said(self, part: Part) -> dict[str, Any]:
        said: dict[str, Any] = {
            "topic": part.topic,
            "incarnation": part.incarnation,
            "start": part.start,
            "end": part.end,
        }
        if part in self.done:
            said |= {"rows": self.done[part], "attempt": self._attempt_of[part]}
        return said
