"""Consumers that keep keys in order wait, from an id on, until those of their name have come so far in other shards.

    wait_again(using, row)           # by what moved here, for a new consumer
    wait_again(using, row, after=7)  # or for one that goes on behind event 7
    wait_from(using, row, None)      # it waits no longer

For a caller who has the topic's head locked. A stream stands at a barrier, see `layouts`. A queue isn't live, and its
deliveries are made from the log up to there, see `filling`. So a claim asks for nothing more than it does anyway.
"""

from django.db.models import BigIntegerField, Case, F, Min, When

from django_events import models
from django_events.consuming import log_positions
from django_events.consuming.streams import layouts


def keeps_order(row: models.Consumer) -> bool:
    """Whether it handles the events of a key in their order."""
    return row.mode == "stream" or (row.mode == "queue" and row.ordered)


def wait_again(using: str, row: models.Consumer, *, after: int = -1) -> None:
    """Have the consumer wait for what it has before it: all that moved here, or only what moved behind an id.

    Whether the others have come so far is asked later, see `operating.waits`: here they are all waited for.
    """
    row.refresh_from_db(using=using, fields=["waits_from"])
    if not keeps_order(row):
        if row.waits_from is not None:
            wait_from(using, row, None)
        return
    moves = models.ShardMove.objects.using(using).filter(topic_id=row.topic_id, waits_from__gt=after)
    ids = [moves.aggregate(lowest=Min("waits_from"))["lowest"], row.waits_from]
    if any(one is not None for one in ids):
        wait_from(using, row, min(one for one in ids if one is not None))


def wait_from(using: str, row: models.Consumer, waits_from: int | None) -> None:
    """Have the consumer handle nothing from this id on, or with None wait no longer."""
    consumer = models.Consumer.objects.using(using).filter(pk=row.pk)
    if row.mode == "queue" and waits_from is not None:
        last_id = log_positions.find(using, row.topic, "end") - 1
        filled = Case(When(live=True, then=last_id), default=F("filled_until"), output_field=BigIntegerField())
        consumer.update(waits_from=waits_from, filled_until=filled, live=False)
        row.refresh_from_db(using=using, fields=["filled_until", "live"])
    else:
        consumer.update(waits_from=waits_from)
    row.waits_from = waits_from
    if row.mode == "stream":
        layouts.stand(using, row)
        layouts.arrange(using, row)
