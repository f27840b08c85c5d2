"""Reading events without taking more of them into memory than the settings say.

    rows = bounded(using, chosen, at_most=100, **parameters)

An event that is too large to be read with others, or can't be read at all, comes without its payload: an
`UnreadEvent`. It is handled by itself, and its attempt is counted before its payload is read: if the payload exhausts
the memory of one worker after another, the attempts run out.
"""

from functools import cache
from typing import Any, NamedTuple

from django.db import DatabaseError, connections

from django_events import sql
from django_events.conf import settings
from django_events.event_columns import EVENT
from django_events.received import ReceivedEvent
from django_events.statements import SMALL, as_text

SQL = sql.beside(__name__)

# Limits of bytes: only the next event, without its payload; and one event, however large it is.
NOTHING, ALL = 0, 1 << 50
LIGHT = 4_000  # bytes: events up to this size are read without adding up their sizes
TOO_LONG = (
    "it has numbers of more than 4,300 digits, or 900 decimals, or is nested more than 5,000 deep, which is not "
    "made into text"
)
_UNREAD, _METADATA = len(EVENT), EVENT.index("metadata")


class Rows(NamedTuple):
    """The events that were read, and the first one that did not fit, if any: its columns, without the payload.

    After those columns come whether it was weighed, and its stored size in bytes.
    """

    read: sql.Rows
    cut: tuple[Any, ...] | None


class EventGone(Exception):
    """The event that was to be read doesn't exist any more."""


def bounded(
    using: str, chosen: sql.Statement, *, at_most: int = 1, most_bytes: int | None = None, **parameters: Any
) -> Rows:
    """The first of the chosen events, of which there are `at_most`, as many as have `most_bytes` together.

    By default the limit is MAX_BATCH_BYTES. Nearly always all events are small: then no sizes are added up.
    """
    if most_bytes is None:
        most_bytes = settings.MAX_BATCH_BYTES
        rows = sql.fetch_whole(using, light(chosen, at_most), **parameters)
        if are_whole(rows):
            return Rows(rows, None)
    weighed = SQL.bounded.on(chosen=chosen, bytes=most_bytes, value=_text_of("value"), metadata=_text_of("metadata"))
    rows = sql.fetch_large(using, weighed, **parameters)
    if rows and rows[-1][_UNREAD]:
        *columns, _, stored = rows[-1]
        return Rows(rows[:-1], (*columns, most_bytes > NOTHING, stored))
    return Rows(rows, None)


def light(chosen: sql.Statement, at_most: int) -> sql.Statement:
    """All of the chosen events, of which there are `at_most`, in their order, if `are_whole` says so of the rows."""
    return SQL.light.on(chosen=chosen, bytes=min(LIGHT, settings.MAX_BATCH_BYTES // at_most))


def are_whole(rows: sql.Rows) -> bool:
    """Whether each of the events is small, so that all of it was read."""
    return all(row[_METADATA] is not None for row in rows)


@cache
def _text_of(column: str) -> sql.Statement:
    return as_text("e", column, small=SMALL)


def loaded(rows: Rows, event: ReceivedEvent) -> ReceivedEvent | None:
    """An event that was read by itself, now with its payload; None if that can't be read, EventGone without a row."""
    for row in rows.read:
        return ReceivedEvent(event.topic, row, consumer=event.consumer, attempt=event.attempt, database=event.database)
    if rows.cut is None:
        raise EventGone
    return None


def is_of_payload(using: str, error: DatabaseError) -> bool:
    """Whether a read failed because of a payload, so that reading fewer may work. Not in a caller's transaction."""
    if connections[using].in_atomic_block:
        return False
    kind = sql.kind_of(error)
    return kind.of_data or kind in (sql.ErrorKind.OUT_OF_MEMORY, sql.ErrorKind.INTERNAL)
