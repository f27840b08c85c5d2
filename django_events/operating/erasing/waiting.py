"""Blank events that are not in the log yet: staged, scheduled, in the buffer."""

from collections.abc import Iterator
from functools import partial

from django_events import sql
from django_events.operating.erasing.erasure import Erasure

SQL = sql.beside(__name__)

TABLES = {
    "staged": "django_events_stagedevent",
    "scheduled": "django_events_scheduledevent",
    "buffered": "django_events_bufferedevent",
}


def blank(erasure: Erasure) -> None:
    """Blank those of the key, or count them."""
    for kind, table in TABLES.items():
        erasure.add(kind, sum(_waiting(erasure, table)))


def _waiting(erasure: Erasure, table: str) -> Iterator[int]:
    topic_id, after = erasure.topic.pk, 0
    while True:
        ahead = SQL.next_waiting.on(table=table, topic_id=topic_id, after=after, most=erasure.READ_AT_ONCE)
        with sql.batch(erasure.using):
            [[upper]] = sql.fetch(erasure.using, ahead)
        if upper is None:
            return
        yield from _waiting_up_to(erasure, table, after, upper)
        after = upper


def _waiting_up_to(erasure: Erasure, table: str, after: int, upper: int) -> Iterator[int]:
    """How many at a time: the transfer waits for them, and with it all topics."""
    topic_id, most = erasure.topic.pk, erasure.ERASED_AT_ONCE
    while after < upper:
        statement = SQL.erasable_waiting.on(table=table, topic_id=topic_id, after=after, upper=upper, most=most)
        with sql.batch(erasure.using):
            found = sql.fetch(erasure.using, statement, key=erasure.key, new_key=erasure.new_key)
        last = found[-1][0] if len(found) == most else upper
        if found and erasure.dry_run:
            yield len(found)
        elif found:
            yield erasure.count(partial(_blank, erasure, table, after, last))
        after = last


def _blank(erasure: Erasure, table: str, after: int, upper: int) -> sql.Rows:
    blanking = SQL.erase_waiting.on(table=table, topic_id=erasure.topic.pk, after=after, upper=upper)
    return sql.fetch(
        erasure.using, blanking, key=erasure.key, new_key=erasure.new_key, partitions=erasure.topic.partitions
    )
