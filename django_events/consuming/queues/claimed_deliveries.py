"""Deliveries of a queue consumer that a worker has claimed together, under one lease.

    if claimed := queue.claim(100):
        with transaction.atomic(using):
            ...
            settlement = claimed.settle(claimed.events[:7])
        claimed.settled(settlement)
        claimed.release()

A delivery is claimed by one worker at a time. Settled deliveries are deleted. The others become free again when they
are released, or when the time of the lease is over. After a takeover nothing can be settled under the old token.
"""

import logging
import secrets
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, NamedTuple

from django.db import DatabaseError, transaction

from django_events import models, sql
from django_events.consuming.failures import Failure, Verdict, bury, judge
from django_events.consuming.leases import Lease
from django_events.consuming.missing import floors, missing, refuse_missing
from django_events.consuming.reading import (
    ALL,
    NOTHING,
    EventGone,
    Rows,
    are_whole,
    bounded,
    is_of_payload,
    light,
    loaded,
)
from django_events.consuming.setbacks import released_if_unread
from django_events.consuming.subscriptions import Subscription
from django_events.consuming.unread import UnreadEvent
from django_events.exceptions import EventsMissing
from django_events.log.segments import Segment
from django_events.received import ReceivedEvent

logger = logging.getLogger("django_events.consumer")
SQL = sql.beside(__name__)

OUTCOMES = {Verdict.IGNORE: models.PastDelivery.IGNORED, Verdict.DEAD_LETTER: models.PastDelivery.DEAD}


class DeliverySettlement(NamedTuple):
    """What a settling transaction takes out of the claimed deliveries; it counts once that transaction is committed."""

    out: frozenset[int]  # the ids that are not claimed any more
    careful_until: int
    same_transaction: bool  # as the one that began with `Lease.take_lock`
    counts: Counter[str]


@dataclass(slots=True)
class ClaimedDeliveries(Lease):
    """Deliveries of one consumer, leased by this worker until they are settled or released, or the time is over.

    Deliveries that were taken over are read one by one: one of them may be too large for a worker's memory.
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
        return "1 delivery" if len(self.attempts) == 1 else f"{len(self.attempts)} deliveries"

    @property
    def where(self) -> str:
        return f"at event {min(self.attempts)}"

    @property
    def left(self) -> list[int]:
        """The ids of the deliveries that are not settled."""
        return [*(event.id for event in self.events), *self.unread]

    def next(self, most: int) -> list[ReceivedEvent]:
        """The next events to handle; none if all are settled. An event that needs care comes by itself."""
        while not self.events and self.unread:
            one_by_one = self.unread[0] <= self.careful_until
            event_ids, rest = self.unread[: 1 if one_by_one else None], self.unread[1:] if one_by_one else []
            self.read_first(event_ids, rest)
        events = self.events[:most]
        careful = next((index for index, event in enumerate(events) if self.is_careful(event)), len(events))
        return events[: careful or 1]

    def read_first(self, event_ids: list[int], rest: list[int]) -> None:
        """Read the events of some deliveries, and keep the rest for later; if the read fails, keep all of them."""
        self.unread = rest
        try:
            self.events = self.read(event_ids)
        except (DatabaseError, EventsMissing):
            self.unread = [*event_ids, *rest]
            raise

    def read(self, event_ids: Sequence[int]) -> list[ReceivedEvent]:
        """The events of some deliveries, as many as fit into memory; the others stay unread for now.

        An event that was removed is read from its dead letter; if there is none, its delivery is deleted. If an
        event can't be found and was not removed, EventsMissing is raised, and all deliveries stay.
        """
        of = self.subscription
        try:
            rows, cut = self._rows(event_ids)
        except DatabaseError as error:
            if not is_of_payload(self.using, error):
                raise
            logger.warning("Consumer %s, %s: read one by one. %s", of, self.what, sql.said(error), extra=self.fields)
            self.careful_until = max(self.careful_until, *event_ids)
            rows, cut = self._rows(event_ids, most_bytes=NOTHING)
        if cut is not None:
            self.unread = [event_id for event_id in event_ids if event_id >= cut[0]] + self.unread
        there = {row[0] for row in rows}
        read = of.received(rows)
        if cut is not None and not rows:
            self.unread.remove(cut[0])
            there.add(cut[0])
            read = [of.unread(cut)]
        left = {*self.unread, *there}
        if gone := [event_id for event_id in event_ids if event_id not in left]:
            self._forget_dropped(gone)
        return [self._with_attempts(event) for event in read]

    def take(self, rows: sql.Rows) -> None:
        """The rows of all its events were read with the claim."""
        self.events = [self._with_attempts(event) for event in self.subscription.received(rows)]

    def _forget_dropped(self, event_ids: list[int]) -> None:
        """Delete the deliveries of events that retention or compaction has removed; EventsMissing if one was not."""
        of, dropped = self.subscription, floors(self.subscription)
        if lost := [event_id for event_id in event_ids if event_id > dropped.absent_until]:
            raise missing(f"Event {of.topic}/{min(lost)}")
        logger.error(
            "Consumer %s: %s has removed event %s before it was handled, so its delivery is deleted.",
            of,
            "retention" if event_ids[0] <= dropped.id else "compaction",
            event_ids[0],
            extra={**self.fields, "event_id": event_ids[0]},
        )
        self._write(done=event_ids, history=False, ends=False)

    def load(self, event: ReceivedEvent) -> ReceivedEvent | None:
        try:
            return loaded(self._rows([event.id], most_bytes=ALL), event)
        except EventGone:
            refuse_missing(self.subscription, event.id)
            raise

    def _rows(self, event_ids: Sequence[int], most_bytes: int | None = None) -> Rows:
        """From the log, or, where retention dropped them, from dead letters that are handled again; in order."""
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

    @property
    def redriven(self) -> bool:
        return False

    def is_careful(self, event: ReceivedEvent) -> bool:
        return event.id <= self.careful_until or self.attempts[event.id] > 0 or isinstance(event, UnreadEvent)

    def attempts_of(self, event: ReceivedEvent) -> int:
        return self.attempts[event.id]

    def count_attempt(self, event: ReceivedEvent) -> ReceivedEvent:
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
        return judge(self.subscription.consumer, event, error, may_stop=False)

    def settle(
        self, handled: Sequence[ReceivedEvent], failure: Failure | None = None, *, careful_until: int | None = None
    ) -> DeliverySettlement:
        """As `Claim.settle`. In an ordered queue, the later deliveries of the failed event's key are released."""
        done = [event.id for event in handled]
        counts = Counter(handled=len(done))
        passed = failed = None
        blocked: list[int] = []
        if failure is not None and failure.passes:
            passed = failure.event.id
            done.append(passed)
            if failure.verdict is Verdict.DEAD_LETTER:
                counts.update(failed=1, dead_lettered=1)
            else:
                counts.update(ignored=1)
        elif failure is not None:
            failed = failure.event
            blocked = [event_id for event_id in self.left if self._waits_for(failed.id, event_id)]
            counts.update(failed=int(failure.is_failed_attempt))
        out = frozenset([*done, *blocked] if failed is None else [*done, failed.id, *blocked])
        deleted, same_transaction = self._write(
            done=done,
            passed=passed,
            outcome=None if failure is None else OUTCOMES.get(failure.verdict),
            failed=None if failed is None else failed.id,
            attempts=0 if failure is None else failure.attempts,
            pause=None if failure is None else failure.pause,
            error="" if failure is None else failure.summary,
            released=blocked,
            ends=out.issuperset(self.left),
            lock=self.commits_separately,
        )
        if deleted != len(done):
            raise self.lose()
        # A dead letter is locked after its delivery, as everywhere: in another order two sessions could deadlock.
        if failure is not None and failure.verdict is Verdict.DEAD_LETTER:
            bury(self.subscription, failure)
        return DeliverySettlement(out, max(self.careful_until, careful_until or 0), same_transaction, counts)

    def settle_handled(self, handled: Sequence[ReceivedEvent]) -> DeliverySettlement:
        """As `Claim.settle_handled`."""
        with transaction.atomic(self.using):
            return self.settle(handled)

    def settled(self, settlement: DeliverySettlement) -> None:
        self.events = [event for event in self.events if event.id not in settlement.out]
        self.unread = [event_id for event_id in self.unread if event_id not in settlement.out]
        self.careful_until = settlement.careful_until
        self.counts.update(settlement.counts)
        self.released = not self.left

    def extend(self, lease: timedelta) -> None:
        """Let the lease end after this time from now on; LeaseLost if it was taken over."""
        if not sql.fetch(self.using, SQL.extend_lease, token=self.token, lease=lease):
            raise self.lose()

    def release(self) -> None:
        """Free the deliveries that are not settled, with no attempt counted.

        If one of them may have ended a worker, they stay together under a lease that is over, so that the next worker
        takes them over and handles them one by one.
        """
        if self.released:
            return
        if any(event_id <= self.careful_until for event_id in self.left):
            self.give_up()
        else:
            self._write(released=self.left, ends=True)
        self.released = True

    def release_all_but(self, events: list[ReceivedEvent]) -> None:
        """Free the other deliveries, unless one of them may have ended a worker."""
        kept = {event.id for event in events}
        rest = [event_id for event_id in self.left if event_id not in kept]
        if rest and not any(event_id <= self.careful_until for event_id in rest):
            self._write(released=rest, ends=False)
            self.events, self.unread = events, []
            self.attempts = {event_id: count for event_id, count in self.attempts.items() if event_id in kept}

    def part_with_all_but(self, events: list[ReceivedEvent]) -> None:
        """Put the other deliveries under a lease of their own that is over: the next worker goes on carefully there."""
        kept = {event.id for event in events}
        rest = [event_id for event_id in self.left if event_id not in kept]
        if not sql.fetch(
            self.using,
            SQL.split_lease,
            consumer_id=self.subscription.consumer_id,
            token=self.token,
            kept=[event.id for event in events],
            rest=rest,
            new_token=secrets.randbits(63),
        ):
            raise self.lose()
        self.events, self.unread = events, []

    def give_up(self) -> None:
        """End the lease with something unsettled: the next worker takes it over and goes on carefully."""
        self.extend(timedelta(0))

    def _waits_for(self, failed: int, event_id: int) -> bool:
        """Whether an event has to wait for one that failed: it is a later one of the same key, in an ordered queue."""
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
        lock: bool = False,
    ) -> tuple[int, bool]:
        """Returns how many were deleted, and whether the transaction is still the one that began with `take_lock`."""
        rows = sql.fetch(
            self.using,
            SQL.settle_deliveries.on(told=SQL.tell_outcomes if self.subscription.tells_outcomes else SQL.tell_nothing),
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
            lock=lock,
        )
        if not rows:
            raise self.lose()
        deleted, same_transaction, locked = rows[0]
        self.refuse_unlocked(locked)
        return deleted, same_transaction is True


def _id(row: tuple[Any, ...]) -> int:
    return row[0]  # type: ignore[no-any-return]


def leased_events(of: Subscription, token: int, segment: Segment, most: int) -> sql.Question:
    """What reads the events of up to so many deliveries in the message that claims them under a token."""
    chosen, given = (SQL.read_leased.on(log=of.log, segment=segment.table, topic_id=of.topic_id), {"token": token})
    return light(chosen, most), given


def claimed_under(
    subscription: Subscription,
    token: int,
    claimed: Sequence[tuple[int, int, str | None]],
    *,
    rows: sql.Rows | None = None,
    ordered: bool,
    lost_token: int | None,
    nested: bool,
    counts: Counter[str],
) -> ClaimedDeliveries:
    """The deliveries that were claimed under a token: ids, counted attempts and keys.

    Reads their events, unless all of them are in the `rows` that were read with the claim.
    """
    ids = [event_id for event_id, _, _ in claimed]
    claimed_deliveries = ClaimedDeliveries(
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
    if rows is not None and [row[0] for row in rows] == ids and are_whole(rows):
        claimed_deliveries.take(rows)
    elif lost_token is None and ids:
        with released_if_unread(claimed_deliveries):
            claimed_deliveries.read_first(ids, [])
    return claimed_deliveries
