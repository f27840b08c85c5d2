"""A database of the server that may be killed, and processes that use it."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from testproject.private_postgres.server import Server
from tests.processes import Processes


@pytest.fixture
def fault_database(fault_server: Server) -> Iterator[str]:
    """The address of a fresh database on the server that may be killed."""
    parts = urlsplit(fault_server.url)
    with psycopg.connect(fault_server.url, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS faults WITH (FORCE)")
        connection.execute("CREATE DATABASE faults")
    yield urlunsplit(parts._replace(path="/faults"))


@pytest.fixture
def processes(fault_database: str, tmp_path: Path) -> Iterator[Processes]:
    """Processes on a migrated database of the server that may be killed."""
    started = Processes(fault_database, tmp_path)
    migrated = started.run("migrate", "-v0")
    assert migrated.returncode == 0, migrated.stderr
    yield started
    started.end()
