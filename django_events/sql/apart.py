"""A connection beside Django's, for a look that must never wait for longer than it is given.

with Apart("default", seconds=2) as apart:
    [[name]] = apart.ask(sql.statement("names_of_topics"))

Each answer is awaited by hand, because a server that is frozen, or cut off, ends nothing by itself. Only what
resolves the name of a host has limits of its own.
"""

import select
import time
from types import TracebackType
from typing import Any, Self

import psycopg
from django.db import connections
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGresult

from django_events.sql import INSUFFICIENT_PRIVILEGE
from django_events.statements import Statement, literal, statement

Texts = list[tuple[str | None, ...]]


class NoAnswer(Exception):
    """The database can't be reached, says no, or takes too long."""


def parameters(using: str) -> dict[str, Any]:
    """What psycopg needs for a connection to the same database."""
    found: dict[str, Any] = connections[using].get_connection_params()
    for django_only in ("cursor_factory", "context"):
        found.pop(django_only, None)
    return found


class Refused(NoAnswer):
    """It answers, and says that the role may not ask this."""


def _no_answer(result: PGresult) -> NoAnswer:
    if result.error_field(DiagnosticField.SQLSTATE) == INSUFFICIENT_PRIVILEGE.encode():
        return Refused((result.error_field(DiagnosticField.MESSAGE_PRIMARY) or b"").decode())
    return NoAnswer(result.get_error_message().strip())


class Apart:
    """The connection, and a limit for making it and for each answer. It has the values as texts."""

    def __init__(self, using: str, *, seconds: int) -> None:
        self._seconds = seconds
        self._role: str | None = connections[using].settings_dict["OPTIONS"].get("assume_role")
        try:
            self._connection: psycopg.Connection[Any] = psycopg.connect(
                **{**parameters(using), "connect_timeout": seconds, "autocommit": True}
            )
        except psycopg.Error as error:
            raise NoAnswer(str(error).strip()) from error

    def ask(self, statement: Statement) -> Texts:
        """The rows of a statement without parameters."""
        try:
            return self._ask(statement)
        except psycopg.Error as error:
            raise NoAnswer(str(error).strip()) from error

    @property
    def is_pooled(self) -> bool:
        """Whether the backend that answers is not the one that was connected to."""
        return self.ask(statement("backend")) != [(str(self._connection.info.backend_pid),)]

    def _ask(self, asked: Statement) -> Texts:
        server = self._connection.pgconn
        message = [statement("bounded").on(milliseconds=literal(f"{self._seconds * 1000}")), asked]
        if self._role:  # with each statement, so that a pooler gives it to nobody else
            message.insert(1, statement("in_role").on(role=literal(self._role)))
        server.send_query(";\n".join(part.text for part in message).encode())
        self._wait()
        rows: Texts = []
        while (result := server.get_result()) is not None:
            if result.status != ExecStatus.TUPLES_OK:
                raise _no_answer(result)
            columns = range(result.nfields)
            values = ([result.get_value(row, column) for column in columns] for row in range(result.ntuples))
            rows = [tuple(None if value is None else value.decode() for value in row) for row in values]
            self._wait()
        return rows

    def _wait(self) -> None:
        """Until the next result is there, so that nothing waits for it without a limit."""
        server, until = self._connection.pgconn, time.monotonic() + self._seconds
        ready = select.poll()
        ready.register(server.socket, select.POLLIN)
        while server.is_busy():
            left = until - time.monotonic()
            if left <= 0 or not ready.poll(left * 1000):
                raise NoAnswer(f"The database did not answer within {self._seconds} s.")
            server.consume_input()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._connection.close()
