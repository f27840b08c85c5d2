"""Clocks: at the times of a declared clock, the transfer puts an event into the buffer.

ticks = DueTicks(using)
with sql.batch(using, …, *ticks.questions()) as [rows, *answers]:
    ticks.answered(*answers)
if ticks.is_due:
    ticks.publish()

One transaction locks the clock's row, inserts the events and moves its next tick on: each tick is published once,
whichever transfers try, die or wake up.
"""

import logging
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from django_events import declarations, sql
from django_events.declarations.cron import newest_ticks, ticks_after

logger = logging.getLogger("django_events.transfer")
SQL = sql.beside(__name__)

MOST_MISSED = 1_000  # ticks, the newest ones
LATE = timedelta(minutes=1)  # from then on missed="skip" leaves a tick out
HAIR = 0.001  # seconds
REST = 1.0  # seconds, where another session has locked what is due
ASKED_EVERY = 1.0  # seconds: what is known of the next tick is that old at most; a clock paused meanwhile doesn't tick


class DueTicks:
    """What a transfer knows of the ticks to come. Nothing has to be true but that it asks again."""

    def __init__(self, using: str, *, ahead: timedelta = timedelta(0)) -> None:
        self.using = using
        self._ahead = ahead
        self._broken: set[str] = set()
        self.forget()

    def forget(self) -> None:
        self._due_at: float | None = None
        self._rests_until = self._ask_at = 0.0

    def names(self) -> list[str]:
        """The clocks that this process declares: others are not its business."""
        return [clock.name for clock in declarations.clocks if clock.name not in self._broken]

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
        ticked = 0
        self._due_at, self._ask_at = None, 0.0
        while self._tick():
            ticked += 1
        if not ticked:
            self._due_at = self._rests_until = time.monotonic() + REST
        return ticked

    def _tick(self) -> bool:
        question = SQL.take_due, {"names": self.names(), "ahead": self._ahead}
        with sql.batch(self.using, question) as [rows]:
            if not rows:
                return False
            [(clock_id, name, cron, tz, missed, *times)] = rows
            first, now = (datetime.fromtimestamp(seconds, UTC) for seconds in times)
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
            publish_ticks(self.using, clock_id, ticks)
            sql.fetch(self.using, SQL.move_on, clock_id=clock_id, next_at=following, last_at=_last(ticks))
            return True


def publish_ticks(using: str, clock_id: int, ticks: Iterable[datetime]) -> None:
    """Put an event for each tick into the buffer, in the caller's transaction, which has the clock's row locked."""
    sql.fetch(using, SQL.publish_ticks, clock_id=clock_id, ticks=[tick.isoformat() for tick in ticks])


def _last(ticks: list[datetime]) -> datetime | None:
    return ticks[-1] if ticks else None
