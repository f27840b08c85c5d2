"""The worker of an inbox from a queue: it receives, publishes, and acknowledges after the COMMIT.

    worker = QueueInboxWorker("default", letters_in)
    run(worker, stop)

A message whose turn it isn't yet, because `transform` failed or wants to wait, is given back with all behind it in its
group. Other groups go on.
"""

import logging
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

from django_events.bridges.inboxes import inbox_worker
from django_events.bridges.inboxes.inbox_worker import LOOKS_AGAIN, SHORTEST_PAUSE, InboxWorker
from django_events.bridges.inboxes.intakes import HeldUp
from django_events.bridges.inboxes.queue_sources import QueuedMessage, QueueInUse, QueueReader, dedup_key_of
from django_events.bridges.inboxes.queue_taking_in import QueuedEvent, last_word, take_in_queued, taken_already
from django_events.bridges.inboxes.sources import InboxMessage, SourceUnavailable
from django_events.bridges.inboxes.taking_in import InboxRow
from django_events.declarations import DeclaredInbox
from django_events.exceptions import Refused
from django_events.workers.stopping import Stop

logger = logging.getLogger("django_events.inboxes")

SHARE = 3  # of the time that the queue waits for an acknowledgement, a batch may take to become events
SERVES = 60.0  # seconds within which another process that has the queue says so
MOST_TRIED = 10_000  # messages whose attempts a process remembers


class _InHand(NamedTuple):
    """Messages that come again, and why."""

    messages: list[tuple[QueuedMessage, timedelta]]
    reason: str
    again: bool
    late: list[QueuedMessage]  # transform was too slow for these: they are behind all others


class QueueInboxWorker(InboxWorker):
    """Serves one inbox from a queue on one database, in one thread."""

    def __init__(self, using: str, inbox: DeclaredInbox, *, once: bool = False) -> None:
        super().__init__(using, inbox, once=once)
        self._queue: QueueReader | None = None
        self._held: dict[str, float] = {}  # until when the queue keeps messages back, or another process may have them
        self._holds_back = ""  # why
        self._lingers = False  # the queue has not forgotten what it was to forget
        self._tried: dict[str, int] = {}  # how often, by the address of a message; the oldest first
        self._most = inbox.batch_size  # fewer while transform is too slow for so many
        self._lag: int | None = None
        self._asked = 0.0
        self._is_second = False  # another process has the queue for itself
        self._word: Any = ""  # when any process last said that it serves the inbox, and since when that is so
        self._heard = 0.0

    def work(self, stop: Stop) -> int:
        if self._queue is not None and time.monotonic() < self._rests_until:
            with suppress(Exception):  # the next turn finds out why
                self._queue.keep()
        return super().work(stop)

    def wait(self, stop: Stop) -> None:
        """Until a rest ends. Otherwise not at all: `receive` waits for messages."""
        if (rest := self._rests_until - time.monotonic()) > 0:
            stop.wait(min(rest, LOOKS_AGAIN))

    def _take_in(self, stop: Stop) -> int:
        row = self._find()
        if row.is_paused:
            self._rest_paused(row)
            return 0
        self._refuse_another(row._replace(source=str(self._source)))  # a row without a position is of any source
        if (clear := self._clear(row)) is None:
            return 0
        row = clear
        reader = self._open_queue()
        if self._once and self._there is None:
            with suppress(Exception):  # it is asked again at the next turn
                self._note_what_is_there(reader.lag())
        try:
            with self._reading():
                received = reader.receive(self._most)
        except QueueInUse as error:
            self._leave_it_to_another(row, error)
            return 0
        self._is_second = False
        self._ask_for_lag(reader)
        if not received:
            self._lingers = False
            self._say_how_it_is(row)
            return 0
        began = time.monotonic()
        try:
            taken, queued, held = self._sort(received, self._known(row, received), reader.holds / SHARE)
            self._ask_for_fewer(reader, len(received) - len(held.late), is_late=bool(held.late))
            for one in taken:
                self._held.pop(one.message.address, None)
            unread = self._write_queued(row, queued, is_well=not self._is_held(held)) if taken else []
        except BaseException:
            with suppress(Exception):  # the queue gives them again by itself, too, only later
                reader.give_back(received, timedelta(0))
            raise
        self._say_what_was_lost((), unread)
        for one in taken:
            self._tried.pop(one.message.address, None)
        if held.late:
            with suppress(Exception):  # as above
                reader.give_back(held.late, timedelta(0))
        lingered = self._lingers
        if taken:
            self._acknowledge(reader, taken, began)
        if held.messages:
            self._hold(reader, held, took=bool(taken))
        elif lingered:
            self._say_how_it_is(row)
        return len(taken)

    def _say_how_it_is(self, row: InboxRow) -> None:
        """Nothing is to be received. That says nothing of messages which the queue keeps back."""
        if not self._is_held():
            self._say_served(row, self._lag)
        elif time.monotonic() - self._served > inbox_worker.SAID_SERVED:
            self._go_around()

    def _is_held(self, held: _InHand | None = None) -> bool:
        """Whether anything holds the inbox up: a message that waits, or a queue that doesn't forget."""
        now = time.monotonic()
        self._held = {address: until for address, until in self._held.items() if until > now}
        return bool(self._held or self._lingers or (held and held.messages))

    def _write_queued(self, row: InboxRow, queued: Sequence[QueuedEvent], *, is_well: bool) -> list[str]:
        """Publish what is new of these; returns the addresses of those whose events say that they can't be read."""
        intake = take_in_queued(
            self.using, row, self._topic, queued, window=self._source.window, lag=self._lag, is_well=is_well
        )
        self._pressure.took()
        self._served = time.monotonic()
        if is_well:
            self._works()
        return intake.unread

    def _ask_for_fewer(self, reader: QueueReader, done: int, *, is_late: bool) -> None:
        """Receive as many as there is time for: each time that a queue gives a message out may be counted."""
        self._most = max(done, 1) if is_late else min(self._most * 2, self.inbox.batch_size)
        if is_late:
            with self._reading():
                reader.keep()  # the transaction may take its time, too

    def _known(self, row: InboxRow, received: Sequence[QueuedMessage]) -> set[str]:
        """The identities of messages that come again and are events already, because they weren't acknowledged in time.

        One that `transform` is too slow for would otherwise be transformed, and come again, for ever.
        """
        keys = {
            dedup_key_of(self.inbox.name, one.identity): one.identity for one in received if one.again and one.identity
        }
        return {keys[key] for key in taken_already(self.using, row, keys)}

    def _acknowledge(self, reader: QueueReader, taken: Sequence[QueuedMessage], began: float) -> None:
        """Let the queue forget what is published; SourceUnavailable if it may not have waited for that."""
        self._lingers = True
        took, refusal = time.monotonic() - began, ""
        try:
            with self._reading():
                reader.acknowledge(taken)
        except SourceUnavailable as error:
            if took <= reader.holds:
                raise
            refusal = f" {error}"
        if took > reader.holds:
            raise SourceUnavailable(
                f"{self._source} waits for {reader.holds:g} s, and it took {took:.1f} s until messages were published. "
                "They may come again, and are recognised if they have an identity. Make transform faster, batch_size "
                f"smaller, or that time longer: visibility of SQS, heartbeat of RabbitMQ.{refusal}"
            )
        self._lingers = False

    def _sort(
        self, received: Sequence[QueuedMessage], known: Collection[str], seconds: float
    ) -> tuple[list[QueuedMessage], list[QueuedEvent], _InHand]:
        """Which messages are taken in now and what they become, and which come again: at least one is looked at."""
        deadline = time.monotonic() + seconds
        taken: list[QueuedMessage] = []
        queued: list[QueuedEvent] = []
        held = _InHand([], "", False, [])
        groups: set[str] = set()  # in which a message is held
        for index, one in enumerate(received):
            if index and time.monotonic() > deadline:
                held.late.extend(received[index:])
                break
            if one.identity in known:
                taken.append(one)
                continue
            if one.group is not None and one.group in groups:
                held.messages.append((one, timedelta(0)))  # as long as the one in front of it is away, so is this
                continue
            try:
                event, is_readable = self._intakes.event(one.message, is_first=True)
            except HeldUp as error:
                held.messages.append((one, self._pause(one.message, error)))
                if one.group is not None:
                    groups.add(one.group)
                if not held.reason:
                    held = held._replace(reason=str(error), again=error.again)
                continue
            key = None if one.identity is None else dedup_key_of(self.inbox.name, one.identity)
            queued.append(QueuedEvent(key, event, "" if is_readable else one.message.address))
            taken.append(one)
        return taken, queued, held

    def _pause(self, message: InboxMessage, error: HeldUp) -> timedelta:
        if error.after is not None:
            return max(error.after, SHORTEST_PAUSE)
        tried = self._tried.get(message.address, 1) if error.again else self._attempt(message)
        return max(self.inbox.retry.pause(tried), SHORTEST_PAUSE)

    def _attempt(self, message: InboxMessage) -> int:
        """Count an attempt at a message, as this process made them; returns how many."""
        tried = self._tried[message.address] = self._tried.pop(message.address, 0) + 1
        while len(self._tried) > MOST_TRIED:
            self._tried.pop(next(iter(self._tried)))
        return tried

    def _hold(self, reader: QueueReader, held: _InHand, *, took: bool) -> None:
        """Give messages back. The inbox rests if the queue can't keep them back by itself."""
        if reader.in_order:
            reader.give_back([one for one, _ in held.messages], timedelta(0))
            self._fail(held.reason, after=held.messages[0][1])
            self._again = held.again
            return
        pauses: dict[timedelta, list[QueuedMessage]] = {}
        for one, after in held.messages:
            pauses.setdefault(after, []).append(one)
        for after, messages in pauses.items():
            with self._reading():
                reader.give_back(messages, after)
        for one, after in held.messages:
            self._held[one.message.address] = time.monotonic() + after.total_seconds() + reader.holds
        self._holds_back = held.reason
        if took:
            self._go_around()
        else:
            self._fail(held.reason, after=SHORTEST_PAUSE)

    def _go_around(self) -> None:
        """Write down and log that a message waits, and don't rest."""
        said = self.failure
        if self._write_down(self._holds_back) and self._is_to_be_said(said):
            logger.warning("Inbox %s goes on around a message. %s", self.inbox, self.failure, extra=self._fields())

    def _leave_it_to_another(self, row: InboxRow, error: QueueInUse) -> None:
        """Another process reads the queue. What is noted of the inbox is what that one finds.

        SourceUnavailable if none says that it serves the inbox: then the queue is in the hands of another program.
        """
        word, said = last_word(self.using, row)
        is_own = bool(self.failure) and said == self.failure
        if word != self._word and not is_own:
            self._word, self._heard = word, time.monotonic()
        if time.monotonic() - self._heard > SERVES:
            raise SourceUnavailable(f"{error} No other process serves this inbox.")
        self._drop()
        self._rests_until = time.monotonic() + inbox_worker.STANDS_BY
        self._row, self.failure = None, ""
        if not self._is_second:
            self._is_second = True
            logger.info(
                "Inbox %s is served by another process, which has the queue for itself: this one stands by.",
                self.inbox,
                extra=self._fields(),
            )

    def _ask_for_lag(self, reader: QueueReader) -> None:
        """What was received is taken in, whether the queue tells how many more there are or not."""
        if time.monotonic() - self._asked > LOOKS_AGAIN:
            self._asked = time.monotonic()
            self._lag = None
            with suppress(Exception):
                self._lag = reader.lag()

    def _open_queue(self) -> QueueReader:
        if self._queue is None:
            try:
                self._source.check_installed()
            except Refused as error:
                raise SourceUnavailable(str(error)) from None
            self._queue = self._source.reader()
            with self._reading():
                self._queue.open()
        return self._queue

    def _drop(self) -> None:
        """Close the reader: the next attempt opens another one."""
        reader, self._queue = self._queue, None
        self._most = self.inbox.batch_size
        if reader is not None:
            reader.close()
