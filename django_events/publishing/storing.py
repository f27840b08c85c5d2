"""Where encoded events go: into the buffer, or among the scheduled ones, or nowhere if their dedup key is taken.

with explained(using, topic), transaction.atomic(using):
    repeated = store(using, topic, rows)
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import NoReturn, cast

from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError, connections, router, transaction

from django_events import sql, telemetry
from django_events.conf import settings
from django_events.declarations import DeclaredTopic
from django_events.drafts import Receipt
from django_events.exceptions import InvalidEvent, NotInTransaction, NotReady, Refused, rights_missing
from django_events.models import BufferedEvent
from django_events.models.buffer import writable
from django_events.models.topic_queries import TOPIC_MISSING
from django_events.phrases import cut_details
from django_events.publishing.encoding import PLAIN, BufferRow, Conditional, Encoded
from django_events.publishing.session_settings import has_its_context
from django_events.signals import event_published
from django_events.sql.search_path import tables_missing

SQL = sql.beside(__name__)
has_its_context(SQL.publish, SQL.publish_value, SQL.publish_later_or_once)

ASYNC_TWIN = (
    "You cannot call this from an async context - await its async twin, like apublish(), or use sync_to_async. "
    "Nothing was done."
)
# Characters of JSON: what may have more than 4,000 bytes as jsonb, which the function would look through.
LARGE = 2_000
# What the SQL functions raise for an event that they refuse.
_NO_PAYLOAD = "DE002"
_UNREADABLE = "DE003"
_MIRROR = "DE007"


def publishable(using: str | None) -> str:
    """The alias to publish on; NotInTransaction where the settings want a transaction and there is none."""
    using = writable(using)
    if settings.REQUIRE_TRANSACTION and connections[using].get_autocommit():
        raise NotInTransaction(
            f"Publishing outside a transaction on {using!r} is forbidden by DJANGO_EVENTS['REQUIRE_TRANSACTION']. "
            "Wrap it, and what the event is about, in transaction.atomic()."
        )
    return using


def store_one(using: str, topic: DeclaredTopic, event: Encoded) -> Receipt:
    """Store one event with one statement, in the caller's transaction or in one of its own."""
    try:
        rows = _stored(using, topic, event)
    except DatabaseError as error:
        _raise_explained(error, using, topic)
    except SynchronousOnlyOperation as error:
        raise SynchronousOnlyOperation(ASYNC_TWIN) from error
    if not rows:
        return Receipt(topic.name, None, new=False, using=using)
    [[ticket, since, until]] = rows
    _announce(using, topic, [event])
    return Receipt(topic.name, ticket, using=using, scheduled=_is_scheduled(event), moment=(since, until))


def _stored(using: str, topic: DeclaredTopic, event: Encoded) -> sql.Rows:
    """The ticket, and between which moments it is of; nothing where the dedup key is taken."""
    wake = settings.WAKE_UPS
    if isinstance(event, Conditional):
        return sql.fetch(
            using,
            SQL.publish_later_or_once,
            topic=topic.name,
            wake=wake,
            publish_at=event.publish_at,
            dedup_key=event.dedup_key,
            dedup_window=event.dedup_window,
            **event.row._asdict(),
        )
    if len(event.value or "") + len(event.metadata) > LARGE:
        row = event
        return sql.fetch(using, SQL.publish_large, topic=topic.name, wake=wake, **row._asdict())
    if event[3:] == PLAIN and wake is None:
        return sql.fetch(using, SQL.publish_value, topic=topic.name, value=event.value, type=event.type, key=event.key)
    row = event
    return sql.fetch(using, SQL.publish, topic=topic.name, wake=wake, **row._asdict())


def store(using: str, topic: DeclaredTopic, events: Sequence[Encoded]) -> set[int]:
    """Store events in their order, in the caller's transaction; returns the indexes of those whose key is taken."""
    conditional = {index: event for index, event in enumerate(events) if isinstance(event, Conditional)}
    if not conditional:
        copy(using, topic, cast("Sequence[BufferRow]", events))
        return set()
    repeated = _repeated(using, topic, conditional)
    new = [event for index, event in enumerate(events) if index not in repeated]
    now = [event if isinstance(event, BufferRow) else event.row for event in new if not _is_scheduled(event)]
    copy(using, topic, now)
    if scheduled := [event for event in new if isinstance(event, Conditional) and _is_scheduled(event)]:
        rows = ((*event.row, event.publish_at) for event in scheduled)
        _copy(using, SQL.copy_scheduled, _open(using, topic), rows)
        _announce(using, topic, scheduled)
    return repeated


def copy(using: str, topic: DeclaredTopic, rows: Iterable[BufferRow]) -> None:
    """Store plain events in their order. They may be made while the server takes in those before."""
    if _is_asked_for():
        rows = list(rows)
    _copy(using, SQL.copy, _open(using, topic), rows)
    _announce(using, topic, rows)


def _is_scheduled(event: Encoded) -> bool:
    return isinstance(event, Conditional) and event.publish_at is not None


def _repeated(using: str, topic: DeclaredTopic, events: Mapping[int, Conditional]) -> set[int]:
    """Take the dedup keys, in an order that all share, lest two wait for each other; the first of a key counts."""
    keys = {index: event.dedup_key for index, event in events.items() if event.dedup_key is not None}
    return take_dedup_keys(using, topic, keys, {index: events[index].dedup_window for index in keys})


def take_dedup_keys(
    using: str, topic: DeclaredTopic, keys: Mapping[int, str], windows: Mapping[int, timedelta | None]
) -> set[int]:
    """Take dedup keys in the caller's transaction; returns the indexes of those that are taken already."""
    keyed = sorted((key, index) for index, key in keys.items())
    if not keyed:
        return set()
    new = sql.fetch(
        using,
        SQL.new_ones,
        topic=topic.name,
        indexes=[index for _, index in keyed],
        keys=[key for key, _ in keyed],
        windows=[windows[index] for _, index in keyed],
    )
    return {index for _, index in keyed}.difference(index for (index,) in new)


def _is_asked_for() -> bool:
    return bool(event_published.receivers) or telemetry.PUBLISHED.observed


def _announce(using: str, topic: DeclaredTopic, events: Iterable[Encoded]) -> None:
    if _is_asked_for():
        announce(using, topic, ((event.row if isinstance(event, Conditional) else event).type for event in events))


def announce(using: str, topic: DeclaredTopic, types: Iterable[str]) -> None:
    """Send the signal after the commit: a receiver that hides a database error would break the transaction."""
    if not _is_asked_for():
        return
    counts = Counter(types)

    def tell() -> None:
        telemetry.PUBLISHED.tell(counts.total(), using, topic.name)
        for name, count in counts.items():
            event_published.send_robust(topic, topic=topic.name, type=name, count=count, using=using)

    transaction.on_commit(tell, using)


def _open(using: str, topic: DeclaredTopic) -> int:
    [[topic_id]] = sql.fetch(using, sql.shared.open, topic=topic.name, wake=settings.WAKE_UPS)
    return int(topic_id)


def _copy(using: str, statement: sql.Statement, topic_id: int, rows: Iterable[tuple[object, ...]]) -> None:
    connection = connections[using]
    # Django leaves the errors of a COPY as the driver's: a caller expects them as Django's.
    with connection.wrap_database_errors, connection.cursor() as cursor, cursor.copy(statement.text) as copying:
        write = copying.write_row
        for row in rows:
            write((topic_id, *row))


@contextmanager
def explained(using: str, topic: DeclaredTopic) -> Iterator[None]:
    """Raise errors of the database again, saying what to do where its own words don't."""
    try:
        yield
    except DatabaseError as error:
        _raise_explained(error, using, topic)
    except SynchronousOnlyOperation as error:
        raise SynchronousOnlyOperation(ASYNC_TWIN) from error


def _raise_explained(error: DatabaseError, using: str, topic: DeclaredTopic) -> NoReturn:
    """PostgreSQL aborted the transaction. It is marked for rollback, or a caller that catches the EventsError would
    leave atomic() as if it had committed.
    """
    cut_details(error)
    if connections[using].in_atomic_block:
        transaction.set_rollback(True, using)
    given_up = "The transaction can only be rolled back."
    if connections[using].vendor != "postgresql":
        raise NotReady(
            f"Events can't be published to {using!r}, which is {connections[using].vendor}: they go to PostgreSQL. "
            f"Publish what is saved elsewhere by hand, to an alias of PostgreSQL. {given_up}"
        ) from error
    if sql.state(error) == TOPIC_MISSING:
        raise NotReady(
            f"Topic {topic.name!r} is declared, but not in the database {using!r} yet. "
            f"Run: manage.py migrate --database {using}. {given_up}"
        ) from error
    if sql.state(error) == _NO_PAYLOAD:
        raise InvalidEvent(
            f"There is no payload to publish to {topic.name!r}: the event was erased. Nothing was written. {given_up}"
        ) from error
    if sql.state(error) == _MIRROR:
        raise Refused(f"{sql.said(error)}\nNothing was written. {given_up}") from error
    if sql.state(error) == _UNREADABLE:
        raise InvalidEvent(
            f"A payload to publish to {topic.name!r} can't be read again: it has numbers of more than 4,300 digits, or "
            f"900 decimals, or is nested more than 5,000 deep, and as text it may be larger than memory. "
            f"Nothing was written. {given_up}"
        ) from error
    kind = sql.kind_of(error)
    if kind in (sql.ErrorKind.FORBIDDEN, sql.ErrorKind.ROWS_HIDDEN):
        role = connections[using].settings_dict["USER"]
        raise NotReady(f"{rights_missing(role, error, kind='publisher')}. {given_up}") from error
    gone = kind in (sql.ErrorKind.TABLE_GONE, sql.ErrorKind.FUNCTION_GONE)
    if gone and not router.allow_migrate_model(using, BufferedEvent):
        raise NotReady(
            f"Events can't be published to {using!r}: the search_path of this connection leads to no tables of "
            "django_events, and a router keeps them away from there. With a schema for each tenant, enter a tenant "
            "first. Otherwise let the router allow them, or publish what is saved there by hand, to an alias that has "
            f"them. {given_up}"
        ) from error
    if gone:
        raise NotReady(f"{tables_missing(using)}. {given_up}") from error
    raise error
