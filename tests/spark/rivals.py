"""Commands that write files, as processes that lose their lock, are frozen, killed, and wake up later."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest
from django.core.management import CommandError
from django.db import connection

from tests.spark.test_export import left_over, run, url
from tests.support.processes import wait_until

__all__ = ["left_over"]  # for the tests that have these rivals

EVENTS = 16_000
ROUNDS = int(os.environ.get("SPARK_ROUNDS", "1"))
PATIENCE = 400  # seconds, after which something hangs: Spark alone takes a minute to start on a machine that is busy
FREEZES = ("all", "python", "jvm")
LOSSES = ("jvm", "python", "python of a frozen jvm")
# Files of a task that is done, where the JVM writes, and where tasks do.
HALF_DONE = ("task_*/**/*.parquet", "*.tasks/**/*.parquet")
# Of an export whose tasks write: so many of them that there is time between the first and the last.
SLOWLY = ("--by", "none", "--target-size", "4KB")
BATCHES = ("--most", EVENTS // 16)  # of a follower
# Of a table, whose files lie in it before a commit names them.
OF_A_TABLE = ("day=*/part-*.parquet",)
LOCKS = """
SELECT pid FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database
WHERE locktype = 'advisory' AND granted AND datname = current_database()
"""


def children(pid: int) -> list[int]:
    with suppress(OSError):
        tasks = Path(f"/proc/{pid}/task").glob("*/children")
        return [int(child) for file in tasks for child in file.read_text().split()]
    return []


def command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


class Rival:
    """A command in a process of its own, with its JVM and Spark's workers."""

    def __init__(self, process: "subprocess.Popen[str]", said: Path) -> None:
        self.process, self._said = process, said

    @property
    def said(self) -> str:
        return self._said.read_text()

    def wait_until_half_done(self, folder: Path, patterns: tuple[str, ...] = HALF_DONE) -> None:
        """Until Spark has some of the files and goes on."""
        self.wait_until_written(folder, *patterns)

    def wait_until_written(self, folder: Path, *patterns: str) -> None:
        def found() -> bool:
            assert self.process.poll() is None, self.said
            with suppress(FileNotFoundError):  # Spark moves its folders
                return any(True for pattern in patterns for _ in folder.rglob(pattern))
            return False

        try:
            wait_until(found, seconds=PATIENCE, what=f"{patterns} in {folder}")
        except AssertionError as error:
            written = [str(path.relative_to(folder)) for path in folder.rglob("*")]
            raise AssertionError(f"{error}. Written: {written}. It said: {self.said}") from None

    def end(self) -> int:
        """Wait until it has ended by itself; returns its exit code."""
        return self.process.wait(PATIENCE)

    def freeze(self, what: str = "all") -> None:
        self._signal(what, signal.SIGSTOP)

    def thaw(self, what: str = "all") -> None:
        self._signal(what, signal.SIGCONT)

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)

    def lose(self, part: str) -> list[int]:
        """Kill the JVM alone, or the Python of the command alone; returns the processes that are left for now.

        A Python that was killed stays unreaped, so its number goes on naming this group of processes.
        """
        java, workers = self._java(), self.workers()
        daemons = children(java)
        if part == "jvm":
            os.kill(java, signal.SIGKILL)
            return [*daemons, *workers]
        os.kill(self.process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)
        return [java, *daemons, *workers]

    def _signal(self, what: str, number: int) -> None:
        if what == "all":
            os.killpg(self.process.pid, number)
        elif what == "python":
            os.kill(self.process.pid, number)
        else:
            os.kill(self._java(), number)

    def workers(self) -> list[int]:
        """The processes in which Spark's tasks run Python."""
        return [pid for daemon in children(self._java()) for pid in children(daemon)]

    def _java(self) -> int:
        [java] = [pid for pid in children(self.process.pid) if "java" in command(pid)]
        return java


class Standing(Rival):
    """A process that runs one command after the other."""

    begun = 0

    def begin(self, *words: Any) -> None:
        self._said.write_text("")
        assert self.process.stdin is not None
        self.begun += 1
        self.process.stdin.write(json.dumps([str(word) for word in words]) + "\n")
        self.process.stdin.flush()

    def begin_and_freeze(self, *words: Any, folder: Path, frozen: str, parts: int = 1) -> None:
        """Begin, and freeze it while Spark writes the first of so many parts; again, if it was done before."""
        for _ in range(5):
            self.begin(*words)
            self.wait_until_written(folder, *HALF_DONE, "*=*/**/_SUCCESS")
            self.freeze(frozen)
            if len(list(folder.glob("*=*"))) < parts and held():
                return
            self.thaw(frozen)
            self.end()
            shutil.rmtree(folder)
        raise AssertionError("too fast to be frozen")

    def end(self) -> int:
        """The exit code of the newest command."""
        beginning = f"ended {self.begun} "
        return int(self.answer(beginning).removeprefix(beginning))

    def answer(self, beginning: str) -> str:
        out = self.process.stdout
        assert out is not None
        while select.select([out], [], [], PATIENCE)[0]:
            line = out.readline()
            assert line, self.said
            if line.startswith(beginning):
                return line
        raise AssertionError(f"no answer: {self.said}")


@contextmanager
def rival(
    *words: Any, said: Path, environment: dict[str, str], master: str = "local[1]", **settings: str
) -> Iterator[Rival]:
    """One command."""
    command = ["testproject/manage.py", *map(str, words), "--master", master]
    with _started(command, said, environment, settings) as process:
        yield Rival(process, said)


@contextmanager
def standing(said: Path, environment: dict[str, str], master: str = "local[1]") -> Iterator[Standing]:
    """One that waits for commands."""
    with _started(["-m", "tests.spark.standing", master], said, environment, {}) as process:
        one = Standing(process, said)
        one.answer("ready")
        yield one


@contextmanager
def _started(
    words: list[str], said: Path, environment: dict[str, str], settings: dict[str, str]
) -> Iterator["subprocess.Popen[str]"]:
    # A task for each folder, so that there is time between the first and the last.
    # On a cluster there are others.
    settings = {
        "spark.sql.adaptive.coalescePartitions.enabled": "false",
        "spark.sql.shuffle.partitions": "16",
        "spark.cores.max": "2",
        **settings,
    }
    confs = " ".join(f"--conf {name}={value}" for name, value in settings.items())
    known = {"DATABASE_URL": url(connection.get_connection_params()), "PYTHONPATH": ".", **environment}
    with said.open("a") as out:
        process = subprocess.Popen(
            [sys.executable, *words],
            env={**os.environ, **known, "PYSPARK_SUBMIT_ARGS": f"{confs} pyspark-shell"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=out,
            text=True,
            bufsize=1,
            start_new_session=True,
        )
    with process:
        try:
            yield process
        finally:
            if process.returncode is None:  # not waited for yet, so the number is its own still
                os.killpg(process.pid, signal.SIGKILL)


def export_that_wakes_up_too_late(first: Standing, topic: Any, folder: Path, *, frozen: str) -> None:
    """It is frozen while Spark writes, loses its lock, another one exports all, and it goes on."""
    out = folder / "out"
    words = ("export_events", topic, "--to", out, *SLOWLY)
    first.begin_and_freeze(*words, folder=out, frozen=frozen)
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


def follower_that_wakes_up_too_late(first: Standing, topic: Any, folder: Path, *, frozen: str) -> None:
    """The same with a micro-batch."""
    out = folder / "out"
    words = ("stream_events", topic, "--to", out, "--by", "type", "--once", *BATCHES)
    first.begin_and_freeze(*words, folder=out, frozen=frozen, parts=8)
    end_locks()
    second = run(*words[1:], command="stream_events")
    first.thaw(frozen)
    code = first.end()

    assert ids(out) == list(range(1, EVENTS + 1))
    assert second.startswith("Events written: ")
    assert second != "Events written: 0.\n"
    assert code == 1, first.said
    assert run(*words[1:], command="stream_events") == "Events written: 0.\n"
    assert left_over(out) == []


def a_part_is_lost_while_it_writes(
    words: tuple[Any, ...],
    lost: str,
    folder: Path,
    environment: dict[str, str],
    *,
    master: str,
    half_done: tuple[str, ...] = HALF_DONE,
) -> str:
    """The JVM dies and its command lives, or the other way round; another one does the rest. Returns what that said.

    A JVM whose command is gone ends by itself. One that is frozen learns of it when all is done by others.
    """
    with rival(*words, said=folder / "lost", environment=environment, master=master) as first:
        first.wait_until_half_done(folder / "out", half_done)
        if lost == "jvm":
            left = first.lose("jvm")
            assert first.end() == 1, first.said
            assert "CommandError: Spark's Java process has ended" in first.said, first.said
        else:
            if lost != "python":
                first.freeze("jvm")
            left = first.lose("python")
            wait_until(lambda: not held(), seconds=PATIENCE, what="the end of the lock")
        try:
            said = run(*words[1:], command=words[0])
        finally:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        wait_until(lambda: not any(map(command, left)), seconds=PATIENCE, what="the end of what was left")
    return said


def two_followers_after_a_kill(
    second: Standing, topic: Any, folder: Path, environment: dict[str, str], *, master: str = "local[1]"
) -> None:
    """One is killed in a batch, and two are started: one works, one says why it doesn't."""
    out = folder / "out"
    words = ("stream_events", topic, "--to", out, "--by", "type", "--once", *BATCHES)
    with rival(*words, said=folder / "killed", environment=environment, master=master) as first:
        first.wait_until_half_done(out)
        first.kill()
    wait_until(lambda: not held(), seconds=PATIENCE, what="the end of the killed follower's lock")
    second.begin(*words)
    wait_until(held, seconds=PATIENCE, what="the lock of the second follower")
    second.freeze()  # so that it has the lock still when the third one asks
    try:
        with pytest.raises(CommandError, match=f"Another export_events or stream_events writes to {out}") as raised:
            run(*words[1:], command="stream_events")
    finally:
        second.thaw()
    assert second.end() == 0, second.said

    assert raised.value.returncode == 1
    assert ids(out) == list(range(1, EVENTS + 1))
    # An executor outlives its killed driver for a moment, and may write into an attempt that was just removed.
    assert run(*words[1:], command="stream_events") == "Events written: 0.\n"
    assert left_over(out) == []


def two_followers_at_once_after_a_kill(
    second: Standing, topic: Any, folder: Path, environment: dict[str, str], *, master: str = "local[1]"
) -> None:
    """The same, but neither of the two waits for the other: either may get the lock first."""
    out = folder / "out"
    words = ("stream_events", topic, "--to", out, "--by", "type", "--once", *BATCHES)
    with rival(*words, said=folder / "killed", environment=environment, master=master) as first:
        first.wait_until_half_done(out)
        first.kill()
    wait_until(lambda: not held(), seconds=PATIENCE, what="the end of the killed follower's lock")
    second.begin(*words)
    refused = ""
    try:
        run(*words[1:], command="stream_events")
    except CommandError as error:
        refused = str(error)
    code = second.end()

    assert ids(out) == list(range(1, EVENTS + 1))
    why = f"Another export_events or stream_events writes to {out}"
    assert not refused or why in refused
    assert code == 0 or (code == 1 and why in second.said and not refused), second.said
    assert run(*words[1:], command="stream_events") == "Events written: 0.\n"
    assert left_over(out) == []


def end_locks() -> None:
    """End the sessions that have a lock, as a failover does; returns when they are gone."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(pg_terminate_backend(pid)) FROM ({LOCKS}) held")
        assert cursor.fetchone()[0], "no run has a lock"

        def gone() -> bool:
            cursor.execute(LOCKS)
            return not cursor.fetchall()

        wait_until(gone, what="the end of the sessions with locks")


def held() -> bool:
    """Whether any run has a lock."""
    with connection.cursor() as cursor:
        cursor.execute(LOCKS)
        return bool(cursor.fetchall())


def ids(folder: Path, format: str = "parquet") -> list[int]:
    """The ids in the files, as PyArrow and pandas find them."""
    found: list[int] = pyarrow.dataset.dataset(folder, format=format).to_table(["offset"])["offset"].to_pylist()
    return sorted(found)
