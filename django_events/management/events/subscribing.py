"""`manage.py events subscribe` and `unsubscribe`: queue consumers that no app declares."""

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser

from django_events import declarations
from django_events.consuming.registered import registered
from django_events.management.events.looking.status import lag_of, state_of
from django_events.management.events.subcommand import (
    DRY_RUN,
    Subcommand,
    add_by,
    add_execute,
    add_filter,
    add_last,
    add_name,
    add_reason,
    add_topic,
    at_least_one,
    length,
    start,
    wrong_usage,
)
from django_events.management.reporting import Report, table
from django_events.observing.lag import standings
from django_events.observing.matches import matches
from django_events.operating.subscribing import subscribe as subscribe_to
from django_events.operating.subscribing import unsubscribe as unsubscribe_from
from django_events.phrases import count


def subscribe(
    using: str,
    *,
    name: str,
    topic: str,
    types: list[str] | None,
    keys: list[str] | None,
    where: str | None,
    metadata: str | None,
    variables: list[tuple[str, Any]] | None,
    expires_after: timedelta | None,
    keep: bool,
    start: declarations.Start,
    lease: timedelta | None,
    ordered: bool,
    max_pending: int | None,
    last: int,
    reason: str,
    by: str | None,
    execute: bool,
    **options: Any,
) -> Report:
    if (expires_after is None) != keep:
        raise wrong_usage("Say how long it stays when nothing serves it, --expires-after 7d, or --keep to keep it.")
    chosen: dict[str, Any] = {"types": types, "keys": keys, "where": where, "metadata": metadata}
    chosen["vars"] = None if variables is None else dict(variables)
    how: dict[str, Any] = {"ordered": ordered, "max_pending": max_pending, "start": start}
    if lease is not None:
        how["lease"] = lease
    made = subscribe_to(
        name,
        topic,
        **chosen,
        **how,
        expires_after=expires_after,
        reason=reason,
        by=by,
        dry_run=not execute,
        using=using,
    )
    found = [] if execute else matches(topic, **chosen, last=last, using=using)
    looked, matching = sum(one.events for one in found), sum(one.matching for one in found)
    data = {"executed": execute, **made._asdict()}
    if execute:
        return Report(data, _told(name, made.topic, created=made.created, changed=made.changed, first_id=made.first_id))
    data |= {"looked_at": looked, "matching": matching, "types": [one._asdict() for one in found]}
    cells = [(one.type, one.events, one.matching, ", ".join(map(str, one.newest))) for one in found]
    tried = f"{matching:,} of the newest {count(looked, 'event')} of topic {made.topic} match."
    rows = f"{table(['type', 'events', 'matching', 'newest'], cells)}\n\n" if cells else ""
    return Report(data, f"{rows}{tried} {DRY_RUN}")


def unsubscribe(
    using: str, *, name: str, topic: str | None, force: bool, reason: str, by: str | None, execute: bool, **options: Any
) -> Report:
    how: dict[str, Any] = {"topic": topic, "force": force, "reason": reason, "by": by, "using": using}
    unsubscribe_from(name, **how, dry_run=True)
    found = standings(using, registered(using, name, topic=topic))
    if execute:
        unsubscribe_from(name, **how)
    data = {"consumer": name, "executed": execute, "consumers": [one._asdict() for one in found]}
    cells = [(one.consumer, one.topic, state_of(one), one.handled, lag_of(one)) for one in found]
    told = f"Subscription {name} is removed." if execute else f"It would be removed. {DRY_RUN}"
    return Report(data, f"{table(['consumer', 'topic', 'state', 'handled', 'lag'], cells)}\n\n{told}")


def _told(name: str, topic: str, *, created: bool, changed: bool, first_id: int) -> str:
    if created:
        return f"Subscription {name} is made: it gets what it asks for from {topic}/{first_id} on."
    if changed:
        return f"Subscription {name} is changed: that counts from {topic}/{first_id} on."
    return f"Subscription {name} is like this already. Nothing was changed."


def _arguments_of_subscribe(parser: CommandParser) -> None:
    parser.add_argument("name", metavar="NAME", help="The name of the subscription.")
    parser.add_argument("topic", metavar="TOPIC", help="The topic.")
    add_filter(parser)
    parser.add_argument(
        "--expires-after", type=length, metavar="TIME", help="It goes when nothing serves it for so long, like 7d."
    )
    parser.add_argument("--keep", action="store_true", help="It stays until it is removed.")
    parser.add_argument(
        "--start",
        type=start,
        default="end",
        metavar="START",
        help="Where it begins: an id, a time, beginning, or end, which is the default.",
    )
    parser.add_argument("--lease", type=length, metavar="TIME", help="How long a claim lasts; 30s by default.")
    parser.add_argument("--ordered", action="store_true", help="Events of one key one after the other.")
    parser.add_argument(
        "--max-pending", type=at_least_one, metavar="N", help="At most so many deliveries wait; the rest in the log."
    )
    add_last(parser)
    add_reason(parser)
    add_by(parser)
    add_execute(parser)


def _arguments_of_unsubscribe(parser: CommandParser) -> None:
    add_name(parser)
    add_topic(parser)
    parser.add_argument("--force", action="store_true", help="Although it has dead letters: they go, too.")
    add_reason(parser)
    add_by(parser)
    add_execute(parser)


SUBSCRIBE = Subcommand(
    name="subscribe",
    help="Make a queue at run time, from which programs claim.",
    report=subscribe,
    arguments=_arguments_of_subscribe,
)
UNSUBSCRIBE = Subcommand(
    name="unsubscribe",
    help="Remove such a queue.",
    report=unsubscribe,
    arguments=_arguments_of_unsubscribe,
)
