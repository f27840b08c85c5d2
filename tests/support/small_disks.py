"""A disk that is soon full, and gone when the tests end, even if they are killed."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

# A shell of its own has the disk mounted for as long as its input is open: the end of the tests closes it.
WHILE_WANTED = """
trap '' HUP INT TERM
mount -t tmpfs -o size=1m tmpfs "$0" || exit 1
echo mounted
cat
umount "$0" || umount -l "$0"
"""


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """Mount a disk of 1 MB there; the test is skipped where that can't be done."""
    if os.geteuid():
        pytest.skip("Only root can mount a disk that is small enough to be full.")
    folder.mkdir()
    with subprocess.Popen(
        ["sh", "-c", WHILE_WANTED, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as shell:
        assert shell.stdout is not None
        if (said := shell.stdout.readline().strip()) != "mounted":
            pytest.skip(f"This machine mounts nothing, so no disk can be made full: {said}")
        yield
    assert not folder.is_mount()


def enlarge(folder: Path) -> None:
    """Make room on the disk."""
    subprocess.run(["mount", "-o", "remount,size=64m", str(folder)], check=True)
