"""When a commit of a table is made: by how many events wait, how large they are, and how long they have waited."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from django_events import Draft
from django_events.exporting.tables import export
from django_events.exporting.tables.export import TableExport, export_to_tables
from tests.spark.test_batch import publish, stored
from tests.support.tables import read_back, run

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X15")]

Log = Callable[..., Any]
FORMATS = pytest.mark.parametrize("format", ["delta", pytest.param("iceberg", marks=pytest.mark.slow)])


class Between:
    """What happens between two looks of a follower, one after the other; it is stopped after the last."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        self._steps = list(steps)
        self.requested = False

    def wait(self, seconds: float | None) -> None:
        if self._steps:
            self._steps.pop(0)()
        else:
            self.requested = True


@FORMATS
def test_a_commit_has_no_more_bytes_than_fit(
    log: Log, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*(Draft(value="x" * 10_000) for _ in range(40)))
    monkeypatch.setattr(export, "BYTES_PER_COMMIT", 100_000)

    said = run(topic, "--to", tmp_path, format=format)

    assert said.endswith("in commits: 5.\n")  # 9 of them fit, with what else an event has
    assert read_back(tmp_path, format) == stored(topic)
    if format == "delta":
        assert added(tmp_path / "things") == [9, 9, 9, 9, 4]


@FORMATS
def test_an_event_that_is_larger_than_a_commit_is_one_alone(
    log: Log, tmp_path: Path, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*(Draft(value="x" * 10_000) for _ in range(3)))
    monkeypatch.setattr(export, "BYTES_PER_COMMIT", 1_000)

    assert run(topic, "--to", tmp_path, format=format).endswith("in commits: 3.\n")
    assert read_back(tmp_path, format) == stored(topic)


def test_a_follower_commits_what_fits_too(log: Log, tmp_path: Path, dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = log()
    monkeypatch.setattr(export, "BYTES_PER_COMMIT", 100_000)

    followed(dsn, tmp_path, "delta", Between(lambda: publish(topic, *["x" * 10_000] * 20)), events=20)

    assert added(tmp_path / "things") == [9, 9, 2]
    assert read_back(tmp_path, "delta") == stored(topic)


@FORMATS
def test_a_follower_commits_when_enough_events_wait(log: Log, tmp_path: Path, dsn: str, format: str) -> None:
    topic = log(*(Draft(value=n) for n in range(3)))
    between = Between(
        lambda: publish(topic, *range(9)),
        lambda: publish(topic, 9),
        lambda: publish(topic, *range(25)),
        lambda: publish(topic, *range(4)),
    )

    told = followed(dsn, tmp_path, format, between, events=10)

    # Nine wait for a tenth, 25 go in one look, ten at a time, and the last four wait still.
    assert told == [(3, 0), (10, 0), (10, 15), (10, 5), (5, 0)]
    assert [row["offset"] for row in read_back(tmp_path, format)] == list(range(1, 39))


@FORMATS
def test_a_follower_commits_when_events_have_waited_long_enough(
    log: Log, tmp_path: Path, dsn: str, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(Draft(value=0))
    now = [0.0]
    monkeypatch.setattr(export, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def later(seconds: float, *values: Any) -> Callable[[], None]:
        def step() -> None:
            now[0] += seconds
            if values:
                publish(topic, *values)

        return step

    between = Between(later(500, 1), later(59, 2), later(1), later(500), later(0, 3), later(59.5), later(0.5))
    told = followed(dsn, tmp_path, format, between, events=1_000, every=60)

    assert told == [(1, 0), (2, 0), (1, 0)]  # an hour without events is no waiting
    assert read_back(tmp_path, format) == stored(topic)


def followed(
    dsn: str, folder: Path, format: str, between: Between, *, events: int, every: float = 3_600
) -> list[tuple[int, int]]:
    """Follow the log; of each commit, how many events it has added, and how many wait."""
    told = list[tuple[int, int]]()
    wanted = TableExport(
        dsn=dsn,
        topics=("things",),
        path=str(folder),
        format=format,
        follow=True,
        events_per_commit=events,
        every=every,
    )
    export_to_tables(wanted, stop=between, tell=lambda topic, added, waiting: told.append((added, waiting)))
    return told


def added(table: Path) -> list[int]:
    """How many rows each commit of a Delta table has added, by its log."""
    found = []
    for commit in sorted((table / "_delta_log").glob("*.json")):
        files = [line["add"] for line in map(json.loads, commit.read_text().splitlines()) if "add" in line]
        if files:
            found.append(sum(json.loads(file["stats"])["numRecords"] for file in files))
    return found
