"""Claim, handle, settle: the protocol by which all consumers work. This module handles and settles.

A transactional handler runs inside the transaction that settles, so its writes and the consumer's progress are
committed together or not at all. Any other handler runs before that transaction: a crash in between repeats the call.

When an event fails in a transactional handler, the transaction is rolled back. The next one handles the events before
it again, and settles them together with the failed attempt. When a batch fails, the failing event can't be told: its
events are handled one by one from then on. The same goes for all events of a transaction whose COMMIT fails.

Careful mode: an event that may have ended a worker is handled by itself, and its attempt is counted and committed
before the handler starts. So an attempt that kills, hangs or freezes its process is counted against that event and no
other.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Protocol

from django.db import DatabaseError, InterfaceError, OperationalError, connections, transaction

from django_events import sql, telemetry
from django_events.consuming.children import children_left_behind
from django_events.consuming.failures import Failure, Verdict, summary_of
from django_events.consuming.handlers import BoundHandler, Enough, HandlerFailed, ended
from django_events.consuming.leases import Lease
from django_events.consuming.reading import TOO_LONG, EventGone
from django_events.consuming.unread import UnreadEvent, gone, unreadable
from django_events.exceptions import WorkerEnded
from django_events.received import ReceivedEvent
from django_events.retries import Ignore, RetryLater
from django_events.signals import event_dead_lettered, event_handled, event_retried

logger = logging.getLogger("django_events.consumer")

TURN = 0.2  # seconds, then the worker goes on with the consumer that has waited longest
TRANSACTION = 0.1  # seconds, then the events that a handler of single events has handled are committed
SHORT_OF_MEMORY = timedelta(seconds=5)  # until the server is asked again for an event for which it had no memory

OnFailure = Callable[[Failure], None]


class Settlement(Protocol):
    """What a settling transaction wrote. It counts once that transaction is committed."""

    @property
    def same_transaction(self) -> bool:
        """Whether it is still the transaction that began with `Lease.take_lock`."""


class Claim(Protocol):
    """Events to handle and settle: a leased partition of a stream, a dead letter in it, or deliveries of a queue."""

    @property
    def redriven(self) -> bool:
        """Whether it is a dead letter of a stream, which comes behind events of higher ids."""

    def is_careful(self, event: ReceivedEvent) -> bool:
        """Whether this event is handled by itself, and its attempt counted before it starts."""

    def attempts_of(self, event: ReceivedEvent) -> int:
        """How many attempts at this event are counted."""

    def count_attempt(self, event: ReceivedEvent) -> ReceivedEvent:
        """Count an attempt and commit that, before the attempt starts; returns the event with its attempt number."""

    def load(self, event: ReceivedEvent) -> ReceivedEvent | None:
        """An event with the payload that was left out when it was read; None if the payload can't be read."""

    def settle(
        self, handled: Sequence[ReceivedEvent], failure: Failure | None = None, *, careful_until: int | None = None
    ) -> Settlement:
        """Write down, in the open transaction, which events were handled, and what the next one failed with.

        With `careful_until`, events up to that id are handled one by one from now on. After LeaseLost the transaction
        must be rolled back.
        """

    def settle_handled(self, handled: Sequence[ReceivedEvent]) -> Settlement:
        """Settle events that were handled outside of a transaction, in one of its own, which is committed then."""

    def settled(self, settlement: Any) -> None:
        """The transaction that settled is committed: go on from there."""

    def judge(self, event: ReceivedEvent, error: BaseException) -> Failure:
        """What follows from the error of an attempt."""


@dataclass(frozen=True)
class HandlingResult:
    """What was settled in one transaction: events that were handled, and the one after them, if it failed."""

    settlement: Settlement
    handled: Sequence[ReceivedEvent] = ()
    seconds: float = 0.0
    failure: Failure | None = None

    @property
    def passed(self) -> int:
        """How many events the consumer is past now."""
        return len(self.handled) + int(self.failure is not None and self.failure.passes)


class Handling:
    """Handles and settles the events of one lease."""

    def __init__(self, lease: Lease, handler: BoundHandler, *, enough: Enough, on_failure: OnFailure) -> None:
        self.lease = lease
        self.handler = handler
        self.consumer = handler.consumer
        self.enough = enough
        self.on_failure = on_failure

    def handle(self, claim: Claim, events: Sequence[ReceivedEvent]) -> int:
        """Handle and settle the first of these events, as many as there is time for; returns how many are passed.

        Zero are passed if the first one has to wait for its next attempt, or if they will be handled one by one.
        """
        if claim.is_careful(events[0]):
            event = events[0]
            if claim.attempts_of(event) >= self.consumer.retry.attempts:
                return self._settle_failure(claim, self._ended(claim, event))
            begun = begin(claim, event)
            if isinstance(begun, Failure):
                self.on_failure(begun)
                return self._settle_failure(claim, begun)
            events = [begun]
        with children_left_behind():  # functions given to on_commit() and receivers of signals may fork as well
            return self._together(claim, events) if self.consumer.transactional else self._before(claim, events)

    def _together(self, claim: Claim, events: Sequence[ReceivedEvent]) -> int:
        """Handle in the transaction that settles. After a failure, once more with the events before the failed one."""
        failure: Failure | None = None
        careful_until: int | None = None
        while True:
            try:
                outcome = self._handle_and_settle(claim, events, failure, careful_until)
            except HandlerFailed as failed:
                failing = events[failed.given.start : failed.given.stop]
                if not failing:
                    raise failed.error from None
                failure = careful_until = None
                if len(failing) == 1:
                    failure = replace(claim.judge(failing[0], failed.error), seconds=failed.seconds)
                    self.on_failure(failure)
                else:
                    careful_until = failing[-1].id
                    self._log_one_by_one(failing, failed.error)
                for event in events[: failed.given.stop]:
                    event.forget()
                events = events[: failed.given.start]
            else:
                claim.settled(outcome.settlement)
                self._send(outcome)
                return outcome.passed

    def _handle_and_settle(
        self, claim: Claim, events: Sequence[ReceivedEvent], failure: Failure | None, careful_until: int | None
    ) -> HandlingResult:
        """One transaction: handle these events, settle them, and after them the one that failed in the last round.

        If a batch failed there, its events are handled one by one from now on: `careful_until` is the id of its last.
        HandlerFailed says which event or batch failed now. No other error counts as an attempt.
        """
        using = self.lease.using
        outermost = not connections[using].in_atomic_block  # otherwise it is a savepoint in the caller's transaction
        # After a failure there is no time limit for the events before it: without them its attempt can't be counted.
        enough = self.enough if failure is None and careful_until is None else _never
        handled, settlement, session, seconds = 0, None, None, 0.0
        committed: list[bool] = []
        try:
            with transaction.atomic(using):
                session = connections[using].connection
                if outermost:
                    self.lease.take_lock()
                    # The first on_commit() hook, so that an error of a later one is not mistaken for a failed COMMIT.
                    transaction.on_commit(lambda: committed.append(True), using)
                if events:
                    began = time.perf_counter()
                    handled = self.handler.call(self.lease, events, enough=enough)
                    seconds = time.perf_counter() - began
                if handled < len(events):
                    failure = None  # there was no time to get to it: its attempt is repeated
                settlement = claim.settle(events[:handled], failure, careful_until=careful_until)
                if outermost and not settlement.same_transaction:
                    raise HandlerFailed(range(len(events)), ended(), seconds=seconds)
        except HandlerFailed as failed:
            if not failed.closed:
                self._raise_if_lost(session, failed.error)
            raise
        except Exception as error:
            if committed and settlement is not None:
                self._log_hook(error)
                return HandlingResult(settlement, events[:handled], seconds, failure)
            if not isinstance(error, DatabaseError | InterfaceError) or sql.kind_of(error) is sql.ErrorKind.LOST:
                raise
            self._raise_if_lost(session, error)
            if not events:
                raise
            raise HandlerFailed(range(len(events)), error, seconds=seconds) from error
        finally:
            self.lease.lock_taken = False  # the lock ended with the transaction, whichever way that ended
        return HandlingResult(settlement, events[:handled], seconds, failure)

    def _before(self, claim: Claim, events: Sequence[ReceivedEvent]) -> int:
        """Handle, then settle, after each call of the handler: a crash repeats one call at most."""
        size = self.consumer.batch_size or 1
        passed = 0
        while passed < len(events) and not (passed and self.enough()):
            chunk = events[passed : passed + size]
            session, began = connections[self.lease.using].connection, time.perf_counter()
            try:
                self.handler.call(self.lease, chunk, redriven=claim.redriven)
            except HandlerFailed as failed:
                if not failed.closed and _is_of_connection(failed.error):
                    self._raise_if_lost(session, failed.error)
                if len(failed.given) > 1:
                    return passed + self._one_by_one(claim, chunk, failed.error)
                at = failed.given.start
                failure = replace(claim.judge(chunk[at], failed.error), seconds=failed.seconds)
                self.on_failure(failure)
                return passed + self._settle_failure(claim, failure, chunk[:at])
            seconds = time.perf_counter() - began
            settlement = claim.settle_handled(chunk)
            claim.settled(settlement)
            self._send(HandlingResult(settlement, chunk, seconds))
            passed += len(chunk)
            if passed < len(events) and claim.is_careful(events[passed]):
                break
        return passed

    def _settle_failure(self, claim: Claim, failure: Failure, handled: Sequence[ReceivedEvent] = ()) -> int:
        with transaction.atomic(self.lease.using):
            settlement = claim.settle(handled, failure)
        claim.settled(settlement)
        outcome = HandlingResult(settlement, handled, failure.seconds or 0.0, failure)
        self._send(outcome)
        return outcome.passed

    def _send(self, outcome: HandlingResult) -> None:
        """Send the signals and count the metrics of what is settled now."""
        consumer, using = self.consumer, self.lease.using
        if telemetry.ATTEMPTS.observed:
            self._count(outcome)
        if outcome.handled and event_handled.receivers:
            events = list(outcome.handled)
            event_handled.send_robust(
                consumer, consumer=consumer, topic=events[0].topic, events=events, seconds=outcome.seconds, using=using
            )
        if (failure := outcome.failure) is None:
            return
        event, error = failure.event, failure.error
        if failure.verdict is Verdict.RETRY:
            event_retried.send_robust(
                consumer, consumer=consumer, event=event, error=error, pause=failure.pause, using=using
            )
        elif failure.verdict is Verdict.DEAD_LETTER:
            event_dead_lettered.send_robust(consumer, consumer=consumer, event=event, error=error, using=using)

    def _count(self, outcome: HandlingResult) -> None:
        """Count metrics, once for all events settled together. Times compare the database's clock with this host's."""
        of = self.lease.using, self.consumer.name, self.lease.subscription.topic
        if outcome.handled:
            telemetry.ATTEMPTS.tell(len(outcome.handled), *of, "handled")
            telemetry.HANDLER.tell(outcome.seconds, *of, "handled")
            waited = time.time() - outcome.handled[0].logged_at.timestamp()
            telemetry.LOG_TO_HANDLED.tell(max(waited, 0.0), *of)
        if (failure := outcome.failure) is not None:
            telemetry.ATTEMPTS.tell(1, *of, failure.verdict.outcome)
            if failure.seconds is not None:
                telemetry.HANDLER.tell(failure.seconds, *of, failure.verdict.outcome)

    def _one_by_one(self, claim: Claim, events: Sequence[ReceivedEvent], error: BaseException) -> int:
        """A batch failed, and the failing event can't be told: from now on its events are handled one by one."""
        self._log_one_by_one(events, error)
        with transaction.atomic(self.lease.using):
            settlement = claim.settle([], careful_until=events[-1].id)
        claim.settled(settlement)
        return 0

    def _log_one_by_one(self, events: Sequence[ReceivedEvent], error: BaseException) -> None:
        logger.info(
            "Consumer %s, %s: the events %d to %d are handled one by one, because together they failed. %s",
            self.lease.subscription,
            self.lease.what,
            events[0].id,
            events[-1].id,
            summary_of(error),
            extra=self.lease.fields,
        )

    def _ended(self, claim: Claim, event: ReceivedEvent) -> Failure:
        failure = no_attempt_left(claim, event)
        self.on_failure(failure)
        return failure

    def _raise_if_lost(self, session: Any, error: BaseException) -> None:
        """Raise an error of the connection if it is lost: what was committed is unknown, and the lease is useless.

        No attempt is counted. `session` is the connection that the transaction began with: Django may have made a new
        one since.
        """
        if session is None or not session.closed:
            return
        if _is_of_connection(error):
            raise error
        raise OperationalError(
            f"The connection to {self.lease.using!r} was lost while consumer {self.lease.subscription} "
            "handled an event."
        ) from error

    def _log_hook(self, error: Exception) -> None:
        logger.error(
            "Consumer %s, %s: a function that its handler gave to on_commit() raised. "
            "What was handled is settled all the same.",
            self.lease.subscription,
            self.lease.what,
            exc_info=error,
            extra=self.lease.fields,
        )


def begin(claim: Claim, event: ReceivedEvent) -> ReceivedEvent | Failure:
    """Count an attempt at an event, then read its payload if that was left out; a Failure if it can't be read."""
    event = claim.count_attempt(event)
    if not isinstance(event, UnreadEvent):
        return event
    try:
        loaded = claim.load(event)
    except DatabaseError as error:
        if sql.kind_of(error) is sql.ErrorKind.LOST:
            raise
        if sql.kind_of(error) is sql.ErrorKind.OUT_OF_MEMORY and not event.too_large:
            # The server lacks memory for an event that isn't large: the event is not to blame, so nothing is counted.
            return Failure(event, error, Verdict.RETRY, SHORT_OF_MEMORY, counts=False)
        why = unreadable(event, f"can't be read: {sql.said(error).rstrip('.')}")
        # The server may have memory for a large event the next time. What PostgreSQL can't represent stays unreadable.
        return claim.judge(event, why if sql.kind_of(error).of_data else error)
    except EventGone:
        return claim.judge(event, gone(event))
    if loaded is None:
        return claim.judge(event, unreadable(event, f"can't be read: {TOO_LONG}"))
    return loaded


def no_attempt_left(claim: Claim, event: ReceivedEvent) -> Failure:
    """What follows for an event whose attempts are used up because they ended their workers."""
    attempts = claim.attempts_of(event)
    error = WorkerEnded(
        f"No attempt is left. {attempts} are counted, and the last one never came back: its worker ended or froze."
    )
    return claim.judge(event.with_attempt(attempts), error)


def _never() -> bool:
    return False


def _is_of_connection(error: BaseException) -> bool:
    return isinstance(error, OperationalError | InterfaceError)


def log_failure(lease: Lease) -> OnFailure:
    """A function that logs a failure: consumer, partition, event, attempt, and what follows."""

    def on_failure(failure: Failure) -> None:
        decided = isinstance(failure.error, Ignore | RetryLater)  # raised on purpose: no traceback
        level = logging.INFO if decided else logging.WARNING
        if failure.verdict in (Verdict.DEAD_LETTER, Verdict.STOP):
            level = logging.ERROR
        logger.log(
            level,
            "Consumer %s, %s, event %s, attempt %d: %s. %s",
            lease.subscription,
            lease.what,
            failure.event.address,
            failure.event.attempt,
            failure.summary.rstrip("."),
            _consequence(failure),
            exc_info=None if decided else failure.error,
            extra={**lease.fields_of(failure.event), "outcome": failure.verdict.outcome},
        )

    return on_failure


def _consequence(failure: Failure) -> str:
    match failure.verdict:
        case Verdict.RETRY:
            pause: Any = failure.pause
            return f"Next attempt in {pause.total_seconds():.1f} s."
        case Verdict.DEAD_LETTER:
            return "It was the last attempt: the event is a dead letter now."
        case Verdict.STOP:
            return "It was the last attempt: the partition stops here until `manage.py events resume`."
        case _:
            return "It is ignored."
