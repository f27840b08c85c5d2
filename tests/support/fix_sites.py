"""Small sites of other people: a Django project in a folder, with settings of its own and a new database."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from django.db import connection
from psycopg import sql
from psycopg.conninfo import make_conninfo

ROOT = Path(__file__).resolve().parents[2]

SETTINGS = """
from testproject.settings import database

SECRET_KEY = "of a site in a test"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["pgtrigger", "django_events", "board"]
DATABASES = {"default": database()}
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}]
"""
MODELS = """
from django.db import models


class Note(models.Model):
    text = models.TextField()
"""
EVENTS = """
from django_events import topic

topic("notes")
"""


class Site:
    """A project with one app, `board`. What a test doesn't write is the smallest that works."""

    def __init__(self, folder: Path, conninfo: dict[str, Any]) -> None:
        self.folder = folder
        self.conninfo = conninfo
        self.write("site_settings.py", SETTINGS)
        self.write("board/__init__.py", "")
        self.write("board/models.py", MODELS)
        self.write("board/events.py", EVENTS)

    def write(self, path: str, text: str) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(dedent(text))

    def settings(self, text: str) -> None:
        """Settings that replace the usual ones, or add to them."""
        self.write("site_settings.py", SETTINGS + dedent(text))

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "DATABASE_URL": make_conninfo("", **self.conninfo),
            "DJANGO_SETTINGS_MODULE": "site_settings",
            "PYTHONPATH": os.pathsep.join([str(self.folder), str(ROOT)]),
            "PYTHONWARNINGS": "error",
        }

    def manage(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._process("-m", "django", *arguments)

    def do(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """A command that has to work."""
        done = self.manage(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def python(self, script: str) -> Any:
        """What a script prints as JSON, in a process in which Django is set up."""
        done = self._process("-c", "import django, json\ndjango.setup()\n" + dedent(script))
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def pytest(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        self.write("pytest.ini", "[pytest]\n")
        return self._process("-m", "pytest", "-p", "no:cacheprovider", *arguments)

    def _process(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, *arguments],
            env=self.environment(),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.fixture
def site(tmp_path: Path, django_db_blocker: Any) -> Iterator[Site]:
    """A site on a new, empty database of the tests' server."""
    with django_db_blocker.unblock():
        parameters = connection.get_connection_params()
        server = {k: parameters[k] for k in ("host", "port", "user", "password") if parameters.get(k)}
    name = f"events_site_{uuid4().hex[:8]}"
    with psycopg.connect("", **server, dbname="postgres", autocommit=True) as session:
        session.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(sql.Identifier(name)))
        try:
            yield Site(tmp_path, {**server, "dbname": name})
        finally:
            for database in (name, f"test_{name}"):
                session.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(database)))
