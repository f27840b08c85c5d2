"""Drop a segment that some consumers have not read (`keep_unread=False`), and move their positions past it.

Both happen in one transaction, during which workers leave these consumers alone. Retention waits for the events of the
segment that a worker has in hand, so a slow handler keeps the segment for as long as it runs.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import NamedTuple

from django.db import OperationalError

from django_events import models, sql
from django_events.consuming import log_positions
from django_events.consuming.leases import void_token
from django_events.exceptions import InUse
from django_events.log import retention
from django_events.log.retention import Need, Outlived
from django_events.operating.interventions import record
from django_events.operating.quiesce import lock, standing_still
from django_events.signals import events_expired
from django_events.sql.blocking import blocker_of, watched

logger = logging.getLogger("django_events.maintenance")
SQL = sql.beside(__name__)

BY = "retention"
ALL = models.Position.ALL
PATIENCE = timedelta(seconds=5)
AT_ONCE = 5_000  # deliveries


class NotNow(Exception):
    """The segment stays for now: the message says for which consumer, and why."""


class LogLocked(Exception):
    """The log is locked, by a session that has nothing to do with the consumers: the message names it."""


class _Changed(Exception):
    """The log, a position or the declaration changed since retention looked: it looks again."""


class Loss(NamedTuple):
    """How many events of a partition a consumer was moved past without handling them, and between which ids."""

    partition: int
    first: int
    last: int
    events: int


def leave_behind(using: str, topic: models.Topic, old: Outlived, behind: Sequence[Need], *, deadline: float) -> bool:
    """Drop a segment, and move the consumers on that need it; False if something changed, so look again.

    NotNow and LogLocked say that the segment is still there. Deliveries of it that no worker had may be deleted by
    then; each such loss is recorded and signalled in any case.
    """
    ids = {need.consumer_id for need in behind}
    rows = list(models.Consumer.objects.using(using).select_related("topic").filter(pk__in=ids).order_by("pk"))
    queues, streams = [[row for row in rows if row.mode == mode] for mode in ("queue", "stream")]
    for row in queues:
        _refuse_in_hand(using, row, old)
    for row in queues:
        _forget_free(using, row, old, deadline)
    movable = [*streams, *(row for row in queues if _has_left(using, row, old))]
    moved: list[tuple[models.Consumer, Loss]] = []
    try:
        with _still(using, movable, old), retention.writing(using, topic.pk) as now:
            if now is None or now.keep_unread or retention.outlived(using, now) != old:
                raise _Changed
            if {need.consumer_id for need in retention.behind(using, now, old)} - ids:
                raise _Changed
            for row in rows:
                moved += [(row, loss) for loss in _moved(using, row, now, old, still=row in movable)]
            if {need.mode for need in retention.behind(using, now, old)} - {"spark"}:
                raise _Changed  # a delivery was given back in this moment
            _remove(using, now, old)
    except _Changed:  # with what was moved rolled back
        return False
    except InUse as error:
        raise NotNow(f"consumer {movable[0]}, which {error.reason}") from error
    for row, loss in moved:
        _tell(using, row, loss)
    return True


def _refuse_in_hand(using: str, row: models.Consumer, old: Outlived) -> None:
    if holders := sql.fetch(using, SQL.in_hand_up_to, consumer_id=row.pk, last=old.last_id):
        raise NotNow(f"consumer {row}, which has some of these events in hand, by {holders[0][0]}")


def _has_left(using: str, row: models.Consumer, old: Outlived) -> bool:
    """Whether there are still deliveries of these events: then a worker that died has them in hand."""
    return row.deliveries.using(using).filter(event_id__lte=old.last_id, token__isnull=False).exists()


def _still(using: str, rows: Sequence[models.Consumer], old: Outlived) -> AbstractContextManager[None]:
    """Let the consumers that need the segment stand still: in one partition, if only one of theirs needs it."""
    if not rows:
        return nullcontext()
    positions = models.Position.objects.using(using).filter(consumer__in=rows, position__lt=old.last_id)
    partitions = set(positions.values_list("partition", flat=True))
    return standing_still(using, rows, partitions.pop() if len(partitions) == 1 else None, PATIENCE, verb="retention")


def _remove(using: str, topic: models.Topic, old: Outlived) -> None:
    try:
        with watched(using, after=retention.SOON):
            retention.remove(using, topic, old)
    except OperationalError as error:
        if sql.kind_of(error) is not sql.ErrorKind.LOCKED:
            raise
        raise LogLocked(blocker_of(error)) from error


def _forget_free(using: str, row: models.Consumer, old: Outlived, deadline: float) -> None:
    """Delete the deliveries that no worker has, in small transactions: there may be a million. Each sends a signal."""
    while True:
        stand_still = sql.shared.stand_still, {"consumer_ids": [row.pk]}
        with sql.committed(using), sql.batch(using, stand_still, **sql.UNHURRIED):
            losses = list(_recorded(using, row, _forgotten(using, row, old)))
        for loss in losses:
            _tell(using, row, loss)
        if not losses:
            return
        if time.monotonic() >= deadline:
            raise NotNow(f"consumer {row}, of which {loss.events:,} deliveries and more were deleted: the rest is next")


def _forgotten(using: str, row: models.Consumer, old: Outlived) -> Iterator[Loss]:
    forget = SQL.forget_deliveries
    rows = sql.fetch(using, forget, consumer_id=row.pk, last=old.last_id, most=AT_ONCE)
    if rows:
        ids = [event_id for (event_id,) in rows]
        yield Loss(ALL, min(ids), max(ids), len(ids))


def _recorded(using: str, row: models.Consumer, losses: Iterator[Loss]) -> Iterator[Loss]:
    for loss in losses:
        record(using, row, "expire", by=BY, **loss._asdict())
        yield loss


def _moved(using: str, row: models.Consumer, topic: models.Topic, old: Outlived, *, still: bool) -> Iterator[Loss]:
    """Move a consumer past a segment, and record the events that it lost."""
    moved = _moved_queue(using, row, old, still) if row.mode == "queue" else _moved_positions(using, row, topic, old)
    return _recorded(using, row, moved)


def _moved_queue(using: str, row: models.Consumer, old: Outlived, still: bool) -> Iterator[Loss]:
    if still:  # without standing still, a claim could pass over a delivery deleted here that a rollback brings back
        yield from _forgotten(using, row, old)
    lock(using, row)
    if not row.live and row.filled_until < old.last_id:
        yield Loss(ALL, row.filled_until + 1, old.last_id, old.last_id - row.filled_until)
        models.Consumer.objects.using(using).filter(pk=row.pk).update(filled_until=old.last_id)


def _moved_positions(using: str, row: models.Consumer, topic: models.Topic, old: Outlived) -> Iterator[Loss]:
    for position in row.positions.using(using).filter(position__lt=old.last_id).order_by("partition"):
        if row.mode == "spark":  # the checkpoint decides where it reads; losses up to the floor were signalled before
            told = max(position.position, topic.head.id_floor)
            yield Loss(position.partition, told + 1, old.last_id, old.last_id - told)
            continue
        number = log_positions.number_at(using, topic, position.partition, old.last_id)
        if number <= position.number:
            continue  # none of these events is in its partition
        yield Loss(position.partition, position.position + 1, old.last_id, number - position.number)
        position.position, position.number = old.last_id, number
        # The event that it failed at, or stopped before, is gone.
        if position.attempted is None or position.attempted <= old.last_id:
            position.attempted, position.attempts, position.retry_at = None, 0, None
            position.failing_since = position.stopped_at = None
            position.error = ""
        void_token(position)
        fields = ["position", "number", "attempted", "attempts", "retry_at", "failing_since", "stopped_at", "error"]
        position.save(using=using, update_fields=[*fields, "token"])


def _tell(using: str, row: models.Consumer, loss: Loss) -> None:
    """Log a loss and send `events_expired`; to be called when it is committed."""
    logger.warning(
        "Consumer %s, partition %d: %d events, up to %s/%d, expired before they were handled.",
        row,
        loss.partition,
        loss.events,
        row.topic.name,
        loss.last,
        extra={"database": using, "consumer": row.name, "topic": row.topic.name, "partition": loss.partition},
    )
    events_expired.send_robust(sender=row.name, consumer=row.name, topic=row.topic.name, using=using, **loss._asdict())
