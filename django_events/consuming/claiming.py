"""Deliveries for code that is no handler: a script, a view, a task of another framework.

with claim("emails", 10) as claimed:
    for event in claimed:
        send(event)
        claimed.ack(event)
"""

import os
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from django.db import DatabaseError, InterfaceError, connections, transaction

from django_events import declarations, sql
from django_events.consuming.claimed_deliveries import ClaimedDeliveries, DeliverySettlement
from django_events.consuming.deliveries import Queue
from django_events.consuming.failures import Failure, Verdict
from django_events.consuming.handling import begin, log_failure, no_attempt_left
from django_events.consuming.queues import QueueServer
from django_events.consuming.received import ReceivedEvent
from django_events.consuming.registered import Named
from django_events.consuming.subscriptions import Subscription, subscriptions
from django_events.declarations import LONGEST_LEASE, SHORTEST_LEASE
from django_events.exceptions import ClaimRefused, LeaseLost
from django_events.models.buffer import writable
from django_events.retries import Ignore, RetryLater

SQL = sql.beside(__name__)


class Claimed:
    """Events of a queue consumer that are nobody else's until they are settled, or the lease is over.

    It is false when there was nothing to claim.
    """

    def __init__(self, queue: Queue | None, hand: ClaimedDeliveries | None, events: list[ReceivedEvent]) -> None:
        self.events = events
        self._queue = queue
        self._claimed = hand
        # What was told to the database, which alone knows what came of it: a transaction may be rolled back.
        self._told: set[int] = set()
        self._settled: set[int] = set()
        self._given_back: set[int] = set()

    def __iter__(self) -> Iterator[ReceivedEvent]:
        """Those that were claimed, oldest first. What is given back on the way is left out."""
        return (event for event in tuple(self.events) if event.id not in self._given_back)

    def __len__(self) -> int:
        return len(self.events)

    def ack(self, *events: ReceivedEvent) -> None:
        """They are handled: in the caller's transaction, if there is one. Once more changes nothing.

        LeaseLost says that the time was over and somebody else has them: nothing is changed then.
        """
        if left := self._to_settle(events):
            self._settle(left)

    def nack(self, event: ReceivedEvent, *, after: timedelta | None = None, error: BaseException | None = None) -> None:
        """It failed: it can be claimed again at once, or after a while; with an error alone, as the consumer retries.

        It counts as an attempt, and after the last one the event is a dead letter. Where keys are in order, those of
        its key behind it are given back.
        """
        self._fail(event, error or RetryLater(after=after or timedelta(0)), pause=after)

    def ignore(self, event: ReceivedEvent, reason: str) -> None:
        """It is settled without being handled, with a line in the log."""
        self._fail(event, Ignore(reason))

    def extend(self, lease: timedelta | None = None) -> None:
        """Have all that is not settled for so long from now on, by default as long as at first."""
        hand, queue = self._something()
        _refuse_length("extend()", lease)
        if set(hand.attempts) - self._told:
            hand.extend(lease or queue.lease)

    def _fail(self, event: ReceivedEvent, error: BaseException, *, pause: timedelta | None = None) -> None:
        if not self._to_settle([event]):
            return
        hand, _ = self._something()
        failure = hand.judge(event, error)
        if failure.verdict is Verdict.RETRY and pause is not None:
            failure = replace(failure, pause=pause)
        log_failure(hand)(failure)
        self._given_back |= self._settle([], failure).out - {event.id}

    def _settle(self, handled: list[ReceivedEvent], failure: Failure | None = None) -> DeliverySettlement:
        hand, queue = self._something()
        with transaction.atomic(hand.using):
            settlement = hand.settle(handled, failure)
            _note(hand, settlement)
            transaction.on_commit(partial(self._settled.update, settlement.out), hand.using)
            transaction.on_commit(partial(_count, queue, settlement.counts), hand.using, robust=True)
        self._told |= settlement.out
        return settlement

    def _to_settle(self, events: "tuple[ReceivedEvent, ...] | list[ReceivedEvent]") -> list[ReceivedEvent]:
        """Those of some events that are still in hand."""
        if not events:
            return []
        hand, _ = self._something()
        for event in events:
            if event.id not in hand.attempts or event.topic != hand.subscription.topic:
                raise ClaimRefused(f"{event} was not claimed here, so it can't be settled here.")
            if event.id in self._given_back:
                raise ClaimRefused(f"{event} was given back, because an earlier event of its key failed.")
        there = in_hand(hand)
        known = there | self._settled | _noted(hand)
        if any(event.id not in known for event in events):
            raise hand.lose()
        return [event for event in events if event.id in there]

    def _something(self) -> tuple[ClaimedDeliveries, Queue]:
        if self._claimed is None or self._queue is None:
            raise ClaimRefused("Nothing was claimed here, so there is nothing to settle.")
        return self._claimed, self._queue

    def close(self) -> None:
        """Give back what is not settled. Where a transaction took back what was, nobody knows what went wrong."""
        if self._claimed is None:
            return
        there = in_hand(self._claimed)
        if not there & self._told:
            self._claimed.events = [event for event in self.events if event.id in there]
            self._claimed.unread = [event_id for event_id in self._claimed.unread if event_id in there]
            with suppress(LeaseLost):
                self._claimed.release()


@contextmanager
def claim(
    consumer: Named,
    most: int = 1,
    *,
    topic: declarations.Topic | str | None = None,
    lease: timedelta | None = None,
    received_since: datetime | None = None,
    received_until: datetime | None = None,
    using: str | None = None,
) -> Iterator[Claimed]:
    """Have the next events of a queue consumer for oneself, `most` of them, for as long as its lease says.

    What isn't settled when the block ends is given back. After an error it is given back too, and whoever has it next
    gets it one by one, each attempt counted. `received_since` and `received_until` leave out what came to the consumer
    before and from then on. In a transaction, all of it is part of that one; keep it short.
    """
    if most < 1:
        raise ValueError(f"claim() has most={most!r}, expected at least 1.")
    _refuse_length("claim()", lease)
    using = writable(using)
    declared = declarations.consumers.get(consumer)
    found = _queues(using, declared, topic)
    nested = connections[using].in_atomic_block
    if nested:
        _refuse_old_snapshot(using)
    holder = f"{socket.gethostname()}:{os.getpid()}/claim"
    for subscription in found:
        queue = Queue(
            subscription,
            holder=holder,
            lease=lease,
            since=received_since,
            until=received_until,
            moves_position=not nested,
        )
        hand, events = _claimed(queue, most, nested=nested)
        if hand is not None:
            break
    else:
        yield Claimed(None, None, [])
        return
    claimed = Claimed(queue, hand, events)
    try:
        yield claimed
        claimed.close()
    finally:
        # Where it still is one, after an error or a rollback: whoever takes it over goes on carefully.
        with suppress(LeaseLost, DatabaseError, InterfaceError):
            hand.give_up()


def _refuse_length(of: str, lease: timedelta | None) -> None:
    if lease is not None and not SHORTEST_LEASE <= lease <= LONGEST_LEASE:
        raise ValueError(f"{of} has lease={lease!r}, expected a timedelta from 1 second to 1 day.")


def _claimed(queue: Queue, most: int, *, nested: bool) -> tuple[ClaimedDeliveries | None, list[ReceivedEvent]]:
    """Claim until there is something to hand out.

    In a transaction only of what is there, for filling locks a lot; and with a window, because what is made is
    received now.
    """
    server = QueueServer(queue, at_once=most)
    only_what_is_there = nested or queue.since is not None or queue.until is not None
    while (hand := queue.claim(most) if only_what_is_there else server.claim()) is not None or server.ask_again:
        if hand is None:
            continue
        try:
            if events := _begun(hand, most):
                return hand, events
            hand.release()
        except BaseException:
            with suppress(LeaseLost, DatabaseError, InterfaceError):
                hand.give_up()
            raise
    return None, []


def _queues(using: str, declared: declarations.Consumer, topic: declarations.Topic | str | None) -> list[Subscription]:
    if declared.mode != "queue":
        raise ClaimRefused(
            f"Consumer {declared.name!r} is a stream: its events have no status of their own, only its handler gets "
            "them. What is to be claimed is declared with mode='queue'."
        )
    found = subscriptions(using, [declared])
    chosen = [one for one in found if topic is None or one.topic == str(topic)]
    if not chosen:
        raise ClaimRefused(f"Consumer {declared.name!r} doesn't read topic {str(topic)!r}.")
    return chosen


def _refuse_old_snapshot(using: str) -> None:
    """What others have in hand is seen only by who looks at what is committed now."""
    [[level]] = sql.fetch(using, SQL.isolation)
    if level != "read committed":
        raise ClaimRefused(
            f"claim() is called in a transaction at {level.upper()}, which doesn't see what others claim meanwhile. "
            "Call it outside of the transaction, or in one at READ COMMITTED."
        )


def _begun(hand: ClaimedDeliveries, most: int) -> list[ReceivedEvent]:
    """The events to hand out. One that may have ended a worker comes alone, its attempt counted; or dies."""
    while events := hand.next(most):
        first = events[0]
        if not hand.is_careful(first):
            hand.release_all_but(events)
            return events
        if hand.attempts_of(first) < hand.subscription.consumer.retry.attempts:
            begun = begin(hand, first)
            if not isinstance(begun, Failure):
                hand.release_all_but([begun])
                return [begun]
            failure = begun
        else:
            failure = no_attempt_left(hand, first)
        log_failure(hand)(failure)
        with transaction.atomic(hand.using):
            settlement = hand.settle([], failure)
        hand.settled(settlement)
    return []


def in_hand(hand: ClaimedDeliveries) -> set[int]:
    """The ids of what is under the hand's token still."""
    rows = sql.fetch(
        hand.using,
        SQL.in_hand,
        consumer_id=hand.subscription.consumer_id,
        token=hand.token,
        event_ids=list(hand.attempts),
    )
    return {event_id for (event_id,) in rows}


def _note(hand: ClaimedDeliveries, settlement: DeliverySettlement) -> None:
    event_ids = "".join(f"{event_id}," for event_id in settlement.out)
    sql.fetch(hand.using, SQL.note_settled, token=hand.token, event_ids=event_ids)


def _noted(hand: ClaimedDeliveries) -> set[int]:
    """What is settled in the transaction that goes on."""
    [[noted]] = sql.fetch(hand.using, SQL.noted_as_settled, token=hand.token)
    return {int(event_id) for event_id in noted.split(",") if event_id}


def _count(queue: Queue, counts: "Counter[str]") -> None:
    queue.counts.update(counts)
    queue.close()
