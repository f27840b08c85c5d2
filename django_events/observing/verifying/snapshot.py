"""A topic's log as a snapshot shows it: its head, and where it begins and ends."""

from typing import NamedTuple

from django_events import models, sql
from django_events.statements import log_table

SQL = sql.beside(__name__)


class Head(NamedTuple):
    """What the log can't tell any more: the last id that was removed, and the numbers by then."""

    id_floor: int
    number_floors: list[int]


class TopicSnapshot(NamedTuple):
    """A topic's log at the moment of a snapshot."""

    using: str
    topic: models.Topic
    head: Head
    first_id: int | None
    last_id: int
    counts: tuple[int, int, int, int]  # consumers, positions, deliveries, dead letters

    @property
    def log(self) -> str:
        return log_table(self.topic.pk)


def head_of(using: str, topic_id: int) -> Head | None:
    """The floors of a topic as they are now."""
    rows = sql.fetch(using, sql.shared.head_of_topic, topic_id=topic_id)
    return Head(*rows[0]) if rows else None


def seen_now(using: str, topic: models.Topic) -> TopicSnapshot | None:
    """A topic's log as it is now; None if the topic is gone."""
    now = models.Topic.objects.using(using).filter(pk=topic.pk).first()
    head = head_of(using, topic.pk)
    if now is None or head is None:
        return None
    [[_, first_id, last_id, _]] = sql.fetch(using, sql.shared.bounds.on(topic_id=now.pk, log=log_table(now.pk)))
    [counts] = sql.fetch(using, SQL.count_of_consumers, topic_id=now.pk)
    end = head.id_floor if last_id is None else max(last_id, head.id_floor)
    return TopicSnapshot(using, now, head, first_id, end, counts)
