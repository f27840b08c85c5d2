"""Pause a consumer, and let it go on again.

    pause("billing")
    resume("billing")

Workers may run meanwhile. Both are recorded as interventions.
"""

from django_events import declarations, models
from django_events.consuming.registered import Named, registered
from django_events.models.buffer import writable
from django_events.models.functions import ClockTimestamp
from django_events.operating.interventions import record
from django_events.operating.locks import bounded
from django_events.operating.quiesce import refuse_queries
from django_events.operating.retrying import try_again


def pause(
    consumer: Named,
    *,
    topic: declarations.DeclaredTopic | str | None = None,
    reason: str = "",
    by: str | None = None,
    using: str | None = None,
) -> list[str]:
    """Let no worker begin anything more for a consumer; what is in hand is finished.

    Returns the topics in which it was paused. It stays registered, and counts for retention. Repeating it changes
    nothing. InUse names the session that keeps the consumer locked.
    """
    using = writable(using)
    with bounded(using, f"Consumer {consumer}"):
        rows = [row for row in registered(using, consumer, topic=topic) if row.paused_at is None]
        refuse_queries(rows)
        for row in rows:
            models.Consumer.objects.using(using).filter(pk=row.pk).update(paused_at=ClockTimestamp())
            record(using, row, "pause", by=by, reason=reason)
    return [row.topic.name for row in rows]


def resume(
    consumer: Named,
    *,
    topic: declarations.DeclaredTopic | str | None = None,
    reason: str = "",
    by: str | None = None,
    using: str | None = None,
) -> list[str]:
    """Let a paused consumer go on, and what stopped or waits for a retry be tried again now.

    Attempts are counted anew. Returns the topics in which it went on. Repeating it changes nothing. InUse
    names the session that keeps it locked.
    """
    using = writable(using)
    resumed = []
    with bounded(using, f"Consumer {consumer}"):
        for row in registered(using, consumer, topic=topic):
            again = try_again(using, row)
            if any(again.values()) or row.paused_at is not None:
                models.Consumer.objects.using(using).filter(pk=row.pk).update(paused_at=None)
                record(using, row, "resume", by=by, reason=reason, **again)
                resumed.append(row)
    return [row.topic.name for row in resumed]
