"""Which events of its topics are for a consumer: patterns of types and keys, predicates on the value and metadata.

Filters run in the database, on events of the log under the name `e`. Spark's reads have the same ones.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from django_events.statements import Statement, all_of, beside, literal

SQL = beside(__name__)

ONE, REST = "*", ">"
FILTER = ("types", "keys", "where", "metadata", "vars")  # what a consumer has that says which events are for it


class Filter(Protocol):
    """A consumer, as it is declared or as it is registered."""

    @property
    def types(self) -> Sequence[str] | None: ...

    @property
    def keys(self) -> Sequence[str] | None: ...

    @property
    def where(self) -> str | None: ...

    @property
    def metadata(self) -> str | None: ...

    @property
    def vars(self) -> Mapping[str, Any] | None: ...


def condition(consumer: Filter) -> Statement:
    """The condition that an event `e` has to meet."""
    conditions = []
    for column, patterns in (("type", consumer.types), ("key", consumer.keys)):
        if patterns is None:
            continue
        if any(map(is_pattern, patterns)):
            expressions = literal([expression(pattern) for pattern in patterns])
            conditions.append(SQL.match_pattern.on(column=column, expressions=expressions))
        else:
            conditions.append(SQL.match_text.on(column=column, texts=literal(list(patterns))))
    for column, predicate in (("value", consumer.where), ("metadata", consumer.metadata)):
        if predicate is not None and consumer.vars is None:
            conditions.append(SQL.match_predicate.on(column=column, predicate=literal(predicate)))
        elif predicate is not None:
            given = literal(json.dumps(consumer.vars))
            conditions.append(SQL.match_with_variables.on(column=column, predicate=literal(predicate), vars=given))
    return all_of(conditions)


def decides(where: str, answers: Sequence[tuple[bool | None]]) -> bool:
    """Whether a predicate is true or false for some value, by what `try_predicate` says; a strict one may be."""
    return any(answer is not None for (answer,) in answers) or where.lstrip().startswith("strict")


def is_pattern(text: str) -> bool:
    """Whether it is about more than itself."""
    return not {ONE, REST}.isdisjoint(text.split("."))


def expression(pattern: str) -> str:
    """A pattern as PostgreSQL's regular expression: tokens between dots, `*` is one of them, `>` the rest."""
    tokens = pattern.split(".")
    parts = [".+" if token == REST else "[^.]+" if token == ONE else _quoted(token) for token in tokens]
    return f"^{_DOT.join(parts)}$"


def matches(patterns: Sequence[str], text: str | None) -> bool:
    """Whether one of the patterns is about this text, decided here as the database decides it."""
    return text is not None and any(re.fullmatch(expression(p)[1:-1], text, re.DOTALL) for p in patterns)


_DOT = r"\."


def _quoted(token: str) -> str:
    return "".join(c if c.isalnum() or c in "_-" else f"\\{c}" for c in token)
