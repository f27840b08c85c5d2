"""Wake-ups: the transfer sleeps without looking, and a publisher wakes it in milliseconds.

A publisher takes a lock, shared, until it ends; only where it is refused does it notify. The transfer
takes the same lock alone before it sleeps, and looks once more. So a publisher either finds the
transfer asleep and wakes it, or keeps it from falling asleep until its events can be seen. Nothing is
written, and publishers under load notify nobody. The lock of a transfer that dies is released by the server.

Where there is no LISTEN connection, or it goes through a pooler, polling finds the events as well.
"""

import logging
from contextlib import suppress
from typing import Any

import psycopg
from django.db import connections
from psycopg import sql

from django_events.workers.stopping import Stop

logger = logging.getLogger("django_events.wakeups")

CHANNEL = "django_events"
LOCK = 7235707310506407027  # as in django_events_open(): 'djevents' in ASCII
SHORTEST_PAUSE = 0.001
SOON = 1.0  # where a wake-up may be missed, look at least so often, in seconds


class WakeUps:
    """One LISTEN connection of its own, and whether publishers are told that somebody sleeps."""

    def __init__(self, using: str, *, poll: float) -> None:
        self.using = using
        self.poll = poll
        self._connection: psycopg.Connection[Any] | None = None
        self._asleep = False
        self._rung = False
        self._pause = SHORTEST_PAUSE
        self._can_listen = True
        self._lost = False

    def wait(self, stop: Stop) -> None:
        """Return when there may be something to do: at a wake-up, or after a poll interval at most."""
        try:
            self._wait(stop)
        except psycopg.Error as error:
            self._log_lost(error)
            self.close()
            stop.wait(min(self.poll, SOON))

    def busy(self) -> None:
        """There was something to do: publishers need not notify for now."""
        self._pause = SHORTEST_PAUSE
        self._rung = False
        if self._asleep and self._connection is not None:
            self._asleep = False
            try:
                self._connection.execute("SELECT pg_advisory_unlock(%s)", [LOCK])
            except psycopg.Error as error:
                self._log_lost(error)
                self.close()

    def close(self) -> None:
        """Let the LISTEN connection go; the server releases the lock with it."""
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
        self._connection, self._asleep = None, False

    def _wait(self, stop: Stop) -> None:
        if self._connection is None and self._can_listen:
            self._listen()
        if self._connection is None:
            stop.wait(self.poll)
        elif self._asleep:
            self._wait_for_notify(self._connection, stop, self.poll)
        elif self._may_sleep(self._connection):
            self._asleep = True  # now publishers notify; who came before is seen by looking once more
        elif self._somebody_else_sleeps(self._connection):
            # When that one ends, nobody sleeps, so publishers don't notify.
            self._wait_for_notify(self._connection, stop, min(self.poll, SOON))
        else:
            # A publisher is at work. It doesn't notify, so look again soon, and less often the longer it takes.
            stop.wait(min(self._pause, self.poll))
            self._pause = min(self._pause * 2, SOON)

    def _listen(self) -> None:
        wrapper = connections[self.using]
        parameters = {
            k: v for k, v in wrapper.get_connection_params().items() if k not in ("cursor_factory", "context")
        }
        connection: psycopg.Connection[Any] = psycopg.connect(**{**parameters, "autocommit": True})
        row = connection.execute("SELECT pg_backend_pid()").fetchone()
        if row is None or row[0] != connection.info.backend_pid:
            connection.close()
            self._can_listen = False
            logger.info(
                "The database %r is reached through a pooler, which keeps no LISTEN: polling every %s s.",
                self.using,
                self.poll,
            )
            return
        connection.add_notify_handler(self._ring)
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(CHANNEL)))
        self._connection = connection
        if self._lost:
            logger.info("The LISTEN connection to %r is back.", self.using)
            self._lost = False

    def _may_sleep(self, connection: psycopg.Connection[Any]) -> bool:
        row = connection.execute("SELECT pg_try_advisory_lock(%s)", [LOCK]).fetchone()
        return row is not None and row[0]

    def _somebody_else_sleeps(self, connection: psycopg.Connection[Any]) -> bool:
        """Only another transfer holds the lock alone; publishers share it, also with us."""
        row = connection.execute("SELECT pg_try_advisory_lock_shared(%s)", [LOCK]).fetchone()
        if row is not None and row[0]:
            connection.execute("SELECT pg_advisory_unlock_shared(%s)", [LOCK])
            return False
        return True

    def _wait_for_notify(self, connection: psycopg.Connection[Any], stop: Stop, seconds: float) -> None:
        pgconn = connection.pgconn
        if not self._rung:
            stop.wait(seconds, pgconn.socket)
            pgconn.consume_input()
        while pgconn.notifies():
            self._rung = True
        if self._rung:
            self.busy()

    def _ring(self, notify: psycopg.Notify) -> None:
        """A notification that arrived with the answer to something else."""
        self._rung = True

    def _log_lost(self, error: psycopg.Error) -> None:
        if not self._lost:
            logger.warning(
                "The LISTEN connection to %r is lost: polling every %s s until it is back. %s",
                self.using,
                self.poll,
                str(error).strip(),
            )
            self._lost = True
