"""A topic's log as a snapshot shows it: its floors, and where it begins and ends."""

from typing import NamedTuple

from django_events import models, sql
from django_events.log.floors import Floors, floors_of
from django_events.statements import log_table

SQL = sql.beside(__name__)


class Counts(NamedTuple):
    """What is there of a topic's consumers."""

    consumers: int
    positions: int
    deliveries: int
    dead_letters: int


class TopicSnapshot(NamedTuple):
    """A topic's log at the moment of a snapshot."""

    using: str
    topic: models.Topic
    floors: Floors
    first_id: int | None
    last_id: int
    counts: Counts

    @property
    def log(self) -> str:
        return log_table(self.topic.pk)


def seen_now(using: str, topic: models.Topic) -> TopicSnapshot | None:
    """A topic's log as it is now; None if the topic is gone."""
    now = models.Topic.objects.using(using).filter(pk=topic.pk).first()
    floors = floors_of(using, topic.pk)
    if now is None or floors is None:
        return None
    [[_, first_id, last_id, *_]] = sql.fetch(using, sql.shared.bounds.on(topic_id=now.pk, log=log_table(now.pk)))
    [counts] = sql.fetch(using, SQL.count_of_consumers, topic_id=now.pk)
    end = floors.id if last_id is None else max(last_id, floors.id)
    return TopicSnapshot(using, now, floors, first_id, end, Counts._make(counts))
