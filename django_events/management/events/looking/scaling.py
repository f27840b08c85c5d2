"""`manage.py events scale`: how many workers the lag of a consumer asks for."""

from argparse import ArgumentTypeError
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser

from django_events.consuming.registered import registered
from django_events.management.events.subcommand import Subcommand, add_name, at_least_one, length, seconds_of_work
from django_events.management.reporting import Report, table
from django_events.observing.lag import standings
from django_events.observing.scaling import OVER, WITHIN, Wanted, wanted
from django_events.phrases import count, duration


def scale(
    using: str,
    *,
    name: str,
    within: timedelta,
    over: timedelta,
    per_event: timedelta | None,
    working: int | None,
    **options: Any,
) -> Report:
    found = wanted(
        using,
        standings(using, registered(using, name)),
        over=over,
        within=within,
        per_event=per_event,
        working=working,
    )
    known = [one.workers for one in found if one.workers is not None]
    workers = sum(known) if known and len(known) == len(found) else None
    data = {"consumer": name, "workers": workers, "within": within, "topics": [asdict(one) for one in found]}
    return Report(
        data, f"{_table(found)}\n\n{_conclusion(name, workers, found)}", _assumptions(found, within, per_event)
    )


def _table(found: Sequence[Wanted]) -> str:
    heads = ["topic", "behind", "arriving", "to catch up", "a worker does", "at work", "asked for", "at most"]
    cells = [
        (
            one.topic,
            f"≥ {one.lag:,}" if one.at_least else one.lag,
            _rate(one.arriving),
            _rate(one.catching_up),
            _rate(one.per_worker),
            one.working,
            "?" if one.workers is None else f"{'≥ ' * one.at_least}{one.workers:,}",
            one.limit,
        )
        for one in found
    ]
    return table(heads, cells)


def _rate(of: float | None) -> str:
    return "?" if of is None else f"{of:,.1f}/s"


def _conclusion(name: str, workers: int | None, found: Sequence[Wanted]) -> str:
    lines = [] if workers is None else [f"{name} asks for {count(workers, 'worker')}: threads of run_consumer."]
    for one in found:
        if one.why:
            lines.append(f"{one.topic}: {one.why}")
        elif one.limit is not None and one.workers is not None and one.workers > one.limit:
            lines.append(
                f"{one.topic}: a stream has one worker in each partition, so more than {one.limit} have nothing to do. "
                "It needs a faster handler, larger batches, more partitions, or a queue."
            )
    return "\n".join(lines)


def _assumptions(found: Sequence[Wanted], within: timedelta, per_event: timedelta | None) -> list[str]:
    computed = [one for one in found if one.workers is not None]
    if not computed:
        return []
    busy = max(one.busy for one in computed)
    measured = (
        "an event takes as long as you said"
        if per_event is not None
        else f"what the workers at work now did in the {duration(busy)} in which they never ran out of it"
    )
    notes = [
        f"This assumes that events go on arriving as in the last {duration(computed[0].over)}, that the rest is done "
        f"within {duration(within)}, and {measured}. After a rewind, wait until it is over."
    ]
    if any(one.mode == "queue" for one in computed):
        notes.append("Events of a queue that wait for a retry or a delay count as if they were to be done now.")
    return notes


def _some_time(text: str) -> timedelta:
    found = length(text)
    if found < timedelta(seconds=1):
        raise ArgumentTypeError(f"{text!r} is too short, expected at least 1s.")
    return found


def _arguments(parser: CommandParser) -> None:
    add_name(parser)
    parser.add_argument(
        "--within",
        type=_some_time,
        default=WITHIN,
        metavar="TIME",
        help="In which time its lag is to be gone, like 30m; 10m by default.",
    )
    parser.add_argument(
        "--over",
        type=_some_time,
        default=OVER,
        metavar="TIME",
        help="The samples of which time are looked at, like 1h; 15m by default.",
    )
    parser.add_argument(
        "--per-event",
        type=seconds_of_work,
        metavar="SECONDS",
        help="How long a worker has for an event, like 0.04, instead of measuring it.",
    )
    parser.add_argument(
        "--working",
        type=at_least_one,
        metavar="N",
        help="How many workers there were, instead of counting who has events in hand.",
    )


SCALE = Subcommand(
    name="scale", help="Say how many workers the lag of a consumer asks for.", report=scale, arguments=_arguments
)
