"""Queue consumers: what is in hand is handled and settled, as far as there is time, and the rest given back.

server = QueueServer(Queue(subscription, holder="host:7"))
if hand := server.claim():
    server.serve(hand, handler, on_failure=log_failure(hand))
"""

import time
from collections.abc import Callable, Collection

from django.db import OperationalError

from django_events import sql
from django_events.consuming import streams
from django_events.consuming.claimed_deliveries import ClaimedDeliveries
from django_events.consuming.deliveries import Interval, Queue
from django_events.consuming.filling import fill
from django_events.consuming.handlers import BoundHandler
from django_events.consuming.handling import Handling, OnFailure
from django_events.consuming.setbacks import released_if_unread
from django_events.consuming.subscriptions import Subscription

SQL = sql.beside(__name__)

REDRIVE_EVERY = 1.0  # seconds
SHORT_WAIT = "50ms"  # meanwhile, nobody claims
MOST_AT_ONCE = 1_000  # events in hand; a batch may be larger


class QueueServer:
    """A worker's way of serving one queue consumer: it claims as much as it gets done in a turn."""

    def __init__(self, queue: Queue, *, at_once: int | None = None) -> None:
        self.subscription = queue.subscription
        self.queue = queue
        self.at_once = at_once or self.subscription.most
        self.getting_on = False
        self._time_to_redrive = Interval(REDRIVE_EVERY)

    def claim(self, *, ours: Collection[int] = (), async_commit: bool = True) -> ClaimedDeliveries | None:
        """What is to be handled next; None if there is nothing now. What isn't there yet is made from the log.

        That takes time where a filter leaves out much: while it is `getting_on`, ask again.
        """
        if self._time_to_redrive and redrive_some(self.subscription):  # however much else there is to do
            self.queue.start_over()
        hand = self.queue.claim(self.at_once, ours=ours, async_commit=async_commit)
        self.getting_on = hand is None and (redrive_some(self.subscription) or fill(self.subscription))
        if self.getting_on:
            self.queue.start_over()
            hand = self.queue.claim(self.at_once, ours=ours, async_commit=async_commit)
        return hand

    def serve(
        self,
        hand: ClaimedDeliveries,
        handler: BoundHandler,
        *,
        on_failure: OnFailure,
        stopping: Callable[[], bool] = lambda: False,
    ) -> int:
        """Handle and settle what is in hand, for a turn; returns how many events were passed.

        With LeaseLost or any other error, nothing is settled but what was before: give the hand up then.
        """
        claimed, began = len(hand.attempts), time.monotonic()
        passed = serve_deliveries(hand, handler, on_failure=on_failure, stopping=stopping)
        took = time.monotonic() - began
        # What is given back was written for nothing, and what is in hand others can't have.
        if took >= streams.TURN:
            self.at_once = max(self.subscription.consumer.batch_size or 1, passed)
        elif claimed >= self.at_once and took < streams.TURN / 4:
            self.at_once = max(min(2 * self.at_once, MOST_AT_ONCE), self.at_once)
        return passed


def serve_deliveries(
    hand: ClaimedDeliveries,
    handler: BoundHandler,
    *,
    on_failure: OnFailure,
    stopping: Callable[[], bool] = lambda: False,
) -> int:
    """Handle and settle what is in hand, for a turn; returns how many events were passed."""
    ends_at = time.monotonic() + streams.TURN
    commit_at = 0.0
    handling = Handling(
        hand, handler, enough=lambda: stopping() or time.monotonic() >= commit_at, on_failure=on_failure
    )
    at_once = handler.consumer.batch_size or len(hand.attempts)
    passed, begun = 0, False
    while not (begun and (stopping() or time.monotonic() >= ends_at)):
        with released_if_unread(hand):
            events = hand.next(at_once)
        if not events:
            break
        begun = True
        commit_at = time.monotonic() + streams.TRANSACTION
        passed += handling.handle(hand, events)
    hand.release()
    return passed


def redrive_some(of: Subscription) -> bool:
    """Make deliveries again of dead letters that somebody wants handled again; returns whether there are any.

    Where keys are in order, those wait whose key is in somebody's hand. All wait while somebody claims in a transaction
    that goes on.
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
