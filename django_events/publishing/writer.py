"""Publishing fast and not in the caller's transaction: events are collected and written by threads.

with BufferedWriter("clicks") as writer:
    writer.publish({"page": "/"}, key="visitor 7")
"""

import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self
from zlib import crc32

from django.db import connections

from django_events.declarations import DeclaredTopic, inboxes, registry
from django_events.drafts import UNSET, Unset
from django_events.exceptions import Invalid, NotWritten, Refused, WriterFull
from django_events.models.buffer import writable
from django_events.publishing import open_writers
from django_events.publishing.encoding import Conditional, Encoded, encode
from django_events.publishing.writer_threads import Item, Lane, Limits, one_line, settle

MAX_ITEMS = 100_000
MAX_BYTES = 1 << 30
MAX_FLUSHES = 64
JOINING = 1.0  # seconds that an abandoned thread has to close its connection


class Taken(Future[bool]):
    """The future of an event: it can't be cancelled."""

    def cancel(self) -> bool:
        return False


class BufferedWriter:
    """Publishes events in batches, by threads and connections of its own, whatever transaction the caller is in.

    Events of a key keep the order in which they were published. Only an event whose future is done without an error
    is safe: what was taken in and not written yet is lost with a process that is killed. Threads may share a writer.
    """

    def __init__(
        self,
        topic: DeclaredTopic | str,
        *,
        max_items: int = 1_000,
        max_bytes: int = 1 << 20,
        max_age: timedelta = timedelta(milliseconds=200),
        max_flushes: int = 4,
        max_wait: timedelta = timedelta(seconds=10),
        using: str | None = None,
    ) -> None:
        _check_number("max_items", max_items, MAX_ITEMS)
        _check_number("max_bytes", max_bytes, MAX_BYTES)
        _check_number("max_flushes", max_flushes, MAX_FLUSHES)
        self._topic = registry.get(topic)
        inboxes.refuse_publishing(self._topic.name)
        self._using = connections[writable(using)].alias  # raises if there is none
        self._limits = Limits(max_items=max_items, max_bytes=max_bytes, max_age=_seconds("max_age", max_age))
        self._max_wait = _seconds("max_wait", max_wait)
        self._max_flushes = max_flushes
        self._closed = False
        self._start_empty()
        open_writers.add(self)

    def _start_empty(self) -> None:
        """Start anew in a forked child: the events in the batches, the threads and the locks belong to the parent."""
        for lane in getattr(self, "_lanes", ()):
            lane.forget_wire()
        self._lock = threading.Lock()
        self._moved = threading.Condition(self._lock)  # there is room, or something was settled
        self._lanes = [self._make_lane(n) for n in range(self._max_flushes)]
        self._spread = (0, self._lanes[0].filling)
        self._taken = self._failed = 0  # since flush() or close() last said what became of them
        self._first_error: BaseException | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            open_writers.close_quietly(self)

    def publish(
        self,
        value: Any = UNSET,
        *,
        body: bytes | Unset = UNSET,
        type: str = "",
        key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        partition: int | None = None,
        publish_at: datetime | None = None,
        dedup_key: str | None = None,
        dedup_window: timedelta | None = None,
    ) -> "Future[bool]":
        """Take one event in; its future tells when it is committed: True, or False if its dedup key was taken.

        In a transaction of the writer's own, whatever becomes of the caller's. It waits for room for `max_wait` at
        most, then it raises WriterFull. Publishing the same again publishes a second event.
        """
        event = encode(self._topic, value, body, type, key, metadata, partition, publish_at, dedup_key, dedup_window)
        size, future = event.bytes, Taken()
        until: float | None = None
        # The lock itself, not a condition: a signal's handler may raise after the call of a method written in Python,
        # and the lock would stay taken.
        with self._lock:
            while True:
                if self._closed:
                    raise Refused(f"The writer for topic {self._topic.name!r} is closed. Make a new one.")
                lane = self._lane_of(event)
                if lane.add(event, future, size):
                    self._taken += 1
                    return future
                if not self._lane_of(event).filling.closed:
                    continue  # another batch was begun, which has room
                if threading.current_thread() in [lane.thread for lane in self._lanes]:
                    # A callback in a writing thread: if it waited, nothing would make room.
                    raise self._full() from lane.trouble
                until = until or time.monotonic() + self._max_wait
                if (left := until - time.monotonic()) <= 0:
                    raise self._full() from lane.trouble
                self._moved.wait(left)

    def flush(self, timeout: timedelta | None = None) -> None:
        """Write what was published before, without waiting for more, and return when all of it is settled.

        Raises NotWritten if events were refused since the last time, or if for `timeout` (by default `max_wait`) not
        one of those that it waits for was settled; the writer goes on trying then.
        """
        with self._lock:
            patience = self._patience(timeout)
            stuck = not self._settle(patience)
            taken, failed, cause = self._take_stock()
            waiting = self._taken
        if stuck:
            said = f" {waiting:,} still wait for the database {self._using!r}: none was settled for {patience:g} s."
            raise NotWritten(self._count(waiting + failed, taken) + said + " The writer goes on trying.") from cause
        self._report(taken, failed, cause)

    def close(self, timeout: timedelta | None = None) -> None:
        """Write everything, and end the threads and their connections; after that nothing can be published.

        Raises NotWritten if events were refused since the last flush(), or if for `timeout` (by default `max_wait`)
        not one of the waiting ones was settled. Then they are given up: their futures have NotWritten too. Closing
        again does nothing.
        """
        with self._lock:
            patience = self._patience(timeout)
            self._closed = True
            self._moved.notify_all()
            lost: list[Item] = []
            doubtful: list[Item] = []
            if not self._settle(patience):
                for lane in self._lanes:
                    self._first_error = self._first_error or lane.trouble
                    of_lane = lane.give_up()
                    lost += of_lane[0]
                    doubtful += of_lane[1]
                self._moved.notify_all()
            for lane in self._lanes:
                lane.end()
            taken, failed, cause = self._take_stock()
        why = f"none was settled by the database {self._using!r} for {patience:g} s while the writer was being closed."
        self._refuse(lost, f"was not written: {why}")
        self._refuse(doubtful, f"may or may not be in the log: its COMMIT was on its way, and {why}")
        self._join(0.0 if lost or doubtful else patience)
        open_writers.discard(self)
        if not lost and not doubtful:
            self._report(taken, failed, cause)
            return
        said = f"{self._count(failed + len(lost) + len(doubtful), taken)} The reason: {why}"
        if doubtful:
            said += f" {len(doubtful):,} of them may or may not be in the log: their COMMIT was on its way."
        raise NotWritten(said) from cause

    def hurry(self) -> float:
        """Have everything written that was taken in; returns for how many seconds close() waits."""
        with self._lock:
            for lane in self._lanes:
                lane.close_batch()
        return self._max_wait

    def _make_lane(self, number: int) -> Lane:
        name = f"django_events writer {self._topic.name}/{number}"
        return Lane(name, self._using, self._topic, self._limits, self._lock, self._moved, self._note_failure)

    def _lane_of(self, event: Encoded) -> Lane:
        row = event.row if isinstance(event, Conditional) else event
        if row.key is not None:
            return self._lanes[crc32(row.key.encode()) % len(self._lanes)]
        if row.partition is not None:
            return self._lanes[row.partition % len(self._lanes)]
        if self._topic.partitions == 1:
            return self._lanes[0]
        number, batch = self._spread
        if batch.closed or self._lanes[number].filling is not batch:
            others = self._lanes[number + 1 :] + self._lanes[: number + 1]
            lane = next((lane for lane in others if not lane.filling.closed), others[0])
            self._spread = (self._lanes.index(lane), lane.filling)
            return lane
        return self._lanes[number]

    def _settle(self, patience: float) -> bool:
        """Close all batches and wait for what was published until now; False if that makes no progress."""
        targets = [(lane, lane.accepted) for lane in self._lanes]
        for lane in self._lanes:
            lane.close_batch()
        seen, until = -1, 0.0
        while any(lane.settled < target for lane, target in targets):
            settled = sum(min(lane.settled, target) for lane, target in targets)
            if settled != seen:
                seen, until = settled, time.monotonic() + patience
            if (left := until - time.monotonic()) <= 0:
                return False
            self._moved.wait(left)
        return True

    def _join(self, patience: float) -> None:
        """Wait for the threads; one whose database doesn't answer a goodbye loses its connection."""
        until = time.monotonic() + patience
        threads = [(lane, lane.thread) for lane in self._lanes if lane.thread is not None]
        for _, thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        with self._lock:
            for lane, thread in threads:
                if thread.is_alive():
                    lane.give_up()
        until = time.monotonic() + JOINING
        for _, thread in threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _refuse(self, items: list[Item], why: str) -> None:
        error = NotWritten(f"The event for topic {self._topic.name!r} {why}")
        for _, future, _ in items:
            settle(future, False, error)

    def _note_failure(self, events: int, error: BaseException) -> None:
        self._failed += events
        self._first_error = self._first_error or error

    def _take_stock(self) -> tuple[int, int, BaseException | None]:
        stock = self._taken, self._failed, self._first_error
        self._taken, self._failed, self._first_error = sum(lane.waiting for lane in self._lanes), 0, None
        return stock

    def _report(self, taken: int, failed: int, cause: BaseException | None) -> None:
        if failed and cause is not None:
            raise NotWritten(f"{self._count(failed, taken)} The first one, because: {one_line(cause)}") from cause

    def _count(self, events: int, taken: int) -> str:
        return f"{events:,} of {taken:,} events for topic {self._topic.name!r} were not written."

    def _full(self) -> WriterFull:
        events, size = (sum(each) for each in zip(*((lane.waiting, lane.bytes) for lane in self._lanes), strict=True))
        return WriterFull(
            f"The writer for topic {self._topic.name!r} is full: {events:,} events with {size:,} bytes wait for the "
            f"database {self._using!r}, and there was no room within {self._max_wait:g} s. The event was not kept: "
            "publish it again later, or slower. A higher max_items or max_bytes bridges a longer pause of the database."
        )

    def _patience(self, timeout: timedelta | None) -> float:
        if threading.current_thread() in [lane.thread for lane in self._lanes]:
            raise RuntimeError(
                "A callback of an event can't wait for the writer that calls it: flush and close outside."
            )
        return self._max_wait if timeout is None else _seconds("timeout", timeout)


def _check_number(option: str, value: Any, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise Invalid(f"BufferedWriter has {option}={value!r}, expected a whole number from 1 to {most:,}.")


def _seconds(option: str, value: Any) -> float:
    if not isinstance(value, timedelta) or value <= timedelta(0):
        raise Invalid(f"BufferedWriter has {option}={value!r}, expected a timedelta above zero.")
    return min(value.total_seconds(), threading.TIMEOUT_MAX)
