"""What this process declares: topics, as frozen descriptions that touch no database.

    # shop/events.py: discovered in every installed app
    orders = topic("orders", partitions=8, retention=timedelta(days=30))

`manage.py migrate` makes the rows and tables; `manage.py check` finds wrong declarations.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Unpack

from django_events.drafts import UNSET, Draft, EventFields, Receipt
from django_events.exceptions import InvalidTopic, UnknownTopic, did_you_mean

NAME = re.compile(r"[a-z][a-z0-9_.-]{0,62}")
MAX_PARTITIONS = 1_000
MIN_SEGMENT_SIZE = 100


@dataclass(frozen=True, kw_only=True)
class Topic:
    """A named log, as an app declares it. Its row in the database is `models.Topic`."""

    name: str
    partitions: int = 1
    retention: timedelta | None = None
    segment_size: int = 1_000_000
    timeline: bool = False
    declared_at: str = field(default="", compare=False, repr=False)

    def __str__(self) -> str:
        return self.name

    def publish(self, value: Any = UNSET, **fields: Unpack[EventFields]) -> Receipt:
        """Publish one event here; see `django_events.publish`."""
        from django_events import publish

        return publish(self, value, **fields)

    async def apublish(self, value: Any = UNSET, **fields: Unpack[EventFields]) -> Receipt:
        """Publish one event here from async code; see `django_events.publish`."""
        from django_events import apublish

        return await apublish(self, value, **fields)

    def publish_many(self, drafts: Iterable[Draft], *, using: str | None = None) -> int:
        """Publish many events here at once; see `django_events.publish_many`."""
        from django_events import publish_many

        return publish_many(self, drafts, using=using)

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each reason why this can't be a topic."""
        if not isinstance(self.name, str) or not NAME.fullmatch(self.name):
            yield (
                f"Topic name {self.name!r} is not valid: it starts with a small letter and goes on with at most "
                "62 small letters, digits, dots, dashes or underscores."
            )
        yield from _check_number("partitions", self.partitions, 1, MAX_PARTITIONS, self.name)
        yield from _check_number("segment_size", self.segment_size, MIN_SEGMENT_SIZE, 2**40, self.name)
        if self.retention is not None and (not isinstance(self.retention, timedelta) or self.retention <= timedelta(0)):
            yield (
                f"Topic {self.name!r} has retention={self.retention!r}, expected a timedelta above zero, "
                "or None to keep events for ever."
            )
        if not isinstance(self.timeline, bool):
            yield f"Topic {self.name!r} has timeline={self.timeline!r}, expected True or False."


def _check_number(option: str, value: Any, low: int, high: int, name: str) -> Iterator[str]:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        yield f"Topic {name!r} has {option}={value!r}, expected a whole number from {low:,} to {high:,}."


class Registry:
    """The declarations of this process, in the order in which they were made."""

    def __init__(self) -> None:
        self._declared: list[Topic] = []
        self._by_name: dict[str, Topic] = {}

    def add(self, topic: Topic) -> None:
        # A module that is loaded again declares the same topic at the same place again.
        self._set([t for t in self._declared if (t.name, t.declared_at) != (topic.name, topic.declared_at)] + [topic])

    def discard(self, topic: Topic) -> None:
        self._set([t for t in self._declared if t is not topic])

    def _set(self, declared: list[Topic]) -> None:
        self._declared = declared
        self._by_name = {topic.name: topic for topic in reversed(declared)}

    def __iter__(self) -> Iterator[Topic]:
        return iter(self._declared)

    def get(self, topic: "Topic | str") -> Topic:
        """The declaration that is meant; UnknownTopic names the likely one if there is none."""
        name = topic.name if isinstance(topic, Topic) else topic
        try:
            return self._by_name[name]
        except (KeyError, TypeError):
            raise UnknownTopic(
                f"No installed app declares a topic {name!r}. {did_you_mean(str(name), self._by_name)} "
                f"Declare it in an app's events.py: topic({name!r})."
            ) from None

    def check(self) -> None:
        """Raise InvalidTopic for the first declaration that can't be a topic."""
        for _, problem in self.problems():
            raise InvalidTopic(problem)

    def problems(self) -> Iterator[tuple[Topic, str]]:
        """Yield each wrong declaration with the reason, duplicates included."""
        places: dict[str, str] = {}
        for topic in self:
            yield from ((topic, problem) for problem in topic.problems())
            if topic.name in places:
                yield (
                    topic,
                    f"Topic {topic.name!r} is declared twice: {places[topic.name]} and {topic.declared_at}.",
                )
            places.setdefault(topic.name, topic.declared_at)


registry = Registry()


def topic(
    name: str,
    *,
    partitions: int = 1,
    retention: timedelta | None = None,
    segment_size: int = 1_000_000,
    timeline: bool = False,
) -> Topic:
    """Declare a topic. `manage.py migrate` creates it; declaring it again changes nothing."""
    caller = sys._getframe(1)
    declared = Topic(
        name=name,
        partitions=partitions,
        retention=retention,
        segment_size=segment_size,
        timeline=timeline,
        declared_at=f"{caller.f_code.co_filename}:{caller.f_lineno}",
    )
    registry.add(declared)
    return declared
