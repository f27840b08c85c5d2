"""One partition of a stream consumer, leased by a worker: reading it in order, and settling how far the consumer is.

    lease = partitions.claim(subscription, position_id, partition, holder="host:7")
    while batch := lease.read():
        with transaction.atomic(using):
            ...
            settlement = lease.settle(batch.events, None)
        lease.settled(settlement)

A lease ends when its worker releases it, or when its time is over: then the worker has died or frozen, and the next
one takes the partition over under a new token, and goes on carefully (see `handling`).
"""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django_events import sql
from django_events.consuming.failures import LONGEST_ERROR, Failure, Verdict, bury, judge
from django_events.consuming.leases import Lease, give_up
from django_events.consuming.missing import left_out, refuse_gap, refuse_missing
from django_events.consuming.reading import ALL, NOTHING, EventGone, bounded, loaded
from django_events.consuming.streams.batches import MOST, EventBatch, ReadAhead, ReadOn, reach
from django_events.consuming.unread import UnreadEvent
from django_events.received import ReceivedEvent

logger = logging.getLogger("django_events.consumer")
SQL = sql.beside(__name__)


class Entry(NamedTuple):
    """What is written into the row of a position; the four counts are added to those in the row."""

    position: int
    number: int
    careful_until: int
    attempted: int | None = None
    attempts: int = 0
    pause: timedelta | None = None
    failing_since: datetime | None = None
    stopped: bool = False
    error: str | None = ""  # None leaves the error that is in the row
    handled: int = 0
    failed: int = 0
    ignored: int = 0
    dead_lettered: int = 0
    release: bool = False


class PartitionSettlement(NamedTuple):
    """What a settling transaction wrote, and the address of the row; it counts once that transaction is committed."""

    entry: Entry
    row_address: str
    barrier: int | None
    same_transaction: bool = False  # as the one that began with `Lease.take_lock`


@dataclass(slots=True)
class LeasedPartition(Lease):
    """One partition of one consumer, leased by this worker until it is released or the time is over."""

    position_id: int
    partition: int
    position: int
    number: int
    attempted: int | None
    attempts: int
    careful_until: int
    row_address: str | None  # the ctid of the position's row; None where it has to be found by its key
    clock: datetime
    redrives: bool
    barrier: int | None  # it is not read from this id on, because other partitions of the consumer are not so far
    after_crash: bool  # the last worker lost its lease, and what it was handling has not been looked at
    readable_until: int = 0
    batch: EventBatch | None = None
    # What was read with the claim, while the last batch was sent somewhere, or with what was settled last.
    read_ahead: ReadAhead | None = None
    read_on: ReadOn | None = None  # reads what comes next by a prepared statement
    read_limit: int = MOST  # events; less after a batch that was too large for MAX_BATCH_BYTES
    claimed_at: float = field(default_factory=time.monotonic)

    @property
    def at_position(self) -> int | None:
        return self.position_id

    @property
    def redriven(self) -> bool:
        return False

    @property
    def what(self) -> str:
        return f"partition {self.partition}"

    @property
    def fields(self) -> dict[str, Any]:
        return {**self.subscription.fields, "partition": self.partition}

    @property
    def where(self) -> str:
        return f"behind event {self.position}"

    @property
    def reached(self) -> int | None:
        return self.position

    @property
    def ended(self) -> bool:
        return self.batch is not None and self.last and self.position >= self.batch.position and not self.redrives

    @property
    def last(self) -> bool:
        """Whether the log ended with this batch when it was read."""
        return self.batch is None or self.batch.position >= self.readable_until

    def read(self) -> EventBatch | None:
        """The next events, no more than the consumer takes at once; None if the log ends at the position."""
        return self._read()

    def next_range(self, most: int) -> tuple[sql.Statement, int] | None:
        """The filter of the next events, and up to which id to fold them; None if the log ends at the position.

        They are at most so many ids, and all are judged by the same filter.
        """
        if self.position >= self.readable_until and not self._see_end():
            self.after_crash = False
            return None
        match, until = self.subscription.filter_behind(self.position)
        return match, min(self.readable_until, self.position + most, until)

    def read_unread(self) -> EventBatch | None:
        """The next event without its payload, after a batch that could not be read as a whole.

        The events of that batch are read one by one from now on, each after its attempt is counted.
        """
        end = self._go_carefully()
        batch = self._read(most_bytes=NOTHING)
        if end is not None and batch is not None and not batch.events and end <= batch.position:
            raise left_out(f"{self.subscription.topic}/{end}")
        return batch

    def load(self, event: ReceivedEvent) -> ReceivedEvent | None:
        after = event.id - 1
        statement = sql.shared.next_events.on(
            log=self.subscription.log,
            events=self.subscription.events_of(self.partition),
            match=sql.all_of([]),
            after=after,
            upper=event.id,
            most=1,
        )
        try:
            return loaded(bounded(self.using, statement, most_bytes=ALL), event)
        except EventGone:
            refuse_missing(self.subscription, event.id)
            raise

    def _read(self, most_bytes: int | None = None) -> EventBatch | None:
        ahead, self.read_ahead = self.read_ahead, None
        if ahead is not None and ahead.after == self.position and most_bytes is None:
            return self._batch(ahead.rows, None, most=self.subscription.most, upper=ahead.upper)
        of = self.subscription
        if self.position >= self.readable_until and not self._see_end():
            self.after_crash = False  # the worker that lost its lease was handling nothing
            return None
        if self.after_crash:
            self._go_carefully()
        most, upper, match = self._next_read(self.position)
        usual = self.read_on if most == of.most and most_bytes is None else None
        if usual is not None and (small := usual.read(self.position, upper)) is not None:
            return self._batch(small, None, most=most, upper=upper)
        statement = sql.shared.next_events.on(
            log=of.log,
            events=of.events_of(self.partition),
            match=match,
            after=self.position,
            upper=upper,
            most=most,
        )
        rows, cut = bounded(self.using, statement, at_most=most, most_bytes=most_bytes)
        return self._batch(rows, cut, most=most, upper=upper)

    def _next_read(self, position: int) -> tuple[int, int, sql.Statement]:
        """How many events to read behind a position, up to which id, and by which filter.

        What may have ended a worker is also read by itself: it may be too large to be read with others.
        """
        of = self.subscription
        most = 1 if position < self.careful_until else min(of.most, self.read_limit)
        match, until = of.filter_behind(position)
        return most, min(self.readable_until, position + reach(of, most), until), match

    def _see_end(self) -> bool:
        """Find out up to which id there is something to read; False if there is nothing behind the position."""
        of = self.subscription
        for row_address in [self.row_address, None] if self.row_address else [None]:
            rows = sql.fetch_whole(
                self.using,
                SQL.readable_until.on(log=of.log, topic_id=of.topic_id, after=self.position),
                position_id=self.position_id,
                row_address=row_address,
                revision=of.revision,
            )
            if rows:
                [[last_id, self.barrier]] = rows
                self.readable_until = last_id or self.position
                return self.position < self.readable_until
        raise self.lose()

    @property
    def is_at_barrier(self) -> bool:
        """Whether the consumer may go on by the topic's next layout, as far as this partition is concerned."""
        return self.barrier is not None and self.position >= self.barrier - 1

    def _batch(self, rows: sql.Rows, cut: tuple[Any, ...] | None, *, most: int, upper: int) -> EventBatch:
        """The events up to the id `upper`, of which at most `most` were asked for, and one did not fit, if any."""
        of = self.subscription
        events = of.received(rows)
        if cut is not None and not events:
            events = [of.unread(cut)]
        # Events that did not fit were unpacked for nothing, so the next read asks for fewer.
        self.read_limit = of.most if cut is None else 2 * len(events)
        ended = len(events) < most and cut is None
        if events and events[0].id == self.attempted:
            events[0] = events[0].with_attempt(self.attempts + 1)
        if not of.filtered:
            upper_read = upper if ended else events[-1].id
            refuse_gap(of, self.partition, events, after=self.position, number=self.number, upper=upper_read)
        if ended:
            self.batch = EventBatch(events, upper, self._number_at(upper, events))
        else:
            self.batch = EventBatch(events, events[-1].id, self._number_of(events[-1]))
        return self.batch

    def _go_carefully(self) -> int | None:
        """Handle the next batch one by one: it may have ended the last worker. Returns the last id of the batch."""
        of = self.subscription
        match, until = of.filter_behind(self.position)
        statement = sql.shared.batch_end.on(
            log=of.log,
            events=of.events_of(self.partition),
            match=match,
            after=self.position,
            upper=min(self.readable_until, until),
            most=of.most,
        )
        [[end]] = sql.fetch_whole(self.using, statement)
        self.careful_until = max(self.careful_until, end or 0)
        self.after_crash = False
        return None if end is None else int(end)

    def too_few(self, batch: EventBatch) -> bool:
        """Whether a batch is smaller than min_batch, and its oldest event has not waited for max_wait yet."""
        wanted = self.subscription.consumer
        if not batch.events or not self.last or len(batch.events) >= wanted.min_batch:
            return False
        if self.barrier is not None and batch.position >= self.barrier - 1:  # no more come before the barrier
            return False
        now = self.clock + timedelta(seconds=time.monotonic() - self.claimed_at)
        return now - batch.events[0].logged_at < (wanted.max_wait or timedelta(0))

    def is_careful(self, event: ReceivedEvent) -> bool:
        return event.id <= self.careful_until or event.id == self.attempted or isinstance(event, UnreadEvent)

    def judge(self, event: ReceivedEvent, error: BaseException) -> Failure:
        return judge(self.subscription.consumer, event, error)

    def attempts_of(self, event: ReceivedEvent) -> int:
        return self.attempts if event.id == self.attempted else 0

    def count_attempt(self, event: ReceivedEvent) -> ReceivedEvent:
        rows = sql.fetch(
            self.using,
            SQL.count_attempt,
            position_id=self.position_id,
            token=self.token,
            event_id=event.id,
            careful_until=self.careful_until,
        )
        if not rows:
            raise self.lose()
        [[self.attempts, self.row_address, _]] = rows
        self.attempted = event.id
        return event.with_attempt(self.attempts)

    def settle(
        self, handled: Sequence[ReceivedEvent], failure: Failure | None = None, *, careful_until: int | None = None
    ) -> PartitionSettlement:
        if failure is not None and failure.verdict is Verdict.DEAD_LETTER:
            bury(self.subscription, failure)
        return self._write(self._entry(handled, failure, careful_until))

    def _entry(
        self, handled: Sequence[ReceivedEvent], failure: Failure | None = None, careful_until: int | None = None
    ) -> Entry:
        position, number = self._reached(handled, failure)
        verdict = None if failure is None else failure.verdict
        entry = Entry(
            position=position,
            number=number,
            careful_until=self.careful_until if careful_until is None else careful_until,
            handled=len(handled),
            failed=int(failure is not None and failure.is_failed_attempt),
            ignored=int(verdict is Verdict.IGNORE),
            dead_lettered=int(verdict is Verdict.DEAD_LETTER),
            release=self.last and self.batch is not None and position >= self.batch.position,
        )
        if failure is not None and not failure.passes:
            entry = entry._replace(
                attempted=failure.event.id,
                attempts=failure.attempts,
                pause=failure.pause,
                failing_since=failure.failing_since,
                stopped=verdict is Verdict.STOP,
                error=failure.summary,
                release=True,
            )
        return entry

    @contextmanager
    def reading_on(self) -> Iterator[None]:
        after = self.position if self.batch is None else self.batch.position
        reader, upper = self._reader_behind(after)
        with self.no_time_of_the_handler():  # it may be prepared first
            asked = reader is not None and reader.ask(after, upper, token=self.token)
        if reader is None or not asked:
            yield
            return
        try:
            yield
        finally:
            with self.no_time_of_the_handler():
                rows = reader.answer()
            self.read_ahead = None if rows is None else ReadAhead(after, rows, upper)

    def settle_handled(self, handled: Sequence[ReceivedEvent]) -> PartitionSettlement:
        """As `Claim.settle_handled`. What comes next is read in the same message, if it can be and is not there yet."""
        if self.read_ahead is None and (settlement := self._settle_and_read(handled)) is not None:
            return settlement
        return self.settle(handled)  # one statement, which is a transaction

    def _settle_and_read(self, handled: Sequence[ReceivedEvent]) -> PartitionSettlement | None:
        """None where nothing of it is done: the lease may be lost, the log may end here, or a read may be unusual."""
        if self.batch is None or handled[-1].id != self.batch.events[-1].id:
            return None
        entry = self._entry(handled)
        reader, upper = self._reader_behind(entry.position)
        if reader is None or entry.release:
            return None
        # With the lock, as the server may wait before COMMIT until a frozen worker takes what it was told.
        settle = self._settling(entry, self.row_address, lock=True)
        done = reader.settle_and_read(settle, entry.position, upper)
        if done is None or not done[0]:
            return None
        [[address, barrier, *_]], read = done
        self.read_ahead = None if read is None else ReadAhead(entry.position, read, upper)
        return PartitionSettlement(entry, address, barrier)

    def _reader_behind(self, position: int) -> tuple[ReadOn | None, int]:
        """What reads behind a position by a prepared statement, if anything does, and up to which id."""
        most, upper, _ = self._next_read(position)
        usual = not self.nested and position < self.readable_until and most == self.subscription.most
        return self.read_on if usual else None, upper

    def settle_range(self, upper: int, *, handled: int = 0, failed: int = 0) -> PartitionSettlement:
        """Write down that all is folded up to an id, of a consumer that reads all partitions together."""
        self.after_crash = False
        self.batch = EventBatch([], upper, upper)
        return self._keep(
            position=upper, number=upper, handled=handled, failed=failed, error="", release=upper >= self.readable_until
        )

    def settle_redrive(self, *, failed: bool, ignored: bool) -> PartitionSettlement:
        """Count a dead letter that was handled again; the position stays."""
        return self._keep(handled=int(not failed and not ignored), failed=int(failed), ignored=int(ignored))

    def settled(self, settlement: PartitionSettlement) -> None:
        entry, self.row_address, self.barrier, _ = settlement
        self.position, self.number, self.careful_until = entry.position, entry.number, entry.careful_until
        self.attempted, self.attempts, self.released = entry.attempted, entry.attempts, entry.release

    def release(self) -> None:
        """End the lease with everything settled.

        If this worker took the partition over and read nothing, it gives up instead: the next worker must be careful.
        """
        if self.after_crash:
            self.give_up()
            self.released = True
        elif not self.released:
            self.settled(self._keep(release=True))

    def stop(self, error: str) -> None:
        """Stop the partition where it is, until it is resumed by `events resume` or in the admin."""
        self.settled(self._keep(stopped=True, error=error[:LONGEST_ERROR], release=True))

    def give_up(self) -> None:
        """End the lease with something unsettled: the next worker goes on carefully."""
        give_up(self.using, [self.token])

    def wait_for_more(self, batch: EventBatch) -> None:
        """Move the position up to the first event of a batch that is too small so far, and release."""
        first = batch.events[0]
        position, number = first.id - 1, self._number_of(first) - 1
        self.settled(self._keep(position=position, number=number, release=True))

    def _keep(self, **changes: Any) -> PartitionSettlement:
        """Write the row as it is, but for the named changes."""
        entry = Entry(
            position=self.position,
            number=self.number,
            careful_until=self.careful_until,
            attempted=self.attempted,
            attempts=self.attempts,
            error=None,
        )
        return self._write(entry._replace(**changes))

    def _write(self, entry: Entry) -> PartitionSettlement:
        for row_address in [self.row_address, None] if self.row_address else [None]:
            statement, parameters = self._settling(entry, row_address, lock=self.commits_separately)
            rows = sql.fetch(self.using, statement, **parameters)
            if rows:
                address, barrier, same_transaction, locked = rows[0]
                self.refuse_unlocked(locked)
                return PartitionSettlement(entry, address, barrier, same_transaction is True)
        raise self.lose()

    def _settling(self, entry: Entry, row_address: str | None, *, lock: bool) -> sql.Question:
        """The statement that writes it down, with its parameters."""
        return SQL.settle, {
            "position_id": self.position_id,
            "token": self.token,
            "row_address": row_address,
            "position": entry.position,
            "number": entry.number,
            "careful_until": entry.careful_until,
            "attempted": entry.attempted,
            "attempts": entry.attempts,
            "pause": entry.pause,
            "failing_since": entry.failing_since,
            "stopped": entry.stopped,
            "error": entry.error,
            "handled": entry.handled,
            "failed": entry.failed,
            "ignored": entry.ignored,
            "dead_lettered": entry.dead_lettered,
            "release": entry.release,
            "lock": lock,
        }

    def _reached(self, handled: Sequence[ReceivedEvent], failure: Failure | None) -> tuple[int, int]:
        passed = failure.event if failure is not None and failure.passes else handled[-1] if handled else None
        if passed is None:
            at_end = self.batch is not None and not self.batch.events
            return (self.batch.position, self.batch.number) if self.batch and at_end else (self.position, self.number)
        if self.batch is not None and self.batch.events and passed.id == self.batch.events[-1].id:
            return self.batch.position, self.batch.number
        return passed.id, self._number_of(passed)

    def _number_of(self, event: ReceivedEvent) -> int:
        return event.id if self.subscription.whole else event.number

    def _number_at(self, upper: int, events: list[ReceivedEvent]) -> int:
        of = self.subscription
        if of.whole:
            return upper
        if of.filtered:
            after = events[-1].id if events else self.position
            statement = sql.shared.number_at.on(log=of.log, partition=self.partition, after=after, upper=upper)
            if rows := sql.fetch_whole(self.using, statement):
                return int(rows[0][0])
        return events[-1].number if events else self.number
