"""The journal of `export_events`: the parts of an export, each planned before it is written, and counted when it is."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from django_events.exceptions import Refused
from django_events.exporting.erasures import LastErasure
from django_events.exporting.journal import FOLDER, Journal
from django_events.exporting.layout import topic_folder
from django_events.exporting.storage import Storage
from django_events.exporting.written_values import WrittenValues


@dataclass(frozen=True, kw_only=True)
class Part:
    """A part of an export: the ids of a topic from `start` to before `end`, in a folder of its own."""

    topic: str
    incarnation: str
    start: int
    end: int

    @property
    def folder(self) -> str:
        return f"{self.of_topic}/ids={self.start:012d}-{self.end - 1:012d}"

    @property
    def of_topic(self) -> str:
        """The folder of all parts of its topic."""
        return topic_folder(self.topic)

    def __len__(self) -> int:
        return self.end - self.start


class Parts(Journal):
    """Which parts are planned, and which of them are done."""

    def __init__(self, storage: Storage, path: str) -> None:
        self.planned: list[Part] = []
        self.done: dict[Part, int] = {}
        self._attempt_of: dict[Part, str] = {}
        self.values = WrittenValues(f"{path}/{FOLDER}/journal")
        self.erased: dict[str, int] = {}  # by topic, up to which erasure its files are blanked
        self._erased_at: dict[str, int] = {}  # and when that one began
        super().__init__(storage, path, "export_events")

    @property
    def unfinished(self) -> list[Part]:
        """Parts that an interrupted run has begun, or was going to."""
        return [part for part in self.planned if part not in self.done]

    def removed(self, topic: str) -> list[Part]:
        """Parts of a topic that were exported, and that are in the folder no more."""
        of_topic = topic_folder(topic)
        there = {f"{of_topic}/{name}" for name in self._storage.names(f"{self._root}/{of_topic}")}
        there |= set(self._unshown().values())
        return [part for part in self.done if part.topic == topic and part.folder not in there]

    def plan(self, parts: Iterable[Part], format: str, by: tuple[str, ...]) -> None:
        """Take the folder over, and say what is going to be written before anything is."""
        self.planned += parts
        self.begin(format, by)

    def finish(self, part: Part, attempt: str, rows: int) -> None:
        """Record this attempt as the part."""
        self.done[part], self._attempt_of[part] = rows, attempt
        self._decide(attempt)

    def last_erasure(self, topic: str) -> LastErasure:
        """The mark of erasures of a topic."""
        return LastErasure(self.erased.get(topic, 0), self._erased_at.get(topic, 0))

    def note_erased(self, topic: str, last: LastErasure) -> None:
        """Have the next version say up to which erasure the files of a topic are blanked."""
        self.erased[topic], self._erased_at[topic] = last

    def finish_erasing(self, topic: str, last: LastErasure) -> None:
        """Record that all erasures up to one are applied to the files of a topic; Refused if another run took over."""
        self.note_erased(topic, last)
        self._save()

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

    def decided(self) -> dict[str, str]:
        return {attempt: part.folder for part, attempt in self._attempt_of.items()}

    def content(self) -> dict[str, Any]:
        erased = {"erased": self.erased, "erased_at": self._erased_at}
        return {"parts": [self._said(part) for part in self.planned], **erased, **self.values.content()}

    def take(self, record: Mapping[str, Any]) -> None:
        self.values.take(record)
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
        self.erased, self._erased_at = dict(record.get("erased", {})), dict(record.get("erased_at", {}))
        for name, number in [*self.erased.items(), *self._erased_at.items()]:
            if type(name) is not str or type(number) is not int:
                raise ValueError(name, number)

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
