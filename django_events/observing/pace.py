"""How fast topics and consumers go: what has changed since the last sample.

pace = Pace.since_sample(using)
pace.of_consumer(standing)    # events a second, or None
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django_events import sql
from django_events.log.inventory import Log
from django_events.observing import samples
from django_events.observing.lag import Standing


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
        """Events a second that a consumer handled or ignored."""
        earlier = self.sample and self.sample.consumers.get(one.consumer_id)
        return samples.per_second(earlier.handled, one.handled + one.ignored, self.took) if earlier else None


def now(using: str) -> datetime:
    """The database's clock."""
    [[moment]] = sql.fetch(using, sql.shared.clock)
    found: datetime = moment
    return found
