"""Reading events without taking more of them into memory than the settings say.

    rows = bounded(using, chosen, **parameters)

What is too large to be read with others, or can't be read at all, comes without its payload: an `UnreadEvent`. It is
handled by itself: its attempt is counted before its payload is read, so that a worker that dies of it is not the first
of many.
"""

from functools import cache
from typing import Any, NamedTuple

from django.db import DatabaseError, connections

from django_events import sql
from django_events.conf import settings
from django_events.consuming.received import COLUMNS
from django_events.statements import SMALL, as_text

# Nothing but the next event, without its payload: none has less than this. And one event, however large it is.
NOTHING, ALL = 0, 1 << 50
TOO_LONG = "it has numbers of more than 4,300 digits, or is nested more than 5,000 deep, which is not made into text"
_UNREAD = len(COLUMNS)
_HERE = "{chosen}"


class Rows(NamedTuple):
    """What was read, and the first that wasn't, if there was more than fits: its columns, without the payload."""

    read: sql.Rows
    cut: tuple[Any, ...] | None


def bounded(using: str, chosen: sql.Statement, *, most_bytes: int | None = None, **parameters: Any) -> Rows:
    """The first of the chosen events, by default as many as MAX_BATCH_BYTES allows."""
    around = _around(settings.MAX_BATCH_BYTES if most_bytes is None else most_bytes)
    rows = sql.fetch(using, sql.Statement(chosen.name, around.replace(_HERE, chosen.text)), **parameters)
    if rows and rows[-1][_UNREAD]:
        return Rows(rows[:-1], rows[-1])
    return Rows(rows, None)


@cache
def _around(most_bytes: int) -> str:
    return (
        sql.statement("bounded")
        .on(
            chosen=sql.Statement("chosen", _HERE),
            bytes=most_bytes,
            value=as_text("e.value", small=SMALL),
            metadata=as_text("e.metadata", small=SMALL),
        )
        .text
    )


def is_of_payload(using: str, error: DatabaseError) -> bool:
    """Whether a read failed because of what it met, so that reading less may go on. Not in a caller's transaction."""
    if connections[using].in_atomic_block:
        return False
    return sql.is_of_data(error) or sql.state(error) in (sql.OUT_OF_MEMORY, sql.INTERNAL_ERROR)
