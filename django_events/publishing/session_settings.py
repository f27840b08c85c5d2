"""How triggers learn what holds here: the context of events, and whether they are suppressed.

Both are settings of a transaction. They go with each statement that may write, in the same message: that costs no way
to the server, leaves nothing behind in a session, and so works behind a pooler.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextlib import suppress as ignoring
from contextvars import ContextVar
from functools import partial
from inspect import isfunction
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.sql import Composable

from django_events import declarations, sql
from django_events.publishing.context import Lazily, carrying, current_context, entered, has_context
from django_events.publishing.encoding import to_json

SQL = sql.beside(__name__)

ALL = "*"

_FIRST_WORD = re.compile(r"[a-z]+", re.IGNORECASE)
# What others tell in front of a statement: pgtrigger.ignore() and pgtrigger.schema() do, and django-pghistory.
_TOLD_BY_OTHERS = re.compile(r"select\s+set_config\s*\((?:[^;']|'[^']*')*+;", re.IGNORECASE)
# What fires the triggers of rows. Others may not be allowed to share a message, or a transaction that failed.
_WRITES = {"insert", "update", "delete", "merge", "with", "explain"}
_MAY_COMMIT = {"call", "do"}  # outside of a transaction they must be alone

# The transaction of a connection in which something was told.
_told: WeakKeyDictionary[BaseDatabaseWrapper, object] = WeakKeyDictionary()
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
                    cursor.execute(_telling(connection), ())
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
    if not _suppressed.get() and not has_context() and not _was_told(connection):
        return execute(statement, parameters, many, context)
    cursor = context["cursor"]
    text = _text_of(statement, cursor.cursor)
    word = _first_word(text)
    if (word not in _WRITES and word not in _MAY_COMMIT) or isinstance(cursor.cursor, psycopg.ServerCursor):
        return execute(statement, parameters, many, context)
    within = _is_open(connection)
    if word in _MAY_COMMIT and not within:
        return execute(statement, parameters, many, context)
    telling = _telling(connection)
    raw: Any = connection.connection
    together = isinstance(cursor.cursor, psycopg.ClientCursor) and raw.pgconn.pipeline_status == PipelineStatus.OFF
    if together and not many and word in _WRITES:
        told = telling.replace("%%", "%") if parameters is None else telling
        result = execute(f"{told};\n{text}", parameters, many, context)
        cursor.nextset()  # what was asked for comes behind what was told
        return result
    if within:
        cursor.execute(telling, ())
        return execute(statement, parameters, many, context)
    with transaction.atomic(connection.alias):
        cursor.execute(telling, ())
        return execute(statement, parameters, many, context)


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


def _was_told(connection: BaseDatabaseWrapper) -> bool:
    """Whether something was told in this transaction: it may hold still, or again after a savepoint was rolled back."""
    told = _told.get(connection)
    if told is None or told is not _transaction(connection):
        return False
    raw: Any = connection.connection
    return raw is not None and raw.info.transaction_status is not TransactionStatus.IDLE


def _telling(connection: BaseDatabaseWrapper) -> str:
    """The statement that tells what holds here, to be run with parameters, if only none: others may add theirs."""
    _told[connection] = _transaction(connection)
    context = current_context()
    statement = SQL.tell.on(
        context=sql.literal(to_json("event_context()", context) if context else ""),
        suppressed=sql.literal(",".join(sorted(_suppressed_names()))),
    )
    return statement.text


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
        if _was_told(connection):
            with ignoring(DatabaseError), connection.cursor() as cursor:
                cursor.execute(_telling(connection), ())
