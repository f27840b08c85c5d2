"""Stream consumers: one reader per partition, in order, for a turn of several batches.

due_partitions = DuePartitions(using, subscriptions(using, [bill]))
while due := due_partitions.take() or ...:
    if lease := claim(*due, holder="host:7"):
        serve(lease, handler, ...)
"""

import logging
import time
from collections.abc import Callable, Sequence

from django.db import DatabaseError, connections, transaction

from django_events import sql
from django_events.consuming.handlers import BoundHandler
from django_events.consuming.handling import Handling, OnFailure
from django_events.consuming.leased_partitions import EventBatch, LeasedPartition
from django_events.consuming.leases import end_holder
from django_events.consuming.reading import is_of_payload
from django_events.consuming.received import ReceivedEvent
from django_events.consuming.redriving import next_redrive
from django_events.consuming.setbacks import released_if_unread
from django_events.exceptions import EventsMissing

logger = logging.getLogger("django_events.consumer")

TURN = 0.2  # seconds: then others are served, which waited longer
TRANSACTION = 0.1  # seconds: then a handler of single events has its work committed


def serve(
    lease: LeasedPartition,
    handler: BoundHandler,
    *,
    on_failure: OnFailure,
    stopping: Callable[[], bool] = lambda: False,
    patient: bool = True,
) -> int:
    """Give a leased partition its turn and let it go; returns how many events were passed.

    With LeaseLost or any other error, nothing is settled but what was before: give the lease up then.
    """
    if lease.lost_token is not None:
        _take_over(lease, lease.lost_token)
    turn = _Turn(lease, handler, on_failure, stopping, patient)
    passed = 0
    if lease.redrives:  # one, and what comes after it in the log; then as many as there is time for
        passed += turn.redrive(most=1)
    passed += turn.read()
    if lease.redrives and not lease.released:
        passed += turn.redrive()
    lease.release()
    return passed


class _Turn:
    def __init__(
        self,
        lease: LeasedPartition,
        handler: BoundHandler,
        on_failure: OnFailure,
        stopping: Callable[[], bool],
        patient: bool,
    ) -> None:
        self.lease = lease
        self.stopping = stopping
        self.patient = patient
        self._ends_at = time.monotonic() + TURN
        self._commit_at = 0.0
        self._handling = Handling(lease, handler, enough=self._enough, on_failure=on_failure)

    def redrive(self, *, most: int | None = None) -> int:
        """Handle the dead letters again that somebody asked for, oldest first."""
        passed = done = 0
        while done != most and not self._over() and (redrive := next_redrive(self.lease)):
            passed += self._handling.handle(redrive, [redrive.event])
            done += 1
        return passed

    def read(self) -> int:
        """Read and handle batches until there are no more, the turn is over, or an event has to wait."""
        passed, looked = 0, False
        while not self.lease.released and not (self._over() if looked else self.stopping()):
            looked = True
            if (batch := self._next_batch()) is None:
                break
            if self.patient and self.lease.too_few(batch):
                self.lease.wait_for_more(batch)
            elif not batch.events:
                with transaction.atomic(self.lease.using):
                    settlement = self.lease.settle([])
                self.lease.settled(settlement)
            else:
                passed += self._handle(batch.events)
        return passed

    def _handle(self, events: Sequence[ReceivedEvent]) -> int:
        passed = 0
        while passed < len(events) and not self.lease.released and not (passed and self._over()):
            self._commit_at = time.monotonic() + TRANSACTION
            passed += self._handling.handle(self.lease, events[passed:])
        return passed

    def _next_batch(self) -> EventBatch | None:
        try:
            return self._read()
        except EventsMissing:
            with released_if_unread(self.lease):
                raise
        except DatabaseError as error:  # a predicate fails on some value, and would again
            if not sql.kind_of(error).of_data or connections[self.lease.using].in_atomic_block:
                with released_if_unread(self.lease):
                    raise
            logger.error(
                "Consumer %s, partition %d stops behind event %d, because what follows can't be read. %s",
                self.lease.subscription,
                self.lease.partition,
                self.lease.position,
                sql.said(error),
            )
            self.lease.stop(f"What follows can't be read. {sql.said(error)}")
            return None

    def _read(self) -> EventBatch | None:
        """The next batch. Where together they can't be read, they are handled one by one, and one of them fails."""
        try:
            return self.lease.read()
        except DatabaseError as error:
            if not is_of_payload(self.lease.using, error):
                raise
            logger.warning(
                "Consumer %s, partition %d: the events behind %d are handled one by one, because together they can't "
                "be read. %s",
                self.lease.subscription,
                self.lease.partition,
                self.lease.position,
                sql.said(error),
            )
            return self.lease.read_unread()

    def _over(self) -> bool:
        return self.stopping() or time.monotonic() >= self._ends_at

    def _enough(self) -> bool:
        return self.stopping() or time.monotonic() >= self._commit_at


def _take_over(lease: LeasedPartition, lost_token: int) -> None:
    """Somebody's lease ran out: end what that one still has open, so that nobody works beside it."""
    logger.warning(
        "Consumer %s, partition %d is taken over behind event %d: its worker died, or froze for longer than its lease.",
        lease.subscription,
        lease.partition,
        lease.position,
    )
    end_holder(lease.using, lost_token)
