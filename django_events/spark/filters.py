"""Conditions that Spark hands down, as SQL; what PostgreSQL might see otherwise stays with Spark."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from django_events.spark.columns import COLUMNS, TOPIC
from django_events.statements import Statement, literal, statement

COMPARISONS = {
    EqualTo: statement("is_equal"),
    GreaterThan: statement("is_above"),
    GreaterThanOrEqual: statement("is_from"),
    LessThan: statement("is_below"),
    LessThanOrEqual: statement("is_up_to"),
}
NUMBERS = {"offset", "number", "partition"}
TIMES = {"timestamp", "published_at"}
TEXTS = {"type", "key"}  # compared byte by byte only for equality: an order depends on the collation


def translated(filters: Iterable[Filter]) -> tuple[list[Statement], list[Filter]]:
    """The conditions that the server checks, and the filters that are left to Spark."""
    conditions, left = [], []
    for one in filters:
        condition = _condition(one)
        if condition is None:
            left.append(one)
        else:
            conditions.append(condition)
    return conditions, left


def _condition(one: Filter) -> Statement | None:
    name = getattr(one, "attribute", ("",))
    if len(name) != 1 or name[0] not in COLUMNS or name[0] == TOPIC:
        return None
    column, value = name[0], getattr(one, "value", None)
    source = COLUMNS[column].source
    if isinstance(one, IsNull):
        return statement("is_null").on(column=source)
    if isinstance(one, IsNotNull):
        return statement("is_not_null").on(column=source)
    if isinstance(one, StringStartsWith) and column in TEXTS and _is_text(value):
        return statement("starts_with").on(column=source, value=literal(str(value)))
    if isinstance(one, In) and column in TEXTS and one.value and all(map(_is_text, one.value)):
        return statement("is_among").on(column=source, values=literal(list(one.value)))
    if type(one) in COMPARISONS and (written := _comparable(one, column, value)) is not None:
        return COMPARISONS[type(one)].on(column=source, value=literal(written))
    return None


def _comparable(one: Filter, column: str, value: Any) -> str | int | None:
    if column in NUMBERS and isinstance(value, int) and not isinstance(value, bool):
        return value
    if column in TIMES and isinstance(value, datetime) and value.tzinfo is not None:
        return value.isoformat()
    if column in TEXTS and isinstance(one, EqualTo) and _is_text(value):
        return str(value)
    return None


def _is_text(value: Any) -> bool:
    """PostgreSQL has no text with this character in it, and refuses to look for one."""
    return isinstance(value, str) and "\0" not in value
