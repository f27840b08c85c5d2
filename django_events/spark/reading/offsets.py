"""Places in topics, as options say them: an offset is the id of the next event to read.

Offsets are per topic, because ids are: an event's partition is a column, not a part of its place.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django_events.exceptions import EventsMissing, Invalid
from django_events.spark.reading.topics import TopicLog

LATEST, EARLIEST = -1, -2
NAMED = {"latest": LATEST, "earliest": EARLIEST}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Place = int | datetime


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """One end of what to read: the same for all topics, or said for each."""

    option: str = ""
    place: Place = LATEST
    by_topic: Mapping[str, Place] | None = None

    @classmethod
    def parsed(cls, option: str, value: str) -> "Boundary":
        """Invalid if the value is no place."""
        timed = "Timestamp" in option
        if value.startswith("{"):
            return cls(option=option, by_topic=_by_topic(option, value, timed=timed))
        if timed:
            return cls(option=option, place=_moment(option, value))
        if value.lower() in NAMED:
            return cls(option=option, place=NAMED[value.lower()])
        raise Invalid(
            f"Option {option!r} is {value!r}, expected 'earliest', 'latest' or JSON with the offset of each topic, "
            'like {"orders": 1042}; -2 is the earliest, -1 the latest.'
        )

    def of(self, topic: TopicLog, *, fail_on_data_loss: bool) -> int:
        """The offset that is meant in one topic."""
        place = self._place(topic.name)
        if isinstance(place, datetime):
            return topic.first_since(place)
        if place == EARLIEST:
            return topic.first
        if place == LATEST:
            return topic.end
        if place > topic.end:
            raise Invalid(
                f"Option {self.option!r} names offset {place} of topic {topic.name!r}, whose next event will be "
                f"{topic.end}. Expected an offset up to {topic.end}, or -1 for the latest."
            )
        if place < topic.first and fail_on_data_loss:
            raise EventsMissing(
                f"Option {self.option!r} names offset {place} of topic {topic.name!r}, whose log begins at "
                f"{topic.first}: what was before it has expired. Say -2 for the earliest, or failOnDataLoss=false."
            )
        return max(place, topic.first)

    def refuse_others(self, topics: list[TopicLog]) -> None:
        """Invalid if topics are named that are not read."""
        for name in (self.by_topic or {}).keys() - {topic.name for topic in topics}:
            raise Invalid(f"Option {self.option!r} names topic {name!r}, which is not among those that are read.")

    def is_said_of(self, topic: TopicLog) -> bool:
        """Whether an offset was said, not a time or an end."""
        place = self._place(topic.name)
        return isinstance(place, int) and place > 0

    def _place(self, topic: str) -> Place:
        if self.by_topic is None:
            return self.place
        if topic not in self.by_topic:
            raise Invalid(f"Option {self.option!r} says nothing of topic {topic!r}. Name all that are read.")
        return self.by_topic[topic]


def _by_topic(option: str, value: str, *, timed: bool) -> dict[str, Place]:
    try:
        given = json.loads(value)
    except ValueError as error:
        raise Invalid(f"Option {option!r} is {value!r}, expected JSON: {error}.") from None
    return {name: _moment(option, place) if timed else _offset(option, name, place) for name, place in given.items()}


def _offset(option: str, topic: str, place: Any) -> int:
    if isinstance(place, dict):
        raise Invalid(
            f"Option {option!r} has offsets per partition of topic {topic!r}. Here they are per topic: an event's id "
            f'is its place in the whole topic. Expected {{"{topic}": 1042}}.'
        )
    if isinstance(place, bool) or not isinstance(place, int) or place < EARLIEST or place == 0:
        raise Invalid(
            f"Option {option!r} has {place!r} for topic {topic!r}, expected an offset from 1 on, -2 for the earliest "
            "or -1 for the latest."
        )
    return place


def _moment(option: str, value: Any) -> datetime:
    """Milliseconds since 1970, as Kafka's source has them, or a time in ISO 8601."""
    try:
        if type(value) is int or (isinstance(value, str) and re.fullmatch(r"-?[0-9]+", value)):
            return EPOCH + timedelta(milliseconds=int(value))
        moment = datetime.fromisoformat(value)
    except (ValueError, TypeError, OverflowError):
        moment = None
    if moment is None or moment.tzinfo is None:
        raise Invalid(
            f"Option {option!r} has {value!r}, expected milliseconds since 1970, or a time with its zone like "
            "'2026-11-20T18:00:00Z'."
        )
    return moment
