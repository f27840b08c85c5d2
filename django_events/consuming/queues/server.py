"""Queue consumers: a worker claims deliveries, handles and settles as many as it has time for, and frees the rest.

server = QueueServer(Queue(subscription, holder="host:7"))
if claimed := server.claim():
    server.serve(claimed, handler, on_failure=log_failure(claimed))
"""

import time
from collections.abc import Callable, Collection

from django.db import OperationalError

from django_events import sql
from django_events.consuming import handling
from django_events.consuming.handlers import BoundHandler
from django_events.consuming.handling import Handling, OnFailure
from django_events.consuming.leases import Lease
from django_events.consuming.queues.claimed_deliveries import ClaimedDeliveries
from django_events.consuming.queues.deliveries import Interval, Queue, Unclaimable
from django_events.consuming.queues.filling import fill
from django_events.consuming.setbacks import released_if_unread
from django_events.consuming.subscriptions import Subscription

SQL = sql.beside(__name__)

REDRIVE_EVERY = 1.0  # seconds
SHORT_WAIT = "50ms"  # how long to wait until no worker claims; meanwhile no other worker can begin to claim
MOST_AT_ONCE = 1_000  # deliveries in a claim; a batch may be larger


class QueueServer:
    """One worker's way to serve one queue consumer, see `serving.Server`: it claims as much as it handles in a turn."""

    may_be_blocked = True

    def __init__(self, queue: Queue, *, at_once: int | None = None) -> None:
        self.subscription = queue.subscription
        self.queue = queue
        self.at_once = at_once or self.subscription.most
        self.ask_again = self.more = False
        self._redrives = Interval(REDRIVE_EVERY)

    @property
    def unclaimable(self) -> Unclaimable | None:
        return self.queue.unclaimable

    def claim(
        self, min_position: int = 0, *, ours: Collection[Lease] = (), async_commit: bool = True
    ) -> ClaimedDeliveries | None:
        """Claim the next deliveries; None if there are none now. While the consumer isn't live, make them from the log.

        With a window of received times, nothing is made. Making takes time where a filter leaves out much: then the
        answer is None, and `ask_again` is true.
        """
        tokens = [lease.token for lease in ours]
        if self.queue.is_windowed:
            claimed = self.queue.claim(self.at_once, ours=tokens, async_commit=async_commit)
            self.more = claimed is not None and len(claimed.attempts) >= self.at_once
            return claimed
        if self._redrives.is_over() and redrive_some(self.subscription):  # even if there is much else to do
            self.queue.start_over()
        claimed = self.queue.claim(self.at_once, ours=tokens, async_commit=async_commit)
        self.ask_again = claimed is None and (redrive_some(self.subscription) or fill(self.subscription))
        if self.ask_again:
            self.queue.start_over()
            claimed = self.queue.claim(self.at_once, ours=tokens, async_commit=async_commit)
        self.more = claimed is not None and len(claimed.attempts) >= self.at_once
        return claimed

    def serve(
        self,
        lease: ClaimedDeliveries,
        handler: BoundHandler,
        *,
        on_failure: OnFailure,
        stopping: Callable[[], bool] = lambda: False,
    ) -> int:
        """Handle and settle claimed deliveries for a turn, and free the rest; returns how many events were passed."""
        count, began, last = len(lease.attempts), time.monotonic(), max(lease.attempts)
        passed = serve_deliveries(lease, handler, on_failure=on_failure, stopping=stopping)
        took = time.monotonic() - began
        # Deliveries that are freed again were claimed for nothing, and other workers could not have them meanwhile.
        if took >= handling.TURN:
            self.at_once = max(self.subscription.consumer.batch_size or 1, passed)
        elif count >= self.at_once and took < handling.TURN / 4:
            self.at_once = max(min(2 * self.at_once, MOST_AT_ONCE), self.at_once)
        self.queue.prepare(last + 1)
        return passed

    def start_over(self) -> None:
        self.queue.start_over()

    def write_counts(self) -> float | None:
        return self.queue.write_counts()

    def close(self) -> None:
        self.queue.close()


def serve_deliveries(
    claimed: ClaimedDeliveries,
    handler: BoundHandler,
    *,
    on_failure: OnFailure,
    stopping: Callable[[], bool] = lambda: False,
) -> int:
    """Handle and settle claimed deliveries for a turn, and free the rest; returns how many events were passed."""
    ends_at = time.monotonic() + handling.TURN
    commit_at = 0.0
    in_turn = Handling(
        claimed, handler, enough=lambda: stopping() or time.monotonic() >= commit_at, on_failure=on_failure
    )
    at_once = len(claimed.attempts)
    passed, begun = 0, False
    while not (begun and (stopping() or time.monotonic() >= ends_at)):
        with released_if_unread(claimed):
            events = claimed.next(at_once)
        if not events:
            break
        begun = True
        commit_at = time.monotonic() + handling.TRANSACTION
        passed += in_turn.handle(claimed, events)
    claimed.release()
    return passed


def redrive_some(of: Subscription) -> bool:
    """Make deliveries of dead letters that are due to be handled again; returns whether there were any.

    In an ordered queue, a dead letter waits while a delivery of its key is claimed. All of them wait while a caller of
    claim() has its transaction open.
    """
    part = sql.shared.redrive_of_queue
    if not sql.fetch(of.using, SQL.redrives.on(redrive=part), consumer_id=of.consumer_id):
        return False
    try:
        stand_still = sql.shared.stand_still, {"consumer_ids": [of.consumer_id]}
        with sql.batch(of.using, stand_still, lock_timeout=SHORT_WAIT):
            rows = sql.fetch(of.using, SQL.redrive_deliveries.on(redrive=part), consumer_id=of.consumer_id)
    except OperationalError as error:
        if sql.kind_of(error) is not sql.ErrorKind.LOCKED:
            raise
        return False
    return bool(rows)
