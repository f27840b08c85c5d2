"""Topics and consumers as rows of tables, with how fast they go and for how long something waits."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from django_events import sql
from django_events.consuming import samples
from django_events.consuming.lag import Standing, oldest_waits
from django_events.log.inventory import Log, Waiting


class TopicRow(NamedTuple):
    """A topic in a table."""

    log: Log
    rate: float | None
    waiting: Waiting | None


class ConsumerRow(NamedTuple):
    """A consumer in a table."""

    standing: Standing
    rate: float | None
    behind: timedelta | None


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast topics and consumers have gone since the last sample. Nobody knows before there is one."""

    sample: samples.Whole | None
    took: timedelta

    @classmethod
    def since_sample(cls, using: str) -> "Pace":
        sample = samples.latest(using)
        return cls(sample, now(using) - sample.total.at if sample is not None else timedelta(0))

    def of_topic(self, log: Log) -> float | None:
        """Events a second that came into a log."""
        earlier = self.sample and self.sample.topics.get(log.topic.pk)
        return samples.per_second(earlier.last_id, log.last_id, self.took) if earlier else None

    def of_consumer(self, one: Standing) -> float | None:
        """Events a second that a consumer handled or discarded."""
        earlier = self.sample and self.sample.consumers.get(one.consumer_id)
        return samples.per_second(earlier.handled, one.handled + one.discarded, self.took) if earlier else None


def now(using: str) -> datetime:
    """The database's clock."""
    [[moment]] = sql.fetch(using, sql.statement("clock"))
    found: datetime = moment
    return found


def topic_rows(in_logs: list[Log], in_buffer: list[Waiting], pace: Pace) -> list[TopicRow]:
    """Topics with what they are given per second, and what waits for the transfer."""
    waits = {one.topic: one for one in in_buffer}
    return [TopicRow(log, pace.of_topic(log), waits.get(log.topic.name)) for log in in_logs]


def consumer_rows(using: str, found: list[Standing], pace: Pace) -> list[ConsumerRow]:
    """Consumers with what they handle per second, and how long the oldest event waits for them."""
    waits = oldest_waits(using, [one.consumer_id for one in found if one.lag])
    return [ConsumerRow(one, pace.of_consumer(one), waits.get(one.consumer_id)) for one in found]
