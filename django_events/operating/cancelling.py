"""An operator cancels scheduled events: they are deleted before they are published.

cancel_scheduled(ScheduledEvent.objects.filter(topic__name="reminders", key="7"), reason="a customer who left")
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby

from django.db import router
from django.db.models import QuerySet

from django_events.exceptions import Invalid
from django_events.models import ScheduledEvent
from django_events.operating.interventions import record_of_topic
from django_events.operating.locks import bounded

NAMED = 100  # tickets that an intervention lists; more are only counted


def cancel_scheduled(
    scheduled: Iterable[ScheduledEvent], *, reason: str, by: str | None = None, dry_run: bool = False
) -> int:
    """Delete these scheduled events; what is left of them is the record with the reason. Returns how many.

    In one transaction, all or none. Those that were published meanwhile are left out. InUse names the session that
    keeps one locked.
    """
    if not reason.strip():
        raise Invalid("A scheduled event is cancelled for a reason: reason is empty.")
    with locked(scheduled) as (using, found):
        if not dry_run:
            for topic, of_topic in groupby(found, key=lambda row: row.topic):
                tickets = [row.pk for row in of_topic]
                record_of_topic(
                    using, topic, "cancel", by=by, count=len(tickets), tickets=tickets[:NAMED], reason=reason
                )
            ScheduledEvent.objects.using(using).filter(pk__in=[row.pk for row in found]).delete()
    return len(found)


@contextmanager
def locked(scheduled: Iterable[ScheduledEvent]) -> Iterator[tuple[str, list[ScheduledEvent]]]:
    """A transaction that locks these rows, by topic and ticket; those that are gone already are left out."""
    if isinstance(scheduled, QuerySet):
        using, ids = scheduled.db, list(scheduled.values_list("pk", flat=True))
    else:
        given = list(scheduled)
        using = (given[0]._state.db if given else None) or router.db_for_write(ScheduledEvent)
        ids = [row.pk for row in given]
    with bounded(using, "One of these scheduled events"):
        rows = ScheduledEvent.objects.using(using).filter(pk__in=ids).select_related("topic")
        rows = rows.defer("value", "body", "metadata").order_by("topic_id", "id").select_for_update(of=["self"])
        yield using, list(rows)
