"""`manage.py events topics`, `consumers` and `interventions`: what there is."""

from typing import Any

from django.core.management.base import CommandParser

from django_events import declarations, models
from django_events.consuming.registered import registered
from django_events.log.inventory import logs, sizes
from django_events.management.events.looking.status import (
    consumer_data,
    dead_letters_of,
    held_back,
    lag_of,
    queues,
    state_of,
    waits_of,
)
from django_events.management.events.subcommand import Subcommand, add_topic, at_least_one
from django_events.management.reporting import Report, table
from django_events.observing.barriers import barriers
from django_events.observing.lag import COUNTED, COUNTED_OF_ONE, progress, standings
from django_events.observing.queues import figures
from django_events.phrases import duration


def topics(using: str, **options: Any) -> Report:
    found = logs(using)
    size_of = sizes(using, [one.topic for one in found])
    declared = {topic.name for topic in declarations.registry}
    data = [
        {
            "topic": one.topic.name,
            "partitions": one.topic.partitions,
            "events": one.events,
            "first_id": one.first_id,
            "last_id": one.last_id,
            "logged_at": one.logged_at,
            "segments": size_of[one.topic.name][0],
            "bytes": size_of[one.topic.name][1],
            "retention": one.topic.retention,
            "retention_events": one.topic.retention_events,
            "retention_bytes": one.topic.retention_bytes,
            "keep_unread": one.topic.keep_unread,
            "timeline": one.topic.timeline,
            "compact": one.topic.compact,
            "compacted_until": one.topic.head.compacted_until,
            "declared": one.topic.name in declared,
            "created_at": one.topic.created_at,
        }
        for one in found
    ]
    shown = ("partitions", "events", "first_id", "last_id", "logged_at", "segments", "bytes", "timeline", "declared")
    columns = ["topic", *(name.replace("_", " ") for name in shown), "retention"]
    columns[columns.index("logged at")] = "last event"
    rows = [[row["topic"], *(row[name] for name in shown), _kept(row)] for row in data]
    return Report(data, table(columns, rows) if rows else "No topics.")


def _kept(row: dict[str, Any]) -> str:
    """How much of a log is kept: whatever is reached first."""
    limits = [
        duration(row["retention"]) if row["retention"] else "",
        f"{row['retention_events']:,} events" if row["retention_events"] else "",
        f"{row['retention_bytes']:,} bytes" if row["retention_bytes"] else "",
    ]
    kept = ", ".join(limit for limit in limits if limit) or "for ever"
    return kept if row["keep_unread"] else f"{kept}, unread or not"


def consumers(using: str, *, name: str | None, topic: str | None, partitions: bool, **options: Any) -> Report:
    rows = None if name is None else registered(using, name, topic=topic)
    if rows is None and topic is not None:
        rows = list(models.Consumer.objects.using(using).filter(topic__name=topic))
    counted = COUNTED if name is None else COUNTED_OF_ONE
    return _partitions(using, rows, counted) if partitions else _consumers(using, rows, counted)


def _consumers(using: str, rows: list[models.Consumer] | None, counted: int) -> Report:
    found = standings(using, rows, counted=counted)
    if not found:
        return Report([], "No consumers.")
    of = figures(using, found, counted=counted)
    at_barriers = {one.consumer_id: one for one in barriers(using, rows)}
    waits = waits_of(using, found)
    told = [(one, of.get(one.consumer_id)) for one in found]
    columns = ["consumer", "topic", "state", "lag", "handled", "failed", "dead", "attempts"]
    columns += ["next attempt", "holder", "last error"]
    cells = [
        (
            one.consumer,
            one.topic,
            state_of(one),
            lag_of(one),
            one.handled,
            one.failed,
            dead_letters_of(one),
            one.attempts or None,
            one.retry_at,
            one.holder,
            one.error,
        )
        for one in found
    ]
    data = [consumer_data(*one, at_barriers.get(one[0].consumer_id), waits.get(one[0].consumer_id)) for one in told]
    return Report(
        data, "\n\n".join([table(columns, cells), *queues(told), *held_back([*at_barriers.values(), *waits.values()])])
    )


def _partitions(using: str, rows: list[models.Consumer] | None, counted: int) -> Report:
    found = progress(using, rows, counted=counted)
    columns = ["consumer", "topic", "partition", "state", "position", "last id", "lag", "event"]
    columns += ["next attempt", "holder", "last error"]
    cells = [
        (
            one.consumer,
            one.topic,
            "all" if one.partition == models.Position.ALL else one.partition,
            one.state,
            one.position,
            one.last_id,
            lag_of(one),
            None if one.attempted is None else f"{one.topic}/{one.attempted}",
            one.retry_at,
            one.holder,
            one.error,
        )
        for one in found
    ]
    return Report([one._asdict() for one in found], table(columns, cells) if cells else "No consumers.")


def interventions(using: str, *, name: str | None, limit: int, **options: Any) -> Report:
    """The interventions, also those about consumers that are gone."""
    rows = models.Intervention.objects.using(using).order_by("-at", "-pk")
    if name is not None:
        rows = rows.filter(consumer=name)
    data = [
        {
            "at": row.at,
            "by": row.by,
            "action": row.action,
            "consumer": row.consumer,
            "topic": row.topic,
            "details": row.details,
        }
        for row in rows[:limit]
    ]
    if name is not None and not data:
        registered(using, name)  # refuses a name that no consumer has, or had
    columns = ["at", "by", "action", "consumer", "topic", "details"]
    cells = [[row[column] for column in columns[:-1]] + [_details(row["details"])] for row in data]
    return Report(data, table(columns, cells) if cells else "No interventions.")


def _details(details: dict[str, Any]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in details.items())


def _arguments_of_consumers(parser: CommandParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="Only this consumer.")
    add_topic(parser)
    parser.add_argument("--partitions", action="store_true", help="Every partition by itself.")


def _arguments_of_interventions(parser: CommandParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="Only those on this consumer, which may be gone.")
    parser.add_argument("--limit", type=at_least_one, default=20, help="How many, the newest first; 20 by default.")


TOPICS = Subcommand(
    name="topics",
    help="The topics, their logs and sizes.",
    report=topics,
    several=True,
    looks=True,
)
CONSUMERS = Subcommand(
    name="consumers",
    help="The consumers on each of their topics: lag, counts, state.",
    report=consumers,
    arguments=_arguments_of_consumers,
    several=True,
    looks=True,
)
INTERVENTIONS = Subcommand(
    name="interventions",
    help="Who did what to consumers by hand, the newest first.",
    report=interventions,
    arguments=_arguments_of_interventions,
    several=True,
)
