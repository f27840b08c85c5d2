"""The page of a consumer that keeps a roll-up: its table, its groups, what was left out, and its figures over time."""

import re
from datetime import timedelta

import pytest

from django_events import Draft, publish_many
from django_events.models import RollUp
from django_events.models.functions import ClockTimestamp
from tests.integration.admin.conftest import address, consumer_of
from tests.support.fix_consumers import serve_due
from tests.support.fix_rollups import table_of
from tests.support.fix_topics import transfer_all

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("H3")]

DAY = timedelta(days=1)  # the figures of now are those of a bucket, which may end meanwhile


def fill(topic, *values):
    publish_many(topic, [Draft(value=value) for value in values])
    transfer_all()


def page_of(client, rollup, query=""):
    answer = client.get(address("consumer", consumer_of(rollup)) + query)
    assert answer.status_code == 200
    return answer.content.decode()


@pytest.mark.slow
def test_it_shows_the_table_the_groups_and_the_figures(olga, things, make_rollup):
    revenue = make_rollup(
        things, every=DAY, by={"store": "$.store"}, sums={"income": "$.total"}, maxs={"most": "$.total"}, groups=2
    )
    fill(things, *({"store": store, "total": 7} for store in "abc"))
    serve_due(revenue)
    page = page_of(olga, revenue)
    assert table_of(revenue) in page
    assert "2 of 2" in page
    assert "as many as it may" in page
    for title in ("Counted", "income", "most"):
        assert f"<strong>{title}</strong>" in page
    assert "counted: 3 last" in page
    assert "sum: 21 last" in page
    assert "max: 7 last" in page


@pytest.mark.slow
@pytest.mark.parametrize("every", [timedelta(seconds=1), timedelta(minutes=2), timedelta(hours=8), timedelta(days=1)])
def test_every_period_has_charts_of_whole_buckets(olga, things, make_rollup, every):
    counted = make_rollup(things, every=every)
    fill(things, 1)
    serve_due(counted)
    for period in ("1h", "6h", "24h", "48h"):
        assert "<strong>Counted</strong>" in page_of(olga, counted, f"?period={period}"), period


@pytest.mark.parametrize(
    ("total", "said"),
    [
        (-5, "sum: -5 last"),
        pytest.param(10**399, "sum: 1e+300 last", id="huge"),
        pytest.param("-" + "9" * 390, "sum: -1e+300 last", id="hugely below zero"),
    ],
)
def test_figures_that_no_chart_is_high_enough_for_are_no_error(olga, things, make_rollup, total, said):
    revenue = make_rollup(things, every=DAY, sums={"income": "$.total"})
    fill(things, {"total": total})
    serve_due(revenue)
    page = page_of(olga, revenue)
    heights = [
        float(y)
        for path in re.findall(r'd="M([^"]*)h?[^"]*"', page)
        for y in re.findall(r"[ML]?[0-9.]+ (-?[0-9.]+)", path)
    ]
    assert all(0 <= y <= 120 for y in heights), heights
    assert "nan" not in page.split("events-plot", 1)[1].split("</figure>")[0]
    assert said in page, re.findall(r"sum: [^<]*", page)


@pytest.mark.slow
def test_actions_that_would_count_twice_are_not_offered(olga, things, make_rollup):
    page = page_of(olga, make_rollup(things))
    offered = [name for name in ("pause", "resume", "retry_now", "skip", "replay", "rewind") if f"/act/{name}/" in page]
    assert offered == ["pause", "rewind"]


@pytest.mark.slow
def test_a_table_that_was_made_otherwise_or_is_gone_is_no_error(olga, things, make_rollup):
    counted = make_rollup(things, by={"store": "$.store"})
    of_it = RollUp.objects.filter(name=counted.name)
    of_it.update(left_out=3, left_out_at=ClockTimestamp(), error="things/1: no", made_by={"by": {"store": "x"}})
    page = page_of(olga, counted)
    assert "3 events left out" in page
    assert "Its figures" not in page
    of_it.update(id=9_999)
    assert "django_events_rollup_9999" in page_of(olga, counted)
