"""Topics as tables of a lakehouse: each event once, as PostgreSQL has it, whatever else writes."""

import json
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from threading import Barrier
from typing import Any
from urllib.request import Request, urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake import Field as DeltaField
from django.core.management import CommandError
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import StringType
from sqlalchemy import Engine, event

from django_events import Draft
from django_events.exceptions import Refused
from django_events.exporting.file_columns import PLAIN
from django_events.exporting.tables.delta import DAY, DeltaEvents
from django_events.exporting.tables.iceberg import PROPERTIES, IcebergEvents
from django_events.exporting.tables.iceberg_catalogs import NAMESPACE, in_folder
from django_events.exporting.tables.table import Conflict, EventTable, Mark
from django_events.exporting.writing import SCHEMA
from django_events.operations import erase
from django_events.reading import topics
from django_events.reading.dsn import Dsn
from django_events.reading.ranges import Range
from tests.spark.test_batch import HOSTILE, drop_first_segment, publish, stored
from tests.spark.test_export import incarnation
from tests.spark.test_streaming import cut_back, make_anew
from tests.support.local_exports import through_what_goes_away
from tests.support.processes import wait_until
from tests.support.small_disks import enlarge, small_disk
from tests.support.tables import files_of, read_back, read_by_extension, run

pytestmark = pytest.mark.usefixtures("transactional_db")

Log = Callable[..., Any]
FORMATS = pytest.mark.parametrize("format", ["delta", pytest.param("iceberg", marks=pytest.mark.slow)])
BOTH = pytest.mark.parametrize("format", ["delta", "iceberg"])  # of the guarantees


@BOTH
@pytest.mark.requirement("X15")
@pytest.mark.requirement("H8")
def test_a_table_holds_what_postgresql_holds(log: Log, tmp_path: Path, format: str) -> None:
    drafts = [Draft(value=value, type=f"t{n % 5}", key=str(n)) for n, value in enumerate(HOSTILE * 3)]
    topic = log(*drafts, Draft(body=b"\0\xff"), partitions=3)

    said = run(topic, "--to", tmp_path, "--part", 20, "--engine", "local", format=format)

    assert read_back(tmp_path, format) == stored(topic)
    assert said.startswith(f"Exported {len(drafts) + 1} events to {tmp_path} in ")
    assert said.endswith("in commits: 3.\n")


@pytest.mark.slow
@FORMATS
@pytest.mark.requirement("X15")
def test_readers_of_the_format_find_the_same(log: Log, tmp_path: Path, format: str) -> None:
    """By DuckDB's extensions: Delta's by its kernel, and one of its own for Iceberg."""
    topic = log(*(Draft(value=value, key=str(n)) for n, value in enumerate(HOSTILE)), Draft(body=b"\0\xff"))
    run(topic, "--to", tmp_path, "--part", 5, format=format)
    assert read_by_extension(tmp_path, format) == stored(topic)
    publish(topic, *range(12))
    erase(topic, key="3", reason="asked for")

    run(topic, "--to", tmp_path, "--part", 1, "--erase", "--compact", format=format)

    found = read_by_extension(tmp_path, format)
    assert found == read_back(tmp_path, format)
    assert [row["offset"] for row in found] == list(range(1, len(HOSTILE) + 14))
    assert '"erased"' in found[3]["metadata"] and found[3]["value"] is None


@FORMATS
def test_running_it_again_adds_what_came(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))
    run(topic, "--to", tmp_path, format=format)

    assert run(topic, "--to", tmp_path, format=format).startswith("Nothing to export")
    publish(topic, *range(5))
    assert run(topic, "--to", tmp_path, format=format).startswith("Exported 5 events")
    assert read_back(tmp_path, format) == stored(topic)


@FORMATS
def test_it_begins_and_ends_where_it_is_told_to(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))

    run(topic, "--to", tmp_path, "--since", 4, "--until", 8, format=format)
    assert [row["offset"] for row in read_back(tmp_path, format)] == [4, 5, 6, 7]
    run(topic, "--to", tmp_path, format=format)
    assert [row["offset"] for row in read_back(tmp_path, format)] == [4, 5, 6, 7, 8, 9, 10]


@FORMATS
def test_several_topics_are_several_tables(log: Log, tmp_path: Path, format: str) -> None:
    for name in ("a.b", "c"):
        log(*(Draft(value=f"{name}{n}") for n in range(3)), name=name)

    run("a.b", "c", "--to", tmp_path, format=format)

    assert read_back(tmp_path, format, "a.b") == stored("a.b")
    assert read_back(tmp_path, format, "c") == stored("c")


@pytest.mark.slow
@FORMATS
@pytest.mark.requirement("X15")
def test_small_files_are_merged(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(*(Draft(value=n) for n in range(100)))
    run(topic, "--to", tmp_path, "--part", 10, format=format)
    assert len(files_of(tmp_path, format)) == 10

    said = run(topic, "--to", tmp_path, "--compact", format=format)

    assert len(files_of(tmp_path, format)) == 1
    assert "Files that were merged: 9." in said
    assert read_back(tmp_path, format) == stored(topic)
    publish(topic, *range(5))
    assert run(topic, "--to", tmp_path, format=format).startswith("Exported 5 events")
    assert read_back(tmp_path, format) == stored(topic)


@pytest.mark.slow
@FORMATS
def test_of_a_table_that_others_changed_small_files_are_merged_too(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(*(Draft(value=n, key=str(n)) for n in range(100)))
    run(topic, "--to", tmp_path, "--part", 10, format=format)
    if format == "delta":
        table = DeltaTable(f"{tmp_path}/{topic}")
        table.alter.add_columns(DeltaField("note", "string"))
        table.delete("key = '7'")
    else:
        with closing(in_folder(str(tmp_path)).catalog) as catalog:
            known = catalog.load_table((NAMESPACE, str(topic)))
            with known.update_schema() as update:
                update.add_column("note", StringType())
            foreign = {"note": ["no event"], "timestamp": pa.array([None], SCHEMA.field("timestamp").type)}
            known.append(pa.table(foreign))
            known.delete("key = '7'")

    run(topic, "--to", tmp_path, "--compact", format=format)

    assert len(files_of(tmp_path, format)) == (1 if format == "delta" else 2)
    found = (pq.read_table(file, columns=["offset"], partitioning=None) for file in files_of(tmp_path, format))
    offsets = sorted(one for file in found for one in file["offset"].to_pylist() if one is not None)
    assert offsets == [n for n in range(1, 101) if n != 8]
    publish(topic, 1)
    assert run(topic, "--to", tmp_path, format=format).startswith("Exported 1 events")


@pytest.mark.parametrize("change", ["another partitioning", "another name", "rows without a time"])
def test_files_without_a_day_are_not_merged(log: Log, tmp_path: Path, change: str) -> None:
    topic = log(*(Draft(value=n, type="t") for n in range(20)))
    run(topic, "--to", tmp_path, "--part", 10, format="iceberg")
    with closing(in_folder(str(tmp_path)).catalog) as catalog:
        known = catalog.load_table((NAMESPACE, str(topic)))
        if change == "rows without a time":
            known.append(pa.Table.from_pylist([{**dict.fromkeys(SCHEMA.names), "offset": 0}], SCHEMA))
        else:
            with known.update_spec() as update:
                if change == "another name":
                    update.rename_field("day", "of")
                else:
                    update.remove_field("day")
                    update.add_field("type", IdentityTransform(), "of_type")
    publish(topic, *range(10))

    run(topic, "--to", tmp_path, "--compact", format="iceberg")

    found = (pq.read_table(file, columns=["offset"], partitioning=None) for file in files_of(tmp_path, "iceberg"))
    offsets = sorted(one for file in found for one in file["offset"].to_pylist())
    assert offsets == [*([0] if change == "rows without a time" else []), *range(1, 31)]


@pytest.mark.slow
@FORMATS
def test_a_stop_ends_the_merging(log: Log, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        log(*(Draft(value=n) for n in range(20)), name=name)
    run("a", "b", "--to", tmp_path, "--part", 10, format=format)
    kind = DeltaEvents if format == "delta" else IcebergEvents
    compact = kind.compact

    def stopped(self: Any, target_size: int) -> int:
        signal.raise_signal(signal.SIGTERM)
        return compact(self, target_size)

    monkeypatch.setattr(kind, "compact", stopped)
    said = run("a", "b", "--to", tmp_path, "--compact", format=format)

    assert "Files that were merged: 1." in said
    assert sorted(len(files_of(tmp_path, format, name)) for name in ("a", "b")) == [1, 2]


@BOTH
@pytest.mark.requirement("X15")
@pytest.mark.parametrize("between", ["runs", pytest.param("two commits of a run", marks=pytest.mark.slow)])
def test_a_table_that_was_set_back_is_refused(
    log: Log, tmp_path: Path, format: str, between: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*(Draft(value=n) for n in range(30)))
    words = (topic, "--to", tmp_path, "--part", 10)
    with monkeypatch.context() as patched:
        if between != "runs":
            kind = DeltaEvents if format == "delta" else IcebergEvents
            append, times = kind.append, []

            def after_it_was_set_back(self: Any, *arguments: Any) -> None:
                times.append(1)
                if len(times) == 3:
                    set_back(tmp_path, format, topic, to=1)
                append(self, *arguments)

            patched.setattr(kind, "append", after_it_was_set_back)
            with pytest.raises(CommandError, match="was set back to an earlier"):
                run(*words, format=format)
        else:
            run(*words, format=format)
            set_back(tmp_path, format, topic, to=1)

    publish(topic, 1)
    with pytest.raises(CommandError, match=r"was set back to an earlier .* it has the events up to \d0, and") as raised:
        run(*words, "--allow-loss", format=format)
    assert raised.value.returncode == 1
    with pytest.raises(CommandError, match="was set back to an earlier"):
        run(*words, "--compact", format=format)
    assert [row["offset"] for row in read_back(tmp_path, format)] == list(range(1, 11))

    set_back(tmp_path, format, topic, to=3 if between == "runs" else 2)  # or rather forward again
    run(*words, format=format)
    assert read_back(tmp_path, format) == stored(topic)


def set_back(folder: Path, format: str, topic: Any, *, to: int) -> None:
    """Set a table back to how it was after so many commits of events."""
    if format == "delta":
        DeltaTable(f"{folder}/{topic}").restore(to)
        return
    with closing(in_folder(str(folder)).catalog) as catalog:
        known = catalog.load_table((NAMESPACE, str(topic)))
        with known.manage_snapshots() as manage:
            manage.set_current_snapshot(known.metadata.snapshots[to - 1].snapshot_id)


def expire_former(table: Any) -> None:
    """Of an Iceberg table, all snapshots but the newest."""
    keep = table.refresh().current_snapshot().snapshot_id
    others = [one.snapshot_id for one in table.metadata.snapshots if one.snapshot_id != keep]
    table.maintenance.expire_snapshots().by_ids(others).commit()


def remove_history(table: DeltaTable, log: Path) -> None:
    """Of a Delta table, all commits but the newest."""
    table.create_checkpoint()
    for version in range(table.version()):
        (log / f"{version:020d}.json").unlink()


@pytest.mark.requirement("X15")
@pytest.mark.parametrize("of", ["delta-rs", "spark"])
@pytest.mark.parametrize("undone", [False, True])
def test_of_a_delta_table_that_was_set_back_to_a_time_the_rows_tell(
    log: Log, tmp_path: Path, of: str, undone: bool
) -> None:
    topic = log(*(Draft(value=n, key=str(n)) for n in range(30)))
    run(topic, "--to", tmp_path, "--part", 10, format="delta")
    table = DeltaTable(f"{tmp_path}/{topic}")
    # The file of a commit may be a while younger than what it says: that is what counts.
    moment = table.history(2)[1]["timestamp"] + 1 if undone else datetime.now(UTC).timestamp() * 1000
    wait_until(lambda: datetime.now(UTC).timestamp() * 1000 > moment + 5)
    table.delete("key = '7'")
    table.restore(datetime.fromtimestamp(moment / 1000, UTC))
    if of == "spark":  # says the version, too, as null
        commit = tmp_path / f"{topic}/_delta_log/{table.version():020d}.json"
        lines = [json.loads(line) for line in commit.read_text().splitlines()]
        for line in lines:
            if "commitInfo" in line:
                line["commitInfo"]["operationParameters"] = {"version": None, "timestamp": str(int(moment))}
        commit.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    publish(topic, *range(5))

    if not undone:
        run(topic, "--to", tmp_path, format="delta")
    else:
        with pytest.raises(CommandError, match=r"was set back to an earlier version: .* Restore version 3 or a later"):
            run(topic, "--to", tmp_path, format="delta")
        table.restore(3)
        run(topic, "--to", tmp_path, format="delta")
    assert read_back(tmp_path, "delta") == stored(topic)


@pytest.mark.slow
@FORMATS
@pytest.mark.parametrize("is_set_back", [False, True])
def test_where_the_history_is_removed_the_rows_tell(log: Log, tmp_path: Path, format: str, is_set_back: bool) -> None:
    topic = log(*(Draft(value=n) for n in range(30)))
    run(topic, "--to", tmp_path, "--part", 10, format=format)
    if is_set_back:
        set_back(tmp_path, format, topic, to=2)
    if format == "delta":
        table = DeltaTable(f"{tmp_path}/{topic}")
        table.optimize.compact()
        remove_history(table, tmp_path / f"{topic}/_delta_log")
    else:
        with closing(in_folder(str(tmp_path)).catalog) as catalog:
            known = catalog.load_table((NAMESPACE, str(topic)))
            whole = known.scan().to_arrow()
            known.overwrite(whole)  # as a tool that compacts
            expire_former(known)
    publish(topic, 1)

    if not is_set_back:
        run(topic, "--to", tmp_path, format=format)
        assert read_back(tmp_path, format) == stored(topic)
        return
    with pytest.raises(CommandError, match="was set back to an earlier"):
        run(topic, "--to", tmp_path, format=format)


@BOTH
@pytest.mark.requirement("X15")
@pytest.mark.parametrize("rows", ["the newest", pytest.param("all", marks=pytest.mark.slow)])
def test_where_rows_were_deleted_and_the_history_too_an_operator_says_so(
    log: Log, tmp_path: Path, format: str, rows: str
) -> None:
    topic = log(*(Draft(value=n, key=str(n)) for n in range(30)))
    run(topic, "--to", tmp_path, "--part", 10, format=format)
    condition, left = ("offset > 29", 29) if rows == "the newest" else ("offset > 0", 0)
    if format == "delta":
        table = DeltaTable(f"{tmp_path}/{topic}")
        table.delete(condition)
        remove_history(table, tmp_path / f"{topic}/_delta_log")
    else:
        with closing(in_folder(str(tmp_path)).catalog) as catalog:
            known = catalog.load_table((NAMESPACE, str(topic)))
            known.delete(condition)
            expire_former(known)
    if has_events := rows == "the newest":
        publish(topic, *range(5))

    with pytest.raises(CommandError, match=r"or its newest rows were deleted, .* up to 30, .* with --allow-loss") as no:
        run(topic, "--to", tmp_path, format=format)
    assert no.value.returncode == 1
    assert len(read_back(tmp_path, format)) == left
    said = run(topic, "--to", tmp_path, "--allow-loss", format=format)
    if has_events:
        assert said.startswith("Exported 5 events")
    else:  # without an event the mark is said again all the same
        assert run(topic, "--to", tmp_path, format=format).startswith("Nothing to export")
        publish(topic, *range(5))
        assert run(topic, "--to", tmp_path, format=format).startswith("Exported 5 events")
    publish(topic, *range(5))
    assert run(topic, "--to", tmp_path, format=format).startswith("Exported 5 events")
    assert [row["offset"] for row in read_back(tmp_path, format)] == [*range(1, left + 1), *range(31, 41)]


@pytest.mark.requirement("X15")
def test_a_copied_folder_of_iceberg_is_refused_and_a_moved_one_too(log: Log, tmp_path: Path) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))
    run(topic, "--to", tmp_path / "lake", format="iceberg")
    shutil.copytree(tmp_path / "lake", tmp_path / "copy")
    publish(topic, 1)
    with pytest.raises(
        CommandError, match=r"/copy is a copy: by its catalogue table events\.things is at file:.*/lake/"
    ):
        run(topic, "--to", tmp_path / "copy", format="iceberg")
    assert len(read_back(tmp_path / "lake", "iceberg")) == 10

    (tmp_path / "lake").rename(tmp_path / "moved")
    with pytest.raises(CommandError, match=r"its files are not where it says: .* Were they moved\?") as raised:
        run(topic, "--to", tmp_path / "moved", format="iceberg")
    assert raised.value.returncode == 1
    (tmp_path / "moved").rename(tmp_path / "lake")
    run(topic, "--to", tmp_path / "lake", format="iceberg")
    assert read_back(tmp_path / "lake", "iceberg") == stored(topic)


@pytest.mark.requirement("X15")
@pytest.mark.parametrize("to", ["", "lake/inside", "lake2"])
def test_a_folder_of_iceberg_that_was_copied_above_or_below_itself_is_refused(
    log: Log, tmp_path: Path, to: str
) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))
    run(topic, "--to", tmp_path / "here/lake", format="iceberg")
    copy = tmp_path / "here" / to
    copy.mkdir(exist_ok=True)
    shutil.copy(tmp_path / "here/lake/catalog.db", copy)
    shutil.copytree(tmp_path / f"here/lake/{NAMESPACE}", copy / NAMESPACE)
    publish(topic, 1)

    with pytest.raises(CommandError, match="is a copy: by its catalogue"):
        run(topic, "--to", copy, format="iceberg")
    assert len(read_back(tmp_path / "here/lake", "iceberg")) == 10


def test_a_copied_folder_of_delta_is_a_table_of_its_own(log: Log, tmp_path: Path) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))
    run(topic, "--to", tmp_path / "lake", format="delta")
    shutil.copytree(tmp_path / "lake", tmp_path / "copy")
    publish(topic, 1)

    run(topic, "--to", tmp_path / "copy", format="delta")

    assert read_back(tmp_path / "copy", "delta") == stored(topic)
    assert len(read_back(tmp_path / "lake", "delta")) == 10


def test_a_delta_table_may_have_a_description_of_your_own(log: Log, tmp_path: Path) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))
    run(topic, "--to", tmp_path, format="delta")
    DeltaTable(f"{tmp_path}/{topic}").alter.set_table_description("The orders of the shop")
    DeltaTable(f"{tmp_path}/{topic}").alter.set_table_properties({"delta.logRetentionDuration": "interval 7 days"})
    publish(topic, *range(5))

    run(topic, "--to", tmp_path, format="delta")

    assert read_back(tmp_path, "delta") == stored(topic)
    DeltaTable.create(f"{tmp_path}/foreign/{topic}", pa.schema([("a", pa.int64())]))
    with pytest.raises(CommandError, match="is a Delta table that no export has made"):
        run(topic, "--to", tmp_path / "foreign", format="delta")


@pytest.mark.slow
def test_delta_writes_checkpoints_by_itself(log: Log, tmp_path: Path) -> None:
    topic = log(*(Draft(value=n) for n in range(12)))

    run(topic, "--to", tmp_path, "--part", 1, format="delta")

    found = sorted(path.name for path in (tmp_path / f"{topic}/_delta_log").glob("*.checkpoint.parquet"))
    assert found == [f"{9:020d}.checkpoint.parquet"]


def table_of(folder: Path, format: str, topic: Any) -> EventTable:
    if format == "delta":
        return DeltaEvents(f"{folder}/{topic}", str(topic), incarnation(topic))
    return IcebergEvents(in_folder(str(folder)), str(topic), incarnation(topic))


@BOTH
@pytest.mark.requirement("X15")
@pytest.mark.parametrize("first_time", [True, False])
def test_of_two_that_append_at_the_same_point_one_fails(
    log: Log, tmp_path: Path, format: str, first_time: bool
) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))
    if not first_time:
        run(topic, "--to", tmp_path, format=format)
    one, other = (table_of(tmp_path, format, topic) for _ in range(2))
    assert one.mark() == other.mark()
    batch = SCHEMA.empty_table().to_batches() or []

    one.append(batch, Mark(incarnation(topic), 21))
    with pytest.raises(Conflict):
        other.append(batch, Mark(incarnation(topic), 15))

    assert other.mark() == one.mark() == Mark(incarnation(topic), 21)


@pytest.mark.requirement("X15")
@pytest.mark.parametrize("change", ["property", pytest.param("column", marks=pytest.mark.slow)])
def test_of_two_that_change_the_table_first_one_fails(log: Log, tmp_path: Path, change: str) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))
    run(topic, "--to", tmp_path, format="iceberg")
    catalog = in_folder(str(tmp_path)).catalog
    table = catalog.load_table((NAMESPACE, str(topic)))
    if change == "property":
        with table.transaction() as changing:
            changing.remove_properties("commit.retry.num-retries")
    else:
        with table.update_schema() as update:
            update.delete_column("body")
    catalog.close()
    one, other = (table_of(tmp_path, "iceberg", topic) for _ in range(2))
    assert one.mark() == other.mark() == Mark(incarnation(topic), 11)
    batches = SCHEMA.empty_table().to_batches() or []

    one.append(batches, Mark(incarnation(topic), 21))
    with pytest.raises(Conflict):
        other.append(batches, Mark(incarnation(topic), 21))

    assert other.mark() == Mark(incarnation(topic), 21)
    one.close()
    other.close()


@BOTH
@pytest.mark.requirement("X15")
def test_a_commit_that_is_sent_again_because_its_answer_was_lost_counts_once(
    log: Log, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*(Draft(value=n) for n in range(30)))
    run(topic, "--to", tmp_path, "--part", 10, format=format)
    publish(topic, *range(10))
    times = []
    if format == "delta":
        append = DeltaEvents.append

        def twice(self: Any, events: Any, mark: Mark) -> None:
            times.append(1)
            batches = list(events)
            append(table_of(tmp_path, format, topic), batches, mark)
            append(self, batches, mark)

        monkeypatch.setattr(DeltaEvents, "append", twice)
    else:
        commit_table = SqlCatalog.commit_table

        def sent_twice(self: Any, *arguments: Any) -> Any:
            times.append(1)
            commit_table(self, *arguments)
            return commit_table(self, *arguments)

        monkeypatch.setattr(SqlCatalog, "commit_table", sent_twice)

    assert run(topic, "--to", tmp_path, format=format).startswith("Exported 10 events")

    assert times == [1]
    monkeypatch.undo()
    publish(topic, *range(5))
    run(topic, "--to", tmp_path, format=format)
    assert read_back(tmp_path, format) == stored(topic)


@BOTH
@pytest.mark.requirement("X15")
def test_a_commit_that_another_run_has_made_before_its_events_are_read_counts_once(
    log: Log, tmp_path: Path, dsn: str, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))
    run(topic, "--to", tmp_path, format=format)
    publish(topic, *range(10))
    kind = DeltaEvents if format == "delta" else IcebergEvents
    append, times = kind.append, list[int]()

    def made_by_another(self: Any, events: Any, mark: Mark) -> None:
        times.append(1)
        with closing(table_of(tmp_path, format, topic)) as other, Dsn(dsn).connected() as connected:
            assert other.mark() == self.mark()
            [one] = topics.find(connected, topics.TopicChoice(names=(str(topic),)))
            reader = PLAIN.reader(Dsn(dsn), fetch_size=100, fail_on_data_loss=True)
            append(other, reader.read_by(connected, Range(one.name, one.id, 11, mark.next)), mark)
        raise Conflict("Another commit came first.")

    with monkeypatch.context() as patched:
        patched.setattr(kind, "append", made_by_another)
        said = run(topic, "--to", tmp_path, format=format)

    assert (said[:17], times) == ("Exported 0 events", [1])
    publish(topic, *range(5))
    run(topic, "--to", tmp_path, format=format)
    assert read_back(tmp_path, format) == stored(topic)


def test_old_metadata_of_iceberg_is_removed(log: Log, tmp_path: Path) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))
    run(topic, "--to", tmp_path, format="iceberg")
    with closing(in_folder(str(tmp_path)).catalog) as catalog:
        known = catalog.load_table((NAMESPACE, str(topic)))
        with known.transaction() as changing:
            changing.set_properties({"write.metadata.previous-versions-max": "2"})
    publish(topic, *range(10))

    run(topic, "--to", tmp_path, "--part", 1, format="iceberg")

    assert len(list((tmp_path / f"{NAMESPACE}/{topic}/metadata").glob("*.metadata.json"))) == 3


@FORMATS
def test_a_commit_of_another_kind_in_between_is_no_rival(
    log: Log, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*(Draft(value=n) for n in range(30)))
    run(topic, "--to", tmp_path, "--part", 10, format=format)
    publish(topic, *range(30))
    kind = DeltaEvents if format == "delta" else IcebergEvents
    append, times = kind.append, []

    def after_a_compaction(self: Any, *arguments: Any) -> None:
        times.append(1)
        if len(times) == 1:
            list(table_of(tmp_path, format, topic).compact(1 << 20))
        append(self, *arguments)

    monkeypatch.setattr(kind, "append", after_a_compaction)
    run(topic, "--to", tmp_path, format=format)

    assert read_back(tmp_path, format) == stored(topic)


@pytest.mark.slow
@FORMATS
def test_what_is_read_in_part_is_not_committed(
    log: Log, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django_events.reading.rows import RangeReader

    topic = log(*(Draft(value=n) for n in range(5_000)))
    read_by = RangeReader.read_by

    def torn(*arguments: Any) -> Any:
        with closing(read_by(*arguments)) as batches:
            yield next(batches)
        if arguments[2].end - arguments[2].start > 500:
            raise Refused("torn")

    with monkeypatch.context() as patched:
        patched.setattr(RangeReader, "read_by", torn)
        with pytest.raises(CommandError, match="torn"):
            run(topic, "--to", tmp_path, format=format)
    assert read_back(tmp_path, format) == []
    run(topic, "--to", tmp_path, format=format)
    assert read_back(tmp_path, format) == stored(topic)


@pytest.mark.parametrize("end", [[], ["--follow"]])
def test_a_database_that_goes_away_is_told_apart(
    log: Log, tmp_path: Path, end: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))

    with monkeypatch.context() as patched:
        through_what_goes_away(patched)
        with pytest.raises(CommandError, match=r"with it the lock on .* Run it again\. .* can't be reached") as raised:
            run(topic, "--to", tmp_path, *end, format="delta")
    assert raised.value.returncode == 75
    assert read_back(tmp_path, "delta") == []
    run(topic, "--to", tmp_path, format="delta")
    assert read_back(tmp_path, "delta") == stored(topic)


@FORMATS
def test_what_does_not_belong_together_is_said(log: Log, tmp_path: Path, format: str, make_topic: Any) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))
    run(topic, "--to", tmp_path, format=format)
    cut_back(topic, 3)
    with pytest.raises(CommandError, match=r"has topic 'things' up to 10, and the next event of its log will be 4\."):
        run(topic, "--to", tmp_path, format=format)
    make_anew(topic, make_topic)
    publish(topic, *range(20))
    with pytest.raises(CommandError, match="Topic 'things' was made anew since it was exported"):
        run(topic, "--to", tmp_path, format=format)
    (tmp_path / "files").mkdir()
    (tmp_path / "files/things").mkdir()
    (tmp_path / "files/things/other.parquet").touch()
    with pytest.raises(CommandError, match="Take an empty folder"):
        run(topic, "--to", tmp_path / "files", format=format)


@BOTH
@pytest.mark.requirement("X15")
def test_a_table_that_was_made_for_an_empty_topic_has_each_event_once_when_that_is_made_anew(
    log: Log, tmp_path: Path, format: str, make_topic: Any
) -> None:
    topic = log()
    run(topic, "--to", tmp_path, format=format)
    make_anew(topic, make_topic)
    publish(topic, *range(3))

    for _ in range(2):
        if format == "iceberg":  # a commit sets its incarnation, too
            run(topic, "--to", tmp_path, format=format)
            assert read_back(tmp_path, format) == stored(topic)
            continue
        with pytest.raises(CommandError, match=r"'things' was made anew since .*/things was made for it") as raised:
            run(topic, "--to", tmp_path, format=format)
        assert raised.value.returncode == 1
        assert read_back(tmp_path, format) == []
    shutil.rmtree(tmp_path / "things", ignore_errors=True)
    run(topic, "--to", tmp_path, format=format)
    assert read_back(tmp_path, format) == stored(topic)


@BOTH
@pytest.mark.requirement("X15")
def test_a_table_with_rows_and_without_a_mark_is_refused(log: Log, tmp_path: Path, format: str) -> None:
    topic = log()
    run(topic, "--to", tmp_path, format=format)
    foreign = SCHEMA.append(DAY) if format == "delta" else SCHEMA
    rows = pa.Table.from_pylist([dict.fromkeys(foreign.names)], foreign)
    if format == "delta":
        write_deltalake(f"{tmp_path}/{topic}", rows, mode="append")
    else:
        with closing(in_folder(str(tmp_path)).catalog) as catalog:
            catalog.load_table((NAMESPACE, str(topic))).append(rows)
    publish(topic, *range(3))

    with pytest.raises(CommandError, match=r"things has rows, and no mark .* Export to another place\.") as raised:
        run(topic, "--to", tmp_path, format=format)
    assert raised.value.returncode == 1
    assert len(files_of(tmp_path, format)) == 1


@FORMATS
def test_a_topic_that_is_made_anew_meanwhile_is_refused(
    log: Log, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch, make_topic: Any
) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))
    kind = DeltaEvents if format == "delta" else IcebergEvents
    append = kind.append

    def anew(*arguments: Any) -> None:
        make_anew(topic, make_topic)
        publish(topic, *range(10))
        append(*arguments)

    monkeypatch.setattr(kind, "append", anew)
    with pytest.raises(CommandError, match="Topic 'things' was made anew or removed while its events were") as raised:
        run(topic, "--to", tmp_path, format=format)

    assert raised.value.returncode == 1
    assert read_back(tmp_path, format) == []


@FORMATS
def test_what_retention_removed_is_said(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(*(Draft(value=n) for n in range(50)), segment_size=100)
    run(topic, "--to", tmp_path, format=format)
    publish(topic, *range(200))
    drop_first_segment(topic)

    with pytest.raises(CommandError, match="Events 51 to 100 of topic 'things' have expired"):
        run(topic, "--to", tmp_path, format=format)
    assert run(topic, "--to", tmp_path, "--allow-loss", format=format).startswith("Exported 150 events")
    assert [row["offset"] for row in read_back(tmp_path, format)] == [*range(1, 51), *range(101, 251)]


@FORMATS
@pytest.mark.requirement("X15")
def test_a_column_is_added_and_another_type_refused(
    log: Log, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa

    from django_events.exporting.tables import delta, iceberg, table

    topic = log(*(Draft(value=n, key="k") for n in range(10)))
    fewer = pa.schema([field for field in SCHEMA if field.name != "key"])
    others = pa.schema([pa.field("offset", pa.string()) if f.name == "offset" else f for f in SCHEMA])
    with monkeypatch.context() as patched:
        patched.setattr(delta, "WITH_DAY", fewer.append(delta.DAY))
        patched.setattr(iceberg, "SCHEMA", fewer)
        table_of(tmp_path, format, topic)
    run(topic, "--to", tmp_path, format=format)
    assert read_back(tmp_path, format) == stored(topic)

    publish(topic, 1)
    monkeypatch.setattr(table, "SCHEMA", others)
    with pytest.raises(CommandError, match=r"Column 'offset' of .* is int64, and that of events is string"):
        run(topic, "--to", tmp_path, format=format)


@FORMATS
def test_a_folder_that_can_not_be_made_is_named(log: Log, format: str) -> None:
    topic = log(Draft(value=1))

    # A user without the rights of root is told of these first.
    with pytest.raises(CommandError, match=r"^/proc/x can't be made: |^Permission denied.* \(/proc/x\)") as raised:
        run(topic, "--to", "/proc/x", format=format)
    assert raised.value.returncode == 1


@pytest.mark.slow
@FORMATS
def test_a_full_disk_is_said_and_finished_later(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(*(Draft(value=os.urandom(30_000).hex()) for _ in range(60)))
    small = tmp_path / "small"
    with small_disk(small):
        with pytest.raises(CommandError, match="The disk is full") as raised:
            run(topic, "--to", small, "--part", 20, format=format)
        assert raised.value.returncode == 1
        enlarge(small)
        run(topic, "--to", small, format=format)
        assert read_back(small, format) == stored(topic)


@pytest.mark.slow
@pytest.mark.requirement("X15")
def test_a_delta_table_may_be_in_an_object_store(log: Log, bucket: str) -> None:
    topic = log(*(Draft(value=n) for n in range(30)))

    run(topic, "--to", bucket, "--part", 10, format="delta")
    publish(topic, *range(5))
    run(topic, "--to", bucket, "--compact", format="delta")

    table = DeltaTable(f"{bucket}/{topic}")
    assert sorted(table.to_pyarrow_table()["offset"].to_pylist()) == list(range(1, 36))
    assert len(table.file_uris()) == 1


@pytest.mark.slow
def test_a_prefix_of_others_is_refused(log: Log, bucket: str) -> None:
    topic = log(Draft(value=1))
    other = f"{os.environ['AWS_ENDPOINT_URL']}/lake/events/{topic}/other.parquet"
    urlopen(Request(other, method="PUT", data=b"x")).close()

    with pytest.raises(CommandError, match=r"holds 'other.parquet', and is no Delta table\. Take an empty folder"):
        run(topic, "--to", bucket, format="delta")
    assert not DeltaTable.is_deltatable(f"{bucket}/{topic}")


@pytest.mark.slow
@pytest.mark.parametrize("there", ["", "_SUCCESS", ".keep", "_delta_log/"])
def test_what_readers_pass_over_may_be_below_a_prefix(log: Log, bucket: str, there: str) -> None:
    topic = log(Draft(value=1))
    for key in {f"{topic}/", f"{topic}/{there}"}:
        urlopen(Request(f"{os.environ['AWS_ENDPOINT_URL']}/lake/events/{key}", method="PUT", data=b"")).close()

    assert run(topic, "--to", bucket, format="delta").startswith("Exported 1 events")
    assert DeltaTable(f"{bucket}/{topic}").to_pyarrow_table().num_rows == 1


@FORMATS
@pytest.mark.parametrize("there", [".DS_Store", "_SUCCESS", "lost+found"])
def test_what_readers_pass_over_may_be_in_the_folder(log: Log, tmp_path: Path, format: str, there: str) -> None:
    topic = log(Draft(value=1))
    folder = tmp_path / f"{topic}" if format == "delta" else tmp_path
    folder.mkdir(exist_ok=True)
    (folder / there).touch()

    run(topic, "--to", tmp_path, format=format)

    assert read_back(tmp_path, format) == stored(topic)


@pytest.mark.slow
@pytest.mark.requirement("X15")
def test_of_many_that_append_to_an_object_store_at_once_one_wins(log: Log, bucket: str) -> None:
    topic = log(Draft(value=1))
    place, known = f"{bucket}/{topic}", incarnation(topic)
    rivals = [DeltaEvents(place, str(topic), known) for _ in range(8)]
    row = SCHEMA.empty_table().to_pylist() or [dict.fromkeys(SCHEMA.names)]

    def append(rival: DeltaEvents) -> bool:
        assert rival.mark() is None
        start.wait(60)
        try:
            rival.append(pa.Table.from_pylist(row, SCHEMA).to_batches(), Mark(known, 2))
        except Conflict:
            return False
        return True

    start = Barrier(len(rivals))
    with ThreadPoolExecutor(len(rivals)) as pool:
        won = list(pool.map(append, rivals))

    assert sum(won) == 1
    assert DeltaTable(place).to_pyarrow_table().num_rows == 1


@pytest.mark.parametrize("name", ["a#b", "a%20b"])
def test_a_path_that_is_none_in_an_address_is_said(log: Log, tmp_path: Path, name: str) -> None:
    topic = log(Draft(value=1))

    with pytest.raises(CommandError, match=r"has a meaning in the addresses .* Say a path without # % \?") as raised:
        run(topic, "--to", tmp_path / name, format="iceberg")

    assert raised.value.returncode == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--by", "type"], "Tables are partitioned by day: leave --by out."),
        (["--resume"], "--resume is not for --format delta: each run goes on where the table ends."),
        (["--threads", "0"], "--threads is at least 1."),
        (["--target-size", "1GB"], "--target-size of a table is for --compact, which merges files up to that size."),
        (["--compact", "--target-size", "much"], "'much' is no size, expected one like 128MB."),
        (["--catalog", "x"], "--catalog is for --format iceberg."),
        (["--follow", "--until", "3"], "--until ends an export, and --follow goes on: say one of them."),
        (["--every", "0"], "--every is more than 0 seconds."),
        (["--part", "0"], "--part is at least 1."),
    ],
)
def test_what_cannot_be_exported_is_said(log: Log, tmp_path: Path, arguments: list[str], said: str) -> None:
    topic = log(Draft(value=1))

    with pytest.raises(CommandError) as raised:
        run(topic, "--to", tmp_path, *arguments, format="delta")

    assert said in str(raised.value)
    assert raised.value.returncode == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_reader_that_makes_the_catalogue_at_the_same_moment_is_no_error(log: Log, tmp_path: Path) -> None:
    topic, made = log(Draft(value=1)), []

    @event.listens_for(Engine, "before_cursor_execute")
    def make_it_first(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.lstrip().startswith("CREATE TABLE"):
            made.append(statement)
            with closing(sqlite3.connect(tmp_path / "catalog.db")) as reader:
                reader.execute(statement)

    try:
        assert run(topic, "--to", tmp_path, format="iceberg").startswith("Exported 1 event")
    finally:
        event.remove(Engine, "before_cursor_execute", make_it_first)

    assert len(made) == 2
    assert read_back(tmp_path, "iceberg") == stored(topic)


@pytest.mark.parametrize("words", [[], ["--threads", 1], pytest.param(["--upsert"], marks=pytest.mark.slow)])
def test_manifests_of_iceberg_are_merged(
    log: Log, tmp_path: Path, words: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each commit would read the list of all, and each query all of them."""
    monkeypatch.setitem(PROPERTIES, "commit.manifest.min-count-to-merge", "3")
    topic = log(*(Draft(value=n, key=str(n)) for n in range(8)))

    run(topic, "--to", tmp_path, "--part", 1, *words, format="iceberg")

    with closing(in_folder(str(tmp_path)).catalog) as catalog:
        table = catalog.load_table((NAMESPACE, str(topic)))
        assert len(table.current_snapshot().manifests(table.io)) <= 3
    assert read_back(tmp_path, "iceberg") == stored(topic)
    erase(topic, ids=[2], reason="asked for")
    run(topic, "--to", tmp_path, "--erase", "--compact", "--expire", 0, *words, format="iceberg")
    assert [row["offset"] for row in read_back(tmp_path, "iceberg")] == [
        1,
        *(() if "--upsert" in words else (2,)),
        *range(3, 9),
    ]
