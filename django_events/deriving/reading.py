"""Reading the log again, for those who fold it anew: in the order of ids, and across topics in that of their times.

source = Source.of(using, consumer, row)
stretch = read(using, [source], after={"orders": 0}, until={"orders": 1042}, most=1_000)
"""

from collections.abc import Mapping, Sequence
from heapq import merge
from typing import Any, NamedTuple

from django_events import declarations, models, sql
from django_events.consuming.reading import ALL, bounded
from django_events.consuming.unread import UnreadEvent
from django_events.exceptions import EventsMissing
from django_events.log.floors import Floors, floors_of
from django_events.matching import condition
from django_events.received import ReceivedEvent
from django_events.statements import log_table

SQL = sql.beside(__name__)


class Source(NamedTuple):
    """One topic of a consumer: which of its events are for it, by the filter of now, and of these only some keys."""

    consumer: declarations.DeclaredConsumer
    topic: str
    topic_id: int
    match: sql.Statement
    is_dense: bool

    @classmethod
    def of(
        cls, consumer: declarations.DeclaredConsumer, row: models.Consumer, *, keys: Sequence[str] | None = None
    ) -> "Source":
        conditions = [condition(consumer)]
        if keys is not None:
            conditions.append(SQL.of_keys.on(keys=sql.literal(list(keys))))
        is_dense = not consumer.filtered and keys is None
        return cls(consumer, row.topic.name, row.topic_id, sql.all_of(conditions), is_dense)


class Stretch(NamedTuple):
    """Events in the order in which they are folded, and up to which id of each topic these are all."""

    events: list[ReceivedEvent]
    reached: dict[str, int]


def read(
    using: str, sources: Sequence[Source], *, after: Mapping[str, int], until: Mapping[str, int], most: int
) -> Stretch:
    """The next events behind some ids and up to others, at most so many of each topic."""
    parts = [
        _read(using, source, after[source.topic], until[source.topic], most)
        for source in sources
        if after[source.topic] < until[source.topic]
    ]
    reached = {**after, **{topic: upper for part in parts for topic, upper in part.reached.items()}}
    if len(parts) < 2:
        return Stretch([event for part in parts for event in part.events], reached)
    # What one topic has up to here comes before what the others have behind the time that it has come to.
    cuts = [
        part.events[-1].logged_at
        for part in parts
        if part.events and any(reached[topic] < until[topic] for topic in part.reached)
    ]
    merged = merge(*(part.events for part in parts), key=lambda event: event.logged_at)
    if not cuts:
        return Stretch(list(merged), reached)
    events = [event for event in merged if event.logged_at <= min(cuts)]
    for part in parts:
        if left := [event for event in part.events if event.logged_at > min(cuts)]:
            reached[left[0].topic] = left[0].id - 1
    return Stretch(events, reached)


def _read(using: str, source: Source, after: int, until: int, most: int) -> Stretch:
    statement = SQL.events.on(
        log=log_table(source.topic_id),
        topic_id=source.topic_id,
        match=source.match,
        after=after,
        upper=until,
        most=most,
    )
    rows, cut = bounded(using, statement, at_most=most)
    if cut is not None and not rows:  # one that is too large to be read with others, or can't be read at all
        rows, cut = bounded(using, statement, at_most=1, most_bytes=ALL)
        events = [_made(source, row, using) for row in rows[:1]]
        if not events and cut is not None:
            events = [UnreadEvent(source.topic, cut, consumer=source.consumer.name, database=using)]
        return Stretch(events, {source.topic: events[-1].id})
    events = [_made(source, row, using) for row in rows]
    upper = until if cut is None and len(events) < most else events[-1].id
    if source.is_dense and len(events) < upper - after:
        _refuse_missing(using, source, events, after, upper)
    return Stretch(events, {source.topic: upper})


def _made(source: Source, row: Sequence[Any], using: str) -> ReceivedEvent:
    return ReceivedEvent(source.topic, row, consumer=source.consumer.name, database=using)


def floors(using: str, topic_id: int) -> Floors:
    """What retention and compaction have removed of a topic. Ask behind a read, and it is about all that was read."""
    return floors_of(using, topic_id) or Floors(0, [], 0)


def _refuse_missing(using: str, source: Source, events: Sequence[ReceivedEvent], after: int, upper: int) -> None:
    """EventsMissing where an event is neither there nor was removed by retention or compaction."""
    absent_until = max(floors(using, source.topic_id).absent_until, after)
    there = {event.id for event in events}
    for event_id in range(absent_until + 1, upper + 1):
        if event_id not in there:
            raise EventsMissing(
                f"Event {source.topic}/{event_id} is missing: it is not in the log, and retention has not dropped it. "
                "Was it removed by hand, or lost with a file?"
            )
