"""Delete the rows of unregistered queue consumers. They have no foreign key, so this takes small transactions."""

import time

from django_events import models, sql

SQL = sql.beside(__name__)

AT_ONCE = 10_000


def forget_orphans(using: str, *, seconds: float | None = None) -> int:
    """Delete deliveries, history and leases of consumers that are unregistered; returns how many rows.

    After `seconds` it stops; the next call deletes the rest.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    deleted = 0
    for model in (models.Delivery, models.PastDelivery):
        statement = SQL.orphaned_deliveries.on(table=model._meta.db_table)
        while deadline is None or time.monotonic() < deadline:
            with sql.batch(using, **sql.UNHURRIED):
                [[gone]] = sql.fetch(using, statement, most=AT_ONCE)
            deleted += gone
            if not gone:
                break
    leases = models.DeliveryLease.objects.using(using)
    orphans = leases.exclude(consumer__in=models.Consumer.objects.using(using).all())
    return deleted + orphans.delete()[0]
