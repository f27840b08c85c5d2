"""How triggers learn what holds here: the context of events, and whether they are suppressed.

Both are settings of a transaction. They go with each statement that may write, in the same message: that costs no way
to the server, leaves nothing behind in a session, and so works behind a pooler.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextlib import suppress as ignoring
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, partial
from inspect import isfunction
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row
from psycopg.sql import Composable

from django_events import declarations, sql
from django_events.publishing.context import (
    Lazily,
    carrying,
    current_cause,
    current_context,
    entered,
    has_context,
    has_only_cause,
)
from django_events.publishing.encoding import to_json

SQL = sql.beside(__name__)

ALL = "*"

_CONTEXT, _SUPPRESSED = "django_events_context", "django_events_suppressed"
_TELL_BY_PLACE = cache(lambda: SQL.tell.written(context="%s", suppressed="%s"))
_TELL_BY_NAME = cache(lambda: SQL.tell.written(context=f"%({_CONTEXT})s", suppressed=f"%({_SUPPRESSED})s"))

_FIRST_WORD = re.compile(r"[a-z]+", re.IGNORECASE)
# What others tell in front of a statement: pgtrigger.ignore() and pgtrigger.schema() do, and django-pghistory.
_TOLD_BY_OTHERS = re.compile(r"select\s+set_config\s*\((?:[^;']|'[^']*')*+;", re.IGNORECASE)
# What fires the triggers of rows. Others may not be allowed to share a message, or a transaction that failed.
_WRITES = {"insert", "update", "delete", "merge", "with", "explain"}
_MAY_COMMIT = {"call", "do"}  # outside of a transaction they must be alone
_FUNCTIONS = ("django_events_publish", "django_events_schedule")  # in a SELECT: they add what was told


@dataclass(slots=True)
class _Told:
    """What the transaction of a connection was told last; no values where that may not hold any more.

    A decorator's block is the same one in each call, so a transaction is known by its list of hooks, too: Django makes
    a new one where a transaction ends, and where a savepoint is rolled back.
    """

    transaction: object
    hooks: object
    cause: object | None
    values: tuple[str, str] | None = None

    def doubt(self) -> None:
        self.cause, self.values = _UNKNOWN, None


_UNKNOWN = object()
_heard: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
_with_context: set[str] = set()
_told: WeakKeyDictionary[BaseDatabaseWrapper, _Told] = WeakKeyDictionary()
_BY_HAND = object()  # a transaction that Django doesn't know, and the one after it
_suppressed: ContextVar[tuple[frozenset[str], ...]] = ContextVar("django_events_suppressed", default=())


@contextmanager
def event_context(**metadata: Any) -> Iterator[None]:
    """Let every event that Python or a trigger publishes in the block have this in its metadata.

    Blocks add up, and what an event says itself wins. A value may be a function without parameters: it is called once,
    when the first event or the first statement that writes wants it. Tasks and `sync_to_async` take the block along,
    threads that are started in it don't.
    """
    values = {name: _checked(name, value) for name, value in metadata.items()}
    try:
        with carrying(values):
            yield
    finally:
        _tell_at_the_end()


def _checked(name: str, value: Any) -> Any:
    """The error of a value that is no JSON belongs to who gives it, not to the statements of the block."""
    what = f"{name} of event_context()"
    if not isfunction(value) and not isinstance(value, partial | MethodType):
        to_json(what, value)
        return value

    def ask() -> Any:
        answer = value()
        to_json(what, answer)
        return answer

    return Lazily(ask)


def has_its_context(*statements: sql.Statement) -> None:
    """These SELECTs publish what Python has put the context into: only what was told otherwise must be taken back."""
    _with_context.update(statement.text for statement in statements)


@contextmanager
def suppress(*what: declarations.DeclaredTopic | str | type[Model]) -> Iterator[None]:
    """Let `@outbox` and `capture()` publish nothing in the block, of these topics or models or at all: for imports.

    What is published by hand is published. Django doesn't see a COPY of your own: suppress that one inside of its
    transaction, not around it.
    """
    names = frozenset(name for one in what for name in _names(one)) or frozenset({ALL})
    try:
        with entered(_suppressed, names):
            for connection in _open_transactions():
                with connection.cursor() as cursor:
                    _tell(cursor, _telling(connection))
            yield
    finally:
        _tell_at_the_end()


def is_suppressed(topic: declarations.DeclaredTopic | str, model: type[Model]) -> bool:
    return bool(_suppressed.get()) and not _suppressed_names().isdisjoint(names_of(topic, model))


def _suppressed_names() -> set[str]:
    return set().union(*_suppressed.get())


def names_of(topic: declarations.DeclaredTopic | str, model: type[Model]) -> list[str]:
    """What may be suppressed so that events of a model to a topic are."""
    return [ALL, _of_topic(topic), _of_model(model)]


def _names(one: declarations.DeclaredTopic | str | type[Model]) -> list[str]:
    if not isinstance(one, type):
        return [_of_topic(declarations.registry.get(one))]
    if one._meta.abstract:
        return [name for child in one.__subclasses__() for name in _names(child)]
    return [_of_model(one)]


def _of_topic(topic: declarations.DeclaredTopic | str) -> str:
    return f"topic:{topic}"


def _of_model(model: type[Model]) -> str:
    return f"model:{(model._meta.concrete_model or model)._meta.label_lower}"  # a proxy is its model


class _Wrappers(list[Any]):
    """What runs around the statements of a connection: others first, which see what they would see without us.

    `execute_wrapper()` removes the last one when its block ends, so ours is not in the list. It stays when a block of
    ours ends, because blocks are seen by other threads, and end in any order: decision 0038.
    """

    def __reversed__(self) -> Iterator[Any]:
        yield _tell_before
        yield from super().__reversed__()


def listen_for_writes(*, connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    """The receiver of connection_created: from now on, triggers on this connection are told."""
    if connection.vendor == "postgresql" and not isinstance(connection.execute_wrappers, _Wrappers):
        connection.execute_wrappers = _Wrappers(connection.execute_wrappers)


def _tell_before(
    execute: Callable[..., Any], statement: Any, parameters: Any, many: bool, context: dict[str, Any]
) -> Any:
    """Runs instead of each statement of Django's, and runs it."""
    connection: BaseDatabaseWrapper = context["connection"]
    told = _told_in(connection)
    if told is None and ((not _suppressed.get() and not has_context()) or _has_its_context(statement)):
        return execute(statement, parameters, many, context)
    cursor = context["cursor"]
    text = _text_of(statement, cursor.cursor)
    word = _first_word(text)
    if word == "rollback" and told is not None:  # to a savepoint: what held before it holds again
        told.doubt()
    if not _hears(word, text, told, connection) or isinstance(cursor.cursor, psycopg.ServerCursor):
        return execute(statement, parameters, many, context)
    within = _is_open(connection)
    if word in _MAY_COMMIT and not within:
        return execute(statement, parameters, many, context)
    telling = _telling(connection)
    if telling is None:
        return execute(statement, parameters, many, context)
    try:
        return _execute_told(telling, execute, statement, text, parameters, many, context)
    except BaseException:  # psycopg may have refused it before anything was sent
        if connection in _told:
            _told[connection].doubt()
        raise


def _execute_told(
    telling: tuple[str, str],
    execute: Callable[..., Any],
    statement: Any,
    text: str,
    parameters: Any,
    many: bool,
    context: dict[str, Any],
) -> Any:
    connection, cursor = context["connection"], context["cursor"]
    raw: Any = connection.connection
    together = isinstance(cursor.cursor, psycopg.ClientCursor) and raw.pgconn.pipeline_status == PipelineStatus.OFF
    if together and not many and _first_word(text) not in _MAY_COMMIT:
        result = execute(*_joined(telling, text, parameters), many, context)
        cursor.nextset()  # what was asked for comes behind what was told
        return result
    if _is_open(connection):
        _tell(cursor, telling)
        return execute(statement, parameters, many, context)
    with transaction.atomic(connection.alias):
        _tell(cursor, telling)
        return execute(statement, parameters, many, context)


def _has_its_context(statement: Any) -> bool:
    return type(statement) is str and statement in _with_context


def _hears(word: str, text: str, told: _Told | None, connection: BaseDatabaseWrapper) -> bool:
    """Whether a statement may run something that reads what is told."""
    if word in _WRITES or word in _MAY_COMMIT:
        return told is not None or bool(_suppressed.get()) or not has_only_cause() or _is_heard(connection)
    if word != "select":
        return False
    # A function of the site's may write, too. It must not take the event before for the cause of what it publishes.
    if told is not None and told.cause is not current_cause():
        return True
    return any(name in text for name in _FUNCTIONS)


def _is_heard(connection: BaseDatabaseWrapper) -> bool:
    """Whether a function of the database reads the context: where none does, handlers need not tell theirs.

    Asked once for each connection, and so not of triggers that a later migration makes.
    """
    raw: Any = connection.connection
    if raw.info.transaction_status is TransactionStatus.INERROR:
        return False
    if raw not in _heard:
        with raw.cursor(row_factory=tuple_row) as cursor:  # no query of the site's: its tests count those
            [[_heard[raw]]] = cursor.execute(SQL.is_heard.text, ()).fetchall()
    return _heard[raw]


def _text_of(statement: Any, cursor: Any) -> str:
    if isinstance(statement, Composable):
        return statement.as_string(cursor)
    return statement.decode() if isinstance(statement, bytes) else str(statement)


def _first_word(text: str) -> str:
    """The first word of a statement, in small letters, behind comments and what others tell in front of it."""
    at = 0
    while at < len(text):
        if text[at].isspace() or text[at] == "(":
            at += 1
        elif text.startswith("--", at):
            end = text.find("\n", at)
            at = len(text) if end < 0 else end + 1
        elif text.startswith("/*", at):
            end = text.find("*/", at + 2)
            at = len(text) if end < 0 else end + 2
        elif told := _TOLD_BY_OTHERS.match(text, at):
            at = told.end()
        else:
            break
    found = _FIRST_WORD.match(text, at)
    return found[0].lower() if found else ""


def _transaction(connection: BaseDatabaseWrapper) -> object:
    # With autocommit off, the transaction goes on when the outermost block has ended.
    is_block = connection.atomic_blocks and connection.commit_on_exit
    return connection.atomic_blocks[0] if is_block else _BY_HAND


def _is_open(connection: BaseDatabaseWrapper) -> bool:
    """Whether a transaction is open, though its BEGIN may not be sent yet, or was sent by hand."""
    raw: Any = connection.connection
    by_hand = raw.info.transaction_status is not TransactionStatus.IDLE
    return connection.in_atomic_block or not connection.get_autocommit() or by_hand


def _told_in(connection: BaseDatabaseWrapper) -> _Told | None:
    """What was told in this transaction: it may hold still, or again after a savepoint was rolled back."""
    told = _told.get(connection)
    if told is None or told.transaction is not _transaction(connection):
        return None
    raw: Any = connection.connection
    is_older = told.hooks is not connection.run_on_commit
    if raw is None or raw.info.transaction_status is TransactionStatus.IDLE:
        if is_older:
            del _told[connection]  # the transaction that begins now was told nothing
        return None
    if is_older:
        told.hooks = connection.run_on_commit
        told.doubt()
    return told


def _telling(connection: BaseDatabaseWrapper) -> tuple[str, str] | None:
    """The values of the two settings here; None where the transaction was told just that before.

    A transaction by hand may be another one by now.
    """
    before = _told_in(connection)
    # Before the context is asked for: a function of a block may run statements as well.
    now = _told[connection] = _Told(_transaction(connection), connection.run_on_commit, current_cause())
    context = current_context()
    values = to_json("event_context()", context) if context else "", ",".join(sorted(_suppressed_names()))
    if now.transaction is not _BY_HAND:
        now.values = values
    return None if before is not None and before.values == values else values


def _joined(telling: tuple[str, str], text: str, parameters: Any) -> tuple[str, Any]:
    """One message of both. Values are parameters where it has some: psycopg remembers the texts that it has parsed."""
    if isinstance(parameters, tuple | list):
        return f"{_TELL_BY_PLACE()};\n{text}", (*telling, *parameters)
    if isinstance(parameters, dict):
        return f"{_TELL_BY_NAME()};\n{text}", {**parameters, _CONTEXT: telling[0], _SUPPRESSED: telling[1]}
    context, suppressed = map(sql.literal, telling)
    told = SQL.tell.on(context=context, suppressed=suppressed).text
    return f"{told.replace('%%', '%') if parameters is None else told};\n{text}", parameters


def _tell(cursor: Any, telling: tuple[str, str] | None) -> None:
    if telling is not None:
        cursor.execute(_TELL_BY_PLACE(), telling)


def _open_transactions() -> Iterator[BaseDatabaseWrapper]:
    for connection in connections.all(initialized_only=True):
        raw: Any = connection.connection
        if connection.vendor != "postgresql" or raw is None or raw.closed or connection.needs_rollback:
            continue
        if _is_open(connection) and raw.info.transaction_status is not TransactionStatus.INERROR:
            yield connection


def _tell_at_the_end() -> None:
    """Tell transactions at once that a block has ended: what comes next may be a COPY, which Django doesn't see."""
    for connection in _open_transactions():
        if _told_in(connection) is not None:
            with ignoring(DatabaseError), connection.cursor() as cursor:
                _tell(cursor, _telling(connection))
