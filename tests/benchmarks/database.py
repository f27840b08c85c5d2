"""A database of our own on the server of the settings, and plain psycopg connections to it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
from django.core.management import call_command
from django.db import connection
from psycopg import sql
from psycopg.errors import InsufficientPrivilege

# How many events there are so far, but for a constant: published, and passed by the consumer `bench`.
PUBLISHED = "SELECT last_value FROM django_events_bufferedevent_id_seq"
CONSUMED = """
SELECT position FROM django_events_position
WHERE consumer_id = (SELECT id FROM django_events_consumer WHERE name = 'bench')
"""


def connect(*, autocommit: bool = True) -> psycopg.Connection[Any]:
    """A connection that Django knows nothing of, to the database that Django uses now."""
    parameters = connection.get_connection_params()
    for ours in ("cursor_factory", "context", "autocommit"):
        parameters.pop(ours, None)
    return psycopg.connect(**parameters, autocommit=autocommit)


def url() -> str:
    """That database for other processes and other drivers."""
    parameters = connection.get_connection_params()
    named = {name: parameters[name] for name in ("host", "port", "user", "password") if parameters.get(name)}
    return f"postgresql:///{quote(parameters['dbname'])}?{urlencode(named)}"


@contextmanager
def own_database() -> Iterator[None]:
    """A migrated database that is dropped in the end, whatever happens."""
    name = f"django_events_bench_{os.getpid()}"
    server = connect()
    try:
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        connection.close()
        connection.settings_dict["NAME"] = name
        call_command("migrate", verbosity=0)
        yield
    finally:
        connection.close()
        server.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        server.close()


def settle(*tables: str) -> None:
    """Leave nothing to do in the background from what came before, so that runs can be compared."""
    with connect() as plain:
        for table in tables:
            plain.execute(sql.SQL("VACUUM {}").format(sql.Identifier(table)))
        with suppress(InsufficientPrivilege):  # then runs vary more: their medians say so
            plain.execute("CHECKPOINT")


def truncate(*tables: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(tables)}")


def count(table: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {table}")
        [[rows]] = cursor.fetchall()
    return int(rows)
