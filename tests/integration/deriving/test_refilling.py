"""A second table of a roll-up, filled from the beginning of the log: what a rebuild does, without its change-over."""

from datetime import timedelta

import pytest
from django.db import connection, transaction

from django_events import Draft, publish_many
from django_events.consuming.subscriptions import subscriptions
from django_events.deriving.refilling import RollUpFilling
from django_events.exceptions import EventsMissing
from django_events.models import Consumer, Topic
from django_events.statements import log_table
from tests.support.fix_consumers import serve_due
from tests.support.fix_rollups import all_rows, row_of, table_of
from tests.support.fix_topics import transfer_all

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("H3")]

DAY = timedelta(days=1)


@pytest.fixture(autouse=True)
def no_schema_left(transactional_db):
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP SCHEMA IF EXISTS refilled CASCADE")


def fill(topic, count):
    publish_many(topic, [Draft(value={"store": f"s{n % 5}", "total": n}, type="ab"[n % 2]) for n in range(count)])
    transfer_all()


def consumers(rollup):
    return list(Consumer.objects.select_related("topic").filter(name=rollup.name).order_by("topic__name"))


def refill(rollup, until, *, ids=1_000):
    """Its rows in a schema of its own, in chunks."""
    filling = rollup.derivation()
    filling._size.ids = ids
    assert isinstance(filling, RollUpFilling)
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA refilled")
    filling.make("default", ("refilled", filling.table("default")))
    reached = dict.fromkeys(until, 0)
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL search_path = refilled, public")
        while reached != until:
            reached = filling.fold("default", consumers(rollup), after=reached, until=until).reached
        rows = all_rows(rollup)
        cursor.execute("SET LOCAL search_path = public")
    return filling, rows


def in_order(rows):
    return sorted(rows, key=lambda row: sorted((name, str(value)) for name, value in row.items()))


@pytest.mark.parametrize("ids", [1, 7, 1_000])
def test_it_is_what_workers_have_folded(things, make_topic, make_rollup, ids):
    other = make_topic("other")
    revenue = make_rollup(
        things, other, every=DAY, by={"store": "$.store"}, sums={"revenue": "$.total"}, types=["a"], groups=3
    )
    fill(things, 40)
    serve_due(revenue)
    fill(other, 30)
    serve_due(revenue)
    _, rows = refill(revenue, {"other": 30, "things": 40}, ids=ids)
    assert sum(row["count"] for row in rows) == 35
    assert {row["bucket"] for row in rows} == {row["bucket"] for row in all_rows(revenue)}


def test_it_may_be_made_otherwise_and_workers_of_other_code_leave_it_alone_then(things, make_rollup):
    before = make_rollup(things, every=DAY, sums={"revenue": "$.total"})
    fill(things, 10)
    serve_due(before)
    now = make_rollup(things, every=DAY, by={"store": "$.store"}, sums={"income": "$.total"})
    filling, rows = refill(now, {"things": 10})
    assert {row["store"]: row["income"] for row in rows} == {f"s{n}": 2 * n + 5 for n in range(5)}
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL search_path = refilled, public")
        filling.changed_over("default")
        cursor.execute("SET LOCAL search_path = public")
    assert row_of(now).made_by == now.made_by
    [of_now], [of_before] = (subscriptions("default", [one]) for one in (now, before))
    assert (of_now.outdated, bool(of_before.outdated)) == ("", True)


def test_what_fails_the_filter_is_left_out(things, make_rollup):
    counted = make_rollup(things, every=DAY, where='$.at.datetime() > "2020-01-01T00:00:00+00:00".datetime()')
    values = [{"at": "2026-01-01T00:00:00+00:00"}] * 5
    publish_many(things, [Draft(value=value) for value in [*values, {"at": "2026-01-01"}, *values]])
    transfer_all()
    _, [row] = refill(counted, {"things": 11})
    assert row["count"] == 10
    assert row_of(counted).left_out == 1


def test_a_missing_event_is_an_error(things, make_rollup):
    counted = make_rollup(things, every=DAY)
    fill(things, 10)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL session_replication_role = replica")
        cursor.execute(f"DELETE FROM {log_table(Topic.objects.get(name='things').pk)} WHERE id = 7")
    with pytest.raises(EventsMissing, match="things/7"):
        counted.derivation().fold("default", consumers(counted), after={"things": 0}, until={"things": 10})
    assert table_of(counted) == counted.derivation().table("default")
