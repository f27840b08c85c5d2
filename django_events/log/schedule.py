"""Scheduled events: when their time has come, the transfer moves them into the buffer, in the order of their times.

schedule = Schedule(using)
rows = sql.fetch(using, SQL.pending, scheduled_from=schedule.asked(), …)
schedule.answered(seconds until the next one, or None)
if schedule.is_due:
    schedule.publish(limit=5_000)
"""

import time
from datetime import timedelta

from django_events import sql
from django_events.log import channel

SQL = sql.beside(__name__)

# What is scheduled by a transaction that ends after the time it names is behind what was published already. The way
# there may be long while an old snapshot keeps dead rows, so it is not gone each time.
LOOK_BACK_EVERY = 1.0  # seconds
LOOK_BACK_SHARE = 20

HAIR = 0.001  # seconds


class Schedule:
    """What a transfer knows of the events that are for later. Nothing has to be true but that it looks again."""

    def __init__(self, using: str, *, ahead: timedelta = timedelta(0)) -> None:
        self.using = using
        self._ahead = ahead
        self.forget()

    def forget(self) -> None:
        """Start anew with a full look."""
        self._passed = "-infinity"  # up to when it was published
        self._look_back_at = self._asked_at = 0.0
        self._looks_back = False
        self._due_at: float | None = None

    def asked(self) -> str:
        """The time from which on to look for the next one."""
        self._asked_at = time.monotonic()
        self._looks_back = self._asked_at >= self._look_back_at
        return self._from_when

    @property
    def _from_when(self) -> str:
        return "-infinity" if self._looks_back else self._passed

    def answered(self, seconds: float | None) -> None:
        """Note in how many seconds the next one is due; None if there is none."""
        now = time.monotonic()
        # A hair late, lest it be just too early by the database's clock.
        self._due_at = None if seconds is None else now + seconds - self._ahead.total_seconds() + HAIR
        if self._looks_back:
            self._look_back_at = now + max(LOOK_BACK_EVERY, LOOK_BACK_SHARE * (now - self._asked_at))

    @property
    def is_due(self) -> bool:
        return self.pause is not None and self.pause <= 0

    @property
    def pause(self) -> float | None:
        """In how many seconds the next one is due, as far as one knows."""
        return None if self._due_at is None else self._due_at - time.monotonic()

    def publish(self, *, limit: int) -> int:
        """Move what is due into the buffer, the first in time first; returns how many events that were.

        There are none if another transfer is at it, or if another session has locked them: it will be asked again.
        """
        question = (
            SQL.publish_due,
            {"lock": channel.PUBLISHING_DUE, "scheduled_from": self._from_when, "ahead": self._ahead, "limit": limit},
        )
        with sql.batch(self.using, question) as [[(events, passed)]]:
            pass
        self._due_at = None  # until it is asked again
        if passed is not None:
            self._passed = passed
        return int(events)
