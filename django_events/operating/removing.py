"""Remove a topic with all its events, for good.

    remove_topic("orders", by="ada")

Publishers, transfers and workers may run meanwhile. It is recorded as an intervention.
"""

from datetime import timedelta

from django.db import connections
from django.db.models import F, QuerySet

from django_events import declarations, models, sql
from django_events.exceptions import Refused
from django_events.log import dropping
from django_events.log.inventory import existing, logs
from django_events.log.topics import changing_topics
from django_events.models.buffer import writable
from django_events.operating import unregistering
from django_events.operating.interventions import record_of_topic
from django_events.operating.locks import bounded
from django_events.operating.orphans import forget_orphans
from django_events.outcomes import RemovedTopic

SQL = sql.beside(__name__)


def remove_topic(
    topic: declarations.DeclaredTopic | str,
    *,
    force: bool = False,
    reason: str = "",
    by: str | None = None,
    wait: timedelta = timedelta(minutes=1),
    dry_run: bool = False,
    using: str | None = None,
) -> RemovedTopic:
    """Remove a topic: its log, what waits to be published in it, its dedup keys, and, with `force`, its consumers.

    Refused while an app declares it or a consumer reads it, unless `force` says that they don't matter; InUse while a
    worker handles its events. In one transaction it is gone for publishers, transfers and consumers. Its tables
    are dropped afterwards: if a report or a dump keeps one locked for longer than it may `wait`, or it is
    interrupted, maintenance drops the rest. Returns what was, or with `dry_run` would be, removed.
    """
    using = writable(using)
    if not dry_run and connections[using].in_atomic_block:
        raise Refused(
            f"Removing topic {topic} commits step by step, so it can't be done inside a transaction. Nothing was "
            "changed."
        )
    row = existing(using, topic)
    consumers = _consumers(using, row, force=force)
    removed = _counted(using, row, consumers)
    if dry_run:
        return removed
    with bounded(using, f"Topic {topic}"), changing_topics(using):
        row = existing(using, topic)
        for consumer in _consumers(using, row, force=force):
            unregistering.hold(using, consumer)
            unregistering.forget(using, consumer, by=by, reason=reason)
        _telling(using, row).update(outcomes=None, revision=F("revision") + 1)
        counts = {name: value for name, value in removed._asdict().items() if name not in ("topic", "finished")}
        record_of_topic(using, row, "remove", by=by, reason=reason, **counts)
        dropping.forget(using, row)
    forget_orphans(using)
    left = dropping.drop_forgotten(using, wait=wait)
    dropping.drop_stranded(using)
    return removed._replace(finished=not left)


def _consumers(using: str, row: models.Topic, *, force: bool) -> list[models.Consumer]:
    """The consumers that read a topic. Refused if there are any, or an app declares it, and it isn't forced."""
    consumers = list(models.Consumer.objects.using(using).filter(topic=row).select_related("topic").order_by("pk"))
    if not force:
        _refuse_named(row, consumers, list(_telling(using, row).values_list("name", flat=True).distinct()))
    return consumers


def _telling(using: str, row: models.Topic) -> QuerySet[models.Consumer]:
    """The consumers that publish their outcomes there."""
    return models.Consumer.objects.using(using).filter(outcomes=row.name).order_by("name")


def _refuse_named(row: models.Topic, consumers: list[models.Consumer], telling: list[str]) -> None:
    for declared in declarations.registry:
        if declared.name == row.name:
            raise Refused(
                f"Topic {row} is declared at {declared.declared_at}, so the next migrate would make it again, empty. "
                "Nothing was changed. Remove the declaration first, or force it."
            )
    if consumers:
        names = ", ".join(consumer.name for consumer in consumers)
        raise Refused(
            f"Topic {row} is read by {names}. Nothing was changed. Unregister them first, or force it: then they are "
            "forgotten too, with their dead letters."
        )
    if telling:
        raise Refused(
            f"Topic {row} gets the outcomes of {', '.join(telling)}. Nothing was changed. Declare them without "
            "outcomes and run migrate, or force it: then their outcomes are published nowhere."
        )


def _counted(using: str, row: models.Topic, consumers: list[models.Consumer]) -> RemovedTopic:
    [log] = logs(using, [row])
    [[buffered, scheduled, dedup_keys]] = sql.fetch(using, SQL.waiting_in_topic, topic_id=row.pk)
    dead = models.DeadLetter.objects.using(using).filter(consumer__in=consumers).count()
    names = tuple(consumer.name for consumer in consumers)
    clocks, inboxes = (
        tuple(kind.objects.using(using).filter(topic=row).order_by("name").values_list("name", flat=True))
        for kind in (models.Clock, models.Inbox)
    )
    return RemovedTopic(
        row.name, log.events, buffered, scheduled, dedup_keys, names, dead, clocks, inboxes, finished=False
    )
