"""Real processes: `manage.py` commands and publishers against a server that a test may kill."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

ROOT = Path(__file__).resolve().parents[2]
MANAGE = ROOT / "testproject" / "manage.py"
DEADLINE = 90.0


def wait_until(condition: Callable[[], Any], *, seconds: float = DEADLINE, what: str = "the condition") -> Any:
    """Wait for something to become true; the pause is no proof of anything, the deadline only ends a failing test."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if result := condition():
            return result
        time.sleep(0.02)
    raise AssertionError(f"{what} did not come true within {seconds} s")


def answers(url: str) -> bool:
    """Whether a server or a pooler takes a connection."""
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


def listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def freeze(process: "subprocess.Popen[Any]") -> None:
    """Stop a process where it is; returns when it stands still."""
    process.send_signal(signal.SIGSTOP)
    os.waitpid(process.pid, os.WUNTRACED)


class Processes:
    """Starts processes that use one database, and ends them all."""

    def __init__(self, url: str, folder: Path, *, settings: str = "testproject.settings", tree: Path = ROOT) -> None:
        self.url = url
        self.folder = folder
        self.tree = tree  # of the code that they run
        self.settings = settings
        self.variables: dict[str, str] = {}
        self.started: list[subprocess.Popen[str]] = []
        self._logs: dict[int, Path] = {}

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "DATABASE_URL": self.url,
            "DJANGO_SETTINGS_MODULE": self.settings,
            "PYTHONPATH": str(self.tree),
            "PYTHONUNBUFFERED": "1",
            **self.variables,
        }

    def run(self, *arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a command of manage.py to its end."""
        return subprocess.run(
            [sys.executable, str(self.tree / "testproject" / "manage.py"), *arguments],
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a command of manage.py."""
        return self._start(
            [sys.executable, str(self.tree / "testproject" / "manage.py"), *arguments], name=arguments[0]
        )

    def start_module(self, module: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a program of another package, as `python -m`."""
        return self._start([sys.executable, "-m", module, *arguments], name=module)

    def start_publisher(self, name: str, *arguments: str) -> "Publisher":
        """Start tests/support/publisher.py; what it did is in its journal."""
        journal = self.folder / f"{name}.journal"
        script = [sys.executable, "-m", "tests.support.publisher", name, str(journal), *arguments]
        return Publisher(self._start(script, name=name), journal)

    def start_shard_publisher(self, name: str) -> "Publisher":
        """Start tests/support/shard_publisher.py; what it did is in its journal."""
        journal = self.folder / f"{name}.journal"
        script = [sys.executable, "-m", "tests.support.shard_publisher", name, str(journal)]
        return Publisher(self._start(script, name=name), journal)

    def start_writer(self, way: str, *arguments: str) -> "Publisher":
        """Start tests/support/writing.py; what it did is in its journal."""
        journal = self.folder / f"{way}.journal"
        script = [sys.executable, "-m", "tests.support.writing", way, str(journal), *arguments]
        return Publisher(self._start(script, name=way), journal)

    def log_of(self, name: str) -> str:
        return "".join(path.read_text() for path in sorted(self.folder.glob(f"{name}.*.log")))

    def said(self, process: subprocess.Popen[str]) -> str:
        """What one process wrote until now."""
        return self._logs[process.pid].read_text()

    def wait_until(self, condition: Callable[[], Any], *, what: str, seconds: float = DEADLINE) -> None:
        """Wait for something that the processes bring about; what they said is shown if they don't."""
        try:
            wait_until(condition, what=what, seconds=seconds)
        except AssertionError as error:
            for path in sorted(self.folder.glob("*.log")):
                error.add_note(f"{path.name}: {path.read_text()[-2_000:]}")
            error.add_note(f"exit codes: {[process.poll() for process in self.started]}")
            raise

    def end(self) -> None:
        for process in self.started:
            with suppress(ProcessLookupError):
                process.kill()
            process.wait()

    def _start(self, command: list[str], *, name: str) -> subprocess.Popen[str]:
        path = self.folder / f"{name}.{len(self.started)}.log"
        with path.open("w") as log:
            process = subprocess.Popen(
                command, env=self.environment(), stdout=log, stderr=log, text=True, cwd=self.tree
            )
        self.started.append(process)
        self._logs[process.pid] = path
        return process


class Publisher:
    """A publisher's process and the journal of what it did."""

    def __init__(self, process: subprocess.Popen[str], journal: Path) -> None:
        self.process = process
        self.journal = journal

    def entries(self) -> list[dict[str, Any]]:
        if not self.journal.exists():
            return []
        lines = self.journal.read_text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def values(self, outcome: str) -> set[str]:
        return {value for entry in self.entries() if entry["outcome"] == outcome for value in entry["values"]}

    def stop(self) -> None:
        wait_until(lambda: self.journal.exists() or self.process.poll() is not None, what="a publisher at work")
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        assert code == 0, f"It ended with {code}."


def check_log(url: str, topics: Iterable[str], publishers: Iterable[Publisher], *, keys_move: bool = False) -> int:
    """Compare the log with the journals: what was committed is there, once, dense, and per key in order.

    Keys move to other partitions only where the number of partitions is changed.
    """
    committed: set[str] = set()
    unknown: set[str] = set()
    for publisher in publishers:
        committed |= publisher.values("committed")
        unknown |= publisher.values("unknown")
    in_log: list[str] = []
    with psycopg.connect(url) as connection:
        for topic in topics:
            rows = connection.execute(
                "SELECT e.id, e.partition, e.number, e.key, e.value #>> '{}' FROM django_events_event e"
                " JOIN django_events_topic t ON t.id = e.topic_id WHERE t.name = %s ORDER BY e.id",
                [topic],
            ).fetchall()
            assert [row[0] for row in rows] == list(range(1, len(rows) + 1)), f"ids of {topic} have gaps"
            numbers: dict[int, int] = {}
            newest: dict[str, int] = {}
            partitions: dict[str, int] = {}
            for _, partition, number, key, value in rows:
                numbers[partition] = numbers.get(partition, 0) + 1
                assert number == numbers[partition]
                sequence = int(value.rsplit("/", 1)[1])
                assert sequence > newest.get(key, -1), f"{value} comes after {newest[key]} of the same key"
                newest[key] = sequence
                assert keys_move or partitions.setdefault(key, partition) == partition
            in_log += [row[4] for row in rows]
    assert len(in_log) == len(set(in_log)), "something is in the log twice"
    assert committed <= set(in_log), f"lost: {sorted(committed - set(in_log))[:5]}"
    assert set(in_log) <= committed | unknown, f"never committed: {sorted(set(in_log) - committed - unknown)[:5]}"
    return len(in_log)
