"""What a tailer fills for one listener, and up to which position.

    feed.offer(topic, events, upto=1042)   # by the tailer, which reads for all at once
    feed.fill(topic, events, upto=1042)    # by the one that reads for this feed alone
    feed.position                          # for the program that listens: up to where it has taken

A feed holds so many events and no more. What it has no room for is read for it later, behind what it has. Threads of
the tailer fill it, and a thread or an event loop of the program takes from it; one lock is for both.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from typing import Literal, NamedTuple, Protocol

from django_events import telemetry
from django_events.exceptions import EventExpired
from django_events.live import positions
from django_events.live.reading import LiveFilter, Tailed
from django_events.received import ReceivedEvent

MOST_EVENTS = 500  # that wait in a feed; one for which more would wait is read for by itself
MOST_BYTES = 4_194_304  # of their payloads together; a single event may be larger


class Stage(Enum):
    """Who reads for a listener."""

    NEW = "not opened"
    OPENING = "its positions are looked up"
    BEHIND = "it is read for by itself"
    TAILED = "the tailer reads for it and all others"
    ENDED = "nothing more comes"


class Gone(NamedTuple):
    """What is told of events that are gone: of which topic, and the last of them."""

    topic: str
    id: int
    error: EventExpired


class Front(Protocol):
    """What has a position that moves on, for all feeds that follow it."""

    @property
    def position(self) -> int: ...


class Feed:
    """The events that wait for one listener, and what of its topics it has seen."""

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
        self.failures = 0  # of reading for it, one after the other
        self.wait_for_tailer: Callable[[], object] = lambda: None  # for that which ends with this feed
        self._skips_expired = skips_expired
        self._lock = threading.Lock()
        self._waiting: deque[ReceivedEvent | Gone | Exception] = deque()
        self._bytes = 0
        self._fed: dict[int, int] = {}  # by topic: up to which id the events are in `_waiting`, or don't fit
        self._following: dict[int, Front] = {}  # by topic: whose position counts where it is further than `_fed`
        self._passed: dict[str, int] = {}  # by name: the last event that was taken
        self._asked = False  # whether it waits to be read for
        self._told = threading.Event()
        self._told_loop: tuple[asyncio.AbstractEventLoop, asyncio.Event] | None = None

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

    def follow(self, topic: Tailed, front: Front) -> None:
        """It has seen all that the others of a topic have: from now on their position is its own."""
        with self._lock:
            if self.stage is Stage.TAILED:
                self._following[topic.id] = front

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

    def fall_behind(self) -> bool:
        """Something is not as it is nearly always. Returns whether it is to be read for by itself from now on."""
        with self._lock:
            asks = self.stage is Stage.TAILED
            if asks:
                self._be_behind()
                self._asked = True
        return asks

    def rest(self) -> bool:
        """It was read for, and is still behind. Returns whether it has room; if not, it asks when it has."""
        with self._lock:
            self._asked = self.stage is Stage.BEHIND and self._has_room()
            return self._asked

    def fail(self, error: Exception) -> None:
        """Nothing more comes behind what waits, but this error."""
        with self._lock:
            if self.stage is not Stage.ENDED:
                self._waiting.append(error)
        self._end(discard=False)

    # For the program that listens

    @property
    def position(self) -> str:
        """Where to go on behind what was taken, for `since`: also events that don't fit are passed by it."""
        with self._lock:
            return positions.written({topic.name: self._position_in(topic) for topic in self.topics.values()})

    @property
    def closed(self) -> bool:
        """Whether nothing more comes."""
        return self.stage is Stage.ENDED and not self._waiting

    @property
    def has_event(self) -> bool:
        """Whether the next one to take is there, and is an event."""
        with self._lock:
            return bool(self._waiting) and isinstance(self._waiting[0], ReceivedEvent)

    def _opens(self) -> bool:
        """Returns whether it was not opened before: then a tailer is to be told of it."""
        with self._lock:
            if self.stage is not Stage.NEW:
                return False
            self.stage = Stage.OPENING
            self._asked = True
            return True

    def _is_open(self) -> bool:
        """Raise what opening it raised."""
        with self._lock:
            if self.stage is Stage.ENDED and self._waiting and isinstance(self._waiting[0], Exception):
                raise self._waiting.popleft()  # type: ignore[misc]  # an exception
            return self.stage is not Stage.OPENING

    def _take_next(self) -> tuple[ReceivedEvent | Gone | Exception | None, bool]:
        """What waits first, and whether it is to be read for again, because there is room now."""
        with self._lock:
            one = self._waiting.popleft() if self._waiting else None
            if isinstance(one, ReceivedEvent | Gone):
                self._passed[one.topic] = one.id
            if isinstance(one, ReceivedEvent):
                self._bytes -= size(one)
            asks = self.stage is Stage.BEHIND and not self._asked and self._has_room()
            self._asked = self._asked or asks
        return one, asks

    def _end(self, *, discard: bool) -> bool:
        """Nothing more comes; with `discard` what waits is not told either. Returns whether a tailer knew of it."""
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

    def _told_in_loop(self) -> asyncio.Event:
        loop = asyncio.get_running_loop()
        if self._told_loop is None or self._told_loop[0] is not loop:
            self._told_loop = loop, asyncio.Event()
        return self._told_loop[1]

    def _tell(self) -> None:
        self._told.set()
        if self._told_loop is not None:
            loop, told = self._told_loop
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(told.set)

    # Under the lock

    def _position_in(self, topic: Tailed) -> int:
        """The last event of a topic that was taken, or up to which none fits; what waits is still to be told."""
        for one in self._waiting:
            if isinstance(one, Exception) or one.topic == topic.name:
                return self._passed[topic.name]
        return self._seen(topic)

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


def size(event: ReceivedEvent) -> int:
    """The bytes of what it carries, about."""
    return sum(len(one) for one in event.columns[5:8] if isinstance(one, str | bytes | memoryview))
