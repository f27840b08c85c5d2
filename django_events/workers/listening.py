"""The one LISTEN connection of a process to a database, shared by all its workers.

with closing(Listener("default")) as listener:
    listener.on("django_events_log", lambda payload: flag.set())
    listener.start()

A notification is a hint to look, never more. Callbacks are also called, with an empty payload, when a notification may
have been missed, and workers poll as well. While `listening` is false, polling is all they have.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg

from django_events.conf import settings
from django_events.phrases import without_details
from django_events.sql.direct import is_pooled, noticing_the_client, raw
from django_events.statements import Statement, beside
from django_events.workers.loop import LONGEST_RETRY, pause_after
from django_events.workers.stopping import Stop
from django_events.workers.wakeup_flag import WakeupFlag

logger = logging.getLogger("django_events.wakeups")
SQL = beside(__name__)

LISTENING_POLL = 5.0  # seconds between two looks of an idle worker or transfer that would be told of all that is new
CONNECT_TIMEOUT = 5  # seconds, unless the site's OPTIONS say otherwise: closing waits for an attempt to end

Connection = psycopg.Connection[Any]
Callback = Callable[[str], None]


class ListenSession:
    """One LISTEN connection until it is lost. Its advisory locks end with it."""

    def __init__(self, connection: Connection, broken: WakeupFlag) -> None:
        self.error: psycopg.Error | None = None
        self._connection = connection
        self._broken = broken

    def ask(self, statement: Statement, **parameters: object) -> Any:
        """Run a statement, from any thread, and return its one value. An error ends the session."""
        try:
            row = _execute(self._connection, statement, **parameters).fetchone()
        except psycopg.Error as error:
            self.error = error
            self._broken.set()
            raise
        return row and row[0]


class Listener:
    """Calls callbacks for the notifications of their channels, in its own thread or in one that asks a session.

    The connection is locked during a callback, so a callback must not ask the session: let it set a wake-up flag. Only
    the listener's thread opens and closes the connection, and it makes a new one after a loss.
    """

    def __init__(self, using: str) -> None:
        self.using = using
        self.session: ListenSession | None = None
        self.pooled = False
        self._callbacks: list[tuple[str, Callback]] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = Stop()
        self._look = WakeupFlag()
        self._lost = False

    @property
    def listening(self) -> bool:
        """Whether the connection is up."""
        return self.session is not None

    @property
    def pause(self) -> float:
        """How long to wait at most without looking everywhere, in seconds: longer where news are heard."""
        poll = settings.POLL_INTERVAL.total_seconds()
        return max(poll, LISTENING_POLL) if self.listening else poll

    def on(self, channel: str, callback: Callback) -> None:
        """Call back with the payload of every notification from now on, and once as soon as it listens."""
        self._callbacks.append((channel, callback))
        self._look.set()

    def start(self) -> None:
        """Connect, in a thread. Repeating it does nothing."""
        with self._lock:
            if self._thread is None and not self._stop.requested:
                name = f"django_events listener of {self.using}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()

    def close(self) -> None:
        """End the thread and the connection; the server releases its locks. Repeating it does nothing."""
        self._stop.request()
        with self._lock:
            if self._thread is not None:
                self._thread.join()
            self._stop.close()
            self._look.close()

    def _run(self) -> None:
        failures = 0
        while not self._stop.requested and not self.pooled:
            began = time.monotonic()
            try:
                self._connect_and_listen()
            except Exception as error:  # also what a site's own way to connect raises
                self._say_lost(error)
                lasted = time.monotonic() - began > LONGEST_RETRY
                failures = 1 if lasted else failures + 1
                self._stop.wait(pause_after(failures))

    def _connect_and_listen(self) -> None:
        connection = raw(self.using, connect_timeout=CONNECT_TIMEOUT)
        try:
            if is_pooled(connection):
                self._say_pooled()
            else:
                self._listen(connection)
        finally:
            self.session = None
            with connection.lock:
                connection.close()

    def _listen(self, connection: Connection) -> None:
        connection.add_notify_handler(lambda notify: self._tell(notify.channel, notify.payload))
        _execute(connection, SQL.wait_idle)
        for name, value in noticing_the_client().items():
            _execute(connection, SQL.set_for_session, name=name, value=value)
        session = ListenSession(connection, self._look)
        known = 0
        while not self._stop.requested:
            new = self._callbacks[known:]
            for channel, _ in new:
                _execute(connection, SQL.listen.on(channel=channel))
            if self.session is None:
                self.session = session
                self._say_back()
            for _, callback in new:
                _call(callback, "")
            known += len(new)
            self._stop.wait(None, connection.pgconn.socket, self._look.fileno())
            self._look.consume()
            if session.error is not None:
                raise session.error
            self._receive(connection)

    def _receive(self, connection: Connection) -> None:
        """Read notifications, with the connection locked, or it would read the answer to another thread's statement.

        psycopg calls the handler for notifications that come together with such an answer, in that other thread.
        """
        with connection.lock:
            connection.pgconn.consume_input()
            while notify := connection.pgconn.notifies():
                self._tell(notify.relname.decode(), notify.extra.decode())

    def _tell(self, channel: str, payload: str) -> None:
        for name, callback in tuple(self._callbacks):
            if name == channel:
                _call(callback, payload)

    def _say_lost(self, error: Exception) -> None:
        """Log a loss once, and wake the workers, so that they go over to polling."""
        if self._lost:
            return
        self._lost = True
        logger.warning(
            "The LISTEN connection to %r is lost: polling every %s s until it is back. %s",
            self.using,
            settings.POLL_INTERVAL.total_seconds(),
            without_details(error),
        )
        for _, callback in tuple(self._callbacks):
            _call(callback, "")

    def _say_back(self) -> None:
        if self._lost:
            self._lost = False
            logger.info("The LISTEN connection to %r is back.", self.using)

    def _say_pooled(self) -> None:
        self.pooled = True
        logger.info(
            "The database %r is reached through a pooler, which keeps no LISTEN: polling every %s s.",
            self.using,
            settings.POLL_INTERVAL.total_seconds(),
        )


def _execute(connection: Connection, statement: Statement, **parameters: object) -> psycopg.Cursor[Any]:
    return connection.execute(statement.text.encode(), parameters)


def _call(callback: Callback, payload: str) -> None:
    """Any role may notify with any payload: an error of a callback must not end the connection."""
    try:
        callback(payload)
    except Exception:
        logger.exception("A callback failed on the notification %r.", payload)
