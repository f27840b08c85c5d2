"""Write a batch in one transaction, which is committed once however often it has to be tried.

flusher.begin()
repeated = flusher.write(events, progress)   # again, until it doesn't raise
"""

import os
import secrets
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import uuid4

from django.db import DatabaseError, InterfaceError, connections, transaction

from django_events import sql
from django_events.declarations import DeclaredTopic
from django_events.publishing.encoding import Encoded
from django_events.publishing.storing import explained, store

SQL = sql.beside(__name__)

# The key of a batch is forgotten with the next one, or this long after a process was killed. If the database is away
# for longer after a COMMIT without an answer, the batch is written twice.
KEEPING = timedelta(days=7)
UNLIMITED = {"statement_timeout": "0"}  # a site's limit is meant for pages: a batch that it cuts off is never done


class Flusher:
    """Writes the batches of one lane, in the lane's thread and by its connection."""

    def __init__(self, using: str, topic: DeclaredTopic, on_wire: Callable[["Wire | None"], None]) -> None:
        self.using = using
        self.topic = topic
        self._on_wire = on_wire
        self._name, self._count = f"django_events.writer/{uuid4().hex}", 0
        self._token = secrets.randbits(63)
        self._batch_key = ""
        self._last_key: str | None = None
        self._repeated: set[int] = set()
        self._lost = False

    def begin(self) -> None:
        """Begin another batch."""
        self._count += 1
        self._batch_key = f"{self._name}/{self._count}"

    def write(self, events: Sequence[Encoded], progress: Callable[[bool], None]) -> set[int]:
        """Commit the batch, unless an attempt before did; returns the indexes of events whose dedup key was taken.

        It tells when it knows that none did, and when it is going to.
        """
        self._connect()
        with explained(self.using, self.topic), transaction.atomic(self.using):
            if self._is_new():
                progress(False)
                self._repeated = store(self.using, self.topic, events)
                progress(True)
        self._last_key = self._batch_key
        return self._repeated

    def lose(self) -> None:
        """Close the connection after an error; the server may still be at work on the last attempt."""
        self._lost = True
        self.disconnect()

    def end(self) -> None:
        """Forget the key of the last batch, if the connection is open: nothing more is to be written."""
        if self._last_key is not None and connections[self.using].connection is not None:
            with suppress(DatabaseError, InterfaceError):
                sql.fetch(self.using, SQL.forget_batch, topic=self.topic.name, batch_key=self._last_key)

    def disconnect(self) -> None:
        self._on_wire(None)  # first: with a pool, the connection may be another thread's the next moment
        connections.close_all()

    def _connect(self) -> None:
        wrapper = connections[self.using]
        if wrapper.connection is None:
            wrapper.ensure_connection()
            with wrapper.wrap_database_errors:
                self._on_wire(Wire(wrapper.connection))
        if not wrapper.get_autocommit():  # a site may switch it off: nothing would commit
            wrapper.set_autocommit(True)
        if self._lost:
            with transaction.atomic(self.using):
                end_holder = sql.shared.end_holder, {"token": self._token}
                sql.fetch_each(self.using, sql.locally(UNLIMITED), end_holder)
            self._lost = False

    def _is_new(self) -> bool:
        *_, [(_, new)] = sql.fetch_each(
            self.using,
            sql.locally(UNLIMITED),
            (SQL.forget_batch, {"topic": self.topic.name, "batch_key": self._last_key}),
            (
                SQL.enter_batch,
                {"token": self._token, "topic": self.topic.name, "batch_key": self._batch_key, "keeping": KEEPING},
            ),
        )
        return bool(new)


class Wire:
    """The socket below a connection: the thread that gives up cuts it, so that the one that waits doesn't hang."""

    def __init__(self, connection: Any) -> None:
        # A descriptor of its own: that of the connection may be closed, and its number used again, at any time.
        self._socket = socket.socket(fileno=os.dup(connection.fileno()))

    def cut(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def forget(self) -> None:
        self._socket.close()
