"""Forget a consumer and its positions, so that the log is not kept for it.

    unregister("billing")

It is recorded as an intervention.
"""

from typing import Any

from django_events import declarations, models, sql
from django_events.consuming.registered import Named, registered
from django_events.consuming.registration import refuse_in_use
from django_events.exceptions import Refused
from django_events.models.buffer import writable
from django_events.operating.interventions import record
from django_events.operating.locks import bounded
from django_events.operating.orphans import forget_orphans
from django_events.operating.quiesce import lock


def unregister(
    consumer: Named,
    *,
    topic: declarations.DeclaredTopic | str | None = None,
    reason: str = "",
    by: str | None = None,
    dry_run: bool = False,
    using: str | None = None,
) -> list[str]:
    """Forget a consumer and how far it was, so that the log isn't kept for it any longer.

    Returns the topics in which it was, or with `dry_run` would be, forgotten. Refused while an app declares it and
    while it has dead letters; InUse while it handles events, or another session keeps it locked.
    """
    using = writable(using)
    with bounded(using, f"Consumer {consumer}"):
        rows = registered(using, consumer, topic=topic)
        for row in rows:
            _refuse_declared(row)
            hold(using, row)
            refuse_dead_letters(using, row)
        if not dry_run:
            for row in rows:
                forget(using, row, by=by, reason=reason)
    if not dry_run:
        forget_orphans(using)
    return [row.topic.name for row in rows]


def refuse_dead_letters(using: str, row: models.Consumer) -> None:
    """Refused while a consumer has dead letters."""
    if dead := row.dead_letters.using(using).count():
        raise Refused(
            f"Consumer {row} has {dead} dead letters, which would be lost. Nothing was changed. "
            "Redrive or discard them first."
        )


def hold(using: str, row: models.Consumer) -> None:
    """Let no worker begin anything for this consumer until the transaction ends; InUse if one has a lease."""
    if row.mode == "queue":  # first no worker claims, then no event enters its log
        refuse_in_use(using, row)
        sql.fetch(using, sql.shared.lock_head, topic_id=row.topic_id)
        lock(using, row)
    list(row.positions.using(using).select_for_update())
    refuse_in_use(using, row)


def forget(using: str, row: models.Consumer, *, by: str | None, reason: str = "", **details: Any) -> None:
    """Delete a consumer that is held, and put on record how far it was. Its deliveries are orphans then."""
    reached = {str(p.partition): p.position for p in row.positions.using(using)}
    record(using, row, "unregister", by=by, reason=reason, positions=reached, **details)
    row.delete(using=using)
    if not models.Consumer.objects.using(using).filter(name=row.name).exists():
        # Of a roll-up: nothing folds into its table any more, and the next `migrate` drops it.
        models.RollUp.objects.using(using).filter(name=row.name).delete()


def _refuse_declared(row: models.Consumer) -> None:
    for declared in declarations.consumers:
        if declared.name == row.name and row.topic.name in declared.topics:
            raise Refused(
                f"Consumer {row} is declared at {declared.declared_at}, so the next migrate would register it again. "
                "Nothing was changed. Remove the declaration first, or pause the consumer."
            )
