"""How far consumers are behind: by subtraction, without looking at the events in between.

lag("billing")     # events that were not passed yet
progress()         # every partition of every consumer, for those who watch
"""

from datetime import datetime
from typing import NamedTuple

from django_events import declarations, models, sql
from django_events.consuming.registered import Named, registered, writable
from django_events.log.segments import log_table


class Progress(NamedTuple):
    """One partition of a consumer: how far it is, what is left, and what it is doing."""

    consumer: str
    topic: str
    partition: int
    position: int
    lag: int
    state: str
    handled: int
    failed: int
    discarded: int
    dead_lettered: int
    attempts: int
    retry_at: datetime | None
    error: str
    holder: str


def lag(consumer: Named, *, topic: declarations.Topic | str | None = None, using: str | None = None) -> int:
    """How many events a consumer has not passed yet, filtered ones included."""
    using = writable(using)
    rows = registered(using, consumer, topic=topic)
    return sum(one.lag for one in progress(using, rows))


def progress(using: str, rows: list[models.Consumer] | None = None) -> list[Progress]:
    """Every partition of these consumers, or of all, by name, topic and partition."""
    if rows is None:
        rows = list(models.Consumer.objects.using(using).select_related("topic__head"))
    ends = {topic.pk: _ends(using, topic) for topic in {row.topic for row in rows}}
    by_id = {row.pk: row for row in rows}
    found = []
    for consumer_id, partition, position, number, state, *rest in sql.fetch(
        using, sql.statement("progress"), consumer_ids=list(by_id)
    ):
        row = by_id[consumer_id]
        passed = position if partition == models.Position.ALL else number
        behind = max(ends[row.topic_id].get(partition, 0) - passed, 0)
        found.append(Progress(row.name, row.topic.name, partition, position, behind, state, *rest))
    return sorted(found)


def _ends(using: str, topic: models.Topic) -> dict[int, int]:
    """The last number of each partition, and under the partition of all the last id."""
    log, floor = log_table(topic.pk), topic.head.id_floor
    [[last_id]] = sql.fetch(using, sql.statement("last_id").on(log=log, topic_id=topic.pk, floor=floor))
    if topic.partitions == 1:
        return {models.Position.ALL: last_id, 0: last_id}
    statement = sql.statement("numbers").on(log=log, partitions=topic.partitions, since=0)
    return {
        **dict(enumerate(topic.head.number_floors)),
        **dict(sql.fetch(using, statement)),
        models.Position.ALL: last_id,
    }
