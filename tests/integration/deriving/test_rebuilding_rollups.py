"""A roll-up is rebuilt by the same machinery as a projection."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection, connections

from django_events import Draft, publish_many
from django_events.consuming.streams import ranges
from django_events.deriving.forgetting import forget_old_buckets
from django_events.exceptions import NotReady
from django_events.log.transfer import Transfer
from django_events.models import Consumer, Rebuild, RollUp, Topic
from django_events.operations import lag, rebuild
from django_events.statements import log_table
from django_events.syncing import sync
from tests.support.fix_consumers import serve_due
from tests.support.fix_rollups import by_group, known_groups, row_of, table_of
from tests.support.fix_topics import transfer_all
from tests.support.processes import wait_until

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("H3")]


def test_a_rolled_up_table_is_made_anew_and_goes_on(things, make_rollup):
    revenue = make_rollup(things, every=timedelta(days=1), by={"store": "$.store"}, sums={"revenue": "$.total"})
    publish_many(things, [Draft(value={"store": "ab"[n % 2], "total": n}) for n in range(100)])
    transfer_all()
    serve_due(revenue)
    before = by_group(revenue, "store", "revenue")
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {table_of(revenue)}")

    done = rebuild(revenue)

    assert done.finished and done.reached == {"things": 100}
    assert by_group(revenue, "store", "revenue") == before == {"a": sum(range(0, 100, 2)), "b": sum(range(1, 100, 2))}
    assert lag(revenue) == 0 and not Rebuild.objects.exists()
    publish_many(things, [Draft(value={"store": "a", "total": 1})])
    transfer_all()
    assert serve_due(revenue) == 1
    assert by_group(revenue, "store", "revenue")["a"] == before["a"] + 1


@pytest.mark.slow
@pytest.mark.django_db(transaction=True, databases=["default", "archive"])
def test_another_database_has_other_numbers_for_its_tables(archive, things, make_rollup):
    with connections[archive].cursor() as cursor:
        cursor.execute("SELECT setval('django_events_rollup_id_seq', 4711)")
    counted = make_rollup(things, every=timedelta(days=1), by={"store": "$.store"}, sums={"revenue": "$.total"})
    try:
        sync(archive)
        there = RollUp.objects.using(archive).get(name=counted.name)
        assert there.table != table_of(counted)
        publish_many(things, [Draft(value={"store": "a", "total": n}) for n in range(10)], using=archive)
        while Transfer(archive).move():
            pass

        done = rebuild(counted, using=archive)

        assert (done.table, done.reached) == (there.table, {"things": 10})
        with connections[archive].cursor() as cursor:
            cursor.execute(f"SELECT sum(count), sum(revenue) FROM {there.table} WHERE bucket > '-infinity'")
            assert cursor.fetchone() == (10, 45)
        assert by_group(counted, "store", "revenue") == {}
    finally:
        forget_in(archive, counted.name, things.name)


def forget_in(using, rollup, topic):
    row, log = RollUp.objects.using(using).get(name=rollup), Topic.objects.using(using).get(name=topic)
    Consumer.objects.using(using).filter(name=rollup).delete()
    with connections[using].cursor() as cursor:
        cursor.execute(f"DROP TABLE {row.table}; DROP TABLE {log_table(log.pk)} CASCADE")
    row.delete()
    log.delete()


def test_groups_whose_buckets_are_too_old_keep_no_room(things, make_rollup, monkeypatch):
    at, day = "$.at", timedelta(days=1)
    counted = make_rollup(things, every=day, at=at, by={"store": "$.store"}, groups=2, retention=10 * day)
    now = datetime.now(UTC)
    for days, store in ((50, "a"), (40, "b"), (30, "c"), (1, "d"), (0, "e")):
        publish_many(things, [Draft(value={"at": (now - timedelta(days=days)).isoformat(), "store": store})])
        transfer_all()
        serve_due(counted)
        forget_old_buckets("default", seconds=20)
    assert by_group(counted, "store", "count") == {"d": 1, "e": 1}

    monkeypatch.setattr(ranges, "FIRST", 1)
    monkeypatch.setattr(ranges, "MOST", 1)
    rebuild(counted)

    assert by_group(counted, "store", "count") == {"d": 1, "e": 1}
    assert known_groups(counted) == 2 and row_of(counted).full_since is None


def test_a_limit_on_groups_that_the_new_table_has_reached_is_said(things, make_rollup):
    counted = make_rollup(things, every=timedelta(days=1), by={"store": "$.store"}, groups=2)
    publish_many(things, [Draft(value={"store": store}) for store in "abcd"])
    transfer_all()
    serve_due(counted)
    assert row_of(counted).full_since is not None
    rebuild(counted)
    assert by_group(counted, "store", "count") == {"a": 1, "b": 1, "(other)": 2}
    assert row_of(counted).full_since is not None

    counted = make_rollup(things, every=timedelta(days=1), by={"store": "$.store"}, groups=4)
    rebuild(counted)
    assert by_group(counted, "store", "count") == dict.fromkeys("abcd", 1)
    assert row_of(counted).full_since is None


def test_while_its_row_is_locked_its_table_is_not(things, make_rollup, connect, in_thread):
    counted = make_rollup(things, every=timedelta(days=1))
    publish_many(things, [Draft(value=1)])
    transfer_all()
    serve_due(counted)
    cleaner, looker = connect(), connect(autocommit=True)
    cleaner.execute("SELECT FROM django_events_rollup WHERE name = 'revenue' FOR UPDATE")

    rebuilding = in_thread(rebuild, counted, wait=timedelta(seconds=20))
    waits = "SELECT count(*) > 0 FROM pg_stat_activity WHERE %s = ANY(pg_blocking_pids(pid))"
    wait_until(lambda: looker.execute(waits, [cleaner.info.backend_pid]).fetchone() == (True,))
    cleaner.execute("SET LOCAL lock_timeout = '100ms'")
    cleaner.execute(f"DELETE FROM {table_of(counted)} WHERE bucket < now() - interval '1 year'")
    cleaner.rollback()

    assert rebuilding.result().finished
    assert by_group(counted, "skipped", "count") == {0: 1}


def test_by_another_filter_than_workers_go_by_it_is_refused(things, make_rollup):
    counted = make_rollup(things, every=timedelta(days=1), types=["a"])
    publish_many(things, [Draft(value=n, type="ab"[n % 2]) for n in range(20)])
    transfer_all()
    serve_due(counted)

    def migrate(so_far):
        Consumer.objects.filter(name="revenue").update(types=["b"])

    with pytest.raises(NotReady, match=r"declared with types=\['a'\] instead of \['b'\]"):
        rebuild(counted, on_progress=migrate)
    assert by_group(counted, "skipped", "count") == {0: 10}
    with pytest.raises(NotReady, match=r"manage\.py migrate"):
        rebuild(counted)
    assert rebuild(make_rollup(things, every=timedelta(days=1), types=["b"])).finished
    assert by_group(counted, "skipped", "count") == {0: 10} and lag(counted) == 0
