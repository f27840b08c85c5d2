"""The times that cron expressions name, above all where clocks are put forward and back."""

from datetime import UTC, datetime
from itertools import islice

import pytest

from django_events.declarations.cron import is_zone, newest_ticks, ticks_after, wrong_cron


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def after(cron: str, moment: str, *, tz: str = "Europe/Berlin", count: int = 3) -> list[str]:
    return [tick.isoformat() for tick in islice(ticks_after(cron, tz, at(moment).astimezone(UTC)), count)]


@pytest.mark.requirement("X14")
def test_ticks_are_in_the_time_zone():
    assert after("0 3 * * *", "2026-11-24T03:00:00+01:00", count=2) == [
        "2026-11-25T03:00:00+01:00",
        "2026-11-26T03:00:00+01:00",
    ]


@pytest.mark.requirement("X14")
def test_a_time_that_does_not_exist_is_the_first_moment_after_the_gap():
    """On 29 March 2026 it is 3:00 after 1:59 in Berlin."""
    assert after("30 2 * * *", "2026-03-28T12:00:00+01:00") == [
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:30:00+02:00",
        "2026-03-31T02:30:00+02:00",
    ]


@pytest.mark.requirement("X14")
def test_several_times_that_do_not_exist_are_one_tick():
    assert after("0,15,45 2 * * *", "2026-03-28T12:00:00+01:00", count=2) == [
        "2026-03-29T03:00:00+02:00",
        "2026-03-30T02:00:00+02:00",
    ]


@pytest.mark.requirement("X14")
def test_a_time_that_exists_twice_is_the_first_of_the_two():
    """On 25 October 2026 it is 2:00 after 2:59 in Berlin."""
    assert after("30 2 * * *", "2026-10-24T12:00:00+02:00", count=2) == [
        "2026-10-25T02:30:00+02:00",
        "2026-10-26T02:30:00+01:00",
    ]


@pytest.mark.requirement("X14")
@pytest.mark.parametrize("moment", ["02:10:00+01:00", "02:30:00+01:00", "02:30:00+02:00"])
def test_begun_after_the_first_of_the_two_it_goes_on_the_next_day(moment):
    """Counted from the second hour, the tick of the first one is in the past, and is no tick to come."""
    assert after("30 2 * * *", f"2026-10-25T{moment}", count=1) == ["2026-10-26T02:30:00+01:00"]


@pytest.mark.requirement("X14")
def test_periods_go_by_the_time_that_passes():
    assert after("*/30 * * * *", "2026-10-25T02:00:00+02:00", count=4) == [
        "2026-10-25T02:30:00+02:00",
        "2026-10-25T02:00:00+01:00",
        "2026-10-25T02:30:00+01:00",
        "2026-10-25T03:00:00+01:00",
    ]
    assert after("0 * * * *", "2026-03-29T01:00:00+01:00", count=2) == [
        "2026-03-29T03:00:00+02:00",
        "2026-03-29T04:00:00+02:00",
    ]


@pytest.mark.requirement("X14")
@pytest.mark.parametrize("most", [1, 3, 1_000])
@pytest.mark.parametrize(
    ("cron", "until"),
    [
        ("* * * * *", "2026-03-02T00:00:30Z"),
        ("*/30 * * * *", "2026-10-26T05:00:00Z"),
        ("0 3 * * *", "2032-10-26T05:00:00Z"),
        ("0 0 29 2 *", "2044-10-26T05:00:00Z"),
    ],
)
def test_the_newest_ticks_are_the_last_of_all(cron: str, until: str, most: int):
    first = next(ticks_after(cron, "Europe/Berlin", at("2026-02-27T00:00:00Z")))
    everything = [first]
    for tick in ticks_after(cron, "Europe/Berlin", first):
        if tick > at(until):
            break
        everything.append(tick)
    assert newest_ticks(cron, "Europe/Berlin", first, at(until), most=most) == everything[-most:]


def test_the_first_tick_counts_even_if_the_time_zone_has_changed_since():
    """The row says that there is a tick, whatever the rules of this machine make of it."""
    first = at("2026-11-24T02:17:00Z")
    assert newest_ticks("0 3 * * *", "Europe/Berlin", first, at("2026-11-24T10:00:00Z"), most=1) == [first]


@pytest.mark.parametrize(
    ("cron", "wrong"),
    [
        ("0 3 * *", "expected five fields"),
        ("0 0 3 * * *", "expected five fields"),
        ("@daily", "expected five fields"),
        (None, "expected five fields"),
        ("60 3 * * *", "Bad minute"),
        ("0 3 30 2 *", "Bad day-of-month"),
        ("0 3 * * *", None),
        ("0 3 29 2 *", None),
        ("*/5 9-17 * * MON-FRI", None),
    ],
)
def test_a_wrong_expression_is_refused_with_the_reason(cron, wrong):
    found = wrong_cron(cron)
    assert found is None if wrong is None else found.startswith(wrong)


@pytest.mark.parametrize("tz", ["Europe/Atlantis", "", "../etc/passwd", None])
def test_a_time_zone_is_known_or_not(tz):
    assert is_zone("Europe/Berlin")
    assert not is_zone(tz)
