"""`manage.py analyze_events`: real events, what it prints and writes, and what it refuses."""

import csv
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import connections
from django.db.backends.postgresql.base import DatabaseWrapper
from psycopg.conninfo import conninfo_to_dict
from pydantic import BaseModel

from django_events import Backoff, Draft, schema
from django_events.management import analyzing
from django_events.management import spark as spark_commands
from django_events.management.commands.analyze_events import Command
from django_events.management.spark import dsn_of
from django_events.models import Event
from django_events.observing import samples
from django_events.spark.jobs.registry import JOBS
from django_events.testing import drain
from tests.integration.exporting.test_typed_exports import declared
from tests.support.processes import MANAGE

pytestmark = pytest.mark.usefixtures("transactional_db")


class Answer(NamedTuple):
    """How a command ended, and what it said."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(spark: Any) -> Callable[..., Answer]:
    """Run the command in the session of the tests."""

    def run_here(*arguments: str) -> Answer:
        out, err = io.StringIO(), io.StringIO()
        try:
            call_command("analyze_events", *arguments, stdout=out, stderr=err)
        except CommandError as error:
            return Answer(error.returncode, out.getvalue(), str(error))
        return Answer(0, out.getvalue(), err.getvalue())

    return run_here


@pytest.fixture
def sales(log: Callable[..., Any]) -> Any:
    """Three events of two types, all of the same hour or of two."""
    drafts = [Draft(value={"total": "2.50"}, type="order.placed", key="a"), Draft(value=None, type="order.placed")]
    return log(*drafts, Draft(value={}, type="order.paid", key="a"), name="sales", partitions=2)


def hours(topic: Any) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = {}
    for event in Event.objects.since(topic):
        hour = event.published_at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        found[hour.isoformat(), event.type] = found.get((hour.isoformat(), event.type), 0) + 1
    return found


def test_for_people(run: Callable[..., Answer], sales: Any) -> None:
    code, out, err = run("counts", "sales", "--every", "1000 days")

    assert (code, err) == (0, "")
    assert [line.split() for line in out.splitlines()] == [
        ["start", "topic", "type", "events"],
        ["2024-10-04", "00:00:00Z", "sales", "order.paid", "1"],
        ["2024-10-04", "00:00:00Z", "sales", "order.placed", "2"],
    ]


def test_for_programs(run: Callable[..., Answer], sales: Any, log: Callable[..., Any]) -> None:
    log(Draft(value=1), name="other")

    rows = json.loads(run("counts", "sales", "--format", "json").out)
    assert {(row["start"], row["type"]): row["events"] for row in rows} == hours(sales)
    in_csv = list(csv.DictReader(io.StringIO(run("counts", "sales", "--format", "csv").out)))
    assert {(row["start"], row["type"]): int(row["events"]) for row in in_csv} == hours(sales)
    everywhere = json.loads(run("counts", "--format", "json").out)
    assert {row["topic"] for row in everywhere} >= {"sales", "other"}


def test_a_jobs_own_options(run: Callable[..., Answer], sales: Any) -> None:
    [row] = json.loads(
        run("windows", "sales", "--field=$.total", "--by=key", "--every=1000 days", "--format=json").out
    )[1:]

    assert (row["key"], row["events"], row["numbers"], row["sum"]) == ("a", 2, 1, 2.5)
    funnel = json.loads(run("funnel", "--steps", "order.placed, order.paid", "sales", "--format=json").out)
    assert [(row["type"], row["keys"]) for row in funnel] == [("order.placed", 1), ("order.paid", 1)]


VERSIONS = [
    *(Draft(value={"sum": n}, type="order.placed", key="a") for n in (1, 2)),
    Draft(value={"total": "much", "note": "x"}, type="order.placed", key="b", metadata={"schema_version": 2}),
    *(Draft(value={"total": n}, type="order.placed", key="c", metadata={"schema_version": 2}) for n in (30, "40.5")),
    Draft(value={"sum": 5, "total": 600}, type="order.placed", key="a"),  # at that time a total was something else
    Draft(value={"total": 7}, type="other", key="c"),
    Draft(value={"total": 8}, type="order-placed", key="c"),  # a type of its own, whose column would be called alike
]


@pytest.fixture
def placed(log: Callable[..., Any]) -> Iterator[Any]:
    """Orders whose version changes in the middle, and events that no schema describes."""

    @schema("order.placed", version=2)
    class PlacedNow(BaseModel):
        total: Decimal

    topic = log(*VERSIONS, name="placed")
    with declared(PlacedNow, name="placed"):
        yield topic


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ((), {"order.placed": (6, 3, 670.5), "other": (1, 1, 7.0), "order-placed": (1, 1, 8.0)}),
        (("--columns", "typed"), {"order.placed": (6, 2, 70.5), "other": (1, 1, 7.0), "order-placed": (1, 1, 8.0)}),
        (
            ("--columns", "typed", "--upcasters", "tests.support.sum_upcasters"),
            {"order.placed": (6, 5, 78.5), "other": (1, 1, 7.0), "order-placed": (1, 1, 8.0)},
        ),
        (("--schema", "order.placed@2", "--upcasters", "tests.support.sum_upcasters"), {"order.placed": (6, 5, 78.5)}),
        (("--schema", "order.placed"), {"order.placed": (6, 2, 70.5)}),
    ],
)
def test_a_number_is_that_of_one_version(
    run: Callable[..., Answer], placed: Any, how: tuple[str, ...], expected: dict[str, tuple[int, int, float]]
) -> None:
    answer = run("windows", "placed", "--field", "$.total", "--every", "1000 days", "--format", "json", *how)

    assert answer.code == 0, answer.err
    found = {row["type"]: (row["events"], row["numbers"], row["sum"]) for row in json.loads(answer.out)}
    assert found == expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("windows", "--field", "$.a", "--columns", "typed"), "say which topics"),
        (("windows", "placed", "--field", "$.a", "--upcasters", "a"), "--upcasters goes with --columns typed"),
        (("windows", "placed", "--field", "$.a", "--from", "/x", "--schema", "order.placed"), "are for the log"),
        (("windows", "placed", "--field", "$.a", "--schema", "order.gone"), "No schema describes events of type"),
        (("windows", "sales", "--field", "$.a", "--columns", "typed"), "Topic 'sales' describes no events"),
        (("windows", "gone", "--field", "$.a", "--columns", "typed"), "gone"),
        (("counts", "placed", "--columns", "typed"), "unrecognized arguments: --columns typed"),
    ],
)
def test_versions_of_no_values_are_refused(
    run: Callable[..., Answer], placed: Any, sales: Any, words: tuple[str, ...], said: str
) -> None:
    answer = run(*words)

    assert answer.code == (1 if "unrecognized" in said else 2)  # from a shell both are 2
    assert said in answer.err


def test_more_than_are_shown(run: Callable[..., Answer], sales: Any) -> None:
    answer = run("counts", "sales", "--limit", "1")

    assert len(answer.out.splitlines()) == 2
    assert answer.err == "There are more than these 1: --limit shows them.\n"
    assert run("sessions", "sales", "--limit", "1").err == ""


@pytest.mark.parametrize("format", ["parquet", "json", "csv"])
def test_into_files(run: Callable[..., Answer], sales: Any, spark: Any, tmp_path: Path, format: str) -> None:
    target = tmp_path / "counts"
    options = () if format == "parquet" else ("--format", format)
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        assert run("counts", "sales", "--to", str(target), *options) == (0, f"Written to {target}.\n", "")
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")

    texts = [file.read_text() for file in target.glob(f"*.{format}")] if format != "parquet" else []
    if format == "parquet":
        rows = spark.read.parquet(str(target)).toArrow().to_pylist()
    elif format == "csv":
        rows = [row for text in texts for row in csv.DictReader(io.StringIO(text))]
    else:
        rows = [json.loads(line) for text in texts for line in text.splitlines()]
    times = [row["start"] if format == "parquet" else datetime.fromisoformat(row["start"]) for row in rows]
    found = {(time.isoformat(), row["type"]): int(row["events"]) for time, row in zip(times, rows, strict=True)}
    assert found == hours(sales)
    assert all(time.utcoffset() == timedelta(0) for time in times)
    again = run("counts", "sales", "--to", str(target), *options)
    assert again.code == 1
    assert again.err.startswith(f"Path file:{target} already exists.")


@pytest.mark.parametrize("format", ["parquet", "json", "orc"])
def test_from_what_was_exported(run: Callable[..., Answer], sales: Any, tmp_path: Path, format: str) -> None:
    source = str(tmp_path / "exported")
    call_command("export_events", "sales", to=source, format=format, by="type", verbosity=0)
    options = ("sales", "--field", "$.total", "--format", "json")

    assert json.loads(run("windows", *options, "--from", source).out) == json.loads(run("windows", *options).out)
    assert run("counts", "others", "--from", source).out == "No rows.\n"


@pytest.mark.parametrize("format", ["parquet", "json", pytest.param("orc", marks=pytest.mark.slow)])
def test_from_folders_of_types_though_no_event_has_one(
    run: Callable[..., Answer], log: Callable[..., Any], tmp_path: Path, format: str
) -> None:
    topic = log(*(Draft(value={"total": n}) for n in range(5)))
    call_command("stream_events", str(topic), to=str(tmp_path), format=format, by="type", once=True, verbosity=0)

    [row] = json.loads(
        run("counts", str(topic), "--from", str(tmp_path), "--every", "1000 days", "--format", "json").out
    )

    assert (row["topic"], row["type"], int(row["events"])) == (str(topic), "", 5)


def test_files_that_hold_no_events(run: Callable[..., Answer], spark: Any, tmp_path: Path) -> None:
    spark.range(1).write.parquet(str(tmp_path / "numbers"))
    (tmp_path / "bad.json").write_text("{bad\n")

    code, _, err = run("counts", "--from", str(tmp_path / "numbers"))
    assert (code, "have no column 'topic', 'type', 'published_at'" in err) == (2, True)
    code, _, err = run("counts", "--from", str(tmp_path / "bad.json"))
    assert code == 1
    assert "\n" not in err
    code, _, err = run("counts", "--from", str(tmp_path / "nothing"))
    assert (code, err) == (1, f"Path does not exist: file:{tmp_path}/nothing.")


def test_the_tables_beside_the_log(run: Callable[..., Answer], log: Callable[..., Any], make_consumer: Any) -> None:
    def handle(event: Any) -> None:
        if event.value > 2:
            raise ValueError(f"order {event.value} is gone")

    options = {"mode": "queue", "retry": Backoff(attempts=1), "history": timedelta(days=1)}
    topic = log(Draft(value=0), name="sales")
    consumer = make_consumer(topic, handler=handle, name="cashier", **options)
    log(*(Draft(value=n) for n in range(1, 5)), topic=topic)
    drain(consumer, raise_errors=False)
    log(Draft(value=9), topic=topic)

    [letters] = json.loads(run("dead_letters", "sales", "--format", "json").out)
    assert (letters["consumer"], letters["letters"], letters["example"]) == ("cashier", 2, "sales/5")
    assert letters["error"].endswith("order <n> is gone")
    [latency] = json.loads(run("latency", "sales", "--format", "json").out)
    assert latency["measured"] == "events"
    assert latency["count"] in (2, 3)
    assert 0 < latency["p50"] <= latency["p99"] <= latency["max"] < 60
    [lag] = json.loads(run("lag", "sales", "--format", "json").out)
    assert (lag["consumer"], lag["mode"], lag["lag"]) == ("cashier", "queue", 1)

    make_consumer(topic, handler=handle, name="reader")
    assert samples.take("default")
    [_, sampled] = json.loads(run("latency", "sales", "--format", "json").out)
    assert (sampled["consumer"], sampled["measured"], sampled["count"]) == ("reader", "minutes", 1)
    assert sampled["max"] > 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("counts", "sale"), 2, "There is no topic 'sale' in the database. Did you mean 'sales'?"),
        (("counts", "sales", "--every", "often"), 2, "Option 'every' is 'often'"),
        (("counts", "sales", "--database", "nix"), 2, "There is no database 'nix'"),
        (("counts", "sales", "--format", "parquet"), 2, "say where to write it, by --to"),
        (("counts", "sales", "--to", "x", "--format", "table"), 2, "A table is for people"),
        (("counts", "--master", "local", "--remote", "sc://x"), 2, "Say where Spark is once"),
        (("windows", "sales"), 1, "the following arguments are required: --field"),
        (("lag", "--from", "x"), 1, "unrecognized arguments: --from"),
    ],
)
def test_what_is_refused(
    run: Callable[..., Answer], sales: Any, arguments: tuple[str, ...], code: int, said: str
) -> None:
    answer = run(*arguments)

    assert (answer.code, said in answer.err) == (code, True), answer
    assert "\n" not in answer.err


def test_a_database_that_is_away_is_not_waited_for(run: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analyzing, "dsn_of", lambda using: "host=127.0.0.1 port=1 dbname=x")

    answer = run("counts")

    assert (answer.code, "can't be reached" in answer.err) == (75, True)


def test_without_a_job_they_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    call_command("analyze_events")

    out = capsys.readouterr().out
    assert all(job.name in out and job.help.split(",")[0] in " ".join(out.split()) for job in JOBS.values())


def test_an_unknown_job_is_a_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        Command().run_from_argv(["manage.py", "analyze_events", "--traceback", "count", "sales"])

    assert ended.value.code == 2
    assert capsys.readouterr().err == "There is no job 'count'. Did you mean 'counts'?\n"


def test_as_a_process(sales: Any, dsn: str) -> None:
    """In a session of its own, started and ended; on standard output is nothing but the answer."""
    named = connections["default"].settings_dict["NAME"]
    environment = {**os.environ, "DATABASE_URL": f"{dsn} dbname={named}", "TZ": "Asia/Kolkata"}
    command = [sys.executable, str(MANAGE), "analyze_events", "counts", "sales", "--format=json", "--master=local[1]"]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)

    assert ended.returncode == 0, ended.stderr
    assert "\tat " not in ended.stderr
    # PySpark's daemon may be cut off while it says goodbye; of ours is nothing.
    assert "analyz" not in ended.stderr
    assert "django_events" not in ended.stderr
    assert {(row["start"], row["type"]): row["events"] for row in json.loads(ended.stdout)} == hours(sales)


def test_the_address_is_djangos(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        **connections["default"].settings_dict,
        "PASSWORD": "a 'b\\",
        "HOST": "db",
        "PORT": "5433",
        "USER": "u",
        "NAME": "n",
    }
    options = {
        "assume_role": "reader x",
        "pool": False,
        "isolation_level": 2,
        "server_side_binding": True,
        "sslmode": "require",
        "options": "-c jit=off",
        "prepare_threshold": 5,
    }
    # Django's own backend: that of the private server has an address of its own.
    monkeypatch.setattr(
        spark_commands, "connections", {"one": DatabaseWrapper({**settings, "OPTIONS": options}, "one")}
    )

    assert conninfo_to_dict(dsn_of("one")) == {
        "dbname": "n",
        "user": "u",
        "password": "a 'b\\",
        "host": "db",
        "port": "5433",
        "sslmode": "require",
        "options": "-c jit=off -c role=reader\\ x",
    }


def test_the_role_is_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    import psycopg

    monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", {"assume_role": "pg_monitor"})
    with psycopg.connect(dsn_of("default")) as session:
        assert session.execute("SELECT current_user").fetchone() == ("pg_monitor",)
