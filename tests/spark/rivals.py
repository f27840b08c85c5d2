"""Commands that write files, as processes that lose their lock, are frozen, killed, and wake up later."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.dataset
from django.db import connection

from tests.processes import wait_until
from tests.spark.test_export import url

LOCKS = """
SELECT pid FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database
WHERE locktype = 'advisory' AND granted AND datname = current_database()
"""


class Rival:
    """A command in a process of its own, with its JVM and Spark's workers."""

    def __init__(self, *words: Any, said: Path, environment: dict[str, str], master: str = "local[1]") -> None:
        known = {"DATABASE_URL": url(connection.get_connection_params()), "PYTHONPATH": ".", **environment}
        # A task for each folder, so that there is time between the first and the last.
        known["PYSPARK_SUBMIT_ARGS"] = "--conf spark.sql.adaptive.coalescePartitions.enabled=false pyspark-shell"
        self._said = said
        with said.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "testproject/manage.py", *map(str, words), "--master", master],
                env={**os.environ, **known},
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self._said.read_text()

    def wait_until_half_done(self, folder: Path) -> None:
        """Until Spark has some of the files and goes on."""
        self.wait_until_written(folder, "task_*/**/*.parquet")

    def wait_until_written(self, folder: Path, pattern: str) -> None:
        def found() -> bool:
            assert self.process.poll() is None, self.said
            return any(True for _ in folder.rglob(pattern))

        deadline = 120
        wait_until(found, seconds=deadline, what=f"{pattern} in {folder}")

    def end(self) -> int:
        """Wait until it has ended by itself; returns its exit code."""
        return self.process.wait(120)

    def freeze(self, what: str = "all") -> None:
        self._signal(what, signal.SIGSTOP)

    def thaw(self, what: str = "all") -> None:
        self._signal(what, signal.SIGCONT)

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(60)

    def _signal(self, what: str, number: int) -> None:
        if what == "all":
            os.killpg(self.process.pid, number)
        elif what == "python":
            os.kill(self.process.pid, number)
        else:
            os.kill(self._java(), number)

    def _java(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        [java] = [
            int(child)
            for file in children
            for child in file.read_text().split()
            if "java" in Path(f"/proc/{child}/cmdline").read_text()
        ]
        return java


@contextmanager
def rival(*words: Any, said: Path, environment: dict[str, str], master: str = "local[1]") -> Iterator[Rival]:
    one = Rival(*words, said=said, environment=environment, master=master)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.kill()


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


def ids(folder: Path) -> list[int]:
    """The ids in the files, as PyArrow and pandas find them."""
    found: list[int] = pyarrow.dataset.dataset(folder, format="parquet").to_table(["offset"])["offset"].to_pylist()
    return sorted(found)


def left_over(folder: Path) -> list[Path]:
    """What attempts that don't count have left."""
    return [path for name in ("attempts", "removed") for path in (folder / "_django_events" / name).glob("*")]
