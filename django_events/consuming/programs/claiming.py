"""Claiming deliveries for code that is no handler: a script, a view, a task of another framework.

with claim("emails", 10) as claimed:
    for event in claimed:
        send(event)
        claimed.ack(event)
"""

import os
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial

from django.db import DatabaseError, InterfaceError, connections, transaction

from django_events import declarations, sql
from django_events.consuming.failures import Failure, Verdict
from django_events.consuming.handling import begin, log_failure, no_attempt_left
from django_events.consuming.queues.claimed_deliveries import ClaimedDeliveries, DeliverySettlement
from django_events.consuming.queues.deliveries import Queue
from django_events.consuming.queues.server import QueueServer
from django_events.consuming.registered import Named
from django_events.consuming.subscribed import consumers_named, note_served
from django_events.consuming.subscriptions import Subscription, subscriptions
from django_events.declarations import LONGEST_LEASE, SHORTEST_LEASE
from django_events.exceptions import Invalid, LeaseLost, Refused
from django_events.models.buffer import writable
from django_events.received import ReceivedEvent
from django_events.retries import Ignore, RetryLater

SQL = sql.beside(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0  # seconds between two looks of a claim that waits
LONGEST_WAIT = timedelta(days=1)


class Claimed:
    """Events of a queue consumer that no other worker gets until they are settled, or the lease is over.

    It is false if there was nothing to claim.
    """

    def __init__(self, queue: Queue | None, claimed: ClaimedDeliveries | None, events: list[ReceivedEvent]) -> None:
        self.events = events
        self._queue = queue
        self._claimed = claimed
        # Sent to the database to be settled. Only the database knows whether it is: the transaction may be rolled back.
        self._sent: set[int] = set()
        self._settled: set[int] = set()
        self._released: set[int] = set()

    def __iter__(self) -> Iterator[ReceivedEvent]:
        """The claimed events, oldest first, without those that were released meanwhile."""
        return (event for event in tuple(self.events) if event.id not in self._released)

    def __len__(self) -> int:
        return len(self.events)

    def ack(self, *events: ReceivedEvent) -> None:
        """Settle events as handled, in the caller's transaction if there is one. Repeating it changes nothing.

        LeaseLost says that the lease was over and another worker has taken the events: then nothing is changed.
        """
        if left := self._to_settle(events):
            self._settle(left)

    def nack(self, event: ReceivedEvent, *, after: timedelta | None = None, error: BaseException | None = None) -> None:
        """Settle an event as failed: it can be claimed again at once, or after a while.

        With an `error` alone, the consumer's `retry` says when. It counts as an attempt, and after the last one the
        event is a dead letter. In an ordered queue, the claimed events of its key that come after it are released.
        """
        self._fail(event, error or RetryLater(after=after or timedelta(0)), pause=after)

    def ignore(self, event: ReceivedEvent, reason: str) -> None:
        """Settle an event without handling it, with a line in the log that says the reason."""
        self._fail(event, Ignore(reason))

    def extend(self, lease: timedelta | None = None) -> None:
        """Let the lease of unsettled events end after this time from now on, by default the time of the claim."""
        claimed, queue = self._something()
        _refuse_length("extend()", lease)
        if set(claimed.attempts) - self._sent:
            claimed.extend(lease or queue.lease)

    def _fail(self, event: ReceivedEvent, error: BaseException, *, pause: timedelta | None = None) -> None:
        if not self._to_settle([event]):
            return
        claimed, _ = self._something()
        failure = claimed.judge(event, error)
        if failure.verdict is Verdict.RETRY and pause is not None:
            failure = replace(failure, pause=pause)
        log_failure(claimed)(failure)
        self._released |= self._settle([], failure).out - {event.id}

    def _settle(self, handled: list[ReceivedEvent], failure: Failure | None = None) -> DeliverySettlement:
        claimed, queue = self._something()
        with transaction.atomic(claimed.using):
            settlement = claimed.settle(handled, failure)
            _note(claimed, settlement)
            transaction.on_commit(partial(self._settled.update, settlement.out), claimed.using)
            transaction.on_commit(partial(_count, queue, settlement.counts), claimed.using, robust=True)
        self._sent |= settlement.out
        return settlement

    def _to_settle(self, events: "tuple[ReceivedEvent, ...] | list[ReceivedEvent]") -> list[ReceivedEvent]:
        """Which of these events are claimed and unsettled; Refused if one can't be settled here."""
        if not events:
            return []
        claimed, _ = self._something()
        for event in events:
            if event.id not in claimed.attempts or event.topic != claimed.subscription.topic:
                raise Refused(f"{event} was not claimed here, so it can't be settled here.")
            if event.id in self._released:
                raise Refused(f"{event} was given back, because an earlier event of its key failed.")
        there = still_claimed(claimed)
        known = there | self._settled | _noted(claimed)
        if any(event.id not in known for event in events):
            raise claimed.lose()
        return [event for event in events if event.id in there]

    def _something(self) -> tuple[ClaimedDeliveries, Queue]:
        if self._claimed is None or self._queue is None:
            raise Refused("Nothing was claimed here, so there is nothing to settle.")
        return self._claimed, self._queue

    def close(self) -> None:
        """Release what is not settled; nothing if a rollback undid a settlement: the next worker must be careful."""
        if self._claimed is None:
            return
        there = still_claimed(self._claimed)
        if not there & self._sent:
            self._claimed.events = [event for event in self.events if event.id in there]
            self._claimed.unread = [event_id for event_id in self._claimed.unread if event_id in there]
            with suppress(LeaseLost):
                self._claimed.release()

    def give_up(self) -> None:
        """If it is still a lease, after an error or a rollback, the next worker takes it over and goes on carefully."""
        if self._claimed is not None:
            with suppress(LeaseLost, DatabaseError, InterfaceError):
                self._claimed.give_up()

    def hand_out(self) -> int | None:
        """Keep the lease for its time, so that any process settles these events by its token; None without events."""
        if self._claimed is None:
            return None
        self._claimed.part_with_all_but(self.events)
        return self._claimed.token


@contextmanager
def claim(
    consumer: Named,
    most: int = 1,
    *,
    topic: declarations.DeclaredTopic | str | None = None,
    lease: timedelta | None = None,
    received_since: datetime | None = None,
    received_until: datetime | None = None,
    wait: timedelta | None = None,
    using: str | None = None,
) -> Iterator[Claimed]:
    """Claim the next events of a queue consumer, up to `most` of them, for the consumer's lease, or `lease`.

    Events that aren't settled when the block ends are released. After an error the next worker gets them one by one,
    and each attempt is counted. `received_since` and `received_until` select events by the time when they came to the
    consumer. If there is nothing to claim, `wait` looks again for so long. Inside a transaction, everything is part of
    that transaction: keep it short.
    """
    claimed = begin_claim(
        consumer, most, topic=topic, lease=lease, since=received_since, until=received_until, wait=wait, using=using
    )
    try:
        yield claimed
        claimed.close()
    finally:
        claimed.give_up()


def begin_claim(
    consumer: Named,
    most: int,
    *,
    topic: declarations.DeclaredTopic | str | None,
    lease: timedelta | None,
    since: datetime | None = None,
    until: datetime | None = None,
    wait: timedelta | None = None,
    holder: str | None = None,
    using: str | None,
) -> Claimed:
    """As `claim`, with nothing that ends it but settling, `close` and `give_up`, or the end of the lease."""
    if most < 1:
        raise Invalid(f"claim() has most={most!r}, expected at least 1.")
    _refuse_length("claim()", lease)
    using = writable(using)
    found = _queues(using, consumers_named(using, consumer), topic)
    nested = connections[using].in_atomic_block
    if nested:
        _refuse_old_snapshot(using)
    _refuse_wait(wait, nested=nested)
    queues = [
        Queue(
            subscription,
            holder=holder or f"{socket.gethostname()}:{os.getpid()}/claim",
            lease=lease,
            since=since,
            until=until,
            moves_position=not nested,
        )
        for subscription in found
    ]
    ends_at, pause = time.monotonic() + (wait or timedelta(0)).total_seconds(), FIRST_PAUSE
    served = [one.consumer_id for one in found if one.expires]
    while True:
        if served:
            note_served(using, served)
        for queue in queues:
            deliveries, events = _claimed(queue, most, nested=nested)
            if deliveries is not None:
                return Claimed(queue, deliveries, events)
        left = ends_at - time.monotonic()
        if left <= 0:
            return Claimed(None, None, [])
        time.sleep(min(pause, left))
        pause = min(2 * pause, LONGEST_PAUSE)


def _refuse_wait(wait: timedelta | None, *, nested: bool) -> None:
    if wait is None:
        return
    if not timedelta(0) <= wait <= LONGEST_WAIT:
        raise Invalid(f"claim() has wait={wait!r}, expected a timedelta from 0 to 1 day.")
    if nested:
        raise Refused(
            "claim() has wait= inside a transaction, which would stay open for so long and hold up vacuum. Call it "
            "outside of the transaction."
        )


def _refuse_length(of: str, lease: timedelta | None) -> None:
    if lease is not None and not SHORTEST_LEASE <= lease <= LONGEST_LEASE:
        raise Invalid(f"{of} has lease={lease!r}, expected a timedelta from 1 second to 1 day.")


def _claimed(queue: Queue, most: int, *, nested: bool) -> tuple[ClaimedDeliveries | None, list[ReceivedEvent]]:
    """Claim until there is something to hand out.

    Deliveries are made from the log only outside of a transaction, because that locks rows that others need, and only
    without a window of time, because deliveries that are made now are received now.
    """
    server = QueueServer(queue, at_once=most)
    only_existing = nested or queue.is_windowed
    while (claimed := queue.claim(most) if only_existing else server.claim()) is not None or server.ask_again:
        if claimed is None:
            continue
        try:
            if events := _begun(claimed, most):
                return claimed, events
            claimed.release()
        except BaseException:
            with suppress(LeaseLost, DatabaseError, InterfaceError):
                claimed.give_up()
            raise
    return None, []


def _queues(
    using: str, consumers: list[declarations.DeclaredConsumer], topic: declarations.DeclaredTopic | str | None
) -> list[Subscription]:
    for one in consumers:
        if one.mode != "queue":
            raise Refused(
                f"Consumer {one.name!r} is a stream: its events have no status of their own, only its handler gets "
                "them. Declare it with mode='queue' to claim its events."
            )
    chosen = [one for one in subscriptions(using, consumers) if topic is None or one.topic == str(topic)]
    if not chosen:
        raise Refused(f"Consumer {consumers[0].name!r} doesn't read topic {str(topic)!r}.")
    return chosen


def _refuse_old_snapshot(using: str) -> None:
    """Refused in a transaction with an old snapshot: it doesn't see what other workers have claimed since."""
    [[level]] = sql.fetch(using, SQL.isolation)
    if level != "read committed":
        raise Refused(
            f"claim() is called in a transaction at {level.upper()}, which doesn't see what others claim meanwhile. "
            "Call it outside of the transaction, or in one at READ COMMITTED."
        )


def _begun(claimed: ClaimedDeliveries, most: int) -> list[ReceivedEvent]:
    """The events to hand out.

    One that may have ended a worker comes alone with its attempt counted, or is settled as a failure if none is left.
    """
    while events := claimed.next(most):
        first = events[0]
        if not claimed.is_careful(first):
            claimed.release_all_but(events)
            return events
        if claimed.attempts_of(first) < claimed.subscription.consumer.retry.attempts:
            begun = begin(claimed, first)
            if not isinstance(begun, Failure):
                claimed.release_all_but([begun])
                return [begun]
            failure = begun
        else:
            failure = no_attempt_left(claimed, first)
        log_failure(claimed)(failure)
        with transaction.atomic(claimed.using):
            settlement = claimed.settle([], failure)
        claimed.settled(settlement)
    return []


def still_claimed(claimed: ClaimedDeliveries) -> set[int]:
    """The ids of deliveries that still have the token of this lease."""
    rows = sql.fetch(
        claimed.using,
        SQL.still_claimed,
        consumer_id=claimed.subscription.consumer_id,
        token=claimed.token,
        event_ids=list(claimed.attempts),
    )
    return {event_id for (event_id,) in rows}


def _note(claimed: ClaimedDeliveries, settlement: DeliverySettlement) -> None:
    event_ids = "".join(f"{event_id}," for event_id in settlement.out)
    sql.fetch(claimed.using, SQL.note_settled, token=claimed.token, event_ids=event_ids)


def _noted(claimed: ClaimedDeliveries) -> set[int]:
    """The ids that are settled in the open transaction."""
    [[noted]] = sql.fetch(claimed.using, SQL.noted_as_settled, token=claimed.token)
    return {int(event_id) for event_id in noted.split(",") if event_id}


def _count(queue: Queue, counts: "Counter[str]") -> None:
    queue.counts.update(counts)
    queue.close()
