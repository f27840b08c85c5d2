"""Where reading begins and ends, as options say it: an offset is the id of the next event to read.

Offsets are per topic, because ids are: an event's partition is a column, not a part of its offset.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django_events.exceptions import EventsMissing, Invalid
from django_events.reading.topics import TopicLog

LATEST, EARLIEST = -1, -2
NAMED = {"latest": LATEST, "earliest": EARLIEST}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Point = int | datetime  # an offset, LATEST or EARLIEST; or a time


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """The first or the last point of what to read: one for all topics, or one for each topic."""

    option: str = ""
    point: Point = LATEST
    by_topic: Mapping[str, Point] | None = None

    @classmethod
    def parsed(cls, option: str, value: str) -> "Boundary":
        """The boundary that an option's text means; Invalid if it means none."""
        timed = "Timestamp" in option
        if value.startswith("{"):
            return cls(option=option, by_topic=_by_topic(option, value, timed=timed))
        if timed:
            return cls(option=option, point=_moment(option, value))
        if value.lower() in NAMED:
            return cls(option=option, point=NAMED[value.lower()])
        raise Invalid(
            f"Option {option!r} is {value!r}, expected 'earliest', 'latest' or JSON with the offset of each topic, "
            'like {"orders": 1042}; -2 is the earliest, -1 the latest.'
        )

    def of(self, topic: TopicLog, *, fail_on_data_loss: bool) -> int:
        """The offset in one topic; Invalid above the log's end, EventsMissing below its beginning."""
        point = self._point(topic.name)
        if isinstance(point, datetime):
            return topic.first_since(point)
        if point == EARLIEST:
            return topic.first
        if point == LATEST:
            return topic.end
        if point > topic.end:
            raise Invalid(
                f"Option {self.option!r} names offset {point} of topic {topic.name!r}, whose next event will be "
                f"{topic.end}. Expected an offset up to {topic.end}, or -1 for the latest."
            )
        if point < topic.first and fail_on_data_loss:
            raise EventsMissing(
                f"Option {self.option!r} names offset {point} of topic {topic.name!r}, whose log begins at "
                f"{topic.first}: what was before it has expired. Say -2 for the earliest, or failOnDataLoss=false."
            )
        return max(point, topic.first)

    def refuse_others(self, topics: list[TopicLog]) -> None:
        """Invalid if the option names a topic that the query doesn't read."""
        for name in (self.by_topic or {}).keys() - {topic.name for topic in topics}:
            raise Invalid(f"Option {self.option!r} names topic {name!r}, which is not among those that are read.")

    def is_said_of(self, topic: TopicLog) -> bool:
        """Whether the option gives this topic a number, instead of a time, LATEST or EARLIEST."""
        point = self._point(topic.name)
        return isinstance(point, int) and point > 0

    def _point(self, topic: str) -> Point:
        if self.by_topic is None:
            return self.point
        if topic not in self.by_topic:
            raise Invalid(f"Option {self.option!r} says nothing of topic {topic!r}. Name all that are read.")
        return self.by_topic[topic]


def _by_topic(option: str, value: str, *, timed: bool) -> dict[str, Point]:
    try:
        given = json.loads(value)
    except ValueError as error:
        raise Invalid(f"Option {option!r} is {value!r}, expected JSON: {error}.") from None
    return {name: _moment(option, point) if timed else _offset(option, name, point) for name, point in given.items()}


def _offset(option: str, topic: str, point: Any) -> int:
    if isinstance(point, dict):
        raise Invalid(
            f"Option {option!r} has offsets per partition of topic {topic!r}. Here they are per topic: an event's id "
            f'is a number in the whole topic. Expected {{"{topic}": 1042}}.'
        )
    if isinstance(point, bool) or not isinstance(point, int) or point < EARLIEST or point == 0:
        raise Invalid(
            f"Option {option!r} has {point!r} for topic {topic!r}, expected an offset from 1 on, -2 for the earliest "
            "or -1 for the latest."
        )
    return point


def _moment(option: str, value: Any) -> datetime:
    """The time that an option says: milliseconds since 1970, as in the Kafka source, or ISO 8601 with a zone."""
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
