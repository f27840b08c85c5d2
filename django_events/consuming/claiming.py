"""Deliveries for code that is no handler: a script, a view, a task of another framework.

with claim("emails", 10) as claimed:
    for event in claimed:
        send(event)
        claimed.ack(event)
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta

from django.db import DatabaseError, InterfaceError, transaction

from django_events import declarations
from django_events.consuming.deliveries import Queue
from django_events.consuming.failures import Verdict
from django_events.consuming.handling import log_failure, no_attempt_left
from django_events.consuming.hands import Hand
from django_events.consuming.queues import QueueServer
from django_events.consuming.received import ReceivedEvent
from django_events.consuming.registered import Named, writable
from django_events.consuming.subscriptions import Subscription, subscriptions
from django_events.exceptions import ClaimRefused, LeaseLost
from django_events.retries import Discard, Retry


class Claimed:
    """Events of a queue consumer that are nobody else's until they are settled, or the lease is over.

    It is false when there was nothing to claim.
    """

    def __init__(self, hand: Hand | None, events: list[ReceivedEvent], lease: timedelta) -> None:
        self.events = events
        self._hand = hand
        self._lease = lease
        self._given_back: set[int] = set()

    def __iter__(self) -> Iterator[ReceivedEvent]:
        """Those that were claimed, oldest first, settled ones included."""
        return iter(tuple(self.events))

    def __len__(self) -> int:
        return len(self.events)

    @property
    def left(self) -> list[ReceivedEvent]:
        """Those that are not settled yet."""
        there = () if self._hand is None else self._hand.left
        return [event for event in self.events if event.id in there]

    def ack(self, *events: ReceivedEvent) -> None:
        """They are handled: in the caller's transaction, if there is one. Once more changes nothing.

        LeaseLost says that the time was over and somebody else has them: nothing is changed then.
        """
        if not events:
            return
        hand, left = self._to_settle(events)
        if not left:
            return
        with transaction.atomic(hand.using):
            settlement = hand.settle(left)
        hand.settled(settlement)

    def nack(self, event: ReceivedEvent, *, after: timedelta | None = None, error: BaseException | None = None) -> None:
        """It failed: it can be claimed again at once, or after a while; with an error alone, as the consumer retries.

        It counts as an attempt, and after the last one the event is a dead letter. Where keys are in order, those of
        its key behind it are given back.
        """
        if error is None:
            error = Retry(after=after or timedelta(0))
        self._fail(event, error, pause=after)

    def discard(self, event: ReceivedEvent, reason: str) -> None:
        """It is settled without being handled, with a line in the log."""
        self._fail(event, Discard(reason))

    def extend(self, lease: timedelta | None = None) -> None:
        """Have all that is not settled for so long from now on, by default as long as at first."""
        hand, _ = self._to_settle(())
        hand.extend(lease or self._lease)

    def _fail(self, event: ReceivedEvent, error: BaseException, *, pause: timedelta | None = None) -> None:
        hand, left = self._to_settle([event])
        if not left:
            return
        failure = hand.judge(event, error)
        if failure.verdict is Verdict.RETRY and pause is not None:
            failure = replace(failure, pause=pause)
        log_failure(hand)(failure)
        with transaction.atomic(hand.using):
            settlement = hand.settle([], failure)
        hand.settled(settlement)
        self._given_back |= settlement.out - {event.id}

    def _to_settle(self, events: "tuple[ReceivedEvent, ...] | list[ReceivedEvent]") -> tuple[Hand, list[ReceivedEvent]]:
        """Those of some events that are still in hand; ClaimRefused if one never was."""
        hand = self._hand
        for event in events:
            if hand is None or event.id not in hand.attempts or event.topic != hand.subscription.topic:
                raise ClaimRefused(f"{event} was not claimed here, so it can't be settled here.")
            if event.id in self._given_back:
                raise ClaimRefused(f"{event} was given back, because an earlier event of its key failed.")
        if hand is None:
            raise ClaimRefused("Nothing was claimed here, so there is nothing to settle.")
        there = set(hand.left)
        return hand, [event for event in events if event.id in there]


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
    before and from then on. In a transaction, all of it is part of that one.
    """
    if most < 1:
        raise ValueError(f"claim() has most={most!r}, expected at least 1.")
    using = writable(using)
    declared = declarations.consumers.get(consumer)
    holder = f"{socket.gethostname()}:{os.getpid()}/claim"
    for subscription in _queues(using, declared, topic):
        queue = Queue(subscription, holder=holder, lease=lease, since=received_since, until=received_until)
        server = QueueServer(queue, at_once=most)
        while (hand := server.claim()) is not None:
            try:
                events = _begun(hand, most)
            except BaseException:
                _let_go(hand)
                raise
            if events:
                break
            hand.release()
        if hand is not None:
            break
    else:
        yield Claimed(None, [], declared.lease)
        return
    try:
        yield Claimed(hand, events, queue.lease)
        with suppress(LeaseLost):
            hand.release()
        queue.close()
    finally:
        _let_go(hand)


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


def _begun(hand: Hand, most: int) -> list[ReceivedEvent]:
    """The events to hand out. One that may have ended a worker comes alone, its attempt counted; or dies."""
    while events := hand.next(most):
        first = events[0]
        if not hand.is_careful(first):
            return [event for event in events if not hand.is_careful(event)]
        if hand.attempts_of(first) < hand.subscription.consumer.retry.attempts:
            hand.events[0] = hand.count_attempt(first)
            hand.release_all_but(hand.events[0])
            return [hand.events[0]]
        failure = no_attempt_left(hand, first)
        log_failure(hand)(failure)
        with transaction.atomic(hand.using):
            settlement = hand.settle([], failure)
        hand.settled(settlement)
    return []


def _let_go(hand: Hand) -> None:
    """End the lease if it still is one: after an error, or when what was settled was rolled back."""
    with suppress(LeaseLost, DatabaseError, InterfaceError):
        hand.give_up()
