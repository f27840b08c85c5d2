"""Topics and consumers as rows of tables, with how fast they go and for how long something waits."""

from datetime import timedelta
from typing import NamedTuple

from django_events.log.inventory import Log, Waiting
from django_events.observing.lag import Standing, oldest_waits
from django_events.observing.problems.serving import idle_troubles
from django_events.observing.samples import Pace


class TopicLine(NamedTuple):
    """A topic in a table."""

    log: Log
    rate: float | None
    waiting: Waiting | None


class ConsumerLine(NamedTuple):
    """A consumer in a table."""

    standing: Standing
    rate: float | None
    behind: timedelta | None
    trouble: str = ""  # "unserved" or "undeclared": of one that is merely idle, as far as its row tells


def topic_rows(in_logs: list[Log], in_buffer: list[Waiting], pace: Pace) -> list[TopicLine]:
    """Topics with what they are given per second, and what waits for the transfer."""
    waits = {one.topic: one for one in in_buffer}
    return [TopicLine(log, pace.of_topic(log), waits.get(log.topic.name)) for log in in_logs]


def consumer_rows(using: str, found: list[Standing], pace: Pace) -> list[ConsumerLine]:
    """Consumers with what they handle per second, and how long the oldest event waits for them."""
    waits = oldest_waits(using, [one.consumer_id for one in found if one.lag])
    troubles = idle_troubles(using, found)
    return [
        ConsumerLine(one, pace.of_consumer(one), waits.get(one.consumer_id), troubles.get(one.consumer_id, ""))
        for one in found
    ]
