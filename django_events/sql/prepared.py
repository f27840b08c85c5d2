"""Prepared statements, on the connection of a thread that has it for itself.

    session = prepared.begin(using, {**sql.BATCH_SETTINGS, **sql.vanishing()})
    if session is not None and session.is_good:
        rows = session.ask(SQL.move.on(…), mark=7, most=100)

Each is a transaction by itself, of one message, and the server plans it once. The settings hold as long as the
connection does, so nothing else may get it: behind a pooler, or in Django's own pool, there is no such session.
"""

from collections.abc import Mapping
from typing import Any, cast

import psycopg
from django.db import DatabaseError, connections

from django_events.database_errors import state
from django_events.phrases import cut_details
from django_events.sql.direct import is_pooled
from django_events.statements import Statement, beside

SQL = beside(__name__)

ONLY_WHEN_ASKED = 2**31  # executions of a statement after which psycopg would prepare it by itself
FORGOTTEN = "26000"  # the state of an error: the server has no such prepared statement
ONE_PLAN = {
    "plan_cache_mode": "force_generic_plan",  # instead of planning the first five runs, and any that looks dearer
    "default_transaction_isolation": "read committed",
}


class PreparedSession:
    """A connection with settings and prepared statements, until it is closed, or the server was told to forget them."""

    def __init__(self, using: str, connection: "psycopg.Connection[Any]") -> None:
        self.using = using
        self._connection = connection
        self._forgotten = False

    @property
    def is_good(self) -> bool:
        """Whether this thread's connection is still that one, and no transaction is open.

        Django connects anew without a word after a loss, and the new connection lacks the settings.
        """
        wrapper = connections[self.using]
        return wrapper.connection is self._connection and not wrapper.in_atomic_block and not self._forgotten

    def ask(self, statement: Statement, **parameters: object) -> list[tuple[Any, ...]]:
        """Run a statement, which is prepared at its first run, and return its rows.

        Parameters travel as texts and have the types that the statement casts them to, so there is one plan.
        """
        texts = {name: None if value is None else _text(value) for name, value in parameters.items()}
        try:
            with connections[self.using].wrap_database_errors, psycopg.Cursor(self._connection) as cursor:
                cursor.execute(statement.text.encode(), texts, prepare=True)
                return cursor.fetchall()
        except DatabaseError as error:
            cut_details(error)
            self._forgotten = state(error) == FORGOTTEN
            raise


def begin(using: str, settings: Mapping[str, str]) -> PreparedSession | None:
    """Make this thread's open connection a session with these settings; None if another program may get it later."""
    wrapper = connections[using]
    connection = cast("psycopg.Connection[Any]", wrapper.connection)
    if wrapper.settings_dict.get("OPTIONS", {}).get("pool") or is_pooled(connection):
        return None
    settings = {**settings, **ONE_PLAN}
    change, parameters = SQL.set_for_session, {"names": list(settings), "values": list(settings.values())}
    with wrapper.wrap_database_errors, psycopg.ClientCursor(connection) as cursor:
        cursor.execute(change.text.encode(), parameters)
    connection.prepare_threshold = ONLY_WHEN_ASKED
    return PreparedSession(using, connection)


def _text(value: object) -> str:
    return "{" + ",".join(map(str, value)) + "}" if isinstance(value, list) else str(value)
