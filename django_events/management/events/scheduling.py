"""`manage.py events scheduled`, `cancel` and `publish-scheduled`: what is for later."""

from collections.abc import Callable
from typing import Any, NamedTuple

from django.core.management.base import CommandParser
from django.db.models import QuerySet

from django_events.log.inventory import existing
from django_events.management.events.payloads import content, payload_data, shown
from django_events.management.events.subcommand import (
    DRY_RUN,
    Subcommand,
    add_by,
    add_execute,
    add_reason,
    at_least_one,
    refused,
    whole_number,
    wrong_usage,
)
from django_events.management.reporting import Report, table
from django_events.models import ScheduledEvent
from django_events.operating.cancelling import cancel_scheduled
from django_events.operating.publishing_scheduled import publish_scheduled
from django_events.phrases import count
from django_events.publishing.encoding import EARLIEST, LATEST


def scheduled(using: str, *, topic: str | None, key: str | None, limit: int, **options: Any) -> Report:
    # Plain SQL may say times that no program reads.
    readable = ScheduledEvent.objects.using(using).filter(publish_at__gte=EARLIEST, publish_at__lte=LATEST)
    rows = readable.select_related("topic").order_by("publish_at", "id")
    if topic is not None:
        rows = rows.filter(topic=existing(using, topic))
    if key is not None:
        rows = rows.filter(key=key)
    return _report(list(shown(rows)[:limit]))


class ScheduledAct(NamedTuple):
    """What is done with chosen scheduled events, and how the answer calls it."""

    act: Callable[..., int]
    done: str  # the key of the JSON, and the word of the sentence
    would: str


CANCELLING = ScheduledAct(cancel_scheduled, "cancelled", "would_cancel")
PUBLISHING = ScheduledAct(publish_scheduled, "published", "would_publish")


def cancel(using: str, *, reason: str, **options: Any) -> Report:
    if not reason.strip():
        raise wrong_usage("--reason is empty. Say why: it is what is left of the scheduled events.")
    return _act(using, CANCELLING, reason=reason, **options)


def publish_now(using: str, **options: Any) -> Report:
    return _act(using, PUBLISHING, **options)


def _act(
    using: str,
    verb: ScheduledAct,
    *,
    topic: str,
    tickets: list[int],
    key: str | None,
    type: str | None,
    reason: str,
    by: str | None,
    execute: bool,
    **options: Any,
) -> Report:
    if bool(tickets) == ((key, type) != (None, None)):
        raise wrong_usage("Name tickets, or say which events by --key and --type, and not both.")
    chosen = {"pk__in": tickets} if tickets else {"key": key, "type": type}
    rows = ScheduledEvent.objects.using(using).filter(
        topic=existing(using, topic), **{name: value for name, value in chosen.items() if value is not None}
    )
    if not tickets:
        return _acted_on_a_kind(rows, verb, reason=reason, by=by, execute=execute)
    found = list(shown(rows.select_related("topic").order_by("publish_at", "id")))
    if missing := sorted(set(tickets) - {row.pk for row in found}):
        named = ", ".join(f"{ticket:,}" for ticket in missing)
        raise refused(
            f"Topic {topic} has no scheduled event with the ticket {named}: published, or cancelled before. "
            f"Nothing was changed. What there is: manage.py events scheduled {topic}"
        )
    report = _report(found)
    if not execute:
        return Report({"executed": False, "events": report.data}, f"{report.text}\n\n{DRY_RUN}")
    number = verb.act(rows, reason=reason, by=by)
    told = f"{count(number, 'event')} {verb.done}."
    if number < len(found):
        told += f" Published in the meantime: {len(found) - number:,}."
    return Report({"executed": True, verb.done: number, "events": report.data}, f"{report.text}\n\n{told}")


def _acted_on_a_kind(
    rows: QuerySet[ScheduledEvent], verb: ScheduledAct, *, reason: str, by: str | None, execute: bool
) -> Report:
    """Of very many events no payload is shown."""
    number = verb.act(rows, reason=reason, by=by, dry_run=not execute)
    data = {"executed": execute, verb.done if execute else verb.would: number}
    told = (
        f"{count(number, 'event')} {verb.done}."
        if execute
        else f"{count(number, 'event')} would be {verb.done}.\n\n{DRY_RUN}"
    )
    return Report(data, told)


def _report(rows: list[ScheduledEvent]) -> Report:
    data = [
        {
            "topic": row.topic.name,
            "ticket": row.pk,
            "publish_at": row.publish_at,
            "type": row.type,
            "key": row.key,
            **payload_data(row),
            "scheduled_at": row.scheduled_at,
        }
        for row in rows
    ]
    columns = ["topic", "ticket", "publish at", "type", "key", "value", "scheduled at"]
    cells = [
        [*(one[name.replace(" ", "_")] for name in columns[:5]), content(row), one["scheduled_at"]]
        for one, row in zip(data, rows, strict=True)
    ]
    return Report(data, table(columns, cells) if cells else "Nothing is scheduled.")


def _arguments_of_scheduled(parser: CommandParser) -> None:
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help="Only this topic.")
    parser.add_argument("--key", help="Only events of this key.")
    parser.add_argument("--limit", type=at_least_one, default=20, help="How many, the next one first; 20 by default.")


def _arguments_of_choice(parser: CommandParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="The topic.")
    parser.add_argument("tickets", nargs="*", metavar="TICKET", type=whole_number, help="The tickets of the events.")
    parser.add_argument("--key", help="All events of this key instead.")
    parser.add_argument("--type", help="All events of this type instead, or of the key and the type.")


def _arguments_of_cancel(parser: CommandParser) -> None:
    _arguments_of_choice(parser)
    parser.add_argument("--reason", required=True, help="Why, for the record.")
    add_by(parser)
    add_execute(parser)


def _arguments_of_publish(parser: CommandParser) -> None:
    _arguments_of_choice(parser)
    add_reason(parser)
    add_by(parser)
    add_execute(parser)


SCHEDULED = Subcommand(
    name="scheduled",
    help="The events that are published later, the next one first.",
    report=scheduled,
    arguments=_arguments_of_scheduled,
)
CANCEL = Subcommand(
    name="cancel", help="Cancel events that are published later.", report=cancel, arguments=_arguments_of_cancel
)
PUBLISH_SCHEDULED = Subcommand(
    name="publish-scheduled",
    help="Publish events now that are for later.",
    report=publish_now,
    arguments=_arguments_of_publish,
)
