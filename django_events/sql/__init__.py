"""Running SQL statements, which are in a file beside the module that asks for them.

    SQL = sql.beside(__name__)
    rows = sql.fetch(using, SQL.pending, limit=5_000)

Parameters are named. Identifiers are composed here and nowhere else, and quoted.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime
from typing import Any

from django.db import DatabaseError, InternalError, OperationalError, connections, transaction

from django_events.conf import settings as site
from django_events.database_errors import ErrorKind as ErrorKind
from django_events.database_errors import kind_of as kind_of
from django_events.database_errors import kind_of_state as kind_of_state
from django_events.database_errors import state as state
from django_events.phrases import cut_details, without_details
from django_events.statements import Statement as Statement
from django_events.statements import Statements as Statements
from django_events.statements import all_of as all_of
from django_events.statements import beside as beside
from django_events.statements import literal as literal
from django_events.statements import quoted as quoted
from django_events.statements import quoted_name as quoted_name
from django_events.statements import shared as shared
from django_events.statements import union_all as union_all

Question = tuple[Statement, dict[str, Any]]  # with its parameters
Rows = list[tuple[Any, ...]]
_READ_COMMITTED, _SEE_ALL = shared.read_committed, shared.see_all


def fetch(using: str, statement: Statement, **parameters: Any) -> Rows:
    """Run a statement on a database alias and return its rows."""
    try:
        with connections[using].cursor() as cursor:
            cursor.execute(statement.text, parameters)
            rows: Rows = cursor.fetchall()
            return rows
    except DatabaseError as error:
        cut_details(error)
        raise


def now(using: str) -> datetime:
    """The database's clock."""
    [[moment]] = fetch(using, shared.clock)
    there: datetime = moment
    return there


def fetch_whole(using: str, statement: Statement, **parameters: Any) -> Rows:
    """As `fetch`, and the statement fails where row-level security would hide rows from this role.

    For what workers conclude something from: a row that isn't there is gone for them. In a transaction it is the
    transaction that says so, see `SEES_ALL`.
    """
    if connections[using].in_atomic_block:
        return fetch(using, statement, **parameters)
    try:
        with connections[using].cursor() as cursor:
            if hasattr(cursor, "mogrify"):
                cursor.execute(f"{_SEE_ALL.text};\n{statement.text}", parameters)
                cursor.nextset()
                rows: Rows = cursor.fetchall()
                return rows
    except DatabaseError as error:
        cut_details(error)
        raise
    return fetch_each(using, (statement, parameters))[0]


def fetch_large(using: str, statement: Statement, **parameters: Any) -> Rows:
    """As `fetch_whole`, for an answer that may be more than the network holds.

    The server ends the statement if its client takes none of it any more: until then it would keep its snapshot and its
    locks. A caller's transaction goes on with its own limits.
    """
    if connections[using].in_atomic_block:
        return fetch(using, statement, **parameters)
    limit = locally({"tcp_user_timeout": vanishing()["tcp_user_timeout"], **SEES_ALL})
    return fetch_each(using, limit, (statement, parameters))[1]


def fetch_each(using: str, *questions: Question) -> list[Rows]:
    """Run statements one after the other and return the rows of each; every one sees what was committed before it.

    They travel together, which spares the way there and back, unless the site has the server bind parameters. If
    there is no transaction, they are one, at READ COMMITTED.
    """
    alone = not connections[using].in_atomic_block
    try:
        with connections[using].cursor() as cursor:
            if hasattr(cursor, "mogrify"):
                return _together(cursor, questions, alone=alone)
    except DatabaseError as error:
        cut_details(error)
        raise
    with committed(using) if alone else nullcontext():
        return [fetch(using, statement, **parameters) for statement, parameters in questions]


def _begin(using: str, question: Question) -> None:
    """As the first of a transaction, at READ COMMITTED."""
    with connections[using].cursor() as cursor:
        if hasattr(cursor, "mogrify"):
            _together(cursor, [question], alone=True)
            return
    run(using, _READ_COMMITTED)
    fetch_each(using, question)


def _together(cursor: Any, questions: Sequence[Question], *, alone: bool) -> list[Rows]:
    asked = [cursor.mogrify(statement.text, parameters) for statement, parameters in questions]
    cursor.execute(";\n".join([_READ_COMMITTED.text, *asked] if alone else asked))
    answers: list[Rows] = []
    while not alone or cursor.nextset():
        alone = True  # from the first answer on
        answers.append(cursor.fetchall())
    return answers


def run(using: str, statement: Statement) -> None:
    """Run a statement that answers with no rows: DDL, which takes no parameters either."""
    with connections[using].cursor() as cursor:
        cursor.execute(statement.text, {})


def said(error: BaseException) -> str:
    """What the database says, without the details: a DETAIL may hold the row that was refused, payload and all."""
    return without_details(error)


# Row-level security that applies to this role would hide rows, and what isn't seen would be taken for gone: events
# passed over, deliveries deleted. With this PostgreSQL refuses the statement instead; where no row can be hidden it
# changes nothing. It is for our transactions only: in those of handlers, a site's own tables keep their policies.
SEES_ALL = {"row_security": "off"}

# Who looks at long tables wants a few rows by index, whatever the planner believes of them.
BY_INDEX = {"enable_seqscan": "off", "enable_bitmapscan": "off", "jit": "off", **SEES_ALL}

# The buffer is empty one moment and holds a million events the next, so its statistics are always old.
# A sequential scan chosen by them reads every dead row that an old snapshot keeps, and the costs that
# come out of them make PostgreSQL compile a query of a millisecond for 160. Without waiting for the
# disk, a crash would take back ids that readers have seen. A site's limit for statements is meant for
# pages: a batch that it cuts off is never done. Waiting for a lock is another matter.
BATCH_SETTINGS = {
    **BY_INDEX,
    "synchronous_commit": "local",
    "statement_timeout": "0",
    "lock_timeout": "500ms",
}

# Maintenance waits for no lock for long, and keeps none for long: what can't be done now is done a minute later.
UNHURRIED = {"statement_timeout": "10s", "lock_timeout": "200ms"}


def vanishing() -> dict[str, str]:
    """Settings with which the server ends a transaction whose client has vanished: others wait for its locks.

    One that says nothing any more, and one that takes no answers: that one no timeout of statements reaches.
    """
    after = _vanished_after()
    return {"idle_in_transaction_session_timeout": after, "tcp_user_timeout": after}


def _vanished_after() -> str:
    return f"{site.VANISHED_AFTER.total_seconds() * 1000:.0f}ms"


@contextmanager
def committed(using: str, **settings: str) -> Iterator[None]:
    """A transaction in which each statement sees what was committed before it, whatever the site's default is.

    Inside of another one it changes nothing but `SEES_ALL`, until it ends.
    """
    if connections[using].in_atomic_block:
        with _set(using, SEES_ALL):
            yield
        return
    with transaction.atomic(using):
        _begin(using, locally({**SEES_ALL, **vanishing(), **settings}))
        yield


@contextmanager
def batch(using: str, *first: Question, **settings: str) -> Iterator[list[Rows]]:
    """A worker's transaction: it reads by index, compiles nothing, and is on disk when it ends.

    It begins with these statements, if there are any, and gives their rows.
    """
    with _set(using, {**BATCH_SETTINGS, **vanishing(), **settings}, *first) as answers:
        yield answers


@contextmanager
def by_index(using: str, **settings: str) -> Iterator[None]:
    """A transaction that looks at long tables: it reads them by index, and PostgreSQL compiles nothing."""
    with _set(using, {**BY_INDEX, **vanishing(), **settings}):
        yield


@contextmanager
def unlocked(using: str) -> Iterator[None]:
    """A look at some of very many tables: inside of a transaction its locks are not added to those of the next look.

    It is rolled back, so it must only read.
    """
    if not connections[using].in_atomic_block:
        yield
        return
    with transaction.atomic(using):
        yield
        transaction.set_rollback(True, using)


@contextmanager
def snapshot(using: str) -> Iterator[None]:
    """A transaction that only reads, in which everything sees the same moment: not inside of another one.

    The moment is that of its first statement, or of the first behind locks that it begins with.
    """
    with transaction.atomic(using, durable=True):
        run(using, shared.snapshot.on(vanished_after=literal(_vanished_after())))
        yield


@contextmanager
def _set(using: str, values: dict[str, str], *first: Question) -> Iterator[list[Rows]]:
    nested = connections[using].in_atomic_block
    with _telling_loss(), transaction.atomic(using):
        before, *answers = fetch_each(using, locally(values), *first)
        yield answers
        if nested:  # the caller's transaction goes on: leave its settings as they were
            fetch_each(using, locally({name: value for name, value, _ in before}))


@contextmanager
def _telling_loss() -> Iterator[None]:
    """A lost connection is an OperationalError, whatever psycopg makes of the last answer: callers go by the class."""
    try:
        yield
    except InternalError as error:
        if kind_of(error) is not ErrorKind.LOST:
            raise
        raise OperationalError(str(error)) from error


def locally(values: dict[str, str]) -> Question:
    """Settings of the server for what comes behind it, in the same message or transaction."""
    return shared.set_locally, {"names": list(values), "values": list(values.values())}
