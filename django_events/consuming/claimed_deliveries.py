"""What a worker of a queue consumer has in hand: deliveries that were claimed together.

    if hand := queue.claim(100):
        with transaction.atomic(using):
            ...
            settlement = hand.settle(hand.events[:7])
        hand.settled(settlement)
        hand.release()

Each delivery is in one hand at a time. A hand is fenced as a partition is: under a token that somebody else took
over, nothing can be settled.
"""

import logging
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from django.db import DatabaseError

from django_events import models, sql
from django_events.consuming.failures import Failure, Verdict, bury, judge
from django_events.consuming.leases import Lease
from django_events.consuming.missing import floors, missing
from django_events.consuming.reading import ALL, NOTHING, Rows, bounded, is_of_payload, loaded
from django_events.consuming.received import ReceivedEvent, UnreadEvent
from django_events.consuming.setbacks import released_if_unread
from django_events.consuming.subscriptions import Subscription
from django_events.exceptions import EventsMissing

logger = logging.getLogger("django_events.consumer")
SQL = sql.beside(__name__)

OUTCOMES = {Verdict.IGNORE: models.PastDelivery.IGNORED, Verdict.DEAD_LETTER: models.PastDelivery.DEAD}


class DeliverySettlement(NamedTuple):
    """What a settling transaction takes out of a hand; it counts once that transaction is committed.

    `held` says that the transaction is the one that began with `Lease.hold`.
    """

    out: frozenset[int]
    careful_until: int
    held: bool
    counts: Counter[str]


@dataclass(slots=True)
class ClaimedDeliveries(Lease):
    """Deliveries of one consumer, held by this worker until they are settled or given back, or the time is over.

    Those that were taken over are read one by one: one of them may be too large for a worker.
    """

    events: list[ReceivedEvent]
    unread: list[int]
    attempts: dict[int, int]
    keys: dict[int, str | None]
    careful_until: int = field(default=0, kw_only=True)
    ordered: bool = field(default=False, kw_only=True)
    counts: Counter[str] = field(default_factory=Counter, kw_only=True)

    @property
    def what(self) -> str:
        """Of what it is, for the log."""
        return "1 delivery" if len(self.attempts) == 1 else f"{len(self.attempts)} deliveries"

    @property
    def left(self) -> list[int]:
        """The ids of those that are not settled."""
        return [*(event.id for event in self.events), *self.unread]

    def next(self, most: int) -> list[ReceivedEvent]:
        """The next events to handle; none if all are settled. One that is handled by itself comes by itself."""
        while not self.events and self.unread:
            one_by_one = self.unread[0] <= self.careful_until
            event_ids, rest = self.unread[: 1 if one_by_one else None], self.unread[1:] if one_by_one else []
            self.read_first(event_ids, rest)
        events = self.events[:most]
        careful = next((place for place, event in enumerate(events) if self.is_careful(event)), len(events))
        return events[: careful or 1]

    def read_first(self, event_ids: list[int], rest: list[int]) -> None:
        """Read some of them; the rest is for later, and all of them if these can't be read."""
        self.unread = rest
        try:
            self.events = self.read(event_ids)
        except (DatabaseError, EventsMissing):
            self.unread = [*event_ids, *rest]
            raise

    def read(self, event_ids: Sequence[int]) -> list[ReceivedEvent]:
        """The events of some deliveries, as many as fit into memory: the rest is unread, and read later.

        What the log dropped may be a dead letter; else there is nothing to do. EventsMissing says that it lacks one
        that was not dropped: none of them is handled then, and their deliveries stay.
        """
        of = self.subscription
        try:
            rows, cut = self._rows(event_ids)
        except DatabaseError as error:
            if not is_of_payload(self.using, error):
                raise
            logger.warning("Consumer %s, %s: read one by one. %s", of, self.what, sql.said(error))
            self.careful_until = max(self.careful_until, *event_ids)
            rows, cut = self._rows(event_ids, most_bytes=NOTHING)
        if cut is not None:
            self.unread = [event_id for event_id in event_ids if event_id >= cut[0]] + self.unread
        there = {row[0] for row in rows}
        read = [ReceivedEvent(of.topic, row, consumer=of.consumer.name) for row in rows]
        if cut is not None and not rows:
            self.unread.remove(cut[0])
            there.add(cut[0])
            read = [UnreadEvent(of.topic, cut, consumer=of.consumer.name)]
        left = {*self.unread, *there}
        if gone := [event_id for event_id in event_ids if event_id not in left]:
            self._forget_dropped(gone)
        return [self._with_attempts(event) for event in read]

    def _forget_dropped(self, event_ids: list[int]) -> None:
        """Delete the deliveries of events that retention has dropped; EventsMissing if one of them was not."""
        of, dropped = self.subscription, floors(self.subscription)
        if lost := [event_id for event_id in event_ids if event_id > dropped.id]:
            raise missing(f"Event {of.topic}/{min(lost)}")
        logger.error("Consumer %s: the log has no event %s any more, so nobody gets it.", of, event_ids[0])
        self._write(done=event_ids, history=False, ends=False)

    def load(self, event: ReceivedEvent) -> ReceivedEvent | None:
        """An unread event, with its payload; None if that can't be read."""
        return loaded(self._rows([event.id], most_bytes=ALL), event)

    def _rows(self, event_ids: Sequence[int], most_bytes: int | None = None) -> Rows:
        """Of the log, or, where that dropped them, of dead letters that are handled again; in order."""
        of = self.subscription
        log = SQL.read_deliveries.on(log=of.log, first=min(event_ids), last=max(event_ids))
        rows, cut = bounded(
            self.using,
            log,
            at_most=len(event_ids),
            most_bytes=most_bytes,
            topic_id=of.topic_id,
            event_ids=list(event_ids),
        )
        if len(rows) < len(event_ids):
            there = {row[0] for row in rows}
            missing = [o for o in event_ids if o not in there and (cut is None or o < cut[0])]
            if missing:
                buried = sql.shared.read_dead_letters
                found = bounded(
                    self.using,
                    buried,
                    at_most=len(missing),
                    most_bytes=most_bytes,
                    consumer_id=of.consumer_id,
                    event_ids=missing,
                )
                cut = found.cut or cut
                rows = sorted([*rows, *found.read], key=_id)
                if found.cut is not None:
                    rows = [row for row in rows if row[0] < found.cut[0]]
        return Rows(rows, cut)

    def _with_attempts(self, event: ReceivedEvent) -> ReceivedEvent:
        attempts = self.attempts[event.id]
        return event.with_attempt(attempts + 1) if attempts else event

    def is_careful(self, event: ReceivedEvent) -> bool:
        """Whether this event is handled by itself, and its attempt counted before it starts."""
        return event.id <= self.careful_until or self.attempts[event.id] > 0 or isinstance(event, UnreadEvent)

    def attempts_of(self, event: ReceivedEvent) -> int:
        """How many attempts at this event are counted."""
        return self.attempts[event.id]

    def count_attempt(self, event: ReceivedEvent) -> ReceivedEvent:
        """Count an attempt before it starts, whatever comes of it. In a transaction of its own."""
        rows = sql.fetch(
            self.using,
            SQL.count_delivery_attempt,
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
    ) -> DeliverySettlement:
        """Write down, in the caller's transaction, what was handled and what another event failed with.

        Where keys are in order, those of the failed one's key that are in hand behind it are given back.
        Raises LeaseLost, and the transaction must not be committed then.
        """
        done = [event.id for event in handled]
        counts = Counter(handled=len(done))
        passed = failed = None
        behind: list[int] = []
        if failure is not None and failure.passes:
            passed = failure.event.id
            done.append(passed)
            if failure.verdict is Verdict.DEAD_LETTER:
                counts.update(failed=1, dead_lettered=1)
            else:
                counts.update(ignored=1)
        elif failure is not None:
            failed = failure.event
            behind = [event_id for event_id in self.left if self._waits_for(failed.id, event_id)]
            counts.update(failed=1)
        out = frozenset([*done, *behind] if failed is None else [*done, failed.id, *behind])
        deleted, held = self._write(
            done=done,
            passed=passed,
            outcome=None if failure is None else OUTCOMES.get(failure.verdict),
            failed=None if failed is None else failed.id,
            attempts=0 if failed is None else failed.attempt,
            pause=None if failure is None else failure.pause,
            error="" if failure is None else failure.summary,
            released=behind,
            ends=out.issuperset(self.left),
            hold=self.may_freeze,
        )
        if deleted != len(done):
            raise self.lose()
        if failure is not None and failure.verdict is Verdict.DEAD_LETTER:  # behind its delivery, as whoever locks both
            bury(self.subscription, failure)
        return DeliverySettlement(out, max(self.careful_until, careful_until or 0), held, counts)

    def settled(self, settlement: DeliverySettlement) -> None:
        """The transaction that settled is committed: the rest is still in hand."""
        self.events = [event for event in self.events if event.id not in settlement.out]
        self.unread = [event_id for event_id in self.unread if event_id not in settlement.out]
        self.careful_until = settlement.careful_until
        self.counts.update(settlement.counts)
        self.released, self.holding = not self.left, False

    def extend(self, lease: timedelta) -> None:
        """Have so much time from now on. LeaseLost says that somebody else has it."""
        if not sql.fetch(self.using, SQL.extend_hand, token=self.token, lease=lease):
            raise self.lose()

    def release(self) -> None:
        """Give back what is not settled: it is anybody's again, and was not attempted.

        One of those that are handled one by one may have ended a worker: they stay together, for who goes on carefully.
        """
        if self.released:
            return
        if any(event_id <= self.careful_until for event_id in self.left):
            self.give_up()
        else:
            self._write(released=self.left, ends=True)
        self.released = True

    def release_all_but(self, events: list[ReceivedEvent]) -> None:
        """Let others have the rest, unless one of them may have ended a worker."""
        kept = {event.id for event in events}
        rest = [event_id for event_id in self.left if event_id not in kept]
        if rest and not any(event_id <= self.careful_until for event_id in rest):
            self._write(released=rest, ends=False)
            self.events, self.unread = events, []
            self.attempts = {event_id: count for event_id, count in self.attempts.items() if event_id in kept}

    def give_up(self) -> None:
        """End the lease with something unsettled: whoever takes it over goes on carefully."""
        self.extend(timedelta(0))

    def _waits_for(self, failed: int, event_id: int) -> bool:
        """Whether an event has to wait until one that failed is done, because it is behind it under its key."""
        key = self.keys[failed]
        return self.ordered and key is not None and self.keys[event_id] == key and event_id > failed

    def _write(
        self,
        *,
        done: Collection[int] = (),
        passed: int | None = None,
        outcome: str | None = None,
        failed: int | None = None,
        attempts: int = 0,
        pause: timedelta | None = None,
        error: str = "",
        released: Collection[int] = (),
        history: bool = True,
        ends: bool,
        hold: bool = False,
    ) -> tuple[int, bool]:
        """Returns how many were deleted, and whether it is still the transaction that began with `hold`."""
        rows = sql.fetch(
            self.using,
            SQL.settle_deliveries,
            consumer_id=self.subscription.consumer_id,
            token=self.token,
            done=list(done),
            passed=passed,
            outcome=outcome,
            history=history,
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
        deleted, held, found = rows[0]
        self.refuse_unfound(found)
        return deleted, held is True


def _id(row: tuple[Any, ...]) -> int:
    return row[0]  # type: ignore[no-any-return]


def claimed_under(
    subscription: Subscription,
    token: int,
    claimed: Sequence[tuple[int, int, str | None]],
    *,
    ordered: bool,
    lost_token: int | None,
    nested: bool,
    counts: Counter[str],
) -> ClaimedDeliveries:
    """What was claimed under a token: ids, counted attempts and keys."""
    ids = [event_id for event_id, _, _ in claimed]
    hand = ClaimedDeliveries(
        subscription,
        token,
        lost_token,
        nested,
        events=[],
        unread=ids if lost_token is not None else [],
        attempts={event_id: attempts for event_id, attempts, _ in claimed},
        keys={event_id: key for event_id, _, key in claimed},
        careful_until=0 if lost_token is None else max(ids, default=0),
        ordered=ordered,
        counts=counts,
    )
    if lost_token is None and ids:
        with released_if_unread(hand):
            hand.read_first(ids, [])
    return hand
