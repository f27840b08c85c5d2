"""The small disk of the tests: it must not stay mounted for those that come after."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import wait_until
from tests.support.small_disks import small_disk

PROGRAM = """
import sys
from pathlib import Path
from tests.support.small_disks import small_disk
with small_disk(Path(sys.argv[1])):
    print("mounted", flush=True)
    sys.stdin.read()
"""


@pytest.mark.slow
def test_a_small_disk_goes_with_its_process(tmp_path: Path) -> None:
    with small_disk(tmp_path / "here"):
        assert (tmp_path / "here").is_mount()
    assert not (tmp_path / "here").is_mount()

    words = [sys.executable, "-c", PROGRAM, str(tmp_path / "there")]
    pipe = subprocess.PIPE
    environment = {**os.environ, "PYTHONPATH": "."}
    with subprocess.Popen(words, env=environment, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "mounted\n"
        assert (tmp_path / "there").is_mount()
        process.kill()
    wait_until(lambda: not (tmp_path / "there").is_mount())
