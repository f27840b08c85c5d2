"""What a worker of a queue consumer has in hand: deliveries that were claimed together.

    queue = Queue(subscription, holder="host:7")
    if hand := queue.claim(100):
        with transaction.atomic(using):
            ...
            settlement = hand.settle(hand.events[:7])
        hand.settled(settlement)
        hand.release()

Any number of workers share a consumer: each delivery is in one hand at a time. A hand is fenced as a
partition is: under a token that somebody else took over, nothing can be settled.
"""

import logging
import secrets
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

from django.db import connections

from django_events import sql
from django_events.consuming.burial import bury
from django_events.consuming.failures import Failure, Verdict, judge
from django_events.consuming.held import Held
from django_events.consuming.leases import end_holder
from django_events.consuming.received import ReceivedEvent
from django_events.consuming.subscriptions import Subscription

logger = logging.getLogger("django_events.consumer")

SMALLEST_WINDOW, LARGEST_WINDOW = 200, 20_000  # deliveries
# Of millions of deliveries a few are read, by index; the planner's idea of it would be worth compiling, or a scan.
FOR_CLAIMS = {"jit": "off", "enable_seqscan": "off", "enable_bitmapscan": "off"}
ROUND = 1.0  # seconds


class Settled(NamedTuple):
    """What a settling transaction takes out of a hand; it counts once that transaction is committed.

    `held` says that the transaction is the one that began with `Held.hold`.
    """

    out: frozenset[int]
    careful_until: int
    held: bool


@dataclass(slots=True)
class Hand(Held):
    """Deliveries of one consumer, held by this worker until they are settled or given back, or the time is over."""

    events: list[ReceivedEvent]
    attempts: dict[int, int]
    careful_until: int = field(default=0, kw_only=True)
    ordered: bool = field(default=False, kw_only=True)

    @property
    def what(self) -> str:
        return f"{len(self.attempts)} deliveries"

    def is_careful(self, event: ReceivedEvent) -> bool:
        """Whether this event is handled by itself, and its attempt counted before it starts."""
        return event.id <= self.careful_until or self.attempts[event.id] > 0

    def attempts_of(self, event: ReceivedEvent) -> int:
        """How many attempts at this event are counted."""
        return self.attempts[event.id]

    def count_attempt(self, event: ReceivedEvent) -> ReceivedEvent:
        """Count an attempt before it starts, whatever comes of it. In a transaction of its own."""
        rows = sql.fetch(
            self.using,
            sql.statement("count_delivery_attempt"),
            consumer_id=self.subscription.consumer_id,
            event_id=event.id,
            token=self.token,
        )
        if not rows:
            raise self.lose()
        self.attempts[event.id] = rows[0][0]
        return event.with_attempt(rows[0][0])

    def judge(self, event: ReceivedEvent, error: BaseException) -> Failure:
        """What follows from the error of an attempt. It stops nobody else, so the consumer never stops."""
        return judge(self.subscription.consumer, event, error, may_stop=False)

    def settle(
        self, handled: Sequence[ReceivedEvent], failure: Failure | None = None, *, careful_until: int | None = None
    ) -> Settled:
        """Write down, in the caller's transaction, what was handled and what another event failed with.

        Where keys are in order, those of the failed one's key that are in hand behind it are given back.
        Raises LeaseLost, and the transaction must not be committed then.
        """
        done = [event.id for event in handled]
        failed, behind = None, []
        if failure is not None and failure.passes:
            done.append(failure.event.id)
            if failure.verdict is Verdict.DEAD_LETTER:
                bury(self.subscription, failure)
        elif failure is not None:
            failed = failure.event
            behind = [event.id for event in self.events if self._waits_for(failed, event)]
        out = frozenset([*done, *behind] if failed is None else [*done, failed.id, *behind])
        deleted, held = self._write(
            done=done,
            failed=None if failed is None else failed.id,
            attempts=0 if failed is None else failed.attempt,
            pause=None if failure is None else failure.pause,
            error="" if failure is None else failure.summary,
            released=behind,
            ends=len(out) == len(self.events),
            hold=not self.nested,
        )
        if deleted != len(done):
            raise self.lose()
        return Settled(out, max(self.careful_until, careful_until or 0), held)

    def settled(self, settlement: Settled) -> None:
        """The transaction that settled is committed: the rest is still in hand."""
        self.events = [event for event in self.events if event.id not in settlement.out]
        self.careful_until = settlement.careful_until
        self.released = not self.events

    def release(self) -> None:
        """Give back what is not settled: it is anybody's again, and was not attempted.

        One of those that are handled one by one may have ended a worker: they stay together, for who goes on carefully.
        """
        if self.released:
            return
        if any(event.id <= self.careful_until for event in self.events):
            self.give_up()
        else:
            self._write(released=[event.id for event in self.events], ends=True)
        self.released = True

    def give_up(self) -> None:
        """End the lease with something unsettled: whoever takes it over goes on carefully."""
        if not sql.fetch(self.using, sql.statement("give_up_hand"), token=self.token):
            raise self.lose()

    def drop(self, event_ids: list[int]) -> None:
        """Let deliveries go that there is nothing to handle of."""
        self._write(done=event_ids, ends=False)

    def _waits_for(self, failed: ReceivedEvent, event: ReceivedEvent) -> bool:
        return self.ordered and failed.key is not None and event.key == failed.key and event.id > failed.id

    def _write(
        self,
        *,
        done: Sequence[int] = (),
        failed: int | None = None,
        attempts: int = 0,
        pause: timedelta | None = None,
        error: str = "",
        released: Sequence[int] = (),
        ends: bool,
        hold: bool = False,
    ) -> tuple[int, bool]:
        """Returns how many were deleted, and whether it is still the transaction that began with `hold`."""
        rows = sql.fetch(
            self.using,
            sql.statement("settle_deliveries"),
            consumer_id=self.subscription.consumer_id,
            token=self.token,
            done=list(done),
            failed=failed,
            attempts=attempts,
            pause=pause,
            error=error,
            released=list(released),
            ends=ends,
            hold=hold,
        )
        if not rows:
            raise self.lose()
        return rows[0][0], rows[0][1] is True


class Queue:
    """A queue consumer as one worker sees it, with the place behind which that worker goes on."""

    def __init__(self, subscription: Subscription, *, holder: str, ordered: bool = False) -> None:
        self.subscription = subscription
        self.holder = holder[:200]
        self.ordered = ordered
        self._after = 0
        self._window = SMALLEST_WINDOW
        self._went_back_at = time.monotonic()

    @property
    def using(self) -> str:
        return self.subscription.using

    def claim(self, most: int, *, hurry: bool = True) -> Hand | None:
        """Lease the next deliveries; None if nothing can be had now.

        What somebody had in hand when its lease ended comes first, and all of it: one of those may be why.
        """
        self._once_in_a_while()
        at_the_end = not self._after
        while (hand := self._claim(most, hurry=hurry)) is None:
            if not self._after:
                if at_the_end:
                    return self._claim(most, hurry=hurry) if self._end_frozen_settlers() else None
                at_the_end = True  # and once more from the beginning: there is what others gave back
        return hand

    def _end_frozen_settlers(self) -> bool:
        """End who froze just before its COMMIT, with its lease locked; returns whether there was anybody."""
        overdue = sql.fetch(self.using, sql.statement("overdue_hands"), consumer_id=self.subscription.consumer_id)
        for (token,) in overdue:
            end_holder(self.using, token)
        return bool(overdue)

    def _claim(self, most: int, *, hurry: bool) -> Hand | None:
        """One look: at what was lost, at what waited, and behind the place."""
        nested = connections[self.using].in_atomic_block
        while True:
            token = secrets.randbits(63)
            questions = self._take_over(token), self._next(token, most, hurry=hurry and not nested)
            if nested:  # the caller's transaction goes on with its own settings
                with sql.batch(self.using, *questions) as (taken, claimed):
                    pass
            else:
                _, taken, claimed = sql.fetch_each(self.using, sql.locally(FOR_CLAIMS), *questions)
            if not taken:
                break
            attempts = {event_id: count for _, event_id, count in taken if event_id is not None}
            if hand := self._take(token, attempts, taken[0][0], nested):
                return hand
        attempts = {event_id: count for event_id, count, *_ in claimed if event_id is not None}
        self._go_on(attempts, most, end=(claimed[0][2] if claimed else None) or 0)
        return self._take(token, attempts, None, nested) if attempts else None

    def _go_on(self, claimed: Collection[int], most: int, *, end: int) -> None:
        """Remember where to look next: behind what was claimed, or looked at; from the beginning if that was all."""
        if len(claimed) < most:
            self._after = end if self.ordered else 0
        else:
            self._after = max(self._after, max(claimed) if self.ordered else end)
        # Where little can be had, because keys wait for others, it is looked further.
        self._window = SMALLEST_WINDOW if claimed or not self._after else min(2 * self._window, LARGEST_WINDOW)

    def _take_over(self, token: int) -> sql.Question:
        return sql.statement("take_over"), {
            "consumer_id": self.subscription.consumer_id,
            "token": token,
            "lease": self.subscription.consumer.lease,
            "holder": self.holder,
        }

    def _next(self, token: int, most: int, *, hurry: bool) -> sql.Question:
        of = self.subscription
        if self.ordered:
            return sql.statement("claim_ordered"), {
                "consumer_id": of.consumer_id,
                "token": token,
                "lease": of.consumer.lease,
                "holder": self.holder,
                "after": self._after,
                "most": most,
                "window": max(self._window, 2 * most),
                "hurry": hurry,
            }
        return sql.statement("claim_unordered"), {
            "consumer_id": of.consumer_id,
            "token": token,
            "lease": of.consumer.lease,
            "holder": self.holder,
            "after": self._after,
            "most": most,
            "hurry": hurry,
        }

    def _take(self, token: int, attempts: dict[int, int], lost_token: int | None, nested: bool) -> Hand | None:
        of = self.subscription
        events = [
            event.with_attempt(attempts[event.id] + 1) if attempts[event.id] else event
            for event in (self._read(list(attempts)) if attempts else [])
        ]
        careful_until = 0 if lost_token is None else max(attempts, default=0)
        hand = Hand(of, token, lost_token, nested, events, attempts, careful_until=careful_until, ordered=self.ordered)
        if lost_token is not None:
            end_holder(self.using, lost_token)
            logger.warning(
                "Consumer %s, %s are taken over: their worker died, or froze for longer than its lease.", of, hand.what
            )
        if gone := attempts.keys() - {event.id for event in events}:
            logger.error("Consumer %s: the log has no event %s any more, so nobody gets it.", of, min(gone))
            hand.drop(list(gone))
        if not events:
            hand.release()
            return None
        return hand

    def _read(self, ids: list[int]) -> list[ReceivedEvent]:
        of = self.subscription
        rows = sql.fetch(
            of.using,
            sql.statement("read_deliveries").on(log=of.log, first=min(ids), last=max(ids)),
            topic_id=of.topic_id,
            event_ids=ids,
        )
        return [ReceivedEvent(of.topic, row, consumer=of.consumer.name) for row in rows]

    def _once_in_a_while(self) -> None:
        """Go back to the oldest delivery, where others gave something back; nothing before it is looked at again."""
        now = time.monotonic()
        if now - self._went_back_at < ROUND:
            return
        self._went_back_at, self._after = now, 0
        with sql.committed(self.using):
            if sql.fetch(self.using, sql.statement("lock_position"), consumer_id=self.subscription.consumer_id):
                sql.fetch(self.using, sql.statement("move_up"), consumer_id=self.subscription.consumer_id)
