"""A lane of a writer: one batch that fills, one that is being written, and the thread that writes it.

The thread starts with the first event and ends after a while without any, so an idle lane holds no connection.
The caller of each method here holds the writer's lock, which the lanes share.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

from django.db import DataError

from django_events import sql
from django_events.declarations import DeclaredTopic
from django_events.exceptions import EventsError, NotWritten
from django_events.publishing.encoding import Encoded
from django_events.publishing.flushing import Flusher, Wire
from django_events.retries import Backoff

logger = logging.getLogger("django_events.writer")

IDLE = 5.0  # seconds without an event, until the connection is closed
PAUSES = Backoff(base=timedelta(milliseconds=100), cap=timedelta(seconds=5))
MOST_ODD = 5  # times that an error of unknown meaning is tried again

Item = tuple[Encoded, "Future[bool]", int]  # and its size


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When a batch is closed."""

    max_items: int
    max_bytes: int
    max_age: float  # seconds


class WriterBatch:
    """Events that are written together."""

    __slots__ = ("bytes", "closed", "items", "since")

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.bytes = 0
        self.since = 0.0
        self.closed = False


class GivenUp(Exception):
    """The writer was closed before the database took the batch; its events are settled."""


class Lane:
    def __init__(
        self,
        name: str,
        using: str,
        topic: DeclaredTopic,
        limits: Limits,
        lock: threading.Lock,
        moved: threading.Condition,
        on_failure: Callable[[int, BaseException], None],
    ) -> None:
        self.accepted = self.settled = 0
        self.filling = WriterBatch()
        self.in_flight: WriterBatch | None = None
        self.thread: threading.Thread | None = None
        self.trouble: BaseException | None = None
        self.ending = False
        self.given_up = False
        self._committing = False
        self._in_doubt = False  # an attempt was lost while it committed
        self._running = False
        self._wire: Wire | None = None
        self._name, self._using, self._topic, self._limits = name, using, topic, limits
        self._lock, self._moved, self._on_failure = lock, moved, on_failure
        self._work = threading.Condition(lock)
        self._flusher = Flusher(using, topic, self._rewire)

    @property
    def waiting(self) -> int:
        return self.accepted - self.settled

    @property
    def bytes(self) -> int:
        return self.filling.bytes + (self.in_flight.bytes if self.in_flight else 0)

    def add(self, event: Encoded, future: "Future[bool]", size: int) -> bool:
        """Take an event in, if there is room; otherwise what fills goes as soon as it can."""
        if self.filling.items and self.filling.bytes + size > self._limits.max_bytes:
            self.close_batch()
        batch = self.filling
        if batch.closed:
            return False
        self._ensure_thread()
        if not batch.items:
            batch.since = time.monotonic()
            self._work.notify()
        # A signal's handler may raise after any call: the last two lines are one step, with no call in between.
        batch.bytes += size
        self.accepted += 1
        batch.items.append((event, future, size))
        if len(batch.items) >= self._limits.max_items or batch.bytes >= self._limits.max_bytes:
            self.close_batch()
        return True

    def close_batch(self) -> None:
        """Close the filling batch: it is written now, or as soon as the one before it is."""
        if self.filling.items:
            self.filling.closed = True
            self._hand_over()

    def end(self) -> None:
        """Let the thread end when nothing is left to write."""
        self.ending = True
        self._work.notify_all()

    def give_up(self) -> tuple[list[Item], list[Item]]:
        """Stop trying. Returns the events that are not in the log, and those that may or may not be."""
        self.given_up = True
        self._work.notify_all()
        if self._wire is not None:
            self._wire.cut()
        in_flight = list(self.in_flight.items) if self.in_flight else []
        waiting, self.filling = self.filling.items, WriterBatch()
        self.settled = self.accepted
        return (waiting, in_flight) if self._committing or self._in_doubt else (in_flight + waiting, [])

    def forget_wire(self) -> None:
        if self._wire is not None:
            self._wire.forget()
            self._wire = None

    def _hand_over(self) -> None:
        if self.in_flight is None:
            self.in_flight, self.filling = self.filling, WriterBatch()
            self._work.notify()
            self._moved.notify_all()

    def _ensure_thread(self) -> None:
        if not self._running:
            self._running = True
            before, self.thread = (
                self.thread,
                threading.Thread(target=self._run, args=[self.thread], name=self._name, daemon=True),
            )
            try:
                self.thread.start()
            except BaseException:  # there are too many, or the interpreter is about to end, or a signal's handler
                self.thread, self._running = before, False  # if it began all the same, it finds that it is not ours
                raise

    # The rest runs in the thread, and takes the lock itself.

    def _run(self, before: threading.Thread | None) -> None:
        with self._lock:
            if self.thread is not threading.current_thread():
                return
        if before is not None:
            before.join()  # it is closing its connection
        try:
            while (batch := self._next()) is not None:
                self._write(batch)
        finally:
            if self.ending:
                self._flusher.end()
            self._flusher.disconnect()

    def _next(self) -> WriterBatch | None:
        """The next batch, when it is due; none if the thread is to end."""
        with self._lock:
            idle_from = time.monotonic() + IDLE
            while self.in_flight is None and not self.given_up:
                now = time.monotonic()
                if self.filling.items:
                    if (left := self.filling.since + self._limits.max_age - now) <= 0:
                        self.close_batch()
                        continue
                elif self.ending or (left := idle_from - now) <= 0:
                    break
                self._work.wait(left)
            if self.in_flight is None or self.given_up:
                self._running = False
                return None
            return self.in_flight

    def _write(self, batch: WriterBatch) -> None:
        """Write a batch. Where the data of an event is refused, halves of it, until the culprit is alone."""
        failed = 0
        first_error: Exception | None = None
        pieces = [list(batch.items)]
        while pieces:
            piece = pieces.pop()
            repeated: set[int] = set()
            error: Exception | None = None
            try:
                repeated = self._commit([event for event, _, _ in piece])
            except GivenUp:
                return
            except Exception as refused:
                if len(piece) > 1 and (isinstance(refused, DataError) or sql.kind_of(refused).of_data):
                    middle = len(piece) // 2
                    pieces += [piece[middle:], piece[:middle]]
                    continue
                error = refused
                failed, first_error = failed + len(piece), first_error or error
            if not self._free(batch, piece, last=not pieces):
                return
            for index, (_, future, _) in enumerate(piece):
                settle(future, index not in repeated, error)
            with self._lock:
                if not self.given_up:
                    self.settled += len(piece)
                    if error is not None:
                        self._on_failure(len(piece), error)
                    self._moved.notify_all()
        if first_error is not None:
            said = "%d events for topic %r were not written: %s"
            report(logging.ERROR, said, failed, self._topic.name, one_line(first_error))

    def _free(self, batch: WriterBatch, piece: list[Item], *, last: bool) -> bool:
        """Make room for what comes; returns False if the events were given up meanwhile."""
        with self._lock:
            if self.given_up:
                return False
            self.trouble = None
            self._committing = self._in_doubt = False
            del batch.items[: len(piece)]
            batch.bytes -= sum(size for _, _, size in piece)
            if last:
                self.in_flight = None
                if self.filling.closed:
                    self._hand_over()
                self._moved.notify_all()
            return True

    def _commit(self, events: list[Encoded]) -> set[int]:
        """Try until the events are written, refused, or given up: the database may be away for long."""
        failures = odd = 0
        self._flusher.begin()
        while True:
            try:
                return self._flusher.write(events, self._progress)
            except GivenUp:
                raise
            except Exception as error:
                # Behind a pooler, the end of a connection may look like an answer that was not expected.
                odd += is_odd(error)
                # A server that became a standby is left for the other one by connecting again.
                retried = sql.kind_of(error).passes or sql.kind_of(error) is sql.ErrorKind.READ_ONLY
                if not retried and not (is_odd(error) and odd <= MOST_ODD):
                    self._refuse(error)
                failures += 1
                self._in_doubt |= self._committing
                self._flusher.lose()
                self._pause(failures, error)

    def _refuse(self, error: Exception) -> NoReturn:
        """An error that would come again. Whether an attempt before it was committed can't be told."""
        if not self._in_doubt:
            raise error
        raise NotWritten(
            f"The event for topic {self._topic.name!r} may or may not be in the log: the connection was lost during a "
            f"COMMIT, and the next try was refused. {one_line(error)}"
        ) from error

    def _pause(self, failures: int, error: Exception) -> None:
        pause = PAUSES.pause(failures).total_seconds()
        with self._lock:
            self.trouble = error
            given_up = self.given_up
        if not given_up:  # and without the lock: a handler of the log may publish, too
            report(
                logging.WARNING,
                "Events for topic %r wait for the database %r, next try in %.1f s. %s",
                self._topic.name,
                self._using,
                pause,
                one_line(error),
            )
        with self._lock:
            if not self._work.wait_for(lambda: self.given_up, pause):
                return
        raise GivenUp

    def _rewire(self, wire: Wire | None) -> None:
        with self._lock:
            self.forget_wire()
            self._wire = wire
            if wire is not None and self.given_up:
                raise GivenUp

    def _progress(self, committing: bool) -> None:
        """Note that no earlier attempt was committed, or that this one is about to be."""
        with self._lock:
            if self.given_up:
                raise GivenUp
            self._committing = committing
            if not committing:
                self._in_doubt = False


def is_odd(error: Exception) -> bool:
    """Whether the error has neither a code of the server nor a class that says what is wrong."""
    return sql.state(error) is None and not isinstance(error, EventsError | DataError)


def one_line(error: BaseException) -> str:
    return " ".join(sql.said(error).split())


def settle(future: "Future[bool]", new: bool, error: Exception | None) -> None:
    try:
        if error is None:
            future.set_result(new)
        else:
            future.set_exception(error)
    except BaseException:  # a callback that ends in SystemExit, or a result that the site has set
        report(logging.ERROR, "A future of an event could not be settled.", exc_info=True)


def report(level: int, message: str, *args: Any, exc_info: bool = False) -> None:
    """Log to the site. What a log handler raises must not end the thread, nor have good events refused."""
    with suppress(BaseException):
        logger.log(level, message, *args, exc_info=exc_info, stacklevel=2)
