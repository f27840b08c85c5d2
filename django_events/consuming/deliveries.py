"""Claiming deliveries: which of them a worker of a queue consumer gets next.

    queue = Queue(subscription, holder="host:7")
    hand = queue.claim(100)

Any number of workers share a consumer: each delivery is in one hand at a time.
"""

import logging
import secrets
import time
from collections import Counter
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import connections

from django_events import sql
from django_events.consuming.claimed_deliveries import ClaimedDeliveries, claimed_under
from django_events.consuming.leases import end_holder
from django_events.consuming.subscriptions import Subscription

logger = logging.getLogger("django_events.consumer")
SQL = sql.beside(__name__)

SMALLEST_WINDOW, LARGEST_WINDOW = 200, 20_000  # deliveries
# Of millions of deliveries a few are read, by index; the planner's idea of it would be worth compiling, or a scan.
FOR_CLAIMS = sql.BY_INDEX
ROUND = 1.0  # seconds
SLOW = 0.005  # seconds: to look for something in vain for longer is not repeated at once
BELIEVED = 10  # times as long as it took


class Unclaimable(NamedTuple):
    """Nothing could be had up to a place, which is believed for so many seconds, because finding it out is slow."""

    until: int
    seconds: float


class Queue:
    """A queue consumer as one worker sees it, with the place behind which that worker goes on."""

    def __init__(
        self,
        subscription: Subscription,
        *,
        holder: str,
        lease: timedelta | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        keeps_books: bool = True,
    ) -> None:
        self.subscription = subscription
        self.holder = holder[:200]
        self.lease = lease or subscription.consumer.lease
        self.since, self.until = since, until  # of when they were received
        self.keeps_books = keeps_books  # whether it may keep the row of the consumer's position until it commits
        self.ordered = subscription.consumer.ordered
        self.unclaimable: Unclaimable | None = None
        self.counts = Counter[str]()
        self._after = 0
        self._window = SMALLEST_WINDOW
        self._slow = False
        self._believed_until = 0.0
        self._time_to_go_back = Interval(ROUND)

    @property
    def using(self) -> str:
        return self.subscription.using

    def claim(self, most: int, *, ours: Collection[int] = (), async_commit: bool = True) -> ClaimedDeliveries | None:
        """Lease the next deliveries; None if nothing can be had now, as far as one knows.

        What somebody had in hand when its lease ended comes first, and all of it: one of those may be why. What is
        under `ours`, the tokens of this process, is left alone: its handlers are at work.
        """
        self._once_in_a_while()
        floor = self._floor()
        self._after = max(self._after, floor)
        whole, began, place = self._after <= floor, time.monotonic(), self._place_of_end()
        while (hand := self._claim(most, ours, async_commit=async_commit)) is None:
            if self._after:
                continue  # there is more behind what was looked at
            if whole:
                break
            self._after = floor  # and once more from there: it is what others gave back
            whole, began, place = True, time.monotonic(), self._place_of_end()
        if hand is None and self._end_frozen_settlers(ours):
            hand = self._claim(most, ours, async_commit=async_commit)
        self._remember(hand, place, time.monotonic() - began)
        return hand

    def start_over(self) -> None:
        """Look everywhere the next time: there is something that was not there before."""
        self._after, self.unclaimable = 0, None

    def flush(self) -> None:
        """Add what was counted to the consumer's counts, and move its position up to its oldest delivery."""
        if not self.keeps_books:
            return
        with sql.committed(self.using):
            consumer_id = self.subscription.consumer_id
            if not sql.fetch(self.using, SQL.lock_position, consumer_id=consumer_id):
                return  # somebody else is at it: next time
            sql.fetch(
                self.using,
                SQL.move_up,
                consumer_id=consumer_id,
                handled=self.counts["handled"],
                failed=self.counts["failed"],
                ignored=self.counts["ignored"],
                dead_lettered=self.counts["dead_lettered"],
            )
        self.counts.clear()

    def close(self) -> None:
        """Add what was counted to the consumer's counts: there is no next time."""
        if +self.counts:
            sql.fetch(
                self.using,
                SQL.add_counts,
                consumer_id=self.subscription.consumer_id,
                handled=self.counts["handled"],
                failed=self.counts["failed"],
                ignored=self.counts["ignored"],
                dead_lettered=self.counts["dead_lettered"],
            )
            self.counts.clear()

    def _once_in_a_while(self) -> None:
        """Go back to the oldest delivery, where others gave something back; nothing before it is looked at again."""
        if self._time_to_go_back:
            self._after = 0
            self.flush()

    def _remember(self, hand: ClaimedDeliveries | None, place: int, seconds: float) -> None:
        """Where it was slow to find nothing, say so, so that only what comes behind that is looked at for a while."""
        if hand is not None:
            if self.unclaimable is not None and min(hand.attempts) <= self.unclaimable.until:
                self.start_over()  # something moves there: a key may go on
            return
        self._slow = seconds > SLOW or self.unclaimable is not None  # the next time, the place of the end is asked for
        if seconds > SLOW and place:
            self.unclaimable = Unclaimable(place, BELIEVED * seconds)
            self._believed_until = time.monotonic() + self.unclaimable.seconds
        self._after = 0
        if self.counts:
            self.flush()

    def _floor(self) -> int:
        if self.unclaimable is not None and time.monotonic() >= self._believed_until:
            self.unclaimable = None
        return 0 if self.unclaimable is None else self.unclaimable.until

    def _place_of_end(self) -> int:
        """Up to where all deliveries are there: asked only where it may be needed."""
        if not self._slow:
            return 0
        of = self.subscription
        end = SQL.place_of_end.on(log=of.log, topic_id=of.topic_id, after=self._after)
        rows = sql.fetch(self.using, end, consumer_id=of.consumer_id)
        return int(rows[0][0]) if rows else 0

    def _end_frozen_settlers(self, ours: Collection[int]) -> bool:
        """End who froze just before its COMMIT, with its lease locked; returns whether there was anybody."""
        overdue = sql.fetch(
            self.using,
            SQL.overdue_hands,
            consumer_id=self.subscription.consumer_id,
            ours=list(ours),
        )
        for (token,) in overdue:
            end_holder(self.using, token)
        return bool(overdue)

    def _claim(self, most: int, ours: Collection[int], *, async_commit: bool) -> ClaimedDeliveries | None:
        """One look: at what was lost, at what waited, and behind the place."""
        nested = connections[self.using].in_atomic_block
        while True:
            token = secrets.randbits(63)
            questions = (
                (SQL.enter, {"consumer_id": self.subscription.consumer_id}),
                self._take_over(token, ours),
                self._next(token, most, async_commit=async_commit and not nested),
            )
            if nested:  # the caller's transaction goes on with its own settings
                with sql.batch(self.using, *questions) as (_, taken, claimed):
                    pass
            else:
                _, _, taken, claimed = sql.fetch_each(self.using, sql.locally(FOR_CLAIMS), *questions)
            if not taken:
                break
            if hand := self._taken_over(token, taken, nested):
                return hand
        found = [(event_id, attempts, key) for event_id, attempts, key, *_ in claimed if event_id is not None]
        end = (claimed[0][3] if claimed else None) or 0
        self._go_on([event_id for event_id, _, _ in found], most, end=end)
        return self._in_hand(token, found, None, nested) if found else None

    def _go_on(self, claimed: Collection[int], most: int, *, end: int) -> None:
        """Remember where to look next: behind what was claimed, or looked at; from the beginning if that was all."""
        if len(claimed) < most:
            self._after = end if self.ordered else 0
        else:
            self._after = max(self._after, max(claimed) if self.ordered else end)
        # Where little can be had, because keys wait for others, it is looked further.
        self._window = SMALLEST_WINDOW if claimed or not self._after else min(2 * self._window, LARGEST_WINDOW)

    def _take_over(self, token: int, ours: Collection[int]) -> sql.Question:
        return SQL.take_over, {
            "consumer_id": self.subscription.consumer_id,
            "token": token,
            "lease": self.lease,
            "holder": self.holder,
            "ours": list(ours),
        }

    def _next(self, token: int, most: int, *, async_commit: bool) -> sql.Question:
        if self.ordered:
            return SQL.claim_ordered.on(open=SQL.open_to_claims, leasing=SQL.lease_picked), {
                "consumer_id": self.subscription.consumer_id,
                "token": token,
                "lease": self.lease,
                "holder": self.holder,
                "after": self._after,
                "most": most,
                "window": max(self._window, 2 * most),
                "async_commit": async_commit,
                "since": self.since,
                "until": self.until,
            }
        return SQL.claim_unordered.on(open=SQL.open_to_claims, leasing=SQL.lease_picked), {
            "consumer_id": self.subscription.consumer_id,
            "token": token,
            "lease": self.lease,
            "holder": self.holder,
            "after": self._after,
            "most": most,
            "async_commit": async_commit,
            "since": self.since,
            "until": self.until,
        }

    def _taken_over(self, token: int, taken: sql.Rows, nested: bool) -> ClaimedDeliveries | None:
        lost_token = taken[0][0]
        found = [(event_id, attempts, key) for _, event_id, attempts, key in taken if event_id is not None]
        hand = self._in_hand(token, found, lost_token, nested)
        end_holder(self.using, lost_token)
        if hand is not None:
            logger.warning(
                "Consumer %s, %s: taken over. Whoever had them died, froze for longer than the lease, or gave them up.",
                self.subscription,
                hand.what,
            )
        return hand

    def _in_hand(self, token: int, found: list[Any], lost_token: int | None, nested: bool) -> ClaimedDeliveries | None:
        hand = claimed_under(
            self.subscription,
            token,
            found,
            ordered=self.ordered,
            lost_token=lost_token,
            nested=nested,
            counts=self.counts,
        )
        if hand.left:
            return hand
        hand.release()
        return None


class Interval:
    """True once in so many seconds, counted from now."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._last = time.monotonic()

    def __bool__(self) -> bool:
        now = time.monotonic()
        if now - self._last < self.seconds:
            return False
        self._last = now
        return True
