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
from collections.abc import Iterable, Sequence
from contextlib import closing

from django.db import DatabaseError, InterfaceError, connections

from django_events import sql, telemetry
from django_events.live import reading
from django_events.live.feeds import Feed, Stage
from django_events.live.followers import Followers
from django_events.live.reading import LiveFilter, Tailed
from django_events.log import channel
from django_events.log.inventory import existing
from django_events.received import ReceivedEvent
from django_events.workers.listening import LISTENING_POLL, Listener
from django_events.workers.loop import pause_after
from django_events.workers.stopping import Stop
from django_events.workers.wakeup_flag import WakeupFlag

logger = logging.getLogger("django_events.live")


MOST_FAILURES = 5  # of reading for one listener, before it is told


class Tailer:
    """Reads the logs of one database for listeners, from the first one to the last."""

    def __init__(self, using: str) -> None:
        self.using = using
        self.listeners: set[Feed] = set()  # under the lock of all tailers
        self._stop = Stop()
        self._flag = WakeupFlag()
        self._named: set[int] = set()  # topics that got events
        self._everywhere = True
        self._look_at = 0.0  # also where something is heard all the time
        self._naming = threading.Lock()
        self._lost = False
        self._losses = 0
        self._followed: dict[Tailed, Followers] = {}  # the tailing thread's, as all that is in it
        self._joining: deque[tuple[Feed, int]] = deque()
        self._leaving: deque[Feed] = deque()
        self._behind: deque[Feed] = deque()
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

    def forget(self, listener: Feed) -> None:
        """A listener is closed: read for it no more."""
        self._leaving.append(listener)

    def read_for(self, listener: Feed) -> None:
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
                        self._losses += 1
                        self._everywhere = self._lost = True
                        self._say_failed(error)
                        self._stop.wait(pause_after(failures))
                        continue
                    if not more:
                        self._flag.wait(self._stop, listener.pause)
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
        self._follow_up()
        try:
            if everywhere:
                self._look_after()
            chosen = [one for one in self._followed.values() if everywhere or one.topic.id in named]
            left = [one.topic.id for one in chosen if self._read(one)]
        except (DatabaseError, InterfaceError):
            with self._naming:
                self._everywhere = True
            raise
        with self._naming:
            self._named.update(left)
        return bool(left)

    def _follow_up(self) -> None:
        """Take on those that have caught up, and drop those that were closed.

        A listener ends before it is in `_leaving`, so one that ends while it is taken on is dropped by the next turn.
        """
        while self._joining:
            listener, losses = self._joining.popleft()
            if losses != self._losses:  # what it caught up with may be gone by a failover
                self._fall_behind(listener)
            elif listener.stage is Stage.TAILED:
                for topic in listener.topics.values():
                    if topic not in self._followed:
                        self._followed[topic] = Followers(topic, listener.fed(topic))
                    self._followed[topic].join(listener)
        while self._leaving:
            self._drop(self._leaving.popleft())

    def _drop(self, listener: Feed) -> None:
        for topic in listener.topics.values():
            if (followers := self._followed.get(topic)) is not None:
                followers.drop(listener)
                if not followers:
                    del self._followed[topic]

    def _leave_behind(self, listeners: Iterable[Feed]) -> None:
        """Something is not as it is nearly always: each is read for by itself, until it has caught up."""
        for one in list(listeners):
            self._fall_behind(one)
            self._drop(one)

    def _fall_behind(self, listener: Feed) -> None:
        if listener.fall_behind():
            self.read_for(listener)

    def _look_after(self) -> None:
        """Topics may be gone; and after a failover, the end of a log."""
        there = reading.standing(self.using, list(self._followed)) if self._followed else set()
        for followers in list(self._followed.values()):
            if followers.topic.id not in there or self._lost:
                self._leave_behind(followers)
        self._lost = False

    def _read(self, followers: Followers) -> bool:
        topic, begin = followers.topic, followers.begin
        try:
            found = reading.next_events(self.using, topic, begin)
        except DatabaseError as error:
            if sql.kind_of(error).of_server and sql.kind_of(error) is not sql.ErrorKind.CANCELED:
                raise
            self._leave_behind(followers)  # of this topic: others are read on
            return False
        if not found.events:
            return False
        if found.position - begin != len(found.events):  # there is a gap: what that is, is said to each of them
            only_joining = begin < followers.position
            self._leave_behind(followers.joining if only_joining else followers)
            return only_joining
        fitting = followers.fitting(found.events)
        offered = self._holding(topic, found.events, fitting)
        for wanted in fitting.keys() - offered.keys():
            self._leave_behind(followers.of(wanted))
        offers: dict[Feed, Sequence[ReceivedEvent]] = dict.fromkeys(followers.joining, ())
        for wanted, of_filter in offered.items():
            if of_filter:
                offers.update(dict.fromkeys(followers.of(wanted), of_filter))
        for one, events in offers.items():
            if not one.offer(topic, events, found.position):
                self._drop(one)
        followers.move_on(found.position)  # only now: it is the position of all that were offered nothing
        return found.more

    def _holding(
        self, topic: Tailed, events: Sequence[ReceivedEvent], fitting: dict[LiveFilter, list[ReceivedEvent]]
    ) -> dict[LiveFilter, list[ReceivedEvent]]:
        """Those for which the predicate holds, too. A filter is left out where one has failed, and those beside it."""
        predicates = sorted({wanted.where for wanted in fitting if wanted.where is not None})
        if not predicates:
            return fitting
        holding: dict[str, set[int]] = {}
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
            wanted: [event for event in some if wanted.where is None or event.id in holding[wanted.where]]
            for wanted, some in fitting.items()
            if wanted.where is None or wanted.where in holding
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
                        _fail(listener, error)
                        continue
                    self._say_failed(error)
                    self.read_for(listener)
                    if lost:  # otherwise it is this listener's own, and others need not wait
                        failures += 1
                        self._stop.wait(pause_after(failures))
                except Exception as error:  # it must reach the one that listens, and not end the thread
                    _fail(listener, error)
        finally:
            connections.close_all()
            self._ended()

    def _next_behind(self) -> Feed | None:
        with self._changed:
            while not self._behind and not self._stop.requested:
                self._changed.wait()
            return None if self._stop.requested else self._behind.popleft()

    def _serve(self, listener: Feed) -> None:
        losses = self._losses  # before it is read for: see `_follow_up`
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
            self._joining.append((listener, losses))
            with self._naming:
                self._named.update(listener.topics)
            self._flag.set()

    def _open(self, listener: Feed) -> None:
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


_tailers: dict[str, Tailer] = {}
_lock = threading.Lock()


def join(listener: Feed) -> None:
    """Look up where a listener begins, and read for it from there."""
    with _lock:
        if (tailer := _tailers.get(listener.using)) is None:
            tailer = Tailer(listener.using)
            tailer.start()
            _tailers[listener.using] = tailer
        tailer.listeners.add(listener)
    telemetry.LISTENERS.tell(1, listener.using)
    tailer.read_for(listener)


def leave(listener: Feed) -> None:
    """A listener is closed. The last one ends its tailer, which takes a moment: `wait_for_tailer` waits for it."""
    with _lock:
        tailer = _tailers.get(listener.using)
        if tailer is None or listener not in tailer.listeners:
            return
        tailer.listeners.discard(listener)
        is_last = not tailer.listeners
        if is_last:
            listener.wait_for_tailer = tailer.join
            del _tailers[listener.using]
    telemetry.LISTENERS.tell(-1, listener.using)
    if is_last:
        tailer.stop()
    else:
        tailer.forget(listener)


def read_for(listener: Feed) -> None:
    """Read for a listener that is behind and has room."""
    with _lock:
        tailer = _tailers.get(listener.using)
    if tailer is not None:
        tailer.read_for(listener)


def _fail(listener: Feed, error: Exception) -> None:
    leave(listener)  # first: the program that is told closes it, and waits for its tailer
    listener.fail(error)


def _abandoned(tailer: Tailer) -> list[Feed]:
    """The listeners of a tailer that failed; the next one gets another tailer."""
    with _lock:
        if _tailers.get(tailer.using) is tailer:
            del _tailers[tailer.using]
        listeners = list(tailer.listeners)
        tailer.listeners.clear()
    telemetry.LISTENERS.tell(-len(listeners), tailer.using)
    return listeners


def _start_empty() -> None:
    """A forked child has none of its parent's threads."""
    global _lock
    _lock = threading.Lock()
    _tailers.clear()


os.register_at_fork(after_in_child=_start_empty)
