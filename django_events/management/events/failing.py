"""`manage.py events retry-now` and `skip`: what to do about an event that fails."""

from typing import Any

from django.core.management.base import CommandParser

from django_events.consuming.registered import registered
from django_events.management.events.subcommand import (
    DRY_RUN,
    Address,
    Subcommand,
    add_by,
    add_execute,
    add_name,
    add_reason,
    add_topic,
    address,
    wrong_usage,
)
from django_events.management.reporting import Report
from django_events.operating.retrying import retry_now
from django_events.operating.skipping import skip as skip_event
from django_events.phrases import count


def _retry_now(
    using: str, *, name: str, id: Address | None, topic: str | None, reason: str, by: str | None, **options: Any
) -> Report:
    topic = topic if id is None else _topic(using, name, id, topic)
    retried = retry_now(name, topic=topic, event_id=None if id is None else id.id, reason=reason, by=by, using=using)
    data = {"consumer": name, "retried": [one._asdict() for one in retried]}
    if not retried:
        what = "nothing waits" if id is None else f"{topic}/{id.id} doesn't wait"
        return Report(data, f"Of consumer {name} {what} for another attempt. Nothing was changed.")
    partitions, deliveries = sum(one.partitions for one in retried), sum(one.deliveries for one in retried)
    parts = [count(partitions, "partition")] if partitions else []
    parts += [f"{deliveries:,} {'delivery' if deliveries == 1 else 'deliveries'}"] if deliveries else []
    return Report(data, f"Consumer {name} tries again now: {' and '.join(parts)}.")


def skip(
    using: str,
    *,
    name: str,
    id: Address,
    reason: str,
    topic: str | None,
    by: str | None,
    execute: bool,
    **options: Any,
) -> Report:
    if not reason.strip():
        raise wrong_usage("--reason is empty. Say why: it is the error of the dead letter.")
    topic = _topic(using, name, id, topic)
    skipped = skip_event(name, id.id, topic=topic, reason=reason, by=by, dry_run=not execute, using=using)
    data = {"consumer": name, "executed": execute, **skipped._asdict()}
    address = f"{skipped.topic}/{skipped.event_id}"
    if execute:
        return Report(data, f"Consumer {name} skipped {address}, which is a dead letter of it now.")
    attempts = f"failed {count(skipped.attempts, 'time')}" if skipped.attempts else "was not attempted"
    told = f"{address} would become a dead letter of consumer {name}. It {attempts}. {skipped.error}".rstrip()
    return Report(data, f"{told}\n\n{DRY_RUN}")


def _topic(using: str, name: str, id: Address, topic: str | None) -> str:
    """The topic of the event, which may be said in two ways, or be the only one."""
    if id.topic is not None and topic is not None and id.topic != topic:
        raise wrong_usage(f"{id} is not of topic {topic}. Say one of them.")
    rows = registered(using, name, topic=id.topic or topic)
    if len(rows) > 1:
        topics = " and ".join(row.topic.name for row in rows)
        raise wrong_usage(f"Consumer {name} reads {topics}: say which, like {rows[0].topic.name}/{id.id}.")
    return rows[0].topic.name


def _arguments_of_retry(parser: CommandParser) -> None:
    add_name(parser)
    parser.add_argument("id", nargs="?", metavar="ID", type=address, help="Only this event, like orders/1042.")
    add_topic(parser)
    add_reason(parser)
    add_by(parser)


def _arguments_of_skip(parser: CommandParser) -> None:
    add_name(parser)
    parser.add_argument("id", metavar="ID", type=address, help="The event, like orders/1042.")
    parser.add_argument("--reason", required=True, help="Why, for the record and the dead letter.")
    add_topic(parser)
    add_by(parser)
    add_execute(parser)


RETRY = Subcommand(
    name="retry-now",
    help="Let a consumer try again now what stopped or waits for its next attempt.",
    report=_retry_now,
    arguments=_arguments_of_retry,
)
SKIP = Subcommand(
    name="skip",
    help="Let a consumer give up on one event, which becomes a dead letter.",
    report=skip,
    arguments=_arguments_of_skip,
)
