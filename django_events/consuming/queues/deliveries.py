"""Claiming deliveries: which of them a worker of a queue consumer gets next.

    queue = Queue(subscription, holder="host:7")
    claimed = queue.claim(100)

Any number of workers share a consumer: each delivery is claimed by one of them at a time.
"""

import logging
import secrets
import time
from collections import Counter
from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import DatabaseError, connections

from django_events import sql
from django_events.consuming.leases import end_holder
from django_events.consuming.queues.claimed_deliveries import ClaimedDeliveries, claimed_under, leased_events
from django_events.consuming.subscriptions import Subscription
from django_events.log import segments
from django_events.log.segments import Segment
from django_events.sql.prepared import PREPARE_AGAIN, PREPARE_EVERY, SharedSession

logger = logging.getLogger("django_events.consumer")
SQL = sql.beside(__name__)

SMALLEST_WINDOW, LARGEST_WINDOW = 200, 20_000  # deliveries
ROUND = 1.0  # seconds between two looks at the oldest deliveries
SLOW = 0.005  # seconds: a search that took longer and found nothing is not repeated at once
COUNTS_WAIT = "500ms"  # for a session that has the position locked, when there is no later time to count
TRUSTED = 10  # times as long as the search took


class Unclaimable(NamedTuple):
    """Negative cache: nothing up to id `until` is claimable. Trusted for `seconds`, because finding it out was slow."""

    until: int
    seconds: float


class Window(NamedTuple):
    """A stretch of the times when events came to a queue consumer; without a bound it goes on."""

    since: datetime | None = None
    until: datetime | None = None


ALWAYS = Window()


class Queue:
    """A queue consumer as one worker sees it, with the id behind which that worker looks for deliveries next."""

    def __init__(
        self,
        subscription: Subscription,
        *,
        holder: str,
        lease: timedelta | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        moves_position: bool = True,
        session: SharedSession | None = None,
    ) -> None:
        self.subscription = subscription
        self.holder = holder[:200]
        self.lease = lease or subscription.consumer.lease
        self.since, self.until = since, until  # only deliveries that were received in this window
        self.moves_position = (
            moves_position  # False in a caller's transaction, which would lock the position's row too long
        )
        self.ordered = subscription.ordered
        self.unclaimable: Unclaimable | None = None
        self.counts = Counter[str]()
        self._session = session
        self._segment: Segment | None = None  # in which the next events are
        self._prepare_at = self._plain_until = 0.0
        self._after = 0
        self._window = SMALLEST_WINDOW
        self._slow = False
        self._trusted_until = 0.0
        self._round = Interval(ROUND)

    @property
    def using(self) -> str:
        return self.subscription.using

    @property
    def is_windowed(self) -> bool:
        """Whether it takes only what was received in a stretch of time. What is made now is received now."""
        return self.since is not None or self.until is not None

    def claim(self, most: int, *, ours: Collection[int] = (), async_commit: bool = True) -> ClaimedDeliveries | None:
        """Lease the next deliveries; None if none can be claimed now, as far as is known.

        Deliveries of a worker whose lease ran out come first, all of them together: one of them may have ended that
        worker. Leases whose tokens are in `ours` are left alone: their handlers are still running in this process.
        """
        self._go_back_sometimes()
        lowest = self._lowest()
        self._after = max(self._after, lowest)
        whole, began, end = self._after <= lowest, time.monotonic(), self._complete_until()
        while (claimed := self._claim(most, ours, async_commit=async_commit)) is None:
            if self._after:
                continue  # there is more behind the window that was looked at
            if whole:
                break
            self._after = lowest  # once more from the beginning, where other workers may have freed deliveries
            whole, began, end = True, time.monotonic(), self._complete_until()
        if claimed is None and self._end_frozen_settlers(ours):
            claimed = self._claim(most, ours, async_commit=async_commit)
        self._remember(claimed, end, time.monotonic() - began)
        return claimed

    def start_over(self) -> None:
        """Look at all deliveries the next time: some were added or freed."""
        self._after, self.unclaimable = 0, None

    def flush(self) -> None:
        """Add the counts since the last time to the consumer's, and move its position up to its oldest delivery."""
        if not self.moves_position:
            return
        with sql.committed(self.using):
            consumer_id = self.subscription.consumer_id
            if not sql.fetch(self.using, SQL.lock_position, consumer_id=consumer_id):
                return  # another worker moves it just now: the counts wait for the next time
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

    def write_counts(self) -> float | None:
        """Flush, at most once per `ROUND`: a worker without work claims nothing, which would do it.

        Returns in how many seconds to try again, None if nothing is left to be written.
        """
        if self.counts:
            self._go_back_sometimes()
        return self._round.left if self.counts else None

    def close(self) -> None:
        """Add the counts since the last time to the consumer's: there is no next time.

        A program that settles in a transaction of its own has the position locked until that ends, which may be never.
        Then the counts are given up.
        """
        if +self.counts and not self._add_if_free():
            try:
                with sql.committed(self.using, lock_timeout=COUNTS_WAIT):
                    sql.fetch(
                        self.using,
                        SQL.add_counts,
                        consumer_id=self.subscription.consumer_id,
                        handled=self.counts["handled"],
                        failed=self.counts["failed"],
                        ignored=self.counts["ignored"],
                        dead_lettered=self.counts["dead_lettered"],
                    )
            except DatabaseError as error:
                if sql.kind_of(error) is not sql.ErrorKind.LOCKED:
                    raise
                counted = ", ".join(f"{number} {name}" for name, number in (+self.counts).items())
                logger.warning(
                    "Consumer %s: another session has its position locked, so this is not counted: %s.",
                    self.subscription,
                    counted,
                    extra=self.subscription.fields,
                )
        self.counts.clear()

    def _add_if_free(self) -> bool:
        rows = sql.fetch(
            self.using,
            SQL.add_counts_if_free,
            consumer_id=self.subscription.consumer_id,
            handled=self.counts["handled"],
            failed=self.counts["failed"],
            ignored=self.counts["ignored"],
            dead_lettered=self.counts["dead_lettered"],
        )
        return bool(rows)

    def _go_back_sometimes(self) -> None:
        """Once per `ROUND`, look from the oldest delivery on: other workers may have freed some."""
        if self._round.is_over():
            # A window may be far behind the oldest: there, only a search without success goes back.
            if not self.is_windowed:
                self._after = 0
            self.flush()

    def _remember(self, claimed: ClaimedDeliveries | None, end: int, seconds: float) -> None:
        """After a slow search that found nothing, look only behind its end for a while."""
        if claimed is not None:
            if self.unclaimable is not None and min(claimed.attempts) <= self.unclaimable.until:
                self.start_over()  # a delivery became free there, so a key may go on
            return
        self._slow = seconds > SLOW or self.unclaimable is not None  # then the next search asks for its end before
        if seconds > SLOW and end:
            self.unclaimable = Unclaimable(end, TRUSTED * seconds)
            self._trusted_until = time.monotonic() + self.unclaimable.seconds
        self._after = 0
        if self.counts:
            self.flush()

    def _lowest(self) -> int:
        """The id up to which nothing is claimable, as far as that is trusted still."""
        if self.unclaimable is not None and time.monotonic() >= self._trusted_until:
            self.unclaimable = None
        return 0 if self.unclaimable is None else self.unclaimable.until

    def _complete_until(self) -> int:
        """Up to which id no delivery is added any more; 0 if it isn't needed, because the last search was fast."""
        if not self._slow:
            return 0
        of = self.subscription
        end = SQL.complete_until.on(log=of.log, topic_id=of.topic_id, after=self._after)
        rows = sql.fetch(self.using, end, consumer_id=of.consumer_id)
        return int(rows[0][0]) if rows else 0

    def _end_frozen_settlers(self, ours: Collection[int]) -> bool:
        """End workers that froze just before COMMIT and keep their lease locked; returns whether there were any."""
        overdue = sql.fetch(
            self.using,
            SQL.overdue_leases,
            consumer_id=self.subscription.consumer_id,
            ours=list(ours),
        )
        for (token,) in overdue:
            end_holder(self.using, token)
        return bool(overdue)

    def _claim(self, most: int, ours: Collection[int], *, async_commit: bool) -> ClaimedDeliveries | None:
        """One search: for leases that ran out, deliveries that waited for a retry, and those behind `_after`."""
        nested = connections[self.using].in_atomic_block
        read: list[sql.Rows] = []
        while True:
            token = secrets.randbits(63)
            questions = (
                (SQL.enter, {"consumer_id": self.subscription.consumer_id}),
                self._take_over(token, ours),
                self._next(token, most, async_commit=async_commit and not nested),
            )
            if nested:  # the caller's transaction goes on with its own settings
                with sql.batch(self.using, *questions, enable_sort="off") as (_, taken, claimed):
                    pass
            else:
                _, taken, claimed, *read = self._ask(token, most, questions)
            if not taken:
                break
            if taken_over := self._taken_over(token, taken, nested):
                return taken_over
        found = [(event_id, attempts, key) for event_id, attempts, key, *_ in claimed if event_id is not None]
        end = (claimed[0][3] if claimed else None) or 0
        self._go_on([event_id for event_id, _, _ in found], most, end=end)
        return self._read(token, found, None, nested, *read) if found else None

    def _ask(self, token: int, most: int, questions: tuple[sql.Question, ...]) -> list[sql.Rows]:
        """Ask them in one message: prepared, and with what reads the events, where this thread has such a session."""
        if self._session is not None and self._session.is_good and time.monotonic() >= self._plain_until:
            reading: list[sql.Question] = []
            if self._segment is not None:
                reading = [leased_events(self.subscription, token, self._segment, most)]
            try:
                return self._session.ask_each(*questions, *reading)
            except DatabaseError as error:
                if sql.kind_of(error).of_server:
                    raise
                self._segment, self._plain_until = None, time.monotonic() + PREPARE_AGAIN
        return sql.fetch_each(self.using, sql.locally(sql.BY_INDEX), *questions)[1:]

    def prepare(self, event_id: int) -> None:
        """Let the next claim read events of the segment in which this one will be."""
        if self._session is None or not self._session.is_good or time.monotonic() < self._prepare_at:
            return
        if self._segment is None or not self._segment.first <= event_id < self._segment.end:
            self._prepare_at = time.monotonic() + PREPARE_EVERY
            self._segment = segments.holding(self.using, self.subscription.topic_id, event_id)

    def _go_on(self, claimed: Collection[int], most: int, *, end: int) -> None:
        """Go on behind the claimed deliveries, or behind the window; from the beginning if there was no more."""
        if len(claimed) < most:
            self._after = end if self.ordered else 0
        else:
            self._after = max(self._after, max(claimed) if self.ordered else end)
        # Where nothing in the window could be claimed, because keys wait for others, the next window is larger.
        self._window = SMALLEST_WINDOW if claimed or not self._after else min(2 * self._window, LARGEST_WINDOW)

    def _take_over(self, token: int, ours: Collection[int]) -> sql.Question:
        return SQL.take_over.on(known=SQL.known_revision), {
            "consumer_id": self.subscription.consumer_id,
            "revision": self.subscription.revision,
            "token": token,
            "lease": self.lease,
            "holder": self.holder,
            "ours": list(ours),
        }

    def _next(self, token: int, most: int, *, async_commit: bool) -> sql.Question:
        if self.ordered:
            return SQL.claim_ordered.on(
                open=SQL.open_to_claims,
                known=SQL.known_revision,
                waited=SQL.waited.on(received=SQL.received_in_window),
                received=SQL.received_in_window,
                leasing=SQL.lease_picked,
            ), {
                "consumer_id": self.subscription.consumer_id,
                "revision": self.subscription.revision,
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
        return SQL.claim_unordered.on(
            open=SQL.open_to_claims,
            known=SQL.known_revision,
            waited=SQL.waited.on(received=SQL.received_in_window),
            received=SQL.received_in_window,
            leasing=SQL.lease_picked,
        ), {
            "consumer_id": self.subscription.consumer_id,
            "revision": self.subscription.revision,
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
        claimed = self._read(token, found, lost_token, nested)
        end_holder(self.using, lost_token)
        if claimed is not None:
            logger.warning(
                "Consumer %s, %s: taken over. The last worker died, froze for longer than its lease, or gave them up.",
                self.subscription,
                claimed.what,
                extra=claimed.fields,
            )
        return claimed

    def _read(
        self, token: int, found: list[Any], lost_token: int | None, nested: bool, rows: sql.Rows | None = None
    ) -> ClaimedDeliveries | None:
        """Claimed deliveries with their events; None if retention has dropped all of these."""
        claimed = claimed_under(
            self.subscription,
            token,
            found,
            rows=rows,
            ordered=self.ordered,
            lost_token=lost_token,
            nested=nested,
            counts=self.counts,
        )
        if claimed.left:
            return claimed
        claimed.release()
        return None


class Interval:
    """A time that is over once in so many seconds, counted from now."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._began = time.monotonic()

    @property
    def left(self) -> float:
        """Seconds until it is over."""
        return max(self._began + self.seconds - time.monotonic(), 0.0)

    def is_over(self) -> bool:
        """Whether it is over; if so, the next one begins."""
        now = time.monotonic()
        if now - self._began < self.seconds:
            return False
        self._began = now
        return True
