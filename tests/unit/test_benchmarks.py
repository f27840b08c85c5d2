"""The benchmarks are no tests, and a rename must not break them unseen."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_benchmarks_and_their_roles_can_be_imported():
    lines = (
        "import importlib, tests.benchmarks.roles; from tests.benchmarks.__main__ import FAMILIES\n"
        "for family in FAMILIES: importlib.import_module(f'tests.benchmarks.{family}')"
    )
    done = subprocess.run([sys.executable, "-c", lines], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
