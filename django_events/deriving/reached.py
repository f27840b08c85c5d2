"""Up to which event what is derived is true: of each topic the id, and when it was logged.

up_to(revenue)      # [UpTo("orders", 1042, …)]
"""

from collections.abc import Sequence

from django.db import router

from django_events import declarations, models
from django_events.consuming.registered import registered
from django_events.observing.lag import PartitionProgress, progress
from django_events.outcomes import UpTo


def up_to(declared: declarations.DeclaredConsumer, *, using: str | None = None) -> list[UpTo]:
    """Of each topic of a derived consumer, in the order of their names, how far its table is true."""
    using = using or router.db_for_read(models.Consumer)
    rows = sorted(registered(using, declared), key=lambda row: row.topic.name)
    return [of_consumer(using, row, progress(using, [row])) for row in rows]


def of_consumer(using: str, row: models.Consumer, parts: Sequence[PartitionProgress]) -> UpTo:
    """The same of a consumer on one topic. A partition in which nothing waits holds nothing back."""
    waiting = [part.position for part in parts if part.lag]
    reached = min(waiting) if waiting else max((part.position for part in parts), default=0)
    times = models.Event.objects.using(using).of(row.topic.name).filter(id=reached).values_list("logged_at", flat=True)
    return UpTo(row.topic.name, reached, times.first())
