"""What commands print: aligned, within a terminal's width, and whole in JSON."""

import json
import sys
from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest

from django_events.management import reporting
from django_events.management.reporting import Report, fields, printable_lines, table

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def test_texts_stand_left_and_numbers_right():
    assert table(["name", "events"], [("orders", 12_000), ("p", 7)]) == (
        "name    events\n"
        "orders  12,000\n"
        "p            7"
    )  # fmt: skip


def test_a_number_that_is_only_known_to_be_larger_stands_right_too():
    assert table(["name", "events"], [("orders", "≥ 10,000"), ("p", 7)]).splitlines()[1:] == [
        "orders  ≥ 10,000",
        "p              7",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (True, "yes"),
        (False, "no"),
        (1_234_567, "1,234,567"),
        (1_234.5, "1,234.500"),
        (0.0, "0.000"),
        (-0.00012345, "-0.000123"),
        (NOON, "2026-11-20 12:00:00Z"),
        (timedelta(seconds=61), "1 min 1 s"),
        (b"abc", "3 bytes"),
        ({"a": "ä"}, '{"a": "ä"}'),
        ("two\nlines\tand\x1b[31m red", "two lines and�[31m red"),
    ],
)
def test_a_value_is_one_line(value, text):
    assert table(["value"], [(value,)]).split("\n", 1)[1].strip() == text


def test_what_does_not_fit_is_cut_from_the_widest_text_and_never_from_a_number():
    rows = [("a-name-of-26-characters-ok", 10**15, "e" * 500, NOON)]
    heading, line = table(["name", "events", "last error", "at"], rows, width=120).splitlines()

    assert max(len(heading), len(line)) == 120
    assert line.startswith("a-name-of-26-characters-ok  1,000,000,000,000,000  eeee")
    assert line.endswith("e…  2026-11-20 12:00:00Z")


def test_a_table_is_as_wide_as_the_terminal(monkeypatch):
    rows = [("a-name-of-26-characters-ok", "e" * 500)]
    for columns in (60, 80, 200):
        monkeypatch.setattr(reporting, "terminal_width", lambda columns=columns: columns)
        assert max(map(len, table(["name", "last error"], rows).splitlines())) == columns


def test_without_a_terminal_no_name_is_cut():
    rows = [("n" * 63, "t" * 63, "w" * 200, "e" * 500)]
    _, line = table(["consumer", "topic", "type", "last error"], rows).splitlines()

    assert line == f"{'n' * 63}  {'t' * 63}  {'w' * 200}  {'e' * 199}…"


def test_the_width_is_that_of_the_terminal(monkeypatch):
    monkeypatch.setattr("sys.stdout", StringIO())
    monkeypatch.setenv("COLUMNS", "77")
    assert reporting.terminal_width() is None
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert reporting.terminal_width() == 77


def test_a_heading_is_cut_last():
    columns = [f"a long heading {i}" for i in range(6)]
    lines = table(columns, [["x" * 40] * 6], width=120).splitlines()

    assert max(map(len, lines)) <= 120
    assert lines[0].split("  ")[0] == columns[0]


def test_wide_characters_are_two_columns():
    one, two = table(["key", "n"], [("日本", 1), ("abcd", 1)]).splitlines()[1:]

    assert one == "日本  1"
    assert two == "abcd  1"


def test_no_rows_leave_the_headings():
    assert table(["name", "events"], []) == "name  events"


def test_fields_stand_below_each_other():
    assert fields([("id", 1_042), ("logged at", NOON), ("key", None)]) == (
        "id         1,042\nlogged at  2026-11-20 12:00:00Z\nkey"
    )


def test_a_text_of_several_lines_keeps_them_and_loses_what_moves_the_cursor():
    assert printable_lines('File "x"\r\n\tline\x1b[2J') == 'File "x"\n        line�[2J'


def test_json_has_times_in_utc_durations_in_seconds_and_bytes_in_base64():
    data = {"at": NOON, "age": timedelta(minutes=1.5), "body": b"\x00\xff", "key": "ä"}

    assert json.loads(Report(data, "").as_json()) == {
        "at": "2026-11-20T12:00:00+00:00",
        "age": 90.0,
        "body": "AP8=",
        "key": "ä",
    }


def test_json_refuses_what_it_does_not_know():
    with pytest.raises(TypeError, match="can't be written as JSON"):
        Report({1, 2}, "").as_json()
