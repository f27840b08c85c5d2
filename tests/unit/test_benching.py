"""What `events bench` is made of, without a database: due times, bounds, values, and what durations were like."""

import json
from itertools import pairwise

import pytest

from django_events.benching.load import MOST_BYTES, Load
from django_events.benching.percentiles import LatencySummary, percentile
from django_events.benching.timeline import MOST_EVENTS, Resources, problems
from django_events.benching.timings import Timings
from django_events.models import Event


def test_percentiles_are_values_that_were_measured():
    summary = LatencySummary.of([n / 1_000 for n in range(100, 0, -1)])

    assert summary == LatencySummary(100, pytest.approx(50.5), 50, 90, 99, 100)
    assert LatencySummary.of([0.25]) == (1, 250, 250, 250, 250, 250)
    assert LatencySummary.of([]) is None
    assert [percentile([1, 2, 3], share) for share in (0, 0.34, 0.67, 1)] == [1, 2, 3, 3]


@pytest.mark.requirement("E14")
def test_events_are_due_at_the_rate_whatever_became_of_those_before():
    load = Load(events=1_000, rate=250, seconds=60)
    due = [load.due(n) for n in range(load.planned)]

    assert due[0] == 0
    assert {round(b - a, 9) for a, b in pairwise(due)} == {0.004}
    assert due[-1] == pytest.approx(999 / 250)


def test_what_is_published_together_is_due_with_the_last_of_it():
    load = Load(events=250, rate=100, via="publish_many", many=100)

    assert [load.due(n) for n in (0, 99, 100, 199, 200, 249)] == [0.99, 0.99, 1.99, 1.99, 2.49, 2.49]


def test_a_load_ends_with_its_time_or_its_events():
    assert Load(events=10_000, rate=100, seconds=5).planned == 500
    assert Load(events=100, rate=100, seconds=5).planned == 100
    assert Load(events=10_000, seconds=5).planned == 10_000
    assert Load(events=10).due(3) is None


@pytest.mark.parametrize("size", [40, 200, 5_000])
def test_a_value_has_the_size_and_the_number(size: int):
    load = Load(size=size)

    for n in (0, 7, 12_345):
        assert load.value(n)["n"] == n
        assert len(json.dumps(load.value(n))) == size


def test_keys_are_spread_or_skewed_and_the_same_each_time():
    even, skewed, none = Load(keys=10), Load(keys=10, skew=0.9), Load(keys=0)
    keys = [even.key(n) for n in range(1_000)]

    assert len(set(keys)) == 10
    assert keys == [even.key(n) for n in range(1_000)]
    assert 850 < sum(skewed.key(n) == "key-0" for n in range(1_000)) < 950
    assert none.key(3) is None


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"events": 5_000_001}, "--events"),
        ({"seconds": 3_601}, "--for"),
        ({"rate": 0}, "--rate"),
        ({"size": 39}, "--size"),
        ({"size": 2 << 20}, "--size"),
        ({"skew": 1.5}, "--skew"),
        ({"consumers": 9}, "--consumers"),
        ({"publishers": 65}, "--publishers"),
        ({"many": 10_001}, "--many"),
        ({"events": 1_000_000, "size": 100_000}, "GiB"),
    ],
)
def test_a_load_that_is_too_much_is_refused(asked: dict, said: str):
    assert any(said in problem for problem in Load(**asked).problems())
    assert not list(Load().problems())


def test_timelines_are_bounded_too():
    assert Resources(tenants=10, resources=100_000, events=10).all_events <= MOST_EVENTS
    assert not list(Resources(tenants=10, resources=100_000, events=10).problems())
    assert list(Resources(tenants=1_000, resources=100_000, events=10).problems())
    assert list(Resources(tenants=0).problems())
    assert Resources(tenants=10, resources=100_000, events=10).expected_bytes < MOST_BYTES


def test_events_of_a_resource_lie_apart():
    keys = [draft.key for draft in Resources(tenants=2, resources=2, events=2).drafts()]

    assert keys[:4] == keys[4:]
    assert len(set(keys[:4])) == 4


@pytest.mark.requirement("H7")
def test_an_event_of_another_tenant_is_told():
    def event(id: int, tenant: int, turn: int) -> Event:
        return Event(id=id, key=f"tenant-{tenant}/resource-1", value={"tenant": tenant, "turn": turn})

    key = "tenant-1/resource-1"
    assert not list(problems([event(1, 1, 0), event(5, 1, 1)], 1, key, expected=2))
    assert list(problems([event(1, 1, 0), event(5, 2, 1)], 1, key, expected=2)) == [
        "The timeline of tenant-1/resource-1 has event 5 of tenant-2/resource-1, tenant 2."
    ]
    assert list(problems([event(5, 1, 1), event(1, 1, 0)], 1, key, expected=2))
    assert list(problems([event(1, 1, 0)], 1, key, expected=2))


@pytest.mark.requirement("E14")
def test_an_event_that_waits_for_a_late_publisher_is_counted_from_when_it_was_due(monkeypatch):
    now = 100.0
    monkeypatch.setattr("django_events.benching.timings.clock", lambda: now)
    timings = Timings(3, 1)
    for n in timings.take(2):
        timings.note_due([n], 100.0 + n)
    now = 105.0  # the database stood still
    timings.note_committed([0, 1])
    now = 106.0
    timings.note_handled(0, [0, 1])
    timings.note_handled(0, [1])

    assert list(timings.to_commit()) == [5, 4]
    assert list(timings.to_handler(0)) == [6, 5]
    assert list(timings.to_handler(0, since_commit=True)) == [1, 1]
    assert (timings.published, timings.handled, timings.again) == (2, [2], 1)
    assert (list(timings.take(2)), list(timings.take(2))) == ([2], [])
