"""The jobs: each against plain Python on made events, which come late, out of order, and not as they should be."""

import inspect
import json
import math
import random
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from django_events.exceptions import Invalid
from django_events.reading.columns import COLUMNS
from django_events.spark.jobs import results
from django_events.spark.jobs.registry import ALL, JOBS
from django_events.spark.reading.tables import TABLES

Row = dict[str, Any]

# Clocks are set back in Chicago, where the tests' JVM is, at 07:00 UTC of this day; Lord Howe is half an hour off.
BEGIN = datetime(2026, 11, 1, tzinfo=UTC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
HOUR, DAY = timedelta(hours=1), timedelta(days=1)
TYPES = ["order.placed", "order.paid", "order.shipped", ""]
VALUES = [
    '{"total": 1}',
    '{"total": -2.5}',
    '{"total": "12.50"}',
    '{"total": "1e3"}',
    '{"total": 1e400}',
    '{"total": "1e400"}',
    '{"total": "NaN"}',
    '{"total": "Infinity"}',
    '{"total": "5d"}',
    '{"total": "12,50"}',
    '{"total": " 7"}',
    '{"total": "7\\n"}',
    '{"total": -1e400}',
    '{"total": true}',
    '{"total": null}',
    '{"total": {"total": 3}}',
    '{"total": [4]}',
    '{"total": 1, "total": 2}',
    '{"other": 5}',
    "{bad",
    "",
    "6",
    '"text"',
    "null",
    '{"total": 12345678901234567890123456789012345678901234567890}',
    None,
]


@pytest.fixture(autouse=True)
def zone(spark: Any) -> Iterator[None]:
    """The session's, which no bucket may depend on."""
    spark.conf.set("spark.sql.session.timeZone", "Australia/Lord_Howe")
    yield
    spark.conf.set("spark.sql.session.timeZone", "UTC")


@pytest.fixture
def frame(spark: Any) -> Callable[..., Any]:
    """Rows with these columns of a table, or of events; what they don't say is null."""

    def make(rows: Sequence[Row], table: str | None = None) -> Any:
        columns = COLUMNS if table is None else TABLES[table].columns
        schema = pa.schema([(name, column.arrow) for name, column in columns.items()])
        return spark.createDataFrame(pa.Table.from_pylist(list(rows), schema=schema))

    return make


def made(number: int = 600, *, seed: int = 7) -> list[Row]:
    """Events of three days, some at the very edges of hours, and logged in another order than they were published."""
    chance = random.Random(seed)
    events = []
    for offset in range(1, number + 1):
        time = BEGIN + timedelta(microseconds=chance.randrange(3 * 86_400_000_000))
        if chance.random() < 0.1:
            time = time.replace(minute=0, second=0, microsecond=0)
        event = {
            "topic": chance.choice(["orders", "payments"]),
            "offset": offset,
            "published_at": None if chance.random() < 0.01 else time,
            "timestamp": BEGIN + 3 * DAY + timedelta(seconds=offset),
            "type": chance.choice(TYPES),
            "key": chance.choice([None, "", *map(str, range(25))]),
            "value": chance.choice(VALUES),
        }
        events.append(event)
    return events


def timed(events: Sequence[Row]) -> list[Row]:
    return [event for event in events if event["published_at"] is not None]


def floor(time: datetime, size: timedelta) -> datetime:
    return EPOCH + (time - EPOCH) // size * size


def run(name: str, *frames: Any, **options: Any) -> list[Row]:
    return [
        {key: value.astimezone(UTC) if isinstance(value, datetime) else value for key, value in row.items()}
        for row in results.rows(JOBS[name].function(*frames, **options))
    ]


@pytest.mark.parametrize(("every", "size"), [("1 hour", HOUR), ("7 hours", 7 * HOUR), ("2 days", 2 * DAY)])
def test_counts(frame: Callable[..., Any], every: str, size: timedelta) -> None:
    events = made()
    expected = Counter((floor(e["published_at"], size), e["topic"], e["type"]) for e in timed(events))

    found = run("counts", frame(events), every=every)

    assert [tuple(row.values()) for row in found] == [(*key, number) for key, number in sorted(expected.items())]


def number_of(value: str | None) -> float | None:
    """The number at $.total, in plain Python."""

    def once(pairs: list[tuple[str, Any]]) -> Row:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a name is there twice")
        return dict(pairs)

    try:
        found = json.loads(value or "", object_pairs_hook=once)
    except ValueError:
        return None
    total = found.get("total") if isinstance(found, dict) else None
    if isinstance(total, str) and not re.fullmatch(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", total):
        return None
    if isinstance(total, bool) or not isinstance(total, int | float | str):
        return None
    return float(total) if math.isfinite(float(total)) else None


@pytest.mark.parametrize(
    ("options", "every", "slide"),
    [
        ({}, HOUR, HOUR),
        ({"every": "1 day", "slide": "6 hours", "by": ("topic", "key")}, DAY, 6 * HOUR),
        ({"every": "12 hours", "by": ()}, 12 * HOUR, 12 * HOUR),
    ],
)
def test_windows(frame: Callable[..., Any], options: Row, every: timedelta, slide: timedelta) -> None:
    events, by = made(), options.get("by", ("type",))
    expected = defaultdict(list)
    for event in timed(events):
        start = floor(event["published_at"], slide)
        while start > event["published_at"] - every:
            expected[(start, *(event[name] for name in by))].append(number_of(event["value"]))
            start -= slide

    found = run("windows", frame(events), field="$.total", **options)

    assert [(row["start"], *(row[name] for name in by)) for row in found] == sorted(
        expected, key=lambda group: [(part is not None, part) for part in group]
    )
    for row in found:
        all_of_them = expected[(row["start"], *(row[name] for name in by))]
        numbers = [number for number in all_of_them if number is not None]
        assert row["end"] == row["start"] + every
        assert (row["events"], row["numbers"]) == (len(all_of_them), len(numbers))
        assert row["sum"] == (pytest.approx(math.fsum(numbers)) if numbers else None)
        assert row["average"] == (pytest.approx(math.fsum(numbers) / len(numbers)) if numbers else None)
        assert (row["smallest"], row["largest"]) == ((min(numbers), max(numbers)) if numbers else (None, None))


@pytest.mark.parametrize("path", ["$.a.b", "$['a'][\"b\"]", "$.c[1]", "$['d.e f']", "$.ü"])
def test_a_path_leads_into_the_value(frame: Callable[..., Any], path: str) -> None:
    value = {"a": {"b": 5}, "c": [0, 5], "d.e f": 5, "ü": 5}
    [row] = run("windows", frame([{"value": json.dumps(value), "published_at": BEGIN}]), field=path)

    assert (row["numbers"], row["sum"]) == (1, 5.0)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("counts", {"every": "often"}, "Option 'every' is 'often', expected a length of time like '15 minutes'"),
        ("counts", {"every": "0 hours"}, "Option 'every' is '0 hours'"),
        ("counts", {"every": "1 month"}, "Option 'every' is '1 month'"),
        ("sessions", {"gap": "-1 hour"}, "Option 'gap' is '-1 hour'"),
        ("windows", {"field": "total"}, "Option 'field' is 'total', expected a path in the value like '$.total'"),
        ("windows", {"field": "$"}, "Option 'field' is '$'"),
        ("windows", {"field": "$.a[99999999999]"}, "Option 'field' is"),
        ("windows", {"field": "$.a", "by": ("tpye",)}, "Option 'by' has 'tpye'. Did you mean 'type'?"),
        ("windows", {"field": "$.a", "by": ("key", "key")}, "expected each name once"),
        ("windows", {"field": "$.a", "slide": "2 hours"}, "expected no more than '1 hour'"),
        ("funnel", {"steps": ("a",)}, "Option 'steps' is 'a', expected two or more types"),
        ("funnel", {"steps": ("a", "b", "a")}, "each once"),
        ("funnel", {"steps": ("a", "b"), "within": "soon"}, "Option 'within' is 'soon'"),
    ],
)
def test_a_wrong_option_is_refused_by_name(frame: Callable[..., Any], name: str, options: Row, said: str) -> None:
    with pytest.raises(Invalid, match=re.escape(said)):
        JOBS[name].function(frame([]), **options)


def test_sessions(frame: Callable[..., Any]) -> None:
    events, gap = made(), 2 * HOUR
    times = defaultdict(list)
    for event in timed(events):
        if event["key"] is not None:
            times[event["key"]].append(event["published_at"])
    expected = []
    for key, of_key in times.items():
        of_key.sort()
        begins = [0, *(n for n, (a, b) in enumerate(pairwise(of_key), 1) if b - a > gap), len(of_key)]
        expected += [(of_key[a], key, of_key[b - 1], b - a) for a, b in pairwise(begins)]

    found = run("sessions", frame(events), gap="2 hours")

    assert [(row["start"], row["key"], row["end"], row["events"]) for row in found] == sorted(expected)
    assert all(row["duration"] == (row["end"] - row["start"]).total_seconds() for row in found)


def test_a_pause_longer_than_the_gap_ends_a_session(frame: Callable[..., Any]) -> None:
    gap = timedelta(minutes=30)
    other = BEGIN + 3 * gap + timedelta(microseconds=1)
    times = [other, BEGIN, BEGIN + 2 * gap, BEGIN + gap, other + gap]

    found = run("sessions", frame([{"key": "k", "published_at": time} for time in times]))

    assert [(row["start"], row["events"], row["duration"]) for row in found] == [(BEGIN, 3, 3600.0), (other, 2, 1800.0)]


def reached(events: Sequence[Row], steps: Sequence[str], within: timedelta) -> list[list[datetime]]:
    """When each key reached each step, as far as it came."""
    found = []
    for key in {event["key"] for event in events} - {None}:
        of_key = [event for event in timed(events) if event["key"] == key]
        first = min((e["published_at"] for e in of_key if e["type"] == steps[0]), default=None)
        times = [] if first is None else [first]
        for step in steps[1:] if times else []:
            later = [e["published_at"] for e in of_key if e["type"] == step and e["published_at"] >= times[-1]]
            if not later or min(later) > times[0] + within:
                break
            times.append(min(later))
        found.append(times)
    return found


@pytest.mark.parametrize(("within", "limit"), [("1 day", DAY), ("3 hours", 3 * HOUR), ("10 days", 10 * DAY)])
def test_funnel(frame: Callable[..., Any], within: str, limit: timedelta) -> None:
    events, steps = made(), TYPES[:3]
    times = reached(events, steps, limit)

    found = run("funnel", frame(events), steps=steps, within=within)

    assert [(row["step"], row["type"]) for row in found] == list(enumerate(steps, 1))
    for n, row in enumerate(found):
        took = sorted((one[n] - one[n - 1]).total_seconds() for one in times if len(one) > n) if n else []
        assert row["keys"] == sum(len(one) > n for one in times)
        assert row["share"] == row["keys"] / sum(len(one) > 0 for one in times)
        assert row["median"] == (took[(len(took) - 1) // 2] if took else None)


def test_the_edges_of_a_funnel(frame: Callable[..., Any]) -> None:
    def of(key: str | None, *events: tuple[str, timedelta]) -> list[Row]:
        return [{"key": key, "type": type, "published_at": BEGIN + after} for type, after in events]

    zero, instant = timedelta(0), timedelta(microseconds=1)
    events = [
        *of("at the same time", ("a", zero), ("b", zero)),
        *of("just in time", ("b", DAY), ("a", zero)),
        *of("too late", ("a", zero), ("b", DAY + instant)),
        *of("in the wrong order", ("b", zero), ("a", instant)),
        *of("begins once", ("a", zero), ("a", 2 * DAY), ("b", 2 * DAY + HOUR)),
        *of("without the first", ("b", HOUR)),
        *of(None, ("a", zero), ("b", HOUR)),
    ]

    first, second = run("funnel", frame(events), steps=["a", "b"])

    assert (first["keys"], first["share"], first["median"]) == (5, 1.0, None)
    assert (second["keys"], second["share"], second["median"]) == (2, 0.4, 0.0)


def test_latency(frame: Callable[..., Any]) -> None:
    events, chance = timed(made(300)), random.Random(3)
    published = {(event["topic"], event["offset"]): event["published_at"] for event in events}
    history = []
    for topic, offset in published:
        for consumer in chance.sample(["billing", "search", "idle"], 2):
            at = published[topic, offset] + timedelta(microseconds=chance.randrange(10**9))
            again = chance.choice([[], [HOUR]])
            for later, outcome in [
                (timedelta(0), chance.choice(["handled", "ignored", "dead"])),
                *((a, "handled") for a in again),
            ]:
                history.append(
                    {
                        "consumer": consumer,
                        "topic": topic,
                        "offset": offset,
                        "processed_at": at + later,
                        "outcome": outcome,
                    }
                )
    history.append(
        {"consumer": "billing", "topic": "orders", "offset": 10**6, "processed_at": BEGIN, "outcome": "handled"}
    )
    first: dict[tuple[str, str, int], datetime] = {}
    for row in history:
        if row["outcome"] == "handled" and (row["topic"], row["offset"]) in published:
            place = (row["consumer"], row["topic"], row["offset"])
            first[place] = min(first.get(place, row["processed_at"]), row["processed_at"])
    took = defaultdict(list)
    for (consumer, topic, offset), at in first.items():
        took[consumer].append((at - published[topic, offset]).total_seconds())

    samples = []
    waited = defaultdict(list)
    for minute in range(200):
        at = BEGIN + timedelta(minutes=minute)
        behind = {topic: chance.choice([0.0, chance.random() * 100]) for topic in ("orders", "visits")}
        waited["mailer"].append(max(behind.values()))
        for topic, seconds in behind.items():
            row = {"topic": topic, "mode": "stream", "sampled_at": at, "lag": 1, "behind": seconds}
            samples += [{"consumer": "mailer", **row}, {"consumer": "billing", **row}]

    found = run("latency", frame(history, "history"), frame(samples, "samples"), frame(events))

    measured = [(*one, "events") for one in took.items()] + [(*one, "minutes") for one in waited.items()]
    assert found == [
        {
            "consumer": consumer,
            "measured": by,
            "count": len(seconds),
            **{f"p{p}": pytest.approx(sorted(seconds)[math.ceil(len(seconds) * p / 100) - 1]) for p in (50, 90, 99)},
            "max": pytest.approx(max(seconds)),
        }
        for consumer, seconds, by in sorted(measured)
    ]


def test_lag(frame: Callable[..., Any]) -> None:
    def position(consumer: str, topic: str, lag: int, partition: int = -1) -> Row:
        counts = {"lag": lag, "handled": 10, "dead_lettered": 1}
        return {"consumer": consumer, "topic": topic, "mode": "stream", "partition": partition, **counts}

    positions = [position("a", "t", 3, 0), position("a", "t", 4, 1), position("a", "u", 9), position("b", "t", 0)]

    assert [tuple(row.values()) for row in run("lag", frame(positions, "positions"))] == [
        ("a", "u", "stream", 9, 10, 1),
        ("a", "t", "stream", 7, 20, 2),
        ("b", "t", "stream", 0, 10, 1),
    ]


@pytest.mark.parametrize(
    ("error", "alike"),
    [
        ("ValueError: order 1042 is gone\nTraceback: line 7", "ValueError: order <n> is gone"),
        ("took 30.5 s, not 1,000", "took <n> s, not <n>"),
        ("no 6f9619ff-8b86-D011-b42d-00cf4fc964ff", "no <uuid>"),
        ("no 6f9619ff8b86d011b42d00cf4fc964ff", "no <uuid>"),
        ("<Order object at 0x7f3a>", "<Order object at <n>>"),
        ("\n \r\n  indented  \n", "indented"),
        ("", ""),
        (None, ""),
    ],
)
def test_like_errors_are_alike(frame: Callable[..., Any], error: str | None, alike: str) -> None:
    [row] = run("dead_letters", frame([{"error": error, "dead_at": BEGIN}], "dead_letters"))

    assert row["error"] == alike


def test_dead_letters(frame: Callable[..., Any]) -> None:
    def letter(offset: int, error: str, minutes: int, **fields: Any) -> Row:
        at = BEGIN + timedelta(minutes=minutes)
        named = {"consumer": "billing", "topic": "orders", "type": "order.placed"}
        return {**named, "offset": offset, "error": error, "dead_at": at, **fields}

    letters = [
        letter(3, "card 4 declined", 5),
        letter(1, "card 11 declined", 9),
        letter(2, "card 12 declined", 1),
        letter(4, "card 4 declined", 2, type="order.paid"),
        letter(5, "other", 3),
        letter(6, "other", 3, consumer="a"),
    ]

    assert [list(row.values())[3:] for row in run("dead_letters", frame(letters, "dead_letters"))] == [
        ["card <n> declined", 3, BEGIN + timedelta(minutes=1), BEGIN + timedelta(minutes=9), "orders/1"],
        ["other", 1, BEGIN + timedelta(minutes=3), BEGIN + timedelta(minutes=3), "orders/6"],
        ["card <n> declined", 1, BEGIN + timedelta(minutes=2), BEGIN + timedelta(minutes=2), "orders/4"],
        ["other", 1, BEGIN + timedelta(minutes=3), BEGIN + timedelta(minutes=3), "orders/5"],
    ]


def test_of_nothing_there_is_nothing(frame: Callable[..., Any]) -> None:
    needed = {"windows": {"field": "$.a"}, "funnel": {"steps": ("a", "b")}}
    for job in ALL:
        frames = [frame([], None if name == "events" else name) for name in job.reads]
        found = run(job.name, *frames, **needed.get(job.name, {}))
        assert found == (
            []
            if job.name != "funnel"
            else [
                {"step": 1, "type": "a", "keys": 0, "share": None, "median": None},
                {"step": 2, "type": "b", "keys": 0, "share": None, "median": None},
            ]
        )


@pytest.mark.parametrize("job", ALL, ids=lambda job: job.name)
def test_the_registry_knows_what_functions_take(job: Any) -> None:
    parameters = inspect.signature(job.function).parameters.values()
    options = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    assert [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY] == list(job.reads)
    assert options == {o.name: inspect.Parameter.empty if o.required else o.default for o in job.options}
    assert "Columns: " in (job.function.__doc__ or "")
    assert set(job.columns) <= set(COLUMNS)
    assert bool(job.columns) == ("events" in job.reads)


def test_the_registry_needs_no_pyspark() -> None:
    code = "import sys; sys.modules['pyspark'] = None; import django_events.spark.jobs.registry as r; assert r.JOBS"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    "value",
    [
        '{"a": 1, "b": ' + "[" * 5_000 + "]" * 5_000 + "}",
        '{"a": 1, "b": ' + "1" * 5_000 + "}",
        '{"a": 1e99999999999}',
        '{"a": "' + "1" * 400 + '"}',
        '{"a": 1, "b": "\\ud800"}',
        "\ufeff[1]",
    ],
    ids=lambda value: value[:25],
)
def test_a_value_that_spark_cannot_read_fails_no_job(frame: Callable[..., Any], value: str) -> None:
    [row] = run("windows", frame([{"value": value, "published_at": BEGIN}]), field="$.a")

    assert (row["events"], row["numbers"]) == (1, 0)
