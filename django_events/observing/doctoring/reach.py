"""The way to the server: how long it is, how far its clock is off, and whether a pooler is in it."""

import time
from collections.abc import Iterator

from django.db import connections

from django_events import sql
from django_events.conf import settings
from django_events.observing.doctoring.database import Database
from django_events.observing.findings import Finding, error, ok, warning
from django_events.sql.direct import is_pooled

TRIES = 3  # the shortest way there and back tells most
SKEW, FAR = 1.0, 60.0  # seconds


def clock(database: Database) -> Iterator[Finding]:
    """How far is this host's clock from the database's, as exactly as the way there and back allows?"""
    took, ahead = min((_once(database.using) for _ in range(TRIES)), key=lambda tried: tried[0])
    seen = {"ahead": ahead, "round_trip": took}
    off = max(abs(ahead) - took / 2, 0.0)
    what = (
        f"This host is {abs(ahead):.3f} s {'ahead of' if ahead > 0 else 'behind'} the database, give or take "
        f"{took / 2:.3f} s."
    )
    if off > SKEW:
        remedy = "Run NTP on both. Times that this host computes, like publish_at, are off by as much."
        yield (error if off > FAR else warning)(what, remedy, **seen)
    else:
        yield ok(what, **seen)


def _once(using: str) -> tuple[float, float]:
    """How long it took to ask, and how far this host is ahead."""
    began, start = time.time(), time.monotonic()
    there = sql.now(using)
    took = time.monotonic() - start
    return took, began + took / 2 - there.timestamp()


def pooler(database: Database) -> Iterator[Finding]:
    """Is one in the way of LISTEN?"""
    connection = connections[database.using]
    connection.ensure_connection()
    with connection.wrap_database_errors:
        pooled = is_pooled(connection.connection)
    if pooled:
        every = settings.POLL_INTERVAL.total_seconds()
        what = f"A pooler is in the way. All works, and workers poll every {every:g} s instead of being woken."
        remedy = "For wake-ups give workers an alias that leads to the server: run_transfer --database direct"
        yield warning(what, remedy, pooled=True)
    else:
        yield ok("Connections lead to the server itself, so workers are woken.", pooled=False)
