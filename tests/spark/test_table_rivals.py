"""Tables by Spark's tasks, two at once, half dead, too late: each event is in the table once, whatever else writes."""

import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.db import connections

from django_events.exceptions import Refused
from django_events.exporting.tables.export import TableExport, export_to_tables
from django_events.spark.exporting.engine import SparkEngine
from tests.integration.exporting.test_expiring import rows_on_disk
from tests.spark.rivals import (
    EVENTS,
    FREEZES,
    LOSSES,
    OF_A_TABLE,
    ROUNDS,
    Standing,
    a_part_is_lost_while_it_writes,
    end_locks,
    held,
    rival,
)
from tests.spark.test_batch import stored
from tests.support.processes import wait_until
from tests.support.tables import files_of, read_back, run

pytestmark = [
    pytest.mark.usefixtures("transactional_db", "spark"),
    pytest.mark.requirement("X15"),
    pytest.mark.slow,
    pytest.mark.timeout(600),
]

BOTH = pytest.mark.parametrize("format", ["delta", "iceberg"])
MANY_TASKS = ("--engine", "spark", "--target-size", "4KB")


def in_turn(count: int, of: tuple[Any, ...]) -> pytest.MarkDecorator:
    """Rounds that take one of these after the other, with one format and then with the other."""
    cases = [(n, of[n % len(of)], ("delta", "iceberg")[(n + n // len(of)) % 2]) for n in range(max(ROUNDS, count))]
    return pytest.mark.parametrize(("round", "what", "format"), cases)


def begin_and_freeze(first: Standing, *words: Any, folder: Path, frozen: str) -> None:
    """Begin, and freeze it while tasks write; again, if the commit came before."""
    for _ in range(5):
        first.begin("export_events", *words)
        first.wait_until_half_done(folder, OF_A_TABLE)
        first.freeze(frozen)
        if held() and not list(folder.rglob("*1.json")) + list(folder.rglob("snap-*.avro")):
            return
        first.thaw(frozen)
        first.end()
        shutil.rmtree(folder)
    raise AssertionError("too fast to be frozen")


def is_as_the_log(out: Path, format: str) -> None:
    """Each event is in the table once, and another run finds nothing to do and removes what is left of others."""
    assert read_back(out, format) == stored("things")
    assert run("things", "--to", out, *MANY_TASKS, format=format).startswith("Nothing to export")

    def is_clean() -> bool:
        run("things", "--to", out, "--expire", 0, format=format)
        return rows_on_disk(out) == files_of(out, format)

    wait_until(is_clean, seconds=60, what="the end of files that no commit names")  # a late task may be at one
    assert read_back(out, format) == stored("things")


@in_turn(4, FREEZES)
def test_an_export_that_lost_its_lock_and_wakes_up_changes_nothing(
    first: Standing, things: Any, tmp_path: Path, what: str, format: str, round: int
) -> None:
    out = tmp_path / "out"
    words = (things, "--to", out, *MANY_TASKS)
    begin_and_freeze(first, *words, "--format", format, folder=out, frozen=what)
    end_locks()
    second = run(*words, format=format)
    first.thaw(what)
    code = first.end()

    assert second.startswith(f"Exported {EVENTS:,} events")
    assert code == 1, first.said
    assert "the lock on" in first.said
    is_as_the_log(out, format)


@in_turn(4, (signal.SIGKILL, signal.SIGSTOP))
def test_a_task_whose_python_is_killed_or_frozen_is_done_again_or_not_at_all(
    things: Any, tmp_path: Path, scratch: dict[str, str], what: signal.Signals, format: str, round: int
) -> None:
    """Killed, Spark begins its task again; frozen, it waits for it, until it loses its lock and gives it up."""
    out = tmp_path / "out"
    words = (things, "--to", out, *MANY_TASKS)
    command = ("export_events", *words, "--format", format)
    with rival(*command, said=tmp_path / "said", environment=scratch, master="local[2,4]") as first:
        first.wait_until_half_done(out, OF_A_TABLE)
        workers = first.workers()
        assert workers
        for worker in workers:
            with suppress(ProcessLookupError):
                os.kill(worker, what)
        if what == signal.SIGSTOP:
            end_locks()
            second = run(*words, format=format)
            assert second.startswith(f"Exported {EVENTS:,} events")
            for worker in workers:
                with suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGCONT)
        assert first.end() == (0 if what == signal.SIGKILL else 1), first.said

    is_as_the_log(out, format)


@in_turn(3, LOSSES)
def test_an_export_whose_jvm_or_command_dies_is_completed(
    things: Any, tmp_path: Path, scratch: dict[str, str], what: str, format: str, round: int
) -> None:
    out = tmp_path / "out"
    words = ("export_events", things, "--to", out, *MANY_TASKS, "--format", format)

    said = a_part_is_lost_while_it_writes(words, what, tmp_path, scratch, master="local[2]", half_done=OF_A_TABLE)

    assert said.startswith(f"Exported {EVENTS:,} events")
    is_as_the_log(out, format)


@BOTH
@pytest.mark.parametrize("round", range(ROUNDS))
def test_two_exports_at_once_when_the_lock_is_lost(
    spark: Any, things: Any, tmp_path: Path, dsn: str, format: str, round: int
) -> None:
    """Neither is frozen: the second one begins while Spark writes for the first."""
    wanted = TableExport(
        dsn=dsn,
        topics=("things",),
        path=str(tmp_path),
        format=format,
        target_size=4 << 10,
        events_per_commit=EVENTS // 2,
    )

    class Going:
        requested = False

        def wait(self, seconds: float | None) -> None:
            raise AssertionError("nothing follows")

    def go() -> str:
        try:
            export_to_tables(wanted, stop=Going(), writer=SparkEngine(spark))
        except Refused as error:
            return str(error)
        finally:
            connections.close_all()
        return ""

    with ThreadPoolExecutor(2) as pool:
        one = pool.submit(go)
        wait_until(lambda: one.done() or bool(rows_on_disk(tmp_path)), what="files of the first one")
        assert not one.done()
        end_locks()
        other = pool.submit(go)
        assert "was lost, and with it the lock on" in one.result() or "has taken" in one.result()
        assert other.result() == "" or "has taken" in other.result()
    go()

    is_as_the_log(tmp_path, format)


@in_turn(2, ("killed", "jvm"))
def test_a_follower_that_dies_is_followed_by_another(
    things: Any, tmp_path: Path, scratch: dict[str, str], what: str, format: str, round: int
) -> None:
    """With several commits, of which some are there."""
    out = tmp_path / "out"
    words = (things, "--to", out, *MANY_TASKS, "--part", EVENTS // 8)
    command = ("export_events", *words, "--format", format, "--follow")
    with rival(*command, said=tmp_path / "said", environment=scratch, master="local[2]") as one:
        wait_until(lambda: committed(out, format) or one.process.poll() is not None, seconds=400)
        if what == "killed":
            one.kill()
        else:
            one.lose("jvm")
            assert one.end() == 1, one.said
            assert "Spark's Java process has ended" in one.said
    wait_until(lambda: not held(), what="the end of the lock")

    assert run(*words, format=format).startswith("Exported ")
    is_as_the_log(out, format)


def committed(out: Path, format: str) -> bool:
    """Whether some events are in the table."""
    try:
        return bool(files_of(out, format))
    except Exception:
        return False
