"""The test's own database as that of another site, by a login that may do nothing but read its logs."""

import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.test import override_settings
from psycopg import sql

from django_events.management.events import grants
from django_events.models import Topic
from django_events.statements import log_table

PASSWORD = "a-secret/of?the#login"


def run(*lines: Any) -> None:
    connection.ensure_connection()
    with psycopg.ClientCursor(connection.connection) as cursor:
        for line in lines:
            cursor.execute(line)


@pytest.fixture
def shop(transactional_db: None) -> Iterator[dict[str, Any]]:
    """The options of the database that the settings have as "shop". Its role has what `grants --role mirror` gives."""
    role, login = f"mirror_{uuid.uuid4().hex[:8]}", f"login_{uuid.uuid4().hex[:8]}"
    text = grants.grants("default", role="mirror", to=role).text
    made = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(login), sql.Literal(PASSWORD))
    run(text, made, sql.SQL("GRANT {} TO {}").format(sql.Identifier(role), sql.Identifier(login)))
    known = connection.get_connection_params()
    options = {name: known[name] for name in ("host", "port", "dbname") if known.get(name)}
    options |= {"user": login, "password": PASSWORD}
    with override_settings(DJANGO_EVENTS={"BROKERS": {"shop": options}}):
        yield options
    for name in (login, role):
        for line in ("REASSIGN OWNED BY {} TO CURRENT_USER", "DROP OWNED BY {}", "DROP ROLE {}"):
            run(sql.SQL(line).format(sql.Identifier(name)))


def rows_of(topic: Any) -> list[tuple[Any, ...]]:
    """All that the log of a topic has, but for the topic's own id."""
    log = log_table(Topic.objects.get(name=str(topic)).pk)
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT id, partition, number, type, key, value::text, body, metadata::text, published_at, logged_at"
            f" FROM {log} ORDER BY id"
        )
        return [tuple(map(bytes_of, row)) for row in cursor.fetchall()]


def bytes_of(value: Any) -> Any:
    return bytes(value) if isinstance(value, memoryview) else value


def lose(topic: Any, after: int) -> None:
    """The source is restored from a backup: its log ends earlier."""
    log = log_table(Topic.objects.get(name=str(topic)).pk)
    run(f"DELETE FROM {log} WHERE id > {after}")
