"""Tables of states whose exporters are killed, frozen or without their lock: the newest event of each key."""

import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_events import Draft
from django_events.management.spark import LOCKED
from tests.integration.exporting.test_upserts import publish, states
from tests.support.disturbing import HOW, disturb, rounds, started, tried, wake
from tests.support.processes import wait_until
from tests.support.tables import read_back, run

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.timeout(600)]

EVENTS, PER_COMMIT, KEYS = 4_000, 250, 300


@pytest.mark.requirement("X15")
@rounds(12, "delta", "iceberg")
def test_each_key_has_its_newest_event(log: Callable[..., Any], tmp_path: Path, format: str, round: int) -> None:
    rng, how, out = random.Random(round), HOW[round % len(HOW)], tmp_path / "out"

    def some(count: int) -> list[Draft]:
        keys = [str(rng.randrange(KEYS)) for _ in range(count)]
        return [Draft(value=n if rng.random() < 0.8 else None, key=key) for n, key in enumerate(keys)]

    topic = log(*some(EVENTS))
    words = (topic, "--to", out, "--part", PER_COMMIT, "--upsert")
    following = (*words, "--follow", "--every", "0.1", "--format", format)
    with started(*following, said=tmp_path / "said") as first:
        enough = rng.randrange(1, EVENTS // PER_COMMIT)
        wait_until(lambda: first.poll() is not None or len(list(out.rglob("*.parquet"))) >= enough)
        disturb(first, how, after=rng.randrange(200))
        said = tried(lambda: run(*words, format=format))
        publish(topic, *some(100))
        if how == "frozen":
            again = tried(lambda: run(*words, format=format))
            assert {said, again} <= {"", LOCKED}
        wake(first, how)
        assert said in ("", LOCKED) or "has taken" in said
        code, told = first.returncode, (tmp_path / "said").read_text()
    assert code == (-signal.SIGKILL if how == "killed" else 1), told
    assert "Traceback" not in told

    run(*words, format=format)

    assert read_back(out, format) == states(topic)
