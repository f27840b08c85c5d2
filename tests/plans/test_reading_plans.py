"""The plans of readers without Django: what is asked for by ids is found by them, and nothing in between is read."""

import json

import pytest
from django.db import connection, transaction

from django_events.reading.rows import SETTINGS
from django_events.reading.rows import SQL as ROWS_SQL
from django_events.statements import all_of, literal, log_table
from tests.plans.test_plans import large, nodes

__all__ = ["large"]  # a fixture

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.slow, pytest.mark.requirement("D1")]


def test_events_that_lie_anywhere_are_found_one_by_one(large: int) -> None:
    ids = list(range(10, 40_000, 40))
    statement = ROWS_SQL.copy_chosen.on(
        log=log_table(large),
        topic_id=large,
        ids=literal(ids),
        count=len(ids),
        first=ids[0],
        last=ids[-1],
        piece=128,
        columns=[ROWS_SQL.as_is.on(column="id", name="offset")],
        gathered=ROWS_SQL.gather_numbers.on(name="offset"),
        condition=all_of([]),
    )
    asked = statement.text[len("COPY (") : statement.text.rindex(") TO STDOUT")]
    with transaction.atomic(), connection.cursor() as cursor:
        for name, value in SETTINGS.items():
            cursor.execute("SELECT set_config(%s, %s, true)", [name, value])
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {asked}")
        [[plan]] = cursor.fetchall()

    plan = nodes((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])
    # Of a node that ran often the rows are a mean, which PostgreSQL 18 rounds less.
    read = [node for node in plan if node.get("Relation Name", "").startswith(log_table(large))]
    assert all("Index" in node["Node Type"] for node in read)
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in read) == pytest.approx(
        len(ids), abs=len(ids) // 10
    )
