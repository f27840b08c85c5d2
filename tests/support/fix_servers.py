"""PostgreSQL servers that tests may stop, crash and reconfigure."""

from collections.abc import Iterator

import pytest

from testproject.private_postgres.server import Server


@pytest.fixture(scope="session")
def fault_server() -> Iterator[Server]:
    """A server for tests that kill it; a test that stops it starts it again."""
    with Server(options={"max_prepared_transactions": "20"}) as server:
        yield server
