"""What exports meet that they have not made: unreadable events, settings of others, limits of a role, damaged files."""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.test import override_settings
from psycopg.conninfo import make_conninfo

from django_events import Draft, publish_many
from django_events.exporting import comparing, storage
from django_events.exporting.batches import Batches
from django_events.exporting.journal import Journal
from django_events.exporting.local import Connections
from django_events.exporting.range_files import RangeFiles
from django_events.exporting.storage import OfDisk
from django_events.exporting.tables.delta import CHANGES, DeltaEvents
from django_events.exporting.tables.iceberg import IcebergEvents
from django_events.exporting.tables.iceberg_catalogs import NAMESPACE, in_folder
from django_events.management.commands import export_events
from django_events.models import Intervention, Topic
from django_events.operations import erase
from django_events.reading.dsn import Dsn
from tests.integration.exporting import test_typed_exports as typed
from tests.integration.exporting.test_comparing import export, verify
from tests.integration.exporting.test_erasing import drafts, read_back
from tests.spark.rivals import end_locks
from tests.spark.test_batch import publish, stored
from tests.support.disturbing import tried
from tests.support.logs import move

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X15")]

Log = Callable[..., Any]
SLOW = [pytest.param(format, marks=pytest.mark.slow) for format in ("delta", "iceberg")]


def publish_unreadable(topic: Any, key: str, metadata: dict[str, Any]) -> None:
    """An event whose JSON can't be made into text: it is an array in an array, 13,000 times."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO django_events_bufferedevent (topic_id, type, key, value, metadata)"
            " SELECT id, 't', %s, (repeat('[', 13000) || repeat(']', 13000))::jsonb, %s::jsonb"
            " FROM django_events_topic WHERE name = %s",
            [key, json.dumps(metadata), str(topic)],
        )
    move()


@pytest.mark.parametrize("format", ["parquet", "json", *SLOW])
def test_the_metadata_of_an_event_that_could_not_be_read_is_erased(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(Draft(value=1, key="other"))
    publish_unreadable(topic, "k0", {"email": "alice@example.org"})
    export(topic, tmp_path, format=format)
    if format != "json":
        assert [one["erased"] for one in verify(tmp_path)[0]["topics"]] == [0]
    erase(topic, key="k0", reason="asked for")
    if format != "json":
        said, _ = verify(tmp_path)
        assert (said["proved"], len(said["notes"])) == (True, 1)

    export(topic, tmp_path, "--erase", format=format)

    assert "alice" not in str(read_back(tmp_path, format))
    if format != "json":
        said, _ = verify(tmp_path)
        assert (said["proved"], said["notes"], said["topics"][0]["erased"]) == (True, [], 1)


def test_metadata_that_came_back_are_told(log: Log, tmp_path: Path) -> None:
    topic = log(*(Draft(value=n, key="k0", metadata={"email": "alice"}) for n in range(3)))
    export(topic, tmp_path, format="parquet")
    erase(topic, key="k0", reason="asked for")
    export(topic, tmp_path, "--erase", format="parquet")
    [file] = tmp_path.rglob("part-*.parquet")
    rows = pq.read_table(file, partitioning=None)
    came_back = pa.array(['{"email": "alice"}'] * len(rows))
    pq.write_table(rows.set_column(rows.column_names.index("metadata"), "metadata", came_back), file)

    said, code = verify(tmp_path)

    assert ({one["kind"] for one in said["findings"]}, code) == ({"not erased"}, 1)


@pytest.mark.parametrize("format", ["delta", "iceberg"])
def test_a_state_whose_newest_event_can_not_be_read_stays(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(Draft(value=1, key="k0"))
    export(topic, tmp_path, "--upsert", format=format)
    publish_unreadable(topic, "k0", {})

    export(topic, tmp_path, "--upsert", format=format)

    [row] = read_back(tmp_path, format)
    assert (row["offset"], row["value"]) == (2, None)
    assert "unreadable" in json.loads(row["metadata"])


# --- settings of others


def keep_no_bounds(topic: Any, to: Path, metrics: str) -> None:
    with (
        closing(in_folder(str(to)).catalog) as catalog,
        catalog.load_table((NAMESPACE, str(topic))).transaction() as change,
    ):
        change.set_properties({"write.metadata.metrics.default": metrics})
        change.remove_properties("write.metadata.metrics.column.offset")


@pytest.fixture
def keeps_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an older version leaves a table: its commits don't ask for the bounds of ids."""
    monkeypatch.setattr(IcebergEvents, "_make_ready", lambda self: None)


@pytest.mark.usefixtures("keeps_its_settings")
@pytest.mark.parametrize("metrics", ["counts", pytest.param("none", marks=pytest.mark.slow)])
def test_files_without_bounds_are_erased_in(log: Log, tmp_path: Path, metrics: str) -> None:
    topic = log(*drafts(5))
    export(topic, tmp_path, format="iceberg")
    keep_no_bounds(topic, tmp_path, metrics)
    with transaction.atomic():
        publish_many(topic, drafts(10))
    move()
    export(topic, tmp_path, format="iceberg")
    erase(topic, key="k0", reason="asked for")

    export(topic, tmp_path, "--erase", format="iceberg")

    assert "Sesame0" not in str(read_back(tmp_path, "iceberg"))
    assert verify(tmp_path)[0]["proved"]


@pytest.mark.usefixtures("keeps_its_settings")
def test_states_in_files_without_bounds_are_replaced(log: Log, tmp_path: Path) -> None:
    topic = log(*drafts(5))
    export(topic, tmp_path, "--upsert", format="iceberg")
    keep_no_bounds(topic, tmp_path, "counts")
    for _ in range(3):
        with transaction.atomic():
            publish_many(topic, drafts(5))
        move()
        export(topic, tmp_path, "--upsert", format="iceberg")

    assert sorted(row["key"] for row in read_back(tmp_path, "iceberg")) == [f"k{n}" for n in range(5)]


def test_an_export_has_the_bounds_of_ids_written(log: Log, tmp_path: Path) -> None:
    topic = log(*drafts(5))
    export(topic, tmp_path, format="iceberg")
    keep_no_bounds(topic, tmp_path, "none")
    publish(topic, 1)
    export(topic, tmp_path, format="iceberg")

    with closing(in_folder(str(tmp_path)).catalog) as catalog:
        files = catalog.load_table((NAMESPACE, str(topic))).inspect.data_files().to_pylist()
    assert all(file["readable_metrics"]["offset"]["lower_bound"] is not None for file in files)


@pytest.mark.parametrize("words", [(), ("--upsert",)])
def test_a_table_that_keeps_a_feed_of_changes_is_not_erased_in(log: Log, tmp_path: Path, words: tuple[str]) -> None:
    topic = log(*drafts(5))
    export(topic, tmp_path, *words, format="delta")
    table = DeltaTable(f"{tmp_path}/{topic}")
    table.alter.set_table_properties({CHANGES: "true"})
    erase(topic, key="k0", reason="asked for")

    with pytest.raises(CommandError, match=f"has {CHANGES} set, .* Nothing was erased"):
        export(topic, tmp_path, *words, "--erase", format="delta")
    table.update_incremental()
    table.alter.set_table_properties({CHANGES: "false"})
    export(topic, tmp_path, *words, "--erase", format="delta")

    assert "Sesame0" not in str(read_back(tmp_path, "delta"))


@pytest.mark.parametrize("setting", ["idle_session_timeout", "transaction_timeout"])
@pytest.mark.parametrize("format", ["parquet", pytest.param("delta", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_limits_of_a_role_end_no_export(
    log: Log, tmp_path: Path, dsn: str, monkeypatch: pytest.MonkeyPatch, setting: str, format: str
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_settings WHERE name = %s", [setting])
        if cursor.fetchall() == [(0,)]:
            pytest.skip(f"this PostgreSQL has no {setting}")
    topic = log(*(Draft(value=n) for n in range(20)))
    monkeypatch.setattr(export_events, "dsn_of", lambda using: make_conninfo(dsn, options=f"-c {setting}=1s"))
    write, append = RangeFiles.write, DeltaEvents.append

    def write_slowly(self: Any, *of: Any, **how: Any) -> Any:
        done = write(self, *of, **how)
        time.sleep(2)  # longer than the limit
        return done

    def append_slowly(self: Any, *of: Any) -> None:
        append(self, *of)
        time.sleep(2)

    monkeypatch.setattr(RangeFiles, "write", write_slowly)
    monkeypatch.setattr(DeltaEvents, "append", append_slowly)

    export(topic, tmp_path, format=format)

    assert read_back(tmp_path, format) == stored(topic)


@pytest.mark.parametrize("format", ["parquet", pytest.param("delta", marks=pytest.mark.slow)])
def test_a_key_that_was_erased_by_two_secrets_is_no_difference(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(*drafts())
    export(topic, tmp_path, format=format)
    erase(topic, key="k0", reason="asked for", forget_key=True)
    first = Intervention.objects.get(action="erase").pk
    with override_settings(SECRET_KEY="another", SECRET_KEY_FALLBACKS=[]):
        erase(topic, key="k0", reason="asked for", forget_key=True)
        assert f"say --without {first}" in tried(lambda: export(topic, tmp_path, "--erase", format=format))
        export(topic, tmp_path, "--erase", "--without", first, format=format)

        said, _ = verify(tmp_path)

    assert (said["proved"], said["findings"], said["notes"]) == (True, [], [])


# --- two at once, and too late


@pytest.mark.parametrize("format", SLOW)
def test_a_lock_that_is_lost_with_a_commit_on_its_way_is_no_reason_to_say_that_it_does_not_count(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    topic = log(*(Draft(value=n) for n in range(20)))
    kind = DeltaEvents if format == "delta" else IcebergEvents
    append = kind.append

    def append_late(self: Any, events: Iterator[pa.RecordBatch], mark: Any) -> None:
        read = list(events)
        end_locks()
        append(self, iter(read), mark)

    monkeypatch.setattr(kind, "append", append_late)

    said = tried(lambda: export(topic, tmp_path, format=format))

    assert "What was committed stays, and the next run goes on behind it. Run it again." in said
    assert len(read_back(tmp_path, format)) == 20


def test_a_draft_that_a_later_run_has_cleared_is_told_of_that_run(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*(Draft(value=n) for n in range(20)))
    make, later = storage.make_folder, list[str]()

    def make_late(folder: Path) -> None:
        make(folder)
        if folder.parent.name == "attempts" and folder.name.startswith("000000000002") and not later:
            later.append("")
            end_locks()
            export(topic, tmp_path, format="parquet")
            publish(topic, 1, 2)
            export(topic, tmp_path, format="parquet")

    monkeypatch.setattr(storage, "make_folder", make_late)

    said = tried(lambda: export(topic, tmp_path, format="parquet"))

    assert "with it the lock on" in said or f"Another run has taken {tmp_path} over" in said
    assert read_back(tmp_path, "parquet") == stored(topic)


def test_what_is_exported_while_another_topic_is_compared_is_no_difference(
    log: Log, make_topic: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = log(Draft(value=1), topic=make_topic("aaa")), log(Draft(value=1), topic=make_topic("bbb"))
    for topic in (one, two):
        export(topic, tmp_path, format="parquet")
    publish(two, 5, 6)
    compare = comparing.EventsComparison.compare
    added = list[str]()

    def compare_slowly(self: Any) -> None:
        compare(self)
        if not added:
            added.append(export(two, tmp_path, format="parquet"))

    monkeypatch.setattr(comparing.EventsComparison, "compare", compare_slowly)

    said, _ = verify(tmp_path)

    assert (said["proved"], [one["events"] for one in said["topics"]]) == (True, [1, 3])


def test_what_is_not_shown_yet_is_not_taken_for_removed(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*drafts())
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "_show", lambda self, attempt, folder: None)  # killed right before
        export(topic, tmp_path, format="parquet")

    with pytest.raises(CommandError, match="files that count, and that readers don't see yet"):
        verify(tmp_path)
    export(topic, tmp_path, format="parquet")
    assert verify(tmp_path)[0]["proved"]


def test_a_connection_that_is_closed_keeps_no_other_from_being_cut(dsn: str) -> None:
    connections, found = Connections(), Dsn(dsn)
    with suppress(psycopg.OperationalError), connections.one(found) as closed, connections.one(found) as other:
        closed.close()
        connections.cut()
        with pytest.raises(psycopg.OperationalError):
            other.execute("SELECT 1")


# --- files


def test_the_mode_of_a_file_is_kept_by_an_erasure(log: Log, tmp_path: Path) -> None:
    topic = log(*drafts())
    export(topic, tmp_path, format="parquet")
    [file] = tmp_path.rglob("part-*.parquet")
    file.chmod(0o600)
    erase(topic, key="k0", reason="asked for")

    export(topic, tmp_path, "--erase", format="parquet")

    [file] = tmp_path.rglob("part-*.parquet")
    assert file.stat().st_mode & 0o777 == 0o600


def test_files_that_readers_pass_over_are_no_difference(log: Log, tmp_path: Path) -> None:
    topic = log(*drafts())
    export(topic, tmp_path, format="parquet")
    [file] = tmp_path.rglob("part-*.parquet")
    (file.parent / f".{file.name}").write_bytes(file.read_bytes())

    assert verify(tmp_path)[0]["proved"]


def test_a_copy_of_a_file_is_told_wherever_a_reader_finds_it(log: Log, tmp_path: Path) -> None:
    topic = log(*drafts())
    export(topic, tmp_path, format="parquet")
    [file] = tmp_path.rglob("part-*.parquet")
    copy = shutil.copy(file, file.with_name("copy"))  # Spark reads it whatever its suffix is
    assert {one["kind"] for one in verify(tmp_path)[0]["findings"]} == {"twice"}

    shutil.move(copy, tmp_path / "copy.parquet")
    said, code = verify(tmp_path)

    [one] = said["findings"]
    assert (one["kind"], one["topic"], code) == ("strange", None, 1)
    assert f"{tmp_path}/copy.parquet is none of the export's" in one["what"]
    assert verify(tmp_path, "--topic", topic)[0]["proved"]  # whose readers don't see it
    out = StringIO()
    with pytest.raises(SystemExit):
        call_command("events", "verify", "--against", str(tmp_path), stdout=out)
    assert f"strange: {tmp_path}/copy.parquet is none" in out.getvalue()


def test_a_column_that_one_of_several_files_lost_is_told_of_its_events(log: Log, tmp_path: Path) -> None:
    topic = log(*drafts())
    export(topic, tmp_path, "--part", 2, format="parquet")
    file = min(tmp_path.rglob("part-*.parquet"))
    pq.write_table(pq.read_table(file, partitioning=None).drop_columns("key"), file)

    said, _ = verify(tmp_path)

    assert {(one["kind"], one["id"]) for one in said["findings"]} == {("differs", 1), ("differs", 2)}
    assert all("key" in one["what"] for one in said["findings"])


@pytest.mark.parametrize(("by", "former", "new"), [("day", "day=*", "day=2001-01-01"), ("type", "*=t", "event_type=u")])
def test_a_folder_with_another_name_is_told(log: Log, tmp_path: Path, by: str, former: str, new: str) -> None:
    topic = log(*(Draft(value=n, type="t") for n in range(3)))
    export(topic, tmp_path, "--by", by, format="parquet")
    assert verify(tmp_path)[0]["proved"]
    [folder] = tmp_path.glob(f"*/*/{former}")
    folder.rename(folder.with_name(new))

    said, _ = verify(tmp_path)

    assert [(one["kind"], one["id"]) for one in said["findings"]] == [("differs", 1), ("differs", 2), ("differs", 3)]
    assert "It lies in the folder of another time or type." in said["findings"][0]["what"]


def linked(folder: Path, to: Path) -> None:
    """Move a folder to another place, and leave a link."""
    shutil.move(folder, to)
    folder.symlink_to(to)


def test_what_is_behind_a_link_is_compared_and_erased(log: Log, tmp_path: Path) -> None:
    topic, lake = log(*drafts()), tmp_path / "lake"
    export(topic, lake, "--part", 2, "--by", "day", format="parquet")
    first, *_ = sorted(lake.glob("*/ids=*"))
    [day] = first.glob("day=*")
    linked(day, tmp_path / "of another day")
    linked(first, tmp_path / "elsewhere")
    (first / "itself").symlink_to(lake)

    assert verify(lake)[0]["proved"]
    erase(topic, key="k0", reason="asked for")
    export(topic, lake, "--erase", "--by", "day", format="parquet")

    assert verify(lake)[0]["proved"]
    files = [pq.read_table(file, partitioning=None) for file in tmp_path.rglob("part-*.parquet")]
    of_key = [row["value"] for file in files for row in file.to_pylist() if row["key"] == "k0"]
    assert of_key and set(of_key) == {None}


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("this machine has no /dev/shm, which would be another disk than that of temporary files")
    with TemporaryDirectory(dir=memory) as found:
        yield Path(found)


def test_a_folder_on_another_disk_is_refused_and_nothing_is_lost(log: Log, tmp_path: Path, other_disk: Path) -> None:
    topic, lake = log(*drafts()), tmp_path / "lake"
    export(topic, lake, format="parquet")
    linked(lake / f"topic={topic}", other_disk / "moved")
    publish(topic, 1, 2)
    erase(topic, key="k0", reason="asked for")

    with pytest.raises(CommandError, match="on another disk, by a link or a mount"):
        export(topic, lake, format="parquet")
    (lake / f"topic={topic}").unlink()
    shutil.move(other_disk / "moved", lake / f"topic={topic}")
    export(topic, lake, "--erase", format="parquet")

    assert verify(lake)[0]["proved"]


def test_a_file_that_is_not_whole_is_named_by_an_erasure(log: Log, tmp_path: Path) -> None:
    topic = log(*drafts())
    export(topic, tmp_path, format="parquet")
    erase(topic, key="k0", reason="asked for")
    [file] = tmp_path.rglob("part-*.parquet")
    file.write_bytes(file.read_bytes()[:-5])

    with pytest.raises(CommandError, match=f"{file.name} can't be read, so what is erased can't be found in it"):
        export(topic, tmp_path, "--erase", format="parquet")


@contextmanager
def refused(said: str) -> Iterator[None]:
    with pytest.raises(CommandError, match=said):
        yield


def test_files_that_hold_no_events_are_named(log: Log, tmp_path: Path) -> None:
    topic = log(*drafts())
    export(topic, tmp_path, format="parquet")
    [file] = tmp_path.rglob("part-*.parquet")
    pq.write_table(pa.table({"n": [1]}), foreign := file.with_name("foreign.parquet"))
    with refused(f"{foreign} has no column 'offset'"):
        verify(tmp_path)
    foreign.unlink()
    file.write_bytes(file.read_bytes()[:100])
    with refused(f"{file} can't be read: "):
        verify(tmp_path)


@pytest.mark.slow
def test_typed_columns_of_which_a_type_lost_its_own_are_told(log: Log, dsn: str, tmp_path: Path) -> None:
    topic = log(typed.placed(total="1", number=2), Draft(value={"card": "x"}, type="order.paid"))
    with typed.declared(typed.Placed, typed.Paid):
        typed.export("parquet", topic, tmp_path, "--columns", "typed")
    assert verify(tmp_path)[0]["proved"]

    typed.rewritten("parquet", tmp_path, topic, lambda rows: rows[1]["data"].update(order_placed=None))

    said, _ = verify(tmp_path)
    assert [(one["kind"], one["id"]) for one in said["findings"]] == [("differs", 1)]


def test_a_proof_of_the_last_ids_says_so(log: Log, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topic = log(*drafts())
    export(topic, tmp_path, format="parquet")

    call_command("events", "verify", "--against", str(tmp_path), "--last", "5")

    out = capsys.readouterr().out
    assert f"Proved: {tmp_path} and the log have the same of the last 5 ids, each once." in out
    assert "begins at" not in out


def test_a_second_export_in_the_same_folder_is_compared_too(log: Log, tmp_path: Path) -> None:
    topic = log(*drafts(30))
    for format in ("parquet", "delta"):
        export(topic, tmp_path, format=format)
    DeltaTable(f"{tmp_path}/{topic}").delete("offset = 7")

    said, _ = verify(tmp_path)

    assert [(one["kind"], one["id"]) for one in said["findings"]] == [("missing", 7)]
    assert len(said["topics"]) == 2


def test_files_of_a_topic_that_is_gone_are_said(log: Log, make_topic: Any, tmp_path: Path) -> None:
    for name in ("aaa", "bbb"):
        export(log(Draft(value=1), topic=make_topic(name)), tmp_path, format="parquet")
    Topic.objects.filter(name="bbb").update(name="renamed")

    said, _ = verify(tmp_path)

    Topic.objects.filter(name="renamed").update(name="bbb")
    assert said["notes"] == [f"{tmp_path} has files of bbb, which the database doesn't have: not compared."]


def test_a_folder_of_a_follower_is_not_compared(log: Log, tmp_path: Path) -> None:
    log(*drafts())
    Batches(OfDisk(), str(tmp_path)).begin("parquet", ())

    with refused("Of folders, only what export_events has written is compared. .* holds what stream_events writes"):
        verify(tmp_path)
