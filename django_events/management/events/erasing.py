"""`manage.py events erase`: blank the payloads of a key, wherever they are."""

from dataclasses import asdict
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser

from django_events.management.events.subcommand import (
    DRY_RUN,
    Subcommand,
    add_by,
    add_execute,
    at_least_one,
    whole_number,
    wrong_usage,
)
from django_events.management.reporting import Report, fields
from django_events.operating.erasing.api import erase as erase_events
from django_events.operating.erasing.erasure import Erased
from django_events.workers.loop import Exit

KINDS = {
    "events": "in the log",
    "buffered": "in the buffer",
    "scheduled": "scheduled",
    "staged": "staged by Spark",
    "dead_letters": "dead letters",
    "deliveries": "deliveries",
    "errors": "other errors",
    "dedup_keys": "dedup keys",
}
NOT_LOOKED_AT = ("deliveries", "errors")  # by a dry run
LEFT = (
    "Row versions of before stay on disk until VACUUM, and backups keep what they have: see docs. Exports follow with "
    "export_events --erase."
)


def erase(
    using: str,
    *,
    topic: str,
    key: str | None,
    ids: list[int] | None,
    forget_key: bool,
    reason: str,
    wait: int,
    by: str | None,
    execute: bool,
    **options: Any,
) -> Report:
    if (key is None) == (ids is None):
        raise wrong_usage("Say either --key or --id.")
    if not reason.strip():
        raise wrong_usage("--reason is empty. Say why, for the record.")
    erased = erase_events(
        topic,
        key=key,
        ids=ids,
        reason=reason,
        forget_key=forget_key,
        by=by,
        wait=timedelta(seconds=wait),
        dry_run=not execute,
        using=using,
    )
    data = {"executed": execute, "finished": execute and not erased.in_hand, **asdict(erased)}
    if not execute:
        data |= dict.fromkeys(NOT_LOOKED_AT)
    text = fields((name, "–" if data[kind] is None else data[kind]) for kind, name in KINDS.items())
    code = Exit.FAILED if erased.in_hand else Exit.DONE
    return Report(data, f"{text}\n\n{_told(erased) if execute else DRY_RUN}", code=code)


def _told(erased: Erased) -> str:
    if erased.in_hand:
        return (
            f"Some may be in the hands of {', '.join(erased.in_hand)}, who may still write errors or dead letters "
            "about them. Say the same again when they are done."
        )
    return f"Erased. {LEFT}" if erased.rows else "There was nothing to erase any more."


def _arguments(parser: CommandParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="The topic.")
    parser.add_argument("--key", help="All events of this key.")
    parser.add_argument("--id", dest="ids", nargs="+", type=whole_number, metavar="ID", help="Or these events.")
    parser.add_argument("--forget-key", action="store_true", help="Put a pseudonym in the place of the key, too.")
    parser.add_argument("--reason", required=True, help="Why, for the record.")
    parser.add_argument(
        "--wait", type=at_least_one, default=10, help="How many seconds to wait for events in hand; 10 by default."
    )
    add_by(parser)
    add_execute(parser)


ERASE = Subcommand(
    name="erase", help="Blank the payloads of a key, wherever they are.", report=erase, arguments=_arguments
)
