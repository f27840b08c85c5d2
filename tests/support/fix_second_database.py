"""A second database with our tables, of the tests' server."""

from collections.abc import Iterator

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection, connections


@pytest.fixture(scope="module")
def archive(django_db_setup: None, django_db_blocker: pytest.FixtureRequest) -> Iterator[str]:
    """The alias of another database of the same server, with our tables. It comes before pytest-django looks."""
    with django_db_blocker.unblock():
        given = connection.get_connection_params()
        server = {key: given[key] for key in ("user", "password", "host", "port") if given.get(key)}
        name = f"{given['dbname']}_archive"
        with psycopg.connect(**server, dbname="postgres", autocommit=True) as session:
            session.execute(f'DROP DATABASE IF EXISTS "{name}"')
            session.execute(f'CREATE DATABASE "{name}"')
        connections["archive"] = connection.copy("archive")
        connections["archive"].settings_dict = {**connection.settings_dict, "NAME": name}
        connections.settings["archive"] = connections["archive"].settings_dict
        call_command("migrate", database="archive", verbosity=0)
        yield "archive"
        connections["archive"].close()
        del connections["archive"], connections.settings["archive"]
        with psycopg.connect(**server, dbname="postgres", autocommit=True) as session:
            session.execute(f'DROP DATABASE "{name}"')
