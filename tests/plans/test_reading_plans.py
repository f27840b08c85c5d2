"""The plans of readers without Django: what is asked for by ids is found by them, and nothing in between is read."""

import json

import pytest
from django.db import connection, transaction

from django_events import Draft, publish_many
from django_events.models import Topic
from django_events.reading.rows import SETTINGS
from django_events.reading.rows import SQL as ROWS_SQL
from django_events.statements import all_of, literal, log_table
from tests.plans.test_plans import nodes
from tests.support.fix_topics import TopicFactory, transfer_all

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.slow, pytest.mark.requirement("D1")]


@pytest.mark.parametrize("is_known", [False, True], ids=["no statistics", "fresh statistics"])
def test_events_that_lie_anywhere_are_found_one_by_one(make_topic: TopicFactory, is_known: bool) -> None:
    publish_many(make_topic("things"), [Draft(value=n) for n in range(10_000)])
    transfer_all()
    topic = Topic.objects.get(name="things")
    ids = list(range(10, 10_000, 10))
    statement = ROWS_SQL.copy_chosen.on(
        log=log_table(topic.pk),
        topic_id=topic.pk,
        ids=literal(ids),
        count=len(ids),
        first=ids[0],
        last=ids[-1],
        piece=500,
        columns=[ROWS_SQL.as_is.on(column="id", name="offset")],
        gathered=ROWS_SQL.gather_long_integers.on(name="offset"),
        condition=all_of([]),
    )
    asked = statement.text[len("COPY (") : statement.text.rindex(") TO STDOUT")]
    with transaction.atomic(), connection.cursor() as cursor:
        if is_known:
            cursor.execute("ANALYZE django_events_event")
        for name, value in SETTINGS.items():
            cursor.execute("SELECT set_config(%s, %s, true)", [name, value])
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {asked}")
        [[plan]] = cursor.fetchall()

    plan = nodes((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"])
    read = [node for node in plan if node.get("Relation Name", "").startswith(log_table(topic.pk))]
    assert all("Index" in node["Node Type"] for node in read)
    assert sum(node["Actual Rows"] * node["Actual Loops"] for node in read) == len(ids)
