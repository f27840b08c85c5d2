"""Power that fails: what the disk has at that moment is all that is left."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError

from django_events import Draft
from django_events.exporting.batches import Batches
from django_events.exporting.parts import Parts
from django_events.exporting.storage import OfDisk
from tests.spark.rivals import ids
from tests.spark.test_batch import publish
from tests.spark.test_export import run
from tests.support.processes import wait_until

pytestmark = [pytest.mark.usefixtures("transactional_db", "spark")]


class Disk:
    """An ext4 in a file, which writes nothing for minutes unless it is told to."""

    def __init__(self, folder: Path, stack: ExitStack, collect_garbage: Callable[[], None]) -> None:
        self._folder, self._stack, self._collect_garbage = folder, stack, collect_garbage
        self._image = folder / "image"
        self.path = folder / "disk"

    def make(self) -> None:
        with self._image.open("wb") as image:
            image.truncate(256 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(self._image)], check=True, capture_output=True)
        self._mount(self._image, self.path)

    def after_the_power_failed(self, name: str) -> Path:
        """The disk as it is now, without what was only in memory."""
        image = self._folder / f"image of {name}"
        subprocess.run(["cp", "--sparse=always", str(self._image), str(image)], check=True)
        self._mount(image, self._folder / name)
        return self._folder / name

    def _mount(self, image: Path, place: Path) -> None:
        place.mkdir()
        words = ["mount", "-o", "loop,commit=300,noauto_da_alloc", str(image), str(place)]
        subprocess.run(words, check=True, capture_output=True)
        self._stack.callback(wait_until, lambda: self._unmount(place), what=f"{place} to be used by nothing")

    def _unmount(self, place: Path) -> bool:
        """Whether it is unmounted now. A query that failed leaves files open until Java collects its garbage."""
        self._collect_garbage()
        return subprocess.run(["umount", str(place)], check=False, capture_output=True).returncode == 0


@pytest.fixture
def disk(tmp_path: Path, spark: Any) -> Iterator[Disk]:
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("There is no mkfs.ext4 to make a disk with.")
    with ExitStack() as stack:
        one = Disk(tmp_path, stack, spark.sparkContext._jvm.System.gc)
        try:
            one.make()
        except (subprocess.CalledProcessError, OSError):
            pytest.skip("This user can't mount a disk in a file.")
        yield one


@pytest.mark.requirement("X1")
def test_what_an_export_says_is_there_after_the_power_failed(log: Callable[..., Any], disk: Disk) -> None:
    topic = log(*(Draft(value=n, type=f"t{n % 3}") for n in range(300)))
    out = disk.path / "deep" / "out"

    run(topic, "--to", out, "--by", "type", "--part", 100)

    left = disk.after_the_power_failed("left") / "deep/out"
    assert ids(left) == list(range(1, 301))
    assert sum(Parts(OfDisk(), str(left)).done.values()) == 300
    publish(topic, *range(10))
    run(topic, "--to", left, "--by", "type")
    assert ids(left) == list(range(1, 311))


@pytest.mark.requirement("X1")
def test_what_a_follower_says_is_there_after_the_power_failed(log: Callable[..., Any], disk: Disk) -> None:
    topic = log(*(Draft(value=n, type=f"t{n % 3}") for n in range(300)))
    out = disk.path / "out"
    arguments = ("--once", "--most", 100, "--by", "type")

    run(topic, "--to", out, *arguments, command="stream_events")

    left = disk.after_the_power_failed("left") / "out"
    assert ids(left) == list(range(1, 301))
    assert Batches(OfDisk(), str(left)).rows == 300
    publish(topic, *range(10))
    try:
        run(topic, "--to", left, *arguments, command="stream_events")
    except CommandError as error:  # Spark doesn't wait for the disk with its checkpoint
        assert "With --to, remove the checkpoint" in str(error)
        shutil.rmtree(left / "_django_events/checkpoint")
        run(topic, "--to", left, *arguments, command="stream_events")
    assert ids(left) == list(range(1, 311))
