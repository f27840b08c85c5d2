"""Wake-ups: an idle transfer sleeps without polling, and a publisher wakes it in milliseconds.

A publisher takes an advisory lock, shared, until its transaction ends. If the lock is refused, it sends a notification.
The transfer takes the same lock exclusively before it sleeps, and then looks once more. So a publisher either finds the
transfer asleep and wakes it, or keeps it from falling asleep until its events are visible. Nothing is written. A
transfer that is woken once keeps the lock. One that finds events again and again releases it, so that publishers under
load notify nothing. The server releases the lock of a transfer that dies.

Where publishers don't notify, because transactions can be prepared on the server, and where there is no LISTEN
connection, or it goes through a pooler, polling finds the events: a millisecond after some were found, then after twice
as long each time, up to a poll interval. Wake-ups by others don't put that off.
"""

import threading
import time
from contextlib import suppress
from math import inf

import psycopg

from django_events import sql
from django_events.conf import settings
from django_events.log import channel
from django_events.workers.listening import LISTENING_POLL, Listener, ListenSession
from django_events.workers.stopping import Stop
from django_events.workers.wakeup_flag import WakeupFlag

SQL = sql.beside(__name__)

SHORTEST_PAUSE = 0.001
SOON = 1.0  # where a wake-up may be missed, look at least so often, in seconds

NO_WAKE_UPS = (
    "Transactions can be prepared on this server (max_prepared_transactions is {most}), so publishers wake no transfer:"
    " it looks after milliseconds while events come, and every {poll:g} s while none do. Where no transaction that"
    " publishes is prepared, set DJANGO_EVENTS['WAKE_UPS'] = True."
)
SWITCHED_OFF = (
    "DJANGO_EVENTS['WAKE_UPS'] is False, so publishers wake no transfer: it looks after milliseconds while events come,"
    " and every {poll:g} s while none do."
)


def why_polling(using: str) -> str | None:
    """Why publishers wake no transfer of this database, so that events wait for its next look; None if they do."""
    poll = settings.POLL_INTERVAL.total_seconds()
    if settings.WAKE_UPS is not None:
        return None if settings.WAKE_UPS else SWITCHED_OFF.format(poll=poll)
    rows = sql.fetch(using, sql.shared.server_settings, names=["max_prepared_transactions"])
    return next((NO_WAKE_UPS.format(most=most, poll=poll) for _, most in rows if most != "0"), None)


class WakeUps:
    """The sleep of a transfer, and the lock that tells publishers of it. For one thread."""

    def __init__(self, listener: Listener, wakeup: WakeupFlag, *, poll: float, soon: float = SOON) -> None:
        self.poll = poll
        self._soon = soon
        self._listener = listener
        self._wakeup = wakeup
        self._locked: ListenSession | None = None  # the session that has the lock, which ends with it
        self._all_notify = False
        self._pause = SHORTEST_PAUSE
        self._naming = threading.Lock()
        self._named: set[int] = set()
        self._look_everywhere = True
        self._look_by: float | None = None  # when it looks at all topics, however often it is woken before
        listener.on(channel.WAKE_UP, self._rung)

    @property
    def asleep(self) -> bool:
        """Whether it holds the lock, so that publishers notify."""
        return self._locked is not None and self._locked is self._listener.session

    def wait(self, stop: Stop, *, at_most: float | None = None) -> None:
        """Return when there may be something to do: at a wake-up, or after a poll interval or `at_most` seconds."""
        self._listener.start()
        limit = inf if at_most is None else max(at_most, 0.0)
        try:
            self._wait(stop, limit)
        except psycopg.Error:  # the listener logs it, and makes a new connection
            self._look_everywhere = True
            stop.wait(min(self.poll, self._soon, limit))

    def take(self) -> set[int] | None:
        """The topics that publishers have named since this was asked; None if any topic may have events."""
        self._wakeup.consume()
        with self._naming:
            named, self._named = self._named, set()
            everywhere, self._look_everywhere = self._look_everywhere, False
        if everywhere or not self.asleep:
            self._look_by = None
            return None
        if named and self._all_notify:
            # What a publisher did besides, as scheduling an event, is not in what it names.
            self._pause = SHORTEST_PAUSE
            if self._look_by is not None:
                self._look_by = min(self._look_by, time.monotonic() + max(self.poll, self._soon))
        return named

    def look_again(self) -> None:
        """Any topic may have events, whatever publishers name."""
        self._look_everywhere = True

    def _rung(self, payload: str) -> None:
        with self._naming:
            if payload.isdecimal():
                self._named.add(int(payload))
            else:
                self._look_everywhere = True
        self._wakeup.set()

    def found(self) -> None:
        """Events were found by looking at all topics: look again soon, because no publisher may tell of the next."""
        self._pause = SHORTEST_PAUSE

    def busy(self) -> None:
        """There was something to do more than once in a row: publishers need not notify for now."""
        self.found()
        self._unlock()

    def close(self) -> None:
        """Release the lock."""
        self._unlock()

    def _wait(self, stop: Stop, limit: float) -> None:
        session = self._listener.session
        if session is None:
            longest = self.poll if self._listener.pooled else min(self.poll, self._soon)
            self._wakeup.wait(stop, min(self._next_pause(longest), limit))
        elif self._locked is session:
            # Only events that were inserted without notifying are left to be found by polling.
            if self._look_by is None:
                pause = self._next_pause(LISTENING_POLL if self._all_notify else self.poll)
                if self._all_notify:
                    pause = max(pause, self.poll, self._soon)
                self._look_by = time.monotonic() + pause
            remaining = self._look_by - time.monotonic()
            if remaining > 0 and self._wakeup.wait(stop, min(remaining, limit)):
                return
        elif (prepared := session.ask(SQL.lock_to_sleep, lock=channel.ASLEEP)) is not None:
            self._locked = session  # now publishers notify; events published before are found by looking once more
            self._all_notify = prepared == "0" and settings.WAKE_UPS is not False
        elif self._another_sleeps(session):
            # When that transfer ends, the lock is free, so publishers don't notify this one.
            self._wakeup.wait(stop, min(self.poll, self._soon, limit))
        else:
            # An open publisher doesn't notify, so look again soon, and less often the longer it takes.
            stop.wait(min(self._next_pause(min(self.poll, self._soon)), limit))
        self._look_everywhere = True

    def _next_pause(self, longest: float) -> float:
        """The pause until the next look, twice as long as the one before since there was something to do."""
        pause = min(self._pause, longest)
        self._pause = pause * 2
        return pause

    def _another_sleeps(self, session: ListenSession) -> bool:
        """Whether another transfer has the lock: only a transfer takes it exclusively, publishers share it."""
        if not session.ask(SQL.share_lock, lock=channel.ASLEEP):
            return True
        session.ask(SQL.unshare_lock, lock=channel.ASLEEP)
        return False

    def _unlock(self) -> None:
        session = self._locked if self.asleep else None
        self._locked = None
        if session is not None:
            with suppress(psycopg.Error):  # then the session ends, and the lock with it
                session.ask(SQL.unlock, lock=channel.ASLEEP)
