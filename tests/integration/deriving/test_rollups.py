"""Roll-ups: what is counted, in which bucket and group; what isn't; and who says so."""

import json
import logging
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connection

from django_events import Draft, declarations, models, publish, publish_many
from django_events.consuming import registration
from django_events.consuming.subscriptions import subscriptions
from django_events.exceptions import EventsMissing, Invalid, Refused
from django_events.models import Consumer, Intervention, RollUp, Topic
from django_events.models.functions import ClockTimestamp
from django_events.observing import problems
from django_events.observing.lag import standings
from django_events.operations import erase, lag, pause, replay, resume, rewind, skip, unregister
from django_events.statements import log_table
from django_events.syncing import sync
from django_events.testing import drain
from tests.support.fix_consumers import due, lease_of, position_of, positions, run_once, serve_due, serve_lease
from tests.support.fix_rollups import all_rows, by_group, known_groups, row_of, table_of
from tests.support.fix_topics import transfer_all

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("H3")]

DAY = timedelta(days=1)


def fill(topic, *values, **fields):
    publish_many(topic, [Draft(value=value, **fields) for value in values])
    transfer_all()


def found_problems(kind):
    return [one for one in problems.find_problems("default", [], None, standings("default")) if one.kind == kind]


def one(rollup):
    [row] = all_rows(rollup)
    return row


# What is counted


def test_events_are_counted_and_their_numbers_added_by_group(things, make_rollup):
    revenue = make_rollup(
        things,
        every=DAY,
        by={"store": "$.store"},
        sums={"revenue": "$.total"},
        mins={"least": "$.total"},
        maxs={"most": "$.total"},
    )
    fill(things, {"store": "a", "total": 3}, {"store": "b", "total": 2.5}, {"store": "a", "total": -1})
    assert serve_due(revenue) == 3

    assert by_group(revenue, "store", "revenue") == {"a": 2, "b": Decimal("2.5")}
    assert by_group(revenue, "store", "least") == {"a": -1, "b": Decimal("2.5")}
    assert by_group(revenue, "store", "most") == {"a": 3, "b": Decimal("2.5")}
    assert by_group(revenue, "store", "count") == {"a": 2, "b": 1}

    fill(things, {"store": "a", "total": 10}, {"store": "c", "total": 1})
    assert serve_due(revenue) == 2
    assert by_group(revenue, "store", "revenue") == {"a": 12, "b": Decimal("2.5"), "c": 1}
    assert by_group(revenue, "store", "least") == {"a": -1, "b": Decimal("2.5"), "c": 1}
    position = position_of(revenue)
    assert (position.position, position.number, position.handled) == (5, 5, 5)
    assert lag(revenue) == 0


def test_without_groups_and_measures_events_are_counted(things, make_rollup):
    counted = make_rollup(things, every=DAY)
    fill(things, 1, "two", None, [4])
    assert serve_due(counted) == 4
    assert (one(counted)["count"], one(counted)["skipped"]) == (4, 0)


@pytest.mark.parametrize(
    "value",
    [
        "three",
        "NaN",
        "Infinity",
        "1e400",
        "0x1F",
        " 7",
        "1_000",
        "٣",
        "",
        True,
        None,
        [1, 2],
        {"a": 1},
        pytest.param(10**400, id="huge"),
    ],
)
@pytest.mark.few(6)
def test_a_value_that_is_no_number_is_skipped_and_stops_nothing(things, make_rollup, value):
    revenue = make_rollup(things, every=DAY, sums={"revenue": "$.total"}, mins={"least": "$.total"})
    fill(things, {"total": 1}, {"total": value}, {}, "no object", {"total": 2})
    assert serve_due(revenue) == 5
    row = one(revenue)
    assert (row["count"], row["skipped"], row["revenue"], row["least"]) == (5, 3, 3, 1)


@pytest.mark.parametrize(
    "value", ["44.98", "-0.5", "1E+2", "0001", 5e-324, 1.7976931348623157e308, 123456789012345678901234567890]
)
def test_a_decimal_in_a_text_is_a_number(things, make_rollup, value):
    revenue = make_rollup(things, every=DAY, sums={"revenue": "$.total"})
    fill(things, {"total": value})
    serve_due(revenue)
    assert one(revenue)["skipped"] == 0
    assert float(one(revenue)["revenue"]) == float(value)


def test_a_measure_without_any_number_is_null(things, make_rollup):
    revenue = make_rollup(things, every=DAY, sums={"revenue": "$.total"}, maxs={"most": "$.total"})
    fill(things, {}, {})
    serve_due(revenue)
    assert (one(revenue)["revenue"], one(revenue)["most"], one(revenue)["skipped"]) == (None, None, 2)
    fill(things, {"total": 7})
    serve_due(revenue)
    assert (one(revenue)["revenue"], one(revenue)["most"], one(revenue)["skipped"]) == (7, 7, 2)


def test_a_jsonpath_may_do_more_than_name_keys(things, make_rollup):
    revenue = make_rollup(
        things,
        every=DAY,
        by={"first": "$.items[0].sku", "nested": "$.a.b"},
        sums={"price": "$.items[*].price", "strictly": "strict $.total", "filtered": "$.total ? (@ > 5)"},
    )
    fill(
        things,
        {"items": [{"sku": "x", "price": 3}, {"sku": "y", "price": 9}], "total": 6, "a": {"b": "deep"}},
        {"items": {"sku": "x", "price": 1}, "total": 7, "a": [{"b": "deep"}]},
        {"items": [], "total": 1},
    )
    serve_due(revenue)
    assert {
        (row["first"], row["nested"]): (row["price"], row["strictly"], row["filtered"]) for row in all_rows(revenue)
    } == {
        ("x", "deep"): (4, 13, 13),
        ("", ""): (None, 1, None),
    }


def test_groups_are_values_types_keys_and_what_keys_begin_with(things, make_rollup):
    counted = make_rollup(
        things, every=DAY, by={"what": "$.what", "kind": "type", "of": "key", "tenant": "key until :"}
    )
    fill(things, {"what": 1}, {"what": "1"}, type="a", key="t1:o1")
    fill(things, {"what": True}, type="b", key="t1:o2")
    fill(things, {"what": None}, {}, type="b")
    fill(things, {"what": {"b": 1, "a": [2]}}, type="b", key="plain")
    serve_due(counted)
    assert {(r["what"], r["kind"], r["of"], r["tenant"]): r["count"] for r in all_rows(counted)} == {
        ("1", "a", "t1:o1", "t1"): 2,
        ("true", "b", "t1:o2", "t1"): 1,
        ("", "b", "", ""): 2,
        ('{"a": [2], "b": 1}', "b", "plain", "plain"): 1,
    }


def test_a_long_group_is_cut(things, make_rollup):
    counted = make_rollup(things, every=DAY, by={f"g{n}": f"$.g{n}" for n in range(6)})
    long = "字" * 5_000
    fill(things, {f"g{n}": f"{n}{long}" for n in range(6)})
    serve_due(counted)
    assert one(counted)["g0"] == f"0{long}"[:100]


def test_filters_are_those_of_consumers(things, make_rollup):
    revenue = make_rollup(
        things, every=DAY, types=["order.*"], keys=["eu.>"], where="$.total > 5", sums={"revenue": "$.total"}
    )
    for kind, key, total in [("order.placed", "eu.de.1", 10), ("order.placed", "us.1", 20), ("refund", "eu.1", 30)]:
        fill(things, {"total": total}, {"total": 1}, type=kind, key=key)
    assert serve_due(revenue) == 6
    assert (one(revenue)["count"], one(revenue)["revenue"]) == (1, 10)
    assert position_of(revenue).handled == 1


def test_a_range_without_an_event_for_it_is_passed(things, make_rollup):
    revenue = make_rollup(things, every=DAY, by={"store": "$.store"}, types=["order"])
    fill(things, 1, 2, 3)
    assert serve_due(revenue) == 3
    assert all_rows(revenue) == []


def test_a_changed_filter_counts_from_one_id_on(things, make_rollup):
    counted = make_rollup(things, every=DAY, by={"kind": "type"}, types=["a"])
    fill(things, 1, type="a")
    fill(things, 2, type="b")
    counted = make_rollup(things, every=DAY, by={"kind": "type"}, types=["b"])
    fill(things, 3, type="a")
    fill(things, 4, type="b")
    serve_due(counted)
    assert by_group(counted, "kind", "count") == {"a": 1, "b": 1}
    assert row_of(counted).full_since is None


# Buckets


@pytest.mark.parametrize("at", ["published_at", "logged_at"])
def test_buckets_are_by_the_events_own_times(things, make_rollup, at):
    counted = make_rollup(things, every=timedelta(minutes=15), at=at)
    fill(things, *range(4))
    times = [datetime(2026, 3, 1, 12, minute, tzinfo=UTC) for minute in (0, 14, 15, 59)]
    with connection.cursor() as cursor:
        for n, time in enumerate(times):
            cursor.execute(
                f"UPDATE {log_table(Topic.objects.get(name='things').pk)} SET {at} = %s WHERE id = %s", [time, n + 1]
            )
    serve_due(counted)
    assert {row["bucket"].strftime("%H:%M"): row["count"] for row in all_rows(counted)} == {
        "12:00": 2,
        "12:15": 1,
        "12:45": 1,
    }


def test_a_late_event_is_in_its_own_bucket(things, make_rollup):
    counted = make_rollup(things, every=timedelta(hours=1), at="$.at")
    fill(things, {"at": "2026-03-01T12:10:00Z"}, {"at": "2026-03-01T13:59:59.999Z"})
    serve_due(counted)
    fill(things, {"at": "2026-03-01T14:30:00+02:00"}, {"at": "2026-03-01"})
    serve_due(counted)
    assert {row["bucket"].strftime("%d %H:%M"): row["count"] for row in all_rows(counted)} == {
        "01 12:00": 2,
        "01 13:00": 1,
        "01 00:00": 1,
    }


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2026-01-31", "2026-01-31T00:00:00"),
        ("2026-01-31 12:34", "2026-01-31T12:34:00"),
        ("2026-01-31T12:34:56", "2026-01-31T12:34:56"),
        ("2026-01-31T12:34:56Z", "2026-01-31T12:34:56"),
        ("2026-01-31T12:34:56.789Z", "2026-01-31T12:34:56"),
        ("2026-01-31T12:34:56.123456+05:30", "2026-01-31T07:04:56"),
        ("2026-01-31T12:34:56-0800", "2026-01-31T20:34:56"),
        ("2026-01-31T12:34:56+02", "2026-01-31T10:34:56"),
        ("2024-02-29T00:00:00Z", "2024-02-29T00:00:00"),
        ("2000-02-29", "2000-02-29T00:00:00"),
        ("2999-12-31T23:59:59Z", "2999-12-31T23:59:59"),
        ("1970-01-01", "1970-01-01T00:00:00"),
        ("1972-02-29", "1972-02-29T00:00:00"),
        ("2400-02-29", "2400-02-29T00:00:00"),
    ],
)
@pytest.mark.few(6)
def test_a_time_in_the_value_is_as_iso_8601_has_it(things, make_rollup, text, utc):
    counted = make_rollup(things, every=timedelta(seconds=1), at="$.at")
    fill(things, {"at": text})
    serve_due(counted)
    assert one(counted)["skipped"] == 0
    assert one(counted)["bucket"].isoformat() == f"{utc}+00:00"


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        "yesterday",
        "now",
        "infinity",
        "-infinity",
        "2026-13-01",
        "2026-02-30",
        "2026-02-29",
        "1990-02-29",
        "1994-02-29",
        "1998-02-29",
        "2100-02-29",
        "2200-02-29",
        "2026-04-31T00:00:00Z",
        "2026-01-31T24:00:00Z",
        "2026-01-31T12:60:00Z",
        "2026-01-31T12:00:60Z",
        "2026-01-31T12:00:00+15:00",
        "2026-01-31T12:00:00 Europe/Berlin",
        "0001-01-01T00:00:00Z",
        "1969-12-31",
        "3000-01-01",
        "99999-01-01",
        "31.01.2026",
        "2026-01-31T12:00:00Z\n",
        1769862896,
        ["2026-01-31"],
    ],
)
@pytest.mark.few(6)
def test_an_event_without_a_time_is_skipped_where_it_was_published(things, make_rollup, value):
    revenue = make_rollup(things, every=DAY, at="$.at", sums={"revenue": "$.total"})
    fill(things, {"at": value, "total": 5})
    assert serve_due(revenue) == 1
    row = one(revenue)
    assert (row["count"], row["skipped"], row["revenue"]) == (0, 1, None)
    assert datetime.now(UTC) - row["bucket"] < 2 * DAY


@pytest.mark.parametrize("text", ["2026-01-31", "2026-01-01", "2026-05-13", "2026-01-31T00:34:56", "2026-01-01 00:34"])
def test_times_without_an_offset_are_utc_whatever_the_session_has(things, make_rollup, text):
    counted = make_rollup(things, every=timedelta(hours=1), at="$.at")
    fill(things, {"at": text})
    with connection.cursor() as cursor:
        cursor.execute("SET TimeZone = 'Asia/Tokyo'")
    try:
        serve_due(counted)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("SET TimeZone = 'UTC'")
    assert one(counted)["bucket"].isoformat() == f"{text[:10]}T00:00:00+00:00"


# A limit on groups


def test_groups_beyond_the_limit_are_counted_together(things, make_rollup, caplog):
    revenue = make_rollup(things, every=DAY, by={"store": "$.store"}, sums={"revenue": "$.total"}, groups=2)
    fill(things, *({"store": store, "total": 1} for store in "abcda"))
    with caplog.at_level(logging.WARNING, "django_events.consumer"):
        serve_due(revenue)
    assert by_group(revenue, "store", "revenue") == {"a": 2, "b": 1, "(other)": 2}
    assert known_groups(revenue) == 2
    assert row_of(revenue).full_since is not None
    assert "has 2 groups, as many as it may" in caplog.text
    caplog.clear()
    fill(things, *({"store": store, "total": 10} for store in "dbe"))
    serve_due(revenue)
    assert by_group(revenue, "store", "revenue") == {"a": 2, "b": 11, "(other)": 22}
    assert "as many as" not in caplog.text

    [found] = found_problems("groups")
    assert found.subject.consumer == "revenue"
    assert "has 2 groups since" in found.what

    revenue = make_rollup(things, every=DAY, by={"store": "$.store"}, sums={"revenue": "$.total"}, groups=3)
    assert row_of(revenue).full_since is None
    fill(things, {"store": "e", "total": 100}, {"store": "f", "total": 100})
    serve_due(revenue)
    assert by_group(revenue, "store", "revenue") == {"a": 2, "b": 11, "(other)": 122, "e": 100}


def test_which_groups_come_first_is_decided_by_ids(things, make_rollup):
    counted = make_rollup(things, every=DAY, by={"store": "$.store"}, groups=2)
    fill(things, {"store": "z"}, {"store": "z"}, {"store": "y"}, *({"store": "a"},) * 20)
    serve_due(counted)
    assert by_group(counted, "store", "count") == {"z": 2, "y": 1, "(other)": 20}


# What can't be counted


def test_an_event_that_fails_the_statement_is_left_out_alone(things, make_rollup, caplog):
    """A jsonpath predicate that compares a date with a time of day in a zone fails, whatever is asked of it."""
    where = '$.at.datetime() > "2020-01-01T00:00:00+00:00".datetime()'
    counted = make_rollup(things, every=DAY, where=where)
    good, bad = {"at": "2026-01-01T00:00:00+00:00"}, {"at": "2026-01-01"}
    fill(things, *[good] * 10, bad, *[good] * 10, bad, bad, good)
    with caplog.at_level(logging.ERROR, "django_events.consumer"):
        assert serve_due(counted) == 24
    assert one(counted)["count"] == 21
    assert (row_of(counted).left_out, row_of(counted).error[:9]) == (3, "things/23")
    assert "leaves event things/11 out" in caplog.text
    position = position_of(counted)
    assert (position.position, position.handled, position.failed) == (24, 21, 3)
    assert not models.DeadLetter.objects.exists()
    [found] = found_problems("left out")
    assert "3 events left out" in found.what
    assert found.remedy.endswith("manage.py events rebuild revenue")


@pytest.mark.slow
def test_where_each_event_fails_it_stops(things, make_rollup):
    counted = make_rollup(things, every=DAY, where='$.at.datetime() > "2020-01-01T00:00:00+00:00".datetime()')
    fill(things, *[{"at": "2026-01-01"}] * 150)
    run_once(counted)
    position = position_of(counted)
    assert (position.position, position.failed, position.stopped_at is not None) == (100, 100, True)
    [found] = found_problems("stopped")
    assert found.subject.consumer == "revenue"
    resume(counted)
    run_once(counted)
    assert position_of(counted).position == 150


def test_an_event_that_is_missing_stops_it_and_is_said(things, make_rollup):
    counted = make_rollup(things, every=DAY)
    fill(things, *range(10))
    with connection.cursor() as cursor:
        cursor.execute(f"DELETE FROM {log_table(Topic.objects.get(name='things').pk)} WHERE id = 4")
    with pytest.raises(EventsMissing, match=r"Event things/4 is missing"):
        serve_due(counted)
    assert all_rows(counted) == []
    assert position_of(counted).position == 0
    assert run_once(counted) == 0
    [found] = found_problems("set aside")
    assert "things/4" in found.what
    assert "events rewind revenue --to ID" in found.remedy
    rewind(counted, to=5)
    assert serve_due(counted) == 6
    assert one(counted)["count"] == 6


def test_a_table_that_is_gone_stops_it_and_is_said(things, make_rollup):
    counted = make_rollup(things, every=DAY)
    fill(things, 1)
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TABLE {table_of(counted)}")
    assert run_once(counted) == 0
    [found] = found_problems("set aside")
    assert table_of(counted) in found.remedy
    assert "events rebuild revenue" in found.remedy


def test_erasing_an_event_leaves_what_was_counted(make_topic, make_rollup):
    things = make_topic("things", timeline=True)
    revenue = make_rollup(things, every=DAY, sums={"revenue": "$.total"})
    fill(things, {"total": 5}, key="ada")
    serve_due(revenue)
    fill(things, {"total": 7}, key="ada")
    erase(things, key="ada", reason="asked for it")
    serve_due(revenue)
    assert (one(revenue)["count"], one(revenue)["revenue"], one(revenue)["skipped"]) == (2, 5, 1)


# As a consumer


def test_it_is_paused_and_resumed_and_catches_up(things, make_rollup):
    counted = make_rollup(things, every=DAY)
    fill(things, *range(5))
    pause(counted)
    assert run_once(counted) == 0
    assert lag(counted) == 5
    resume(counted)
    assert run_once(counted) == 5
    assert lag(counted) == 0


def test_drain_serves_it(things, make_rollup):
    counted = make_rollup(things, every=DAY)
    publish(things, 1)
    assert drain(counted) == 1
    assert one(counted)["count"] == 1


def test_several_topics_fold_into_one_table(make_topic, make_rollup):
    one_topic, other = make_topic("one"), make_topic("other", partitions=3)
    counted = make_rollup(one_topic, other, every=DAY, by={"store": "$.store"})
    fill(one_topic, {"store": "a"}, {"store": "b"})
    fill(other, {"store": "a"}, {"store": "c"})
    assert run_once(counted, threads=2) == 4
    assert by_group(counted, "store", "count") == {"a": 2, "b": 1, "c": 1}


def test_a_worker_that_lost_its_lease_counts_nothing(things, make_rollup):
    counted = make_rollup(things, every=DAY)
    fill(things, *range(5))
    late = lease_of(counted)
    positions(counted).update(leased_until=ClockTimestamp())
    assert run_once(counted) == 5
    with pytest.raises(Exception, match="lost its lease"):
        serve_lease(late)
    assert one(counted)["count"] == 5


def test_moving_it_back_is_refused_and_forward_leaves_events_out(things, make_rollup):
    counted = make_rollup(things, every=DAY)
    fill(things, *range(5))
    serve_due(counted)
    for dry_run in (True, False):
        with pytest.raises(Refused, match=r"manage\.py events rebuild revenue"):
            rewind(counted, to="beginning", dry_run=dry_run)
    with pytest.raises(Refused, match="would count twice"):
        replay(counted, ids=[1], reason="x")
    fill(things, 5, 6)
    with pytest.raises(Refused, match="is a roll-up"):
        skip(counted, 6, reason="x")
    rewind(counted, to=7)
    assert serve_due(counted) == 1
    assert one(counted)["count"] == 6
    assert Intervention.objects.filter(action="rewind").count() == 1


def test_unregistering_it_lets_its_table_go(things, make_rollup):
    counted = make_rollup(things, every=DAY)
    table = table_of(counted)
    declarations.consumers.discard(counted)
    unregister("revenue", reason="gone")
    assert not RollUp.objects.filter(name="revenue").exists()
    assert sync("default") == [f"Roll-ups: the table {table} is dropped, no roll-up has it."]
    with connection.cursor() as cursor:
        cursor.execute("SELECT to_regclass(%s)", [table])
        assert cursor.fetchone() == (None,)


def test_status_shows_it_as_a_consumer(things, make_rollup):
    make_rollup(things, every=DAY)
    fill(things, 1, 2)
    out = StringIO()
    call_command("events", "status", "--format", "json", stdout=out)
    found = [one for one in json.loads(out.getvalue())["consumers"] if one["consumer"] == "revenue"]
    assert [one["lag"] for one in found] == [2]


# Declared, and declared anew


def test_migrate_makes_its_table_and_says_so(things, make_rollup):
    revenue = make_rollup(things, by={"store": "$.store"}, sums={"revenue": "$.total"}, retention=DAY)
    row = row_of(revenue)
    assert (row.most_groups, row.retention) == (10_000, DAY)
    assert row.made_by == {
        "every": 60,
        "at": "published_at",
        "by": {"store": "$.store"},
        "sums": {"revenue": "$.total"},
        "mins": {},
        "maxs": {},
    }
    assert sync("default") == []
    assert Consumer.objects.get(name="revenue").partitioned is False


def test_an_empty_table_follows_its_declaration(things, make_rollup):
    make_rollup(things, sums={"revenue": "$.total"})
    revision = Consumer.objects.get(name="revenue").revision
    revenue = make_rollup(things, every=DAY, sums={"income": "$.total"})
    assert Consumer.objects.get(name="revenue").revision == revision + 1
    fill(things, {"total": 1})
    serve_due(revenue)
    assert one(revenue)["income"] == 1


@pytest.mark.slow
def test_a_table_that_counts_something_stays_as_it_was_made(things, make_rollup):
    before = make_rollup(things, every=DAY, sums={"revenue": "$.total"})
    fill(things, {"total": 1})
    serve_due(before)
    changed = make_rollup(things, every=DAY, sums={"income": "$.total"})
    [said] = sync("default")
    assert 'sums={"income": "$.total"} instead of {"revenue": "$.total"}' in said
    assert "manage.py events rebuild revenue" in said
    [subscription] = subscriptions("default", [changed])
    assert subscription.outdated
    fill(things, {"total": 2})
    assert due(changed) == []
    assert serve_due(before) == 1
    assert one(before)["revenue"] == 3
    [found] = found_problems("declared otherwise")
    assert "sums=" in found.what


def undeclare(name):
    for declared in [one for one in declarations.consumers if one.name == name]:
        declarations.consumers.discard(declared)


def test_a_consumer_does_not_become_a_rollup_nor_back(things, make_consumer, make_rollup):
    make_consumer(things, handler=print, name="revenue")
    undeclare("revenue")
    with pytest.raises(Refused, match=r"declared as a roll-up, .* and was registered as a consumer"):
        make_rollup(things)
    undeclare("revenue")
    unregister("revenue")
    make_rollup(things)
    undeclare("revenue")
    declarations.consumer(things, name="revenue", handler="builtins.print")
    with pytest.raises(Refused, match=r"declared as a consumer, .* and was registered as a roll-up"):
        sync("default")
    undeclare("revenue")


@pytest.mark.parametrize("path", ["$.", "$.a.frobnicate()", "$.a == $unknown"])
def test_a_jsonpath_that_postgresql_cannot_use_is_refused(things, make_rollup, path):
    with pytest.raises(Invalid, match="PostgreSQL can't use as a jsonpath"):
        make_rollup(things, sums={"x": path})


def test_registering_again_changes_nothing(things, make_rollup):
    make_rollup(things)
    assert registration.sync("default") == []
