"""What the workers of a queue do beside handling, for queues that programs claim from by SQL functions alone.

A program that claims makes deliveries from the log, but not up to its end: that takes the lock of the topic's head, and
dead letters that are redriven take a lock that keeps all claims out. A program may keep its transaction open for long.
"""

from collections.abc import Callable

from django.db import DatabaseError

from django_events import declarations, models
from django_events.consuming.queues.filling import fill
from django_events.consuming.queues.server import redrive_some
from django_events.consuming.setbacks import sets_aside
from django_events.consuming.subscribed import of_rows, rows
from django_events.consuming.subscriptions import Subscription, subscriptions
from django_events.exceptions import EventsMissing, NotReady


def serve_queues(using: str, until: Callable[[], bool]) -> dict[str, int]:
    """Fill queues that aren't live, and redrive what is due, as far as it goes now.

    Where one of them can't be because of its log or its filter, the others go on, and then the step fails.
    """
    filled = redriven = 0
    failed: Exception | None = None
    for of in _waiting(using):
        try:
            while not until() and redrive_some(of):
                redriven += 1
            while not until() and fill(of):
                filled += 1
        except (DatabaseError, EventsMissing) as error:
            if not sets_aside(using, error):
                raise
            failed = failed or error
    if failed is not None:
        raise failed
    return {"filled": filled, "redriven": redriven}


def _waiting(using: str) -> list[Subscription]:
    """The queues that aren't live, or have dead letters to redrive; nearly always there is none."""
    queues = models.Consumer.objects.using(using).filter(mode="queue")
    redriven = models.DeadLetter.objects.using(using).filter(redrive_at__isnull=False).order_by()
    ids = {*queues.filter(live=False).values_list("pk", flat=True)}
    ids |= {*redriven.values_list("consumer_id", flat=True).distinct()}
    names = {*queues.filter(pk__in=ids).values_list("name", flat=True)}
    found: list[Subscription] = []
    for declared in [*declarations.consumers, *of_rows(rows(using).filter(pk__in=ids))]:
        if declared.name in names and declared.mode == "queue":
            try:
                found += [of for of in subscriptions(using, [declared]) if of.consumer_id in ids]
            except NotReady:  # `migrate` is still to run: the doctor says so
                continue
    return found
