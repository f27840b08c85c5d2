"""Find events in the log by their key or their ids, and blank them, some at a time."""

from collections.abc import Iterator
from functools import partial

from django_events import models, sql
from django_events.operating.erasing.erasure import Erasure

SQL = sql.beside(__name__)


def find(erasure: Erasure) -> Iterator[list[int]]:
    """The ids of the events, some at a time: those that were erased before as well, for what else is kept of them."""
    if erasure.key is None:
        for some in erasure.batches(erasure.ids):
            found = SQL.erasable_ids.on(log=erasure.log, topic_id=erasure.topic.pk, first=some[0], last=some[-1])
            yield from _counted(erasure, sql.fetch(erasure.using, found, ids=some))
            erasure.seen.anything |= some[0] < first_id(erasure)
            yield some  # consumers may keep what the log has dropped
        return
    if erasure.new_key is not None:  # an erasure that was interrupted
        yield from _of_key(erasure, erasure.new_key)
    yield from _of_key(erasure, erasure.key)


def _of_key(erasure: Erasure, key: str) -> Iterator[list[int]]:
    topic, log = erasure.topic, erasure.log
    end = sql.shared.last_id.on(log=log, topic_id=topic.pk, floor=0)
    start = sql.shared.first_id.on(log=log, topic_id=topic.pk)
    with sql.by_index(erasure.using):
        [[last]] = sql.fetch(erasure.using, end)
        rows = sql.fetch(erasure.using, start)
    erasure.seen.until = max(erasure.seen.until, last or first_id(erasure) - 1)
    if not last or not rows or rows[0][0] is None:
        return
    after, most = rows[0][0] - 1, erasure.ERASED_AT_ONCE
    while after < last:
        upper = last if topic.timeline else min(after + erasure.READ_AT_ONCE, last)
        statement = SQL.erasable.on(log=log, topic_id=topic.pk, after=after, upper=upper, most=most)
        with sql.by_index(erasure.using):
            found = sql.fetch(erasure.using, statement, key=key)
        yield from _counted(erasure, found, key_goes=key == erasure.key and erasure.new_key is not None)
        after = found[-1][0] if len(found) == most else upper


def _counted(erasure: Erasure, found: sql.Rows, *, key_goes: bool = False) -> Iterator[list[int]]:
    if erasure.dry_run:
        erasure.erased.events += sum(key_goes or not erased for _, erased in found)
    if found:
        erasure.seen.anything = True
        yield [event_id for event_id, _ in found]


def first_id(erasure: Erasure) -> int:
    """The first id that the log has, or gets next: what consumers keep of those before may be of any key."""
    start = sql.shared.first_id.on(log=erasure.log, topic_id=erasure.topic.pk)
    with sql.by_index(erasure.using):
        [[first]] = sql.fetch(erasure.using, start)
    if first is not None:
        return int(first)
    return models.TopicHead.objects.using(erasure.using).get(topic=erasure.topic).id_floor + 1


def blank(erasure: Erasure, ids: list[int]) -> None:
    """Blank some of the events that were found."""
    erasure.add("events", erasure.count(partial(_blank, erasure, ids)))


def _blank(erasure: Erasure, ids: list[int]) -> sql.Rows:
    statement = SQL.erase_events.on(log=erasure.log, topic_id=erasure.topic.pk, first=ids[0], last=ids[-1])
    return sql.fetch(erasure.using, statement, ids=ids, new_key=erasure.new_key)
