"""`manage.py events import-beat`: the schedules of django-celery-beat as declarations for events.py."""

from typing import Any

from django.core.management.base import CommandParser

from django_events.declarations.limits import is_storable
from django_events.management.beat import FutureClock, declarations_of, has_tables, schedules
from django_events.management.events.subcommand import Subcommand, refused, wrong_usage
from django_events.management.reporting import Report, printable


def import_beat(using: str, *, topic: str, **options: Any) -> Report:
    if not topic.isidentifier() or not is_storable(topic):
        raise wrong_usage(f"{topic!r} is no name for a topic in events.py, expected letters, digits and underscores.")
    if not has_tables(using):
        raise refused(
            f"The database {using!r} has no tables of django-celery-beat (django_celery_beat_periodictask). "
            f"If it is installed: manage.py migrate --database {using}"
        )
    found = schedules(using)
    taken, left = [one for one in found if not one.why_not], [one for one in found if one.why_not]
    text = declarations_of(topic, taken) if taken else ""
    data = {
        "topic": topic,
        "taken": [_taken(topic, one) for one in taken],
        "left_out": [{"name": one.name, "task": one.type, "why": one.why_not} for one in left],
        "declarations": text,
    }
    notes = [f"Left out: {printable(one.name)} ({printable(one.type)}): {printable(one.why_not)}." for one in left]
    return Report(data, text, notes or ([] if found else ["django-celery-beat has no periodic tasks here."]))


def _taken(topic: str, one: FutureClock) -> dict[str, Any]:
    names = ("type", "cron", "tz", "value", "notes")
    return {"name": f"{topic}.{one.name}", **{name: getattr(one, name) for name in names}}


def _arguments(parser: CommandParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="The topic to which the events of these clocks go.")


IMPORT_BEAT = Subcommand(
    name="import-beat",
    help="Print the schedules of django-celery-beat as declarations of clocks.",
    report=import_beat,
    arguments=_arguments,
)
