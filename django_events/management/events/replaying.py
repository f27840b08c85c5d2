"""`manage.py events replay`: chosen events once more, for one consumer."""

from argparse import ArgumentTypeError
from typing import Any

from django.core.management.base import CommandParser

from django_events.management.events.subcommand import (
    DRY_RUN,
    Subcommand,
    add_by,
    add_execute,
    add_name,
    add_topic,
    whole_number,
)
from django_events.management.reporting import Report, fields
from django_events.operating.replaying import MOST
from django_events.operating.replaying import replay as replay_events


def replay(
    using: str,
    *,
    name: str,
    topic: str | None,
    ids: list[int] | None,
    first: int | None,
    last: int | None,
    types: list[str] | None,
    keys: list[str] | None,
    where: str | None,
    reason: str,
    by: str | None,
    execute: bool,
    **options: Any,
) -> Report:
    done = replay_events(
        name,
        topic=topic,
        ids=ids,
        first=first,
        last=last,
        types=types,
        keys=keys,
        where=where,
        reason=reason,
        by=by,
        dry_run=not execute,
        using=using,
    )
    data = {"consumer": name, "executed": execute, **done._asdict()}
    text = fields(
        [
            ("topic", done.topic),
            ("to be handled again", f"{done.events:,}"),
            ("not handled yet", f"{done.pending:,}"),
            ("not meant for it", f"{done.filtered:,}"),
            ("waiting already", f"{done.waiting:,}"),
        ]
    )
    told = f"Consumer {name} handles them again; events dead-letters shows what waits." if execute else DRY_RUN
    return Report(data, f"{text}\n\n{told}")


def _ids(text: str) -> list[int]:
    """The ids that `17,20-24` names."""
    ids: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        begin = whole_number(first)
        end = whole_number(last) if dash else begin
        if end < begin or len(ids) + end - begin > MOST:
            raise ArgumentTypeError(f"{text!r} names no ids, or more than {MOST:,}, expected something like 17,20-24.")
        ids += range(begin, end + 1)
    return ids


def _arguments(parser: CommandParser) -> None:
    add_name(parser)
    add_topic(parser)
    parser.add_argument("--ids", type=_ids, help="These events, like 17,20-24.")
    parser.add_argument("--first", type=whole_number, metavar="ID", help="All from this event on that the filter fits.")
    parser.add_argument("--last", type=whole_number, metavar="ID", help="No event behind this one.")
    parser.add_argument("--type", action="append", dest="types", help="Only of this type, or pattern; may be repeated.")
    parser.add_argument("--key", action="append", dest="keys", help="Only of this key, or pattern; may be repeated.")
    parser.add_argument("--where", help="Only where this jsonpath predicate holds of the value.")
    parser.add_argument("--reason", required=True, help="Why, for the record.")
    add_by(parser)
    add_execute(parser)


REPLAY = Subcommand(
    name="replay", help="Let a consumer handle chosen events again.", report=replay, arguments=_arguments
)
