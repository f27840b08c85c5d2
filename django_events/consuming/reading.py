"""Reading events without taking more of them into memory than the settings say.

    rows = bounded(using, chosen, at_most=100, **parameters)

What is too large to be read with others, or can't be read at all, comes without its payload: an `UnreadEvent`. It is
handled by itself: its attempt is counted before its payload is read, so that a worker that dies of it is not the first
of many.
"""

from functools import cache
from typing import Any, NamedTuple

from django.db import DatabaseError, connections

from django_events import sql
from django_events.conf import settings
from django_events.consuming.received import ReceivedEvent
from django_events.event_columns import EVENT
from django_events.statements import SMALL, as_text

SQL = sql.beside(__name__)

# Nothing but the next event, without its payload: none has less than this. And one event, however large it is.
NOTHING, ALL = 0, 1 << 50
LIGHT = 4_000  # bytes of an event that is read without weighing it, where so many of that size are not too much
TOO_LONG = (
    "it has numbers of more than 4,300 digits, or 900 decimals, or is nested more than 5,000 deep, which is not "
    "made into text"
)
_UNREAD, _METADATA = len(EVENT), EVENT.index("metadata")


class Rows(NamedTuple):
    """What was read, and the first that wasn't, if there was more than fits: its columns, without the payload.

    Behind them is whether it was weighed, and how large it is as it is stored.
    """

    read: sql.Rows
    cut: tuple[Any, ...] | None


class EventGone(Exception):
    """An event that was to be read is not there any more."""


def bounded(
    using: str, chosen: sql.Statement, *, at_most: int = 1, most_bytes: int | None = None, **parameters: Any
) -> Rows:
    """The first of the chosen events, which are `at_most` or fewer, by default as many as MAX_BATCH_BYTES allows.

    Nearly always all of them are small: then they are read as they are, and nothing is weighed.
    """
    if most_bytes is None:
        most_bytes = settings.MAX_BATCH_BYTES
        light = SQL.light.on(chosen=chosen, bytes=min(LIGHT, most_bytes // at_most))
        rows = sql.fetch_whole(using, light, **parameters)
        if all(row[_METADATA] is not None for row in rows):
            return Rows(rows, None)
    weighed = SQL.bounded.on(chosen=chosen, bytes=most_bytes, value=_text_of("value"), metadata=_text_of("metadata"))
    rows = sql.fetch_large(using, weighed, **parameters)
    if rows and rows[-1][_UNREAD]:
        *columns, _, stored = rows[-1]
        return Rows(rows[:-1], (*columns, most_bytes > NOTHING, stored))
    return Rows(rows, None)


@cache
def _text_of(column: str) -> sql.Statement:
    return as_text("e", column, small=SMALL)


def loaded(rows: Rows, event: ReceivedEvent) -> ReceivedEvent | None:
    """An event that was read by itself, now with its payload; None if that can't be read, EventGone without a row."""
    for row in rows.read:
        return ReceivedEvent(event.topic, row, consumer=event.consumer, attempt=event.attempt)
    if rows.cut is None:
        raise EventGone
    return None


def is_of_payload(using: str, error: DatabaseError) -> bool:
    """Whether a read failed because of what it met, so that reading less may go on. Not in a caller's transaction."""
    if connections[using].in_atomic_block:
        return False
    kind = sql.kind_of(error)
    return kind.of_data or kind in (sql.ErrorKind.OUT_OF_MEMORY, sql.ErrorKind.INTERNAL)
