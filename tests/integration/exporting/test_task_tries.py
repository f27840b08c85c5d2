"""Tries of a task of Spark, without Spark: twice at once, too late, or on a machine that has another disk."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from django_events import Draft
from django_events.exceptions import Refused
from django_events.exporting.export import Export
from django_events.exporting.range_files import RangeFiles
from django_events.exporting.storage import OfDisk
from django_events.reading.dsn import Dsn
from django_events.reading.ranges import Range
from django_events.reading.rows import RangeReader
from django_events.reading.topics import TopicChoice, find
from django_events.spark.exporting.tasks import write_one
from tests.spark.test_batch import stored
from tests.support.local_exports import read_back

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X1")]

EVENTS = 1_000
Try = Callable[[], tuple[int, list[str]]]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where the files of all tries end up, called as an export calls it."""
    return tmp_path / "topic=things" / "ids=1"


@pytest.fixture
def beside(place: Path) -> str:
    folder = f"{place}.tasks"
    OfDisk().make(folder)
    return folder


@pytest.fixture
def attempted(log: Callable[..., Any], dsn: str, place: Path, beside: str) -> Try:
    """A try of the only task."""
    log(*(Draft(value=n, type=f"t{n % 3}") for n in range(EVENTS)))
    with Dsn(dsn).connected() as connection:
        [topic] = find(connection, TopicChoice(names=("things",)))
    made = RangeFiles.of(Export(dsn=dsn, topics=("things",), path=str(place), by=("day", "type")), "things")
    return lambda: write_one(made, Range("things", topic.id, 1, EVENTS + 1), beside=beside, task=0)


def test_of_two_tries_at_once_one_counts(attempted: Try, place: Path, beside: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(attempted), pool.submit(attempted)
        assert first.result()[0] == second.result()[0] == EVENTS
    assert len(list(Path(beside).rglob("*.parquet"))) == 6

    OfDisk().gather(second.result()[1], beside, str(place))
    OfDisk().remove(beside)

    assert read_back(place.parents[1]) == stored("things")
    assert len(list(place.parents[1].rglob("*.parquet"))) == 3


@pytest.mark.parametrize("after", ["the gathering", "the clearing"])
def test_a_try_that_wakes_up_too_late_adds_nothing(
    attempted: Try, place: Path, beside: str, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    asleep, awake = Event(), Event()
    read_by = RangeReader.read_by

    def frozen(*arguments: Any) -> Iterator[Any]:
        asleep.set()
        assert awake.wait(60)
        yield from read_by(*arguments)

    with ThreadPoolExecutor(1) as pool:
        with monkeypatch.context() as patched:
            patched.setattr(RangeReader, "read_by", frozen)
            late = pool.submit(attempted)
            assert asleep.wait(60)
        OfDisk().gather(attempted()[1], beside, str(place))
        if after == "the clearing":
            OfDisk().remove(beside)
        awake.set()
        if after == "the clearing":
            with pytest.raises(FileNotFoundError):
                late.result()
            assert not Path(beside).exists()
        else:
            assert late.result()[0] == EVENTS

    OfDisk().remove(beside)
    assert read_back(place.parents[1]) == stored("things")


def test_a_try_that_begins_too_late_or_elsewhere_makes_no_folder(attempted: Try, beside: str) -> None:
    """A machine that has another disk has no such folder either."""
    OfDisk().remove(beside)

    with pytest.raises(Refused, match=r"is not there, though it was written\. Expected a folder that this machine"):
        attempted()

    assert not Path(beside).exists()


def test_a_file_that_a_task_has_told_of_must_be_there(attempted: Try, place: Path, beside: str) -> None:
    _, files = attempted()
    Path(beside, files[1]).unlink()

    with pytest.raises(Refused, match=r"part-00000-.* is not there, though it was written"):
        OfDisk().gather(files, beside, str(place))
