"""`manage.py events repartition`: more or fewer partitions for a topic that has events."""

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
from django_events.operating.repartitioning import declared_otherwise
from django_events.operating.repartitioning import repartition as divide
from django_events.outcomes import Repartitioned


def repartition(
    using: str, *, topic: str, partitions: int, reason: str, by: str | None, execute: bool, **options: Any
) -> Report:
    changed = divide(topic, partitions, reason=reason, by=by, dry_run=not execute, using=using)
    data = {"executed": execute, **changed._asdict()}
    text = fields(
        [
            ("partitions", f"{changed.before} → {changed.after}"),
            ("from event", f"{changed.first_id:,}"),
            ("held back until then", ", ".join(changed.held_back) or "no consumer"),
        ]
    )
    return Report(data, "\n\n".join([text, *_told(changed, execute=execute)]))


def _told(changed: Repartitioned, *, execute: bool) -> list[str]:
    if changed.before == changed.after:
        return [f"Topic {changed.topic} has {changed.after} partitions already. Nothing was changed."]
    done = f"Topic {changed.topic} has {changed.after} partitions for the events that come from now on."
    return [done if execute else f"This is how it would be. {DRY_RUN}", *_declared_otherwise(changed)]


def _declared_otherwise(changed: Repartitioned) -> list[str]:
    if (declared := declared_otherwise(changed)) is None:
        return []
    return [
        f"It is declared with partitions={declared.partitions}, at {declared.declared_at}. Change that too: the next "
        "migrate follows the declaration."
    ]


def _arguments(parser: CommandParser) -> None:
    parser.add_argument("topic", metavar="TOPIC", help="The topic.")
    parser.add_argument(
        "partitions", metavar="PARTITIONS", type=at_least_one, help="Into how many its log is divided from now on."
    )
    add_reason(parser)
    add_by(parser)
    add_execute(parser)


REPARTITION = Subcommand(
    name="repartition",
    help="Change the number of partitions of a topic that has events.",
    report=repartition,
    arguments=_arguments,
)
