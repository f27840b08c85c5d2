"""An event becomes a dead letter, in the transaction that passes it."""

from django_events import sql
from django_events.consuming.failures import Failure
from django_events.consuming.received import UnreadEvent
from django_events.consuming.subscriptions import Subscription


def bury(subscription: Subscription, failure: Failure) -> None:
    """Keep a full copy of the event with its error. In the caller's transaction; again replaces the error."""
    if isinstance(failure.event, UnreadEvent) and _bury_unread(subscription, failure):
        return
    event_id, partition, number, kind, key, value, body, metadata, published_at, logged_at = failure.event.columns
    sql.fetch(
        subscription.using,
        sql.statement("bury"),
        consumer_id=subscription.consumer_id,
        event_id=event_id,
        partition=partition,
        number=number,
        type=kind,
        key=key,
        value=value,
        body=body,
        metadata="{}" if metadata is None else metadata,
        published_at=published_at,
        logged_at=logged_at,
        attempts=failure.event.attempt,
        error=failure.summary,
        traceback=failure.traceback,
    )


def _bury_unread(of: Subscription, failure: Failure) -> bool:
    """False where the log has dropped it, and there is no copy: then a dead letter says at least that it was."""
    statement = sql.statement("bury_unread").on(log=of.log, topic_id=of.topic_id, event_id=failure.event.id)
    rows = sql.fetch(
        of.using,
        statement,
        consumer_id=of.consumer_id,
        attempts=failure.event.attempt,
        error=failure.summary,
        traceback=failure.traceback,
    )
    return bool(rows)
