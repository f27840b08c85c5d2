"""Retention: which segments of a log are not wanted any more, and how they go.

    with writing(using, topic_id) as topic:
        if old := outlived(using, topic):
            remove(using, topic, old)               # milliseconds, however many events

Whole segments go, the oldest first, so what is kept is at least what a topic asks for. So that it is not much more, a
segment ends early when a tenth of what is kept is in it.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import OperationalError

from django_events import models, sql
from django_events.exceptions import InUse
from django_events.log import segments
from django_events.log.inventory import TOPICS_AT_ONCE, Log, logs, sizes
from django_events.log.segments import Segment
from django_events.phrases import moment
from django_events.sql.blocking import blocker_of, watched
from django_events.statements import log_table

SQL = sql.beside(__name__)

PARTS = 10  # a segment holds about so much less than what is kept
SMALLEST_PART = 100  # events
MOST_PARTS = 3 * PARTS  # where there are more, a consumer keeps them
PATIENCE = "30s"  # for which a pause waits for a segment that is being dropped
SOON = 0.05  # seconds until a second session looks for the holder of a lock: `writing` waits for 0.2
LARGEST_PART = 256 << 20  # bytes: its rows are looked through, and meanwhile no session reads the log


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


class Paused(Exception):
    """Nothing is dropped for now: a dump finds the segments that it has listed."""

    def __init__(self, until: datetime) -> None:
        super().__init__(f"the end of a pause, at {moment(until)}")


class _Seen(NamedTuple):
    """How large a segment is, and when its events were logged."""

    bytes: int
    since: datetime | None
    until: datetime | None


def is_limited(topic: models.Topic) -> bool:
    """Whether the topic keeps anything but everything."""
    return (topic.retention, topic.retention_events, topic.retention_bytes) != (None, None, None)


@contextmanager
def writing(using: str, topic_id: int) -> Iterator[models.Topic | None]:
    """A short transaction of the topic's one writer; None if there is no such topic any more."""
    with sql.committed(using), sql.batch(using, **sql.UNHURRIED), watched(using, after=SOON):
        sql.fetch(using, sql.shared.lock_head, topic_id=topic_id)
        yield models.Topic.objects.using(using).select_related("head").filter(pk=topic_id).first()


def outlived(using: str, topic: models.Topic) -> Outlived | None:
    """The oldest segment, if nothing that the topic says asks for it. Whether a consumer does is another question."""
    return outlived_of(using, [topic]).get(topic.pk)


def outlived_of(using: str, topics: Sequence[models.Topic]) -> dict[int, Outlived]:
    """The same of many topics, in some statements for all of them; those without one are left out."""
    limited = [topic for topic in topics if is_limited(topic)]
    if not limited:
        return {}
    existing = segments.of_topics(using, [topic.pk for topic in limited])
    oldest = {
        log: existing[log.topic.pk][0]
        for log in logs(using, limited)
        if existing[log.topic.pk] and existing[log.topic.pk][0].first <= log.last_id
    }
    seen, now = _look(using, list(oldest.values())), sql.now(using)
    whole = sizes(using, [log.topic for log in oldest if log.topic.retention_bytes is not None])
    found = {}
    for log, segment in oldest.items():
        topic, tail, last = log.topic, seen[segment], min(segment.end - 1, log.last_id)
        is_too_old = topic.retention is not None and _is_older(tail.until, topic.retention, now)
        _, size = whole.get(topic.name, (0, 0))
        if is_too_old or (last < log.last_id and _is_too_much(topic, log.last_id - last, size - tail.bytes)):
            found[topic.pk] = Outlived(segment, log.first_id, last, tail.bytes)
    return found


def needs(using: str, topic: models.Topic) -> list[Need]:
    """Who still has something to do in the log of a topic, from which event on; the one furthest behind comes first."""
    [log] = logs(using, [topic])
    statement = SQL.needs.on(log=log_table(topic.pk), topic_id=topic.pk)
    rows = sql.fetch(using, statement, last_id=log.last_id, whole=topic.is_undivided)
    return [Need._make(row) for row in rows]


def behind(using: str, topic: models.Topic, old: Outlived) -> list[Need]:
    """Who still needs something of a segment, the one furthest behind first."""
    return [need for need in needs(using, topic) if need.first_id <= old.last_id]


def pause(using: str, period: timedelta | None) -> datetime | None:
    """Drop nothing for so long, or go on with None; returns until when. A segment that is being dropped goes first."""
    try:
        with sql.batch(using, lock_timeout=PATIENCE), watched(using):
            [[until]] = sql.fetch(using, SQL.pause_retention, period=period)
    except OperationalError as error:
        if sql.kind_of(error) is not sql.ErrorKind.LOCKED:
            raise
        raise InUse(
            f"Retention can't be paused or resumed now: its row is locked, by {blocker_of(error)}. Nothing was "
            "changed. Try again when that is over."
        ) from error
    return until  # type: ignore[no-any-return]


def refuse_paused(using: str) -> None:
    """Raise Paused while nothing may be dropped; no pause begins before this transaction ends."""
    for (until,) in sql.fetch(using, SQL.paused):
        raise Paused(until)


def remove(using: str, topic: models.Topic, old: Outlived) -> None:
    """Drop the oldest segment, or raise Paused. For `writing` the topic."""
    refuse_paused(using)
    floors = [old.last_id] if topic.is_undivided else _numbers_reached(using, topic, old)
    segments.drop(using, topic, old.segment)
    topic.head.id_floor, topic.head.number_floors = old.last_id, floors
    sql.fetch(
        using,
        SQL.raise_floors,
        topic_id=topic.pk,
        id_floor=old.last_id,
        number_floors=json.dumps(floors),
    )


def divisible(using: str, in_logs: Sequence[Log], existing: Mapping[int, Sequence[Segment]]) -> list[Log]:
    """Those whose last segment has its part of what the topic keeps, and should end there.

    In some statements for all of them. `existing` are the segments of their topics.
    """
    last = {}
    for log in in_logs:
        parts = [one for one in existing[log.topic.pk] if one.first <= log.last_id]
        if parts and log.last_id < parts[-1].end - 1:
            tail = parts[-1]
            if _is_oversized(log, tail) or (is_limited(log.topic) and len(parts) < MOST_PARTS):
                last[log] = tail
    if not last:
        return []
    seen, now = _look(using, list(last.values())), sql.now(using)
    return [
        log
        for log, tail in last.items()
        if seen[tail].bytes <= LARGEST_PART and (_is_oversized(log, tail) or _has_its_part(log, tail, seen[tail], now))
    ]


def divide(using: str, topic: models.Topic) -> bool:
    """End the last segment early if it has its part of what the topic keeps; returns whether it did.

    For `writing` the topic.
    """
    found = divisible(using, logs(using, [topic]), segments.of_topics(using, [topic.pk]))
    for log in found:
        segments.cut(using, topic, last_id=log.last_id)
    return bool(found)


def _is_oversized(log: Log, tail: Segment) -> bool:
    """Whether a smaller size was declared since it was made, and it has as many events."""
    return tail.end - tail.first > log.topic.segment_size <= log.last_id - tail.first + 1


def _has_its_part(log: Log, tail: Segment, seen: _Seen, now: datetime) -> bool:
    topic, events = log.topic, log.last_id - tail.first + 1
    return (
        (topic.retention is not None and _is_older(seen.since, topic.retention / PARTS, now))
        or (topic.retention_events is not None and events >= max(topic.retention_events // PARTS, SMALLEST_PART))
        or (
            topic.retention_bytes is not None
            and events >= SMALLEST_PART
            and seen.bytes * PARTS >= topic.retention_bytes
        )
    )


def _look(using: str, some: Sequence[Segment]) -> dict[Segment, _Seen]:
    """Many segments in a statement, but not very many: it would lock very many tables at the same time."""
    extent = sql.shared.extent_of_segment
    seen: dict[Segment, _Seen] = {}
    for start in range(0, len(some), TOPICS_AT_ONCE):
        part = {one.table: one for one in some[start : start + TOPICS_AT_ONCE]}
        asked = sql.union_all([extent.on(segment=table, name=sql.literal(table)) for table in part])
        with sql.unlocked(using):
            seen |= {part[table]: _Seen(*tail) for table, *tail in sql.fetch(using, asked)}
    return seen


def _is_too_much(topic: models.Topic, others: int, size: int) -> bool:
    """Whether the events behind a segment, or the rest of the log on disk, are as much as is to be kept."""
    if topic.retention_events is not None and others >= topic.retention_events:
        return True
    return topic.retention_bytes is not None and size >= topic.retention_bytes


def _is_older(at: datetime | None, age: timedelta, now: datetime) -> bool:
    """What has no time is as old as can be."""
    return at is None or now - at > age


def _numbers_reached(using: str, topic: models.Topic, old: Outlived) -> list[int]:
    """The number of each partition's last event in a segment, or what it was before."""
    before = dict(enumerate(topic.head.number_floors))
    most = topic.most_partitions
    statement = sql.shared.ends_of_partitions.on(log=old.segment.table, topic_id=topic.pk, partitions=most)
    reached = {partition: number for _, partition, number in sql.fetch(using, statement)}
    return [reached.get(partition, before.get(partition, 0)) for partition in range(most)]
