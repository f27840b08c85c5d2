"""How triggers learn what holds here: the context of events, and whether they are suppressed.

Both are settings of a transaction. They go with each statement that may write, in the same message: that costs no way
to the server, leaves nothing behind in a session, and so works behind a pooler.
"""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from contextlib import suppress as ignoring
from contextvars import ContextVar
from functools import partial
from inspect import isfunction
from types import MethodType
from typing import Any

import psycopg
from django.db import DatabaseError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import Model

from django_events import declarations, sql
from django_events.publishing.context import Lazily, carrying, current_context, has_context
from django_events.publishing.encoding import to_json

ALL = "*"

# What fires the triggers of rows. Others may not be allowed to share a message, or a transaction that failed.
_MAY_WRITE = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*(?:insert|update|delete|merge|with|call|do)\b", re.I | re.S)

_TOLD = "_django_events_told"  # the attribute of a connection that names the transaction in which something was told
_suppressed: ContextVar[frozenset[str]] = ContextVar("django_events_suppressed", default=frozenset())


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
        _tell_open_transactions(told=True)


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
def suppress(*what: declarations.Topic | str | type[Model]) -> Iterator[None]:
    """Let `@outbox` and `capture()` publish nothing in the block, of these topics or models or at all: for imports.

    What is published by hand is published. Django doesn't see a COPY of your own: suppress that one inside of its
    transaction, not around it.
    """
    names = {_of_model(one) if isinstance(one, type) else _of_topic(one) for one in what} or {ALL}
    token = _suppressed.set(_suppressed.get() | names)
    try:
        _tell_open_transactions()
        yield
    finally:
        _suppressed.reset(token)
        _tell_open_transactions(told=True)


def is_suppressed(topic: declarations.Topic | str, model: type[Model]) -> bool:
    return not _suppressed.get().isdisjoint(names_of(topic, model))


def names_of(topic: declarations.Topic | str, model: type[Model]) -> list[str]:
    """What may be suppressed so that events of a model to a topic are."""
    return [ALL, _of_topic(topic), _of_model(model)]


def _of_topic(topic: declarations.Topic | str) -> str:
    return f"topic:{topic}"


def _of_model(model: type[Model]) -> str:
    return f"model:{(model._meta.concrete_model or model)._meta.label_lower}"  # a proxy is its model


def listen_for_writes(*, connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    """The receiver of connection_created: from now on, triggers on this connection are told."""
    # In front: whoever adds a wrapper for a block removes the last one when it ends.
    if connection.vendor == "postgresql" and _tell_before not in connection.execute_wrappers:
        connection.execute_wrappers.insert(0, _tell_before)


def _tell_before(
    execute: Callable[..., Any], statement: Any, parameters: Any, many: bool, context: dict[str, Any]
) -> Any:
    """Runs instead of each statement of Django's, and runs it."""
    connection: BaseDatabaseWrapper = context["connection"]
    something = is_something_told()
    if not something and not _was_told(connection):
        return execute(statement, parameters, many, context)
    if isinstance(statement, str) and not _MAY_WRITE.match(statement):
        return execute(statement, parameters, many, context)
    cursor = context["cursor"]
    if isinstance(cursor.cursor, psycopg.ServerCursor):  # it only reads
        return execute(statement, parameters, many, context)
    telling = _telling(connection, something)
    if many or not isinstance(statement, str) or not isinstance(cursor.cursor, psycopg.ClientCursor):
        with transaction.atomic(connection.alias, savepoint=False):
            cursor.execute(telling)
            return execute(statement, parameters, many, context)
    result = execute(
        f"{telling if parameters is None else telling.replace('%', '%%')};\n{statement}", parameters, many, context
    )
    cursor.nextset()  # what was asked for comes behind what was told
    return result


def is_something_told() -> bool:
    """Whether triggers have to know anything here."""
    return bool(_suppressed.get() or has_context())


def _was_told(connection: BaseDatabaseWrapper) -> bool:
    """Whether something was told in this transaction, and holds still. A savepoint may have undone it: never mind."""
    return bool(connection.atomic_blocks) and getattr(connection, _TOLD, None) is connection.atomic_blocks[0]


def _telling(connection: BaseDatabaseWrapper, something: bool) -> str:
    """The statement that tells what holds here, as it is: without parameters."""
    if connection.atomic_blocks:
        setattr(connection, _TOLD, connection.atomic_blocks[0] if something else None)
    context = current_context()
    statement = sql.statement("tell").on(
        context=sql.literal(to_json("context", context) if context else ""),
        suppressed=sql.literal(",".join(sorted(_suppressed.get()))),
    )
    return statement.text.replace("%%", "%")


def _tell_open_transactions(*, told: bool = False) -> None:
    """Tell those, or those that were told something, now: what comes next may be a COPY, which Django doesn't see."""
    for connection in connections.all(initialized_only=True):
        if connection.vendor != "postgresql" or not connection.in_atomic_block or connection.needs_rollback:
            continue
        if told and not _was_told(connection):
            continue
        # A transaction that failed, which Django may not know, tells nobody anything any more.
        with ignoring(DatabaseError) if told else nullcontext(), connection.cursor() as cursor:
            cursor.execute(_telling(connection, is_something_told()))
