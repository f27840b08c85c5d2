"""Exports without Spark that are killed, frozen or lose their lock at any moment: each event is in the files once."""

import os
import random
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

from django_events import Draft
from django_events.exporting.parts import Parts
from django_events.exporting.storage import OfDisk
from tests.spark.rivals import end_locks, held
from tests.spark.test_batch import stored
from tests.spark.test_export import url
from tests.support.local_exports import left_over, read_back, run
from tests.support.processes import wait_until

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.timeout(600)]

EVENTS, PER_PART = 6_000, 250
HOW = ("killed", "frozen", "without its lock")


@pytest.mark.requirement("X1")
@pytest.mark.parametrize("round", [pytest.param(n, marks=pytest.mark.slow) if n < len(HOW) else n for n in range(30)])
def test_each_event_is_in_the_files_once(log: Callable[..., Any], tmp_path: Path, round: int) -> None:
    topic = log(*(Draft(value={"n": n}, type=f"t{n % 5}") for n in range(EVENTS)))
    rng, how, out = random.Random(round), HOW[round % len(HOW)], tmp_path / "out"
    words = (topic, "--to", out, "--by", "day,type", "--part", PER_PART, "--threads", 2)
    with started(*words, "--engine", "local", said=tmp_path / "said") as first:
        enough = rng.randrange(EVENTS // PER_PART)
        wait_until(lambda: first.poll() is not None or len(list(out.glob("topic=*/ids=*"))) >= enough)
        for _ in range(rng.randrange(200)):
            held()
        if how == "killed":
            os.killpg(first.pid, signal.SIGKILL)
            first.wait(60)
            wait_until(lambda: not held(), what="the end of the killed run's lock")
            run(*words)
        elif how == "frozen":
            os.killpg(first.pid, signal.SIGSTOP)
            if held():
                end_locks()
            run(*words)
            os.killpg(first.pid, signal.SIGCONT)
            first.wait(120)
        else:
            if held():
                end_locks()
            said = tried(*words)
            first.wait(120)
            assert said == "" or "has taken" in said or "writes to" in said
        code, said = first.returncode, (tmp_path / "said").read_text()
    assert code in ((-signal.SIGKILL, 0) if how == "killed" else (0, 1)), said
    if code == 1:
        assert "and with it the lock on" in said or "Another run has taken" in said
        assert "Traceback" not in said

    last = run(*words)

    assert last.startswith("Nothing to export") or how == "without its lock"
    assert read_back(out) == stored(topic)
    assert Parts(OfDisk(), str(out)).unfinished == []
    assert left_over(out) == []


def tried(*words: Any) -> str:
    """Run it, and return what it says if it is refused."""
    try:
        run(*words)
    except CommandError as error:
        return str(error)
    return ""


@contextmanager
def started(*words: Any, said: Path) -> Iterator["subprocess.Popen[bytes]"]:
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
