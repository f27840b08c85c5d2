"""Followers that write tables, killed, frozen or without their lock at any moment: each event is in the table once."""

import random
import signal
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog

from django_events import Draft
from django_events.management.spark import LOCKED
from tests.spark.test_batch import publish, stored
from tests.support.disturbing import HOW, disturb, rounds, started, tried, wake
from tests.support.processes import wait_until
from tests.support.tables import files_in, read_back, read_files, run

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.timeout(600)]

EVENTS, PER_COMMIT = 6_000, 250


@pytest.mark.requirement("X15")
@rounds(30, "delta", "iceberg")
def test_each_event_is_in_the_table_once(log: Callable[..., Any], tmp_path: Path, format: str, round: int) -> None:
    each_event_is_in_the_table_once(log, tmp_path, format, round)


@pytest.mark.requirement("X15")
@rounds(30, "delta", "iceberg")
def test_each_event_is_once_in_a_table_whose_files_threads_write(
    log: Callable[..., Any], tmp_path: Path, format: str, round: int
) -> None:
    each_event_is_in_the_table_once(log, tmp_path, format, round, "--threads", 2, "--target-size", "1KB")


def each_event_is_in_the_table_once(
    log: Callable[..., Any], tmp_path: Path, format: str, round: int, *how_it_writes: Any
) -> None:
    topic = log(*(Draft(value={"n": n}, type=f"t{n % 5}") for n in range(EVENTS)))
    rng, how, out = random.Random(round), HOW[round % len(HOW)], tmp_path / "out"
    words = (topic, "--to", out, "--part", PER_COMMIT, *how_it_writes)
    following = (*words, "--follow", "--every", "0.1", "--format", format)
    with started(*following, said=tmp_path / "said") as first:
        enough = rng.randrange(1, EVENTS // PER_COMMIT)
        wait_until(lambda: first.poll() is not None or len(list(out.rglob("*.parquet"))) >= enough)
        disturb(first, how, after=rng.randrange(200))
        said = tried(lambda: run(*words, format=format))
        if how == "frozen":
            publish(topic, *range(10))
            again = tried(lambda: run(*words, format=format))
            assert said == again == "" or (format == "iceberg" and LOCKED == said == again)
        wake(first, how)
        assert said in ("", LOCKED) or "has taken" in said
        code, said = first.returncode, (tmp_path / "said").read_text()
    assert code == (-signal.SIGKILL if how == "killed" else 1), said
    if code == 1:
        assert "and with it the lock on" in said or "Another run has taken" in said
        assert "Traceback" not in said

    run(*words, format=format)

    assert read_back(out, format) == stored(topic)


@pytest.mark.requirement("X15")
@rounds(30)
def test_a_catalogue_in_postgresql_has_each_event_once(
    log: Callable[..., Any], catalogue: str, tmp_path: Path, round: int
) -> None:
    topic = log(*(Draft(value={"n": n}, type=f"t{n % 5}") for n in range(EVENTS)))
    rng, how = random.Random(round), HOW[round % len(HOW)]
    words = (topic, "--to", "analytics", "--catalog", catalogue, "--part", PER_COMMIT)
    following = (*words, "--follow", "--every", "0.1", "--format", "iceberg")
    with started(*following, said=tmp_path / "said") as first:
        enough = rng.randrange(1, EVENTS // PER_COMMIT)
        wait_until(lambda: first.poll() is not None or len(list(tmp_path.rglob("*.parquet"))) >= enough)
        disturb(first, how, after=rng.randrange(200))
        said = [tried(lambda: run(*words, format="iceberg"))]
        if how == "frozen":
            publish(topic, *range(10))
            said.append(tried(lambda: run(*words, format="iceberg")))
        wake(first, how)
        assert how != "frozen" or said == ["", ""]
        assert all(one == "" or "has taken" in one for one in said)
        ended = (tmp_path / "said").read_text()
    assert first.returncode == (-signal.SIGKILL if how == "killed" else 1), ended
    if how != "killed":
        assert "and with it the lock on" in ended or "Another run has taken" in ended
        assert "Traceback" not in ended

    run(*words, format="iceberg")

    with closing(load_catalog(catalogue)) as known:
        assert read_files(files_in(known, "analytics")) == stored(topic)


@pytest.mark.requirement("X15")
@pytest.mark.parametrize(
    ("format", "end"),
    [
        pytest.param("delta", signal.SIGTERM, marks=pytest.mark.slow),
        ("delta", signal.SIGINT),
        ("iceberg", signal.SIGTERM),
        ("iceberg", signal.SIGINT),
    ],
)
def test_a_follower_goes_on_until_it_is_stopped(
    log: Callable[..., Any], tmp_path: Path, format: str, end: signal.Signals
) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))
    out = tmp_path / "out"
    words = (topic, "--to", out, "--follow", "--every", "0.1", "--format", format, "--consumer", "lake")
    with started(*words, said=tmp_path / "said") as first:
        wait_until(lambda: out.exists() and rows(out, format) == 10 and positions() == 10)
        publish(topic, *range(5))
        wait_until(lambda: rows(out, format) == 15 and positions() == 15)
        with started(*words, said=tmp_path / "second") as second:
            assert second.wait(60) == 1
        assert "Another export_events or stream_events writes to" in (tmp_path / "second").read_text()
        first.send_signal(end)
        assert first.wait(60) == 0, (tmp_path / "said").read_text()

    assert "Exported 15 events to" in (tmp_path / "said").read_text()
    assert read_back(out, format) == stored(topic)


def rows(folder: Path, format: str) -> int:
    """How many events the table has; none while it is being made."""
    try:
        return len(read_back(folder, format))
    except Exception:
        return 0


def positions() -> int:
    """How far the follower is as a consumer."""
    from django_events.models import Position

    return sum(Position.objects.filter(consumer__name="lake").values_list("position", flat=True))
