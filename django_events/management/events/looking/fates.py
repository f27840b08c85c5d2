"""`manage.py events fate`: what became of one event, why it exists, and what it caused."""

from typing import Any

from django.core.management.base import CommandParser

from django_events.management.events.subcommand import Address, Subcommand, address, refused, wrong_usage
from django_events.management.reporting import Report, fields, table
from django_events.models import Event
from django_events.observing.causes import caused_by
from django_events.observing.fates import STATES
from django_events.outcomes import Caused
from django_events.phrases import count

PAYLOAD = ("value", "body", "metadata")


def fate(using: str, *, event: Address, **options: Any) -> Report:
    if event.topic is None:
        raise wrong_usage(f"{event} is no address of an event: say the topic too, like orders/{event.id}.")
    try:
        found = Event.objects.using(using).select_related("topic").defer(*PAYLOAD).at(event.topic, event.id)
    except Event.DoesNotExist as error:
        raise refused(str(error)) from error
    caused = found.caused()
    facts = {
        "address": str(event),
        "type": found.type,
        "key": found.key,
        "partition": found.partition,
        "published_at": found.published_at,
        "logged_at": found.logged_at,
        "caused_by": caused_by(using, found.topic, found.id),
    }
    fates = found.fate()
    data = {
        **facts,
        "consumers": [one._asdict() for one in fates],
        "caused": {**caused._asdict(), "events": [one._asdict() for one in caused.events]},
    }
    columns = ["consumer", "state", "attempts", "since", "until", "holder", "error"]
    cells = [
        (one.consumer, str(STATES[one.state]), one.attempts, one.since, one.until, one.holder, _line(one.error))
        for one in fates
    ]
    told = table(columns, cells) if cells else f"No consumer reads topic {event.topic}."
    named = fields((name.replace("_", " "), value) for name, value in facts.items())
    return Report(data, f"{named}\n\n{told}\n\n{_told_of(caused)}")


def _told_of(caused: Caused) -> str:
    """The tree by its branches, and what was not looked at."""
    columns = ["because of it", "type", "key", "logged at"]
    cells = [(f"{'- ' * (one.depth - 1)}{one.address}", one.type, one.key, one.logged_at) for one in caused.events]
    parts = [table(columns, cells) if cells else "No handler published anything because of it, as far as was looked."]
    if caused.more:
        parts.append("There are more.")
    were = "was" if caused.looked_at == 1 else "were"
    looked = f"Looked at the {count(caused.looked_at, 'event')} that {were} logged next."
    if caused.left_out:
        looked += f" Not looked at to the end: {', '.join(caused.left_out)}."
    return "\n\n".join([*parts, looked])


def _line(error: str) -> str:
    """Tracebacks are in dead letters; a line is enough to tell what it was."""
    return error.strip().splitlines()[-1] if error.strip() else ""


def _arguments(parser: CommandParser) -> None:
    parser.add_argument("event", metavar="EVENT", type=address, help="Its address, like orders/1042.")


FATE = Subcommand(
    name="fate", help="What became of one event, consumer by consumer.", report=fate, arguments=_arguments
)
