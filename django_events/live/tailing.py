"""One tailer per process and database reads the log for all its listeners, however many they are.

    join(listener)
    leave(listener)

It has two threads, each with a connection of its own, and the connection that listens. One thread tails: it reads what
is new once, and offers it to every listener that is up to date. The other one reads for those that are not, a portion
for each in turn: for one that begins at an older position, or had no room for what was offered. When nothing is left
to read, the listener is the tailer's again. So a slow listener keeps none waiting, and a thousand that come back after
a deploy need no more connections than one.

The tailer begins with the first listener and ends with the last one.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing
from enum import Enum
from typing import TYPE_CHECKING

from django.db import DatabaseError, InterfaceError, connections

from django_events import sql
from django_events.conf import settings
from django_events.live import reading
from django_events.live.reading import LiveFilter, Tailed
from django_events.log import channel
from django_events.log.inventory import existing
from django_events.received import ReceivedEvent
from django_events.workers.listening import LISTENING_POLL, Listener
from django_events.workers.loop import pause_after
from django_events.workers.stopping import Stop
from django_events.workers.wakeup_flag import WakeupFlag

if TYPE_CHECKING:
    from django_events.live.listening import LiveListener

logger = logging.getLogger("django_events.live")


MOST_FAILURES = 5  # of reading for one listener, before it is told


class Stage(Enum):
    """Who reads for a listener."""

    NEW = "not opened"
    OPENING = "its positions are looked up"
    BEHIND = "it is read for by itself"
    TAILED = "the tailer reads for it and all others"
    ENDED = "nothing more comes"


class Tailer:
    """Reads the logs of one database for listeners, from the first one to the last."""

    def __init__(self, using: str) -> None:
        self.using = using
        self.listeners: set[LiveListener] = set()  # under the lock of all tailers
        self._stop = Stop()
        self._flag = WakeupFlag()
        self._named: set[int] = set()  # topics that got events
        self._everywhere = True
        self._look_at = 0.0  # also where something is heard all the time
        self._naming = threading.Lock()
        self._lost = False
        self._behind: deque[LiveListener] = deque()
        self._changed = threading.Condition()
        self._running = 2
        self._threads = [
            threading.Thread(target=target, name=f"django_events {what} of {using}", daemon=True)
            for target, what in ((self._tail, "tailer"), (self._read_behind, "reader"))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let the threads end."""
        self._stop.request()
        with self._changed:
            self._changed.notify()

    def join(self) -> None:
        """Wait until they have ended."""
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def _ended(self) -> None:
        with self._changed:
            self._running -= 1
            if self._running == 0:
                self._stop.close()

    def read_for(self, listener: "LiveListener") -> None:
        """Read for a listener by itself, in its turn."""
        with self._changed:
            self._behind.append(listener)
            self._changed.notify()

    # The tail

    def _tail(self) -> None:
        failures = 0
        try:
            with closing(Listener(self.using)) as listener:
                listener.on(channel.LOG, self._hear)
                listener.start()
                while not self._stop.requested:
                    try:
                        more = self._turn()
                        failures = 0
                    except (DatabaseError, InterfaceError) as error:
                        failures += 1
                        self._everywhere = self._lost = True
                        self._say_failed(error)
                        self._stop.wait(pause_after(failures))
                        continue
                    if not more:
                        self._flag.wait(self._stop, _pause(listener))
        except Exception as error:  # it must reach those who listen
            logger.exception("The tailer of %r failed.", self.using, extra={"database": self.using})
            for one in _abandoned(self):
                one.fail(error)
            self.stop()
        finally:
            connections.close_all()
            self._flag.close()
            self._ended()

    def _hear(self, payload: str) -> None:
        try:
            news = channel.read(payload)
        except ValueError:  # any role may notify with any payload
            news = channel.News([], [], everywhere=True)
        with self._naming:
            self._everywhere = self._everywhere or news.everywhere
            self._named.update(news.topic_ids, (topic_id for topic_id, _ in news.partitions))
        self._flag.set()

    def _turn(self) -> bool:
        """Read once what is new in the topics that are named, or in all; returns whether there may be more."""
        heard, now = self._flag.consume(), time.monotonic()
        with self._naming:
            named, self._named = self._named, set()
            everywhere = self._everywhere or now >= self._look_at or not (heard or named)
            self._everywhere = False
        if everywhere:
            self._look_at = now + LISTENING_POLL
        by_topic: dict[Tailed, list[LiveListener]] = {}
        for one in listeners_of(self):
            if one.stage is Stage.TAILED:
                for topic in one.topics.values():
                    by_topic.setdefault(topic, []).append(one)
        try:
            if everywhere and by_topic:
                self._look_after(by_topic)
            chosen = [topic for topic in by_topic if everywhere or topic.id in named]
            left = [topic for topic in chosen if self._read(topic, by_topic[topic])]
        except (DatabaseError, InterfaceError):
            with self._naming:
                self._everywhere = True
            raise
        with self._naming:
            self._named.update(topic.id for topic in left)
        return bool(left)

    def _look_after(self, by_topic: dict[Tailed, list["LiveListener"]]) -> None:
        """Topics may be gone; and after a failover, the end of a log."""
        there = reading.standing(self.using, list(by_topic))
        for topic, listeners in by_topic.items():
            if topic.id not in there or self._lost:
                _fall_behind(listeners)
        self._lost = False

    def _read(self, topic: Tailed, listeners: list["LiveListener"]) -> bool:
        position = min(one.fed(topic) for one in listeners)
        try:
            found = reading.next_events(self.using, topic, position)
        except DatabaseError as error:
            if sql.kind_of(error).of_server and sql.kind_of(error) is not sql.ErrorKind.CANCELED:
                raise
            _fall_behind(listeners)  # of this topic: others are read on
            return False
        if not found.events:
            return False
        if found.position - position != len(found.events):
            _fall_behind(listeners)  # there is a gap: what that is, is said to each of them
            return False
        fitting = self._fitting(topic, found.events, listeners)
        for one in listeners:
            if one.wanted in fitting:
                one.offer(topic, fitting[one.wanted], found.position)
            else:
                one.fall_behind()
        return found.more

    def _fitting(
        self, topic: Tailed, events: Sequence[ReceivedEvent], listeners: Iterable["LiveListener"]
    ) -> dict[LiveFilter, list[ReceivedEvent]]:
        """The events for each filter that listeners have. A predicate that failed is left out, and all beside it."""
        filters = {one.wanted for one in listeners}
        predicates = sorted({one.where for one in filters if one.where is not None})
        holding: dict[str, set[int]] = {}
        if predicates:
            try:
                holding = reading.holding(self.using, topic, events, predicates)
            except DatabaseError as error:
                if sql.kind_of(error) is sql.ErrorKind.LOST:
                    raise
                logger.warning(
                    "A predicate of a listener to topic %r fails: each listener with one is read for by itself. %s",
                    topic.name,
                    sql.said(error),
                    extra={"database": self.using, "topic": topic.name},
                )
        return {
            one: [
                event for event in events if one.fits(event) and (one.where is None or event.id in holding[one.where])
            ]
            for one in filters
            if one.where is None or one.where in holding
        }

    # Those that are behind

    def _read_behind(self) -> None:
        failures = 0
        try:
            while (listener := self._next_behind()) is not None:
                try:
                    self._serve(listener)
                    failures = listener.failures = 0
                except (DatabaseError, InterfaceError) as error:
                    lost = isinstance(error, InterfaceError) or sql.kind_of(error) is sql.ErrorKind.LOST
                    listener.failures += 1
                    again = lost or (sql.kind_of(error).passes and listener.failures < MOST_FAILURES)
                    if not again or listener.stage is Stage.OPENING:
                        connections.close_all()
                        listener.fail(error)
                        continue
                    self._say_failed(error)
                    self.read_for(listener)
                    if lost:  # otherwise it is this listener's own, and others need not wait
                        failures += 1
                        self._stop.wait(pause_after(failures))
                except Exception as error:  # it must reach the one that listens, and not end the thread
                    listener.fail(error)
        finally:
            connections.close_all()
            self._ended()

    def _next_behind(self) -> "LiveListener | None":
        with self._changed:
            while not self._behind and not self._stop.requested:
                self._changed.wait()
            return None if self._stop.requested else self._behind.popleft()

    def _serve(self, listener: "LiveListener") -> None:
        if listener.stage is Stage.OPENING:
            self._open(listener)
        up_to_date = True
        for topic in listener.topics.values():
            found = reading.next_wanted(self.using, topic, listener.fed(topic), listener.wanted)
            if found.expired is not None:
                logger.info("%s", found.expired, extra={"database": self.using, "topic": topic.name})
                listener.say_expired(topic, found.expired, found.position)
                up_to_date = False
            elif not listener.fill(topic, found.events, found.position) or found.more:
                up_to_date = False
        if not up_to_date:
            if listener.rest():
                self.read_for(listener)
        elif listener.attach():  # what came since is read from its position on
            with self._naming:
                self._named.update(listener.topics)
            self._flag.set()

    def _open(self, listener: "LiveListener") -> None:
        if listener.wanted.where is not None:
            reading.refuse_predicate(self.using, listener.wanted.where)
        topics, begins = [], []
        for name in listener.names:
            row = existing(self.using, name)
            topic = Tailed(row.pk, row.name)
            ends = reading.ends_of(self.using, topic)
            if listener.begins == "beginning":
                begin = ends.floor
            else:
                begin = listener.begins.get(name, ends.last)
                reading.refuse_ahead(topic, begin, ends)
            topics.append(topic)
            begins.append(begin)
        listener.opened(topics, begins)

    def _say_failed(self, error: Exception) -> None:
        connections.close_all()
        logger.warning(
            "The database %r can't be read for listeners: trying again. %s",
            self.using,
            sql.said(error),
            extra={"database": self.using},
        )


def _fall_behind(listeners: Collection["LiveListener"]) -> None:
    for one in listeners:
        one.fall_behind()


def _pause(listener: Listener) -> float:
    poll = settings.POLL_INTERVAL.total_seconds()
    return max(poll, LISTENING_POLL) if listener.listening else poll


_tailers: dict[str, Tailer] = {}
_lock = threading.Lock()


def join(listener: "LiveListener") -> None:
    """Look up where a listener begins, and read for it from there."""
    with _lock:
        if (tailer := _tailers.get(listener.using)) is None:
            tailer = Tailer(listener.using)
            tailer.start()
            _tailers[listener.using] = tailer
        tailer.listeners.add(listener)
    tailer.read_for(listener)


def leave(listener: "LiveListener") -> None:
    """A listener is closed. The last one ends its tailer, and keeps it in `left`: it takes a moment."""
    with _lock:
        tailer = _tailers.get(listener.using)
        if tailer is None or listener not in tailer.listeners:
            return
        tailer.listeners.discard(listener)
        if tailer.listeners:
            return
        listener.left = tailer
        del _tailers[listener.using]
    tailer.stop()


def read_for(listener: "LiveListener") -> None:
    """Read for a listener that is behind and has room."""
    with _lock:
        tailer = _tailers.get(listener.using)
    if tailer is not None:
        tailer.read_for(listener)


def listeners_of(tailer: Tailer) -> list["LiveListener"]:
    with _lock:
        return list(tailer.listeners)


def _abandoned(tailer: Tailer) -> list["LiveListener"]:
    """The listeners of a tailer that failed; the next one gets another tailer."""
    with _lock:
        if _tailers.get(tailer.using) is tailer:
            del _tailers[tailer.using]
        return list(tailer.listeners)


def _start_empty() -> None:
    """A forked child has none of its parent's threads."""
    global _lock
    _lock = threading.Lock()
    _tailers.clear()


os.register_at_fork(after_in_child=_start_empty)
