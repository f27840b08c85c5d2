"""`export_events --expire`: older versions of tables go, and files that none names; what is left is whole."""

import os
import re
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from io import BytesIO, StringIO
from itertools import chain, pairwise, repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deltalake
import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.table import TableOptimizer
from django.core.management import CommandError, call_command
from pyiceberg.catalog.sql import SqlCatalog

from django_events import Draft
from django_events.exporting.tables import delta, delta_expiring, expiring, folders, iceberg_expiring
from django_events.exporting.tables import export as exporting
from django_events.exporting.tables import iceberg as iceberg_tables
from django_events.exporting.tables.delta import DeltaEvents
from django_events.exporting.tables.expiring import NEWEST, SLOTS, THINNED_AT_ONCE, expired
from django_events.exporting.tables.iceberg import IcebergEvents
from django_events.exporting.tables.iceberg_catalogs import NAMESPACE, in_folder
from django_events.exporting.tables.iceberg_states import IcebergStates
from django_events.exporting.tables.table import Conflict, Mark
from django_events.operations import erase
from tests.integration.exporting.test_table_exports import table_of
from tests.spark.test_batch import publish, stored
from tests.spark.test_export import incarnation
from tests.support.tables import files_in, files_of, read_back, read_files, run

pytestmark = pytest.mark.usefixtures("transactional_db")

Log = Callable[..., Any]
BOTH = pytest.mark.parametrize("format", ["delta", "iceberg"])
DAY = 86_400.0
FOLLOW = ("--follow", "--every", 0.01)


def drafts(count: int) -> list[Draft]:
    return [Draft(value={"of": f"Sesame{n % 5}"}, key=f"ada{n % 5}@example.org") for n in range(count)]


def table_folder(folder: Path, format: str, topic: str = "things") -> Path:
    return folder / topic if format == "delta" else folder / NAMESPACE / topic


def on_disk(folder: Path) -> set[str]:
    return {str(path) for path in folder.rglob("*") if path.is_file()}


def rows_on_disk(folder: Path) -> list[str]:
    """Files of rows, whether the table names them or not."""
    return sorted(path for path in on_disk(folder) if path.endswith(".parquet") and "_delta_log" not in path)


@contextmanager
def iceberg(folder: Path, topic: str = "things") -> Iterator[Any]:
    with closing(in_folder(str(folder)).catalog) as catalog:
        yield catalog.load_table((NAMESPACE, topic))


def versions(folder: Path, format: str) -> int:
    """How many versions can be read."""
    if format == "delta":
        return len(list((folder / "things/_delta_log").glob("*.json")))
    with iceberg(folder) as table:
        return len(table.snapshots())


def make_older(folder: Path, *, days: float, only: str = "*") -> None:
    for path in folder.rglob(only):
        if path.is_file() and not path.is_symlink():
            at = path.stat().st_mtime - days * DAY
            os.utime(path, (at, at))


@BOTH
@pytest.mark.requirement("X15")
@pytest.mark.parametrize("words", [[], pytest.param(["--upsert"], marks=pytest.mark.slow)])
def test_older_versions_go_and_files_that_none_names(log: Log, tmp_path: Path, format: str, words: list[str]) -> None:
    topic = log(*drafts(60))
    run(topic, "--to", tmp_path, "--part", 10, *words, format=format)
    rows = read_back(tmp_path, format)

    said = run(topic, "--to", tmp_path, "--compact", "--expire", 0, *words, format=format)

    assert (gone := re.search(r"Removed: (\d+) \w+s, (\d+) files, [\d.]+ KB\.", said)), said
    assert int(gone[1]) > 5 and int(gone[2]) > 5
    assert versions(tmp_path, format) <= 2
    assert rows_on_disk(tmp_path) == files_of(tmp_path, format)
    assert read_back(tmp_path, format) == rows
    before = on_disk(tmp_path)
    again = run(topic, "--to", tmp_path, "--expire", 0, *words, format=format)
    assert again.startswith("Nothing to export") and ": 0 " in again and " 0 files, 0 B." in again
    assert on_disk(tmp_path) == before
    publish(topic, *range(5))
    assert run(topic, "--to", tmp_path, *words, format=format).startswith("Exported 5 events")
    if not words:
        assert read_back(tmp_path, format) == stored(topic)


@BOTH
@pytest.mark.requirement("X15")
@pytest.mark.parametrize("words", [[], pytest.param(["--upsert"], marks=pytest.mark.slow)])
def test_what_was_erased_is_in_no_file_any_more(log: Log, tmp_path: Path, format: str, words: list[str]) -> None:
    topic = log(*drafts(40))
    run(topic, "--to", tmp_path, "--part", 10, *words, format=format)
    erase(topic, key="ada0@example.org", reason="asked for", forget_key=True)
    run(topic, "--to", tmp_path, "--erase", *words, format=format)
    assert any(holds(path, "Sesame0") for path in rows_on_disk(tmp_path))

    run(topic, "--to", tmp_path, "--expire", 0, *words, format=format)

    assert rows_on_disk(tmp_path) == files_of(tmp_path, format)
    for text in ("Sesame0", "ada0@example"):
        assert not [path for path in on_disk(tmp_path) if holds(path, text)]
        assert any(holds(path, text.replace("0", "1")) for path in rows_on_disk(tmp_path))


def holds(path: str, text: str) -> bool:
    """Whether a text is in what a file says, or in its statistics: both are compressed."""
    raw = Path(path).read_bytes()
    said = raw.decode("latin1")
    if path.endswith(".avro"):
        said += repr(list(fastavro.reader(BytesIO(raw))))
    if ".parquet" in path:
        file = pq.ParquetFile(path)
        groups = [file.metadata.row_group(index).to_dict() for index in range(file.metadata.num_row_groups)]
        said += repr(file.read().to_pylist()) + repr(file.metadata.metadata) + repr(groups)
    return text in said


@BOTH
def test_what_is_erased_and_removed_at_once_is_not_said_to_be_left(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(*drafts(40))
    words = (topic, "--to", tmp_path, "--erase", "--expire")
    run(topic, "--to", tmp_path, "--part", 10, format=format)
    erase(topic, key="ada0@example.org", reason="asked for")
    assert "have the rows as they were" in run(*words, 7, format=format)
    erase(topic, key="ada1@example.org", reason="asked for")
    said = run(*words, 0, format=format)
    assert "Rows that were blanked" in said and "have the rows as they were" not in said
    assert not [path for path in on_disk(tmp_path) if holds(path, "Sesame1")]
    if format == "iceberg":
        with iceberg(tmp_path) as table:
            table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "audit").commit()
        erase(topic, key="ada2@example.org", reason="asked for")
        assert "have the rows as they were" in run(*words, 0, format=format)
        assert any(holds(path, "Sesame2") for path in rows_on_disk(tmp_path))


@BOTH
def test_what_is_younger_stays(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(*drafts(40))
    run(topic, "--to", tmp_path, "--part", 10, format=format)
    there = on_disk(tmp_path)

    said = run(topic, "--to", tmp_path, "--expire", 0.5, format=format)

    assert re.search(r"Removed: 0 \w+s, 0 files, 0 B\.", said)
    assert on_disk(tmp_path) == there
    run(topic, "--to", tmp_path, "--compact", format=format)
    make_older(table_folder(tmp_path, format), days=1, only="*.parquet" if format == "delta" else "*")
    run(topic, "--to", tmp_path, "--expire", 0.5, format=format)
    assert there <= on_disk(tmp_path)  # versions that are younger name them


def test_of_delta_the_version_that_was_the_newest_then_stays(log: Log, tmp_path: Path) -> None:
    topic, table = log(*drafts(250)), tmp_path / "things"
    run(topic, "--to", tmp_path, "--part", 10, format="delta")
    run(topic, "--to", tmp_path, "--compact", format="delta")
    newest = DeltaTable(str(table)).version()
    for version in range(16):
        make_older(table, days=8, only=f"{version:020d}.json")
    make_older(table, days=8, only="part-*.parquet")

    said = run(topic, "--to", tmp_path, "--expire", 7, format="delta")

    assert "Removed: 9 versions, 9 files" in said  # behind a checkpoint; compaction was later
    left = sorted(int(path.stem) for path in (table / "_delta_log").glob("*.json"))
    assert left == list(range(9, newest + 2))
    for version in (15, 16, newest):
        assert len(DeltaTable(str(table), version=version).to_pyarrow_table()) == min(version * 10, 250)


def test_of_iceberg_snapshots_of_branches_and_tags_stay(log: Log, tmp_path: Path) -> None:
    topic = log(*drafts(50))
    run(topic, "--to", tmp_path, "--part", 10, format="iceberg")
    with iceberg(tmp_path) as table:
        first, second, *_ = [one.snapshot_id for one in table.snapshots()]
        table.manage_snapshots().create_tag(first, "a").create_branch(second, "b").commit()
    run(topic, "--to", tmp_path, "--compact", format="iceberg")

    run(topic, "--to", tmp_path, "--expire", 0, format="iceberg")

    with iceberg(tmp_path) as table:
        assert {first, second} < {one.snapshot_id for one in table.snapshots()}
        assert len(table.snapshots()) == 3
        assert table.scan(snapshot_id=first).to_arrow().num_rows == 10
        assert table.scan(snapshot_id=second).to_arrow().num_rows == 20
        assert table.scan().to_arrow().num_rows == 50


@BOTH
def test_files_of_commits_that_never_came_go(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(*drafts(20))
    run(topic, "--to", tmp_path, format=format)
    rows = rows_on_disk(tmp_path)
    lost = [Path(rows[0]).with_name(f"part-00000-{uuid.uuid4()}.parquet")]
    if format == "iceberg":
        metadata = table_folder(tmp_path, format) / "metadata"
        lost += [metadata / f"{uuid.uuid4()}-m0.avro", metadata / f"00009-{uuid.uuid4()}.metadata.json"]
    for path in lost:
        path.write_bytes(b"half")
    make_older(table_folder(tmp_path, format), days=2)
    (young := lost[0].with_name("part-young.parquet")).touch()

    said = run(topic, "--to", tmp_path, "--expire", 1, format=format)

    # Of Delta the commit that made the table is as old.
    assert (": 1 version, 2 files" if format == "delta" else "0 snapshots, 3 files, 12 B.") in said
    assert not any(path.exists() for path in lost) and young.exists()
    assert read_back(tmp_path, format) == stored(topic)


def test_what_a_killed_writer_of_delta_has_left_goes(log: Log, tmp_path: Path) -> None:
    """A file is written under another name first, on a disk."""
    topic, table = log(*drafts(20)), tmp_path / "things"
    run(topic, "--to", tmp_path, "--part", 5, format="delta")
    row = Path(rows_on_disk(tmp_path)[0])
    version = DeltaTable(str(table)).version()
    left = [row.with_name(f"part-00001-{uuid.uuid4()}-c000.zstd.parquet#1"), table / "part-00002-x.parquet#12"]
    left += [table / f"_delta_log/{version:020d}.json#1", table / f"_delta_log/{version:020d}.checkpoint.parquet#2"]
    stays = [table / "_delta_log/notes.txt", row.with_name("notes#1"), row.with_name("part-3.parquet#x")]
    for path in (*left, *stays):
        shutil.copy(row, path)
    run(topic, "--to", tmp_path, "--expire", 1, format="delta")
    assert all(path.exists() for path in left)
    for path in (*left, *stays):
        make_older(path.parent, days=2, only=path.name)

    said = run(topic, "--to", tmp_path, "--expire", 1, format="delta")

    assert "0 versions, 4 files" in said
    assert not any(path.exists() for path in left) and all(path.exists() for path in stays)
    assert last_operation(table) == "SET TBLPROPERTIES"  # what they are of may not be done yet
    assert read_back(tmp_path, "delta") == stored(topic)


def last_operation(table: Path) -> str:
    return str(DeltaTable(str(table)).history(1)[0]["operation"])


def test_of_other_programs_no_file_goes(log: Log, tmp_path: Path) -> None:
    topic, table = log(*drafts(20)), tmp_path / "things"
    run(topic, "--to", tmp_path, "--part", 5, format="delta")
    rows = Path(rows_on_disk(tmp_path)[0]).parent
    names = (
        "backup.parquet",
        "exports/2024/part-1.parquet",
        "year=2024/part-1.parquet",
        "a/day=2024-01-01/part-1.parquet",
    )
    others = [table / name for name in names] + [rows / "report.parquet", rows / "mine/part-1.parquet"]
    ours = [table / "part-1.parquet", table / "day=2001-01-01/part-1.parquet"]
    for path in (*others, *ours):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"mine")

    said = run(topic, "--to", tmp_path, "--expire", 0, format="delta")

    assert ": 4 versions, 6 files" in said  # four of them commits

    assert all(path.exists() for path in others) and not any(path.exists() for path in ours)


def test_of_delta_a_clock_that_was_wrong_once_makes_no_version_old(log: Log, tmp_path: Path) -> None:
    topic, table = log(*drafts(150)), tmp_path / "things"
    run(topic, "--to", tmp_path, "--part", 10, format="delta")
    run(topic, "--to", tmp_path, "--compact", format="delta")
    publish(topic, 1)
    run(topic, "--to", tmp_path, format="delta")
    newest = DeltaTable(str(table)).version()
    os.utime(table / f"_delta_log/{newest:020d}.json", (3600, 3600))
    make_older(table, days=8, only="part-*.parquet")
    there = on_disk(table)

    said = run(topic, "--to", tmp_path, "--expire", 7, format="delta")

    assert "0 versions, 0 files" in said
    assert there <= on_disk(table)
    assert DeltaTable(str(table), version=3).to_pyarrow_table().num_rows == 30


@BOTH
def test_nothing_outside_of_the_table_goes(log: Log, tmp_path: Path, format: str) -> None:
    for name in ("things", "others"):
        log(*drafts(20), name=name)
    run("things", "others", "--to", tmp_path / "lake", format=format)
    table, other = (table_folder(tmp_path / "lake", format, name) for name in ("things", "others"))
    rows = next(table.rglob("*.parquet")).parent
    (outside := tmp_path / "outside").mkdir()
    for path in (outside / "file.parquet", other / "data/lost.parquet", table / "notes.txt", table / "_x/a.parquet"):
        path.parent.mkdir(exist_ok=True, parents=True)
        path.touch()
    (rows / "part-linked.parquet").symlink_to(outside / "file.parquet")
    (rows / "folder").symlink_to(outside)
    shutil.copytree(other, rows / "nested")
    before = on_disk(tmp_path)

    run("things", "--to", tmp_path / "lake", "--expire", 0, format=format)

    assert before <= on_disk(tmp_path)
    assert (rows / "part-linked.parquet").is_symlink() and (rows / "folder").is_symlink()


def test_of_a_folder_that_two_iceberg_tables_have_no_file_goes(log: Log, tmp_path: Path) -> None:
    """As after the first one was renamed: a catalogue gives the next table of that name the same folder."""
    topic = log(*drafts(20))
    run(topic, "--to", tmp_path, "--part", 10, format="iceberg")
    with closing(in_folder(str(tmp_path)).catalog) as catalog:
        catalog.rename_table((NAMESPACE, "things"), (NAMESPACE, "former"))
    run(topic, "--to", tmp_path, "--part", 5, format="iceberg")
    before = on_disk(tmp_path)

    said = run(topic, "--to", tmp_path, "--expire", 0, format="iceberg")

    assert re.search(r"4 snapshots, 0 files, .*\n.* has files of another table, [-0-9a-f]+, and none was removed", said)
    assert before <= on_disk(tmp_path)
    with closing(in_folder(str(tmp_path)).catalog) as catalog:
        assert catalog.load_table((NAMESPACE, "former")).scan().to_arrow().num_rows == 20
    assert read_back(tmp_path, "iceberg") == stored(topic)


@BOTH
@pytest.mark.requirement("X15")
@pytest.mark.parametrize("work", ["append", "compact"])
def test_what_was_begun_before_conflicts_with_it(
    log: Log, tmp_path: Path, format: str, work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are there, and another run removes them before they are committed."""
    topic = log(*drafts(20))
    run(topic, "--to", tmp_path, "--part", 10, format=format)
    held: Any = table_of(tmp_path, format, topic)
    kept = set(rows_on_disk(tmp_path))

    def expire() -> None:
        (path := Path(min(kept)).with_name("part-old.parquet")).touch()
        make_older(table_folder(tmp_path, format), days=1, only="*.parquet")
        run(topic, "--to", tmp_path, "--expire", 0, format=format)
        assert not path.exists()
        assert set(rows_on_disk(tmp_path)) == kept

    mark = held.mark()
    assert mark is not None
    with closing(held):
        if format == "iceberg":
            commit, times = SqlCatalog.commit_table, list[int]()

            def late(self: Any, *arguments: Any) -> Any:
                times.append(1)
                if len(times) == 1:
                    assert set(rows_on_disk(tmp_path)) > kept
                    expire()
                return commit(self, *arguments)

            monkeypatch.setattr(SqlCatalog, "commit_table", late)
        else:
            write, merge = deltalake.write_deltalake, TableOptimizer.compact

            def late_write(table: Any, *arguments: Any, **named: Any) -> None:
                if table is held._table:
                    expire()
                write(table, *arguments, **named)

            def late_merge(self: Any, *arguments: Any, **named: Any) -> Any:
                expire()
                return merge(self, *arguments, **named)

            monkeypatch.setattr(delta, "write_deltalake", late_write)
            monkeypatch.setattr(TableOptimizer, "compact", late_merge)
        with pytest.raises(Conflict):
            if work == "append":
                held.append(rows_of(tmp_path, format), Mark(incarnation(topic), 21))
            else:
                list(held.compact(1 << 20))

    monkeypatch.undo()
    assert read_back(tmp_path, format) == stored(topic)
    run(topic, "--to", tmp_path, "--expire", 0, format=format)
    assert rows_on_disk(tmp_path) == files_of(tmp_path, format)


def rows_of(folder: Path, format: str) -> list[Any]:
    from django_events.exporting.writing import SCHEMA

    table = pq.read_table(files_of(folder, format)[0], partitioning=None).select(SCHEMA.names).cast(SCHEMA)
    return list(table.to_batches())


@BOTH
@pytest.mark.requirement("X15")
@pytest.mark.parametrize("at", ["the first file", "a later one"])
def test_what_was_interrupted_is_finished_later(
    log: Log, tmp_path: Path, format: str, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*drafts(60))
    run(topic, "--to", tmp_path, "--part", 10, format=format)
    run(topic, "--to", tmp_path, "--compact", format=format)
    remove, times = folders.LocalFolder.remove, list[int]()

    def killed(self: Any, paths: list[str]) -> None:
        times.append(1)
        if at == "the first file" or len(times) > 3:
            raise KeyboardInterrupt
        remove(self, paths)

    with monkeypatch.context() as patched:
        patched.setattr(folders, "PORTION", 1)
        patched.setattr(folders.LocalFolder, "remove", killed)
        with pytest.raises(CommandError, match="Interrupted"):
            run(topic, "--to", tmp_path, "--expire", 0, format=format)
    assert read_back(tmp_path, format) == stored(topic)

    run(topic, "--to", tmp_path, "--expire", 0, format=format)

    assert rows_on_disk(tmp_path) == files_of(tmp_path, format)
    assert read_back(tmp_path, format) == stored(topic)
    assert versions(tmp_path, format) <= 3


@pytest.mark.slow
def test_snapshots_of_iceberg_do_not_become_ever_more(log: Log, tmp_path: Path) -> None:
    topic = log(*drafts(90))

    run(topic, "--to", tmp_path, "--part", 1, "--expire", 7, format="iceberg")

    assert NEWEST <= versions(tmp_path, "iceberg") <= NEWEST + THINNED_AT_ONCE + 2
    assert read_back(tmp_path, "iceberg") == stored(topic)


def test_which_versions_stay() -> None:
    now, week = 1_000_000_000.0, timedelta(days=7)
    each_minute = [(number, now - 60.0 * (20_000 - number)) for number in range(20_001)]

    left = sorted({version for version, _ in each_minute} - set(expired(each_minute, now=now, age=week)))

    assert left[-NEWEST:] == list(range(20_001 - NEWEST, 20_001))
    assert len(left) <= NEWEST + SLOTS + 2
    oldest = 20_000 - 7 * 1_440
    assert left[0] == oldest
    assert all(later - former <= 361 for former, later in pairwise(left))
    # What stays is the same when it is looked at each minute, so that nothing is thinned out further and further.
    known: list[tuple[int, float]] = []
    for version, at in each_minute:
        going = set(expired([*known, (version, at)], now=at, age=week))
        known = [one for one in [*known, (version, at)] if one[0] not in going]
    assert [version for version, _ in known[1:]] == left[1:] and known[0][1] <= now - 7 * DAY


def test_the_newest_version_stays_however_old() -> None:
    known = [(1, 10.0), (2, 20.0), (3, 30.0)]

    assert expired(known, now=1e9, age=timedelta(days=1)) == [1, 2]
    assert expired(known, now=30.0, age=timedelta(0)) == [1, 2]
    assert expired(known, now=5.0, age=timedelta(0)) == [1, 2]  # another clock may be ahead
    assert expired(known, now=25.0, age=timedelta(seconds=1)) == [1]
    assert expired([], now=1e9, age=timedelta(0)) == []


@pytest.mark.slow
@BOTH
@pytest.mark.requirement("X15")
def test_a_follower_does_it_too(log: Log, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = log(*drafts(40))
    kind = DeltaEvents if format == "delta" else IcebergEvents
    ages, expire = list[timedelta](), kind.expire
    monkeypatch.setattr(exporting, "TIDY_EVERY", 0.0)

    def noted(self: Any, age: timedelta, stopped: Callable[[], bool]) -> Any:
        ages.append(age)
        done = expire(self, timedelta(0), stopped)
        if len(ages) < 4:
            publish(topic, 1, 2)
        else:
            os.kill(os.getpid(), 15)
        return done

    monkeypatch.setattr(kind, "expire", noted)
    said = run(topic, "--to", tmp_path, "--part", 10, *FOLLOW, "--compact", "--expire", 7, format=format)

    assert ages == [timedelta(days=7)] * 4
    assert re.search(r"Removed: [1-9]\d* \w+s, [1-9]\d* files", said)
    run(topic, "--to", tmp_path, format=format)
    assert read_back(tmp_path, format) == stored(topic)


@BOTH
@pytest.mark.requirement("X15")
def test_a_follower_removes_nothing_by_itself(
    log: Log, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It only thins snapshots of Iceberg out, which commits take longer by."""
    topic = log(*drafts(40))
    kind: Any = DeltaEvents if format == "delta" else IcebergEvents
    run(topic, "--to", tmp_path, "--part", 10, format=format)
    run(topic, "--to", tmp_path, "--compact", format=format)
    make_older(table_folder(tmp_path, format), days=30)
    there, ages, thin = on_disk(tmp_path / "things" if format == "delta" else tmp_path), list[timedelta](), kind.thin
    monkeypatch.setattr(exporting, "TIDY_EVERY", 0.0)
    monkeypatch.setattr(expiring, "NEWEST", 1)
    monkeypatch.setattr(iceberg_tables, "THINNED_AT_ONCE", 1)
    stop_after_tidying(monkeypatch)

    def noted(self: Any, age: timedelta) -> Any:
        ages.append(age)
        return thin(self, age)

    monkeypatch.setattr(kind, "thin", noted)
    publish(topic, *range(30))
    said = run(topic, "--to", tmp_path, "--part", 10, *FOLLOW, format=format)

    assert there <= on_disk(tmp_path)
    assert ages == [timedelta(days=7)] * 3
    assert ("Removed: " in said) is (format == "iceberg")
    assert format == "delta" or re.search(r"Removed: [1-9]\d* snapshots, 0 files, 0 B\.", said)
    if format == "delta":
        assert versions(tmp_path, format) == len([path for path in on_disk(tmp_path) if path.endswith("json")])
        assert DeltaTable(str(tmp_path / "things"), version=0).to_pyarrow_table().num_rows == 0
    assert read_back(tmp_path, format) == stored(topic)


def test_a_follower_may_keep_all(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = log(*drafts(4))
    monkeypatch.setattr(exporting, "TIDY_EVERY", 0.0)
    for work in ("expire", "thin"):
        monkeypatch.setattr(IcebergEvents, work, None)  # it isn't called
    stop_after_tidying(monkeypatch)
    said = run(topic, "--to", tmp_path, *FOLLOW, "--expire", "never", format="iceberg")

    assert "Removed" not in said


def stop_after_tidying(monkeypatch: pytest.MonkeyPatch) -> None:
    tidy = exporting._Run.tidy

    def then_stop(self: Any) -> None:
        tidy(self)
        os.kill(os.getpid(), 15)

    monkeypatch.setattr(exporting._Run, "tidy", then_stop)


@pytest.mark.parametrize("days", ["-1", "", "x", "nan", "inf", "1e3", "7d", "٣", "1000000"])
def test_an_age_that_is_none_is_said(tmp_path: Path, days: str) -> None:
    with pytest.raises(CommandError, match=r"--expire is '.*', expected a number of days like 7 or 0\.5") as raised:
        run("things", "--to", tmp_path, f"--expire={days}", format="delta")
    assert raised.value.returncode == 2


def test_it_is_for_tables(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"--expire is for --format delta or iceberg\.") as raised:
        run("things", "--to", tmp_path, "--expire", 0, format="parquet")
    assert raised.value.returncode == 2


@pytest.mark.slow
@pytest.mark.requirement("X15")
def test_of_a_delta_table_in_an_object_store(log: Log, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = log(*drafts(30))
    run(topic, "--to", bucket, "--part", 10, format="delta")
    run(topic, "--to", bucket, "--compact", format="delta")

    with monkeypatch.context() as patched:  # the clock of the store is ahead, if only as it has whole seconds
        patched.setattr(delta, "time", SimpleNamespace(time=lambda: time.time() - 60))
        run(topic, "--to", bucket, "--expire", 0, format="delta")

    table = DeltaTable(f"{bucket}/{topic}")
    assert sorted(table.to_pyarrow_table()["offset"].to_pylist()) == list(range(1, 31))
    assert len(table.file_uris()) == 1
    assert len([key for key in keys("events/things/") if key.endswith(".parquet") and "_delta_log" not in key]) == 1
    assert len([key for key in keys("events/things/_delta_log/") if key.endswith(".json")]) == 2


def keys(prefix: str) -> list[str]:
    """What a bucket has."""
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import FileSelector, PyFileSystem

    store = PyFileSystem(DeltaStorageHandler("s3://lake"))
    found = store.get_file_info(FileSelector(prefix, recursive=True, allow_not_found=True))
    return [one.path for one in found if one.is_file]


@pytest.mark.slow
@pytest.mark.requirement("X15")
def test_of_an_iceberg_table_in_an_object_store(
    log: Log, bucket: str, catalogue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg import catalog
    from pyiceberg.utils import config

    monkeypatch.setenv("PYICEBERG_CATALOG__TESTED__WAREHOUSE", "s3://lake/warehouse")
    monkeypatch.setenv("PYICEBERG_CATALOG__TESTED__S3__ENDPOINT", os.environ["AWS_ENDPOINT_URL"])
    monkeypatch.setattr(catalog, "_ENV_CONFIG", config.Config())
    topic = log(*drafts(30))
    words = (topic, "--to", "analytics", "--catalog", catalogue)
    run(*words, "--part", 10, format="iceberg")
    run(*words, "--compact", format="iceberg")

    run(*words, "--expire", 0, format="iceberg")
    run(*words, "--expire", 0, format="iceberg")

    with closing(catalog.load_catalog(catalogue)) as known:
        table = known.load_table(("analytics", "things"))
        assert table.scan().to_arrow()["offset"].to_pylist() == list(range(1, 31))
        assert len(table.snapshots()) <= 2
    assert len([key for key in keys("warehouse/") if key.endswith(".parquet")]) == 1


@pytest.mark.slow
@pytest.mark.requirement("X15")
def test_of_a_catalogue_of_ones_own(log: Log, catalogue: str, tmp_path: Path) -> None:
    from pyiceberg.catalog import load_catalog

    topic = log(*drafts(30))
    words = (topic, "--to", "analytics", "--catalog", catalogue)
    run(*words, "--part", 10, format="iceberg")

    run(*words, "--compact", "--expire", 0, format="iceberg")

    with closing(load_catalog(catalogue)) as known:
        files = files_in(known, "analytics")
        assert len(known.load_table(("analytics", "things")).snapshots()) == 1
    assert rows_on_disk(tmp_path) == files
    assert read_files(files) == stored(topic)


def test_there_is_a_bound_whatever_the_age() -> None:
    for days in (0.001, 1, 7, 3650):
        now, age = 1_000_000_000.0, timedelta(days=days)
        known = [(number, now - number * age.total_seconds() / 10_000) for number in range(20_000)]
        assert len(known) - len(expired(known, now=now, age=age)) <= NEWEST + SLOTS + 2
    assert THINNED_AT_ONCE <= NEWEST


@BOTH
def test_without_the_right_to_remove_it_says_so_and_goes_on(
    log: Log, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("things", "others"):
        log(*drafts(20), name=name)
    run("things", "others", "--to", tmp_path, "--part", 5, format=format)
    run("things", "others", "--to", tmp_path, "--compact", format=format)
    unlink = Path.unlink

    def refused(self: Path, missing_ok: bool = False) -> None:
        if "things" in self.parts:
            raise PermissionError(13, "Permission denied", str(self))
        unlink(self, missing_ok)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refused)
        said = run("things", "others", "--to", tmp_path, "--expire", 0, format=format)

    assert re.search(r"The files of \S*( \S+)?things can't be removed, or not all of them: \[Errno 13\] Perm", said)
    assert "others" not in said and re.search(r": [1-9]\d* \w+s, [1-9]\d* files", said)
    other = set(rows_on_disk(table_folder(tmp_path, format, "others")))
    assert other == set(files_of(tmp_path, format, "others"))
    assert len(rows_on_disk(table_folder(tmp_path, format))) == 5
    run("things", "--to", tmp_path, "--expire", 0, format=format)
    assert rows_on_disk(table_folder(tmp_path, format)) == files_of(tmp_path, format)


def test_of_a_disk_all_goes_that_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unlink = Path.unlink

    def refused(self: Path, missing_ok: bool = False) -> None:
        if self.name == "1":
            raise PermissionError(13, "Permission denied", str(self))
        unlink(self, missing_ok)

    for name in "012":
        (tmp_path / name).touch()
    monkeypatch.setattr(Path, "unlink", refused)

    with pytest.raises(PermissionError):
        folders.LocalFolder(str(tmp_path)).remove(["0", "1", "2", "3"])

    assert [path.name for path in tmp_path.iterdir()] == ["1"]


@BOTH
def test_without_the_right_to_list_it_says_so(
    log: Log, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*drafts(20))
    run(topic, "--to", tmp_path, "--part", 5, format=format)
    run(topic, "--to", tmp_path, "--compact", format=format)
    there, scandir = on_disk(table_folder(tmp_path, format)), os.scandir

    def refused(path: Any = ".") -> Any:
        if "day=" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", refused)
        said = run(topic, "--to", tmp_path, "--expire", 0, format=format)

    assert re.search(r"things can't be listed, and none was removed: \[Errno 13\] Permission denied: ", said)
    assert there <= on_disk(tmp_path)


@BOTH
def test_a_follower_says_it_once_and_goes_on(
    log: Log, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, said, out = log(*drafts(20)), StringIO(), StringIO()
    run(topic, "--to", tmp_path, "--part", 5, format=format)
    run(topic, "--to", tmp_path, "--compact", format=format)
    answers = iter(["refused", "conflict", "refused", "works", "refused", "stop"])
    kind: Any = DeltaEvents if format == "delta" else IcebergEvents
    expire = kind.expire

    def refused(self: Any, paths: list[str]) -> None:
        raise OSError("AWS Error ACCESS_DENIED during DeleteObject operation\nand more")  # which has no number

    def answered(self: Any, age: timedelta, stopped: Callable[[], bool]) -> Any:
        answer = next(answers)
        if answer == "stop":
            os.kill(os.getpid(), 15)
        if answer == "conflict":
            raise Conflict
        if answer == "works":
            return expiring.RemovedVersions()
        publish(topic, 1, 2)
        return expire(self, age, stopped)

    monkeypatch.setattr(exporting, "TIDY_EVERY", 0.0)
    monkeypatch.setattr(folders.LocalFolder, "remove", refused)
    monkeypatch.setattr(kind, "expire", answered)
    words = (topic, "--to", tmp_path, *FOLLOW, "--expire", 0, "--format", format)
    call_command("export_events", *map(str, words), stdout=out, stderr=said)

    why = "can't be removed, or not all of them: AWS Error ACCESS_DENIED during DeleteObject operation\n"
    assert said.getvalue().count(why) == 2  # it was mended in between
    assert out.getvalue().count(why) == 1
    assert "and more" not in said.getvalue() + out.getvalue()


def test_of_an_iceberg_table_that_keeps_its_files_none_goes(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*drafts(30))
    run(topic, "--to", tmp_path, "--part", 5, format="iceberg")
    run(topic, "--to", tmp_path, "--compact", format="iceberg")
    with iceberg(tmp_path) as table, table.transaction() as change:
        change.set_properties({"gc.enabled": "False"})
    there, number = on_disk(tmp_path), versions(tmp_path, "iceberg")
    monkeypatch.setattr(iceberg_tables, "THINNED_AT_ONCE", 1)

    said = run(topic, "--to", tmp_path, "--expire", 0, format="iceberg")
    publish(topic, 1)
    run(topic, "--to", tmp_path, "--expire", 0, format="iceberg")

    assert "Removed: 0 snapshots, 0 files, 0 B.\ntable events.things has gc.enabled=false, so nothing was" in said
    assert there <= on_disk(tmp_path) and versions(tmp_path, "iceberg") == number + 1


@BOTH
@pytest.mark.parametrize("conflicts", [exporting.TRIES - 1, exporting.TRIES])
def test_a_conflict_is_tried_again_and_said(
    log: Log, tmp_path: Path, format: str, conflicts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*drafts(20))
    run(topic, "--to", tmp_path, "--part", 5, format=format)
    kind: Any = DeltaEvents if format == "delta" else IcebergEvents
    expire, answers = kind.expire, chain(repeat(Conflict(), conflicts), repeat(None))

    def late(self: Any, *arguments: Any) -> Any:
        if (error := next(answers)) is not None:
            raise error
        return expire(self, *arguments)

    monkeypatch.setattr(kind, "expire", late)
    said = run(topic, "--to", tmp_path, "--expire", 0, format=format)

    is_said = "things had commits of other writers, and not all was removed: run it again." in said
    assert is_said is (conflicts == exporting.TRIES)
    assert (": 0 " in said) is is_said


@BOTH
@pytest.mark.parametrize("conflicts", [exporting.TRIES - 1, exporting.TRIES])
def test_a_conflict_while_files_are_merged_is_tried_again_and_said(
    log: Log, tmp_path: Path, format: str, conflicts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*drafts(20))
    run(topic, "--to", tmp_path, "--part", 5, format=format)
    kind: Any = DeltaEvents if format == "delta" else IcebergEvents
    compact, answers = kind.compact, chain(repeat(Conflict(), conflicts), repeat(None))

    def late(self: Any, *arguments: Any) -> Iterator[int]:
        if (error := next(answers)) is not None:
            raise error
        yield from compact(self, *arguments)

    monkeypatch.setattr(kind, "compact", late)
    said = run(topic, "--to", tmp_path, "--compact", format=format)

    is_said = (
        "things had commits of other writers, and not all of its files were merged: the next --compact does it." in said
    )
    assert is_said is (conflicts == exporting.TRIES)
    assert f"Files that were merged: {0 if is_said else 3}." in said
    assert len(files_of(tmp_path, format)) == (4 if is_said else 1)


@BOTH
def test_a_follower_says_a_conflict_while_files_are_merged_once(
    log: Log, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, said, out = log(*drafts(20)), StringIO(), StringIO()
    run(topic, "--to", tmp_path, "--part", 5, format=format)
    answers = iter(["conflict", "conflict", "works", "conflict", "stop"])
    kind: Any = DeltaEvents if format == "delta" else IcebergEvents
    compact = kind.compact

    def answered(self: Any, target_size: int) -> Iterator[int]:
        answer = next(answers)
        if answer == "stop":
            os.kill(os.getpid(), 15)
        if answer != "works":
            raise Conflict
        yield from compact(self, target_size)

    monkeypatch.setattr(exporting, "TIDY_EVERY", 0.0)
    monkeypatch.setattr(kind, "compact", answered)
    words = (topic, "--to", tmp_path, *FOLLOW, "--compact", "--format", format)
    call_command("export_events", *map(str, words), stdout=out, stderr=said)

    why = "things had commits of other writers, and not all of its files were merged: the next --compact does it."
    assert said.getvalue().count(why) == 2  # it was mended in between
    assert "Files that were merged: 3. " in out.getvalue() and out.getvalue().count(why) == 1
    assert len(files_of(tmp_path, format)) == 1


@pytest.mark.parametrize("times", [1, 100])
def test_of_delta_a_commit_that_another_tool_removes_meanwhile_is_a_conflict(
    log: Log, tmp_path: Path, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, log_of = log(*drafts(20)), tmp_path / "things/_delta_log"
    run(topic, "--to", tmp_path, "--part", 2, format="delta")
    by, left = delta_expiring.DeltaFiles._by, [times]

    def late(self: Any, versions: Any, folder: Any) -> Any:
        if versions and left[0]:
            left[0] -= 1
            (log_of / f"{min(versions):020d}.json").unlink(missing_ok=True)
        return by(self, versions, folder)

    monkeypatch.setattr(delta_expiring.DeltaFiles, "_by", late)
    said = run(topic, "--to", tmp_path, "--expire", 7, format="delta")

    assert ("run it again" in said) is (times > 1)
    monkeypatch.undo()
    assert read_back(tmp_path, "delta") == stored(topic)


def test_of_iceberg_a_list_that_another_tool_removes_meanwhile_is_a_conflict(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*drafts(20))
    run(topic, "--to", tmp_path, "--part", 5, format="iceberg")
    names = iceberg_expiring.IcebergFiles.names

    def late(self: Any, table: Any, **known: Any) -> Any:
        former = Path(table.snapshots()[0].manifest_list.removeprefix("file://"))
        former.rename(former.with_suffix(".moved"))
        try:
            return names(self, table, **known)
        finally:
            former.with_suffix(".moved").rename(former)

    monkeypatch.setattr(iceberg_expiring.IcebergFiles, "names", late)
    said = run(topic, "--to", tmp_path, "--expire", 7, format="iceberg")

    assert "table events.things had commits of other writers, and not all was removed: run it again." in said
    monkeypatch.undo()
    assert read_back(tmp_path, "iceberg") == stored(topic)


@pytest.mark.parametrize("does", ["merges", "erases", "upserts"])
def test_of_iceberg_files_of_rows_that_another_run_removes_meanwhile_are_a_conflict(
    log: Log, tmp_path: Path, does: str
) -> None:
    """It has looked at the table, and another one merges all files, and removes those that were merged."""
    words = ("--upsert",) if does == "upserts" else ()
    topic = log(*drafts(20))
    run(topic, "--to", tmp_path, "--part", 5, *words, format="iceberg")
    made = IcebergStates if words else IcebergEvents
    held = made(in_folder(str(tmp_path)), str(topic), incarnation(topic))
    with closing(held):
        mark = held.mark()
        assert mark is not None
        held._make_ready()
        held._make_ready, held.mark = lambda: None, lambda: mark  # type: ignore[method-assign]
        log(*drafts(5), topic=topic)
        run(topic, "--to", tmp_path, "--compact", "--expire", 0, *words, format="iceberg")
        erased = pa.table({"offset": [1], "key": ["k"], "metadata": ["{}"]})

        with pytest.raises(Conflict):
            if does == "merges":
                list(held.compact(1 << 20))
            elif does == "erases":
                held.blank(erased, mark)
            else:
                next(held.keys(mark.next))

    assert len(read_back(tmp_path, "iceberg")) == (5 if words else 25)


def test_of_iceberg_only_a_snapshot_that_is_gone_is_a_conflict(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*drafts(20))
    run(topic, "--to", tmp_path, "--part", 5, format="iceberg")
    with iceberg(tmp_path) as table:
        first, second, *_ = (one.snapshot_id for one in table.snapshots())
    held: Any = table_of(tmp_path, "iceberg", topic)
    other: Any = table_of(tmp_path, "iceberg", topic)
    with closing(held), closing(other):
        other._expire([first])
        with pytest.raises(Conflict, match=str(first)):
            held._expire([first])

        def refused(self: Any, *arguments: Any) -> Any:
            raise ValueError("no such thing")

        monkeypatch.setattr(SqlCatalog, "commit_table", refused)
        with pytest.raises(ValueError, match="no such thing"):
            held._expire([second])


def test_of_a_store_by_fsspec_it_is_read_when_files_were_written(log: Log, tmp_path: Path) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    store, at = MemoryFileSystem(), datetime(2020, 1, 1, tzinfo=UTC)
    said: dict[str, Any] = {"a": at, "b": at.isoformat(), "c": None}
    with closing_store(store):
        for name in said:
            store.pipe(f"/lake/things/data/{name}.parquet", b"12")
        store.pipe("/lake/things/data/empty.parquet", b"")
        find = store.find

        def known(*arguments: Any, **named: Any) -> dict[str, Any]:
            found = find(*arguments, **named)
            key = {"a": "LastModified", "b": "last_modified"}
            return {
                path: {"size": one["size"], "type": "file", key.get(name := Path(path).stem, "x"): said.get(name)}
                for path, one in found.items()
            }

        store.find = known
        folder = folders.FolderByFsspec(store, "/lake/things")
        there = {file.path: file for file in folder.files()}

        assert {path: file.modified for path, file in there.items()} == {
            "data/a.parquet": at.timestamp(),
            "data/b.parquet": at.timestamp(),
            "data/c.parquet": None,
        }
        assert not there["data/c.parquet"].is_before(4e9) and there["data/c.parquet"].is_before(float("inf"))
        assert folder.read("data/a.parquet") == b"12"
        folder.remove(["data/a.parquet", "data/gone.parquet"])
        assert "data/a.parquet" not in {file.path for file in folder.files()}
        topic = log(*drafts(5))
        run(topic, "--to", tmp_path, format="iceberg")
        with iceberg(tmp_path) as table, pytest.raises(folders.Refusing, match="have no time by their store, and none"):
            iceberg_expiring.IcebergFiles().written(table, folder, before=1e9)
        with iceberg(tmp_path) as table:
            written = iceberg_expiring.IcebergFiles().written(table, folder, before=float("inf"))
        assert [file.path for file in written] == ["data/b.parquet", "data/c.parquet"]


@pytest.mark.parametrize(
    "error", [RuntimeError("Failed to remove a for This request is not\nauthorized"), OSError("x")]
)
def test_what_a_store_by_fsspec_refuses_by_errors_of_its_client_is_said(error: Exception) -> None:
    """As adlfs does it: by azure.core's HttpResponseError where it lists, and by a RuntimeError where it removes."""
    from fsspec.implementations.memory import MemoryFileSystem

    class HttpResponseError(Exception):
        """Azure's errors are of no class that Python knows."""

    class Refused(MemoryFileSystem):  # type: ignore[misc]
        cachable = False

        def find(self, path: str, **named: Any) -> Any:
            raise HttpResponseError("This request is not authorized to perform this operation.\nRequestId:1")

        def rm_file(self, path: str) -> None:
            raise error if path.endswith("a.parquet") else FileNotFoundError(path)

        def cat_file(self, path: str, **named: Any) -> Any:
            raise HttpResponseError("Server busy")

    folder = folders.FolderByFsspec(Refused(), "/lake/things")
    known = [folders.StoredFile(f"data/{name}.parquet", 1, 1.0) for name in ("gone", "a")]

    with pytest.raises(
        folders.Refusing, match=r"listed, and none was removed: HttpResponseError: This .* operation\.$"
    ):
        folders.files_of_table(folder)
    with pytest.raises(folders.Refusing, match="can't be removed, or not all of them: ") as raised:
        list(folders.remove_files(folder, known, stopped=lambda: False))
    assert str(raised.value).endswith("of them: x" if isinstance(error, OSError) else "This request is not")
    assert list(folders.remove_files(folder, known[:1], stopped=lambda: False)) == known[:1]
    with pytest.raises(folders.Refusing, match="can't be read, and none was removed: HttpResponseError: Server busy"):
        iceberg_expiring._table_in(folder, folders.StoredFile("metadata/1.metadata.json", 1, 1.0))


@contextmanager
def closing_store(store: Any) -> Iterator[None]:
    try:
        yield
    finally:
        store.store.clear()


def test_what_stands_for_a_folder_in_a_store_is_no_file(tmp_path: Path) -> None:
    from pyarrow.fs import LocalFileSystem

    for name, text in (("a.parquet", b""), ("part-1.parquet", b""), ("b.parquet", b"1")):
        (tmp_path / name).write_bytes(text)

    found = folders.FolderInStore(LocalFileSystem(), str(tmp_path)).files()

    assert sorted(file.path for file in found) == ["b.parquet", "part-1.parquet"]
    assert folders._is_folder("a/part-1.parquet/", 0) and folders._is_folder("a/b/", 5)


@pytest.mark.parametrize("is_logged", [True, False])
def test_of_iceberg_first_halves_go(log: Log, tmp_path: Path, is_logged: bool) -> None:
    """Of an overwrite. Catalogues differ in whether they have been the newest snapshot."""
    topic, age = log(*drafts(60)), timedelta(days=365)
    run(topic, "--to", tmp_path, "--part", 10, format="iceberg")
    run(topic, "--to", tmp_path, "--compact", format="iceberg")
    with iceberg(tmp_path) as table:
        *_, whole, half, _ = (one.snapshot_id for one in table.snapshots())
        history = table.metadata.snapshot_log
        if not is_logged:
            history = [one for one in history if one.snapshot_id != half]
            without_marks(table)
        now = history[-1].timestamp_ms / 1000
        table.metadata = table.metadata.model_copy(update={"snapshot_log": history})
        assert iceberg_expiring.going(table, now=now, age=age) == [half]
        if not is_logged:  # a catalogue has forgotten what was before: then it may be a whole one
            table.metadata = table.metadata.model_copy(update={"snapshot_log": history[-1:]})
            assert iceberg_expiring.going(table, now=now, age=age) == []
        else:
            table.manage_snapshots().create_tag(half, "a").commit()
            assert iceberg_expiring.going(table, now=now, age=age) == []
            without_marks(table)  # as by another tool, which has deleted rows, and later added others
            assert iceberg_expiring._halves(table) == set()
        assert whole in {one.snapshot_id for one in table.snapshots()}


def without_marks(table: Any) -> None:
    for one in table.snapshots():
        one.summary.additional_properties.clear()


def test_of_iceberg_statistics_that_metadata_names_stay(log: Log, tmp_path: Path) -> None:
    from pyiceberg.table.statistics import PartitionStatisticsFile
    from pyiceberg.table.update import SetPartitionStatisticsUpdate

    topic = log(*drafts(10))
    run(topic, "--to", tmp_path, "--part", 5, format="iceberg")
    of = [table_folder(tmp_path, "iceberg") / f"metadata/{name}.avro" for name in ("named", "not-named")]
    for path in of:
        path.write_bytes(b"x")
    with iceberg(tmp_path) as table:
        current = table.metadata.current_snapshot_id
        known: dict[str, Any] = {"snapshot-id": current, "statistics-path": f"file://{of[0]}", "file-size-in-bytes": 1}
        named = PartitionStatisticsFile(**known)
        change: dict[str, Any] = {"partition_statistics": named}
        table.catalog.commit_table(table, (), (SetPartitionStatisticsUpdate(**change),))

    run(topic, "--to", tmp_path, "--expire", 0, format="iceberg")

    assert [path.exists() for path in of] == [True, False]
