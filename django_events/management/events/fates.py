"""`manage.py events fate`: what became of one event."""

from typing import Any

from django.core.management.base import CommandParser

from django_events.management.events.subcommand import Address, Subcommand, address, refused, wrong_usage
from django_events.management.reporting import Report, fields, table
from django_events.models import Event
from django_events.observing.fates import STATES

PAYLOAD = ("value", "body", "metadata")


def fate(using: str, *, event: Address, **options: Any) -> Report:
    if event.topic is None:
        raise wrong_usage(f"{event} is no address of an event: say the topic too, like orders/{event.id}.")
    try:
        found = Event.objects.using(using).select_related("topic").defer(*PAYLOAD).at(event.topic, event.id)
    except Event.DoesNotExist as error:
        raise refused(str(error)) from error
    facts = {
        "address": str(event),
        "type": found.type,
        "key": found.key,
        "partition": found.partition,
        "published_at": found.published_at,
        "logged_at": found.logged_at,
    }
    fates = found.fate()
    data = {**facts, "consumers": [one._asdict() for one in fates]}
    columns = ["consumer", "state", "attempts", "since", "until", "holder", "error"]
    cells = [
        (one.consumer, str(STATES[one.state]), one.attempts, one.since, one.until, one.holder, _line(one.error))
        for one in fates
    ]
    told = table(columns, cells) if cells else f"No consumer reads topic {event.topic}."
    return Report(data, f"{fields((name.replace('_', ' '), value) for name, value in facts.items())}\n\n{told}")


def _line(error: str) -> str:
    """Tracebacks are in dead letters; a line is enough to tell what it was."""
    return error.strip().splitlines()[-1] if error.strip() else ""


def _arguments(parser: CommandParser) -> None:
    parser.add_argument("event", metavar="EVENT", type=address, help="Its address, like orders/1042.")


FATE = Subcommand(
    name="fate", help="What became of one event, consumer by consumer.", report=fate, arguments=_arguments
)
