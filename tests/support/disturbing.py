"""Exporters as processes that are killed, frozen or cut off from their lock at any moment, round by round.

@rounds(30, "delta", "iceberg")
def test_…(format, round):
    rng, how = random.Random(round), HOW[round % len(HOW)]
    with started(topic, "--to", out, said=said) as first:
        disturb(first, how, after=rng.randrange(200))
        …  # another run
        wake(first, how)
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError
from django.db import connection

from tests.spark.rivals import end_locks, held
from tests.spark.test_export import url
from tests.support.processes import wait_until

HOW = ("killed", "frozen", "without its lock")


def rounds(count: int, *formats: str) -> pytest.MarkDecorator:
    """So many rounds, of each format if there are some.

    Of each way one round is not a long test. Formats share the code around their commits: of each, one round is not
    long, in turn one that is frozen, is killed or loses its lock.
    """
    if not formats:
        return pytest.mark.parametrize(
            "round", [pytest.param(n, marks=pytest.mark.slow) if n < len(HOW) else n for n in range(count)]
        )
    cases = []
    for turn, format in enumerate(formats):
        soon = HOW.index(("frozen", "killed", "without its lock")[turn % 3])
        cases += [pytest.param(format, n, marks=[pytest.mark.slow] if n == soon else []) for n in range(count)]
    return pytest.mark.parametrize(("format", "round"), cases)


@contextmanager
def started(*words: Any, said: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """`export_events` as a process."""
    known = {"DATABASE_URL": url(connection.get_connection_params()), "PYTHONPATH": "."}
    command = [sys.executable, "testproject/manage.py", "export_events", *map(str, words)]
    with (
        said.open("w") as out,
        subprocess.Popen(
            command, env={**os.environ, **known}, stdout=out, stderr=out, start_new_session=True
        ) as process,
    ):
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def disturb(process: "subprocess.Popen[bytes]", how: str, *, after: int) -> None:
    """Do that to a process, after so many questions to the database; no run has a lock then."""
    for _ in range(after):
        held()
    if how == "killed":
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(60)
        wait_until(lambda: not held(), what="the end of the killed run's lock")
        return
    if how == "frozen":
        os.killpg(process.pid, signal.SIGSTOP)
    if held():  # it may be done
        end_locks()


def wake(process: "subprocess.Popen[bytes]", how: str) -> None:
    """Let it end."""
    if how == "frozen":
        os.killpg(process.pid, signal.SIGCONT)
    process.wait(120)


def tried(work: Callable[[], object]) -> str:
    """Do it, and return what a command says if it is refused."""
    try:
        work()
    except CommandError as error:
        return str(error)
    return ""
