"""Declared topics become rows and tables, on every `migrate` and after every flush of a test database.

Doing it again changes nothing, and several processes may do it at once.
"""

import uuid
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from django.apps import apps as site_apps
from django.apps.registry import Apps
from django.db import connections

from django_events import declarations, models, sql
from django_events.exceptions import Refused
from django_events.log import indexing, layouts, segments
from django_events.statements import log_table

SQL = sql.beside(__name__)

OPTIONS = (
    "partitions",
    "retention",
    "retention_events",
    "retention_bytes",
    "keep_unread",
    "segment_size",
    "timeline",
    "compact",
    "tombstones_kept",
)


def sync(using: str) -> list[str]:
    """Make and adapt what the declarations ask for; returns a line for each change.

    Refusals come first: Refused means that nothing was done. Then each topic has a
    transaction of its own, because those of a thousand don't fit into the server's lock table.
    """
    declarations.registry.check()
    with changing_topics(using):
        rows, logs = _existing(using)
        behind = [declared for declared in declarations.registry if _is_behind(declared, rows, logs)]
        for declared in behind:
            _refuse(using, declared, rows, logs)
    changes: list[str] = []
    for declared in behind:
        if row := rows.get(declared.name):
            prepare(using, row, declared.partitions)
        with changing_topics(using):
            rows, logs = _existing(using)
            _refuse(using, declared, rows, logs)
            if row := rows.get(declared.name):
                changes += _adapt(using, row, declared, has_log=row.pk in logs)
            else:
                changes.append(_create(using, declared, _orphans(_ids(rows), logs).get(declared.name), logs))
        if row is not None:
            changes += _adapt_timeline(using, row, declared)
    return changes


def prepare(using: str, topic: models.Topic, partitions: int) -> None:
    """Build the index by partition that a log needs for more partitions than one, without locking it."""
    if topic.is_undivided and partitions > 1 and not connections[using].in_atomic_block and _is_used(using, topic):
        indexing.build(using, topic, "partition")


def create(using: str, declared: declarations.DeclaredTopic) -> models.Topic:
    """Make this one topic, which must be new, and adapt nothing else; in a transaction of its own."""
    with changing_topics(using):
        _, logs = _existing(using)
        _create(using, declared, None, logs)
        return models.Topic.objects.using(using).select_related("head").get(name=declared.name)


def create_missing(using: str, wanted: Iterable[declarations.DeclaredTopic], *, apps: Apps) -> list[str]:
    """Make those of these topics that aren't there, in a migration, with the models of its state; adapt nothing.

    Returns a line for each that was made.
    """
    made = []
    for declared in wanted:
        with changing_topics(using):
            rows = apps.get_model("django_events", "Topic")._base_manager.using(using)
            ids: dict[str, int] = dict(rows.values_list("name", "pk"))
            logs: Logs = dict(sql.fetch(using, SQL.logs))
            if declared.name not in ids:
                made.append(_create(using, declared, _orphans(ids.values(), logs).get(declared.name), logs, apps))
    return made


Rows = dict[str, models.Topic]
Logs = dict[int, str]


@contextmanager
def changing_topics(using: str) -> Iterator[None]:
    """A transaction of the only one who makes or changes topics now."""
    with sql.committed(using):
        sql.run(using, SQL.lock_topics)
        yield


def _existing(using: str) -> tuple[Rows, Logs]:
    rows = models.Topic.objects.using(using).select_related("head")
    return {topic.name: topic for topic in rows}, dict(sql.fetch(using, SQL.logs))


def _orphans(owned: Collection[int], logs: Logs) -> dict[str, int]:
    """The logs that lost their topic's row, by the name in their comment."""
    return {name: topic_id for topic_id, name in logs.items() if topic_id not in owned}


def _ids(rows: Rows) -> set[int]:
    return {topic.pk for topic in rows.values()}


def _is_behind(declared: declarations.DeclaredTopic, rows: Rows, logs: Logs) -> bool:
    row = rows.get(declared.name)
    return (
        row is None
        or row.pk not in logs
        or any(getattr(row, option) != getattr(declared, option) for option in OPTIONS)
    )


def _refuse(using: str, declared: declarations.DeclaredTopic, rows: Rows, logs: Logs) -> None:
    """Raise Refused where the events that are there don't allow what is declared."""
    row = rows.get(declared.name)
    if row is None and (orphan := _orphans(_ids(rows), logs).get(declared.name)):
        _refuse_fewer_partitions(using, orphan, declared)


def _refuse_fewer_partitions(using: str, orphan: int, declared: declarations.DeclaredTopic) -> None:
    log = log_table(orphan)
    [[highest]] = sql.fetch(using, SQL.highest_partition.on(log=log))
    if highest is not None and highest >= declared.partitions:
        raise Refused(
            f"Topic {declared} lost its row. Its log, {log}, has events in partition {highest}, and it is declared "
            f"with {_partitions(declared.partitions)}, at {declared.declared_at}. Nothing was changed. Declare as "
            f"many partitions as it had, at least {highest + 1}, or a new topic."
        )


def _create(
    using: str, declared: declarations.DeclaredTopic, orphan: int | None, logs: Logs, apps: Apps = site_apps
) -> str:
    """Make a topic. A log that lost its row to a flush is taken over, with what is in it."""
    if orphan is None:
        [[topic_id]] = sql.fetch(using, SQL.next_topic_id, logs=list(logs))
    model, head_model = (apps.get_model("django_events", name) for name in ("Topic", "TopicHead"))
    columns = {field.name for field in model._meta.concrete_fields}
    options = {option: getattr(declared, option) for option in OPTIONS if option in columns}
    topic: Any = model(pk=orphan or topic_id, name=declared.name, **options)
    topic.save(using=using, force_insert=True)
    id_floor, number_floors = (0, []) if orphan is None else _floors_of(using, topic)
    head: Any = head_model(topic_id=topic.pk, id_floor=id_floor, number_floors=number_floors)
    if orphan is not None and declared.compact:
        head.compacted_until, head.kept_events = _closed_until(using, topic), -1
    head.save(using=using, force_insert=True)
    head.topic = topic  # now that both are of this database: before, a router would be asked
    if orphan is None:
        segments.create_log(using, topic)
        return f"Topic {declared}: created, {_partitions(topic.partitions)}."
    segments.create_indexes(using, topic)
    return f"Topic {declared}: its row was missing, made again for the log that is there."


def _floors_of(using: str, topic: models.Topic) -> tuple[int, list[int]]:
    """What retention had removed of a log that lost its row, as far as what is left tells."""
    log = log_table(topic.pk)
    [[first]] = sql.fetch(using, sql.shared.first_id.on(log=log, topic_id=topic.pk))
    if first is None or topic.compact:  # an event before it may be gone by compaction, and not by retention
        first = min((segment.first for segment in segments.segments(using, topic.pk)), default=1)
    if first == 1:
        return 0, []
    if topic.is_undivided:
        return first - 1, [first - 1]
    statement = SQL.beginnings_of_partitions.on(log=log, partitions=topic.partitions)
    begins: dict[int, int] = dict(sql.fetch(using, statement))
    return first - 1, [begins.get(partition, 1) - 1 for partition in range(topic.partitions)]


def _closed_until(using: str, topic: models.Topic) -> int:
    """The last id before the newest segment of a log that has events: compaction may have removed some up to there."""
    last = sql.shared.last_id.on(log=log_table(topic.pk), topic_id=topic.pk, floor=0)
    [[last_id]] = sql.fetch(using, last)
    return max((one.end - 1 for one in segments.segments(using, topic.pk) if one.end <= last_id), default=0)


def _adapt(using: str, row: models.Topic, declared: declarations.DeclaredTopic, *, has_log: bool) -> list[str]:
    """Bring a topic in step with its declaration, as far as its events allow."""
    changes = []
    if not has_log:
        row.incarnation = uuid.uuid4()
        row.head.id_floor, row.head.number_floors = 0, []
        row.head.compacted_until = row.head.kept_events = 0
        row.head.save(using=using)
        row.layouts = []
        layouts.forget(using, row)
        changes.append("its tables were missing, made again")
    elif row.partitions != declared.partitions:
        sql.fetch(using, sql.shared.lock_head, topic_id=row.pk)
        before = row.partitions
        first_id = layouts.divide(using, row, declared.partitions)
        changes.append(f"partitions {before} → {row.partitions} from event {first_id} on")
    has_index = row.timeline
    later = {"timeline"} if has_log and row.timeline != declared.timeline and _is_used(using, row) else set()
    for option in [option for option in OPTIONS if option not in later]:
        before, after = getattr(row, option), getattr(declared, option)
        if before != after:
            setattr(row, option, after)
            changes.append(f"{option} {before} → {after}")
    if changes:
        row.save(using=using)
    if not has_log:
        segments.create_log(using, row)
    elif row.timeline and not has_index:
        segments.create_indexes(using, row)
    elif has_index and not row.timeline:
        indexing.drop(using, row, "timeline")
    return [f"Topic {row}: {', '.join(changes)}."] if changes else []


def _adapt_timeline(using: str, row: models.Topic, declared: declarations.DeclaredTopic) -> list[str]:
    """Have an index by key for a log that has events, or none. It counts when it is whole."""
    if row.timeline == declared.timeline:
        return []
    (indexing.build if declared.timeline else indexing.drop)(using, row, "timeline")
    models.Topic.objects.using(using).filter(pk=row.pk).update(timeline=declared.timeline)
    return [f"Topic {row}: timeline {row.timeline} → {declared.timeline}."]


def _is_used(using: str, row: models.Topic) -> bool:
    """Whether its log has, or ever had, events."""
    sql.fetch(using, sql.shared.lock_head, topic_id=row.pk)
    [[used]] = sql.fetch(using, SQL.topic_used, topic_id=row.pk)
    return bool(used)


def _partitions(count: int) -> str:
    return "1 partition" if count == 1 else f"{count} partitions"
