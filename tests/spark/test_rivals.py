"""Two at once, half dead, too late: each event is in the files once, whatever else writes."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import connections

from django_events import Draft
from django_events.exceptions import Invalid, Refused
from django_events.exporting.batches import Batches
from django_events.exporting.export import Export, export
from django_events.exporting.parts import Parts
from django_events.exporting.storage import OfDisk
from django_events.models import Topic
from django_events.spark.exporting import engine, files, storage
from django_events.spark.exporting.storage import OfHadoop, OfObjects
from django_events.spark.exporting.stream_export import Follow, _Files
from tests.spark.rivals import (
    BATCHES,
    EVENTS,
    FREEZES,
    LOSSES,
    ROUNDS,
    SLOWLY,
    Standing,
    a_part_is_lost_while_it_writes,
    end_locks,
    export_that_wakes_up_too_late,
    follower_that_wakes_up_too_late,
    ids,
    left_over,
    rival,
    two_followers_after_a_kill,
    two_followers_at_once_after_a_kill,
)
from tests.spark.test_batch import stored
from tests.spark.test_export import exported, run
from tests.support.processes import wait_until

pytestmark = [pytest.mark.usefixtures("transactional_db", "spark"), pytest.mark.timeout(600)]


@pytest.mark.requirement("X1")
@pytest.mark.parametrize(("round", "frozen"), [(n, FREEZES[n % 3]) for n in range(max(ROUNDS, 3))])
def test_an_export_that_lost_its_lock_and_wakes_up_changes_nothing(
    first: Standing, things: Any, tmp_path: Path, frozen: str, round: int
) -> None:
    export_that_wakes_up_too_late(first, things, tmp_path, frozen=frozen)


@pytest.mark.requirement("X1")
@pytest.mark.parametrize(
    ("round", "how"), [(n, (signal.SIGKILL, signal.SIGSTOP)[n % 2]) for n in range(max(ROUNDS, 2))]
)
def test_a_task_whose_python_is_killed_or_frozen_is_done_again_or_not_at_all(
    things: Any, tmp_path: Path, scratch: dict[str, str], how: signal.Signals, round: int
) -> None:
    """Killed, Spark begins its task again; frozen, it waits for it, until it loses its lock and gives it up."""
    out = tmp_path / "out"
    words = ("export_events", things, "--to", out, *SLOWLY)
    with rival(*words, said=tmp_path / "said", environment=scratch, master="local[2,4]") as first:
        first.wait_until_half_done(out)
        workers = first.workers()
        assert workers
        for worker in workers:
            with suppress(ProcessLookupError):
                os.kill(worker, how)
        if how == signal.SIGSTOP:
            end_locks()
            second = run(*words[1:])
            assert second.startswith(f"Exported {EVENTS:,} events")
            for worker in workers:
                with suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGCONT)
        assert first.end() == (0 if how == signal.SIGKILL else 1), first.said

    assert run(*words[1:]).startswith("Nothing to export")
    assert ids(out) == list(range(1, EVENTS + 1))
    assert left_over(out) == []


@pytest.mark.requirement("X1")
@pytest.mark.parametrize("round", range(ROUNDS))
def test_a_task_of_a_follower_whose_python_is_killed_is_done_again_or_not_at_all(
    things: Any, tmp_path: Path, scratch: dict[str, str], round: int
) -> None:
    """Spark begins its task again. Among what is killed may be the Python that plans batches: then the query ends."""
    out = tmp_path / "out"
    words = ("stream_events", things, "--to", out, "--by", "type", "--once", *BATCHES)
    with rival(*words, said=tmp_path / "said", environment=scratch, master="local[2,4]") as first:
        first.wait_until_half_done(out)
        workers = first.workers()
        assert workers
        for worker in workers:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
        assert first.end() in (0, 1), first.said

    assert run(*words[1:], command="stream_events").startswith("Events written: ")
    assert ids(out) == list(range(1, EVENTS + 1))
    assert left_over(out) == []


@pytest.mark.requirement("X1")
@pytest.mark.parametrize(("round", "lost"), [(n, LOSSES[n % 3]) for n in range(max(ROUNDS, 3))])
def test_an_export_whose_jvm_or_command_dies_is_completed(
    things: Any, tmp_path: Path, scratch: dict[str, str], lost: str, round: int
) -> None:
    out = tmp_path / "out"
    words = ("export_events", things, "--to", out, *SLOWLY)

    said = a_part_is_lost_while_it_writes(words, lost, tmp_path, scratch, master="local[2]")

    assert said.startswith(f"Exported {EVENTS:,} events")
    assert run(*words[1:]).startswith("Nothing to export")
    assert ids(out) == list(range(1, EVENTS + 1))
    assert left_over(out) == []


@pytest.mark.requirement("X1")
@pytest.mark.parametrize(("round", "lost"), [(n, LOSSES[n % 3]) for n in range(max(ROUNDS, 3))])
def test_a_follower_whose_jvm_or_command_dies_is_completed(
    things: Any, tmp_path: Path, scratch: dict[str, str], lost: str, round: int
) -> None:
    out = tmp_path / "out"
    words = ("stream_events", things, "--to", out, "--by", "type", "--once", *BATCHES)

    said = a_part_is_lost_while_it_writes(words, lost, tmp_path, scratch, master="local[2]")

    assert said.startswith("Events written: ")
    assert run(*words[1:], command="stream_events") == "Events written: 0.\n"
    assert ids(out) == list(range(1, EVENTS + 1))
    assert left_over(out) == []


@pytest.mark.requirement("X1")
@pytest.mark.parametrize(("round", "frozen"), [(n, FREEZES[n % 3]) for n in range(ROUNDS)])
def test_a_follower_that_lost_its_lock_and_wakes_up_changes_nothing(
    first: Standing, things: Any, tmp_path: Path, frozen: str, round: int
) -> None:
    follower_that_wakes_up_too_late(first, things, tmp_path, frozen=frozen)


@pytest.mark.requirement("X1")
@pytest.mark.parametrize("round", range(ROUNDS))
def test_of_two_followers_after_a_kill_one_works(
    first: Standing, things: Any, tmp_path: Path, scratch: dict[str, str], round: int
) -> None:
    two_followers_after_a_kill(first, things, tmp_path, scratch)


@pytest.mark.requirement("X1")
@pytest.mark.parametrize("round", range(ROUNDS))
def test_two_followers_at_once_after_a_kill_write_each_event_once(
    first: Standing, things: Any, tmp_path: Path, scratch: dict[str, str], round: int
) -> None:
    two_followers_at_once_after_a_kill(first, things, tmp_path, scratch)


@pytest.mark.requirement("X1")
@pytest.mark.parametrize("round", range(ROUNDS * 3))
def test_two_exports_at_once_when_the_lock_is_lost(
    spark: Any, things: Any, tmp_path: Path, dsn: str, round: int
) -> None:
    """Neither is frozen: the second one begins while Spark writes for the first."""
    wanted = Export(
        dsn=dsn, topics=("things",), path=str(tmp_path), by=(), target_size=4 << 10, events_per_part=EVENTS // 2
    )

    def go() -> str:
        try:
            export(engine.SparkEngine(spark), wanted)
        except Refused as error:
            return str(error)
        finally:
            connections.close_all()
        return ""

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(go)
        wait_until(lambda: first.done() or any(tmp_path.rglob("part-*")), what="files of the first one")
        assert not first.done()
        end_locks()
        second = pool.submit(go)
        assert "was lost, and with it the lock on" in first.result() or "has taken" in first.result()
        assert second.result() == "" or "has taken" in second.result()
    export(engine.SparkEngine(spark), wanted)

    assert ids(tmp_path) == list(range(1, EVENTS + 1))
    assert Parts(OfDisk(), str(tmp_path)).unfinished == []
    assert left_over(tmp_path) == []


@pytest.mark.requirement("X1")
@pytest.mark.parametrize("round", range(ROUNDS * 3))
def test_two_followers_at_once_in_the_same_batch(spark: Any, things: Any, tmp_path: Path, dsn: str, round: int) -> None:
    """As if there were no lock at all: the later one takes over, and the earlier one adds nothing."""
    wanted = Follow(dsn=dsn, topics=("things",), path=str(tmp_path), by=("type",))
    topic_id = Topic.objects.get(name="things").pk
    frame = spark.createDataFrame(
        [("things", topic_id, 1, EVENTS + 1)], "topic string, topic_id bigint, start bigint, end bigint"
    )

    def begun() -> _Files:
        journal = Batches(OfDisk(), str(tmp_path))
        journal.begin(wanted.format, wanted.by)
        return _Files(wanted, journal.run)

    def go(write: _Files) -> str:
        try:
            write(frame, 0)
        except Exception as error:  # of Spark, when its files are cleared
            return str(error) or repr(error)
        return ""

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(go, begun())
        wait_until(lambda: first.done() or any(tmp_path.rglob("part-*")), what="files of the first one")
        second = pool.submit(go, begun())
        assert first.result() or Batches(OfDisk(), str(tmp_path)).rows == EVENTS
        assert second.result() == ""
    begun()(frame, 0)

    assert ids(tmp_path) == list(range(1, EVENTS + 1))
    assert Batches(OfDisk(), str(tmp_path)).rows == EVENTS
    begun()
    assert left_over(tmp_path) == []


class OnDisk(OfObjects):
    """The calls for objects, on a disk: it makes a file unless it is there, though not in one step."""

    def _makes_once(self, path: str) -> bool:
        return True

    def _made_once(self, place: Any) -> Any:
        return self._files.createFile(place).recursive().overwrite(False).build()


@pytest.mark.parametrize("kind", [OfHadoop, OnDisk])
def test_another_file_system_keeps_the_same_journal(
    spark: Any, log: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: type[OfHadoop]
) -> None:
    """The calls of Hadoop, which HDFS and object stores are reached by, on a disk."""
    topic = log(*(Draft(value=n) for n in range(10)))
    monkeypatch.setattr(engine, "storage_of", kind)

    assert run(topic, "--to", tmp_path, "--part", 4).startswith("Exported 10 events")
    assert run(topic, "--to", tmp_path).startswith("Nothing to export")

    assert exported(spark, tmp_path) == stored(topic)
    assert left_over(tmp_path) == []
    place = kind(spark, str(tmp_path))
    assert place.add(f"{tmp_path}/b/file", "b", f"{tmp_path}/draft")
    assert not place.add(f"{tmp_path}/b/file", "a", f"{tmp_path}/draft")
    assert place.names(f"{tmp_path}/b") == ["file"]
    assert place.read(f"{tmp_path}/b/file") == "b"
    assert place.names(f"{tmp_path}/draft") == place.names(f"{tmp_path}/none") == []
    assert not place.show(f"{tmp_path}/none", f"{tmp_path}/c")


def test_hadoop_gives_no_folder_a_name_that_is_taken(spark: Any, tmp_path: Path) -> None:
    place = OfHadoop(spark, str(tmp_path))
    for folder in ("a", "b"):
        assert place.add(f"{tmp_path}/{folder}/file", folder, f"{tmp_path}/draft")

    assert not place.show(f"{tmp_path}/a", f"{tmp_path}/b")

    assert place.read(f"{tmp_path}/b/file") == "b"
    assert place.names(f"{tmp_path}/a") == ["file"]


@pytest.mark.parametrize("copies", range(4))
def test_objects_of_which_some_are_copied_are_completed(
    spark: Any, log: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copies: int
) -> None:
    """A store of objects has no step for a folder: a run that is killed while it copies is finished by the next."""
    topic = log(*(Draft(value=n, type=f"t{n}") for n in range(3)))
    left = [copies]
    move = OnDisk._move_object

    def dies(storage: OnDisk, source: Any, target: str) -> None:
        if not left[0]:
            raise InterruptedError("killed")
        left[0] -= 1
        move(storage, source, target)

    monkeypatch.setattr(engine, "storage_of", OnDisk)
    with monkeypatch.context() as patched:
        patched.setattr(OnDisk, "_move_object", dies)
        with pytest.raises(InterruptedError):
            run(topic, "--to", tmp_path, "--by", "type")

    assert run(topic, "--to", tmp_path, "--by", "type").startswith("Nothing to export")

    assert exported(spark, tmp_path) == stored(topic)
    assert left_over(tmp_path) == []


def test_what_a_late_task_writes_into_an_attempt_is_not_shown_with_its_objects(spark: Any, tmp_path: Path) -> None:
    attempt, late = tmp_path / "attempt", ("_temporary/0/task/part-1.parquet", "__magic/part-2.parquet")
    for name in ("_SUCCESS", "type=a/part-0.parquet", *late):
        (attempt / name).parent.mkdir(parents=True, exist_ok=True)
        (attempt / name).write_text(name)
    place = OnDisk(spark, str(tmp_path))

    assert place.show(str(attempt), f"{tmp_path}/batch")

    shown = {
        str(path.relative_to(tmp_path / "batch")) for path in (tmp_path / "batch").rglob("[!.]*") if path.is_file()
    }
    assert shown == {"_SUCCESS", "type=a/part-0.parquet"}
    assert not attempt.exists()


def test_an_object_that_cannot_be_copied_is_said_with_the_cause(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "attempt").mkdir()
    (tmp_path / "attempt/part-0.parquet").touch()
    (tmp_path / "batch").write_text("a file")
    place = OnDisk(spark, str(tmp_path))

    with pytest.raises(
        Refused, match=r"part-0\.parquet could not be copied to .*/batch/part-0\.parquet: There is a file where"
    ) as raised:
        place.show(str(tmp_path / "attempt"), f"{tmp_path}/batch")

    assert "mkdirs" in str(raised.value.__cause__)
    assert (tmp_path / "attempt/part-0.parquet").exists()


def test_a_store_without_a_step_that_decides_is_refused(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk stands for a store whose connector can't make an object unless it is there."""
    monkeypatch.setattr(storage, "OfHadoop", lambda spark, path: SimpleNamespace(scheme="s3a"))

    with pytest.raises(Invalid, match=r"Two runs could double events there\. Expected s3a:// of Hadoop 3\.4\.2"):
        storage.storage_of(spark, str(tmp_path))


def test_tasks_write_into_places_of_their_own_whatever_the_site_says(spark: Any, tmp_path: Path) -> None:
    """With the other algorithm of Hadoop's committer, a task that is late writes beside files that count."""
    frame = spark.range(0, 8, 1, 8).selectExpr("id AS offset", "if(id < 7, id, raise_error('no')) AS value")
    spark.conf.set("mapreduce.fileoutputcommitter.algorithm.version", "2")
    try:
        with pytest.raises(Exception, match="no"):
            files.writer(frame, "parquet", []).save(str(tmp_path / "out"))
    finally:
        spark.conf.unset("mapreduce.fileoutputcommitter.algorithm.version")

    # A task that still runs when the job is given up makes its own place anew: readers pass over that.
    assert {one.name for one in (tmp_path / "out").iterdir()} <= {"_temporary"}
