"""The way to the server itself, without what Django or a pooler does in between."""

from typing import Any

import psycopg
from django.db import connections

from django_events.statements import statement


def parameters(using: str) -> dict[str, Any]:
    """What psycopg needs for a connection to the same database."""
    found: dict[str, Any] = connections[using].get_connection_params()
    for django_only in ("cursor_factory", "context"):
        found.pop(django_only, None)
    return found


def is_pooled(connection: psycopg.Connection[Any]) -> bool:
    """Whether the backend that answers is not the one that was connected to."""
    row = connection.execute(statement("backend").text.encode()).fetchone()
    return row is None or row[0] != connection.info.backend_pid
