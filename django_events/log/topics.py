"""Declared topics become rows and tables, on every `migrate` and after every flush of a test database.

Doing it again changes nothing, and several processes may do it at once.
"""

import uuid
from collections.abc import Iterable
from typing import Any

from django.apps import AppConfig
from django.core.management.base import CommandError
from django.db import connections, router, transaction

from django_events import declarations, models, sql
from django_events.exceptions import EventsError, TopicChangeRefused
from django_events.log import segments

TABLES = {"django_events_topic", "django_events_topichead", "django_events_bufferedevent", segments.ROOT}


def sync_after_migrate(sender: AppConfig, *, using: str, verbosity: int = 1, stdout: Any = None, **kwargs: Any) -> None:
    """The receiver of post_migrate. After `migrate django_events zero` there are no tables: nothing to do."""
    if not router.allow_migrate_model(using, models.Topic) or connections[using].vendor != "postgresql":
        return
    if not TABLES.issubset(connections[using].introspection.table_names()):
        return
    write = print if stdout is None else stdout.write
    try:
        changes = sync(using)
    except EventsError as error:
        raise CommandError(str(error)) from error
    for change in changes:
        if verbosity >= 1:
            write(f"  {change}")


def sync(using: str) -> list[str]:
    """Make and adapt what the declarations ask for; returns a line for each change.

    One transaction: a change that is refused raises TopicChangeRefused, and nothing was done.
    """
    declarations.registry.check()
    with transaction.atomic(using):
        sql.run(using, sql.statement("lock_topics"))
        rows = {topic.name: topic for topic in models.Topic.objects.using(using).select_related("head")}
        logs: dict[int, str] = dict(sql.fetch(using, sql.statement("logs")))
        owned = {topic.pk for topic in rows.values()}
        orphans = {name: topic_id for topic_id, name in logs.items() if topic_id not in owned}
        changes: list[str] = []
        for declared in declarations.registry:
            if row := rows.get(declared.name):
                changes += _adapt(using, row, declared, has_log=row.pk in logs)
            else:
                changes.append(_create(using, declared, orphans.get(declared.name), logs))
        return changes


def _create(using: str, declared: declarations.Topic, orphan: int | None, logs: Iterable[int]) -> str:
    """Make a topic. A log that lost its row to a flush is taken over, with what is in it."""
    if orphan is None:
        [[topic_id]] = sql.fetch(using, sql.statement("next_topic_id"), logs=list(logs))
    topic = models.Topic(
        pk=orphan or topic_id,
        name=declared.name,
        partitions=declared.partitions,
        retention=declared.retention,
        segment_size=declared.segment_size,
        timeline=declared.timeline,
    )
    topic.save(using=using, force_insert=True)
    models.TopicHead(topic=topic).save(using=using, force_insert=True)
    if orphan is None:
        segments.create_log(using, topic)
        return f"Topic {topic}: created, {_partitions(topic.partitions)}."
    segments.create_indexes(using, topic)
    return f"Topic {topic}: its row was missing, made again for the log that is there."


def _adapt(using: str, row: models.Topic, declared: declarations.Topic, *, has_log: bool) -> list[str]:
    """Bring a topic in step with its declaration, as far as its events allow."""
    changes = []
    if not has_log:
        row.incarnation = uuid.uuid4()
        row.head.id_floor, row.head.number_floors = 0, []
        row.head.save(using=using)
        changes.append("its tables were missing, made again")
    layout_changed = (row.partitions, row.timeline) != (declared.partitions, declared.timeline)
    if has_log and layout_changed:
        _refuse_with_events(using, row, declared)
    for option in ("partitions", "retention", "segment_size", "timeline"):
        before, after = getattr(row, option), getattr(declared, option)
        if before != after:
            setattr(row, option, after)
            changes.append(f"{option} {before} → {after}")
    if changes:
        row.save(using=using)
    if not has_log:
        segments.create_log(using, row)
    elif layout_changed:
        segments.create_indexes(using, row)
    return [f"Topic {row}: {', '.join(changes)}."] if changes else []


def _refuse_with_events(using: str, row: models.Topic, declared: declarations.Topic) -> None:
    sql.fetch(using, sql.statement("lock_head"), topic_id=row.pk)
    [[used]] = sql.fetch(using, sql.statement("topic_used"), topic_id=row.pk)
    if not used:
        return
    if row.partitions != declared.partitions:
        raise TopicChangeRefused(
            f"Topic {row} has {_partitions(row.partitions)} and is declared with {declared.partitions}, at "
            f"{declared.declared_at}. It has events already, and their keys would change partitions, so their "
            f"order would be lost. Nothing was changed. Declare partitions={row.partitions} again, or a new topic."
        )
    raise TopicChangeRefused(
        f"Topic {row} is declared with timeline={declared.timeline}, at {declared.declared_at}, and was made "
        f"with timeline={row.timeline}. It has events already, and making their index would stop publishing. "
        f"Nothing was changed. Declare timeline={row.timeline} again, or a new topic."
    )


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"
