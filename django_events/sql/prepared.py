"""Prepared statements: each is a transaction by itself, of one message, and the server plans it once.

    session = prepared.begin(using, {**sql.BATCH_SETTINGS, **sql.vanishing()})
    if session is not None and session.is_good:
        rows = session.ask(SQL.move.on(…), mark=7, most=100)

A transfer has its connection for itself, so its settings hold as long as the connection does. Handlers use a
consumer's connection too: there each message of a `SharedSession` brings its settings, which end with it. Behind a
pooler, or in Django's own pool, there is neither.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any, cast

import psycopg
from django.db import DatabaseError, connections
from django.db.backends.base.base import BaseDatabaseWrapper
from psycopg.adapt import Transformer
from psycopg.generators import execute
from psycopg.pq import ExecStatus

from django_events.database_errors import state
from django_events.phrases import cut_details
from django_events.sql.direct import error_of, is_pooled
from django_events.statements import Statement, beside, prepared

SQL = beside(__name__)

Rows = list[tuple[Any, ...]]
Question = tuple[Statement, Mapping[str, object]]  # with its parameters

ONLY_WHEN_ASKED = 2**31  # executions of a statement after which psycopg would prepare it by itself
FORGOTTEN = "26000"  # the state of an error: the server has no such prepared statement
PREPARE_EVERY, PREPARE_AGAIN = 1.0, 60.0  # seconds until another try: where there is no segment, and after an error
MOST_PREPARED = 100  # in a shared session: the one that was not asked for the longest is given up
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

    def ask(self, statement: Statement, **parameters: object) -> Rows:
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


class SharedSession:
    """The connection of a thread in which handlers run too, and the statements that are prepared on it.

    `renew()` is called where the thread may have connected anew, outside of a transaction.
    """

    _numbers = count(1)  # no name comes twice: the server may have forgotten some statements and not others

    def __init__(self, using: str, *, most: int = MOST_PREPARED) -> None:
        self.using = using
        self._most = most
        self._connection: psycopg.Connection[Any] | None = None
        self._executes: OrderedDict[str, tuple[str, Statement]] = OrderedDict()  # by text: its name, and what runs it
        self._pooled = False

    @property
    def is_good(self) -> bool:
        """Whether this thread's connection is the one that was looked at, and no transaction is open."""
        wrapper = connections[self.using]
        return not self._pooled and wrapper.connection is self._connection and not wrapper.in_atomic_block

    def renew(self) -> None:
        """Begin anew if this thread's connection is another one than before."""
        wrapper = connections[self.using]
        connection = cast("psycopg.Connection[Any]", wrapper.connection)
        if connection is not self._connection:
            self._executes.clear()
            self._pooled = _may_change(wrapper, connection)
            self._connection = connection

    def ask(self, statement: Statement, **parameters: object) -> Rows:
        """As `ask_each`, for one statement."""
        return self.ask_each((statement, parameters))[0]

    def ask_each(self, *questions: Question, last: Question | None = None) -> list[Rows]:
        """Run statements one after the other, in one message and transaction; returns the rows of each.

        They are prepared at their first run, planned by index, and see what was committed before each. Parameters have
        the types that the statement uses them with, so there is one plan. The `last` one is planned each time, for
        its own parameters.
        """
        with self._telling_errors(), psycopg.ClientCursor(self._raw) as cursor:
            cursor.execute(self._message(cursor, questions, last))
            answers: list[Rows] = []
            while cursor.nextset():
                if cursor.rownumber is not None:  # rows; `description` would make an object of each column
                    answers.append(cursor.fetchall())
            return answers

    def send(self, *questions: Question) -> None:
        """Ask as `ask_each` does, and wait for nothing. The connection can do nothing else until `receive`."""
        with self._telling_errors(), psycopg.ClientCursor(self._raw) as cursor:
            self._raw.pgconn.send_query(self._message(cursor, questions))

    def receive(self) -> list[Rows]:
        """What `ask_each` returns, of the questions that were sent, as soon as it is there."""
        with self._telling_errors():
            with self._raw.lock:
                results = self._raw.wait(execute(self._raw.pgconn))
            if results[-1].status == ExecStatus.FATAL_ERROR:
                raise error_of(self._raw, results[-1])
            reader = Transformer(self._raw)
            answers: list[Rows] = []
            for result in results:
                if result.status == ExecStatus.TUPLES_OK:
                    reader.set_pgresult(result)
                    answers.append(reader.load_rows(0, result.ntuples, tuple))
            return answers

    @property
    def _raw(self) -> "psycopg.Connection[Any]":
        return cast("psycopg.Connection[Any]", self._connection)

    @contextmanager
    def _telling_errors(self) -> Iterator[None]:
        try:
            with connections[self.using].wrap_database_errors:
                yield
        except DatabaseError as error:
            cut_details(error)
            self._executes.clear()  # whatever it was, the next time begins anew
            raise

    def _message(
        self, cursor: "psycopg.ClientCursor[Any]", questions: Sequence[Question], last: Question | None = None
    ) -> bytes:
        asked = [cursor.mogrify(self._execute(cursor, one).text, given) for one, given in questions]
        if last is not None:
            asked.append(cursor.mogrify(last[0].text, last[1]))
        self._give_up_oldest(cursor, asked_for=len(questions))
        return ";\n".join([SQL.by_index.text, *asked]).encode()

    def _execute(self, cursor: "psycopg.ClientCursor[Any]", statement: Statement) -> Statement:
        """What runs a statement, which is prepared if it isn't yet."""
        if statement.text not in self._executes:
            self._prepare(cursor, statement)
        self._executes.move_to_end(statement.text)
        return self._executes[statement.text][1]

    def _prepare(self, cursor: "psycopg.ClientCursor[Any]", statement: Statement) -> None:
        name = f"django_events_{next(self._numbers)}"
        made = prepared(statement, name)
        cursor.execute(made.prepare.text.encode())
        self._executes[statement.text] = name, made.execute

    def _give_up_oldest(self, cursor: "psycopg.ClientCursor[Any]", *, asked_for: int) -> None:
        """In front of the message: an error behind it would say of what is committed that nothing of it is done.

        All statements of the message are needed at once, however many they are. They are the newest.
        """
        while len(self._executes) > max(self._most, asked_for):
            _, (oldest, _) = self._executes.popitem(last=False)
            cursor.execute(SQL.deallocate.on(name=oldest).text.encode())


def begin(using: str, settings: Mapping[str, str]) -> PreparedSession | None:
    """Make this thread's open connection a session with these settings; None if another program may get it later."""
    wrapper = connections[using]
    connection = cast("psycopg.Connection[Any]", wrapper.connection)
    with wrapper.wrap_database_errors:  # the server may be gone by now, as for any statement
        if _may_change(wrapper, connection):
            return None
    settings = {**settings, **ONE_PLAN}
    change, parameters = SQL.set_for_session, {"names": list(settings), "values": list(settings.values())}
    with wrapper.wrap_database_errors, psycopg.ClientCursor(connection) as cursor:
        cursor.execute(change.text.encode(), parameters)
    connection.prepare_threshold = ONLY_WHEN_ASKED
    return PreparedSession(using, connection)


def _may_change(wrapper: BaseDatabaseWrapper, connection: "psycopg.Connection[Any]") -> bool:
    """Whether another program may get this connection, or the session of the server that is behind it."""
    return bool(wrapper.settings_dict.get("OPTIONS", {}).get("pool")) or is_pooled(connection)


def _text(value: object) -> str:
    return "{" + ",".join(map(str, value)) + "}" if isinstance(value, list) else str(value)
