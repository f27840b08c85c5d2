"""`manage.py events peek`: look at events. No consumer notices."""

from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser

from django_events.log.inventory import existing
from django_events.management.events.payloads import content, payload, payload_data, shown
from django_events.management.events.subcommand import (
    Subcommand,
    at_least_one,
    past_time,
    refused,
    text,
    whole_number,
    wrong_usage,
)
from django_events.management.reporting import Report, fields, table
from django_events.matching import expression, is_pattern
from django_events.models import Event, Topic
from django_events.models.events import EventQuerySet

LIMIT = 10
SEARCHED = 100_000  # events; a log can be long, and without a timeline a key is found by reading


def peek(
    using: str,
    *,
    topic: str,
    limit: int | None,
    since: int | None,
    at: int | None,
    start: datetime | None,
    end: datetime | None,
    partition: int | None,
    key: str | None,
    type: str | None,
    where: str | None,
    **options: Any,
) -> Report:
    if where is not None:
        raise wrong_usage("--where goes with --follow. Of what is in the log, events match says how many it fits.")
    row = existing(using, topic)
    if at is not None:
        if (since, start, end, partition, key, type) != (None,) * 6:
            raise wrong_usage("--at names one event, so it goes with no other choice.")
        return _one(using, topic, at)
    if partition is not None and not 0 <= partition < row.most_partitions:
        raise wrong_usage(f"Topic {topic} has no partition {partition}, expected 0 to {row.most_partitions - 1}.")
    notes = []
    events = Event.objects.using(using).of(topic).order_by("-id")
    if start is not None or end is not None:
        if since is not None:
            raise wrong_usage("--since is an id, and --from and --to are times: say one of them.")
        events = Event.objects.using(using).between(topic, start, end)
    elif since is not None:
        events = Event.objects.using(using).since(topic, since)
    if partition is not None:
        events = events.filter(partition=partition)
    chosen = {"key": key} if key is not None else {}
    if type is not None:
        chosen |= {"type__regex": expression(type)} if is_pattern(type) else {"type": type}
    if chosen and (key is None or not row.timeline):
        begins = since if start is None and end is None else _id_before(events)
        first, last = _searched(using, topic, begins)
        events = events.filter(id__gte=first, id__lte=last)
        what = "The type" if key is None else f"Topic {topic} has no timeline, so the key"
        notes.append(f"{what} was looked for in {first:,} to {last:,} only.")
    events = events.filter(**chosen)
    found = list(shown(events)[: limit or LIMIT])
    return Report([event_data(row, e) for e in found], listed(found), notes)


def listed(found: list[Event]) -> str:
    """Events, a line each."""
    columns = ["id", "partition", "key", "type", "logged at", "value"]
    cells = [(e.id, e.partition, e.key, e.type, e.logged_at, content(e)) for e in found]
    return table(columns, cells) if cells else "No events."


def _id_before(events: EventQuerySet) -> int:
    return next((e.id for e in events.only("id")[:1]), 1) - 1


def _searched(using: str, topic: str, since: int | None) -> tuple[int, int]:
    if since is not None:
        return since + 1, since + SEARCHED
    last = next((e.id for e in Event.objects.using(using).peek(topic, limit=1).only("id")), 0)
    return max(last - SEARCHED, 0) + 1, last


def _one(using: str, topic: str, id: int) -> Report:
    row = existing(using, topic)
    try:
        event = shown(Event.objects.using(using)).at(topic, id)
    except Event.DoesNotExist as error:
        raise refused(str(error)) from error
    data = event_data(row, event)
    return Report(data, f"{fields(described(data))}\n\n{payload(event)}")


def event_data(topic: Topic, event: Event) -> dict[str, Any]:
    return {
        "address": f"{topic.name}/{event.id}",
        "topic": topic.name,
        "id": event.id,
        "partition": event.partition,
        "number": event.number,
        "type": event.type,
        "key": event.key,
        **payload_data(event),
        "published_at": event.published_at,
        "logged_at": event.logged_at,
    }


def described(data: dict[str, Any]) -> list[tuple[str, Any]]:
    """Everything but the payload, which needs room."""
    apart = ("value", "body", "hidden", "erased", "unreadable", "error", "traceback", "topic", "id")
    return [(name.replace("_", " "), value) for name, value in data.items() if name not in apart]


def _arguments(parser: CommandParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="The topic.")
    parser.add_argument("--limit", type=at_least_one, help="How many events; 10, or with --follow all.")
    parser.add_argument("--since", type=whole_number, help="What comes after this id, oldest first.")
    parser.add_argument("--from", type=past_time, dest="start", metavar="TIME", help="What was logged then or later.")
    parser.add_argument("--to", type=past_time, dest="end", metavar="TIME", help="What was logged before.")
    parser.add_argument("--at", type=whole_number, help="One event, all of it.")
    parser.add_argument("--partition", type=int, help="Only this partition.")
    parser.add_argument("--key", help="Only events of this key.")
    parser.add_argument("--type", type=text, help="Only events of this type, or pattern like order.*.")
    parser.add_argument("--follow", action="store_true", help="What comes, from now on, until Ctrl-C.")
    parser.add_argument("--where", help="With --follow: only where this jsonpath predicate holds of the value.")


PEEK = Subcommand(name="peek", help="Look at events, the newest first.", report=peek, arguments=_arguments)
