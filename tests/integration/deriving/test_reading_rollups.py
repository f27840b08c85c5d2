"""Reading roll-ups: larger buckets, time zones whose clocks change, groups, pages, and how far they are true."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from django.core.paginator import Paginator
from django.db import connection
from django.template import Context, Template

from django_events import Draft, publish_many
from django_events.exceptions import Invalid, NotReady
from django_events.models import Event, RollUp
from tests.support.fix_consumers import serve_due
from tests.support.fix_rollups import table_of
from tests.support.fix_topics import transfer_all

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("H3")]

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
MONDAY = datetime(2026, 3, 2, tzinfo=UTC)


def fill(topic, *drafts):
    """Each is a time, a store and a total."""
    values = [{"at": at.isoformat(), "store": store, "total": total} for at, store, total in drafts]
    publish_many(topic, [Draft(value=value) for value in values])
    transfer_all()


@pytest.fixture
def revenue(things, make_rollup):
    """Of two stores, on Monday and Wednesday."""
    rollup = make_rollup(
        things,
        every=timedelta(minutes=15),
        at="$.at",
        by={"store": "$.store"},
        sums={"revenue": "$.total"},
        mins={"least": "$.total"},
        maxs={"most": "$.total"},
    )
    fill(
        things,
        (MONDAY + 8 * HOUR, "a", 10),
        (MONDAY + 9 * HOUR, "a", 20),
        (MONDAY + 9 * HOUR, "b", 5),
        (MONDAY + 2 * DAY, "b", "x"),
        (MONDAY + 2 * DAY + HOUR, "b", 7),
    )
    serve_due(rollup)
    return rollup


def shown(rows, *columns):
    return [tuple(row[column] for column in columns) for row in rows]


def test_rows_are_buckets_of_all_groups(revenue):
    rows = revenue.between(MONDAY, MONDAY + 7 * DAY)
    assert next(iter(rows)) == {
        "bucket": MONDAY + 8 * HOUR,
        "count": 1,
        "skipped": 0,
        "revenue": 10,
        "least": 10,
        "most": 10,
    }
    assert shown(rows, "bucket", "count", "revenue", "least", "most", "skipped") == [
        (MONDAY + 8 * HOUR, 1, 10, 10, 10, 0),
        (MONDAY + 9 * HOUR, 2, 25, 5, 20, 0),
        (MONDAY + 2 * DAY, 1, 0, None, None, 1),
        (MONDAY + 2 * DAY + HOUR, 1, 7, 7, 7, 0),
    ]


def test_by_larger_buckets_and_groups(revenue):
    rows = revenue.between(MONDAY, MONDAY + 7 * DAY).every("1 day").by("store")
    assert shown(rows, "bucket", "store", "count", "revenue") == [
        (MONDAY, "a", 2, 30),
        (MONDAY, "b", 1, 5),
        (MONDAY + 2 * DAY, "b", 2, 7),
    ]
    assert shown(rows.order_by("-revenue"), "revenue") == [(30,), (7,), (5,)]
    assert shown(rows.order_by("least", "-bucket"), "least") == [(5,), (7,), (10,)]
    assert shown(rows.filter(store="b"), "bucket", "revenue") == [(MONDAY, 5), (MONDAY + 2 * DAY, 7)]
    assert shown(rows.by(), "revenue") == [(35,), (7,)]
    assert shown(rows.every("1 month").by(), "bucket", "revenue") == [(datetime(2026, 3, 1, tzinfo=UTC), 42)]


def test_the_span_begins_with_its_start_and_ends_before_its_end(revenue):
    rows = revenue.between(MONDAY + 8 * HOUR, MONDAY + 9 * HOUR)
    assert shown(rows, "revenue") == [(10,)]
    assert list(revenue.between(MONDAY, MONDAY)) == []
    assert list(revenue.between(MONDAY + DAY, MONDAY)) == []


def test_empty_buckets_are_filled_on_request(revenue):
    rows = revenue.between(MONDAY, MONDAY + 3 * DAY).every("1 day").filled()
    assert shown(rows, "bucket", "count", "revenue", "least") == [
        (MONDAY, 3, 35, 5),
        (MONDAY + DAY, 0, 0, None),
        (MONDAY + 2 * DAY, 2, 7, 7),
    ]
    assert shown(rows.by("store"), "bucket", "store", "revenue") == [
        (MONDAY, "a", 30),
        (MONDAY, "b", 5),
        (MONDAY + DAY, "a", 0),
        (MONDAY + DAY, "b", 0),
        (MONDAY + 2 * DAY, "a", 0),
        (MONDAY + 2 * DAY, "b", 7),
    ]
    assert len(revenue.between(MONDAY, MONDAY + DAY).filled()) == 96
    assert len(revenue.between(MONDAY, MONDAY + DAY).every("6 hours").filled()) == 4
    assert len(revenue.between(MONDAY, MONDAY + 365 * DAY).every("1 quarter").filled()) == 5


def test_it_is_lazy_and_pages(revenue, django_assert_num_queries):
    with django_assert_num_queries(0):
        rows = revenue.between(MONDAY, MONDAY + 7 * DAY).by("store")
    with django_assert_num_queries(2):  # where the table is, and the rows
        assert len(list(rows)) == 5
        assert len(rows) == rows.count() == 5
        assert rows[2]["revenue"] == 5
    fresh = revenue.between(MONDAY, MONDAY + 7 * DAY).by("store")
    pages = Paginator(fresh, 2)
    assert pages.count == 5
    assert [shown(pages.page(n), "revenue") for n in (1, 2, 3)] == [[(10,), (20,)], [(5,), (0,)], [(7,)]]
    assert fresh[4]["revenue"] == 7
    assert shown(fresh[3:], "revenue") == [(0,), (7,)]
    assert fresh[2:2] == []
    with pytest.raises(IndexError):
        fresh[5]
    with pytest.raises(ValueError, match="Negative"):
        fresh[-1]
    assert fresh and not revenue.between(MONDAY - DAY, MONDAY)


def test_a_template_shows_it(revenue):
    shown_by = Template("{% for row in rows %}{{ row.store }}={{ row.revenue }};{% endfor %}")
    rows = revenue.between(MONDAY, MONDAY + 7 * DAY).every("1 week").by("store")
    assert shown_by.render(Context({"rows": rows})) == "a=30;b=12;"


def test_it_says_up_to_which_event_it_is_true(things, revenue):
    [said] = revenue.up_to()
    assert (said.topic, said.id) == ("things", 5)
    assert said.logged_at == Event.objects.at(things, 5).logged_at
    fill(things, (MONDAY, "a", 1))
    assert revenue.between(MONDAY, MONDAY + DAY).up_to() == [said]


@pytest.mark.parametrize(
    ("every", "said"),
    [
        ("7 minutes", "no length of buckets"),
        ("5 hours", "no length of buckets"),
        ("2 days", "no length of buckets"),
        ("fortnight", "no length of buckets"),
        ("90 minutes", "no length of buckets"),
        (timedelta(0), "no length of buckets"),
        ("10 minutes", "not made of whole"),
    ],
)
def test_a_length_that_is_none_is_refused(revenue, every, said):
    with pytest.raises(Invalid, match=said):
        revenue.between(MONDAY, MONDAY + DAY).every(every)


@pytest.mark.parametrize("every", ["15 minutes", "half", timedelta(hours=2), timedelta(days=1), "3 hours", " 1 weeks "])
def test_other_lengths_are_taken(revenue, every):
    every = timedelta(minutes=30) if every == "half" else every
    assert sum(row["count"] for row in revenue.between(MONDAY, MONDAY + 7 * DAY).every(every)) == 5


def test_what_does_not_exist_is_refused(revenue):
    rows = revenue.between(MONDAY, MONDAY + DAY)
    with pytest.raises(Invalid, match=r"has no group 'stor'\. Did you mean 'store'"):
        rows.by("stor")
    with pytest.raises(Invalid, match="no group 'x'"):
        rows.filter(x="1")
    with pytest.raises(Invalid, match="no column 'store' to order by"):
        rows.order_by("store")
    with pytest.raises(Invalid, match="no time zone"):
        rows.every("1 day", tz="Europe/Atlantis")
    with pytest.raises(Invalid, match="has no time zone"):
        revenue.between(datetime(2026, 1, 1), MONDAY)
    RollUp.objects.filter(name="revenue").update(made_by={})
    with pytest.raises(NotReady, match="events rebuild revenue"):
        list(rows)
    RollUp.objects.filter(name="revenue").delete()
    with pytest.raises(NotReady, match="migrate"):
        list(rows)


@pytest.mark.parametrize("group", [5, None, True, "a\0"])
def test_what_can_be_no_group_is_refused(revenue, group):
    with pytest.raises(Invalid, match="groups are texts"):
        revenue.between(MONDAY, MONDAY + DAY).filter(store=group)


def test_a_long_group_is_found_by_all_of_its_text(things, make_rollup):
    counted = make_rollup(things, every=DAY, at="$.at", by={"store": "$.store"})
    fill(things, (MONDAY, "long" * 200, 1))
    serve_due(counted)
    assert counted.between(MONDAY, MONDAY + DAY).filter(store="long" * 200).count() == 1


def test_a_zone_whose_clocks_stand_between_buckets_is_refused(things, make_rollup):
    hourly = make_rollup(things, every=HOUR)
    with pytest.raises(Invalid, match="Asia/Kolkata are 5:30:00 from UTC"):
        hourly.between(MONDAY, MONDAY + DAY).every("1 day", tz="Asia/Kolkata")


def plant(rollup, *moments, count=1):
    """Rows of a table, as if that had been counted."""
    with connection.cursor() as cursor:
        cursor.executemany(
            f"INSERT INTO {table_of(rollup)} (bucket, count, skipped) VALUES (%s, %s, 0)",
            [(moment, count) for moment in moments],
        )


def every_bucket(rollup, start, end):
    """One event in each bucket of its own."""
    moments, moment = [], start
    while moment < end:
        moments.append(moment)
        moment += rollup.every
    plant(rollup, *moments)


BERLIN, HAVANA, KOLKATA = ZoneInfo("Europe/Berlin"), ZoneInfo("America/Havana"), ZoneInfo("Asia/Kolkata")
AHEAD, BACK = datetime(2026, 3, 29, tzinfo=BERLIN), datetime(2026, 10, 25, tzinfo=BERLIN)  # clocks change


@pytest.mark.parametrize(("day", "hours"), [(AHEAD, 23), (BACK, 25), (BACK + DAY, 24)])
def test_a_day_is_as_long_as_the_calendar_says(things, make_rollup, day, hours):
    counted = make_rollup(things, every=HOUR)
    start, end = (day - DAY).astimezone(UTC), (day + 2 * DAY).astimezone(UTC)
    every_bucket(counted, start, end)
    rows = {
        row["bucket"]: row["count"] for row in counted.between(start, end).every("1 day", tz=day.tzinfo.key).filled()
    }
    assert rows[day] == hours
    assert all(row.utcoffset() == row.astimezone(day.tzinfo).utcoffset() and row.hour == 0 for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize(
    "zone", [BERLIN, HAVANA, KOLKATA, UTC, ZoneInfo("America/New_York"), ZoneInfo("Australia/Lord_Howe")]
)
@pytest.mark.parametrize(
    "every", ["15 minutes", "30 minutes", "2 hours", "3 hours", "6 hours", "1 day", "1 week", "1 month"]
)
@pytest.mark.few(5)
def test_each_bucket_has_what_lies_between_it_and_the_next(things, make_rollup, zone, every):
    """For two years, in zones whose clocks change at midnight, by half an hour, or never."""
    counted = make_rollup(things, every=timedelta(minutes=15))
    start, end = datetime(2026, 1, 1, tzinfo=zone), datetime(2027, 1, 1, tzinfo=zone)
    first = start.astimezone(UTC)
    moments = [
        first + n * timedelta(minutes=15) for n in range(int((end.astimezone(UTC) - first) / timedelta(minutes=15)))
    ]
    plant(counted, *moments)
    name = "UTC" if zone is UTC else zone.key
    rows = counted.between(start, end).every(every, tz=name)
    begins = [row["bucket"].astimezone(UTC) for row in rows] + [end.astimezone(UTC)]
    begins[0] = max(begins[0], first)
    assert begins == sorted(set(begins))
    for row, (begin, following) in zip(rows, pairwise(begins), strict=True):
        assert row["count"] == (following - begin) / timedelta(minutes=15), row
    assert list(rows.filled()) == list(rows)


def test_hours_by_the_clock_begin_at_the_same_time_each_day(things, make_rollup):
    counted = make_rollup(things, every=HOUR)
    start, end = (AHEAD - DAY).astimezone(UTC), (AHEAD + 2 * DAY).astimezone(UTC)
    every_bucket(counted, start, end)
    rows = list(counted.between(start, end).every("6 hours", tz="Europe/Berlin"))
    assert [row["bucket"].hour for row in rows] == [0, 6, 12, 18] * 3
    assert [row["count"] for row in rows] == [6] * 4 + [5, 6, 6, 6] + [6] * 4


def test_hours_of_a_zone_between_hours(things, make_rollup):
    counted = make_rollup(things, every=timedelta(minutes=15))
    day = datetime(2026, 5, 1, tzinfo=KOLKATA)
    every_bucket(counted, day.astimezone(UTC), (day + DAY).astimezone(UTC))
    rows = list(counted.between(day, day + DAY).every("1 hour", tz="Asia/Kolkata"))
    assert [(row["bucket"].hour, row["bucket"].minute, row["count"]) for row in rows] == [(n, 0, 4) for n in range(24)]


def test_sums_are_exact(things, make_rollup):
    revenue = make_rollup(things, at="$.at", every=DAY, by={"store": "$.store"}, sums={"revenue": "$.total"})
    fill(things, *((MONDAY, "a", 0.1) for _ in range(10)), *((MONDAY, "b", "0.01") for _ in range(3)))
    serve_due(revenue)
    [row] = revenue.between(MONDAY, MONDAY + DAY)
    assert row["revenue"] == Decimal("1.03")
