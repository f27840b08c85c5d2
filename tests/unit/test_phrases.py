"""Times and numbers in words."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from django_events.phrases import count, duration, moment, size


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-5, "0 s"),
        (0, "0 s"),
        (0.4, "0 s"),
        (1, "1 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (192, "3 min 12 s"),
        (3_600, "1 h"),
        (3_605, "1 h"),
        (3_661, "1 h 1 min"),
        (90_000, "1 d 1 h"),
        (86_400 + 60, "1 d"),
        (400 * 86_400, "400 d"),
    ],
)
def test_a_duration_is_said_in_its_two_largest_units(seconds, said):
    assert duration(timedelta(seconds=seconds)) == said


def test_a_moment_is_said_in_utc():
    east = timezone(timedelta(hours=5, minutes=30))

    assert moment(datetime(2026, 11, 20, 18, 35, 19, 999_999, tzinfo=east)) == "2026-11-20 13:05:19Z"
    assert moment(datetime(2026, 11, 20, 13, 5, 19, tzinfo=UTC)) == "2026-11-20 13:05:19Z"


@pytest.mark.parametrize(
    ("number", "said"),
    [(0, "0 B"), (1_023, "1023 B"), (1_024, "1.0 KB"), (12_700_000, "12.1 MB"), (3 << 40, "3,072.0 GB")],
)
def test_a_size_is_said_in_the_largest_unit(number, said):
    assert size(number) == said


def test_a_number_of_things():
    assert [count(0, "event"), count(1, "event"), count(12_000, "event")] == ["0 events", "1 event", "12,000 events"]
    assert count(10_000, "event", more=True) == "at least 10,000 events"
