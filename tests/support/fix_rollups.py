"""Roll-ups for tests: declared, made, read whole, and then gone."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection

from django_events import declarations
from django_events.models import Consumer, RollUp
from django_events.syncing import sync
from tests.support.fix_database import forget_rollups

RollUpFactory = Callable[..., declarations.DeclaredRollUp]


@pytest.fixture
def make_rollup(make_topic: Any) -> Iterator[RollUpFactory]:
    """Declare roll-ups for one test and make them; their rows and tables are gone when it ends."""
    made: list[declarations.DeclaredRollUp] = []

    def make(
        *topics: declarations.DeclaredTopic | str, name: str = "revenue", **options: Any
    ) -> declarations.DeclaredRollUp:
        for earlier in [one for one in made if one.name == name]:
            declarations.consumers.discard(earlier)
        declared = declarations.rollup(*topics, name=name, **options)
        made.append(declared)
        sync("default")
        return declared

    yield make
    for rollup in made:
        declarations.consumers.discard(rollup)
    if not connection.in_atomic_block:
        drop_rollups([rollup.name for rollup in made])


def drop_rollups(names: list[str]) -> None:
    Consumer.objects.filter(name__in=names).delete()
    forget_rollups(names)


def row_of(rollup: declarations.DeclaredRollUp) -> RollUp:
    return RollUp.objects.get(name=rollup.name)


def table_of(rollup: declarations.DeclaredRollUp) -> str:
    return row_of(rollup).table


def all_rows(rollup: declarations.DeclaredRollUp) -> list[dict[str, Any]]:
    """What its table has, without the groups that are merely known."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table_of(rollup)} WHERE bucket > '-infinity'")
        names = [column.name for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def by_group(rollup: declarations.DeclaredRollUp, group: str, figure: str) -> dict[str, Any]:
    """A figure that can be added up, by one group, over all buckets: one may end while a test runs."""
    found: dict[str, Any] = {}
    for row in all_rows(rollup):
        found[row[group]] = found.get(row[group], 0) + row[figure]
    return found


def known_groups(rollup: declarations.DeclaredRollUp) -> int:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {table_of(rollup)} WHERE bucket = '-infinity'")
        [[count]] = cursor.fetchall()
    return int(count)
