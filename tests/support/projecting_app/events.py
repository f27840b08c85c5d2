"""A projection for tests with processes; others declare their own."""

from datetime import timedelta

from django.conf import settings

from django_events import ReceivedEvent, projection, topic
from tests.support.projecting_app.models import CustomerTotal

if getattr(settings, "DECLARES_PROJECTIONS", False):
    deeds = topic("deeds", partitions=2)

    @projection(deeds, into=CustomerTotal, batch_size=50, lease=timedelta(seconds=2))
    def deed_totals(row: CustomerTotal, event: ReceivedEvent) -> None:
        """Which events a key had, in which order: what is there twice, or in another order, is seen."""
        row.orders += 1
        row.seen.append(event.id)
