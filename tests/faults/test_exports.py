"""Exports without Spark that are killed, frozen or lose their lock at any moment: each event is in the files once."""

import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_events import Draft
from django_events.exporting.parts import Parts
from django_events.exporting.storage import OfDisk
from tests.spark.test_batch import stored
from tests.support.disturbing import HOW, disturb, rounds, started, tried, wake
from tests.support.local_exports import left_over, read_back, run
from tests.support.processes import wait_until

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.timeout(600)]

EVENTS, PER_PART = 6_000, 250


@pytest.mark.requirement("X1")
@rounds(30)
def test_each_event_is_in_the_files_once(log: Callable[..., Any], tmp_path: Path, round: int) -> None:
    topic = log(*(Draft(value={"n": n}, type=f"t{n % 5}") for n in range(EVENTS)))
    rng, how, out = random.Random(round), HOW[round % len(HOW)], tmp_path / "out"
    words = (topic, "--to", out, "--by", "day,type", "--part", PER_PART, "--threads", 2)
    with started(*words, "--engine", "local", said=tmp_path / "said") as first:
        enough = rng.randrange(EVENTS // PER_PART)
        wait_until(lambda: first.poll() is not None or len(list(out.glob("topic=*/ids=*"))) >= enough)
        disturb(first, how, after=rng.randrange(200))
        refused = tried(lambda: run(*words))
        wake(first, how)
        assert refused == "" or (how == "without its lock" and ("has taken" in refused or "writes to" in refused))
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
