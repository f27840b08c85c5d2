"""`manage.py events dead-letters`, `redrive` and `discard`: what consumers gave up on."""

from collections.abc import Sequence
from typing import Any

from django.core.management.base import CommandParser
from django.db.models import QuerySet

from django_events.consuming.registered import registered
from django_events.management.events.looking.peeking import described
from django_events.management.events.payloads import payload, payload_data, shown
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
    at_least_one,
    past_time,
    refused,
    text,
    wrong_usage,
)
from django_events.management.reporting import Report, fields, printable_lines, table
from django_events.models import DeadLetter
from django_events.models.consumers import DeadLetterQuerySet
from django_events.operating.dead_letters import discard as discard_letters
from django_events.operating.dead_letters import redrive as redrive_letters
from django_events.phrases import count

SHOWN = 20
FILTERS = ("error", "type", "key", "since", "until")


def dead_letters(
    using: str,
    *,
    name: str | None,
    topic: str | None,
    limit: int,
    show: Address | None,
    by_error: bool,
    **options: Any,
) -> Report:
    if name is not None:
        registered(using, name, topic=topic)
    letters = _with_topic(using)
    if name is not None:
        letters = letters.filter(consumer__name=name)
    if show is not None:
        return _one(letters, show if show.topic else Address(topic, show.id))
    if topic is not None:
        letters = letters.filter(consumer__topic__name=topic)
    letters = letters.matching(**_filters(options))
    if by_error:
        return _by_error(letters, limit)
    found = list(letters.defer("value", "body", "metadata", "traceback").order_by("pk")[: limit + 1])
    notes = [f"There are more than these {limit:,}: --limit shows them."] if len(found) > limit else []
    data = [_data(letter) for letter in found[:limit]]
    columns = ["event", "consumer", "key", "type", "attempts", "dead since", "redrive", "error"]
    cells = [
        (_address(o), o.consumer.name, o.key, o.type, o.attempts, o.dead_at, o.redrive_at and "waits", o.error)
        for o in found[:limit]
    ]
    return Report(data, table(columns, cells) if cells else "No dead letters.", notes)


def _by_error(letters: DeadLetterQuerySet, limit: int) -> Report:
    groups = list(letters.by_error()[: limit + 1])
    notes = [f"There are more than these {limit:,}: --limit shows them."] if len(groups) > limit else []
    names = {"consumer": "consumer__name", "topic": "consumer__topic__name"}
    columns = ["letters", "consumer", "topic", "oldest", "newest", "fingerprint"]
    data = [{name: group[names.get(name, name)] for name in columns} for group in groups[:limit]]
    told = table(columns, [list(one.values()) for one in data]) if data else "No dead letters."
    return Report(data, told, notes)


def redrive(
    using: str,
    *,
    name: str,
    ids: Sequence[Address],
    all: bool,
    reason: str,
    by: str | None,
    execute: bool,
    **options: Any,
) -> Report:
    letters = _chosen(using, name, ids, all=all, filters=_filters(options))
    addresses = _addresses(letters)
    number = redrive_letters(letters, reason=reason, by=by, dry_run=not execute)
    done = f"Consumer {name} handles {count(number, 'dead letter')} again, as soon as a worker takes them."
    return _acted(name, addresses, number, execute, done, "would be handled again")


def discard(
    using: str,
    *,
    name: str,
    ids: Sequence[Address],
    all: bool,
    reason: str,
    by: str | None,
    execute: bool,
    **options: Any,
) -> Report:
    if not reason.strip():
        raise wrong_usage("--reason is empty. Say why: it is what is left of the dead letters.")
    letters = _chosen(using, name, ids, all=all, filters=_filters(options))
    addresses = _addresses(letters)
    number = discard_letters(letters, reason=reason, by=by, dry_run=not execute)
    return _acted(name, addresses, number, execute, f"{count(number, 'dead letter')} discarded.", "would be deleted")


def _acted(name: str, addresses: list[str], number: int, execute: bool, done: str, would: str) -> Report:
    data = {"consumer": name, "executed": execute, "count": number, "dead_letters": addresses}
    if not number:
        return Report(data, f"Consumer {name} has no such dead letters.")
    listed = ", ".join(addresses[:SHOWN]) + (f" and {len(addresses) - SHOWN:,} more" if number > SHOWN else "")
    told = done if execute else f"{count(number, 'dead letter')} of consumer {name} {would}: {listed}.\n\n{DRY_RUN}"
    return Report(data, told)


def _filters(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in FILTERS if options[name] is not None}


def _chosen(
    using: str, name: str, ids: Sequence[Address], *, all: bool, filters: dict[str, Any]
) -> QuerySet[DeadLetter]:
    """The dead letters that the arguments name; refused if one of them doesn't exist."""
    rows = registered(using, name)
    if bool(all) + bool(ids) + bool(filters) != 1:
        raise wrong_usage(
            "Name dead letters, like orders/1042, or choose them by --error, --type, --key, --since and --until, "
            "or say --all: one of these three."
        )
    letters = _with_topic(using).filter(consumer__in=rows)
    if not ids:
        return letters.matching(**filters)
    wanted = set()
    for one in ids:
        if one.topic is None and len(rows) > 1:
            topics = " and ".join(row.topic.name for row in rows)
            raise wrong_usage(f"Consumer {name} reads {topics}: say which, like {rows[0].topic.name}/{one.id}.")
        [row] = registered(using, name, topic=one.topic or rows[0].topic.name)
        wanted.add((row.pk, one.id))
    found = {
        (o.consumer_id, o.event_id): o.pk for o in letters.filter(event_id__in={event_id for _, event_id in wanted})
    }
    topic_of = {row.pk: row.topic.name for row in rows}
    if missing := sorted(f"{topic_of[row]}/{event_id}" for row, event_id in wanted - set(found)):
        raise refused(
            f"Consumer {name} has no dead letter {', '.join(missing)}. Nothing was changed. "
            f"They are listed by: manage.py events dead-letters {name}"
        )
    return letters.filter(pk__in=[found[one] for one in wanted])


def _one(letters: DeadLetterQuerySet, wanted: Address) -> Report:
    letters = letters.filter(event_id=wanted.id)
    if wanted.topic is not None:
        letters = letters.filter(consumer__topic__name=wanted.topic)
    found = list(shown(letters))
    if not found:
        raise refused(f"There is no dead letter {wanted}. They are listed by: manage.py events dead-letters")
    if len(found) > 1:
        named = " and ".join(f"{o.consumer.name} {_address(o)}" for o in found)
        raise wrong_usage(f"There are several: {named}. Say which: manage.py events dead-letters NAME --show TOPIC/ID")
    [letter] = found
    data = {
        **_data(letter),
        "number": letter.number,
        **payload_data(letter),
        "published_at": letter.published_at,
        "logged_at": letter.logged_at,
        "traceback": letter.traceback,
    }
    told = [fields(described(data)), payload(letter), printable_lines(letter.traceback or letter.error)]
    return Report(data, "\n\n".join(part for part in told if part))


def _with_topic(using: str) -> DeadLetterQuerySet:
    return DeadLetter.objects.using(using).select_related("consumer__topic")


def _addresses(letters: QuerySet[DeadLetter]) -> list[str]:
    rows = letters.order_by("consumer__topic__name", "event_id").values_list("consumer__topic__name", "event_id")
    return [f"{topic}/{event_id}" for topic, event_id in rows]


def _address(letter: DeadLetter) -> str:
    return f"{letter.consumer.topic.name}/{letter.event_id}"


def _data(letter: DeadLetter) -> dict[str, Any]:
    return {
        "address": _address(letter),
        "consumer": letter.consumer.name,
        "topic": letter.consumer.topic.name,
        "id": letter.event_id,
        "partition": letter.partition,
        "key": letter.key,
        "type": letter.type,
        "attempts": letter.attempts,
        "error": letter.error,
        "fingerprint": letter.fingerprint,
        "dead_at": letter.dead_at,
        "redrive_at": letter.redrive_at,
    }


def _add_filters(parser: CommandParser) -> None:
    parser.add_argument("--error", type=text, help="Those whose error or fingerprint contains this text.")
    parser.add_argument("--type", type=text, help="Those of this type.")
    parser.add_argument("--key", type=text, help="Those of this key.")
    parser.add_argument("--since", type=past_time, metavar="TIME", help="Dead since then, or for less than, like 2h.")
    parser.add_argument("--until", type=past_time, metavar="TIME", help="Dead before then, or for longer, like 2h.")


def _arguments_of_list(parser: CommandParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="Only those of this consumer.")
    add_topic(parser)
    _add_filters(parser)
    parser.add_argument("--by-error", action="store_true", help="Count those of each error, the most frequent first.")
    parser.add_argument("--limit", type=at_least_one, default=20, help="How many, the oldest first; 20 by default.")
    parser.add_argument("--show", type=address, metavar="ID", help="One, with payload, error and traceback.")


def _arguments_of_redrive(parser: CommandParser) -> None:
    _arguments_of_both(parser)
    add_reason(parser)


def _arguments_of_both(parser: CommandParser) -> None:
    add_name(parser)
    parser.add_argument("ids", nargs="*", metavar="ID", type=address, help="Events, like orders/1042.")
    _add_filters(parser)
    parser.add_argument("--all", action="store_true", help="All dead letters of the consumer.")
    add_by(parser)
    add_execute(parser)


def _arguments_of_discard(parser: CommandParser) -> None:
    _arguments_of_both(parser)
    parser.add_argument("--reason", required=True, help="Why, for the record.")


DEAD_LETTERS = Subcommand(
    name="dead-letters",
    help="List what consumers gave up on, or show one.",
    report=dead_letters,
    arguments=_arguments_of_list,
)
REDRIVE = Subcommand(
    name="redrive",
    help="Let a consumer handle dead letters again.",
    report=redrive,
    arguments=_arguments_of_redrive,
)
DISCARD = Subcommand(
    name="discard", help="Delete dead letters, for a reason.", report=discard, arguments=_arguments_of_discard
)
