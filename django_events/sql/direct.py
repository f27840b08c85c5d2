"""Connections of psycopg's, beside the one of Django's that each thread has, and what a worker's connections have.

With them, both sides of a connection notice that the other has vanished.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from django.db import connections
from psycopg import errors
from psycopg.pq import ConnStatus
from psycopg.pq.abc import PGresult

from django_events.conf import settings
from django_events.statements import beside

SQL = beside(__name__)

LEAST_TO_CONNECT = 2  # seconds; libpq makes 2 of 1
PROBES = 3  # without an answer: then the other side has vanished


def parameters(using: str) -> dict[str, Any]:
    """What psycopg needs for a connection to the same database."""
    found: dict[str, Any] = connections[using].get_connection_params()
    for django_only in ("cursor_factory", "context"):
        found.pop(django_only, None)
    return found


def raw(using: str, **options: Any) -> psycopg.Connection[Any]:
    """A connection of psycopg's, open, in which each statement is a transaction. The site's options override these."""
    return psycopg.connect(**{**options, **parameters(using), "autocommit": True})


@contextmanager
def connected_as_a_worker(using: str) -> Iterator[None]:
    """New connections of this process notice a server that has vanished, as soon as `VANISHED_AFTER` says.

    TCP by itself takes two hours, or a quarter of an hour for what was sent. What the site has set stays, but for its
    pool: each thread of a worker keeps its connection, so a pool with fewer than threads would let the last one wait
    in vain, and that may be the thread that renews leases.
    """
    connections[using].close()  # it may be the pool's
    known = connections.settings[using]
    before = known.get("OPTIONS", {})
    after = settings.VANISHED_AFTER.total_seconds()
    idle, interval = _probing(after)
    known["OPTIONS"] = {
        "keepalives": 1,
        "keepalives_idle": idle,
        "keepalives_interval": interval,
        "keepalives_count": PROBES,
        "tcp_user_timeout": int(after * 1000),
        "connect_timeout": max(int(after), LEAST_TO_CONNECT),  # a frozen server takes connections, and answers none
        **before,
        "pool": False,
    }
    try:
        yield
    finally:
        connections[using].close()
        known["OPTIONS"] = before


def noticing_the_client() -> dict[str, str]:
    """The same the other way round: settings for a session that only waits, and holds locks meanwhile."""
    after = settings.VANISHED_AFTER.total_seconds()
    idle, interval = _probing(after)
    return {
        "tcp_keepalives_idle": f"{idle}s",
        "tcp_keepalives_interval": f"{interval}s",
        "tcp_keepalives_count": f"{PROBES}",
        "tcp_user_timeout": f"{after * 1000:.0f}ms",
    }


def _probing(after: float) -> tuple[int, int]:
    """After how many seconds of silence to ask, and how long to wait for an answer before asking again."""
    idle = max(int(after / 2), 1)
    return idle, max(int((after - idle) / PROBES), 1)


def error_of(connection: psycopg.Connection[Any], result: PGresult) -> psycopg.Error:
    """The error that a result of libpq says, as cursors raise it: of a lost connection, OperationalError."""
    if connection.pgconn.status != ConnStatus.OK:
        return psycopg.OperationalError(connection.pgconn.get_error_message())
    return errors.error_from_result(result, encoding="utf-8")


def is_pooled(connection: psycopg.Connection[Any]) -> bool:
    """Whether the backend that answers is not the one that was connected to."""
    row = connection.execute(SQL.backend.text.encode()).fetchone()
    return row is None or row[0] != connection.info.backend_pid
