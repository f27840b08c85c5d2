"""Queries of a topic's rows: a topic that the database doesn't have is an UnknownName.

class EventQuerySet(TopicQuerySet[Event]):
    def of(self, topic):
        return self.filter(topic_id=TopicId(topic))
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

from django.db import DatabaseError, connections, models, transaction
from django.db.models.sql import Query
from django.db.models.sql.compiler import SQLCompiler

from django_events import sql
from django_events.exceptions import UnknownName

Row = TypeVar("Row", bound=models.Model, covariant=True)

TOPIC_MISSING = "DE001"


class TopicQuerySet(models.QuerySet[Row]):
    def __init__(
        self,
        model: type[Row] | None = None,
        query: Query | None = None,
        using: str | None = None,
        hints: dict[str, models.Model] | None = None,
    ) -> None:
        super().__init__(model, _TopicQuery(model) if query is None and model is not None else query, using, hints)

    def update(self, **values: Any) -> int:
        with _unknown_topic(self.db):
            return super().update(**values)

    def delete(self) -> tuple[int, dict[str, int]]:
        with _unknown_topic(self.db):
            return super().delete()


class _TopicQuery(Query):
    def get_compiler(self, using: str | None = None, connection: Any = None, elide_empty: bool = True) -> SQLCompiler:
        compiler = super().get_compiler(using, connection, elide_empty)
        kind = _explaining(type(compiler))  # type: ignore[arg-type]  # mypy takes no class for hashable
        return kind(self, compiler.connection, compiler.using, elide_empty)

    def get_aggregation(self, using: Any, aggregate_exprs: dict[str, Any]) -> dict[str, Any]:
        with _unknown_topic(using):
            return super().get_aggregation(using, aggregate_exprs)


class _Explaining(SQLCompiler):
    def execute_sql(self, *args: Any, **options: Any) -> Any:
        with _unknown_topic(self.connection.alias):
            return super().execute_sql(*args, **options)


@cache
def _explaining(compiler: type[SQLCompiler]) -> type[SQLCompiler]:
    """The compiler of the database's engine, which raises UnknownName."""
    return type(compiler.__name__, (_Explaining, compiler), {})


@contextmanager
def _unknown_topic(using: str) -> Iterator[None]:
    try:
        yield
    except DatabaseError as error:
        if sql.state(error) != TOPIC_MISSING:
            raise
        # PostgreSQL aborted the transaction. Without the mark, a caller that catches UnknownName would leave atomic()
        # as if it had committed.
        if connections[using].in_atomic_block:
            transaction.set_rollback(True, using)
        missing = sql.said(error).splitlines()[0]
        raise UnknownName(
            f"{missing} Declare it in an app's events.py and run: manage.py migrate --database {using}"
        ) from error
