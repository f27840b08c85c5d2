"""`manage.py events match`: what a filter matches, of a consumer or one that is tried out."""

import time
from typing import Any

from django.core.management.base import CommandParser

from django_events.consuming.registered import registered
from django_events.management.events.subcommand import Subcommand, add_filter, add_last, wrong_usage
from django_events.management.reporting import Report, table
from django_events.matching import FILTER
from django_events.observing.matches import matches


def match(
    using: str,
    *,
    name: str | None,
    topic: str | None,
    types: list[str] | None,
    keys: list[str] | None,
    where: str | None,
    metadata: str | None,
    variables: list[tuple[str, Any]] | None,
    last: int,
    **options: Any,
) -> Report:
    tried = {"types": types, "keys": keys, "where": where, "metadata": metadata}
    if (name is None) == all(one is None for one in tried.values()):
        raise wrong_usage("Say a consumer, or --topic with a filter to try: --type, --key, --where, --metadata.")
    if name is None and topic is None:
        raise wrong_usage("Say the --topic whose events the filter is tried on.")
    chosen: list[tuple[str, dict[str, Any]]]
    chosen = [(str(topic), tried | {"vars": None if variables is None else dict(variables)})]
    if name is not None:
        found_rows = registered(using, name, topic=topic)
        chosen = [(row.topic.name, {option: getattr(row, option) for option in FILTER}) for row in found_rows]
    data, texts = [], []
    for of_topic, asked in chosen:
        began = time.monotonic()
        found = matches(of_topic, **asked, last=last, using=using)
        took = time.monotonic() - began
        looked, matching = sum(one.events for one in found), sum(one.matching for one in found)
        data.append(
            {
                "topic": of_topic,
                "looked_at": looked,
                "matching": matching,
                "seconds": round(took, 4),
                "types": [one._asdict() for one in found],
            }
        )
        cells = [(one.type, one.events, one.matching, ", ".join(map(str, one.newest))) for one in found]
        told = (
            f"{matching:,} of the newest {looked:,} events of topic {of_topic} match. It took {took * 1_000:,.0f} ms."
        )
        texts.append(f"{table(['type', 'events', 'matching', 'newest'], cells)}\n\n{told}" if cells else told)
    return Report(data, "\n\n".join(texts))


def _arguments(parser: CommandParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="The consumer whose filter is looked at.")
    parser.add_argument("--topic", help="Only this one of its topics; or the topic that a filter is tried on.")
    add_filter(parser)
    add_last(parser)


MATCH = Subcommand(name="match", help="What a filter matches of the newest events.", report=match, arguments=_arguments)
