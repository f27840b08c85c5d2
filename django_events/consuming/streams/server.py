"""Stream consumers: a worker reads a leased partition in order, for a turn of several batches.

server = StreamServer(subscription, position_id, partition, holder="host:7")
if lease := server.claim():
    server.serve(lease, handler, on_failure=log_failure(lease))
"""

import logging
import time
from collections.abc import Callable, Collection, Sequence

from django.db import DatabaseError, connections, transaction

from django_events import sql
from django_events.consuming import handling
from django_events.consuming.handlers import BoundHandler, RangeFold
from django_events.consuming.handling import Handling, OnFailure
from django_events.consuming.leases import Lease, end_holder
from django_events.consuming.reading import is_of_payload
from django_events.consuming.setbacks import released_if_unread
from django_events.consuming.streams import layouts
from django_events.consuming.streams.batches import EventBatch
from django_events.consuming.streams.leased_partitions import LeasedPartition
from django_events.consuming.streams.partitions import PreparedClaim, claim
from django_events.consuming.streams.ranges import RangeSize, RangeTurn
from django_events.consuming.streams.redriving import next_redrive
from django_events.consuming.subscriptions import Subscription
from django_events.exceptions import EventsMissing
from django_events.log import segments
from django_events.log.stops import unreadable
from django_events.received import ReceivedEvent
from django_events.sql.prepared import PREPARE_AGAIN, PREPARE_EVERY, SharedSession

logger = logging.getLogger("django_events.consumer")


class StreamServer:
    """One worker's way to serve one partition of a stream consumer, see `serving.Server`."""

    ask_again = more = may_be_blocked = False
    unclaimable = None

    def __init__(
        self,
        subscription: Subscription,
        position_id: int,
        partition: int,
        *,
        holder: str,
        patient: bool = True,
        session: SharedSession | None = None,
    ) -> None:
        self.subscription = subscription
        self.position_id = position_id
        self.partition = partition
        self.holder = holder
        self.patient = patient
        self._session = session
        self._prepared: PreparedClaim | None = None
        self._prepare_at = 0.0
        self._range_size = RangeSize()

    def claim(
        self, min_position: int = 0, *, ours: Collection[Lease] = (), async_commit: bool = True
    ) -> LeasedPartition | None:
        """Lease the partition; None if another worker has it, it has to wait, or it has nothing to do."""
        if any(lease.at_position == self.position_id for lease in ours):
            return None
        if async_commit and (lease := self._claim_prepared()) is not None:
            return lease
        return claim(
            self.subscription,
            self.position_id,
            self.partition,
            min_position,
            holder=self.holder,
            async_commit=async_commit,
        )

    def serve(
        self,
        lease: LeasedPartition,
        handler: BoundHandler,
        *,
        on_failure: OnFailure,
        stopping: Callable[[], bool] = lambda: False,
    ) -> int:
        """Handle and settle a leased partition for a turn, and release it; returns how many events were passed."""
        if lease.lost_token is not None:
            _take_over(lease, lease.lost_token)
        if handler.folding is not None:
            return self._fold(lease, handler.folding, stopping)
        turn = _Turn(lease, handler, on_failure, stopping, self.patient)
        passed = 0
        # One dead letter, then the events of the log, then as many dead letters as there is time for.
        if lease.redrives:
            passed += turn.redrive(most=1)
        passed += turn.read()
        if lease.redrives and not lease.released:
            passed += turn.redrive()
        self._release(lease)
        self._prepare(lease.position + 1)
        return passed

    def _fold(self, lease: LeasedPartition, folding: RangeFold, stopping: Callable[[], bool]) -> int:
        """As `serve`, by ranges of ids: there are no dead letters, and no events to read with the claim."""
        passed = RangeTurn(lease, folding, self._range_size, stopping, seconds=handling.TURN).read()
        self._release(lease)
        return passed

    def _release(self, lease: LeasedPartition) -> None:
        """Give a partition back, and begin with the next layout if the last worker of the former one is through."""
        lease.release()
        if lease.is_at_barrier:
            layouts.pass_barrier(lease.using, self.subscription.consumer_id)

    def _claim_prepared(self) -> LeasedPartition | None:
        """As `claim`, if that is prepared. After an error it isn't for a while: the next claim says what is wrong."""
        if self._prepared is None:
            return None
        try:
            return self._prepared.claim(holder=self.holder)
        except DatabaseError as error:
            if sql.kind_of(error).of_server:
                raise
            self._prepared, self._prepare_at = None, time.monotonic() + PREPARE_AGAIN
            return None

    def _prepare(self, event_id: int) -> None:
        """Let the next claim be a prepared one, of the segment in which the next event will be."""
        if self._session is None or not self._session.is_good or time.monotonic() < self._prepare_at:
            return
        known = None if self._prepared is None else self._prepared.segment
        if known is None or not known.first <= event_id < known.end:
            self._prepare_at = time.monotonic() + PREPARE_EVERY  # at the end of a log there may be no segment yet
            of = self.subscription
            segment = segments.holding(of.using, of.topic_id, event_id)
            self._prepared = segment and PreparedClaim(self._session, of, self.position_id, self.partition, segment)

    def start_over(self) -> None:
        """A partition is read from its position: there is nothing to forget but its segment."""
        self._prepared = None

    def write_counts(self) -> float | None:
        """Counts are settled together with the position."""
        return None

    def close(self) -> None:
        """Counts are settled together with the position: there is nothing left to write."""


class _Turn:
    """The time for which a worker serves one partition."""

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
        self._ends_at = time.monotonic() + handling.TURN
        self._commit_at = 0.0
        self._handling = Handling(lease, handler, enough=self._enough, on_failure=on_failure)

    def redrive(self, *, most: int | None = None) -> int:
        """Handle the dead letters that are due to be handled again, oldest first."""
        passed = done = 0
        while done != most and not self._over() and (redrive := next_redrive(self.lease)):
            passed += self._handling.handle(redrive, [redrive.event])
            done += 1
        return passed

    def read(self) -> int:
        """Read and handle batches until the log ends, the turn is over, or an event has to wait for a retry."""
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
            self._commit_at = time.monotonic() + handling.TRANSACTION
            passed += self._handling.handle(self.lease, events[passed:])
        return passed

    def _next_batch(self) -> EventBatch | None:
        try:
            return self._read()
        except EventsMissing:
            with released_if_unread(self.lease):
                raise
        except DatabaseError as error:  # a filter that fails on a value would fail again on the next try
            if not sql.kind_of(error).of_data or connections[self.lease.using].in_atomic_block:
                with released_if_unread(self.lease):
                    raise
            logger.error(
                "Consumer %s, partition %d stops behind event %d, because the next events can't be read. %s",
                self.lease.subscription,
                self.lease.partition,
                self.lease.position,
                sql.said(error),
                extra=self.lease.fields,
            )
            self.lease.stop(unreadable(sql.said(error)))
            return None

    def _read(self) -> EventBatch | None:
        """The next batch. If its events can't be read together, the first of them, without its payload."""
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
                extra=self.lease.fields,
            )
            return self.lease.read_unread()

    def _over(self) -> bool:
        return self.stopping() or time.monotonic() >= self._ends_at

    def _enough(self) -> bool:
        return self.stopping() or time.monotonic() >= self._commit_at


def _take_over(lease: LeasedPartition, lost_token: int) -> None:
    """End the connection of the worker whose lease ran out: two workers must not handle a partition at a time."""
    logger.warning(
        "Consumer %s, partition %d is taken over behind event %d: its worker died, or froze for longer than its lease.",
        lease.subscription,
        lease.partition,
        lease.position,
        extra=lease.fields,
    )
    end_holder(lease.using, lost_token)
