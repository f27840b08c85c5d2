"""`manage.py events remove-topic`: a topic with all its events, for good."""

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser

from django_events.management.events.subcommand import (
    DRY_RUN,
    Subcommand,
    add_by,
    add_execute,
    add_reason,
    at_least_one,
)
from django_events.management.reporting import Report, fields
from django_events.operating.removing import remove_topic as remove
from django_events.outcomes import RemovedTopic


def remove_topic(
    using: str, *, topic: str, force: bool, wait: int, reason: str, by: str | None, execute: bool, **options: Any
) -> Report:
    how: dict[str, Any] = {"force": force, "wait": timedelta(seconds=wait)}
    removed = remove(topic, **how, reason=reason, by=by, dry_run=not execute, using=using)
    data = {"executed": execute, **removed._asdict()}
    text = fields(
        [
            ("events in the log", f"{removed.events:,}"),
            ("in the buffer", f"{removed.buffered:,}"),
            ("scheduled", f"{removed.scheduled:,}"),
            ("dedup keys", f"{removed.dedup_keys:,}"),
            ("consumers", ", ".join(removed.consumers) or "none"),
            ("dead letters", f"{removed.dead_letters:,}"),
            ("clocks", ", ".join(removed.clocks) or "none"),
            ("inboxes", ", ".join(removed.inboxes) or "none"),
        ]
    )
    return Report(data, f"{text}\n\n{_told(removed) if execute else f'All of it would be removed. {DRY_RUN}'}")


def _told(removed: RemovedTopic) -> str:
    if removed.finished:
        return f"Topic {removed.topic} is removed."
    return f"Topic {removed.topic} is removed. Some of its tables are locked by other sessions: maintenance drops them."


def _arguments(parser: CommandParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="The topic.")
    parser.add_argument(
        "--force",
        action="store_true",
        help="Although an app declares it or consumers read it: they are forgotten too, with their dead letters.",
    )
    parser.add_argument(
        "--wait", type=at_least_one, default=60, help="How many seconds to wait for locked tables; 60 by default."
    )
    add_reason(parser)
    add_by(parser)
    add_execute(parser)


REMOVE_TOPIC = Subcommand(
    name="remove-topic", help="Remove a topic with all its events.", report=remove_topic, arguments=_arguments
)
