"""The tables of the log: one per topic, split by id into segments that are attached ahead of need.

A log or a segment is created by itself and then attached, because creating it in place would wait
for every reader while all other sessions queue behind it.
"""

from collections.abc import Collection
from typing import NamedTuple

from django.db import OperationalError

from django_events import sql
from django_events.models import Topic
from django_events.statements import LOG, log_table

SQL = sql.beside(__name__)

LOCK_TIMEOUT = "200ms"


class Segment(NamedTuple):
    """One table of a topic's log: it holds the ids from first up to, not including, end."""

    table: str
    first: int
    end: int


def segments(using: str, topic_id: int) -> list[Segment]:
    """The attached segments of a topic, in order."""
    return of_topics(using, [topic_id])[topic_id]


def of_topics(using: str, topic_ids: Collection[int]) -> dict[int, list[Segment]]:
    """The attached segments of each of these topics, in order."""
    names = {log_table(topic_id): topic_id for topic_id in topic_ids}
    found: dict[int, list[Segment]] = {topic_id: [] for topic_id in topic_ids}
    for log, *segment in sql.fetch(using, SQL.segments, logs=list(names)):
        found[names[log]].append(Segment(*segment))
    return found


def rooms(using: str, topic_ids: Collection[int]) -> dict[int, int]:
    """`room` of many topics in one look."""
    return {topic_id: room_in(existing) for topic_id, existing in of_topics(using, topic_ids).items()}


def room(using: str, topic_id: int, *, reserve: bool = False) -> int:
    """Up to which id a topic has segments, without the last one, which is a reserve, or with it.

    0, as if there were none, while another session holds a lock on one of them: reading its bounds would wait for it.
    """
    try:
        with sql.batch(using, lock_timeout=LOCK_TIMEOUT):
            existing = segments(using, topic_id)
    except OperationalError as error:
        if sql.kind_of(error) is not sql.ErrorKind.LOCKED:
            raise
        return 0
    return room_in(existing, reserve=reserve)


def holding(using: str, topic_id: int, event_id: int) -> Segment | None:
    """The segment of an id; None also while another session holds a lock on one of the topic's segments."""
    try:
        with sql.batch(using, lock_timeout=LOCK_TIMEOUT):
            existing = segments(using, topic_id)
    except OperationalError as error:
        if sql.kind_of(error) is not sql.ErrorKind.LOCKED:
            raise
        return None
    return next((one for one in existing if one.first <= event_id < one.end), None)


def room_in(existing: list[Segment], *, reserve: bool = False) -> int:
    """`room` of a topic with these segments."""
    if not existing:
        return 0
    return existing[-1].end - 1 if reserve else existing[-1].first - 1


def create_log(using: str, topic: Topic) -> None:
    """Make the log of a topic with its first segments. In the caller's transaction."""
    log = log_table(topic.pk)
    sql.run(using, SQL.create_log.on(log=log, name=sql.literal(topic.name)))
    above, table = sql.literal(LOG), sql.literal(log)
    sql.run(using, SQL.as_above.on(above=above, table=table))
    create_indexes(using, topic)
    extend(using, topic, after=topic.head.id_floor, events=1)
    sql.run(using, SQL.attach_log.on(log=log, topic_id=topic.pk))


def create_indexes(using: str, topic: Topic) -> None:
    """Give the log of a topic the indexes that its declaration asks for, where they are missing."""
    log = log_table(topic.pk)
    if topic.partitions > 1 or topic.layouts:  # of a migration too, whose models have no properties
        sql.run(using, SQL.index_partition.on(log=log, index=f"{log}_partition"))
    if topic.timeline:
        sql.run(using, SQL.index_timeline.on(log=log, index=f"{log}_timeline"))


def ensure(using: str, topic_id: int, *, events: int) -> int:
    """Attach the segments for the next `events` and one in reserve; returns up to which id there is room.

    In a transaction of its own, under the head of the topic, so that two can't make the same one. Where
    a lock is not to be had soon, the reserve is what there is: no batch waits for a segment that isn't due.
    """
    try:
        with sql.batch(using, lock_timeout=LOCK_TIMEOUT):
            if sql.fetch(using, sql.shared.lock_heads, topic_ids=[topic_id]):
                topic = Topic.objects.using(using).select_related("head").get(pk=topic_id)
                statement = sql.shared.last_id.on(log=log_table(topic_id), topic_id=topic_id, floor=topic.head.id_floor)
                [[last_id]] = sql.fetch(using, statement)
                last_id = max(last_id, topic.head.id_floor)
                if topic.head.compacted_until > last_id:  # it was a mirror, and its source no longer had the last ids
                    last_id = topic.head.compacted_until
                    cover(using, topic, until=last_id + 1)
                return extend(using, topic, after=last_id, events=events)
    except OperationalError as error:
        if sql.kind_of(error) is not sql.ErrorKind.LOCKED:
            raise
    return room(using, topic_id, reserve=True)


def cut(using: str, topic: Topic, *, last_id: int) -> None:
    """End the last segment behind the last event, so that it can be dropped on its own, and go on in new ones.

    For a caller who holds the head of the topic. What was made ahead is empty, and made anew as the topic wants it now.
    """
    for segment in segments(using, topic.pk):
        if segment.first > last_id:
            drop(using, topic, segment)
        elif segment.end > last_id + 1:
            statement = SQL.cut_segment
            sql.fetch(using, statement, topic_id=topic.pk, first=segment.first, ends=last_id + 1)
    extend(using, topic, after=last_id, events=1)


def drop(using: str, topic: Topic, segment: Segment) -> None:
    """Drop the oldest segment with what is in it, or an empty one. For a caller who holds the head of the topic."""
    sql.fetch(using, SQL.drop_segment, topic_id=topic.pk, first=segment.first)


def cover(using: str, topic: Topic, *, until: int) -> None:
    """Attach one segment for all ids behind the last segment and before this one: of a mirror, where no events come.

    For a caller who holds the head of the topic.
    """
    existing = segments(using, topic.pk)
    if existing and existing[-1].end < until:
        sql.fetch(using, SQL.make_segment, topic_id=topic.pk, first=existing[-1].end, ends=until)


def extend(using: str, topic: Topic, *, after: int, events: int) -> int:
    """Attach what is missing of the segments for the next `events` and one more; see `ensure`.

    For a caller who holds the head of the topic, or makes the topic.
    """
    log = log_table(topic.pk)
    existing = segments(using, topic.pk)
    first = after + 1
    while True:
        segment = next((s for s in existing if s.first <= first < s.end), None)
        if segment is None:
            end = min([first + topic.segment_size, *(s.first for s in existing if s.first > first)])
            segment = Segment(f"{log}_{first:d}", first, end)
            sql.fetch(using, SQL.make_segment, topic_id=topic.pk, first=first, ends=end)
        if segment.first > after + events:
            return segment.first - 1
        first = segment.end
