"""Two at once, half dead, too late: each event is in the files once, whoever else writes."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_events import Draft
from tests.spark.rivals import end_locks, ids, left_over, rival
from tests.spark.test_export import run

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
