"""The histories of queue consumers: what is older than they are to be kept is deleted, in small transactions."""

import time

from django_events import models, sql

AT_ONCE = 5_000


def prune_histories(using: str, *, seconds: float) -> int:
    """Delete what is too old of all consumers, as far as there is time; returns how many rows. Repeating it goes on."""
    deadline, pruned = time.monotonic() + seconds, 0
    statement = sql.statement("prune_history")
    queues = models.Consumer.objects.using(using).filter(mode="queue").order_by("pk")
    for consumer_id in list(queues.values_list("pk", flat=True)):
        gone = AT_ONCE
        while gone == AT_ONCE and time.monotonic() < deadline:
            with sql.batch(using, **sql.UNHURRIED):
                [[gone]] = sql.fetch(using, statement, consumer_id=consumer_id, most=AT_ONCE)
            pruned += gone
    return pruned
