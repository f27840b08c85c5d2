"""Samples for charts: how far topics and consumers were, once a minute. Maintenance takes them and deletes old ones.

take(using)                              # the sample of this minute, unless there is one
totals(using, timedelta(hours=6))        # everything added up, at most some 240 points
of_consumer(using, 7, timedelta(days=1))
Pace.since_sample(using).of_consumer(standing)      # events a second since the last sample, or None
"""

import json
import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django_events import models, sql
from django_events.conf import settings
from django_events.log.inventory import Log, waiting
from django_events.observing.lag import Standing, ends_of, oldest_waits, standings

SQL = sql.beside(__name__)

COUNTED = 10_000  # deliveries and dead letters of a consumer; more are not counted,
COUNTED_OF_QUEUES = 200_000  # nor more deliveries of all of them together: a second counts some million
POINTS = 240  # of a chart: more would not be seen
MINUTE = timedelta(minutes=1)
FRESH = timedelta(seconds=30)  # what is younger tells no rate
FORGOTTEN_AT_ONCE = 1_000
# Events wait meanwhile, so it is short, and a minute without a sample is no harm; nor is one that a crash takes back.
LIMITS = {"statement_timeout": "1s", "synchronous_commit": "off"}


class Total(NamedTuple):
    """Everything added up: the last ids of all topics, what was handled or ignored, and what was to be done."""

    at: datetime
    published: int
    handled: int
    lag: int
    buffered: int


class OfTopic(NamedTuple):
    """How far a topic was."""

    at: datetime
    last_id: int
    buffered: int


class OfConsumer(NamedTuple):
    """How far a consumer was on a topic: what it had handled or ignored, failed attempts, and dead letters there.

    For `behind` seconds the oldest event that it had not passed had been in the log; zero where it had passed all, and
    None where the log could not be read.
    """

    at: datetime
    lag: int
    handled: int
    failed: int
    dead: int
    behind: float | None = None


class Whole(NamedTuple):
    """A whole sample: topics and consumers by the ids of their rows."""

    total: Total
    topics: dict[int, OfTopic]
    consumers: dict[int, OfConsumer]


def take(using: str) -> bool:
    """Store the sample of this minute unless there is one, and delete some that are too old; returns whether it did.

    Two short transactions, the first of which only reads. Any number of processes may call it, as often as they like.
    """
    if settings.SAMPLES_KEPT is None:
        return False
    with sql.batch(using, (SQL.sampled, {}), **LIMITS) as [[[there]]]:
        if there:
            return False
        topics, consumers = _seen(using)
    taken: sql.Question = (
        SQL.take_sample,
        {
            "published": sum(last_id for last_id, _ in topics.values()),
            "handled": sum(handled for _, handled, *_ in consumers.values()),
            "lag": sum(lag for lag, *_ in consumers.values()),
            "buffered": sum(buffered for _, buffered in topics.values()),
            "topics": json.dumps(topics),
            "consumers": json.dumps(consumers),
        },
    )
    forgotten: sql.Question = (
        SQL.forget_samples,
        {"age": settings.SAMPLES_KEPT, "limit": FORGOTTEN_AT_ONCE},
    )
    with sql.batch(using, taken, forgotten, **LIMITS) as [rows, _]:
        return bool(rows)


def totals(using: str, period: timedelta) -> list[Total]:
    """The sums over all topics and consumers in a period, in order of time."""
    return [Total._make(row) for row in sql.fetch(using, SQL.totals, period=period, step=_step(period))]


def of_consumer(using: str, consumer_id: int, period: timedelta) -> list[OfConsumer]:
    """One consumer on a topic in a period, in order of time."""
    asked = SQL.samples_of_consumer
    rows = sql.fetch(using, asked, consumer_id=consumer_id, period=period, step=_step(period))
    return [OfConsumer._make(row) for row in rows]


def latest(using: str) -> Whole | None:
    """The newest sample that is old enough to tell, from then till now, how fast something goes; None without one."""
    rows = sql.fetch(using, SQL.latest_sample, age=FRESH)
    if not rows:
        return None
    [[*total, topics, consumers]] = rows
    whole = Total._make(total)
    return Whole(
        whole,
        {int(topic_id): OfTopic(whole.at, *counts) for topic_id, counts in json.loads(topics).items()},
        {int(consumer_id): OfConsumer(whole.at, *counts) for consumer_id, counts in json.loads(consumers).items()},
    )


def per_second(earlier: float, later: float, took: timedelta) -> float:
    """How fast a counter rose. One that went back was begun anew, as that of a topic that was made anew."""
    return max(later - earlier, 0) / took.total_seconds() if took > timedelta(0) else 0.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast topics and consumers have gone since the last sample. It is unknown before there is one."""

    sample: Whole | None
    took: timedelta

    @classmethod
    def since_sample(cls, using: str) -> "Pace":
        sample = latest(using)
        return cls(sample, sql.now(using) - sample.total.at if sample is not None else timedelta(0))

    def of_topic(self, log: Log) -> float | None:
        """Events a second that came into a log."""
        earlier = self.sample and self.sample.topics.get(log.topic.pk)
        return per_second(earlier.last_id, log.last_id, self.took) if earlier else None

    def of_consumer(self, one: Standing) -> float | None:
        """Events a second that a consumer handled or ignored."""
        earlier = self.sample and self.sample.consumers.get(one.consumer_id)
        return per_second(earlier.handled, one.handled + one.ignored, self.took) if earlier else None


def _step(period: timedelta) -> timedelta:
    """Whole minutes between two points, so that a chart that is drawn again has the same points."""
    return max(math.ceil(period / POINTS / MINUTE), 1) * MINUTE


def _seen(using: str) -> tuple[dict[int, list[int]], dict[int, list[Any]]]:
    """Topics and consumers as they are now, by the ids of their rows."""
    buffered = {one.topic_id: one.events for one in waiting(using, **LIMITS)}
    ends = ends_of(using, list(models.Topic.objects.using(using).select_related("head")))
    topics = {
        topic_id: [end, buffered.get(topic_id, 0)]
        for (topic_id, partition), end in ends.items()
        if partition == models.Position.ALL
    }
    found = standings(using, counted=_share(using), known=ends)
    waits = oldest_waits(using, [one.consumer_id for one in found if one.lag])
    consumers = {
        one.consumer_id: [
            one.lag,
            one.handled + one.ignored,
            one.failed,
            one.dead_letters,
            _seconds(waits.get(one.consumer_id)) if one.lag else 0.0,
        ]
        for one in found
    }
    return topics, consumers


def _seconds(wait: timedelta | None) -> float | None:
    return None if wait is None else round(wait.total_seconds(), 3)


def _share(using: str) -> int:
    """Up to how many deliveries of each queue are counted."""
    queues = models.Consumer.objects.using(using).filter(mode="queue").count()
    return max(min(COUNTED, COUNTED_OF_QUEUES // max(queues, 1)), 1)
