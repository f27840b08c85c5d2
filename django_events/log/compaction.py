"""Compaction: of the events of a key that all consumers have passed, only the newest is kept.

    done = compact(using, topic)        # Compacted(segments=3, events=48_200, …)

Whole closed segments are rewritten, some neighbours at a time, in one transaction: what stays goes through this process
into a new table, which takes their place in some milliseconds at the end. So whatever ends it, the old ones or the new
one are there. It is due when as many events came as are kept: so each event is rewritten about once more.

Up to `compacted_until` ids have gaps, and above it nothing is missing. Up to any id from there on, the newest event of
each key is in the log.
"""

import logging
import time
from dataclasses import dataclass
from datetime import timedelta
from tempfile import SpooledTemporaryFile
from typing import NamedTuple

from django.db import DatabaseError, OperationalError, connections, transaction

from django_events import models, sql
from django_events.log import retention, segments
from django_events.log.inventory import logs
from django_events.log.retention import LARGEST_PART, MOST_PARTS, SMALLEST_PART, Need
from django_events.log.segments import Segment
from django_events.sql.blocking import watched
from django_events.statements import log_table

logger = logging.getLogger("django_events.topics")
SQL = sql.beside(__name__)

SMALLEST, LARGE = 10_000, 64 << 20  # events: with fewer a segment is not ended early, unless it has so many bytes
LONGEST_KEPT = timedelta(days=36_500)  # PostgreSQL's times end somewhere, too
IN_MEMORY = 32 << 20  # bytes of what stays, while it goes from table to table; more is on disk
BLOCK = 1 << 20
SETTINGS = {"statement_timeout": "0", "lock_timeout": "2s", "work_mem": "64MB", "jit": "off"}
SWAPPING = {"lock_timeout": "100ms"}  # others wait behind it
PATIENCE, PAUSE = 20.0, 0.5  # seconds: how long a swap is tried, and between two tries


@dataclass
class Compacted:
    """What compaction did to a topic's log, and what keeps it from doing more, if anything does."""

    segments: int = 0
    events: int = 0
    bytes: int = 0
    kept_for: str | None = None
    waits_for: str | None = None


class Otherwise(Exception):
    """Things are not what they were when it was planned: segments went, or a consumer went back before them."""


class Group(NamedTuple):
    """Neighbouring segments, how many events they have, and how many of these stay."""

    segments: list[Segment]
    events: int
    kept: int

    @property
    def first(self) -> int:
        """The first id that they are for."""
        return self.segments[0].first

    @property
    def end(self) -> int:
        """The id behind the last one that they are for."""
        return self.segments[-1].end

    @property
    def is_worth_it(self) -> bool:
        """Whether half of it goes, or several tables become one."""
        return len(self.segments) > 1 or 2 * (self.events - self.kept) >= self.events > 0


def compact(using: str, topic: models.Topic, *, patience: float = PATIENCE) -> Compacted:
    """Rewrite what is due of the log of a compacted topic; `retention.Paused` while nothing may be dropped.

    A swap waits for readers for `patience` seconds.
    """
    done = Compacted()
    with sql.committed(using, **sql.UNHURRIED):
        retention.refuse_paused(using)
    now = models.Topic.objects.using(using).select_related("head").filter(pk=topic.pk).first()
    if now is None or not now.compact:
        return done
    end_segment(using, now)
    if not now.timeline:  # its index is not whole yet
        return done
    ready, done.kept_for = _ready(using, now)
    if ready and _is_due(now, ready[-1].end):
        ready, done.waits_for = _seen(using, now, ready)
    if not ready or not _is_due(now, until := ready[-1].end):
        return done
    groups = _groups(using, now, ready, until)
    kept = sum(group.kept if group.is_worth_it else group.events for group in groups)
    failed: DatabaseError | None = None
    for group in groups:
        if group.is_worth_it:
            try:
                _rewrite(using, now, group, until, done, patience)
            except Otherwise:
                return done
            except DatabaseError as error:
                kind = sql.kind_of(error)
                if not (kind.of_data or kind in (sql.ErrorKind.INTERNAL, sql.ErrorKind.OUT_OF_MEMORY)):
                    raise
                failed = error  # an event that can't be sent keeps its group as it is, until it is due again
    with sql.committed(using, **sql.UNHURRIED):
        sql.fetch(using, SQL.note, topic_id=now.pk, until=until - 1, kept=kept)
    if failed is not None:
        raise failed
    return done


def end_segment(using: str, topic: models.Topic) -> bool:
    """End the last segment when it has as many events as are kept, so that they can be compacted; whether it did."""
    if _full_until(using, topic) is None:  # looked at without the lock that the transfer needs
        return False
    with retention.writing(using, topic.pk) as now:
        if now is None or not now.compact or (last_id := _full_until(using, now)) is None:
            return False
        segments.cut(using, now, last_id=last_id)
        return True


def _full_until(using: str, topic: models.Topic) -> int | None:
    """The last id of a topic whose last segment should end there; None if it should not."""
    [log] = logs(using, [topic])
    begun = [one for one in segments.segments(using, topic.pk) if one.first <= log.last_id]
    fresh = [one for one in begun if one.end > topic.head.compacted_until + 1]
    if not fresh or len(fresh) >= MOST_PARTS or fresh[-1].end == log.last_id + 1:
        return None
    events, size = log.last_id - fresh[-1].first + 1, _size(using, [fresh[-1]])
    if events < max(topic.head.kept_events, SMALLEST_PART if size >= LARGE else SMALLEST) or size > LARGEST_PART:
        return None
    return log.last_id


def _ready(using: str, topic: models.Topic) -> tuple[list[Segment], str | None]:
    """The closed segments that all consumers have passed; and who still needs one of the others."""
    [log] = logs(using, [topic])
    closed = [one for one in segments.segments(using, topic.pk) if one.end <= log.last_id]
    needs = retention.needs(using, topic)
    ready = [one for one in closed if not _needed(needs, one.end)]
    return ready, needs[0].consumer if len(ready) < len(closed) else None


def _seen(using: str, topic: models.Topic, ready: list[Segment]) -> tuple[list[Segment], str | None]:
    """Those of which each snapshot that is open sees all events; and whose snapshot is too old for the others.

    What is rewritten is frozen, so it would be seen by a snapshot from before it was logged.
    """
    after, until = max(topic.head.compacted_until, topic.head.id_floor), ready[-1].end
    statement = SQL.unseen.on(log=log_table(topic.pk), topic_id=topic.pk, after=after, until=until)
    with sql.committed(using, **SETTINGS):
        [[unseen, pid]] = sql.fetch(using, statement)
    if unseen is None:
        return ready, None
    return [one for one in ready if one.end <= unseen], f"the snapshot of session {pid}"


def _needed(needs: list[Need], end: int) -> bool:
    """Whether a consumer has yet to look at an event below an id; the one furthest behind comes first."""
    return bool(needs) and needs[0].first_id < end


def _is_due(topic: models.Topic, until: int) -> bool:
    """Whether as many events came since the last time as were kept then, or that time was interrupted."""
    head = topic.head
    came = until - 1 - max(head.compacted_until, head.id_floor)
    return head.kept_events < 0 or came >= max(head.kept_events, 1)


def _groups(using: str, topic: models.Topic, ready: list[Segment], until: int) -> list[Group]:
    """The segments put together so that what stays of each group fits into one."""
    first = ready[0].first
    statement = SQL.counted.on(
        log=log_table(topic.pk),
        topic_id=topic.pk,
        until=until,
        newest=_newest(topic, first, until),
        stays=_stays(topic, first, []),
    )
    with sql.committed(using, **SETTINGS):
        counted = {table: (events, kept) for table, events, kept in sql.fetch(using, statement)}
    groups: list[Group] = []
    for one in ready:
        events, kept = counted.get(one.table, (0, 0))
        if groups and groups[-1].kept + kept <= topic.segment_size:
            before = groups.pop()
            groups.append(Group([*before.segments, one], before.events + events, before.kept + kept))
        else:
            groups.append(Group([one], events, kept))
    return groups


def _rewrite(using: str, topic: models.Topic, group: Group, until: int, done: Compacted, patience: float) -> None:
    before = _size(using, group.segments)
    with sql.committed(using, **SETTINGS):
        with watched(using):
            sql.fetch(using, SQL.alone, topic_id=topic.pk)
            if not set(group.segments) <= set(segments.segments(using, topic.pk)):  # another process was faster
                raise Otherwise
            [[table]] = sql.fetch(using, SQL.rewrite, topic_id=topic.pk, first=group.first, ends=group.end)
        if table is None:
            raise Otherwise
        kept = _copy(using, topic, group, until, table)
        sql.fetch(using, SQL.analyze, topic_id=topic.pk, first=group.first)
        _swap(using, topic, group, until, patience)
    replaced = Segment(f"{log_table(topic.pk)}_{group.first:d}", group.first, group.end)
    done.segments += len(group.segments)
    done.events += group.events - kept
    done.bytes += before - _size(using, [replaced])
    logger.info(
        "Topic %s: compacted from %d up to %d: of %d events %d stay.",
        topic,
        group.first,
        group.end - 1,
        group.events,
        kept,
        extra={"database": using, "topic": topic.name},
    )


def _copy(using: str, topic: models.Topic, group: Group, until: int, table: str) -> int:
    """Copy what stays of some segments into a table; returns how many events that are."""
    log = log_table(topic.pk)
    lasts: list[int] = []
    if not topic.is_undivided:
        found = SQL.lasts.on(log=log, partitions=topic.most_partitions, first=group.first, ends=group.end)
        lasts = [event_id for (event_id,) in sql.fetch(using, found)]
    read = SQL.read_kept.on(
        log=log,
        topic_id=topic.pk,
        first=group.first,
        ends=group.end,
        newest=_newest(topic, group.first, until),
        stays=_stays(topic, group.first, lasts),
    )
    write = SQL.write_kept.on(table=table)
    connection = connections[using]
    with (
        SpooledTemporaryFile(max_size=IN_MEMORY) as between,
        connection.wrap_database_errors,
        connection.cursor() as cursor,
    ):
        with cursor.copy(read.text) as copying:
            for block in copying:
                between.write(block)
        between.seek(0)
        kept = 0
        # In parts, each with a limit: a process that freezes in a COPY would keep the segments locked for ever.
        sql.fetch_each(using, sql.locally({"statement_timeout": sql.vanishing()["tcp_user_timeout"]}))
        while lines := between.readlines(BLOCK):
            with cursor.copy(write.text) as copying:
                copying.write(b"".join(lines))
            kept += cursor.rowcount
        sql.fetch_each(using, sql.locally({"statement_timeout": SETTINGS["statement_timeout"]}))
        return kept


def _swap(using: str, topic: models.Topic, group: Group, until: int, patience: float) -> None:
    """Put the new table in the place of the segments, when their readers are done."""
    deadline = time.monotonic() + patience
    while True:
        try:
            with transaction.atomic(using), watched(using, after=retention.SOON):
                sql.fetch_each(using, sql.locally(SWAPPING))
                sql.fetch(using, sql.shared.lock_head, topic_id=topic.pk)
                if _needed(retention.needs(using, topic), group.end):
                    raise Otherwise
                retention.refuse_paused(using)
                if sql.fetch(using, SQL.swap, topic_id=topic.pk, first=group.first, ends=group.end) != [(True,)]:
                    raise Otherwise
                sql.fetch(using, SQL.note, topic_id=topic.pk, until=until - 1, kept=-1)
            return
        except OperationalError as error:
            if sql.kind_of(error) is not sql.ErrorKind.LOCKED or time.monotonic() >= deadline:
                raise
            time.sleep(PAUSE)


def _newest(topic: models.Topic, first: int, until: int) -> sql.Statement:
    return SQL.newest.on(log=log_table(topic.pk), topic_id=topic.pk, first=first, until=until)


def _stays(topic: models.Topic, first: int, lasts: list[int]) -> sql.Statement:
    return SQL.stays.on(
        log=log_table(topic.pk),
        first=first,
        lasts=sql.literal(lasts),
        tombstones_kept=int(min(topic.tombstones_kept, LONGEST_KEPT).total_seconds()),
    )


def _size(using: str, some: list[Segment]) -> int:
    [[size]] = sql.fetch(using, SQL.sizes, tables=[one.table for one in some])
    return int(size)
