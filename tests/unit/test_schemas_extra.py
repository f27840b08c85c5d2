"""pydantic is an extra: nothing of the package imports it, and all but schemas works without it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The shop describes its events.
WITHOUT_SHOP = """
import sys
from testproject import settings
settings.INSTALLED_APPS.remove("testproject.shop")
settings.ROOT_URLCONF = "django.contrib.auth.urls"
"""
WITHOUT = """
sys.modules["pydantic"] = None  # as if it weren't installed
import django
django.setup()
import importlib, pkgutil, django_events
for found in pkgutil.walk_packages(django_events.__path__, "django_events."):
    if not found.name.startswith(("django_events.spark", "django_events.exporting.tables.iceberg")):  # PyIceberg's own
        importlib.import_module(found.name)
from django.core.management import call_command
call_command("check")
call_command("events", "schemas")
from django_events import schema, topic
@schema("placed")
class Placed:
    customer: str
[problem] = topic("described", schemas=[Placed]).problems()
assert "pip install 'django-events-pg[schemas]'" in problem, problem
"""
IMPORTED = """
from django_events import schema, topic, upcaster
import django
django.setup()
import django_events.testing, django_events.operations
from django_events.management.commands.events import Command
assert not [name for name in sys.modules if name.split(".")[0] in ("pydantic", "pydantic_core")]
"""


@pytest.mark.slow
@pytest.mark.requirement("X9")
@pytest.mark.parametrize("program", [WITHOUT, IMPORTED], ids=["without", "imported"])
def test_nothing_needs_pydantic_but_schemas(program):
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "testproject.settings"}
    command = [sys.executable, "-c", WITHOUT_SHOP + program]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
