"""Read your writes: wait until consumers have passed what was published.

    receipt = orders.publish({"id": order.pk}, type="order.placed")
    …                                    # the transaction is committed
    wait_for(receipt, "search")          # what the consumer `search` makes of it can be read now

    await await_for(receipt, "search")

A consumer has passed an event when it was handled, ignored or filtered out. One that is a dead letter is not seen.
"""

import asyncio
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import psycopg
from asgiref.sync import sync_to_async
from django.db import connections
from psycopg.pq import TransactionStatus

from django_events.declarations import DeclaredConsumer, DeclaredTopic
from django_events.declarations.limits import refuse_no_duration
from django_events.deriving.lookout import lookout_of
from django_events.deriving.passed import Wait, look, prepare
from django_events.drafts import Receipt
from django_events.exceptions import Invalid, Refused
from django_events.models.buffer import writable

Published = Receipt | DeclaredTopic | str
FIVE_SECONDS = timedelta(seconds=5)
OPEN = (TransactionStatus.INTRANS, TransactionStatus.INERROR)


def wait_for(
    published: Published | Sequence[Published],
    *consumers: DeclaredConsumer | str,
    timeout: timedelta = FIVE_SECONDS,
    using: str | None = None,
) -> None:
    """Return when these consumers have passed what was published; without consumers, when it is in the log.

    What was published is a receipt, or a topic for all that was committed to it before this call, or several of them.
    Call it after the commit, and not in a transaction: Refused says that one is open. A consumer passes only what it
    reads. NotSeen says which one hasn't passed what in time, or gave up on it, or is paused or stopped. It writes
    nothing, so repeating it waits again.
    """
    refuse_no_duration("wait_for() has timeout", timeout)
    for wait in _begun(published, consumers, using):
        finish(wait, timeout)


async def await_for(
    published: Published | Sequence[Published],
    *consumers: DeclaredConsumer | str,
    timeout: timedelta = FIVE_SECONDS,
    using: str | None = None,
) -> None:
    """`wait_for` for async code: it keeps no thread while it waits."""
    refuse_no_duration("await_for() has timeout", timeout)
    for wait in await sync_to_async(_begun)(published, consumers, using):
        await afinish(wait, timeout)


def finish(wait: Wait, timeout: timedelta) -> None:
    """Return when a wait is over; NotSeen if that takes longer."""
    if not wait.over and _left(wait, timeout):
        told = threading.Event()
        wait.tell = told.set
        lookout = lookout_of(wait.using)
        lookout.add(wait)
        try:
            told.wait(_left(wait, timeout))
        finally:
            lookout.discard(wait)
    _raise(wait)


async def afinish(wait: Wait, timeout: timedelta) -> None:
    """The same in an event loop."""
    if not wait.over and _left(wait, timeout):
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        wait.tell = lambda: _tell(loop, told)
        lookout = lookout_of(wait.using)
        lookout.add(wait)
        try:
            async with asyncio.timeout(_left(wait, timeout)):
                await told.wait()
        except TimeoutError:
            pass
        finally:
            lookout.discard(wait)
    _raise(wait)


def _begun(
    published: Published | Sequence[Published], consumers: Sequence[DeclaredConsumer | str], using: str | None
) -> list[Wait]:
    """A wait for each database, after a first look on the caller's connection."""
    what = [published] if isinstance(published, Receipt | DeclaredTopic | str) else list(published)
    if not what:
        raise Invalid("There is nothing to wait for: give receipts, or topics.")
    waits = []
    for alias, receipts, topics in _by_database(what, using):
        refuse_transaction(alias)
        wait = prepare(alias, receipts, topics, [str(one) for one in consumers])
        look(alias, [wait])
        waits.append(wait)
    return waits


def refuse_transaction(using: str) -> None:
    """Also in one that Django doesn't know of: what isn't committed looks like what was passed."""
    wrapper = connections[using]
    raw = cast("psycopg.Connection[Any] | None", wrapper.connection)
    if wrapper.in_atomic_block or (raw is not None and raw.info.transaction_status in OPEN):
        raise Refused(
            f"A transaction is open on {using!r}: what it publishes can't be seen by consumers before it is committed. "
            "Wait behind its end; where ATOMIC_REQUESTS opens one for each view, use django_events.middleware."
            "RememberWrites, or mark the view with transaction.non_atomic_requests."
        )


def _by_database(what: Sequence[Published], using: str | None) -> list[tuple[str, list[Receipt], list[str]]]:
    found: dict[str, tuple[list[Receipt], list[str]]] = {}
    for one in what:
        if isinstance(one, Receipt):
            if one.scheduled:
                raise Refused(
                    f"The event with ticket {one.ticket} of topic {one.topic!r} is scheduled: it is published when its "
                    "time has come. There is nothing to wait for before."
                )
            found.setdefault(using or writable(one.using), ([], []))[0].append(one)
        else:
            found.setdefault(writable(using), ([], []))[1].append(str(one))
    return [(alias, *both) for alias, both in found.items()]


def _left(wait: Wait, timeout: timedelta) -> float:
    return max(0.0, wait.began + timeout.total_seconds() - time.monotonic())


def _tell(loop: asyncio.AbstractEventLoop, told: asyncio.Event) -> None:
    if not loop.is_closed():  # the caller has given up, and its loop has ended
        loop.call_soon_threadsafe(told.set)


def _raise(wait: Wait) -> None:
    if wait.error is not None:
        raise wait.error
    if not wait.over and wait.is_left:
        raise wait.too_late()
