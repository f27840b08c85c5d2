"""Without the extra, nothing of it is imported: what needs it says so."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
sys.modules["aiohttp"] = None  # as if it weren't installed
import django
django.setup()
import django_events.operations, django_events.admin, django_events.outward.setting_up
from django.core.management import CommandError, call_command
try:
    call_command("run_webhooks")
except CommandError as error:
    assert error.returncode == 2, error.returncode
    assert "pip install 'django-events-pg[webhooks]'" in str(error), error
else:
    raise AssertionError("it ran")
"""


@pytest.mark.slow
def test_without_aiohttp_everything_else_works():
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "testproject.settings"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
