"""More databases with our tables, of the tests' server."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection, connections


@pytest.fixture(scope="module")
def archive(django_db_setup: None, django_db_blocker: pytest.FixtureRequest) -> Iterator[str]:
    """The alias of another database of the same server, with our tables. It comes before pytest-django looks."""
    with django_db_blocker.unblock(), _another("archive"):
        yield "archive"


@pytest.fixture(scope="module")
def annex(django_db_setup: None, django_db_blocker: pytest.FixtureRequest) -> Iterator[str]:
    """The alias of a third one."""
    with django_db_blocker.unblock(), _another("annex"):
        yield "annex"


@contextmanager
def _another(alias: str) -> Iterator[None]:
    given = connection.get_connection_params()
    server = {key: given[key] for key in ("user", "password", "host", "port") if given.get(key)}
    name = f"{given['dbname']}_{alias}"
    with psycopg.connect(**server, dbname="postgres", autocommit=True) as session:
        session.execute(f'DROP DATABASE IF EXISTS "{name}"')
        session.execute(f'CREATE DATABASE "{name}"')
    connections[alias] = connection.copy(alias)
    connections[alias].settings_dict = {**connection.settings_dict, "NAME": name}
    connections.settings[alias] = connections[alias].settings_dict
    call_command("migrate", database=alias, verbosity=0)
    yield
    connections[alias].close()
    del connections[alias], connections.settings[alias]
    with psycopg.connect(**server, dbname="postgres", autocommit=True) as session:
        session.execute(f'DROP DATABASE "{name}"')
