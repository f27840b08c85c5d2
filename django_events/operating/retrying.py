"""Try again now what waits for its next attempt, or stopped.

retry_now("search")
retry_now("search", event_id=1204)
"""

from django_events import declarations, models, sql
from django_events.consuming.registered import Named, refuse_several, registered
from django_events.exceptions import Refused
from django_events.models.buffer import writable
from django_events.models.databases import for_database
from django_events.operating.interventions import record
from django_events.operating.locks import bounded
from django_events.operating.quiesce import lock, refuse_queries
from django_events.outcomes import Retried

SQL = sql.beside(__name__)


def retry_now(
    consumer: Named,
    *,
    topic: declarations.DeclaredTopic | str | None = None,
    event_id: int | None = None,
    reason: str = "",
    by: str | None = None,
    using: str | None = None,
) -> list[Retried]:
    """Let a consumer try again now what waits for its next attempt, or stopped: all of it, or one event.

    In one transaction, all or none. Attempts are counted anew. Returns the topics in which something waited; where
    nothing did, nothing is changed and nothing is written down. So repeating it changes nothing. InUse names the
    session that keeps it locked.
    """
    using = writable(using)
    retried = []
    with bounded(using, f"What consumer {consumer} has to handle"):
        rows = registered(using, consumer, topic=topic)
        refuse_queries(rows)
        _refuse(rows, event_id)
        for row in rows:
            again = try_again(using, row, event_id=event_id)
            if any(again.values()):
                event = {} if event_id is None else {"event": event_id}
                record(using, row, "retry_now", by=by, reason=reason, **event, **again)
                retried.append(Retried(row.topic.name, again["partitions"], again.get("deliveries", 0)))
    return retried


def try_again(using: str, row: models.Consumer, *, event_id: int | None = None) -> dict[str, int]:
    """Reset attempts and pauses of what no worker has in hand, in the caller's transaction.

    Returns how many partitions those are, and how many deliveries of a queue.
    """
    if row.mode == "queue":
        lock(using, row)
    positions = row.positions.using(using).filter(token__isnull=True)
    waiting = positions.exclude(stopped_at__isnull=True, retry_at__isnull=True)
    if event_id is not None:
        waiting = waiting.filter(attempted=event_id)
    # Locked in the order of all who lock several; one that begins to wait after that is left alone, or it would come
    # behind others.
    locked = list(waiting.order_by("partition").select_for_update().values_list("pk", flat=True))
    found = positions.filter(pk__in=locked)
    again = {"partitions": found.update(stopped_at=None, retry_at=None, attempts=0, attempted=None, error="")}
    if row.mode == "queue":
        deliveries = SQL.retry_deliveries
        [[again["deliveries"]]] = sql.fetch(using, deliveries, consumer_id=row.pk, event_id=event_id)
    return again


def _refuse(rows: list[models.Consumer], event_id: int | None) -> None:
    if event_id is not None:
        refuse_several(rows, event_id)
    for row in rows:
        if row.paused_at is not None:
            raise Refused(
                f"Consumer {row} is paused, so nothing of it is tried now. Nothing was changed. Let it go on, which "
                f"tries again all that waits: manage.py events resume {row.name}{for_database(row._state.db)}"
            )
