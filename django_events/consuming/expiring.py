"""Retention beside consumers: what nobody needs any more goes, and who is left behind by it is told.

    expire(using, topic)      # drops what the topic need not keep, oldest first

A consumer keeps what it has not handled, paused or not, until it is unregistered. Where a topic is declared with
keep_unread=False it doesn't: then its positions move on, in the transaction that drops the events.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from django.db import OperationalError

from django_events import models, sql
from django_events.consuming import places
from django_events.consuming.interventions import record
from django_events.consuming.standing import standing_still
from django_events.exceptions import ConsumerInUse
from django_events.log import retention
from django_events.log.retention import Need, Outlived
from django_events.signals import events_expired

logger = logging.getLogger("django_events.maintenance")

BY = "retention"
ALL = models.Position.ALL
PATIENCE = timedelta(seconds=5)
FORGOTTEN_AT_ONCE = 5_000  # deliveries
TRIES, PAUSE = 5, 0.1  # a reader of the log is done soon


@dataclass
class Expired:
    """What retention removed from a topic's log, and what keeps it from removing more, if anything does."""

    segments: int = 0
    events: int = 0
    bytes: int = 0
    kept_for: str | None = None
    waits_for: str | None = None

    def add(self, old: Outlived) -> None:
        """One more segment is gone."""
        self.segments += 1
        self.events += old.events
        self.bytes += old.bytes


class Loss(NamedTuple):
    """So many events of a partition of a consumer, between two ids, that it was moved over without handling them."""

    partition: int
    first: int
    last: int
    events: int


def expire(using: str, topic: models.Topic, *, seconds: float = 10.0) -> Expired:
    """Drop the segments that the topic need not keep, each in a transaction of its own, for so long.

    Repeating it goes on where it stopped. Publishing depends on none of it; the transfer leaves the topic for some
    milliseconds.
    """
    done, tries, deadline = Expired(), 0, time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if not _drop_oldest(using, topic.pk, done):
                break
            tries = 0
        except OperationalError as error:
            if sql.state(error) != sql.LOCK_NOT_AVAILABLE:
                raise
            tries += 1
            if tries == TRIES:
                done.waits_for = "somebody who holds a lock on the log"
                break
            time.sleep(PAUSE)
    return done


def _drop_oldest(using: str, topic_id: int, done: Expired) -> bool:
    """Drop one segment; False if there is nothing to drop, or something that is still needed."""
    with retention.writing(using, topic_id) as topic:
        if topic is None or (old := retention.outlived(using, topic)) is None:
            return False
        behind = _behind(using, topic, old)
        if not behind:
            retention.remove(using, topic, old)
        elif topic.keep_unread:
            done.kept_for = behind[0].consumer
            return False
    if not behind:
        done.add(old)
        return True
    return _leave_behind(using, topic, old, behind, done)


def _behind(using: str, topic: models.Topic, old: Outlived) -> list[Need]:
    return [need for need in retention.needs(using, topic) if need.first_id <= old.last_id]


def _leave_behind(using: str, topic: models.Topic, old: Outlived, behind: Sequence[Need], done: Expired) -> bool:
    """Drop a segment that consumers still needed: they are moved on in the same transaction, and told."""
    ids = {need.consumer_id for need in behind}
    rows = list(models.Consumer.objects.using(using).select_related("topic").filter(pk__in=ids))
    for row in rows:
        if row.mode == "queue":
            _tell(using, row, _forget_free(using, row, old))
    losses: list[tuple[models.Consumer, Loss]] = []
    movable = [row for row in rows if row.mode != "spark"]
    try:
        still = standing_still(using, movable, None, PATIENCE, verb="retention") if movable else nullcontext()
        with still, retention.writing(using, topic.pk) as now:
            if now is None or retention.outlived(using, now) != old:
                return True  # look again
            if {need.consumer_id for need in _behind(using, now, old)} - ids:
                return True
            for row in rows:
                losses += [(row, loss) for loss in _move_on(using, row, now, old)]
            retention.remove(using, now, old)
    except ConsumerInUse as error:
        done.waits_for = str(error)
        return False
    for row, loss in losses:
        _tell(using, row, loss)
    done.add(old)
    return True


def _forget_free(using: str, row: models.Consumer, old: Outlived) -> Loss | None:
    """Delete what waits for a queue consumer, in small transactions: there may be a million."""
    told, loss = None, None
    while True:
        stand_still = sql.statement("stand_still"), {"consumer_ids": [row.pk]}
        with sql.committed(using), sql.batch(using, stand_still, **sql.UNHURRIED):
            ids = _forgotten(using, row, old)
            if not ids:
                return loss
            loss = Loss(ALL, min(ids), max(ids), len(ids) + (loss.events if loss else 0))
            if told is None:
                told = record(using, row, "expire", by=BY, **loss._asdict())
            else:
                told.details = loss._replace(first=told.details["first"])._asdict()
                told.save(using=using, update_fields=["details"])
            loss = loss._replace(first=told.details["first"])


def _forgotten(using: str, row: models.Consumer, old: Outlived) -> list[int]:
    forget = sql.statement("forget_deliveries")
    rows = sql.fetch(using, forget, consumer_id=row.pk, last=old.last_id, most=FORGOTTEN_AT_ONCE)
    return [event_id for (event_id,) in rows]


def _move_on(using: str, row: models.Consumer, topic: models.Topic, old: Outlived) -> Iterator[Loss]:
    """Let a consumer that stands still go on behind a segment, and write it down."""
    for loss in _moved_queue(using, row, old) if row.mode == "queue" else _moved_positions(using, row, topic, old):
        record(using, row, "expire", by=BY, **loss._asdict())
        yield loss


def _moved_queue(using: str, row: models.Consumer, old: Outlived) -> Iterator[Loss]:
    while ids := _forgotten(using, row, old):  # those that were in somebody's hand a moment ago
        yield Loss(ALL, min(ids), max(ids), len(ids))
    if not row.live and row.filled_until < old.last_id:
        yield Loss(ALL, row.filled_until + 1, old.last_id, old.last_id - row.filled_until)
        models.Consumer.objects.using(using).filter(pk=row.pk).update(filled_until=old.last_id)


def _moved_positions(using: str, row: models.Consumer, topic: models.Topic, old: Outlived) -> Iterator[Loss]:
    for position in row.positions.using(using).filter(position__lt=old.last_id).order_by("partition"):
        number = places.number_at(using, topic, position.partition, old.last_id)
        if number <= position.number:
            continue  # nothing there was for it
        yield Loss(position.partition, position.position + 1, old.last_id, number - position.number)
        if row.mode == "spark":
            continue  # its checkpoint decides, and the query says what it lost
        position.position, position.number = old.last_id, number
        if position.attempted is not None and position.attempted <= old.last_id:
            position.attempted, position.attempts, position.retry_at = None, 0, None
        position.save(using=using, update_fields=["position", "number", "attempted", "attempts", "retry_at"])


def _tell(using: str, row: models.Consumer, loss: Loss | None) -> None:
    """Say it, when it is committed."""
    if loss is None:
        return
    logger.warning(
        "Consumer %s, partition %d: %d events, up to %s/%d, expired before they were handled.",
        row,
        loss.partition,
        loss.events,
        row.topic.name,
        loss.last,
    )
    events_expired.send_robust(sender=row.name, consumer=row.name, topic=row.topic.name, using=using, **loss._asdict())
