"""One thread for each database looks for all who wait in this process, however many they are.

    lookout = lookout_of(using)
    lookout.add(wait)         # calls wait.tell() when it is over
    lookout.discard(wait)

The thread starts with the first wait and ends soon after the last one. It has a connection of its own, and no
transaction between two looks. A wait is looked at sooner the younger it is, and the thread rests at least as long as it
looked. So one wait is over within milliseconds, and thousands cost what one does.
"""

import logging
import os
import threading
import time
from typing import Any

from django.db import DatabaseError, InterfaceError, connections

from django_events import sql
from django_events.deriving.passed import LATEST, Wait, look, removed
from django_events.sql.prepared import SharedSession
from django_events.sql.search_path import search_path

logger = logging.getLogger("django_events.waiting")

IDLE = 1.0  # seconds without a wait, then the thread ends, and its connection
TOGETHER = 0.001  # seconds: what is due so soon is looked at now
AFTER_LOSS = 0.1  # seconds, until a connection is tried again


class Lookout:
    """Looks for those who wait for what is in one database, in a thread that starts with the first."""

    def __init__(self, using: str) -> None:
        self.using = using
        self._waits: dict[int, Wait] = {}  # by their identity
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._connection: Any = None  # the driver's, which has this:
        self._search_path = ""

    def add(self, wait: Wait) -> None:
        """Look for a wait until it is over, or discarded."""
        with self._changed:
            self._waits[id(wait)] = wait
            if self._thread is None or not self._thread.is_alive():
                name = f"django_events lookout of {self.using}"
                self._thread = threading.Thread(target=self._run, name=name, daemon=True)
                self._thread.start()
            self._changed.notify()

    def discard(self, wait: Wait) -> None:
        with self._changed:
            self._waits.pop(id(wait), None)
            self._changed.notify()

    def _run(self) -> None:
        self._session, self._connection = SharedSession(self.using), None
        try:
            while due := self._next():
                self._look(due)
        finally:
            connections.close_all()

    def _next(self) -> list[Wait]:
        """The waits that are due, after waiting for them; none where the thread is to end."""
        idle_until = time.monotonic() + IDLE
        with self._changed:
            while True:
                now = time.monotonic()
                if due := [wait for wait in self._waits.values() if wait.look_at <= now + TOGETHER]:
                    return due
                if self._waits:
                    idle_until = now + IDLE
                    self._changed.wait(min(wait.look_at for wait in self._waits.values()) - now)
                elif now < idle_until:
                    self._changed.wait(idle_until - now)
                else:
                    self._thread = None
                    return []

    def _look(self, due: list[Wait]) -> None:
        began = time.monotonic()
        self._ask(due)
        for wait in due:
            if wait.over:
                self.discard(wait)
                self._tell(wait)
        time.sleep(min(time.monotonic() - began, LATEST))  # one that waited for a lock needs no such rest

    def _ask(self, due: list[Wait]) -> None:
        try:
            wrapper = connections[self.using]
            wrapper.ensure_connection()
            if wrapper.connection is not self._connection:
                self._session.renew()
                self._connection, self._search_path = wrapper.connection, search_path(self.using)
            look(self.using, due, self._session, search_path=self._search_path)
        except (DatabaseError, InterfaceError) as error:
            self._failed(due, error)
        except Exception as error:  # it must reach those who wait, and not end the thread
            for wait in due:
                wait.end(error)

    def _told(self, wait: Wait, error: Exception) -> Exception:
        if sql.kind_of(error) is not sql.ErrorKind.TABLE_GONE:
            return error
        try:
            return removed(self.using, wait) or error
        except (DatabaseError, InterfaceError):
            return error

    def _tell(self, wait: Wait) -> None:
        try:
            wait.tell()
        except Exception as error:  # its caller's event loop may end in this moment; others still wait
            logger.debug("One that waited can't be told that it is over. %s", error, extra={"database": self.using})

    def _failed(self, due: list[Wait], error: Exception) -> None:
        """A connection that is lost is made anew while there is time; any other error is for the one that met it."""
        connections.close_all()
        if isinstance(error, InterfaceError) or sql.kind_of(error).of_server:
            for wait in due:
                wait.look_at = time.monotonic() + AFTER_LOSS
            logger.warning(
                "The database %r can't be asked what its consumers have passed. %s",
                self.using,
                sql.said(error),
                extra={"database": self.using},
            )
        elif len(due) > 1:
            for wait in due:
                self._ask([wait])
        else:
            due[0].end(self._told(due[0], error))


_lookouts: dict[str, Lookout] = {}
_making = threading.Lock()


def lookout_of(using: str) -> Lookout:
    """The lookout of this process for a database."""
    with _making:
        return _lookouts.setdefault(using, Lookout(using))


def _start_empty() -> None:
    """A forked child has none of its parent's threads."""
    global _making
    _making = threading.Lock()
    _lookouts.clear()


os.register_at_fork(after_in_child=_start_empty)
