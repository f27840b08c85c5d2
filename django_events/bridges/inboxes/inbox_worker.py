"""The worker of an inbox: it reads behind the position, publishes what it read, and moves the position on.

    worker = InboxWorker("default", payments_in)
    run(worker, stop)

Any number of processes may serve an inbox: one of them moves the position, and the others find it moved and stand by.
"""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import DatabaseError

from django_events import sql
from django_events.bridges.inboxes.back_pressure import BackPressure
from django_events.bridges.inboxes.drafting import LONGEST_REASON
from django_events.bridges.inboxes.frozen_twins import FrozenTwins
from django_events.bridges.inboxes.intakes import HeldUp, Intakes, told
from django_events.bridges.inboxes.sources import GoneMessages, InboxMessage, SourceReader, SourceUnavailable
from django_events.bridges.inboxes.taking_in import (
    InboxRow,
    Intake,
    find,
    note_failure,
    note_served,
    note_waiting,
    take_in,
)
from django_events.conf import settings
from django_events.consuming.failures import storable
from django_events.declarations import DeclaredInbox, registry
from django_events.exceptions import EventsError, Refused
from django_events.workers.loop import close_others, connect_for_work
from django_events.workers.stopping import Stop

logger = logging.getLogger("django_events.inboxes")

SHORTEST_PAUSE = timedelta(seconds=0.1)
LOGGED_AGAIN = 300.0  # seconds, while it fails
STANDS_BY = 2.0  # seconds, where another process moved the position
SAID_SERVED = 20.0  # seconds between two notes that it is served, while there is nothing to take in
LOOKS_AGAIN = 5.0  # seconds between two looks at the row, while it rests: a person may pause it, or begin it anew


class InboxWorker:
    """Serves one inbox on one database, in one thread."""

    def __init__(self, using: str, inbox: DeclaredInbox, *, once: bool = False) -> None:
        self.using = using
        self.inbox = inbox
        self.failure = ""  # why nothing can be taken in now
        self.waits = False  # whether that is because of what is behind the inbox: no failure of it
        self._once = once
        self._there: int | None = None  # messages to be done by `once`, if the source tells
        self._done = 0  # messages
        self._topic = registry.get(inbox.topic)
        self._source: Any = inbox.source
        self._twins = FrozenTwins(using)
        self._pressure = BackPressure(using, inbox, once=once)
        self._reader: Any = None  # a SourceReader, or what `_new_reader` makes
        self._row: InboxRow | None = None  # as this turn found it
        self._doubts_waiting = False  # the reader could not wait, and what it reads doesn't say why
        self._rests_until = 0.0
        self._again = False  # whether `once` waits for the end of the rest
        self._failures = 0
        self._failing_since: datetime | None = None
        self._logged = self._served = self._looked = 0.0
        self._attempts = ("", 0)  # at the message that failed last
        self._intakes = Intakes(inbox, self._topic, self._attempt)

    @property
    def left(self) -> bool:
        return self._once and self._again

    def connect(self) -> None:
        connect_for_work(self.using)

    def work(self, stop: Stop) -> int:
        """Take in some messages, and return how many."""
        if self._has_what_was_there:
            done, self._again = 0, False
        else:
            done = self._turn(stop)
        self._done += done
        if not done and not self._again and not self.waits:  # a run with `once` is over
            self._there, self._done = None, 0
        return done

    def _turn(self, stop: Stop) -> int:
        try:
            if time.monotonic() < self._rests_until and self._is_still_so():
                return 0
            self._again = False
            taken = self._take_in(stop)
            while taken is None and not stop.requested:
                taken = self._take_in(stop)
            return taken or 0
        except HeldUp as held:
            self._fail(str(held), after=held.after)
            self._again = held.again
        except SourceUnavailable as error:
            self._drop()
            self._fail(str(error))
        except EventsError as error:
            self._fail(str(error))
        except DatabaseError as error:
            kind = sql.kind_of(error)
            if kind is sql.ErrorKind.LOCKED:
                self._twins.end()
            if kind.passes or kind is sql.ErrorKind.TABLE_GONE:  # the loop does what is to be done
                raise
            self._fail(sql.said(error))
        finally:
            close_others(self.using)  # transform may have used them
        return 0

    def wait(self, stop: Stop) -> None:
        """Until the source has something, or a rest ends. A request to stop is noticed after the poll's interval."""
        rest = self._rests_until - time.monotonic()
        if rest > 0 or self._reader is None or self._row is None or self._row.position is None:
            stop.wait(min(max(rest, SHORTEST_PAUSE.total_seconds()), LOOKS_AGAIN))
            return
        try:
            with self._reading():
                self._reader.wait(self._row.position, settings.POLL_INTERVAL.total_seconds())
        except SourceUnavailable:  # the next turn finds out why, and writes it down
            self._drop()
            self._doubts_waiting = True
            stop.wait(SHORTEST_PAUSE.total_seconds())

    def reset(self) -> None:
        """What was committed is asked again."""
        self._row = None

    def close(self) -> None:
        self._drop()

    def _is_still_so(self) -> bool:
        """Whether the row is the one that made it rest. It is asked once in a while: a person may begin it anew."""
        if self._row is None or time.monotonic() - self._looked < LOOKS_AGAIN:
            return True
        self._looked = time.monotonic()
        known = self._row
        if known != self._find():
            return False
        return not self.failure or self._note(self.failure)

    def _note(self, reason: str) -> bool:
        """Write down why nothing can be taken in; returns whether the row is still so, also if it can't be written.

        A database that is read only, or a role without the right, must not end the process.
        """
        assert self._row is not None  # noqa: S101
        try:
            return (note_waiting if self.waits else note_failure)(self.using, self._row, reason)
        except DatabaseError as error:
            kind = sql.kind_of(error)
            if kind.passes or kind is sql.ErrorKind.TABLE_GONE:
                raise
            logger.warning(
                "Inbox %s can't write down why it waits. %s", self.inbox, sql.said(error), extra=self._fields()
            )
            return True

    def _find(self) -> InboxRow:
        """The row as it is now. Another process may have moved it on, and a person may have begun it anew."""
        known, self._row = self._row, None
        row = self._row = find(self.using, self.inbox)
        if known is not None and row.generation != known.generation:
            self._attempts = ("", 0)
        return row

    def _refuse_another(self, row: InboxRow) -> None:
        """HeldUp if the row is of another declaration than this process has: an older, or a newer one."""
        if row.topic != self.inbox.topic:
            self._row = None  # the row is not told: who serves its declaration has nothing to do with it
            raise HeldUp(
                f"It publishes to {row.topic!r} by what migrate has registered, and this process declares it for "
                f"{self.inbox.topic!r}. Run migrate with the newer code, and restart what runs the older one."
            )
        if row.source != str(self._source):
            raise HeldUp(
                f"It is at a position of {row.source}, and a process declares it for {self._source}. If that is meant: "
                f"manage.py events inbox restart {self.inbox} --from beginning, or --from the id of the last message "
                "that is not to be taken in."
            )

    def _take_in(self, stop: Stop) -> int | None:
        """Take in what is behind the position; None if nothing of that is for the inbox, and more may be."""
        row = self._find()
        if row.is_paused:
            self._rest_paused(row)
            return 0
        self._refuse_another(row)
        if (clear := self._clear(row)) is None:
            return 0
        row = clear
        reader = self._open()
        if row.position is None:
            with self._reading():
                beginning = self._beginning(reader, row.start)
            if not self._write(row, beginning):
                return 0
            row = self._row = row._replace(position=beginning.position)
        assert row.position is not None  # noqa: S101
        with self._reading():
            found = reader.read(row.position, self.inbox.batch_size)
        self._note_what_is_there(found.lag)
        intake = self._intakes.of(row.position, found, stop)
        if not intake.events and intake.position == row.position:
            if self._doubts_waiting:
                with self._reading():
                    reader.wait(row.position, SHORTEST_PAUSE.total_seconds())
                self._doubts_waiting = False
            self._say_served(row, found.lag)
            return 0
        if not self._write(row, intake):
            return 0
        self._say_what_was_lost(found.gone, intake.unread)
        return intake.taken + len(intake.unread) + intake.left_out or None

    def _note_what_is_there(self, lag: int | None) -> None:
        """Remember the first answer to the question how many messages are to be taken in."""
        if self._there is None and lag is not None:
            self._there = self._done + lag

    @property
    def _has_what_was_there(self) -> bool:
        """Whether `once` is over: what has come meanwhile is the next one's. A busy source would keep it for ever."""
        return self._once and self._there is not None and self._done >= self._there

    def _new_reader(self) -> Any:
        return self._source.reader()

    def _beginning(self, reader: Any, start: str) -> Intake:
        return Intake(begins_at=reader.begin(start))

    def _write(self, row: InboxRow, intake: Intake) -> bool:
        if not self._written(row, intake):
            self._stand_by()
            return False
        self._row = row._replace(position=intake.position)
        self._pressure.took()
        self._served = time.monotonic()
        self._works()
        return True

    def _written(self, row: InboxRow, intake: Intake) -> bool:
        """Write all of it, or nothing where the row is not as it was; returns whether it was."""
        return take_in(self.using, row, self._topic, intake)

    def _stand_by(self) -> None:
        """The row is another one by now: what was read from the former place, or found missing there, says nothing."""
        self._rests_until = time.monotonic() + STANDS_BY
        self._again = True
        self._row, self.failure, self.waits = None, "", False
        logger.info(
            "Inbox %s is moved on by another process, begun anew, or paused: this one stands by.",
            self.inbox,
            extra=self._fields(),
        )

    def _rest_paused(self, row: InboxRow) -> None:
        """Read nothing, and hold no connection to the broker, until a person lets the inbox go on."""
        self._drop()
        self._rests_until = time.monotonic() + STANDS_BY
        self._looked = time.monotonic()
        self._doubts_waiting = False
        self._failures, self._failing_since, self.failure, self.waits = 0, None, "", False
        if row.waits_for or time.monotonic() - self._served > SAID_SERVED:
            self._served = time.monotonic()
            note_served(self.using, row, None)

    def _reason_to_wait(self, row: InboxRow) -> str:
        """What the inbox has to wait for before it takes in more; empty if nothing."""
        return self._pressure.reason(row)

    def _clear(self, row: InboxRow) -> InboxRow | None:
        """The row if what is behind the inbox can take more. Otherwise it rests, and holds nothing of the source."""
        if reason := self._reason_to_wait(row):
            self._wait_behind(row, reason)
            return None
        if self.waits:
            logger.info("Inbox %s goes on: what it waited for has caught up.", self.inbox, extra=self._fields())
            self.failure, self.waits = "", False
        if row.waits_for:
            if not note_served(self.using, row, None):
                self._stand_by()
                return None
            row = self._row = row._replace(waits_for="")
        return row

    def _wait_behind(self, row: InboxRow, reason: str) -> None:
        """Rest until the next look, without a growing pause: the source has done nothing wrong."""
        self._drop()
        self._doubts_waiting = False
        self._failures, self._failing_since = 0, None
        is_new, self.waits, self.failure = self.failure != reason, True, reason
        self._looked = time.monotonic()
        self._rests_until = 0.0 if self._once else self._pressure.looks_again
        if row.waits_for != reason or time.monotonic() - self._served > SAID_SERVED:
            self._served = time.monotonic()
            if not self._note(reason):
                self._stand_by()
                return
        if is_new:
            logger.warning(
                "Inbox %s takes nothing in for now: nothing is lost. %s", self.inbox, reason, extra=self._fields()
            )

    def _attempt(self, message: InboxMessage) -> int:
        """Count an attempt at a message, as this process made them; returns how many."""
        address, attempts = self._attempts
        self._attempts = message.address, attempts + 1 if address == message.address else 1
        return self._attempts[1]

    def _say_what_was_lost(self, gone: Sequence[GoneMessages], unread: Sequence[str]) -> None:
        """Log what was committed: the messages that were done without, and those that are no events of their own."""
        for one in gone:
            logger.error(
                "Inbox %s goes on without %s, which the source removed before they were taken in.",
                self.inbox,
                told(one),
                extra=self._fields(),
            )
        for address in unread:
            logger.error(
                "Inbox %s can't read %s: it is published as an event of type inbox.unreadable.",
                self.inbox,
                address,
                extra=self._fields(),
            )

    def _open(self) -> Any:
        if self._reader is None:
            try:
                self._source.check_installed()
            except Refused as error:
                raise SourceUnavailable(str(error)) from None
            with self._reading():
                self._reader = self._new_reader()
                self._reader.open()
        return self._reader

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Whatever goes wrong in a reader, no message is to blame."""
        try:
            yield
        except SourceUnavailable:
            raise
        except Exception as error:
            raise SourceUnavailable(f"{type(error).__name__} in the reader") from error

    def _drop(self) -> None:
        """Close the reader: the next attempt opens another one."""
        reader: SourceReader | None = self._reader
        self._reader = None
        if reader is not None:
            reader.close()

    def _say_served(self, row: InboxRow, lag: int | None) -> None:
        if self.failure or time.monotonic() - self._served > SAID_SERVED:
            self._served = time.monotonic()
            note_served(self.using, row, lag)
        self._works()

    def _fail(self, reason: str, *, after: timedelta | None = None) -> None:
        """Rest for a while, and write down and log why, if the row is still the one that this is of."""
        said = self.failure
        if not self._write_down(reason):
            return
        pause = max(after if after is not None else self.inbox.retry.pause(self._failures), SHORTEST_PAUSE)
        self._rests_until = time.monotonic() + pause.total_seconds()
        if self._is_to_be_said(said):
            logger.error(
                "Inbox %s takes nothing in since %s, and tries again: nothing is lost. %s",
                self.inbox,
                f"{self._failing_since:%Y-%m-%d %H:%M:%S} UTC",
                self.failure,
                extra=self._fields(),
            )

    def _write_down(self, reason: str) -> bool:
        """Write down why the inbox is held up; returns whether the row is still the one that this is of."""
        reason = storable(reason)[:LONGEST_REASON]
        self._served = self._looked = time.monotonic()
        self.waits = False
        if self._row is not None and not self._note(reason):
            self._stand_by()
            return False
        self._failures += 1
        self._failing_since = self._failing_since or datetime.now(UTC)
        self.failure = reason
        return True

    def _is_to_be_said(self, said: str) -> bool:
        """Whether the log has not had it lately; `said` is what held the inbox up before."""
        if self.failure == said and time.monotonic() - self._logged < LOGGED_AGAIN:
            return False
        self._logged = time.monotonic()
        return True

    def _works(self) -> None:
        """Something was read."""
        if self._failing_since is not None:
            away = timedelta(seconds=round((datetime.now(UTC) - self._failing_since).total_seconds()))
            logger.info(
                "Inbox %s works again, after %s and %d tries.", self.inbox, away, self._failures, extra=self._fields()
            )
        self.failure, self._failures, self._failing_since = "", 0, None

    def _fields(self) -> dict[str, Any]:
        return {"database": self.using, "inbox": self.inbox.name, "topic": self.inbox.topic}
