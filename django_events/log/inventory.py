"""The events that wait in the buffer, and the logs of the topics. Looking takes no lock that a writer needs."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from django_events import declarations, models, sql
from django_events.exceptions import UnknownName, did_you_mean
from django_events.log.segments import segments
from django_events.statements import log_table

SQL = sql.beside(__name__)

COUNTED = 10_000  # events in the buffer; more are not counted
SEGMENTS = 50  # of a topic, the newest ones, that are looked into
TOPICS_AT_ONCE = 50  # a statement about very many logs would lock very many tables at the same time


class Waiting(NamedTuple):
    """The events of a topic that are in the buffer: at least so many if there are `more`."""

    topic: str
    events: int
    more: bool
    published_at: datetime
    age: timedelta
    topic_id: int


class NextScheduled(NamedTuple):
    """The scheduled event that is due next, and for how long it has been; less than nothing if it is to come."""

    topic: str
    publish_at: datetime
    overdue: timedelta


class Log(NamedTuple):
    """The log of a topic: from which id to which."""

    topic: models.Topic
    first_id: int
    last_id: int
    logged_at: datetime | None

    @property
    def events(self) -> int:
        """Ids have no gaps, so this is a subtraction; of what is compacted it is told how many there are, about."""
        head = self.topic.head
        if head.compacted_until < self.first_id:
            return self.last_id - self.first_id + 1
        return max(head.kept_events, 0) + self.last_id - head.compacted_until


def existing(using: str, topic: declarations.DeclaredTopic | str) -> models.Topic:
    """The row of a topic; UnknownName names the likely one."""
    topics = models.Topic.objects.using(using)
    row = topics.select_related("head").filter(name=str(topic)).first()
    if row is None:
        known = topics.values_list("name", flat=True)
        raise UnknownName(f"The database {using!r} has no topic {str(topic)!r}. {did_you_mean(str(topic), known)}")
    return row


class Buffered(NamedTuple):
    """How many events are in the buffer, at least so many if there are `more`, and for how long the oldest has been."""

    events: int
    more: bool
    age: timedelta


def buffered(using: str, *, counted: int, **settings: str) -> Buffered:
    """What the transfer has not moved yet, of all topics together; `settings` are those of `sql.batch`."""
    with sql.batch(using, **settings):
        [(events, age)] = sql.fetch(using, SQL.buffered, most=counted)
    return Buffered(min(events, counted), events > counted, age or timedelta(0))


def waiting(using: str, **settings: str) -> list[Waiting]:
    """What the transfer has not moved yet, the topic that waits longest first; `settings` are those of `sql.batch`."""
    with sql.batch(using, **settings):
        return [Waiting._make(row) for row in sql.fetch(using, SQL.waiting, most=COUNTED)]


def waiting_of_topic(using: str, topic_id: int, *, counted: int) -> int:
    """How many events of a topic the transfer has not moved yet, counted up to so many."""
    with sql.by_index(using):
        [[events]] = sql.fetch(using, SQL.waiting_of_topic, topic_id=topic_id, most=counted)
    return int(events)


def next_scheduled(using: str) -> NextScheduled | None:
    """What the transfer will publish next."""
    with sql.batch(using):
        rows = sql.fetch(using, SQL.next_scheduled)
    return NextScheduled._make(rows[0]) if rows else None


class Extent(NamedTuple):
    """A segment of a log: the ids that it is for, how large it is on disk, and when its events were logged."""

    table: str
    first_id: int
    last_id: int
    bytes: int
    since: datetime | None
    until: datetime | None


def logs(using: str, topics: Sequence[models.Topic] | None = None) -> list[Log]:
    """The logs of these topics, or of all, by name."""
    if topics is None:
        topics = list(models.Topic.objects.using(using).select_related("head").order_by("name"))
    extents: dict[int, tuple[int | None, int | None, datetime | None]] = {}
    for start in range(0, len(topics), TOPICS_AT_ONCE):
        some = topics[start : start + TOPICS_AT_ONCE]
        statements = [SQL.extent.on(topic_id=topic.pk, log=log_table(topic.pk)) for topic in some]
        with sql.unlocked(using):
            extents |= {topic_id: (*extent,) for topic_id, *extent in sql.fetch(using, sql.union_all(statements))}
    return [_log(topic, *extents[topic.pk]) for topic in topics]


def _log(topic: models.Topic, first_id: int | None, last_id: int | None, logged_at: datetime | None) -> Log:
    """An empty log goes on behind its floor."""
    floor = topic.head.id_floor
    return Log(topic, floor + 1 if first_id is None else first_id, floor if last_id is None else last_id, logged_at)


def extents(using: str, topic: models.Topic) -> list[Extent]:
    """The segments of a topic's log, the newest first, as many as are shown."""
    found = segments(using, topic.pk)[-SEGMENTS:]
    if not found:
        return []
    statements = [sql.shared.extent_of_segment.on(segment=one.table, name=sql.literal(one.table)) for one in found]
    told = {row[0]: row[1:] for row in sql.fetch(using, sql.union_all(statements))}
    return [Extent(one.table, one.first, one.end - 1, *told[one.table]) for one in reversed(found)]


def sizes(using: str, topics: Sequence[models.Topic]) -> dict[str, tuple[int, int]]:
    """How many segments each topic has, and how many bytes."""
    names = {log_table(topic.pk): topic.name for topic in topics}
    rows = sql.fetch(using, SQL.sizes, logs=list(names))
    return {names[log]: (segments, size) for log, segments, size in rows}
