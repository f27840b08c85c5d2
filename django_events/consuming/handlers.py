"""Calling a handler: one event or a list, sync or async, and which event it failed on."""

import inspect
import time
from collections.abc import Callable, Sequence
from types import CoroutineType, GeneratorType
from typing import Any

from asgiref.sync import async_to_sync
from django.db import connections
from psycopg.pq import TransactionStatus

from django_events import declarations, telemetry
from django_events.consuming.children import leaving_async_children_behind, leaving_children_behind
from django_events.consuming.leases import Lease
from django_events.consuming.received import ReceivedEvent
from django_events.exceptions import HandlerTimeout

Enough = Callable[[], bool]


class HandlerFailed(Exception):
    """A handler raised; `place` is the failing event's among those it was given, or None if it can't be told.

    `closed` says that it closed its own connection, so nothing more can be concluded from the loss of that.
    """

    def __init__(self, place: int | None, error: BaseException, *, closed: bool = False) -> None:
        super().__init__(place, error)
        self.place = place
        self.error = error
        self.closed = closed


class BrokenTransaction(Exception):
    """The handler swallowed an error of the database, or ended the transaction, so its work can't be settled."""


class BoundHandler:
    """The handler of a consumer, loaded, and called in one way whatever it is."""

    def __init__(self, consumer: declarations.Consumer) -> None:
        self.consumer = consumer
        handler = consumer.load()
        self.invoke: Callable[[Any], Any] = leaving_children_behind(handler)
        if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None)):  # noqa: B004
            self.invoke = async_to_sync(leaving_async_children_behind(handler))

    def call(self, lease: Lease, events: Sequence[ReceivedEvent], *, enough: Enough = lambda: False) -> int:
        """Hand events over in their order; returns how many were taken. Stops early when there is `enough`."""
        if self.consumer.batch_size is not None:
            self._call_once(lease, list(events), events[0], place=0 if len(events) == 1 else None)
            return len(events)
        for place, event in enumerate(events):
            if place and enough():
                return place
            self._call_once(lease, event, event, place=place)
        return len(events)

    def _call_once(
        self, lease: Lease, argument: ReceivedEvent | list[ReceivedEvent], first: ReceivedEvent, *, place: int | None
    ) -> None:
        lease.handling_since = time.monotonic()
        lease.handling = first
        try:
            self._invoke(lease.using, argument)
        except KeyboardInterrupt:  # whoever runs the worker, not the handler
            raise
        except BaseException as error:
            _end_left_open(lease.using)
            error = self._timeout(error) if lease.timed_out is first else error
            raise HandlerFailed(place, error, closed=connections[lease.using].closed_in_transaction) from error
        finally:
            lease.handling = None
        if lease.lost:
            raise lease.lose()
        if lease.timed_out is first:
            raise HandlerFailed(place, self._timeout(None))
        if swallowed := broken(lease.using):
            raise HandlerFailed(place, swallowed, closed=connections[lease.using].closed_in_transaction)

    def _invoke(self, using: str, argument: ReceivedEvent | list[ReceivedEvent]) -> None:
        if telemetry.tracing is None:
            if (result := self.invoke(argument)) is not None:
                _refuse_unfinished(result)
            return
        events = argument if isinstance(argument, list) else [argument]
        with telemetry.handling(using, self.consumer.name, events):
            if (result := self.invoke(argument)) is not None:
                _refuse_unfinished(result)

    def _timeout(self, error: BaseException | None) -> HandlerTimeout:
        timeout = HandlerTimeout(f"It took longer than {self.consumer.timeout}.")
        timeout.__cause__ = error
        return timeout


def _refuse_unfinished(result: object) -> None:
    """Its event would be passed, and nothing was done: as with a decorator that hides that a handler is async."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if isinstance(result, CoroutineType | GeneratorType):
            result.close()  # Python would warn that nobody awaited it
        raise TypeError(
            f"The handler returned {result!r} and has done nothing yet. A handler is a plain function or an async one, "
            "and decorators must show which: an async one wrapped in a plain function has to be awaited there."
        )


def broken(using: str) -> BrokenTransaction | None:
    """Find out that a handler came back from a transaction that can only be rolled back."""
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
    """Roll a transaction back that a handler began and didn't end: what comes after it would never be committed."""
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
    """What is wrong with a handler after which another transaction is open than before."""
    return BrokenTransaction(
        "The handler ended the transaction that it runs in, and with it the work that was to be settled there. Leave "
        "COMMIT and ROLLBACK to the worker, and use transaction.atomic()."
    )
