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
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Literal, NamedTuple, Self

from django_events import telemetry
from django_events.declarations import DeclaredTopic
from django_events.declarations.limits import texts
from django_events.exceptions import EventExpired, Invalid, Refused
from django_events.live import positions, tailing
from django_events.live.followers import Followers
from django_events.live.reading import LiveFilter, Tailed
from django_events.live.tailing import Stage
from django_events.models import Event
from django_events.received import ReceivedEvent

MOST_EVENTS = 500  # that wait for a listener; one for which more would wait reads by itself
MOST_BYTES = 4_194_304  # of their payloads together; a single event may be larger

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


class Gone(NamedTuple):
    """What is told of events that are gone: of which topic, and the last of them."""

    topic: str
    id: int
    error: EventExpired


class LiveListener:
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
        self.using = using
        self.names = names
        self.begins = begins
        self.wanted = wanted
        self.stage = Stage.NEW
        self.topics: dict[int, Tailed] = {}
        self._skips_expired = skips_expired
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._waiting: deque[ReceivedEvent | Gone | Exception] = deque()
        self._bytes = 0
        self._fed: dict[int, int] = {}  # by topic: up to which id the events are in `_waiting`, or don't fit
        self._following: dict[int, Followers] = {}  # by topic: whose position counts where it is further than `_fed`
        self._passed: dict[str, int] = {}  # by name: the last event that was taken
        self._ids: dict[str, int] = {}
        self._asked = False  # whether it waits to be read for
        self.left: tailing.Tailer | None = None  # that ended with this one
        self.failures = 0  # of reading for it, one after the other
        self._told = threading.Event()
        self._told_loop: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None
        self._entered = False

    # For those who listen

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

    @property
    def position(self) -> str:
        """Where to go on behind what was taken, for `since`: also events that don't fit are passed by it."""
        with self._lock:
            return positions.written({topic.name: self._position_in(topic) for topic in self.topics.values()})

    def _position_in(self, topic: Tailed) -> int:
        """The last event of a topic that was taken, or up to which none fits; what waits is still to be told."""
        for one in self._waiting:
            if isinstance(one, Exception) or one.topic == topic.name:
                return self._passed[topic.name]
        return self._seen(topic)

    @property
    def closed(self) -> bool:
        """Whether nothing more comes."""
        return self.stage is Stage.ENDED and not self._waiting

    def close(self) -> None:
        """End it. Without listeners its tailer ends, too. Repeating it does nothing."""
        self.cancel()
        if self.left is not None:
            self.left.join()

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
        with self._lock:
            if self.stage is not Stage.NEW:
                return
            self.stage = Stage.OPENING
            self._asked = True
        tailing.join(self)

    def _is_open(self) -> bool:
        """Raise what opening it raised."""
        with self._lock:
            if self.stage is Stage.ENDED and self._waiting and isinstance(self._waiting[0], Exception):
                raise self._waiting.popleft()  # type: ignore[misc]  # an exception
            return self.stage is not Stage.OPENING

    def _told_in_loop(self) -> asyncio.Event:
        loop = asyncio.get_running_loop()
        if self._told_loop is None or self._told_loop[0] is not loop:
            self._told_loop = loop, asyncio.Event()
        return self._told_loop[1]

    def _next(self) -> ReceivedEvent | None:
        with self._lock:
            one = self._waiting.popleft() if self._waiting else None
            if isinstance(one, ReceivedEvent | Gone):
                self._passed[one.topic] = one.id
            if isinstance(one, ReceivedEvent):
                self._bytes -= size(one)
            asks = self.stage is Stage.BEHIND and not self._asked and self._has_room()
            self._asked = self._asked or asks
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

    # For the tailer

    def opened(self, topics: Sequence[Tailed], begins: Sequence[int]) -> None:
        """These are its topics, and up to these ids it has seen them."""
        with self._lock:
            if self.stage is Stage.OPENING:
                self.topics = {topic.id: topic for topic in topics}
                self._fed = {topic.id: begin for topic, begin in zip(topics, begins, strict=True)}
                self._passed = {topic.name: begin for topic, begin in zip(topics, begins, strict=True)}
                self.stage = Stage.BEHIND
        self._tell()

    def fed(self, topic: Tailed) -> int:
        """Behind which id to read for it, unless it follows the tailer."""
        return self._fed[topic.id]

    def follow(self, followers: Followers) -> None:
        """It has seen all that the followers of a topic have: from now on their position is its own."""
        with self._lock:
            if self.stage is Stage.TAILED:
                self._following[followers.topic.id] = followers

    def offer(self, topic: Tailed, events: Sequence[ReceivedEvent], upto: int) -> bool:
        """Take what the tailer has read, as far as there is room; a listener without room is behind from then on.

        Returns whether the tailer still reads for it.
        """
        with self._lock:
            if self.stage is not Stage.TAILED:
                return False
            before = len(self._waiting)
            if not self._add(topic, events, upto):
                self._be_behind()
            heard, is_tailed = len(self._waiting) > before, self.stage is Stage.TAILED
        if heard:
            self._tell()
        return is_tailed

    def fill(self, topic: Tailed, events: Sequence[ReceivedEvent], upto: int) -> bool:
        """Take what was read for it alone; returns whether there was room."""
        with self._lock:
            has_room = self.stage is Stage.BEHIND and self._add(topic, events, upto)
        self._tell()
        return has_room

    def say_expired(self, topic: Tailed, error: EventExpired, upto: int) -> None:
        """What comes next is gone: go on behind it."""
        telemetry.LISTENERS_EXPIRED.tell(1, self.using, topic.name)
        with self._lock:
            if self.stage is Stage.BEHIND:
                self._fed[topic.id] = upto
                if not self._skips_expired:
                    self._waiting.append(Gone(topic.name, upto, error))
        self._tell()

    def attach(self) -> bool:
        """From now on the tailer reads for it."""
        with self._lock:
            self._asked = False
            if self.stage is Stage.BEHIND:
                self.stage = Stage.TAILED
            return self.stage is Stage.TAILED

    def fall_behind(self) -> None:
        """Something is not as it is nearly always: let it be read for by itself, which says what that is."""
        with self._lock:
            asks = self.stage is Stage.TAILED
            if asks:
                self._be_behind()
                self._asked = True
        if asks:
            tailing.read_for(self)

    def rest(self) -> bool:
        """It was read for, and is still behind. Returns whether it has room; if not, it asks when it has."""
        with self._lock:
            self._asked = self.stage is Stage.BEHIND and self._has_room()
            return self._asked

    def fail(self, error: Exception) -> None:
        """Nothing more comes behind what waits, but this error."""
        tailing.leave(self)  # first: the one that is told closes it, and waits for its tailer
        with self._lock:
            if self.stage is not Stage.ENDED:
                self._waiting.append(error)
        self._end(discard=False)

    def _seen(self, topic: Tailed) -> int:
        """Up to which id of a topic the events are in `_waiting`, or don't fit."""
        followers = self._following.get(topic.id)
        return self._fed[topic.id] if followers is None else max(self._fed[topic.id], followers.position)

    def _be_behind(self) -> None:
        """The tailer reads for it no more, so its positions don't move on with the tailer's."""
        telemetry.LISTENERS_BEHIND.tell(1, self.using)
        self._keep({topic.id: self._seen(topic) for topic in self.topics.values()})
        self.stage = Stage.BEHIND

    def _keep(self, fed: dict[int, int]) -> None:
        self._fed = fed
        self._following = {}

    def _add(self, topic: Tailed, events: Sequence[ReceivedEvent], upto: int) -> bool:
        seen = self._seen(topic)
        for event in events:
            if event.id <= seen:
                continue
            bytes_of = size(event)
            if self._waiting and (len(self._waiting) >= MOST_EVENTS or self._bytes + bytes_of > MOST_BYTES):
                return False
            self._waiting.append(event)
            self._bytes += bytes_of
            self._fed[topic.id] = event.id
        self._fed[topic.id] = max(seen, upto)
        return True

    def _has_room(self) -> bool:
        return len(self._waiting) <= MOST_EVENTS // 2 and self._bytes <= MOST_BYTES // 2

    def _end(self, *, discard: bool) -> bool:
        with self._lock:
            if discard:  # what waits was not taken, so the position stays before it
                self._keep({topic.id: self._position_in(topic) for topic in self.topics.values()})
                self._waiting.clear()
                self._bytes = 0
            else:
                self._keep({topic.id: self._seen(topic) for topic in self.topics.values()})
            was, self.stage = self.stage, Stage.ENDED
        self._tell()
        return was not in (Stage.NEW, Stage.ENDED)

    def _tell(self) -> None:
        self._told.set()
        if self._told_loop is not None:
            loop, told = self._told_loop
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(told.set)


def size(event: ReceivedEvent) -> int:
    """The bytes of what it carries, about."""
    return sum(len(one) for one in event.columns[5:8] if isinstance(one, str | bytes | memoryview))
