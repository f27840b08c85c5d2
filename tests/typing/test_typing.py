"""Types are part of the public interface: what mypy infers of it, and what it refuses."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long  # `mypy`, which runs before every merge, reads these files too
@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed: it comes with [dev]")
def test_mypy_infers_what_is_said_and_refuses_what_is_wrong() -> None:
    files = [str(Path(__file__).with_name(name)) for name in ("inferred.py", "refused.py")]
    done = subprocess.run([sys.executable, "-m", "mypy", *files], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
