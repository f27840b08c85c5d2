"""Tables with many dead rows, and the sessions that keep them from being vacuumed. Reads only views of the server."""

from datetime import datetime, timedelta
from typing import NamedTuple

from django_events import sql

SQL = sql.beside(__name__)

LEAST = 100_000  # dead rows of a table; fewer slow nothing down
TIMES_LIVE = 4


class Holder(NamedTuple):
    """A `session` (by its pid), a `prepared` transaction or a replication `slot` that others' dead rows are kept for.

    Of a slot it is not known since when.
    """

    kind: str
    name: str
    role: str
    application: str
    since: datetime | None
    held_for: timedelta | None


class Pile(NamedTuple):
    """A table with many dead rows, and when it was vacuumed last."""

    table: str
    dead: int
    live: int
    cleaned_at: datetime | None
    cleaned_before: timedelta | None


def holders(using: str, *, age: timedelta, most: int) -> list[Holder]:
    """Those that have held back dead rows for longer than `age`, the longest first, slots at the end."""
    return [Holder._make(row) for row in sql.fetch(using, SQL.holding_back, age=age, limit=most)]


def piles(using: str) -> list[Pile]:
    """The tables with too many dead rows, the worst first."""
    rows = sql.fetch(using, SQL.dead_rows, least=LEAST, times=TIMES_LIVE)
    return [Pile._make(row) for row in rows]
