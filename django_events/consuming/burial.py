"""An event becomes a dead letter, in the transaction that passes it."""

from django_events import sql
from django_events.consuming.failures import Failure
from django_events.consuming.subscriptions import Subscription


def bury(subscription: Subscription, failure: Failure) -> None:
    """Keep a full copy of the event with its error. In the caller's transaction; again replaces the error."""
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
        metadata=metadata,
        published_at=published_at,
        logged_at=logged_at,
        attempts=failure.event.attempt,
        error=failure.summary,
        traceback=failure.traceback,
    )
