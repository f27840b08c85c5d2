"""An event becomes a dead letter, in the transaction that passes it."""

from django_events import sql
from django_events.consuming.failures import Failure
from django_events.consuming.subscriptions import Subscription


def bury(subscription: Subscription, failure: Failure) -> None:
    """Keep a full copy of the event with its error. In the caller's transaction; again replaces the error."""
    event = failure.event
    sql.fetch(
        subscription.using,
        sql.statement("bury").on(log=subscription.log, topic_id=subscription.topic_id, event_id=event.id),
        consumer_id=subscription.consumer_id,
        attempts=event.attempt,
        error=failure.summary,
        traceback=failure.traceback,
    )
