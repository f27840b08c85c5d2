"""Listeners: events as they come into the log, for code that is no consumer.

    with listen(orders, types=["order.*"]) as listener:
        for event in listener:
            ...

    async for event in listen([orders, payments], since="orders/1042,payments/7"):
        ...

A listener has no row and no claim on retention, and what it gets is neither retried nor remembered.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Literal, Self

from django_events import telemetry
from django_events.declarations import DeclaredTopic
from django_events.declarations.limits import texts
from django_events.exceptions import Invalid, Refused
from django_events.live import positions, tailing
from django_events.live.feeds import Feed, Gone
from django_events.live.reading import LiveFilter
from django_events.models import Event
from django_events.received import ReceivedEvent

Topics = DeclaredTopic | str | Sequence[DeclaredTopic | str]


def listen(
    topics: Topics,
    *,
    since: str | None = None,
    types: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    where: str | None = None,
    expired: Literal["raise", "skip"] = "raise",
    using: str | None = None,
) -> "LiveListener":
    """Listen to what comes into the logs of topics, by `for` or by `async for`, each topic in the order of its ids.

    `since` is a position, the last event that was seen: `orders/1042`, or one for each topic with commas between;
    'beginning' is all that is in the logs. A topic without a position begins where its log ends when the listener is
    opened: by `with`, `async with`, or the first step of the iteration. It reads, and nothing else.
    """
    names = [str(one) for one in ([topics] if isinstance(topics, DeclaredTopic | str) else topics)]
    if not names or len(set(names)) != len(names):
        raise Invalid(f"topics is {names!r}, expected one topic or several different ones.")
    if expired not in ("raise", "skip"):
        raise Invalid(f"expired is {expired!r}, expected 'raise' or 'skip'.")
    begins: dict[str, int] | Literal["beginning"] = {}
    if since == "beginning":
        begins = "beginning"
    elif since is not None:
        begins = positions.read(since)
        if unknown := begins.keys() - set(names):
            raise Invalid(f"since names topic {min(unknown)!r}, which is not listened to: {', '.join(names)}.")
    wanted = LiveFilter(texts(types), texts(keys), where)
    wanted.refuse_wrong()
    return LiveListener(using or Event.objects.db, names, begins, wanted, skips_expired=expired == "skip")


class LiveListener(Feed):
    """What `listen` gives: an iterator, plain and async, of one reader. It is made by `listen` only.

    `take` and `atake` give one event, and may be called again after an EventExpired: they go on behind it.
    """

    def __init__(
        self,
        using: str,
        names: Sequence[str],
        begins: dict[str, int] | Literal["beginning"],
        wanted: LiveFilter,
        *,
        skips_expired: bool,
    ) -> None:
        super().__init__(using, names, begins, wanted, skips_expired=skips_expired)
        self._process = os.getpid()
        self._entered = False

    def take(self, timeout: float | None = None) -> ReceivedEvent | None:
        """The next event; None after so many seconds without one, or when the listener is closed."""
        self._begin()
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            self._told.clear()
            if (event := self._next()) is not None:
                return event
            left = None if deadline is None else deadline - time.monotonic()
            if self.closed or (left is not None and left <= 0):
                return None
            self._told.wait(left)

    async def atake(self, timeout: float | None = None) -> ReceivedEvent | None:
        """The same in an event loop: it keeps no thread while it waits."""
        self._begin()
        told = self._told_in_loop()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while True:
                    told.clear()
                    if (event := self._next()) is not None:
                        return event
                    if self.closed:
                        return None
                    await told.wait()
        return None

    def close(self) -> None:
        """End it. Without listeners its tailer ends, too. Repeating it does nothing."""
        self.cancel()
        self.wait_for_tailer()

    async def aclose(self) -> None:
        """The same in an event loop: the tailer's threads end soon afterwards."""
        self.cancel()

    def cancel(self) -> None:
        """End it from any thread, without waiting for anything."""
        if self._end(discard=True):
            tailing.leave(self)

    def __iter__(self) -> Iterator[ReceivedEvent]:
        try:
            while (event := self.take()) is not None:
                yield event
        finally:
            if not self._entered:
                self.close()

    async def __aiter__(self) -> AsyncIterator[ReceivedEvent]:
        try:
            while (event := await self.atake()) is not None:
                yield event
        finally:
            if not self._entered:
                self.cancel()

    def __enter__(self) -> Self:
        self._entered = True
        try:
            self._begin()
            while not self._is_open():
                self._told.clear()
                if not self._is_open():
                    self._told.wait()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        self._entered = True
        try:
            self._begin()
            told = self._told_in_loop()
            while not self._is_open():
                told.clear()
                if not self._is_open():
                    await told.wait()
        except BaseException:
            self.cancel()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.cancel()

    def _begin(self) -> None:
        if self._process != os.getpid():
            raise Refused("The listener was made in another process: its threads aren't in this one. Listen anew.")
        if self._opens():
            tailing.join(self)

    def _next(self) -> ReceivedEvent | None:
        one, asks = self._take_next()
        if asks:
            tailing.read_for(self)
        if isinstance(one, Gone):
            raise one.error
        if isinstance(one, Exception):
            raise one
        if one is None:
            return None
        if telemetry.LISTENER_EVENTS.observed:
            telemetry.LISTENER_EVENTS.tell(1, self.using, one.topic)
        return one.with_attempt(1)  # what one listener does to a value, no other one sees
