"""PostgreSQL servers that tests may stop, crash and reconfigure."""

from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from testproject.private_postgres.server import Server


@pytest.fixture(scope="session")
def fault_server() -> Iterator[Server]:
    """A server for tests that kill it; a test that stops it starts it again.

    Its processes crash, and never the machine, so it need not wait for the disk.
    """
    with Server(options={"max_prepared_transactions": "20", "fsync": "off"}) as server:
        yield server


def database_of(server: Server, name: str = "site", template: str = "template0") -> str:
    """The address of a new database, a copy of another one that nothing is connected to, by default an empty one."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    return urlunsplit(urlsplit(server.url)._replace(path=f"/{name}"))
