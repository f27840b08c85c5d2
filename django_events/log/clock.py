"""Clocks: at the times of a declared clock, the transfer puts an event into the buffer.

ticks = DueTicks(using)
with sql.batch(using, …, *ticks.questions()) as [rows, *answers]:
    ticks.answered(*answers)
if ticks.is_due:
    ticks.publish()

One transaction locks the clock's row, inserts the events and moves its next tick on: each tick is published once,
whichever transfers try, die or wake up. Of a clock with `overlap="skip"` it also looks, behind that lock, whether the
event of the last tick is handled: no other transfer publishes meanwhile, and what was handled by then is seen.
"""

import logging
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from django.db import DatabaseError, transaction

from django_events import declarations, sql
from django_events.declarations.cron import newest_ticks, ticks_after
from django_events.statements import log_table

logger = logging.getLogger("django_events.transfer")
SQL = sql.beside(__name__)

MOST_MISSED = 1_000  # ticks, the newest ones
LATE = timedelta(minutes=1)  # from then on missed="skip" leaves a tick out
HAIR = 0.001  # seconds
REST = 1.0  # seconds, where another session has locked what is due
ASKED_EVERY = 1.0  # seconds: what is known of the next tick is that old at most; a clock paused meanwhile doesn't tick


class LastTick(NamedTuple):
    """Where the event of a clock's last tick is, and which consumer has not handled it; no consumer if that is over."""

    log_ends_at: int
    event_id: int | None
    consumer: str | None
    state: str | None


class Undecided(Exception):
    """Whether a tick overlaps can't be told now: the log can't be read."""

    def __init__(self, clock: str) -> None:
        super().__init__(clock)
        self.clock = clock


class DueTicks:
    """What a transfer knows of the ticks to come. Nothing has to be true but that it asks again."""

    def __init__(self, using: str, *, ahead: timedelta = timedelta(0)) -> None:
        self.using = using
        self._ahead = ahead
        self._broken: set[str] = set()
        self._rounded: set[str] = set()
        self._undecided: set[str] = set()
        self.forget()

    def forget(self) -> None:
        self._due_at: float | None = None
        self._rests_until = self._ask_at = 0.0

    def begin_round(self) -> None:
        """With `ahead`, a clock with `overlap="skip"` ticks once a round: consumers handle the tick before the next."""
        self._rounded.clear()
        self._rests_until = self._ask_at = 0.0

    def names(self) -> list[str]:
        """The clocks that this process declares: others are not its business."""
        return [clock.name for clock in declarations.clocks if clock.name not in self._broken | self._rounded]

    def questions(self) -> list[sql.Question]:
        """What to ask along with a look: nothing where no clock is declared, or where the answer is still young."""
        names = self.names()
        return [(SQL.next_tick, {"names": names})] if names and time.monotonic() >= self._ask_at else []

    def answered(self, *answers: sql.Rows) -> None:
        """Note when the next tick is due, if that was asked."""
        for [(seconds,)] in answers:
            now = time.monotonic()
            self._ask_at = now + ASKED_EVERY
            due_at = None if seconds is None else now + seconds - self._ahead.total_seconds() + HAIR
            self._due_at = None if due_at is None else max(due_at, self._rests_until)

    @property
    def is_due(self) -> bool:
        return self.pause is not None and self.pause <= 0

    @property
    def pause(self) -> float | None:
        """In how many seconds the next tick is due, as far as one knows."""
        return None if self._due_at is None else self._due_at - time.monotonic()

    def publish(self) -> int:
        """Put what is due of all clocks into the buffer, a transaction for each; returns how many clocks ticked.

        A row that another session has locked is left: there is a rest before the database is asked again.
        """
        ticked, left = 0, set[str]()
        self._due_at, self._ask_at = None, 0.0
        while True:
            try:
                if not self._tick(left):
                    break
                ticked += 1
            except Undecided as undecided:
                left.add(undecided.clock)
                if undecided.clock not in self._undecided:
                    fields = {"database": self.using, "clock": undecided.clock}
                    logger.warning(
                        "Clock %s waits: whether its last tick is handled can't be read now. %s",
                        undecided.clock,
                        undecided.__cause__,
                        extra=fields,
                    )
        self._undecided = left
        if not ticked:
            self._due_at = self._rests_until = time.monotonic() + REST
        return ticked

    def _tick(self, left: set[str]) -> bool:
        names = [name for name in self.names() if name not in left]
        question = SQL.take_due, {"names": names, "ahead": self._ahead}
        with sql.batch(self.using, question) as [rows]:
            if not rows:
                return False
            [(clock_id, name, topic_id, cron, tz, missed, overlap, *times)] = rows
            first, now = (datetime.fromtimestamp(seconds, UTC) for seconds in times)
            skips = overlap == "skip"
            if skips and self._ahead:
                now = first  # one by one: the next one is another turn
            of_all = missed == "all" or bool(self._ahead)
            try:
                following = next(ticks_after(cron, tz, now), None)
                ticks = newest_ticks(cron, tz, first, now, most=MOST_MISSED if of_all else 1)
            except (ArithmeticError, LookupError, OSError, RuntimeError, ValueError):  # a zone that isn't known here
                logger.exception("Clock %s can't tick in this process: its times can't be computed.", name)
                self._broken.add(name)
                return True
            if missed == "skip" and not self._ahead:
                ticks = [tick for tick in ticks if now - tick.astimezone(UTC) < LATE]
            if skips and ticks:
                ticks = self._without_overlap(clock_id, name, topic_id, ticks)
            else:
                publish_ticks(self.using, clock_id, ticks)
            sql.fetch(self.using, SQL.move_on, clock_id=clock_id, next_at=following, last_at=_last(ticks))
        if skips and ticks and self._ahead:
            self._rounded.add(name)
        return True

    def _without_overlap(self, clock_id: int, name: str, topic_id: int, ticks: list[datetime]) -> list[datetime]:
        """Publish the newest tick if the one before is handled, otherwise leave it out; returns what is published."""
        tick = ticks[-1]
        try:
            before = last_tick(self.using, clock_id, topic_id)
        except DatabaseError as error:
            if sql.kind_of(error).of_server:
                raise
            raise Undecided(name) from error
        if before.consumer is None:
            [(ticket, published_at)] = publish_ticks(self.using, clock_id, [tick])
            sql.fetch(
                self.using,
                SQL.remember,
                clock_id=clock_id,
                ticket=ticket,
                published_at=published_at,
                behind=before.log_ends_at,
            )
            return [tick]
        [(count,)] = sql.fetch(
            self.using,
            SQL.leave_out,
            clock_id=clock_id,
            tick=tick,
            consumer=before.consumer,
            state=before.state,
            event_id=before.event_id,
        )
        logger.warning(
            "Clock %s leaves out its tick %s, the %s. so far: consumer %s has not handled the one before (%s).",
            name,
            tick.isoformat(),
            count,
            before.consumer,
            before.state,
            extra={"database": self.using, "clock": name, "consumer": before.consumer, "state": before.state},
        )
        return []


def last_tick(using: str, clock_id: int, topic_id: int) -> LastTick:
    """What became of the last tick, in the caller's transaction, which has the clock's row locked."""
    try:
        with transaction.atomic(using):
            return _looked_behind(using, clock_id, topic_id, sql.shared.meets)
    except DatabaseError as error:
        if not sql.kind_of(error).of_data:
            raise
        # A predicate fails on the event: its consumer stops at it, so it has not handled it.
        with transaction.atomic(using):
            return _looked_behind(using, clock_id, topic_id, sql.shared.meets_unknown)


def _looked_behind(using: str, clock_id: int, topic_id: int, meets: sql.Statement) -> LastTick:
    statement = SQL.look_behind.on(log=log_table(topic_id), topic_id=topic_id, meets=meets)
    [row] = sql.fetch(using, statement, clock_id=clock_id)
    return LastTick._make(row)


def publish_ticks(using: str, clock_id: int, ticks: Iterable[datetime]) -> sql.Rows:
    """Put an event for each tick into the buffer, in the caller's transaction, which has the clock's row locked.

    Returns the ticket of the last one, and when it was published.
    """
    return sql.fetch(using, SQL.publish_ticks, clock_id=clock_id, ticks=[tick.isoformat() for tick in ticks])


def _last(ticks: list[datetime]) -> datetime | None:
    return ticks[-1] if ticks else None
