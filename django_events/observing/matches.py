"""What a filter matches of the newest events of a topic, before a consumer has it.

matches("orders", types=["order.*"], where="$.total > 100")  # [Matched("order.paid", events=812, matching=77, …), …]
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from django.db import DatabaseError

from django_events import declarations, models, sql
from django_events.declarations.limits import is_storable, rest_is_last
from django_events.exceptions import Invalid
from django_events.log.inventory import existing
from django_events.matching import condition
from django_events.outcomes import Matched
from django_events.statements import log_table

SQL = sql.beside(__name__)


class _Filter(NamedTuple):
    """What `consumer()` takes to say which events are for it."""

    types: Sequence[str] | None
    keys: Sequence[str] | None
    where: str | None
    metadata: str | None
    vars: Mapping[str, Any] | None


def matches(
    topic: declarations.DeclaredTopic | str,
    *,
    types: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    where: str | None = None,
    metadata: str | None = None,
    vars: Mapping[str, Any] | None = None,
    last: int = 10_000,
    using: str | None = None,
) -> list[Matched]:
    """How many of the newest `last` events of a topic a filter matches, by type, those with most matches first.

    It reads, and nothing else. Invalid for a pattern that a consumer can't have, and for a predicate that PostgreSQL
    doesn't take, or that fails on one of them.
    """
    for option, patterns in (("types", types), ("keys", keys)):
        for pattern in patterns or ():
            if not is_storable(pattern):
                raise Invalid(f"{option} has {pattern!r}, expected texts, like 'order.*'.")
            if not rest_is_last(pattern):
                raise Invalid(f"The pattern {pattern!r} in {option}: '>' means the rest, so it can only be last.")
    using = using or models.Event.objects.db
    row = existing(using, topic)
    statement = SQL.matches.on(
        log=log_table(row.pk), topic_id=row.pk, last=last, match=condition(_Filter(types, keys, where, metadata, vars))
    )
    try:
        with sql.committed(using):
            return [Matched(*row) for row in sql.fetch(using, statement)]
    except DatabaseError as error:
        if (where, metadata) == (None, None) or not (
            sql.kind_of(error).of_data or sql.kind_of(error) is sql.ErrorKind.OTHER
        ):
            raise
        problem = sql.said(error).splitlines()[0]
        predicates = {"where": where, "metadata": metadata}
        named = " and ".join(f"{name}={given!r}" for name, given in predicates.items() if given is not None)
        raise Invalid(f"{named} can't be used on these events of topic {row}: {problem}.") from error
