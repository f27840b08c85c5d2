"""Publishing by hand: one event, or many at once, in the caller's transaction.

with transaction.atomic():
    order.save()
    publish("orders", {"id": order.pk}, type="order.placed", key=str(order.pk))
"""

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, Unpack

from asgiref.sync import sync_to_async
from django.db import DatabaseError, connections, router, transaction

from django_events import sql
from django_events.conf import settings
from django_events.declarations import Topic, registry
from django_events.drafts import UNSET, Draft, EventFields, Receipt, Unset
from django_events.exceptions import InvalidEvent, NotInTransaction, NotReady, TopicNotReady, tables_missing
from django_events.models import BufferedEvent
from django_events.publishing.encoding import PLAIN, Row, encode

# What django_events_publish() and django_events_open() raise for a topic without a row.
_TOPIC_MISSING = "DE001"
_UNDEFINED = {"42P01", "42883", "3F000"}

# Up to so many drafts are all encoded before the first is sent: a savepoint would cost more.
FEW = 100


def publish(
    topic: Topic | str,
    value: Any = UNSET,
    *,
    body: bytes | Unset = UNSET,
    type: str = "",
    key: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    partition: int | None = None,
    using: str | None = None,
) -> Receipt:
    """Publish one event: it is in the log if, and only if, the surrounding transaction commits.

    One statement in the caller's transaction on `using` (by default where the router writes
    BufferedEvent). Events of a key keep the order in which they were published. Publishing the
    same again publishes a second event.
    """
    declared = registry.get(topic)
    row = encode(declared, value, body, type, key, metadata, partition)
    using = _writable(using)
    wake = settings.WAKE_UPS
    try:
        if row[3:] == PLAIN and wake is None:
            [[ticket]] = sql.fetch(
                using, sql.statement("publish_value"), topic=declared.name, value=row.value, type=row.type, key=row.key
            )
        else:
            [[ticket]] = sql.fetch(using, sql.statement("publish"), topic=declared.name, wake=wake, **row._asdict())
    except DatabaseError as error:
        _raise_explained(error, declared, using)
    return Receipt(declared.name, ticket)


async def apublish(topic: Topic | str, value: Any = UNSET, **fields: Unpack[EventFields]) -> Receipt:
    """`publish` for async code: the same, in the thread that holds this context's connection."""
    return await sync_to_async(publish)(topic, value, **fields)


def publish_many(topic: Topic | str, drafts: Iterable[Draft], *, using: str | None = None) -> int:
    """Publish all drafts in their order, or none of them; returns how many.

    In the caller's transaction, or in one of its own where there is none. A draft that is refused
    leaves nothing behind, and the caller's transaction goes on. Publishing the same again
    publishes them a second time.
    """
    declared = registry.get(topic)
    drafts = list(drafts)
    few = len(drafts) <= FEW
    rows: Iterable[Row] = (_encode_draft(declared, index, draft) for index, draft in enumerate(drafts))
    if few:
        rows = list(rows)
    using = _writable(using)
    if not drafts:
        return 0
    try:
        # Many are encoded while the server takes in those before; a savepoint undoes them if one is refused.
        with transaction.atomic(using, savepoint=not few):
            [[topic_id]] = sql.fetch(using, sql.statement("open"), topic=declared.name, wake=settings.WAKE_UPS)
            _copy(using, topic_id, rows)
    except DatabaseError as error:
        _raise_explained(error, declared, using)
    return len(drafts)


async def apublish_many(topic: Topic | str, drafts: Iterable[Draft], *, using: str | None = None) -> int:
    """`publish_many` for async code: the same, in the thread that holds this context's connection."""
    return await sync_to_async(publish_many)(topic, drafts, using=using)


def _encode_draft(topic: Topic, index: int, draft: Draft) -> Row:
    if not isinstance(draft, Draft):
        raise InvalidEvent(f"drafts[{index}] is {draft!r:.60}, expected a Draft, like Draft(value={{'id': 7}}).")
    try:
        return encode(topic, draft.value, draft.body, draft.type, draft.key, draft.metadata, draft.partition)
    except InvalidEvent as error:
        raise InvalidEvent(f"drafts[{index}]: {error}") from error


def _writable(using: str | None) -> str:
    using = using or router.db_for_write(BufferedEvent)
    if settings.REQUIRE_TRANSACTION and connections[using].get_autocommit():
        raise NotInTransaction(
            f"Publishing outside a transaction on {using!r} is forbidden by DJANGO_EVENTS['REQUIRE_TRANSACTION']. "
            "Wrap it, and what the event is about, in transaction.atomic()."
        )
    return using


def _copy(using: str, topic_id: int, rows: Iterable[Row]) -> None:
    connection = connections[using]
    # Django leaves the errors of a COPY as the driver's: a caller expects them as Django's.
    with (
        connection.wrap_database_errors,
        connection.cursor() as cursor,
        cursor.copy(sql.statement("copy").text) as copy,
    ):
        write = copy.write_row
        for row in rows:
            write((topic_id, *row))


def _raise_explained(error: DatabaseError, topic: Topic, using: str) -> NoReturn:
    """Raise the error again, saying what to do where the database's own doesn't.

    The database has given the transaction up. Django must know, because who catches an EventsError
    may not expect it: without the mark, leaving atomic() would look like a commit.
    """
    if connections[using].in_atomic_block:
        transaction.set_rollback(True, using)
    given_up = "The transaction can only be rolled back."
    if sql.state(error) == _TOPIC_MISSING:
        raise TopicNotReady(
            f"Topic {topic.name!r} is declared, but not in the database {using!r} yet. "
            f"Run: manage.py migrate --database {using}. {given_up}"
        ) from error
    if sql.state(error) in _UNDEFINED:
        raise NotReady(f"{tables_missing(using)}. {given_up}") from error
    raise error
