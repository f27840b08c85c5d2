"""Subscriptions: queue consumers that no app declares, because `subscribe()` made them at run time.

    for consumer in consumers_named("default", "acme"): ...  # the declared one, or a subscription by its rows
    note_served("default", [consumer_id])  # a sign of life, see `expires_after`

A subscription is idle since a program or a worker last asked for its events. That is noted once in a tenth of
`expires_after`, and at most once a minute, so as much longer is waited before it goes.
"""

from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import partial

from django.db import connections, transaction
from django.db.models import QuerySet

from django_events import declarations, models, sql
from django_events.consuming.registered import Named
from django_events.exceptions import UnknownName, did_you_mean
from django_events.retries import Backoff

SQL = sql.beside(__name__)

SUBSCRIBE = "subscribe()"  # where a subscription is declared, in messages


def consumers_named(using: str, consumer: Named) -> list[declarations.DeclaredConsumer]:
    """The declared consumer of a name, or the subscription: of several topics one each. UnknownName for neither."""
    try:
        return [declarations.consumers.get(consumer)]
    except UnknownName as unknown:
        if found := of_rows(rows(using).filter(name=str(consumer))):
            return found
        likely = did_you_mean(str(consumer), set(rows(using).values_list("name", flat=True)))
        raise UnknownName(f"{unknown} Nor is there such a subscription in the database {using!r}. {likely}") from None


def rows(using: str) -> QuerySet[models.Consumer]:
    """The rows of all subscriptions."""
    return models.Consumer.objects.using(using).filter(subscribed=True).select_related("topic").order_by("topic_id")


def of_rows(found: Iterable[models.Consumer]) -> list[declarations.DeclaredConsumer]:
    return [of_row(row) for row in found]


def of_row(row: models.Consumer) -> declarations.DeclaredConsumer:
    """A subscription as an app would declare it."""
    return declarations.DeclaredConsumer(
        name=row.name,
        topics=(row.topic.name,),
        handler=None,
        types=None if row.types is None else tuple(row.types),
        keys=None if row.keys is None else tuple(row.keys),
        where=row.where,
        metadata=row.metadata,
        vars=row.vars,
        partitioned=False,
        retry=Backoff() if row.retry is None else Backoff.from_row(row.retry),
        lease=row.lease or timedelta(seconds=30),
        mode="queue",
        ordered=row.ordered,
        delay=row.delay,
        history=row.history,
        max_pending=row.max_pending,
        outcomes=row.outcomes,
        declared_at=SUBSCRIBE,
    )


def note_served(using: str, consumer_ids: Sequence[int]) -> None:
    """Note that these are served, those of them that are subscriptions that expire.

    In a caller's transaction it is noted after the commit: the lock of the row must not last as long as that.
    """
    if connections[using].in_atomic_block:
        transaction.on_commit(partial(_note, using, consumer_ids), using, robust=True)
    else:
        _note(using, consumer_ids)


def _note(using: str, consumer_ids: Sequence[int]) -> None:
    sql.fetch(using, SQL.note_served, consumer_ids=list(consumer_ids))


def start_anew(using: str, step: str) -> None:
    """Count from now on for those that nothing could serve: this step didn't run for half of their time."""
    with sql.batch(using, **sql.UNHURRIED):
        sql.fetch(using, SQL.start_anew, step=step)


def idle(using: str, consumer_ids: Sequence[int] | None = None) -> list[tuple[int, timedelta]]:
    """The subscriptions, of these or of all, that nothing served for as long as they live without, and for how long."""
    given = None if consumer_ids is None else list(consumer_ids)
    return [(consumer_id, idle_for) for consumer_id, idle_for in sql.fetch(using, SQL.idle, consumer_ids=given)]
