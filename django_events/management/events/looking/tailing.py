"""`manage.py events tail`: events of topics as they come into the log, a line for each, until Ctrl-C."""

import json
from argparse import SUPPRESS
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import DatabaseError

from django_events import sql
from django_events.consuming.unread import UnreadEvent
from django_events.exceptions import UnreadableEvent
from django_events.live.listening import listen
from django_events.live.reading import raise_of_predicate, refuse_predicate
from django_events.management.databases import explained
from django_events.management.events.payloads import Loaded, event_line, loaded
from django_events.management.events.subcommand import Subcommand, text
from django_events.management.reporting import Report, is_output_closed, show
from django_events.masking import hides
from django_events.received import ReceivedEvent
from django_events.workers.stopping import stop_on_signals

LOOK = 0.5  # seconds between two looks at whether it is to end
VALUE, METADATA = 5, 7  # where they are in the columns of an event


def tail(
    command: BaseCommand,
    using: str,
    *,
    topics: list[str],
    since: str | None,
    types: list[str] | None,
    keys: list[str] | None,
    where: str | None,
    skip_expired: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Print what comes, until Ctrl-C, or until nothing reads the output. A database that goes away is waited for."""
    if since is not None and since.isascii() and since.isdigit() and len(topics) == 1:
        since = f"{topics[0]}/{since}"
    # With masked fields the predicate is tried on what is shown: else it would tell what they have in them.
    tried = where if hides() else None
    with explained(using):
        listener = listen(
            topics,
            since=since,
            types=types,
            keys=keys,
            where=None if tried else where,
            expired="skip" if skip_expired else "raise",
            using=using,
        )
        if tried:
            refuse_predicate(using, tried)
        with stop_on_signals() as stop, listener:
            while not stop.requested and not listener.closed:
                event = listener.take(LOOK)
                if event is None:
                    if is_output_closed():
                        return
                elif (tried is None or _holds(using, tried, event)) and not _show(command, event, as_json=as_json):
                    return


def _show(command: BaseCommand, event: ReceivedEvent, *, as_json: bool) -> bool:
    if as_json:
        line = Report(data_of(event), "").as_json(indent=None)
    else:
        line = event_line(command, event.address, event, _content(event))
    return show(command, Report(None, line), as_json=False)


def data_of(event: ReceivedEvent) -> dict[str, Any]:
    """An event for programs, with the keys of `events peek`, masked."""
    value, metadata = _value(event), loaded(event.columns[METADATA] or "{}")
    hidden = _has_body(event) and hides()
    return {
        "address": event.address,
        "topic": event.topic,
        "id": event.id,
        "partition": event.partition,
        "number": event.number,
        "type": event.type,
        "key": event.key,
        "value": value.value,
        "body": event.body if _has_body(event) and not hidden else None,
        "hidden": hidden,
        "erased": event.erased,
        "unreadable": value.unreadable or metadata.unreadable,
        "metadata": metadata.value,
        "published_at": event.published_at,
        "logged_at": event.logged_at,
    }


def _value(event: ReceivedEvent) -> Loaded:
    if isinstance(event, UnreadEvent):
        try:
            return Loaded(event.value)
        except UnreadableEvent as error:
            return Loaded(unreadable=str(error))
    stored = event.columns[VALUE]
    return Loaded() if stored is None else loaded(stored if isinstance(stored, str) else json.dumps(stored))


def _content(event: ReceivedEvent) -> str:
    if event.erased and event.metadata.get("erased"):
        return "(erased)"
    if _has_body(event):
        return f"{len(event.body or b''):,} bytes"
    value, unreadable = _value(event)
    return json.dumps(value, ensure_ascii=False) if unreadable is None else f"({unreadable})"


def _has_body(event: ReceivedEvent) -> bool:
    return not isinstance(event, UnreadEvent) and event.body is not None


def _holds(using: str, where: str, event: ReceivedEvent) -> bool:
    value, unreadable = _value(event)
    if unreadable is not None or _has_body(event) or event.erased:
        return False
    try:
        return bool(sql.fetch(using, sql.shared.holds, value=json.dumps(value), where=where)[0][0])
    except DatabaseError as error:
        raise_of_predicate(error, where)
        raise


def _arguments(parser: CommandParser) -> None:
    parser.add_argument("topics", nargs="+", metavar="TOPIC", help="The topics.")
    parser.add_argument(
        "--since",
        type=text,
        metavar="POSITION",
        help="Behind this event of each topic, like orders/1042,payments/7; of one topic the id is enough; or "
        "'beginning'. By default what comes from now on.",
    )
    parser.add_argument("--types", type=text, nargs="+", metavar="TYPE", help="Only these types, or patterns.")
    parser.add_argument("--keys", type=text, nargs="+", metavar="KEY", help="Only these keys, or patterns.")
    parser.add_argument("--where", type=text, help="Only where this jsonpath predicate holds of the value.")
    parser.add_argument("--skip-expired", action="store_true", help="Go on behind what has expired.")
    parser.add_argument(
        "--json", action="store_const", const="json", dest="format", default=SUPPRESS, help="As --format json."
    )


TAIL = Subcommand(
    name="tail", help="Events as they come into the log, until Ctrl-C.", goes_on=tail, arguments=_arguments
)
