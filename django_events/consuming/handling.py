"""Claim, handle, settle: the one protocol by which consumers work. This is its middle and its end.

A transactional handler runs inside the transaction that settles, so what it writes and the progress
are committed together or not at all. Other handlers run before it. When an event fails, what
was done in its transaction is undone, the events before it are handled again, and its attempt is
counted, all in one settling transaction.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

from django.db import DatabaseError, InterfaceError, OperationalError, connections, transaction

from django_events import sql, telemetry
from django_events.consuming.children import children_left_behind
from django_events.consuming.failures import Failure, Verdict, summary_of
from django_events.consuming.handlers import BoundHandler, Enough, HandlerFailed, ended
from django_events.consuming.leases import Lease
from django_events.consuming.reading import TOO_LONG, EventGone
from django_events.consuming.received import ReceivedEvent, UnreadEvent, gone, unreadable
from django_events.exceptions import WorkerEnded
from django_events.retries import Ignore, RetryLater
from django_events.signals import event_dead_lettered, event_handled, event_retried

logger = logging.getLogger("django_events.consumer")

SHORT_OF_MEMORY = timedelta(seconds=5)  # the server: until it is asked for the event again

OnFailure = Callable[[Failure], None]


class Settlement(Protocol):
    """What a settling transaction wrote; `held` says that it is the one that began with `Lease.hold`."""

    @property
    def held(self) -> bool: ...


class Claim(Protocol):
    """What is handled and settled: a leased partition of a stream, a dead letter in it, or deliveries of a queue."""

    def is_careful(self, event: ReceivedEvent) -> bool: ...

    def attempts_of(self, event: ReceivedEvent) -> int: ...

    def count_attempt(self, event: ReceivedEvent) -> ReceivedEvent: ...

    def load(self, event: ReceivedEvent) -> ReceivedEvent | None: ...

    def settle(
        self, handled: Sequence[ReceivedEvent], failure: Failure | None = None, *, careful_until: int | None = None
    ) -> Settlement: ...

    def settled(self, settlement: Any) -> None: ...

    def judge(self, event: ReceivedEvent, error: BaseException) -> Failure: ...


@dataclass(frozen=True)
class HandlingResult:
    """What a settling transaction settled: events that were handled, and behind them one that failed."""

    settlement: Settlement
    handled: Sequence[ReceivedEvent] = ()
    seconds: float = 0.0
    failure: Failure | None = None

    @property
    def passed(self) -> int:
        return len(self.handled) + int(self.failure is not None and self.failure.passes)


class Handling:
    """One worker's way through the events of one lease."""

    def __init__(self, lease: Lease, handler: BoundHandler, *, enough: Enough, on_failure: OnFailure) -> None:
        self.lease = lease
        self.handler = handler
        self.consumer = handler.consumer
        self.enough = enough
        self.on_failure = on_failure

    def handle(self, claim: Claim, events: Sequence[ReceivedEvent]) -> int:
        """Handle and settle the first of these events, as many as fit; returns how many are passed.

        None is passed when the first has to wait, or when they are to be handled one by one from now on.
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
        with children_left_behind():  # of functions that it gave to on_commit(), and of receivers of signals
            return self._together(claim, events) if self.consumer.transactional else self._before(claim, events)

    def _together(self, claim: Claim, events: Sequence[ReceivedEvent]) -> int:
        """Handle in the transaction that settles. Each round has fewer events than the one before."""
        given, failure = events, None
        while True:
            try:
                outcome = self._handle_and_settle(claim, events, failure)
            except HandlerFailed as failed:
                if failed.place is None:
                    return self._one_by_one(claim, given, failed.error)
                failure = claim.judge(events[failed.place], failed.error)
                self.on_failure(failure)
                for event in events[: failed.place + 1]:
                    event.forget()
                events = events[: failed.place]
            else:
                claim.settled(outcome.settlement)
                self._tell(outcome)
                return outcome.passed

    def _handle_and_settle(
        self, claim: Claim, events: Sequence[ReceivedEvent], failure: Failure | None
    ) -> HandlingResult:
        """One such transaction: these events, and behind them the one that failed before.

        HandlerFailed tells on which event it failed now, if one can know. Any other error is nobody's attempt.
        """
        using = self.lease.using
        outermost = not connections[using].in_atomic_block  # otherwise the caller's transaction goes on after it
        # Those before a failed event are handled again without a limit: its attempt is to be counted.
        enough = self.enough if failure is None else _never
        handled, settlement, session, seconds = 0, None, None, 0.0
        committed: list[bool] = []
        try:
            with transaction.atomic(using):
                session = connections[using].connection
                if outermost:
                    self.lease.take_lock()
                    # The first hook of all, so that an error of a later one is not mistaken for a failed commit.
                    transaction.on_commit(lambda: committed.append(True), using)
                if events:
                    began = time.perf_counter()
                    handled = self.handler.call(self.lease, events, enough=enough)
                    seconds = time.perf_counter() - began
                if handled < len(events):
                    failure = None  # it comes again in its turn
                settlement = claim.settle(events[:handled], failure)
                if outermost and not settlement.held:
                    raise HandlerFailed(_only(events), ended())
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
            raise HandlerFailed(_only(events), error) from error
        return HandlingResult(settlement, events[:handled], seconds, failure)

    def _before(self, claim: Claim, events: Sequence[ReceivedEvent]) -> int:
        """Handle, then settle: each call by itself, so that a crash repeats one call at most."""
        size = len(events) if self.consumer.batch_size is not None else 1
        passed = 0
        while passed < len(events) and not (passed and self.enough()):
            chunk = events[passed : passed + size]
            session, began = connections[self.lease.using].connection, time.perf_counter()
            try:
                self.handler.call(self.lease, chunk)
            except HandlerFailed as failed:
                if not failed.closed and _is_of_connection(failed.error):
                    self._raise_if_lost(session, failed.error)
                if failed.place is None:
                    return passed + self._one_by_one(claim, chunk, failed.error)
                failure = claim.judge(chunk[failed.place], failed.error)
                self.on_failure(failure)
                return passed + self._settle_failure(claim, failure)
            with transaction.atomic(self.lease.using):
                settlement = claim.settle(chunk)
            claim.settled(settlement)
            self._tell(HandlingResult(settlement, chunk, time.perf_counter() - began))
            passed += len(chunk)
            if passed < len(events) and claim.is_careful(events[passed]):
                break
        return passed

    def _settle_failure(self, claim: Claim, failure: Failure) -> int:
        with transaction.atomic(self.lease.using):
            settlement = claim.settle([], failure)
        claim.settled(settlement)
        self._tell(HandlingResult(settlement, failure=failure))
        return int(failure.passes)

    def _tell(self, outcome: HandlingResult) -> None:
        """What is settled now, to whoever receives our signals or observes."""
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
        """Once for all that was settled together. Times compare the database's clock with the one here."""
        of = self.lease.using, self.consumer.name, self.lease.subscription.topic
        if outcome.handled:
            telemetry.ATTEMPTS.tell(len(outcome.handled), *of, "handled")
            telemetry.HANDLER.tell(outcome.seconds, *of)
            waited = time.time() - outcome.handled[0].logged_at.timestamp()
            telemetry.LOG_TO_HANDLED.tell(max(waited, 0.0), *of)
        if outcome.failure is not None:
            telemetry.ATTEMPTS.tell(1, *of, outcome.failure.verdict.outcome)

    def _one_by_one(self, claim: Claim, events: Sequence[ReceivedEvent], error: BaseException) -> int:
        """A batch failed, and nobody knows on which event: handle each by itself up to its end."""
        logger.info(
            "Consumer %s, %s: the events %d to %d are handled one by one, because together they failed. %s",
            self.lease.subscription,
            self.lease.what,
            events[0].id,
            events[-1].id,
            summary_of(error),
        )
        with transaction.atomic(self.lease.using):
            settlement = claim.settle([], careful_until=events[-1].id)
        claim.settled(settlement)
        return 0

    def _ended(self, claim: Claim, event: ReceivedEvent) -> Failure:
        failure = no_attempt_left(claim, event)
        self.on_failure(failure)
        return failure

    def _raise_if_lost(self, session: Any, error: BaseException) -> None:
        """With the loss of the connection, nobody knows what was committed: the lease is of no use any more.

        It is nobody's attempt either. Django connects anew when a transaction ends, so it is the session of the
        transaction that is asked.
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
        )


def begin(claim: Claim, event: ReceivedEvent) -> ReceivedEvent | Failure:
    """Count an attempt at an event, and then read its payload if that was left out; its failure if it can't be read."""
    event = claim.count_attempt(event)
    if not isinstance(event, UnreadEvent):
        return event
    try:
        loaded = claim.load(event)
    except DatabaseError as error:
        if sql.kind_of(error) is sql.ErrorKind.LOST:
            raise
        if sql.kind_of(error) is sql.ErrorKind.OUT_OF_MEMORY and not event.too_large:
            # The server has no memory for what isn't large: that is not the event's attempt.
            return Failure(event.with_attempt(event.attempt - 1), error, Verdict.RETRY, SHORT_OF_MEMORY)
        why = unreadable(event, f"can't be read: {sql.said(error).rstrip('.')}")
        # A large event may find the memory the next time; what is too large for PostgreSQL stays so.
        return claim.judge(event, why if sql.kind_of(error).of_data else error)
    except EventGone:
        return claim.judge(event, gone(event))
    if loaded is None:
        return claim.judge(event, unreadable(event, f"can't be read: {TOO_LONG}"))
    return loaded


def no_attempt_left(claim: Claim, event: ReceivedEvent) -> Failure:
    """What follows for an event that is not attempted any more, because its attempts ended their workers."""
    attempts = claim.attempts_of(event)
    error = WorkerEnded(
        f"No attempt is left. {attempts} are counted, and the last one never came back: its worker ended or froze."
    )
    return claim.judge(event.with_attempt(attempts), error)


def _never() -> bool:
    return False


def _only(events: Sequence[ReceivedEvent]) -> int | None:
    """The place of the event that it was, if there is no other."""
    return 0 if len(events) == 1 else None


def _is_of_connection(error: BaseException) -> bool:
    return isinstance(error, OperationalError | InterfaceError)


def log_failure(lease: Lease) -> OnFailure:
    """Say in the log which consumer, partition, event and attempt it was, and what follows."""

    def on_failure(failure: Failure) -> None:
        decided = isinstance(failure.error, Ignore | RetryLater)  # the handler knew what it did
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
