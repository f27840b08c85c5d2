"""Two at once, half dead, too late: each event is in the files once, whoever else writes."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError
from django.db import connections

from django_events import Draft
from django_events.exceptions import ExportRefused
from django_events.spark import export as exporting
from django_events.spark.batches import Batches
from django_events.spark.export import Export, export
from django_events.spark.parts import Parts
from django_events.spark.storage import OfDisk, OfHadoop
from django_events.spark.stream_export import Follow, _Files
from tests.processes import wait_until
from tests.spark.rivals import end_locks, held, ids, left_over, rival
from tests.spark.test_batch import stored
from tests.spark.test_export import exported, run

pytestmark = [pytest.mark.usefixtures("transactional_db", "spark"), pytest.mark.timeout(600)]

EVENTS = 16_000
ROUNDS = int(os.environ.get("SPARK_ROUNDS", "1"))


@pytest.fixture
def things(log: Callable[..., Any]) -> Any:
    return log(*(Draft(value=n, type=f"t{n % 16}") for n in range(EVENTS)))


@pytest.mark.requirement("X1")
@pytest.mark.parametrize("round", range(ROUNDS))
@pytest.mark.parametrize("frozen", ["all", "python", "jvm"])
def test_an_export_that_lost_its_lock_and_wakes_up_changes_nothing(
    things: Any, tmp_path: Path, scratch: dict[str, str], frozen: str, round: int
) -> None:
    out = tmp_path / "out"
    words = ("export_events", things, "--to", out, "--by", "type")
    with rival(*words, said=tmp_path / "said", environment=scratch) as first:
        first.wait_until_half_done(out)
        first.freeze(frozen)
        end_locks()
        second = run(*words[1:])
        first.thaw(frozen)
        code = first.end()

    assert ids(out) == list(range(1, EVENTS + 1))
    assert second.startswith(f"Exported {EVENTS:,} events")
    assert code == 1, first.said
    assert "the lock on" in first.said
    assert run(*words[1:]).startswith("Nothing to export")
    assert left_over(out) == []


@pytest.mark.requirement("X1")
@pytest.mark.parametrize("round", range(ROUNDS))
def test_a_follower_that_lost_its_lock_and_wakes_up_changes_nothing(
    things: Any, tmp_path: Path, scratch: dict[str, str], round: int
) -> None:
    out = tmp_path / "out"
    words = ("stream_events", things, "--to", out, "--by", "type", "--once")
    with rival(*words, said=tmp_path / "said", environment=scratch) as first:
        first.wait_until_half_done(out)
        first.freeze()
        end_locks()
        second = run(*words[1:], command="stream_events")
        first.thaw()
        code = first.end()

    assert ids(out) == list(range(1, EVENTS + 1))
    assert second == f"Events written: {EVENTS:,}.\n"
    assert code == 1, first.said
    assert run(*words[1:], command="stream_events") == "Events written: 0.\n"
    assert left_over(out) == []


@pytest.mark.requirement("X1")
@pytest.mark.parametrize("round", range(ROUNDS))
def test_of_two_followers_after_a_kill_one_works(
    things: Any, tmp_path: Path, scratch: dict[str, str], round: int
) -> None:
    out = tmp_path / "out"
    words = ("stream_events", things, "--to", out, "--by", "type", "--once")
    with rival(*words, said=tmp_path / "killed", environment=scratch) as first:
        first.wait_until_half_done(out)
        first.kill()
    with rival(*words, said=tmp_path / "said", environment=scratch) as second:
        wait_until(held, seconds=120, what="the lock of the second follower")
        with pytest.raises(CommandError, match=f"Another export_events or stream_events writes to {out}") as raised:
            run(*words[1:], command="stream_events")
        assert second.end() == 0, second.said

    assert raised.value.returncode == 1
    assert ids(out) == list(range(1, EVENTS + 1))
    assert left_over(out) == []
    assert run(*words[1:], command="stream_events") == "Events written: 0.\n"


@pytest.mark.requirement("X1")
@pytest.mark.parametrize("round", range(ROUNDS * 3))
def test_two_exports_at_once_when_the_lock_is_lost(
    spark: Any, things: Any, tmp_path: Path, dsn: str, round: int
) -> None:
    """Neither is frozen: the second one begins while Spark writes for the first."""
    wanted = Export(dsn=dsn, topics=("things",), path=str(tmp_path), by=("type",), events_per_part=EVENTS // 2)

    def go() -> str:
        try:
            export(spark, wanted)
        except ExportRefused as error:
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
    export(spark, wanted)

    assert ids(tmp_path) == list(range(1, EVENTS + 1))
    assert Parts(OfDisk(), str(tmp_path)).unfinished == []
    assert left_over(tmp_path) == []


@pytest.mark.requirement("X1")
@pytest.mark.parametrize("round", range(ROUNDS * 3))
def test_two_followers_at_once_in_the_same_batch(spark: Any, things: Any, tmp_path: Path, dsn: str, round: int) -> None:
    """As if there were no lock at all: the later one takes over, and the earlier one adds nothing."""
    wanted = Follow(dsn=dsn, topics=("things",), path=str(tmp_path), by=("type",))
    frame = spark.read.format("django_events").options(dsn=dsn, subscribe="things").load()

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


def test_another_file_system_keeps_the_same_journal(
    spark: Any, log: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calls of Hadoop, which HDFS and object stores are reached by, on a disk."""
    topic = log(*(Draft(value=n) for n in range(10)))
    monkeypatch.setattr(exporting, "storage_of", OfHadoop)

    assert run(topic, "--to", tmp_path, "--part", 4).startswith("Exported 10 events")
    assert run(topic, "--to", tmp_path).startswith("Nothing to export")

    assert exported(spark, tmp_path) == stored(topic)
    assert left_over(tmp_path) == []
    storage = OfHadoop(spark, str(tmp_path))
    for folder in ("a", "b"):
        storage.write(f"{tmp_path}/{folder}/file", folder)
    assert not storage.move(f"{tmp_path}/a", f"{tmp_path}/b")
    assert not storage.move(f"{tmp_path}/none", f"{tmp_path}/c")
    assert storage.names(f"{tmp_path}/b") == ["file"]
    assert storage.read(f"{tmp_path}/b/file") == "b"
    assert storage.names(f"{tmp_path}/none") == []
