"""Database functions and conditions that the models' columns use."""

from datetime import UTC, datetime
from typing import Any

from django.db.models import DateTimeField, Func, IntegerField, Q, TextField, Value
from django.db.models.sql.compiler import SQLCompiler

from django_events import declarations, sql
from django_events.statements import TOO_DEEP

LOOKED_AT_CLOSELY = 64  # bytes: pages and commands show few, which may all be bad ones


class ClockTimestamp(Func):
    """The database's clock at this very moment; Now() is the start of the transaction."""

    template = "clock_timestamp()"
    output_field = DateTimeField()


# PostgreSQL has times that Python has no name for, like infinity: a row with one ends each query that reads it.
EARLIEST, LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)


def readable(*columns: str) -> Q:
    """The condition that these times are ones that clients can read, or NULL."""
    condition = Q()
    for column in columns:
        condition &= Q((f"{column}__gte", EARLIEST), (f"{column}__lt", LATEST))
    return condition


class TopicId(Func):
    """The id of a topic on the database that the query runs on.

    PostgreSQL looks it up while it plans the query, so that it reads the topic's own segments only. Building and
    compiling a query asks no database.
    """

    function = "django_events_topic_id"
    output_field = IntegerField()

    def __init__(self, topic: declarations.DeclaredTopic | str) -> None:
        super().__init__(Value(str(topic), output_field=TextField()))


class Stored(Func):
    """How many bytes something takes, compressed as it is."""

    function = "pg_column_size"
    output_field = IntegerField()


class ReadableText(Func):
    """A JSON column as text for people; null where that could take gigabytes."""

    arity = 1
    output_field = TextField()

    def as_sql(self, compiler: SQLCompiler, connection: Any, **extra: Any) -> tuple[str, list[Any]]:  # type: ignore[override]
        column, _ = compiler.compile(self.source_expressions[0])
        text = sql.shared.as_text_if_readable.written(
            json=column, small=str(LOOKED_AT_CLOSELY), too_deep=sql.quoted(TOO_DEEP)
        )
        return text, []
