"""The page on bridges of one's own: its target, its source and its tests, run as they stand there."""

import os
import subprocess
import sys

import pytest

from tests.pages.site import blocks
from tests.support.processes import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.requirement("X20", "X21")]


def test_the_bridge_of_the_page_keeps_all_promises(tmp_path):
    for block in blocks("how-to/write-a-bridge.md"):
        assert block.file is not None
        file = tmp_path / block.file
        file.parent.mkdir(exist_ok=True)
        file.write_text(block.code, encoding="utf-8")
    (tmp_path / "shop/__init__.py").touch()
    (tmp_path / "ledger.py").write_text("from tests.support.ledger import Ledger as Ledger\n", encoding="utf-8")
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "testproject.settings",
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
    }
    command = [sys.executable, "-m", "django", "test", "shop.tests"]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    assert "Ran 2 tests" in done.stderr
