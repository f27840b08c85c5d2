"""Streams that are folded in the database: a range of ids at a time, by one statement, and no event in Python.

A `RangeFold` is what such a consumer has instead of a handler. Its statement and the position's move are one
transaction, fenced by the lease's token as every other, so each event is folded exactly once.
"""

import logging
import time
from collections.abc import Callable

from django.db import DatabaseError, connections, transaction

from django_events import sql, telemetry
from django_events.consuming.handlers import FoldedRange, RangeFold
from django_events.consuming.setbacks import released_if_unread
from django_events.consuming.streams.leased_partitions import LeasedPartition, PartitionSettlement
from django_events.exceptions import EventsMissing
from django_events.log.stops import unreadable

logger = logging.getLogger("django_events.consumer")

FIRST, CAREFUL, MOST = 10_000, 1_000, 500_000  # ids of a range: at first, after a crash, and at most
MOST_LEFT_OUT = 100  # events in a row
QUICK, SLOW = 0.15, 0.5  # seconds: a range that took less is followed by a longer one, more by a shorter one


class RangeSize:
    """How many ids are folded at once: as many as the database does in a fraction of a second."""

    def __init__(self) -> None:
        self.ids = FIRST
        self.left_out = 0  # in a row

    def took(self, ids: int, seconds: float) -> None:
        self.left_out = 0
        if seconds > SLOW:
            self.ids = max(ids // 2, 1)
        elif seconds < QUICK and ids >= self.ids:
            self.ids = min(2 * ids, MOST)

    def failed(self, ids: int) -> None:
        self.ids = max(ids // 2, 1)


def is_to_halve(error: DatabaseError, ids: int) -> bool:
    """Whether fewer events may be folded where these can't: one has a value that fails, or they are too many."""
    kind = sql.kind_of(error)
    return kind.of_data or (ids > 1 and kind in (sql.ErrorKind.OUT_OF_MEMORY, sql.ErrorKind.INTERNAL))


def _said(error: DatabaseError) -> str:
    return sql.said(error).splitlines()[0]


class RangeTurn:
    """The time for which a worker folds one partition."""

    def __init__(
        self,
        lease: LeasedPartition,
        folding: RangeFold,
        size: RangeSize,
        stopping: Callable[[], bool],
        *,
        seconds: float,
    ) -> None:
        self.lease = lease
        self.folding = folding
        self.size = size
        self.stopping = stopping
        self._ends_at = time.monotonic() + seconds

    def read(self) -> int:
        """Fold ranges until the log ends or the turn is over; returns how many events were passed."""
        passed, looked = 0, False
        if self.lease.after_crash:  # what was folded may be what ended the last worker, or its server
            self.size.ids = min(self.size.ids, CAREFUL)
        while not self.lease.released and not (self._over() if looked else self.stopping()):
            looked = True
            if (following := self.lease.next_range(self.size.ids)) is None:
                break
            passed += self._range(*following)
        return passed

    def _range(self, match: sql.Statement, upper: int) -> int:
        """One transaction. If some value fails it, the next one is of half as many ids; an event alone is left out."""
        lease, after = self.lease, self.lease.position
        began = time.monotonic()
        try:
            folded, settlement = self._fold(match, upper)
        except DatabaseError as error:
            if not is_to_halve(error, upper - after):
                with released_if_unread(lease):
                    raise
            self.size.failed(upper - after)
            if upper - after > 1:
                return 0
            return self._leave_out(upper, error)
        except EventsMissing:
            with released_if_unread(lease):
                raise
        lease.settled(settlement)
        seconds = time.monotonic() - began
        self.size.took(upper - after, seconds)
        self._count(folded, seconds)
        return upper - after

    def _fold(self, match: sql.Statement, upper: int) -> tuple[FoldedRange, PartitionSettlement]:
        lease, using = self.lease, self.lease.using
        outermost = not connections[using].in_atomic_block
        try:
            with transaction.atomic(using):
                if outermost:
                    lease.take_lock()
                folded = self.folding.fold(lease.subscription, match, lease.position, upper, nested=not outermost)
                settlement = lease.settle_range(upper, handled=folded.matching)
        finally:
            lease.lock_taken = False
        return folded, settlement

    def _leave_out(self, event_id: int, error: DatabaseError) -> int:
        """Go on without an event; where so many fail that the events aren't to blame, stop. Returns how many passed."""
        lease, of = self.lease, self.lease.subscription
        self.size.left_out += 1
        if self.size.left_out > MOST_LEFT_OUT:
            self.size.left_out = 0
            logger.error(
                "Consumer %s stops behind event %d, because one event after the other can't be folded. %s",
                of,
                lease.position,
                _said(error),
                extra=of.fields,
            )
            lease.stop(unreadable(_said(error)))
            return 0
        logger.error(
            "Consumer %s leaves event %s/%d out: it can't be folded. %s",
            of,
            of.topic,
            event_id,
            _said(error),
            extra={**of.fields, "event_id": event_id},
        )
        with transaction.atomic(lease.using):
            self.folding.leave_out(of, event_id, error)
            settlement = lease.settle_range(event_id, failed=1)
        lease.settled(settlement)
        if telemetry.ATTEMPTS.observed:
            telemetry.ATTEMPTS.tell(1, of.using, of.consumer.name, of.topic, "ignored")
        return 1

    def _count(self, folded: FoldedRange, seconds: float) -> None:
        if not folded.matching or not telemetry.ATTEMPTS.observed:
            return
        of = self.lease.subscription
        labels = of.using, of.consumer.name, of.topic
        telemetry.ATTEMPTS.tell(folded.matching, *labels, "handled")
        telemetry.HANDLER.tell(seconds, *labels, "handled")
        if folded.first_at is not None:
            telemetry.LOG_TO_HANDLED.tell(max(time.time() - folded.first_at.timestamp(), 0.0), *labels)

    def _over(self) -> bool:
        return self.stopping() or time.monotonic() >= self._ends_at
