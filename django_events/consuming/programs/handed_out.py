"""Events that are handed out under a token, by which any process settles them: for programs in other languages.

    handed = hand_out("emails", 10)
    ...
    settled = ack(handed.token, [1042], using="default")    # in another process, an hour later

The token fences: after the lease was taken over, nothing is settled by it.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import NamedTuple, TypeVar

from django.db import connections

from django_events import declarations, sql
from django_events.consuming.programs.claiming import Claimed, begin_claim
from django_events.consuming.queues.claimed_deliveries import ClaimedDeliveries
from django_events.consuming.queues.deliveries import Queue
from django_events.consuming.registered import Named
from django_events.consuming.subscribed import consumers_named
from django_events.consuming.subscriptions import subscriptions
from django_events.exceptions import LeaseLost, Refused
from django_events.models.buffer import writable
from django_events.received import ReceivedEvent

SQL = sql.beside(__name__)
T = TypeVar("T")

OTHERS_SETTLE, PAUSE = 0.5, 0.005  # seconds


class HandedOut(NamedTuple):
    """Events, and the token by which they are settled; no token without events."""

    token: int | None
    events: list[ReceivedEvent]


class Settled(NamedTuple):
    """Which of the asked events were settled, and which were not claimed under the token any more."""

    settled: list[int]
    left_out: list[int]


def hand_out(
    consumer: Named,
    most: int = 1,
    *,
    topic: declarations.DeclaredTopic | str | None = None,
    lease: timedelta | None = None,
    wait: timedelta | None = None,
    holder: str | None = None,
    using: str | None = None,
) -> HandedOut:
    """Claim the next events of a queue consumer, as `claim` does, for as long as the lease: nothing else ends it."""
    claimed = begin_claim(consumer, most, topic=topic, lease=lease, wait=wait, holder=holder, using=using)
    try:
        return HandedOut(claimed.hand_out(), claimed.events)
    except BaseException:
        claimed.give_up()
        raise


def ack(token: int, event_ids: Sequence[int] | None = None, *, using: str | None = None) -> Settled:
    """Settle events as handled; all of the token's if none are named. Those that were settled before are left out."""

    def settle() -> Settled:
        held = _Held(token, event_ids, using=using)
        held.claimed.ack(*held.events)
        return held.settled()

    return _after_others(token, settle, using=using)


def nack(
    token: int,
    event_ids: Sequence[int] | None = None,
    *,
    after: timedelta | None = None,
    error: str = "",
    using: str | None = None,
) -> Settled:
    """Settle events as failed, each with an attempt: see `Claimed.nack`. The error is a text.

    With an error and no `after`, the consumer's `retry` says when they can be had again.
    """
    asked = _Held(token, event_ids, using=using)
    reported = Reported(error) if error else None

    def settle(event: ReceivedEvent) -> None:
        held = _Held(token, [event.id], using=using)
        for one in held.events:  # none, if it was released with an earlier event of its key
            held.claimed.nack(one, after=after, error=reported)

    for event in asked.events:
        _after_others(token, partial(settle, event), using=using)
    return asked.settled()


def extend(token: int, lease: timedelta | None = None, *, using: str | None = None) -> list[int]:
    """Let the lease end after this time from now on, by default the consumer's lease; which events are not settled."""
    held = _Held(token, [], using=using)
    if held.left:
        held.claimed.extend(lease)
    return held.left


def _after_others(token: int, settle: Callable[[], T], *, using: str | None) -> T:
    """Settle, and again for a while if the lease seems lost but is there: another process settles by the same token.

    Its lock of the token is released a moment after its row of the lease, so this one may have taken it for a takeover.
    """
    deadline = time.monotonic() + OTHERS_SETTLE
    while True:
        try:
            return settle()
        except LeaseLost:
            if time.monotonic() > deadline or not sql.fetch(writable(using), SQL.lease_of_token, token=token):
                raise
            time.sleep(PAUSE)


class Reported(Exception):
    """What a program in another language said of an event that failed."""


class _Held:
    """The deliveries under a token as this process sees them, with the events that are asked for."""

    def __init__(self, token: int, event_ids: Sequence[int] | None, *, using: str | None) -> None:
        using = writable(using)
        queue, deliveries = _of_token(using, token)
        self._asked = sorted(set(deliveries.left if event_ids is None else event_ids))
        self.left = deliveries.left
        there = set(self.left)
        self.events = _read(deliveries, [event_id for event_id in self._asked if event_id in there])
        self.claimed = Claimed(queue, deliveries, self.events)

    def settled(self) -> Settled:
        done = {event.id for event in self.events}
        return Settled(sorted(done), [event_id for event_id in self._asked if event_id not in done])


def _of_token(using: str, token: int) -> tuple[Queue, ClaimedDeliveries]:
    rows = sql.fetch(using, SQL.lease_of_token, token=token)
    if not rows:
        raise LeaseLost(
            f"No events are claimed under the token {token}: they were settled, or the lease was over and another "
            "worker took them over, or they were rewound. Nothing was changed."
        )
    [(consumer, topic, holder)] = rows
    found = subscriptions(using, consumers_named(using, consumer))
    chosen = [one for one in found if one.topic == topic]
    if not chosen:
        raise Refused(f"Consumer {consumer!r} doesn't read topic {topic!r} any more.")
    queue = Queue(chosen[0], holder=holder)
    claimed = sql.fetch(using, SQL.deliveries_of_token, token=token)
    deliveries = ClaimedDeliveries(
        chosen[0],
        token,
        None,
        connections[using].in_atomic_block,
        events=[],
        unread=[event_id for event_id, _, _ in claimed],
        attempts={event_id: attempts for event_id, attempts, _ in claimed},
        keys={event_id: key for event_id, _, key in claimed},
        ordered=queue.ordered,
        counts=Counter(),
    )
    return queue, deliveries


def _read(deliveries: ClaimedDeliveries, event_ids: list[int]) -> list[ReceivedEvent]:
    """These events, each in the attempt in which it was handed out."""
    every, events, left = deliveries.left, list[ReceivedEvent](), event_ids
    while left:
        deliveries.read_first(left, [])
        events += [event.with_attempt(max(deliveries.attempts[event.id], 1)) for event in deliveries.events]
        left = deliveries.unread
    read = set(event_ids)
    deliveries.events, deliveries.unread = events, [event_id for event_id in every if event_id not in read]
    return events
