"""Publishing by hand: one event, or many at once, in the caller's transaction.

with transaction.atomic():
    order.save()
    publish("orders", {"id": order.pk}, type="order.placed", key=str(order.pk))
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from datetime import datetime, timedelta
from typing import Any, Unpack

from asgiref.sync import sync_to_async
from django.db import transaction

from django_events import sql, telemetry
from django_events.declarations import DeclaredTopic, inboxes, registry
from django_events.drafts import UNSET, Draft, EventFields, Receipt, Unset
from django_events.exceptions import InvalidEvent
from django_events.models.buffer import writable
from django_events.publishing.encoding import BufferRow, Encoded, encode, encode_draft
from django_events.publishing.shards import check_key, placed
from django_events.publishing.storing import copy, explained, publishable, store, store_one

SQL = sql.beside(__name__)

FEW = 100  # drafts


def publish(
    topic: DeclaredTopic | str,
    value: Any = UNSET,
    *,
    body: bytes | Unset = UNSET,
    type: str = "",
    key: str | None = None,
    metadata: Mapping[str, Any] | None = None,
    partition: int | None = None,
    publish_at: datetime | None = None,
    dedup_key: str | None = None,
    dedup_window: timedelta | None = None,
    shard_by: str | None = None,
    using: str | None = None,
) -> Receipt:
    """Publish one event: it is in the log if, and only if, the surrounding transaction commits.

    One statement in the caller's transaction on `using` (by default where the router writes
    BufferedEvent). Events of a key keep the order in which they were published; with `publish_at`
    it is published when that time has come. Publishing the same again publishes a second event,
    unless its `dedup_key` was used within its window: then the receipt is not `new`. With `shard_by`, WrongShard says
    that this key is in another database, and the key stays in this one until the transaction ends.
    """
    declared = registry.get(topic)
    if inboxes.mirrors:
        inboxes.refuse_publishing(declared.name)
    with telemetry.publishing(declared.name, events=1):
        event = encode(declared, value, body, type, key, metadata, partition, publish_at, dedup_key, dedup_window)
        if shard_by is None:
            return store_one(publishable(using), declared, event)
        _check_shard_by(shard_by, publish_at)
        using = publishable(using)
        with placed(using, declared, [shard_by]):
            return store_one(using, declared, event)


async def apublish(topic: DeclaredTopic | str, value: Any = UNSET, **fields: Unpack[EventFields]) -> Receipt:
    """`publish` for async code: the same, in the thread that holds this context's connection."""
    return await sync_to_async(publish)(topic, value, **fields)


def publish_many(topic: DeclaredTopic | str, drafts: Iterable[Draft], *, using: str | None = None) -> int:
    """Publish all drafts in their order, or none of them; returns how many.

    In the caller's transaction, or in one of its own where there is none. A draft that is refused
    leaves nothing behind, and the caller's transaction goes on. Publishing the same again
    publishes them a second time, but for those with a `dedup_key`, which don't count then.
    """
    declared = registry.get(topic)
    inboxes.refuse_publishing(declared.name)
    drafts = list(drafts)
    using = publishable(using)
    if not drafts:
        return 0
    keys = _shard_keys(drafts)
    with placed(using, declared, keys) if keys else nullcontext():
        return _publish_many(using, declared, drafts)


def _publish_many(using: str, declared: DeclaredTopic, drafts: list[Draft]) -> int:
    with telemetry.publishing(declared.name, events=len(drafts)), explained(using, declared):
        # For a few drafts, encoding all before the first is sent costs less than a savepoint.
        if len(drafts) > FEW:
            with suppress(_NotPlain), transaction.atomic(using):
                copy(using, declared, _plain_rows(declared, drafts))
                return len(drafts)
        events = [_encode_draft(declared, index, draft) for index, draft in enumerate(drafts)]
        with transaction.atomic(using, savepoint=False):
            return len(drafts) - len(store(using, declared, events))


async def apublish_many(topic: DeclaredTopic | str, drafts: Iterable[Draft], *, using: str | None = None) -> int:
    """`publish_many` for async code: the same, in the thread that holds this context's connection."""
    return await sync_to_async(publish_many)(topic, drafts, using=using)


def cancel(topic: DeclaredTopic | str, ticket: int, *, using: str | None = None) -> bool:
    """Cancel an event that was published with `publish_at`, by the ticket of its receipt.

    In the caller's transaction. Returns whether it was still there: False says that it was published, or cancelled
    before, so cancelling again changes nothing.
    """
    declared = registry.get(topic)
    using = writable(using)
    with explained(using, declared):
        return bool(sql.fetch(using, SQL.cancel, topic=declared.name, ticket=ticket))


def _shard_keys(drafts: Iterable[Draft]) -> set[str]:
    keys = set()
    for index, draft in enumerate(drafts):
        if (key := getattr(draft, "shard_by", None)) is not None:
            try:
                _check_shard_by(key, draft.publish_at)
            except InvalidEvent as error:
                raise InvalidEvent(f"drafts[{index}]: {error}") from error
            keys.add(key)
    return keys


def _check_shard_by(key: str, publish_at: datetime | None) -> None:
    check_key(key)
    if publish_at is not None:
        raise InvalidEvent(
            "An event has either shard_by or publish_at: when its time has come, the key may be in another shard, and "
            "newer events of it are handled there. Publish it at that time."
        )


class _NotPlain(Exception):
    """One of many drafts is scheduled or has a dedup key, so rows can't be sent while later ones are encoded."""


def _plain_rows(topic: DeclaredTopic, drafts: Sequence[Draft]) -> Iterator[BufferRow]:
    for index, draft in enumerate(drafts):
        event = _encode_draft(topic, index, draft)
        if type(event) is not BufferRow:
            raise _NotPlain
        yield event


def _encode_draft(topic: DeclaredTopic, index: int, draft: Draft) -> Encoded:
    if not isinstance(draft, Draft):
        raise InvalidEvent(f"drafts[{index}] is {draft!r:.60}, expected a Draft, like Draft(value={{'id': 7}}).")
    try:
        return encode_draft(topic, draft)
    except InvalidEvent as error:
        raise InvalidEvent(f"drafts[{index}]: {error}") from error
