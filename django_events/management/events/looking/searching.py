"""`manage.py events search`: events that contain a text, the newest first."""

from typing import Any

from django.core.management.base import CommandParser

from django_events.log.inventory import existing
from django_events.management.events.looking.peeking import event_data, listed
from django_events.management.events.payloads import shown
from django_events.management.events.subcommand import Subcommand, at_least_one, past_time
from django_events.management.reporting import Report
from django_events.models import Event
from django_events.observing.searching import search as find


def search(using: str, *, topic: str, text: str, **options: Any) -> Report:
    choices = ("type", "key", "key_prefix", "partition", "start", "end", "before", "limit", "last")
    found = find(topic, text, **{name: options[name] for name in choices}, using=using)
    row = existing(using, topic)
    events = list(shown(Event.objects.using(using).of(topic).filter(id__in=found.ids).order_by("-id")))
    data = {
        "oldest": found.oldest,
        "newest": found.newest,
        "events": [event_data(row, event) for event in events],
    }
    looked = f"Looked at {found.oldest:,} to {found.newest:,}" if found.newest >= found.oldest else "Looked at no event"
    return Report(data, listed(events), [f"{looked}. What is older: --before {found.oldest}."])


def _arguments(parser: CommandParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="The topic.")
    parser.add_argument("text", metavar="TEXT", help="What the value, the metadata or the body contains.")
    parser.add_argument("--type", help="Only events of this type.")
    parser.add_argument("--key", help="Only events of this key.")
    parser.add_argument("--key-prefix", metavar="PREFIX", help="Only events whose key begins so.")
    parser.add_argument("--partition", type=int, help="Only events of this partition.")
    parser.add_argument("--from", type=past_time, dest="start", metavar="TIME", help="What was logged then or later.")
    parser.add_argument("--to", type=past_time, dest="end", metavar="TIME", help="What was logged before.")
    parser.add_argument("--before", type=at_least_one, metavar="ID", help="Go on with what is older than this id.")
    parser.add_argument("--limit", type=at_least_one, default=20, help="How many events to find; 20 by default.")
    parser.add_argument("--last", type=at_least_one, default=100_000, help="How many ids to look at; 100,000.")


SEARCH = Subcommand(
    name="search", help="Events that contain a text, newest first.", report=search, arguments=_arguments
)
