"""`manage.py events claim`, `ack`, `nack` and `extend`: a program in any language works on a queue."""

import json
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser

from django_events.consuming.programs.handed_out import Settled, hand_out
from django_events.consuming.programs.handed_out import ack as ack_events
from django_events.consuming.programs.handed_out import extend as extend_lease
from django_events.consuming.programs.handed_out import nack as nack_events
from django_events.exceptions import UnreadableEvent
from django_events.management.events.subcommand import (
    Subcommand,
    add_name,
    add_topic,
    at_least_one,
    length,
    text,
    whole_number,
)
from django_events.management.reporting import Report, table
from django_events.phrases import count
from django_events.received import ReceivedEvent


def claim(
    using: str,
    *,
    name: str,
    topic: str | None,
    most: int,
    lease: timedelta | None,
    wait: timedelta | None,
    worker: str | None,
    **options: Any,
) -> Report:
    token, events = hand_out(name, most, topic=topic, lease=lease, wait=wait, holder=worker, using=using)
    data = {
        "consumer": name,
        # As text: many a reader of JSON takes a number of this size for another one.
        "token": None if token is None else str(token),
        "events": [_data(event) for event in events],
    }
    if token is None:
        return Report(data, "There is nothing to claim.")
    cells = [(event.id, event.attempt, event.type, event.key, _shown(event)) for event in events]
    rows = table(["id", "attempt", "type", "key", "value"], cells)
    return Report(data, f"{events[0].topic}, token {token}\n\n{rows}")


def ack(using: str, *, token: int, ids: list[int], **options: Any) -> Report:
    return _settled(ack_events(token, ids or None, using=using), "settled as handled")


def nack(using: str, *, token: int, ids: list[int], after: timedelta | None, error: str, **options: Any) -> Report:
    return _settled(nack_events(token, ids or None, after=after, error=error, using=using), "settled as failed")


def extend(using: str, *, token: int, lease: timedelta | None, **options: Any) -> Report:
    left = extend_lease(token, lease, using=using)
    return Report({"left": left}, f"{count(len(left), 'event')} left under this token, which goes on.")


def _settled(done: Settled, what: str) -> Report:
    said = f"{count(len(done.settled), 'event')} {what}."
    if done.left_out:
        said += f" Not under this token (any more), and left alone: {', '.join(map(str, done.left_out))}."
    return Report(done._asdict(), said)


def _data(event: ReceivedEvent) -> dict[str, Any]:
    """The event for the program that works on it, so nothing is masked. What Python can't read comes as its text."""
    try:
        value, unreadable = event.value, None
        json.dumps(value)
    except (UnreadableEvent, ValueError, RecursionError) as error:
        value, unreadable = None, str(error)
    return {
        "address": f"{event.topic}/{event.id}",
        "topic": event.topic,
        "id": event.id,
        "attempt": event.attempt,
        "type": event.type,
        "key": event.key,
        "value": value,
        "body": event.body,
        "metadata": event.metadata,
        "unreadable": unreadable,
        "published_at": event.published_at,
        "logged_at": event.logged_at,
    }


def _shown(event: ReceivedEvent) -> str:
    data = _data(event)
    if event.body is not None:
        return f"{len(event.body):,} bytes"
    return f"({data['unreadable']})" if data["unreadable"] else json.dumps(data["value"], ensure_ascii=False)


def _arguments_of_claim(parser: CommandParser) -> None:
    add_name(parser)
    add_topic(parser)
    parser.add_argument(
        "--most", type=at_least_one, default=1, metavar="N", help="How many events at most; 1 by default."
    )
    parser.add_argument(
        "--lease",
        type=length,
        metavar="TIME",
        help="For how long no other worker gets them, like 10m; else the consumer's.",
    )
    parser.add_argument("--wait", type=length, metavar="TIME", help="If there is nothing, look again for so long.")
    parser.add_argument("--worker", type=text, help="Who has them in hand, for those who look; else host and process.")


def _add_token(parser: CommandParser) -> None:
    parser.add_argument("token", type=whole_number, metavar="TOKEN", help="What `events claim` answered with.")


def _add_ids(parser: CommandParser) -> None:
    parser.add_argument("ids", nargs="*", type=whole_number, metavar="ID", help="Only these events; else all of them.")


def _arguments_of_ack(parser: CommandParser) -> None:
    _add_token(parser)
    _add_ids(parser)


def _arguments_of_nack(parser: CommandParser) -> None:
    _add_token(parser)
    _add_ids(parser)
    parser.add_argument("--after", type=length, metavar="TIME", help="Not before so much time is over, like 5m.")
    parser.add_argument(
        "--error",
        type=text,
        default="",
        help="What went wrong. Without --after the consumer's retry says when they come.",
    )


def _arguments_of_extend(parser: CommandParser) -> None:
    _add_token(parser)
    parser.add_argument(
        "--lease", type=length, metavar="TIME", help="So long from now on, like 10m; else the consumer's."
    )


CLAIM = Subcommand(
    name="claim",
    help="Have the next events of a queue, for a program that works on them.",
    report=claim,
    arguments=_arguments_of_claim,
)
ACK = Subcommand(name="ack", help="Settle claimed events as handled.", report=ack, arguments=_arguments_of_ack)
NACK = Subcommand(name="nack", help="Settle claimed events as failed.", report=nack, arguments=_arguments_of_nack)
EXTEND = Subcommand(
    name="extend", help="Have more time for claimed events.", report=extend, arguments=_arguments_of_extend
)
