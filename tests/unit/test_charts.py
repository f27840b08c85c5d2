"""Charts: lines on one scale, with gaps where nothing is known."""

from datetime import UTC, datetime, timedelta

import pytest

from django_events.admin.charts import HEIGHT, WIDTH, Line, Point, chart, pieces, rates

START = datetime(2026, 11, 20, 13, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)


def points(*values, step=60):
    """A value each minute; none is a minute without a sample."""
    return [Point(START + timedelta(seconds=step * i), v) for i, v in enumerate(values) if v is not None]


def drawn(*lines):
    return chart("Lag", "events", [Line("one", line) for line in lines], start=START, end=START + HOUR)


def test_a_rate_is_what_a_count_grew_per_second():
    assert [point.value for point in rates(points(0, 60, 60, 180))] == [1, 0, 2]


def test_a_count_that_went_back_is_no_negative_rate():
    assert [point.value for point in rates(points(1_000, 10, 70))] == [0, 1]


def test_a_rate_takes_the_time_that_it_took():
    assert [point.value for point in rates(points(0, None, None, 360))] == [2]
    assert rates([Point(START, 1), Point(START, 2)]) == []


@pytest.mark.parametrize(
    ("values", "lengths"),
    [
        ([], []),
        ([1], [1]),
        ([1, 2, 3], [3]),
        ([1, 2, None, 3, 4], [4]),
        ([1, 2, None, None, 3, 4], [2, 2]),
        ([1, 2, 3, None, None, None, 9], [3, 1]),
    ],
)
def test_a_line_has_a_gap_where_samples_are_missing(values, lengths):
    assert [len(piece) for piece in pieces(points(*values))] == lengths


def test_lines_share_a_scale_from_zero_to_the_highest():
    shown = drawn(points(0, 50), points(100, 25))

    assert shown.top == 100
    assert [line.paths for line in shown.lines] == [
        [f"M0.0 {HEIGHT}.0 L{WIDTH / 60:.1f} {HEIGHT / 2:.1f}"],
        [f"M0.0 0.0 L{WIDTH / 60:.1f} {HEIGHT * 0.75:.1f}"],
    ]
    assert [(line.last, line.highest) for line in shown.lines] == [(50, 50), (25, 100)]


def test_a_point_of_its_own_is_a_dot():
    assert drawn(points(5)).lines[0].paths == ["M0.0 0.0h0.1"]


def test_nothing_at_all_is_said_so():
    assert drawn([]).is_empty
    assert drawn(points(0, 0)).top == 1
    assert not drawn(points(0, 0)).is_empty
