"""Exports without Spark: each event once in the files, as PostgreSQL has it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.core.management import CommandError
from django.db import connection

from django_events import Draft
from django_events.exporting import local, writing
from django_events.exporting.parts import Parts
from django_events.exporting.storage import OfDisk
from django_events.models import Event
from django_events.reading.rows import RangeReader
from tests.spark.test_batch import HOSTILE, drop_first_segment, publish, stored
from tests.spark.test_export import part_of, plan, url
from tests.spark.test_streaming import make_anew
from tests.support.local_exports import left_over, read_back, run, through_what_goes_away
from tests.support.processes import wait_until
from tests.support.small_disks import enlarge, small_disk

pytestmark = pytest.mark.usefixtures("transactional_db")

Log = Callable[..., Any]


@pytest.mark.requirement("X1")
@pytest.mark.requirement("H8")
@pytest.mark.parametrize(
    "by", ["day", *(pytest.param(by, marks=pytest.mark.slow) for by in ("day,type", "month,hour,type", "none"))]
)
def test_files_hold_what_postgresql_holds(log: Log, tmp_path: Path, by: str) -> None:
    types = ("order.placed", "", "2026", "with space/and=more%", "\N{SNOWMAN}")
    drafts = [Draft(value=value, type=types[n % 5], key=str(n)) for n, value in enumerate(HOSTILE * 3)]
    topic = log(*drafts, Draft(body=b"\0\xff"), partitions=3)

    said = run(topic, "--to", tmp_path, "--by", by, "--part", 20, "--threads", 2)

    assert read_back(tmp_path) == stored(topic)
    assert said.startswith(f"Exported {len(drafts) + 1} events to {tmp_path} in ")
    assert left_over(tmp_path) == []


def test_any_type_has_a_folder(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = ["\N{GRINNING FACE}" * 60, "\N{GRINNING FACE}" * 61, "/" * 60, "/" * 100, "/" * 101, "x" * 200]
    topic = log(*(Draft(value=1, type=type) for type in ("", "__HIVE_DEFAULT_PARTITION__", *long) * 3))
    monkeypatch.setattr(writing, "MOST_OPEN", 2)

    run(topic, "--to", tmp_path, "--by", "type")

    assert read_back(tmp_path) == stored(topic)
    folders = {path.name for path in tmp_path.glob("topic=things/ids=*/event_type=*")}
    assert f"event_type={'x' * 50}~{sha256(b'x' * 200).hexdigest()[:8]}" in folders
    assert len(folders) == 8


def test_lines_of_json_hold_the_same(log: Log, tmp_path: Path) -> None:
    topic = log(*(Draft(value=value, key="k") for value in HOSTILE), Draft(body=b"\0\xff"))

    run(topic, "--to", tmp_path, "--format", "json")

    lines = [json.loads(line) for path in tmp_path.rglob("part-*.json") for line in path.read_bytes().splitlines()]
    lines.sort(key=lambda line: line["offset"])
    known = stored(topic)
    for name in ("partition", "offset", "number", "type", "key", "value", "metadata"):
        assert [line[name] for line in lines] == [row[name] for row in known]
    assert [line["body"] for line in lines] == [None] * len(HOSTILE) + ["AP8="]
    moment = Event.objects.at(topic, 1).logged_at.astimezone(UTC)
    assert lines[0]["timestamp"] == f"{moment:%Y-%m-%dT%H:%M:%S.%fZ}"


def test_running_it_again_adds_nothing(log: Log, tmp_path: Path) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))
    run(topic, "--to", tmp_path)
    files = sorted(tmp_path.rglob("*.parquet"))

    assert run(topic, "--to", tmp_path).startswith("Nothing to export: all of that is there.")
    assert sorted(tmp_path.rglob("*.parquet")) == files
    publish(topic, *range(5))
    assert run(topic, "--to", tmp_path).startswith("Exported 5 events")
    assert read_back(tmp_path) == stored(topic)


def test_a_part_that_was_removed_since_is_said_to_be_so_and_not_exported_again(log: Log, tmp_path: Path) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))
    run(topic, "--to", tmp_path)
    publish(topic, *range(5))
    run(topic, "--to", tmp_path)
    removed = tmp_path / f"topic={topic}" / "ids=000000000001-000000000010"
    shutil.rmtree(removed)

    said = run(topic, "--to", tmp_path)
    assert said.startswith(f"Nothing to export: all of that was exported. {tmp_path} holds 5 events.")
    assert f"Removed since, and not exported again: topic={topic}/{removed.name}. To have them again, export" in said
    publish(topic, 1)
    assert "It holds 6 now.\nRemoved since" in run(topic, "--to", tmp_path)
    shutil.rmtree(tmp_path / f"topic={topic}" / "ids=000000000011-000000000015")
    assert f"{removed.name} and 1 other part. To have" in run(topic, "--to", tmp_path)


def test_files_are_made_to_be_read_fast(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = log(*(Draft(value={"n": n}, type=f"t{n % 3}") for n in range(3_000)))
    monkeypatch.setattr(writing, "ROWS_PER_GROUP", 1_000)

    run(topic, "--to", tmp_path)

    [file] = tmp_path.rglob("*.parquet")
    found = pq.ParquetFile(file)
    assert found.schema_arrow.field("timestamp").type == pa.timestamp("us", "UTC")
    assert found.schema_arrow.names == writing.SCHEMA.names
    groups = [found.metadata.row_group(number) for number in range(found.metadata.num_row_groups)]
    offset = writing.SCHEMA.get_field_index("offset")
    bounds = [(group.column(offset).statistics.min, group.column(offset).statistics.max) for group in groups]
    assert bounds == [(1, 1_000), (1_001, 2_000), (2_001, 3_000)]
    assert {group.sorting_columns[0].column_index for group in groups} == {offset}
    assert {group.column(offset).compression for group in groups} == {"ZSTD"}
    assert groups[0].column(writing.SCHEMA.get_field_index("value")).statistics is None


@pytest.mark.slow
def test_files_get_the_size_that_is_wanted(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = log(*(Draft(value=os.urandom(500).hex()) for _ in range(2_000)))
    monkeypatch.setattr(writing, "BYTES_PER_GROUP", 50_000)
    monkeypatch.setattr(writing, "PER_SPLIT", 50_000)

    run(topic, "--to", tmp_path, "--target-size", "200KB", "--threads", 2)

    sizes = [path.stat().st_size for path in tmp_path.rglob("*.parquet")]
    assert len(sizes) >= 3
    assert max(sizes) < 500_000
    assert read_back(tmp_path) == stored(topic)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["thing"], 2, "There is no topic 'thing' in the database. Did you mean 'things'?"),
        (["things", "--format", "orc"], 2, "Without Spark there is no format 'orc'. Known are: parquet, json."),
        (["things", "--master", "local[2]"], 2, "--master and --remote are for --engine spark."),
        (["things", "--threads", "0"], 2, "--threads is at least 1."),
    ],
)
def test_what_cannot_be_exported_is_said(log: Log, tmp_path: Path, arguments: list[str], code: int, said: str) -> None:
    log(Draft(value=1), Draft(value=2))

    with pytest.raises(CommandError) as raised:
        run(*arguments, "--to", tmp_path)

    assert said in str(raised.value)
    assert raised.value.returncode == code
    assert read_back(tmp_path) == list(tmp_path.iterdir()) == []


def test_an_object_store_needs_spark(log: Log) -> None:
    topic = log(Draft(value=1))

    with pytest.raises(CommandError, match="can't be written to 's3a://bucket/events' without Spark: ") as raised:
        run(topic, "--to", "s3a://bucket/events")
    assert raised.value.returncode == 2


@pytest.mark.parametrize("format", ["parquet", "json"])
def test_a_folder_that_can_not_be_made_is_named(log: Log, format: str) -> None:
    topic = log(Draft(value=1))

    # A user without the rights of root is told of these first.
    with pytest.raises(CommandError, match=r"^/proc/x can't be made: |^Permission denied.* \(/proc/x\)") as raised:
        run(topic, "--to", "/proc/x", "--format", format)
    assert raised.value.returncode == 1


@pytest.mark.slow
def test_a_full_disk_is_said_and_finished_later(log: Log, tmp_path: Path) -> None:
    topic = log(*(Draft(value=os.urandom(30_000).hex()) for _ in range(60)))
    small = tmp_path / "small"
    with small_disk(small):
        with pytest.raises(CommandError, match="The disk is full") as raised:
            run(topic, "--to", small, "--part", 20)
        assert raised.value.returncode == 1
        enlarge(small)
        run(topic, "--to", small, "--resume")
        assert read_back(small) == stored(topic)


def test_what_retention_removed_is_said(log: Log, tmp_path: Path) -> None:
    topic = log(*(Draft(value=n) for n in range(250)), segment_size=100)
    plan(tmp_path, part_of(topic, 1, 151))
    drop_first_segment(topic)

    with pytest.raises(CommandError, match="Events 1 to 150 of topic 'things' were begun"):
        run(topic, "--to", tmp_path)
    run(topic, "--to", tmp_path, "--allow-loss")
    assert [row["offset"] for row in read_back(tmp_path)] == list(range(101, 251))


@pytest.mark.parametrize("by", ["type", "none"])
def test_a_part_of_which_nothing_is_left_is_finished(log: Log, tmp_path: Path, by: str) -> None:
    topic = log(*(Draft(value=n, type="t") for n in range(150)), segment_size=100)
    part = part_of(topic, 1, 51)
    plan(tmp_path, part, by=() if by == "none" else (by,))
    drop_first_segment(topic)

    assert run(topic, "--to", tmp_path, "--by", by, "--allow-loss").startswith("Exported 50 events")

    assert Parts(OfDisk(), str(tmp_path)).done[part] == 0
    assert [row["offset"] for row in read_back(tmp_path)] == list(range(101, 151))


@pytest.mark.parametrize("what", ["the lock alone", "all of its sessions"])
def test_a_lock_that_is_lost_while_threads_write_notes_nothing(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    topic = log(*(Draft(value=n) for n in range(500)))
    read_by = RangeReader.read_by

    def read_without_lock(*arguments: Any) -> Any:
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name = 'django_events spark' "
                + ("AND state = 'idle in transaction'" if what == "the lock alone" else "")
            )
        connection.close()
        yield from read_by(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(RangeReader, "read_by", read_without_lock)
        with pytest.raises(CommandError, match=r"and with it the lock on .* Run it again") as raised:
            run(topic, "--to", tmp_path, "--threads", 1)
    assert raised.value.returncode == 1
    assert Parts(OfDisk(), str(tmp_path)).done == {}
    run(topic, "--to", tmp_path)
    assert read_back(tmp_path) == stored(topic)


def test_a_database_that_goes_away_meanwhile_is_told_apart(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*(Draft(value=n) for n in range(500)))

    with monkeypatch.context() as patched:
        through_what_goes_away(patched)
        with pytest.raises(CommandError, match=r"with it the lock on .* Run it again\. .* can't be reached") as raised:
            run(topic, "--to", tmp_path, "--threads", 1)
    assert raised.value.returncode == 75
    run(topic, "--to", tmp_path)
    assert read_back(tmp_path) == stored(topic)


@pytest.mark.parametrize("when", ["before it is read", "before it counts"])
def test_a_topic_that_is_made_anew_meanwhile_is_refused(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_topic: Any, when: str
) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))
    write = local.LocalEngine.write

    def anew(*arguments: Any) -> int:
        if when == "before it counts":
            rows = write(*arguments)
            make_anew(topic, make_topic)
            return rows
        make_anew(topic, make_topic)
        return write(*arguments)

    monkeypatch.setattr(local.LocalEngine, "write", anew)
    with pytest.raises(CommandError, match="Topic 'things' was made anew or removed while its events were") as raised:
        run(topic, "--to", tmp_path)

    assert raised.value.returncode == 1
    assert Parts(OfDisk(), str(tmp_path)).done == {}
    assert read_back(tmp_path) == []


@pytest.mark.slow
def test_neither_spark_nor_java_is_needed(log: Log, tmp_path: Path) -> None:
    topic = log(Draft(value=1))
    program = (
        "import runpy, sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name in ('pyspark', 'py4j', 'pandas'): raise ModuleNotFoundError(name, name=name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "runpy.run_path('testproject/manage.py', run_name='__main__')\n"
    )
    environment = {**os.environ, "DATABASE_URL": url(connection.get_connection_params()), "JAVA_HOME": "/nowhere"}

    done = subprocess.run(
        [sys.executable, "-c", program, "export_events", str(topic), "--to", str(tmp_path), "--engine", "local"],
        env={**environment, "PYTHONPATH": "."},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert read_back(tmp_path) == stored(topic)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.long)])
def test_a_signal_ends_it_with_a_sentence(log: Log, tmp_path: Path, number: int) -> None:
    topic = log(*(Draft(value=n) for n in range(6_000)))
    words = [sys.executable, "testproject/manage.py", "export_events", str(topic), "--to", str(tmp_path / "out")]
    words += ["--engine", "local", "--part", "200"]
    environment = {**os.environ, "DATABASE_URL": url(connection.get_connection_params()), "PYTHONPATH": "."}
    # A shell starts what it puts into the background with SIGINT ignored, and this test may be there.
    with subprocess.Popen(
        words,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    ) as process:
        wait_until(lambda: any(tmp_path.glob("out/topic=*/ids=*")) or process.poll() is not None)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)

    assert process.returncode == 1
    assert said.splitlines()[-1].endswith(
        "Interrupted. What was finished stays; run the same again, and the rest is written."
    )
    assert run(topic, "--to", tmp_path / "out").startswith("Exported ")
    assert read_back(tmp_path / "out") == stored(topic)
    assert left_over(tmp_path / "out") == []


def test_an_unreachable_database_is_told_apart(tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    from django_events.management.commands import export_events

    log(Draft(value=1))
    monkeypatch.setattr(export_events, "dsn_of", lambda using: "host=127.0.0.1 port=1 dbname=x password=hush")

    with pytest.raises(CommandError, match="can't be reached") as raised:
        run("things", "--to", tmp_path)
    assert raised.value.returncode == 75
    assert "hush" not in str(raised.value)
