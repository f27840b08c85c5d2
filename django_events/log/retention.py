"""Retention: which segments of a log are not wanted any more, and how they go.

    with writing(using, topic_id) as topic:
        if old := outlived(using, topic):
            remove(using, topic, old)               # milliseconds, however many events

Whole segments go, the oldest first, so what is kept is at least what a topic asks for. So that it is not much more, a
segment ends early when a tenth of what is kept is in it.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import NamedTuple

from django_events import models, sql
from django_events.log import segments
from django_events.log.inventory import Log, logs, sizes
from django_events.log.segments import Segment
from django_events.statements import log_table

PARTS = 10  # a segment holds about so much less than what is kept
SMALLEST_PART = 100  # events


class Need(NamedTuple):
    """The first event of a topic that a consumer has yet to handle, or to look at."""

    consumer_id: int
    consumer: str
    mode: str
    first_id: int


class Outlived(NamedTuple):
    """A segment that a topic need not keep: its events, and how large it is on disk."""

    segment: Segment
    first_id: int
    last_id: int
    bytes: int

    @property
    def events(self) -> int:
        """Ids have no gaps, so this is a subtraction."""
        return self.last_id - self.first_id + 1


class _Tail(NamedTuple):
    """A segment of a log, with how large it is and when its events were logged."""

    bytes: int
    since: datetime | None
    until: datetime | None


def is_limited(topic: models.Topic) -> bool:
    """Whether the topic keeps anything but everything."""
    return (topic.retention, topic.retention_events, topic.retention_bytes) != (None, None, None)


@contextmanager
def writing(using: str, topic_id: int) -> Iterator[models.Topic | None]:
    """A short transaction of the topic's one writer; None if there is no such topic any more."""
    with sql.committed(using), sql.batch(using, **sql.UNHURRIED):
        sql.fetch(using, sql.statement("lock_head"), topic_id=topic_id)
        yield models.Topic.objects.using(using).select_related("head").filter(pk=topic_id).first()


def outlived(using: str, topic: models.Topic) -> Outlived | None:
    """The oldest segment, if nothing that the topic says asks for it. Whether a consumer does is another question."""
    if not is_limited(topic):
        return None
    [log] = logs(using, [topic])
    existing = segments.segments(using, topic.pk)
    if not existing or existing[0].first > log.last_id:
        return None
    oldest = existing[0]
    seen, last = _look(using, oldest), min(oldest.end - 1, log.last_id)
    if _is_too_old(using, topic, seen.until) or (
        last < log.last_id and _is_too_much(using, topic, log.last_id - last, seen.bytes)
    ):
        return Outlived(oldest, log.first_id, last, seen.bytes)
    return None


def needs(using: str, topic: models.Topic) -> list[Need]:
    """Who still has something to do in the log of a topic, from which event on; the one furthest behind comes first."""
    [log] = logs(using, [topic])
    statement = sql.statement("needs").on(log=log_table(topic.pk), topic_id=topic.pk)
    rows = sql.fetch(using, statement, last_id=log.last_id, whole=topic.partitions == 1)
    return [Need._make(row) for row in rows]


def remove(using: str, topic: models.Topic, old: Outlived) -> None:
    """Drop the oldest segment. For `writing` the topic."""
    floors = [old.last_id] if topic.partitions == 1 else _numbers_reached(using, topic, old)
    segments.drop(using, old.segment)
    topic.head.id_floor, topic.head.number_floors = old.last_id, floors
    sql.fetch(
        using,
        sql.statement("raise_floors"),
        topic_id=topic.pk,
        id_floor=old.last_id,
        number_floors=json.dumps(floors),
    )


def wants_division(using: str, log: Log) -> bool:
    """Whether the last segment has its part of what the topic keeps, and should end there."""
    existing = segments.segments(using, log.topic.pk)
    last = next((one for one in existing if one.first <= log.last_id < one.end - 1), None)
    return last is not None and _has_its_part(using, log.topic, last, log.last_id - last.first + 1)


def divide(using: str, topic: models.Topic) -> bool:
    """End the last segment early if it has its part of what the topic keeps; returns whether it did.

    For `writing` the topic.
    """
    [log] = logs(using, [topic])
    if not wants_division(using, log):
        return False
    segments.cut(using, topic, last_id=log.last_id)
    return True


def _has_its_part(using: str, topic: models.Topic, segment: Segment, events: int) -> bool:
    if segment.end - segment.first > topic.segment_size <= events:  # a smaller size was declared since
        return True
    if not is_limited(topic):
        return False
    seen = _look(using, segment)
    return (
        (topic.retention is not None and _is_older(using, seen.since, topic.retention / PARTS))
        or (topic.retention_events is not None and events >= max(topic.retention_events // PARTS, SMALLEST_PART))
        or (
            topic.retention_bytes is not None
            and events >= SMALLEST_PART
            and seen.bytes * PARTS >= topic.retention_bytes
        )
    )


def _look(using: str, segment: Segment) -> _Tail:
    statement = sql.statement("extent_of_segment").on(segment=segment.table, name=sql.literal(segment.table))
    [[_, *extent]] = sql.fetch(using, statement)
    return _Tail(*extent)


def _is_too_old(using: str, topic: models.Topic, newest: datetime | None) -> bool:
    return topic.retention is not None and _is_older(using, newest, topic.retention)


def _is_too_much(using: str, topic: models.Topic, others: int, size: int) -> bool:
    """Whether the events behind a segment, or the rest of the log on disk, are as much as is to be kept."""
    if topic.retention_events is not None and others >= topic.retention_events:
        return True
    if topic.retention_bytes is None:
        return False
    _, whole = sizes(using, [topic])[topic.name]
    return whole - size >= topic.retention_bytes


def _is_older(using: str, moment: datetime | None, age: timedelta) -> bool:
    """By the clock of the database; what has no time is as old as can be."""
    if moment is None:
        return True
    [[now]] = sql.fetch(using, sql.statement("clock"))
    return bool(moment < now - age)


def _numbers_reached(using: str, topic: models.Topic, old: Outlived) -> list[int]:
    """The number of each partition's last event in a segment, or what it was before."""
    before = dict(enumerate(topic.head.number_floors))
    statement = sql.statement("ends_of_partitions").on(
        log=old.segment.table, topic_id=topic.pk, partitions=topic.partitions
    )
    reached = {partition: number for _, partition, number in sql.fetch(using, statement)}
    return [reached.get(partition, before.get(partition, 0)) for partition in range(topic.partitions)]
