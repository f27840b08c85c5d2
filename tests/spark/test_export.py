"""Exports: each event once in the files, whatever is killed, tried again or asked for twice."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pyarrow.parquet as pq
import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from django_events import Draft
from django_events.exporting.parts import Part, Parts
from django_events.exporting.storage import OfDisk
from django_events.models import Event
from django_events.spark.exporting import tasks
from tests.spark.test_batch import HOSTILE, collected, drop_first_segment, publish, stored
from tests.spark.test_streaming import cut_back, make_anew
from tests.support.small_disks import enlarge, small_disk

pytestmark = pytest.mark.usefixtures("transactional_db", "spark")


def run(*arguments: Any, command: str = "export_events", **options: Any) -> str:
    out, err = StringIO(), StringIO()
    call_command(command, *map(str, arguments), stdout=out, stderr=err, **options)
    return out.getvalue()


def exported(spark: Any, path: Path, format: str = "parquet") -> list[dict[str, Any]]:
    """What readers of the files see, in order, with the columns that the log has."""
    columns = ("topic", "partition", "offset", "number", "timestamp", "type", "key", "value", "body", "metadata")
    frame = spark.read.format(format).load(str(path))
    if "_corrupt_record" in frame.columns or not frame.columns:
        return []
    return collected(frame.select(*columns, "published_at"))


@pytest.mark.requirement("X1")
@pytest.mark.requirement("H8")
@pytest.mark.parametrize("by", ["day", "day,type", "month,hour,type", "none"])
def test_files_hold_what_postgresql_holds(spark: Any, log: Callable[..., Any], tmp_path: Path, by: str) -> None:
    types = ("order.placed", "", "2026", "with space/and=more%", "\N{SNOWMAN}")
    drafts = [Draft(value=value, type=types[n % 5], key=str(n)) for n, value in enumerate(HOSTILE * 3)]
    topic = log(*drafts, Draft(body=b"\0\xff"), partitions=3)

    said = run(topic, "--to", tmp_path, "--by", by, "--part", 20)

    assert exported(spark, tmp_path) == stored(topic)
    assert said.startswith(f"Exported {len(drafts) + 1} events to {tmp_path} in ")


def test_any_type_has_a_folder(spark: Any, log: Callable[..., Any], tmp_path: Path) -> None:
    long = ["\N{GRINNING FACE}" * 60, "\N{GRINNING FACE}" * 61, "/" * 60, "/" * 100, "/" * 101, "x" * 200]
    topic = log(*(Draft(value=1, type=type) for type in ("", "__HIVE_DEFAULT_PARTITION__", *long)))

    run(topic, "--to", tmp_path, "--by", "type")

    assert exported(spark, tmp_path) == stored(topic)
    folders = {path.name for path in tmp_path.glob("topic=things/ids=*/event_type=*")}
    assert f"event_type={'x' * 50}~{sha256(b'x' * 200).hexdigest()[:8]}" in folders
    assert len(folders) == 8


@pytest.mark.parametrize("format", ["json", "orc"])
def test_other_formats_hold_the_same(spark: Any, log: Callable[..., Any], tmp_path: Path, format: str) -> None:
    topic = log(*(Draft(value=value, key="k") for value in HOSTILE), Draft(body=b"\0\xff"))

    run(topic, "--to", tmp_path, "--format", format)

    if format == "orc":
        assert exported(spark, tmp_path, "orc") == stored(topic)
    else:
        lines = [json.loads(line) for path in tmp_path.rglob("part-*.json") for line in path.read_text().splitlines()]
        lines.sort(key=lambda line: line["offset"])
        assert [line["value"] for line in lines] == [row["value"] for row in stored(topic)]
        assert lines[-1]["body"] == "AP8="
        moment = Event.objects.at(topic, 1).logged_at.astimezone(UTC)
        assert lines[0]["timestamp"] == f"{moment:%Y-%m-%dT%H:%M:%S.%fZ}"


@pytest.mark.quick
def test_running_it_again_adds_nothing(spark: Any, log: Callable[..., Any], tmp_path: Path) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))
    run(topic, "--to", tmp_path)
    files = sorted(tmp_path.rglob("*.parquet"))

    assert run(topic, "--to", tmp_path).startswith("Nothing to export: all of that is there.")
    assert sorted(tmp_path.rglob("*.parquet")) == files
    publish(topic, *range(5))
    assert run(topic, "--to", tmp_path).startswith("Exported 5 events")
    assert exported(spark, tmp_path) == stored(topic)


def test_ranges_that_overlap_are_exported_once(spark: Any, log: Callable[..., Any], tmp_path: Path) -> None:
    topic = log(*(Draft(value=n) for n in range(50)))
    for since, until in ((10, 20), (15, 30), (40, 45), (1, 51)):
        run(topic, "--to", tmp_path, "--since", since, "--until", until)

    assert exported(spark, tmp_path) == stored(topic)


def test_a_time_bounds_an_export(spark: Any, log: Callable[..., Any], tmp_path: Path) -> None:
    topic = log(*(Draft(value=n) for n in range(5)))
    publish(topic, *range(5))
    moment = Event.objects.at(topic, 6).logged_at.astimezone(UTC)
    nothing = "Nothing to export: the log has nothing in that range."

    run(topic, "--to", tmp_path / "a", "--since", moment.isoformat())
    run(topic, "--to", tmp_path / "b", "--until", f"{moment:%Y-%m-%dT%H:%M:%S.%fZ}")
    assert [row["offset"] for row in exported(spark, tmp_path / "a")] == [6, 7, 8, 9, 10]
    assert [row["offset"] for row in exported(spark, tmp_path / "b")] == [1, 2, 3, 4, 5]
    assert run(topic, "--to", tmp_path / "c", "--until", "2020-01-01").startswith(nothing)
    assert run(topic, "--to", tmp_path / "a", "--since", "9999-01-01").startswith(nothing)
    assert run(topic, "--to", tmp_path / "a", "--since", 5, "--until", 5).startswith(nothing)


def test_several_topics_go_to_one_folder(spark: Any, log: Callable[..., Any], tmp_path: Path) -> None:
    for name in ("a", "b"):
        log(*(Draft(value=f"{name}{n}") for n in range(3)), name=name)

    run("a", "b", "a", "--to", tmp_path)

    assert exported(spark, tmp_path) == stored("a") + stored("b")


def test_days_are_of_utc_whatever_the_zones_are(spark: Any, log: Callable[..., Any], tmp_path: Path) -> None:
    topic = log(Draft(value=1))
    moment = Event.objects.at(topic, 1).logged_at.astimezone(UTC)
    for zone in ("Pacific/Kiritimati", "Pacific/Niue"):
        spark.conf.set("spark.sql.session.timeZone", zone)
        try:
            run(topic, "--to", tmp_path / zone, "--by", "day,hour")
        finally:
            spark.conf.set("spark.sql.session.timeZone", "UTC")
        [file] = (tmp_path / zone).rglob("*.parquet")
        assert file.parent.name == f"hour={moment:%H}"
        assert file.parent.parent.name == f"day={moment:%Y-%m-%d}"
        assert exported(spark, tmp_path / zone) == stored(topic)


def test_other_readers_see_the_same_moments(log: Callable[..., Any], tmp_path: Path, spark: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    topic = log(Draft(value=1))
    run(topic, "--to", tmp_path)
    [file] = tmp_path.rglob("*.parquet")
    table = pq.ParquetFile(file).read()

    assert table.schema.field("timestamp").type == pa.timestamp("us", "UTC")
    assert table["timestamp"][0].as_py() == Event.objects.at(topic, 1).logged_at
    assert pq.ParquetFile(file).metadata.row_group(0).column(0).compression == "ZSTD"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["thing"], 2, "There is no topic 'thing' in the database. Did you mean 'things'?"),
        (["things", "--by", "dya"], 2, "Events can't be put into folders by 'dya'. Did you mean 'day'?"),
        (["things", "--format", "csv"], 2, "There is no format 'csv'. Known are: parquet, json, orc."),
        (["things", "--since", "yesterday"], 2, "expected an id, a day like 2026-11-20"),
        (["things", "--since", "2026-11-20T18:00:00"], 2, "a time with its zone"),
        (["things", "--since", "9"], 2, "--since is 9, and topic 'things' has no such event: the next one will be 3."),
        (["things", "--until", "20261120"], 2, "Expected an id up to that, or a day like 2026-11-20."),
        (["things", "--since", "\N{SUPERSCRIPT TWO}"], 2, "expected an id, a day like 2026-11-20"),
        (["things", "--since", "2", "--until", "1"], 2, "--since 2 is behind --until 1, expected one before it."),
        (["things", "--since", "2026-11-20", "--until", "2026-11-19"], 2, "--since 2026-11-20 is behind --until"),
        (["things", "--target-size", "\N{SUPERSCRIPT TWO}MB"], 2, "is no size, expected one like 128MB."),
        (["things", "others", "--since", "2"], 2, "is another event in each of things, others"),
        (["things", "--target-size", "large"], 2, "'large' is no size, expected one like 128MB."),
        (["things", "--part", "0"], 2, "--part is at least 1."),
        (["things", "--database", "nowhere"], 2, "There is no database 'nowhere'."),
    ],
)
def test_what_cannot_be_exported_is_said(
    log: Callable[..., Any], tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    log(Draft(value=1), Draft(value=2))

    with pytest.raises(CommandError) as raised:
        run(*arguments, "--to", tmp_path)

    assert said in str(raised.value)
    assert raised.value.returncode == code
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_said(log: Callable[..., Any], tmp_path: Path) -> None:
    topic = log(Draft(value=1))
    (tmp_path / "file").write_text("")

    with pytest.raises(CommandError, match=r"file is a file: events can't be exported into it"):
        run(topic, "--to", tmp_path / "file/below")


@pytest.mark.requirement("X1")
def test_a_topic_that_is_made_anew_meanwhile_is_refused(
    log: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_topic: Any
) -> None:
    from django_events.spark.exporting.engine import SparkEngine

    topic = log(*(Draft(value=n) for n in range(10)))
    write = SparkEngine.write

    def anew(*arguments: Any) -> int:  # Spark finds the topic by its name, and there are as many events
        make_anew(topic, make_topic)
        publish(topic, *range(100, 110))
        return write(*arguments)

    monkeypatch.setattr(SparkEngine, "write", anew)
    with pytest.raises(CommandError, match="Topic 'things' was made anew or removed while its events were") as raised:
        run(topic, "--to", tmp_path)

    assert raised.value.returncode == 1
    assert Parts(OfDisk(), str(tmp_path)).done == {}
    assert list(tmp_path.glob("topic=*")) == []


@pytest.mark.slow
def test_machines_with_another_disk_are_said(
    log: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks don't find the folder that the driver has made."""
    topic = log(*(Draft(value=n) for n in range(10)))
    with monkeypatch.context() as patched:
        patched.setattr(OfDisk, "make", lambda disk, folder: None)
        with pytest.raises(CommandError, match=r"is not there, .* a folder that this machine, and all of Spark's, see"):
            run(topic, "--to", tmp_path)

    assert Parts(OfDisk(), str(tmp_path)).done == {}
    assert run(topic, "--to", tmp_path).startswith("Exported 10 events")


def test_a_full_disk_is_said_and_finished_later(spark: Any, log: Callable[..., Any], tmp_path: Path) -> None:
    topic = log(*(Draft(value=os.urandom(30_000).hex()) for _ in range(60)))
    small = tmp_path / "small"
    with small_disk(small):
        with pytest.raises(CommandError, match="The disk is full") as raised:
            run(topic, "--to", small, "--part", 20)
        assert raised.value.returncode == 1
        enlarge(small)
        run(topic, "--to", small, "--resume")
        assert exported(spark, small) == stored(topic)


def test_another_way_needs_another_folder(log: Callable[..., Any], tmp_path: Path, make_topic: Any) -> None:
    topic = log(Draft(value=1))
    run(topic, "--to", tmp_path)

    with pytest.raises(CommandError, match="tells of files in format parquet, by day"):
        run(topic, "--to", tmp_path, "--by", "type")
    make_anew(topic, make_topic)
    publish(topic, 1, 2)
    with pytest.raises(CommandError, match="was made anew since it was exported"):
        run(topic, "--to", tmp_path)


def test_a_journal_that_is_lost_or_damaged_is_said(spark: Any, log: Callable[..., Any], tmp_path: Path) -> None:
    topic = log(Draft(value=1))
    run(topic, "--to", tmp_path)
    journal = tmp_path / "_django_events/journal"
    newest = max(journal.glob("*/record.json"))
    for text, why in (
        ("", "is no record"),
        ("\0" * 99, "is no record"),
        ("[]\n", "its newest version is no record"),
        ('{"layout": 2}', "expected writer, run, format, by in its newest version"),
        (newest.read_text().replace('"start": 1', '"start": 9'), "its newest version can't be understood"),
    ):
        newest.write_text(text)
        with pytest.raises(CommandError, match=f"journal is damaged, or something else wrote it: .*{why}"):
            run(topic, "--to", tmp_path)
    newest.write_text('{"layout": 4}\n')
    with pytest.raises(CommandError, match="was written by a newer version"):
        run(topic, "--to", tmp_path)
    shutil.rmtree(journal)

    with pytest.raises(CommandError, match="holds 'topic=things', and no journal that says what is in it"):
        run(topic, "--to", tmp_path)
    assert exported(spark, tmp_path) == stored(topic)


def test_what_retention_removed_is_said(spark: Any, log: Callable[..., Any], tmp_path: Path) -> None:
    topic = log(*(Draft(value=n) for n in range(250)), segment_size=100)
    plan(tmp_path, part_of(topic, 1, 151))
    drop_first_segment(topic)

    for arguments, said in (
        ((), "Events 1 to 150 of topic 'things' were begun"),
        (("--since", 5), "Events 1 to 150 of"),
    ):
        with pytest.raises(CommandError, match=said) as raised:
            run(topic, "--to", tmp_path, *arguments)
        assert "log begins at 101: what was before it has expired. Export what is left with --allow-loss." in str(
            raised.value
        )
    with pytest.raises(CommandError, match=r"--since is 5, and .* begins at 101: .* left with --allow-loss\."):
        run(topic, "--to", tmp_path / "new", "--since", 5)
    run(topic, "--to", tmp_path, "--allow-loss")
    assert [row["offset"] for row in exported(spark, tmp_path)] == list(range(101, 251))


@pytest.mark.parametrize("by", ["type", "none"])
def test_a_part_of_which_nothing_is_left_is_finished(
    spark: Any, log: Callable[..., Any], tmp_path: Path, by: str
) -> None:
    topic = log(*(Draft(value=n, type="t") for n in range(150)), segment_size=100)
    part = part_of(topic, 1, 51)
    plan(tmp_path, part, by=() if by == "none" else (by,))
    drop_first_segment(topic)

    assert run(topic, "--to", tmp_path, "--by", by, "--allow-loss").startswith("Exported 50 events")

    assert Parts(OfDisk(), str(tmp_path)).done[part] == 0
    assert [row["offset"] for row in exported(spark, tmp_path)] == list(range(101, 151))


def test_one_run_at_a_time(log: Callable[..., Any], tmp_path: Path, dsn: str) -> None:
    from django_events.exporting.locking import alone
    from django_events.reading.dsn import Dsn

    topic = log(Draft(value=1))
    with alone(Dsn(dsn), f"file://{tmp_path}/"):
        for command in ("export_events", "stream_events"):
            with pytest.raises(CommandError, match=f"Another export_events or stream_events writes to {tmp_path}"):
                run(topic, "--to", tmp_path, command=command)
    assert run(topic, "--to", tmp_path).startswith("Exported 1 events")


def test_a_lock_that_was_lost_notes_nothing(
    spark: Any, log: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django_events.spark.exporting.engine import SparkEngine

    def write_without_lock(*arguments: Any) -> int:
        """Write a part, while the server ends the connection of the lock."""
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name = 'django_events spark'"
            )
        return 1

    topic = log(Draft(value=1))
    with monkeypatch.context() as patched:
        patched.setattr(SparkEngine, "write", write_without_lock)
        with pytest.raises(CommandError, match=r"and with it the lock on .* Run it again") as raised:
            run(topic, "--to", tmp_path)
    assert raised.value.returncode == 1
    assert Parts(OfDisk(), str(tmp_path)).done == {}
    run(topic, "--to", tmp_path)
    assert exported(spark, tmp_path) == stored(topic)


def test_only_what_was_begun_is_finished_when_asked(spark: Any, log: Callable[..., Any], tmp_path: Path) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))
    assert run(topic, "--to", tmp_path, "--resume").startswith("Nothing to export: no part of that is unfinished.")
    plan(tmp_path, part_of(topic, 3, 6))
    left = tmp_path / "_django_events/attempts/000000000000-of-a-run-that-was-killed/day=2020-01-01"
    left.mkdir(parents=True)
    (left / "part-from-a-run-that-was-killed.parquet").write_bytes(b"nonsense")

    run(topic, "--to", tmp_path, "--resume")

    assert [row["offset"] for row in exported(spark, tmp_path)] == [3, 4, 5]
    assert not left.exists()


@pytest.mark.requirement("X1")
@pytest.mark.timeout(900)
@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "kills", "parts", "again"),
    [
        ("export_events", 6, ("--part", 1_000), "topic=*/ids=*/_SUCCESS"),
        ("stream_events", 4, ("--once", "--most", 1_000), "batch=*/_SUCCESS"),
    ],
)
def test_killed_anywhere_each_event_is_written_once(
    spark: Any,
    log: Callable[..., Any],
    tmp_path: Path,
    scratch: dict[str, str],
    command: str,
    kills: int,
    parts: Any,
    again: str,
) -> None:
    topic = log(*(Draft(value=n, type=f"t{n % 3}") for n in range(30_000)))
    arguments = [topic.name, "--to", tmp_path / "out", "--by", "day,type", *parts]
    words = [sys.executable, "testproject/manage.py", command, *map(str, arguments), "--master", "local[1]"]
    known = {"DATABASE_URL": url(connection.get_connection_params()), "PYTHONPATH": "."}
    environment = {**os.environ, **known, **scratch}
    rng, killed = random.Random(7), 0

    def whole() -> list[str]:
        """The parts that are complete, as a careful reader takes them."""
        return [str(marker.parent) for marker in (tmp_path / "out").glob(again)]

    for _ in range(kills):
        process = subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL, start_new_session=True)
        # After one to three more parts, and then somewhere in the midst of the next.
        enough = len(whole()) + rng.choice([1, 2, 3])
        wait_for(lambda enough=enough: len(whole()) >= enough, process)
        for _ in range(rng.randrange(500)):
            whole()
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            killed += 1
        process.wait()
        if found := whole():
            seen = spark.read.option("basePath", str(tmp_path / "out")).parquet(*found).select("offset").collect()
            assert len(seen) == len(set(seen))
    assert killed >= kills // 2
    run(*arguments, command=command)
    assert exported(spark, tmp_path / "out") == stored(topic)


def left_over(folder: Path) -> list[Path]:
    """What attempts that don't count have left."""
    return [path for name in ("attempts", "removed") for path in (folder / "_django_events" / name).glob("*")]


def wait_for(condition: Callable[[], bool], process: Any) -> None:
    deadline = time.monotonic() + 200
    while not condition() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def url(parameters: dict[str, Any]) -> str:
    user, password = quote(parameters.get("user") or ""), quote(parameters.get("password") or "")
    where = f"{parameters.get('host', '')}:{parameters.get('port', '')}"
    return f"postgresql://{user}:{password}@{where}/{parameters['dbname']}"


def part_of(topic: Any, start: int, end: int) -> Part:
    return Part(topic=str(topic), incarnation=incarnation(topic), start=start, end=end)


def plan(path: Path, *parts: Part, by: tuple[str, ...] = ("day",)) -> None:
    """As a run does that is killed right afterwards."""
    Parts(OfDisk(), str(path)).plan(parts, "parquet", by)


def incarnation(topic: Any) -> str:
    from django_events.models import Topic

    return str(Topic.objects.get(name=str(topic)).incarnation)


def test_files_get_the_size_that_is_wanted(spark: Any, log: Callable[..., Any], tmp_path: Path) -> None:
    topic = log(*(Draft(value=n) for n in range(30_000)))

    run(topic, "--to", tmp_path)

    assert len(list(tmp_path.rglob("*.parquet"))) == 1


@pytest.mark.slow
def test_tasks_write_the_files_themselves(spark: Any, log: Callable[..., Any], tmp_path: Path) -> None:
    topic = log(*(Draft(value=n, type=f"t{n % 3}") for n in range(2_000)))

    run(topic, "--to", tmp_path / "spark", "--target-size", "4KB")
    run(topic, "--to", tmp_path / "json", "--format", "json", "--target-size", "4KB")

    files = sorted((tmp_path / "spark").rglob("*.parquet"))
    assert len(files) > 2
    for file in files:
        metadata = pq.read_metadata(file)
        assert metadata.created_by.startswith("parquet-cpp-arrow")  # the JVM's is called parquet-mr
        assert metadata.row_group(0).sorting_columns
    assert exported(spark, tmp_path / "spark") == stored(topic)
    lines = [line for path in (tmp_path / "json").rglob("part-*.json") for line in path.read_text().splitlines()]
    assert sorted(json.loads(line)["offset"] for line in lines) == list(range(1, 2_001))
    assert left_over(tmp_path / "spark") == left_over(tmp_path / "json") == []


@pytest.mark.slow
def test_events_without_a_type_are_followed_into_folders_of_types(
    spark: Any, log: Callable[..., Any], tmp_path: Path
) -> None:
    topic = log(Draft(value=1, type="a"))
    arguments = (topic, "--to", tmp_path, "--once", "--by", "type", "--format", "orc")

    assert run(*arguments, command="stream_events") == "Events written: 1.\n"
    publish(topic, 2, 3)  # a batch of these alone
    assert run(*arguments, command="stream_events") == "Events written: 2.\n"
    assert exported(spark, tmp_path, "orc") == stored(topic)


@pytest.mark.slow
@pytest.mark.requirement("X1")
def test_a_stream_writes_each_event_once(spark: Any, log: Callable[..., Any], tmp_path: Path) -> None:
    topic = log(*(Draft(value=value, type="a/b") for value in HOSTILE), partitions=2)
    arguments = (topic, "--to", tmp_path, "--once", "--most", 5, "--by", "day,type")

    assert run(*arguments, command="stream_events") == f"Events written: {len(HOSTILE)}.\n"
    publish(topic, 1, 2)
    assert run(*arguments, command="stream_events") == "Events written: 2.\n"
    assert exported(spark, tmp_path) == stored(topic)
    # A driver that died before it noted its last batch writes it again, into the same folder.
    last = max((tmp_path / "_django_events/checkpoint/commits").glob("[0-9]"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    run(*arguments, command="stream_events")
    assert exported(spark, tmp_path) == stored(topic)


@pytest.mark.requirement("X1")
@pytest.mark.parametrize("format", [pytest.param("parquet", marks=pytest.mark.slow), "json"])
def test_tasks_write_the_files_of_a_stream_and_go_on_behind_those_of_spark(
    spark: Any, log: Callable[..., Any], make_topic: Any, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder, a journal and a checkpoint for both ways; of a batch that comes again nothing is written."""
    things = log(*(Draft(value=n, type=f"t{n % 3}") for n in range(2_000)))
    others = log(*(Draft(value=n) for n in range(10)), topic=make_topic(name="others"))
    words = (things, others, "--to", tmp_path, "--once", "--format", format)

    def follow(*more: Any) -> str:
        return run(*words, *more, command="stream_events")

    with monkeypatch.context() as patched:
        patched.setattr(tasks, "disk_of", lambda *arguments: None)
        assert follow() == "Events written: 2,010.\n"
    before = {path.name for path in tmp_path.glob("batch=*/topic=*/*/part-*")}
    publish(things, *range(1_500))
    publish(others, 1)
    err = StringIO()
    call_command("stream_events", *map(str, words), "--most", "1000", verbosity=2, stdout=StringIO(), stderr=err)

    batches = re.findall(r"Batch \d+: ([\d,]+) events", err.getvalue())
    assert batches == ["1,000", "501"]
    files = [path for path in tmp_path.glob("batch=*/topic=*/*/part-*") if path.name not in before]
    assert {path.parent.parent.name for path in files} == {"topic=things", "topic=others"}
    if format == "parquet":
        assert all(pq.read_metadata(file).created_by.startswith("parquet-cpp-arrow") for file in files)
    ids = [(row.topic, row.offset) for row in spark.read.format(format).load(str(tmp_path)).collect()]
    assert sorted(ids) == [*(("others", n) for n in range(1, 12)), *(("things", n) for n in range(1, 3_501))]
    # A driver that died before Spark noted the last batch: it is planned again.
    last = max((tmp_path / "_django_events/checkpoint/commits").glob("[0-9]"), key=lambda path: int(path.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    assert follow() == "Events written: 0.\n"
    assert left_over(tmp_path) == []


def test_a_follower_limits_the_bytes_of_its_batches(spark: Any, log: Callable[..., Any], tmp_path: Path) -> None:
    topic = log(*(Draft(value="x" * 1_000) for _ in range(60)))
    words = (topic, "--to", tmp_path, "--once", "--by", "none")

    assert run(*words, "--most-bytes", "24KB", command="stream_events") == "Events written: 60.\n"

    written = [pq.read_table(folder).num_rows for folder in sorted(tmp_path.glob("batch=*"))]  # type: ignore[no-untyped-call]
    assert sum(written) == 60
    assert 3 <= len(written) <= 4, written
    with pytest.raises(CommandError, match="'24' is no size, expected one like 128MB"):
        run(*words, "--most-bytes", "24", command="stream_events")


@pytest.mark.parametrize("once", [True, False])
def test_a_full_disk_ends_a_stream_which_says_so(
    spark: Any, log: Callable[..., Any], tmp_path: Path, once: bool
) -> None:
    topic = log(*(Draft(value=os.urandom(30_000).hex()) for _ in range(60)))
    small = tmp_path / "small"

    def follow(*more: str) -> None:
        run(topic, "--to", small, "--checkpoint", tmp_path / "checkpoint", *more, command="stream_events")

    with small_disk(small):
        with pytest.raises(CommandError, match="The disk is full") as raised:
            follow(*["--once"] * once)
        assert raised.value.returncode == 1
        enlarge(small)
        follow("--once")
        assert exported(spark, small) == stored(topic)


def test_a_stream_feeds_other_formats(spark: Any, log: Callable[..., Any], tmp_path: Path, dsn: str) -> None:
    topic = log(*(Draft(value=n) for n in range(7)))

    run(
        *(
            topic,
            "--to-format",
            "csv",
            "--option",
            f"path={tmp_path / 'out'}",
            "--checkpoint",
            tmp_path / "c",
            "--once",
        ),
        command="stream_events",
    )

    assert spark.read.csv(str(tmp_path / "out")).count() == 7


def test_what_was_removed_between_two_runs_is_said(spark: Any, log: Callable[..., Any], tmp_path: Path) -> None:
    topic = log(*(Draft(value=n) for n in range(50)), segment_size=100)
    run(topic, "--to", tmp_path)
    publish(topic, *range(200))
    drop_first_segment(topic)

    with pytest.raises(CommandError, match="Events 51 to 100 of topic 'things' have expired") as raised:
        run(topic, "--to", tmp_path)
    assert "its log begins at 101. Export what is left with --allow-loss." in str(raised.value)
    assert run(topic, "--to", tmp_path, "--since", 240).startswith("Exported 11 events")
    with pytest.raises(CommandError, match="Events 51 to 100 of topic 'things' have expired"):
        run(topic, "--to", tmp_path)
    assert run(topic, "--to", tmp_path, "--allow-loss").startswith("Exported 139 events")
    assert run(topic, "--to", tmp_path).startswith("Nothing to export")
    assert [row["offset"] for row in exported(spark, tmp_path)] == [*range(1, 51), *range(101, 251)]


@pytest.mark.parametrize("how", [(), ("--resume",), ("--allow-loss",), ("--since", 1)])
def test_a_database_that_is_older_than_the_export_is_said(
    spark: Any, log: Callable[..., Any], tmp_path: Path, how: tuple[Any, ...]
) -> None:
    topic = log(Draft(value=1), Draft(value=2))
    plan(tmp_path, part_of(topic, 1, 5))

    with pytest.raises(CommandError, match=r"has topic 'things' up to 4, and the next event of its log will be 3\."):
        run(topic, "--to", tmp_path, *how)


@pytest.mark.parametrize("how", ["checkpoint lost", "--allow-loss"])
def test_a_database_that_is_older_than_the_files_of_a_stream_is_said(
    spark: Any, log: Callable[..., Any], tmp_path: Path, how: str
) -> None:
    """The events that come have ids that the files have: left out as known, they would be lost in silence."""
    topic = log(*(Draft(value=n) for n in range(9)))
    arguments = [topic, "--to", tmp_path, "--once"]
    run(*arguments, command="stream_events")
    cut_back(topic, 3)
    if how == "--allow-loss":
        arguments.append(how)
    else:
        shutil.rmtree(tmp_path / "_django_events/checkpoint")

    with pytest.raises(CommandError, match=r"has topic 'things' up to 9, and the next event of its log will be 4\."):
        run(*arguments, command="stream_events")


def test_a_stream_without_its_checkpoint_does_not_mix_topics_of_one_name(
    spark: Any, log: Callable[..., Any], tmp_path: Path, make_topic: Any
) -> None:
    topic = log(*(Draft(value=n) for n in range(5)))
    arguments = (topic, "--to", tmp_path, "--once")
    run(*arguments, command="stream_events")
    make_anew(topic, make_topic)
    publish(topic, *range(7))
    shutil.rmtree(tmp_path / "_django_events/checkpoint")

    with pytest.raises(CommandError, match=r"Topic 'things' was made anew since .* has events of it"):
        run(*arguments, command="stream_events")

    assert run(*arguments, "--allow-loss", command="stream_events") == "Events written: 7.\n"


def test_a_stream_does_not_begin_with_the_checkpoint_of_another(
    spark: Any, log: Callable[..., Any], tmp_path: Path
) -> None:
    topic = log(*(Draft(value=n) for n in range(5)))
    rest = ("--checkpoint", tmp_path / "checkpoint", "--once")
    run(topic, "--to", tmp_path / "one", *rest, command="stream_events")
    publish(topic, 5, 6)

    with pytest.raises(CommandError, match=r"/other has no files yet, and the checkpoint .* is that of a query"):
        run(topic, "--to", tmp_path / "other", *rest, command="stream_events")
    done = run(topic, "--to", tmp_path / "other", *rest, "--allow-loss", command="stream_events")

    assert done == "Events written: 2.\n"
    assert [row["offset"] for row in exported(spark, tmp_path / "other")] == [6, 7]


@pytest.mark.parametrize("cut", ["metadata", "offsets/1", "commits/1"])
def test_a_checkpoint_that_a_power_failure_cut_is_said(
    spark: Any, log: Callable[..., Any], tmp_path: Path, cut: str
) -> None:
    """Spark doesn't wait for the disk: its newest files may be empty."""
    topic = log(*(Draft(value=n) for n in range(6)))
    arguments = (topic, "--to", tmp_path, "--once", "--most", 3)
    run(*arguments, command="stream_events")
    checkpoint = tmp_path / "_django_events/checkpoint"
    (checkpoint / cut).write_text("")
    for sums in checkpoint.rglob(".*.crc"):
        sums.unlink()

    with pytest.raises(CommandError, match=rf"The checkpoint is damaged, as after a power failure: .*{cut}\. With"):
        run(*arguments, command="stream_events")
    shutil.rmtree(checkpoint)
    publish(topic, 6)

    assert run(*arguments, command="stream_events") == "Events written: 1.\n"
    assert exported(spark, tmp_path) == stored(topic)


@pytest.mark.parametrize("cut", ["metadata", "offsets/2", "commits/2"])
def test_a_damaged_checkpoint_of_another_sink_is_mended_without_sending_all_again(
    log: Callable[..., Any], tmp_path: Path, cut: str
) -> None:
    topic = log(*(Draft(value=n) for n in range(9)))
    arguments = (topic, "--to-format", "noop", "--checkpoint", tmp_path, "--once", "--most", 3)
    assert run(*arguments, command="stream_events") == "Events written: 9.\n"
    (tmp_path / cut).write_text("")
    for sums in tmp_path.rglob(".*.crc"):
        sums.unlink()
    publish(topic, 9)

    with pytest.raises(
        CommandError, match=rf"{cut}\. With --to, remove .* With --to-format keep it: .*\. Rather"
    ) as said:
        run(*arguments, command="stream_events")
    if cut == "metadata":
        assert '{"id": "…"}' in str(said.value)
        (tmp_path / cut).write_text(json.dumps({"id": str(uuid4())}))
    else:
        (tmp_path / cut).unlink()
        (tmp_path / "commits/2").unlink(missing_ok=True)

    again = 0 if cut == "metadata" else 3
    assert run(*arguments, command="stream_events") == f"Events written: {1 + again}.\n"


def test_files_that_are_older_than_their_checkpoint_are_said(
    spark: Any, log: Callable[..., Any], tmp_path: Path
) -> None:
    """Put back from a backup, and nothing new comes that would show it."""
    topic = log(*(Draft(value=n) for n in range(5)))
    out, checkpoint = tmp_path / "out", tmp_path / "checkpoint"
    arguments = (topic, "--to", out, "--checkpoint", checkpoint, "--once")
    run(*arguments, command="stream_events")
    shutil.copytree(out, tmp_path / "backup")
    publish(topic, 5, 6)
    run(*arguments, command="stream_events")
    shutil.rmtree(out)
    shutil.copytree(tmp_path / "backup", out)

    with pytest.raises(CommandError, match=r"end before 6, and the log of topic 'things' before 8: .* checkpoint"):
        run(*arguments, command="stream_events")
    shutil.rmtree(checkpoint)

    assert run(*arguments, command="stream_events") == "Events written: 2.\n"
    assert exported(spark, out) == stored(topic)


def test_a_topic_made_anew_is_not_resumed(spark: Any, log: Callable[..., Any], tmp_path: Path, make_topic: Any) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))
    plan(tmp_path, part_of(topic, 1, 6))
    make_anew(topic, make_topic)
    publish(topic, *range(10))

    with pytest.raises(CommandError, match="was made anew since it was exported"):
        run(topic, "--to", tmp_path, "--resume")
    with pytest.raises(CommandError, match="There is no topic 'thing'"):
        run("thing", "--to", tmp_path, "--resume")


def test_a_stream_and_an_export_keep_apart(spark: Any, log: Callable[..., Any], tmp_path: Path) -> None:
    topic = log(Draft(value=1))
    run(topic, "--to", tmp_path / "export")
    run(topic, "--to", tmp_path / "stream", "--once", command="stream_events")

    with pytest.raises(CommandError, match="holds what stream_events writes"):
        run(topic, "--to", tmp_path / "stream")
    with pytest.raises(CommandError, match="holds what export_events writes"):
        run(topic, "--to", tmp_path / "export", "--once", command="stream_events")


def test_a_stream_stays_as_it_was_begun(spark: Any, log: Callable[..., Any], tmp_path: Path) -> None:
    topic = log(Draft(value=1))
    run(topic, "--to", tmp_path, "--once", command="stream_events")
    publish(topic, 2)

    for other in (("--by", "type"), ("--by", "none"), ("--format", "json")):
        with pytest.raises(CommandError, match=r"tells of files in format parquet, by day\. This run writes"):
            run(topic, "--to", tmp_path, "--once", *other, command="stream_events")
    assert run(topic, "--to", tmp_path, "--once", command="stream_events") == "Events written: 1.\n"
    assert exported(spark, tmp_path) == stored(topic)


def test_a_new_query_does_not_write_over_another(spark: Any, log: Callable[..., Any], tmp_path: Path) -> None:
    topic = log(*(Draft(value=n) for n in range(5)))
    run(topic, "--to", tmp_path, "--once", command="stream_events")
    shutil.rmtree(tmp_path / "_django_events")

    with pytest.raises(CommandError, match="holds 'batch=000000000000', and no journal"):
        run(topic, "--to", tmp_path, "--once", command="stream_events")
    assert exported(spark, tmp_path) == stored(topic)


def test_events_take_the_shape_of_kafka(spark: Any, log: Callable[..., Any], read: Callable[..., Any]) -> None:
    from django_events.spark.exporting.stream_export import for_kafka

    topic = log(Draft(value={"a": 1}, key="k", type="t", metadata={"m": 1}), Draft(body=b"\0\xff"))
    rows = for_kafka(read(topic).orderBy("offset")).collect()

    assert [(row.topic, row.key, bytes(row.value)) for row in rows] == [
        ("things", "k", b'{"a": 1}'),
        ("things", None, b"\0\xff"),
    ]
    assert {header.key: bytes(header.value) for header in rows[0].headers}.items() >= {
        "offset": b"1",
        "type": b"t",
        "metadata": b'{"m": 1}',
    }.items()


@pytest.mark.timeout(300)
def test_a_stream_stops_on_a_signal_and_goes_on(spark: Any, log: Callable[..., Any], tmp_path: Path) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))
    words = [sys.executable, "testproject/manage.py", "stream_events", topic.name, "--to", str(tmp_path / "out")]
    environment = {**os.environ, "DATABASE_URL": url(connection.get_connection_params()), "PYTHONPATH": "."}
    for end in (signal.SIGTERM, signal.SIGINT):
        process = subprocess.Popen([*words, "--every", "1"], env=environment, stdout=subprocess.PIPE, text=True)
        found = len(list(tmp_path.glob("out/batch=*/_SUCCESS")))
        publish(topic, *range(5))
        wait_for(lambda found=found: len(list(tmp_path.glob("out/batch=*/_SUCCESS"))) > found, process)
        process.send_signal(end)
        said, _ = process.communicate(timeout=120)
        assert process.returncode == 0
        assert said.startswith("Events written: ")
    run(topic, "--to", tmp_path / "out", "--once", command="stream_events")
    assert exported(spark, tmp_path / "out") == stored(topic)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--to-format", "csv", "--once"], "--to-format needs --checkpoint PATH"),
        (["--to", "x", "--option", "a=b"], "--option is for --to-format."),
        (["--to-format", "csv", "--checkpoint", "x", "--option", "a"], "--option is 'a', expected K=V."),
        (["--to", ""], "--to is '', expected a folder."),
        (["--to", "x", "--checkpoint", ""], "--checkpoint is '', expected a folder."),
        (["--to", "x", "--from", "start"], "--from is 'start', expected earliest or latest."),
        (["--to-format", "nothing", "--checkpoint", "x", "--once"], "Spark doesn't know that format."),
    ],
)
def test_what_cannot_be_followed_is_said(
    log: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    topic = log(Draft(value=1))

    with pytest.raises(CommandError) as raised:
        run(topic, *arguments, command="stream_events")

    assert said in str(raised.value)


def test_an_unreachable_database_is_told_apart(tmp_path: Path, log: Callable[..., Any], monkeypatch: Any) -> None:
    from django_events.management.commands import export_events

    log(Draft(value=1))
    monkeypatch.setattr(export_events, "dsn_of", lambda using: "host=127.0.0.1 port=1 dbname=x password=hush")

    with pytest.raises(CommandError, match="can't be reached") as raised:
        run("things", "--to", tmp_path)
    assert raised.value.returncode == 75
    assert "hush" not in str(raised.value)
