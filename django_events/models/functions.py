"""Database functions and conditions that the models' columns use."""

from datetime import UTC, datetime
from typing import Any

from django.db.models import DateTimeField, Func, IntegerField, Q, TextField
from django.db.models.sql.compiler import SQLCompiler

from django_events import declarations, sql
from django_events.exceptions import UnknownName
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
    """The id of a topic on the database that the query runs on, as a literal.

    It is looked up when the query is compiled, so that building a query touches no database, and
    so that the planner reads the topic's own segments only.
    """

    template = "%(topic_id)s"
    output_field = IntegerField()

    def __init__(self, topic: declarations.DeclaredTopic | str) -> None:
        super().__init__()
        self.topic = str(topic)

    def as_sql(self, compiler: SQLCompiler, connection: Any, **extra: Any) -> tuple[str, list[int]]:  # type: ignore[override]
        rows = sql.fetch(connection.alias, sql.shared.topic_id, topic=self.topic)
        if not rows:
            raise UnknownName(
                f"The database {connection.alias!r} has no topic {self.topic!r}. "
                f"Declare it in an app's events.py and run: manage.py migrate --database {connection.alias}"
            )
        return "%s", [rows[0][0]]


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
