"""Calling a handler: one event or a list, sync or async, and which event it failed on."""

import inspect
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from types import CoroutineType, GeneratorType
from typing import Any, NamedTuple, Protocol, cast

from asgiref.sync import async_to_sync
from django.db import DatabaseError, connections
from psycopg.pq import TransactionStatus

from django_events import declarations, sql, telemetry
from django_events.consuming import children
from django_events.consuming.leases import Lease
from django_events.consuming.subscriptions import Subscription
from django_events.exceptions import HandlerTimeout
from django_events.publishing.context import enter_cause, leave_cause
from django_events.received import ReceivedEvent

Enough = Callable[[], bool]


class HandlerFailed(Exception):
    """A handler raised; `given` says which of the events it had in that call: one of them failed.

    `closed` says that the handler closed its own connection, so the loss of the connection proves nothing more.
    `seconds` is how long the call took.
    """

    def __init__(self, given: range, error: BaseException, *, closed: bool = False, seconds: float) -> None:
        super().__init__(given, error)
        self.given = given
        self.error = error
        self.closed = closed
        self.seconds = seconds


class FailedAt(Exception):
    """A handler of this package was through with the events before `index`, and failed on that one with `error`."""

    def __init__(self, index: int, error: Exception) -> None:
        super().__init__(index, error)
        self.index = index
        self.error = error


class BrokenTransaction(Exception):
    """The handler swallowed an error of the database, or ended the transaction, so its work can't be settled."""


class FoldedRange(NamedTuple):
    """How many events of a range were for the consumer, and when the first of them was logged."""

    matching: int
    first_at: datetime | None


class RangeFold(Protocol):
    """What a roll-up has instead of a handler: it folds ranges of ids, in the transaction that settles them."""

    def fold(self, of: Subscription, match: sql.Statement, after: int, upper: int, *, nested: bool) -> FoldedRange:
        """Fold the events behind an id, up to another one, that a filter matches.

        EventsMissing where one is not in the log and nothing says why. `nested` is in a transaction of a caller's.
        """

    def leave_out(self, of: Subscription, event_id: int, error: DatabaseError) -> None:
        """Count one event that can't be folded."""


class BoundHandler:
    """The handler of a consumer, imported, and called in the same way whether it is sync, async or takes batches."""

    def __init__(self, consumer: declarations.DeclaredConsumer) -> None:
        self.consumer = consumer
        self.invoke: Callable[[Any], Any] = consumer.load()
        # What folds ranges of ids in the database, instead of a function that gets events.
        self.folding: RangeFold | None = (
            cast("RangeFold", self.invoke) if isinstance(consumer, declarations.DeclaredRollUp) else None
        )
        # A relay sends a dead letter in another way than an event of the log: the target has later ones already.
        self.invoke_redriven: Callable[[Any], Any] = getattr(self.invoke, "redriven", self.invoke)
        if inspect.iscoroutinefunction(self.invoke) or inspect.iscoroutinefunction(
            getattr(self.invoke, "__call__", None)  # noqa: B004
        ):
            self.invoke = self.invoke_redriven = async_to_sync(children.leaving_async_children_behind(self.invoke))

    def close(self) -> None:
        """Close what the handler of a relay has open; repeating it does nothing."""
        if self.consumer.is_relay:
            cast("Any", self.invoke).close()

    def call(
        self,
        lease: Lease,
        events: Sequence[ReceivedEvent],
        *,
        enough: Enough = lambda: False,
        redriven: bool = False,
    ) -> int:
        """Call the handler with these events in their order; returns how many it has handled.

        It is called with one event, or a batch, until there is `enough`, but at least once. HandlerFailed says on which
        of them the handler failed, LeaseLost that the lease was lost while the handler was running.
        """
        size = self.consumer.batch_size
        for start in range(0, len(events), size or 1):
            if start and enough():
                return start
            batch = events[start : start + (size or 1)]
            given = range(start, start + len(batch))
            self._call(lease, batch[0] if size is None else list(batch), given, redriven)
        return len(events)

    def _call(
        self, lease: Lease, argument: ReceivedEvent | list[ReceivedEvent], given: range, redriven: bool = False
    ) -> None:
        first = argument[0] if isinstance(argument, list) else argument
        # Which event of several makes a handler publish, only the handler knows.
        cause = enter_cause(first) if first is argument or len(given) == 1 else None
        lease.handling_since = time.monotonic()
        lease.handling = first
        forks = children.forks
        try:
            events = argument if isinstance(argument, list) else [argument]
            with telemetry.handling(lease.using, self.consumer.name, events):
                try:
                    invoke = self._invoked(lease, redriven=redriven)
                    if (result := invoke(argument)) is not None:
                        _refuse_unfinished(result)
                finally:
                    children.end_if_child(forks)
        except KeyboardInterrupt:  # meant for the worker, not raised by the handler
            raise
        except FailedAt as failed:
            error, given = failed.error, given[failed.index : failed.index + 1]
            raise HandlerFailed(given, error, seconds=_since(lease)) from error
        except BaseException as error:
            _end_left_open(lease.using)
            error = self._timeout(error) if lease.timed_out is first else error
            closed = connections[lease.using].closed_in_transaction
            raise HandlerFailed(given, error, closed=closed, seconds=_since(lease)) from error
        finally:
            if cause is not None:
                leave_cause(cause)
            lease.handling = None
        if lease.lost:
            raise lease.lose()
        if lease.timed_out is first:
            raise HandlerFailed(given, self._timeout(None), seconds=_since(lease))
        if swallowed := broken(lease.using):
            closed = connections[lease.using].closed_in_transaction
            raise HandlerFailed(given, swallowed, closed=closed, seconds=_since(lease))

    def _invoked(self, lease: Lease, *, redriven: bool) -> Callable[[Any], Any]:
        """What gets the events. A relay also gets what reads on while it sends; dead letters are sent by themselves."""
        if redriven:
            return self.invoke_redriven
        return partial(cast("Any", self.invoke), meanwhile=lease.reading_on) if self.consumer.is_relay else self.invoke

    def _timeout(self, error: BaseException | None) -> HandlerTimeout:
        timeout = HandlerTimeout(f"It took longer than {self.consumer.timeout}.")
        timeout.__cause__ = error
        return timeout


def _since(lease: Lease) -> float:
    return time.monotonic() - lease.handling_since


def _refuse_unfinished(result: object) -> None:
    """TypeError for a handler that returned a coroutine or generator, as under a decorator that hides an async one.

    Nothing has run yet, and the event would be settled as handled.
    """
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if isinstance(result, CoroutineType | GeneratorType):
            result.close()  # or Python warns that it was never awaited
        raise TypeError(
            f"The handler returned {result!r} and has done nothing yet. A handler is a plain function or an async one, "
            "and decorators must show which: an async one wrapped in a plain function has to be awaited there."
        )


def broken(using: str) -> BrokenTransaction | None:
    """What is wrong if a handler returned with a transaction that can only be rolled back; None if nothing is."""
    connection = connections[using]
    if not connection.in_atomic_block:
        return _end_left_open(using)
    if connection.closed_in_transaction:
        return BrokenTransaction("The handler closed its connection, and with it the transaction that it runs in.")
    raw = connection.connection
    in_error = raw is not None and raw.info.transaction_status == TransactionStatus.INERROR
    if connection.needs_rollback or in_error:
        return BrokenTransaction(
            "The handler caught an error of the database outside of an atomic() block of its own, so its transaction "
            "can only be rolled back. Wrap what may fail in transaction.atomic()."
        )
    return None


def _end_left_open(using: str) -> BrokenTransaction | None:
    """Roll back a transaction that a handler left open: what the worker does next would never be committed."""
    connection = connections[using]
    raw = connection.connection
    if connection.in_atomic_block or raw is None or raw.closed:
        return None
    if connection.get_autocommit() and raw.info.transaction_status == TransactionStatus.IDLE:
        return None
    raw.rollback()
    connection.set_autocommit(True)
    return BrokenTransaction(
        "The handler began a transaction on its consumer's database and left it open, so it was rolled back. "
        "Use transaction.atomic()."
    )


def ended() -> BrokenTransaction:
    """The error of a handler that ended the settling transaction, so that another one is open now."""
    return BrokenTransaction(
        "The handler ended the transaction that it runs in, and with it the work that was to be settled there. Leave "
        "COMMIT and ROLLBACK to the worker, and use transaction.atomic()."
    )
