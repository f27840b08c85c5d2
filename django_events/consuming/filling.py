"""Deliveries from the log: for a queue consumer that begins in the past, or stopped taking events for a while.

While a consumer is live, its deliveries come with the events. While it is not, workers make them
from the log, in small transactions, up to the end of the log; there it becomes live, under the head of the
topic, so that no event comes in between and none comes twice.
"""

from django_events import models, sql
from django_events.consuming.matching import condition
from django_events.consuming.subscriptions import Subscription

AT_ONCE = 5_000  # ids of the log


def fill(subscription: Subscription) -> bool:
    """Make deliveries of the next part of the log; returns whether there is more to do.

    If somebody else is at it, there is nothing to do here.
    """
    left = _fill(subscription, to_the_end=False)
    if left is not None and left <= AT_ONCE:  # the end is near: nobody has to wait for long
        left = _fill(subscription, to_the_end=True)
    return left is not None


def _fill(of: Subscription, *, to_the_end: bool) -> int | None:
    """One transaction. Returns how many ids of the log are left; None if the consumer is live, or somebody else's."""
    with sql.committed(of.using):
        if to_the_end:
            sql.fetch(of.using, sql.statement("lock_head"), topic_id=of.topic_id)
        rows = sql.fetch(of.using, sql.statement("lock_filling"), consumer_id=of.consumer_id)
        if not rows:
            return None
        filled = rows[0][0]
        last = _end(of, filled)
        upper = min(last, filled + AT_ONCE)
        row = models.Consumer.objects.using(of.using).get(pk=of.consumer_id)
        statement = sql.statement("fill").on(
            consumer_id=of.consumer_id,
            ordered=row.ordered,
            topic_id=of.topic_id,
            log=of.log,
            after=filled,
            upper=upper,
            match=condition(row),
        )
        sql.fetch(of.using, statement)
        live = to_the_end and upper == last
        sql.fetch(of.using, sql.statement("filled"), consumer_id=of.consumer_id, filled_until=upper, live=live)
    return None if live else last - upper


def _end(of: Subscription, filled: int) -> int:
    rows = sql.fetch(of.using, sql.statement("horizon").on(log=of.log, topic_id=of.topic_id, after=filled))
    return int(rows[0][0]) if rows else filled
