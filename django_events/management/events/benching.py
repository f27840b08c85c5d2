"""`manage.py events bench`: measure what this database does, on a topic that is made for it and dropped afterwards."""

import math
import sys
from argparse import ArgumentTypeError
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import Any

from django.core.management.base import CommandParser
from django.db import connections

from django_events.benching import flow, timeline
from django_events.benching.load import MOST_SECONDS, Load
from django_events.benching.percentiles import LatencySummary
from django_events.benching.scratch_topic import Leftover, drop_leftover, leftovers
from django_events.benching.timeline import MOST_SAMPLES, Resources
from django_events.management.events.subcommand import (
    Subcommand,
    add_execute,
    at_least_one,
    refused,
    whole_number,
    wrong_usage,
)
from django_events.management.reporting import Report, table
from django_events.models import Topic
from django_events.phrases import count
from django_events.sql.search_path import tables_missing
from django_events.workers.loop import Exit
from django_events.workers.stopping import Stop, stop_on_signals
from django_events.workers.wakeups import why_polling

OF_FLOW = {
    "rate": "--rate",
    "events": "--events",
    "size": "--size",
    "keys": "--keys",
    "skew": "--skew",
    "via": "--via",
    "many": "--many",
    "publishers": "--publishers",
    "partitions": "--partitions",
    "consumers": "--consumers",
    "mode": "--mode",
    "batch_size": "--batch-size",
    "threads": "--threads",
}
OF_TIMELINE = {"tenants": "--tenants", "resources": "--resources", "each": "--each", "samples": "--samples"}
BUSY = 0.9  # of a core: this process is likely what was measured
COLUMNS = ["milliseconds", "events", "average", "p50", "p90", "p99", "max"]
DRY_RUN = "Nothing was done. To do it, say the same with --execute."


def bench(using: str, *, what: str, execute: bool, **options: Any) -> Report:
    if connections[using].in_atomic_block:
        raise wrong_usage("events bench commits batch by batch, so it can't run inside a transaction of the caller.")
    if Topic._meta.db_table not in connections[using].introspection.table_names():
        raise refused(f"Nothing was done. {tables_missing(using)}")
    for name, option in (OF_TIMELINE if what == "flow" else OF_FLOW).items():
        if options[name] is not None:
            raise wrong_usage(f"{option} is for: manage.py events bench {'timeline' if what == 'flow' else 'flow'}")
    left = leftovers(using)
    return (_flow if what == "flow" else _timeline)(using, left, execute=execute, **options)


def _flow(using: str, left: Sequence[Leftover], *, execute: bool, seconds: float | None, **options: Any) -> Report:
    given = {name: options[name] for name in OF_FLOW if options[name] is not None}
    if given.get("batch_size") == 0:
        given["batch_size"] = None
    if seconds is not None:
        given["seconds"] = seconds
        if "rate" in given and "events" not in given:
            given["events"] = max(int(given["rate"] * seconds), 1)
    load = Load(**given)
    for problem in load.problems():
        raise wrong_usage(f"{problem} Nothing was done.")
    plan = {**asdict(load), "events": load.planned, "bytes": load.expected_bytes}
    pace = "as fast as they go through" if load.rate is None else f"at {load.rate:,g} a second"
    readers = f"{count(load.consumers, load.mode + ' consumer')}" if load.consumers else "no consumer"
    told = (
        f"{count(load.planned, 'event')} of about {load.size:,} bytes, {pace}, with {load.via} from "
        f"{count(load.publishers, 'thread')} for at most {load.seconds:,g} s, to {readers}."
    )
    if not execute:
        return _planned(using, plan, told, load.expected_bytes, left)
    with _doing(using, told, load.expected_bytes, left) as stop:
        measured = flow.run(using, load, stop, say=_say)
    polling = why_polling(using)
    rates: list[tuple[str, int, float | None]] = [
        ("published", measured.published.events, measured.published.per_second)
    ]
    if measured.paced:
        rates.append(("not published", measured.not_published, None))
    rates += [(f"handled by {name[-1]}", rate.events, rate.per_second) for name, rate in measured.handled.items()]
    moving = measured.moved / measured.moving_seconds if measured.moving_seconds else 0.0
    transfer = [
        ("moved by this transfer", measured.moved, moving),
        ("moved by the site's", measured.moved_by_others, None),
    ]
    text = "\n\n".join(
        [
            table(["what", "events", "per second"], rates + transfer),
            _latencies(measured.latencies),
            f"The transfer moved them in {measured.batches:,} batch{'' if measured.batches == 1 else 'es'}. The log of "
            f"them took {_megabytes(measured.bytes)}. This process used {measured.cpu:.0%} of one core.",
        ]
    )
    data = {
        "kind": "flow",
        "executed": True,
        "database": _database(using),
        "load": plan,
        **{field.name: getattr(measured, field.name) for field in fields(measured)},
        "published": _rate(measured.published),
        "handled": {name: _rate(rate) for name, rate in measured.handled.items()},
        "not_published": measured.not_published,
        "moved_by_others": measured.moved_by_others,
        "latencies": {name: summary._asdict() for name, summary in measured.latencies.items()},
        "polling": polling,
    }
    waiting = [f"{polling} The latencies contain the wait for that."] if polling else []
    return Report(data, text, [*_notes(measured), *waiting], Exit.DONE if measured.complete else Exit.FAILED)


def _notes(measured: flow.FlowResult) -> Iterator[str]:
    if measured.stopped:
        yield "It was stopped: these are the events until then."
    elif measured.not_published:
        yield (
            f"{measured.not_published:,} of {count(measured.planned, 'event')} were due and not published in time: the "
            "rate is too high. The latencies are those of the others only."
        )
    elif not measured.complete:
        yield "Its time was over before all that was published was handled."
    elif measured.published.events < measured.planned:
        yield f"{measured.published.events:,} of {measured.planned:,} events could be published in that time."
    if measured.moved_by_others:
        yield "A transfer of the site moved some of the events, so the latencies are those of both together."
    if measured.cpu > BUSY:
        yield (
            "This process, which publishes, handles and measures, was busy all the time: the database may do more. "
            "Publishers and consumers in processes of their own don't share a core."
        )
    if measured.again:
        yield f"{count(measured.again, 'event')} came to a handler again; the first time counts."


def _timeline(
    using: str, left: Sequence[Leftover], *, execute: bool, seconds: float | None, samples: int | None, **options: Any
) -> Report:
    names = {"tenants": "tenants", "resources": "resources", "each": "events"}
    resources = Resources(**{field: options[name] for name, field in names.items() if options[name] is not None})
    samples, seconds = 1_000 if samples is None else samples, 600.0 if seconds is None else seconds
    for problem in resources.problems():
        raise wrong_usage(f"{problem} Nothing was done.")
    if samples > MOST_SAMPLES:
        raise wrong_usage(f"--samples is {samples:,}, expected at most {MOST_SAMPLES:,}. Nothing was done.")
    if not 1 <= seconds <= MOST_SECONDS:
        raise wrong_usage(f"--for is {seconds:,g}, expected 1 to {MOST_SECONDS:,}. Nothing was done.")
    plan = {**asdict(resources), "samples": samples, "seconds": seconds, "bytes": resources.expected_bytes}
    told = (
        f"{count(resources.tenants, 'tenant')} with {count(resources.resources, 'resource')} of "
        f"{count(resources.events, 'event')} each: {count(resources.all_events, 'event')}, then "
        f"{count(samples, 'random timeline')}, for at most {seconds:,g} s."
    )
    if not execute:
        return _planned(using, plan, told, resources.expected_bytes, left)
    with _doing(using, told, resources.expected_bytes, left) as stop:
        measured = timeline.run(using, resources, samples=samples, seconds=seconds, stop=stop, say=_say)
    complete = measured.samples == samples
    notes = [] if complete else ["It was stopped, or its time was over: these are the timelines until then."]
    rate = measured.seeded / measured.seeding_seconds if measured.seeding_seconds else 0.0
    text = [
        f"{count(measured.seeded, 'event')} seeded, {rate:,.0f} a second, {_megabytes(measured.bytes)}.",
        _latencies({"a timeline": measured.milliseconds} if measured.milliseconds else {}),
        f"Read by {' and '.join(measured.read_by)}:\n{measured.plan}",
        "\n".join(measured.wrong)
        or f"{count(measured.samples, 'timeline')} had the events of their own tenant and resource only.",
    ]
    data = {
        "kind": "timeline",
        "executed": True,
        "database": _database(using),
        "load": plan,
        "complete": complete,
        **asdict(measured),
        "milliseconds": measured.milliseconds and measured.milliseconds._asdict(),
    }
    code = Exit.DONE if complete and not measured.wrong else Exit.FAILED
    return Report(data, "\n\n".join(part for part in text if part), notes, code)


def _planned(using: str, plan: dict[str, Any], told: str, size: int, left: Sequence[Leftover]) -> Report:
    data = {
        "executed": False,
        "database": _database(using),
        "load": plan,
        "leftovers": [{"topic": one.topic.name, "kept": one.kept} for one in left],
    }
    return Report(data, "\n".join([_announced(using, told, size), *map(_told, left), "", DRY_RUN]))


@contextmanager
def _doing(using: str, told: str, size: int, left: Sequence[Leftover]) -> Iterator[Stop]:
    """Say what comes, drop what an earlier run left, and stop on signals meanwhile."""
    with stop_on_signals() as stop:
        _say(_announced(using, told, size))
        for one in left:
            gone = not one.kept and drop_leftover(using, one.topic)
            _say(f"Dropped {one.topic.name}, which an earlier run had left." if gone else _told(one))
        yield stop


def _announced(using: str, told: str, size: int) -> str:
    return (
        f"{told}\nOn {_database(using)}, in a topic that is made for it and dropped afterwards. It writes about "
        f"{_megabytes(size)} to the tables, and about as much WAL; look whether the disk has room for it."
    )


def _told(one: Leftover) -> str:
    if one.kept:
        return f"{one.topic.name} is there too, and stays: {one.kept}."
    return f"An earlier run was killed and left {one.topic.name}, which is dropped first."


def _database(using: str) -> str:
    """Name the database without doubt, and without its password."""
    settings = connections[using].get_connection_params()
    where = f" at {settings['host']}" if settings.get("host") else ""
    name = settings.get("dbname") or settings.get("service") or "?"
    return f"database {name!r}{where}, alias {using!r}"


def _latencies(found: dict[str, LatencySummary]) -> str:
    return table(COLUMNS, [(name, *summary) for name, summary in found.items()]) if found else ""


def _rate(rate: flow.Throughput) -> dict[str, float]:
    return {**asdict(rate), "per_second": rate.per_second}


def _megabytes(size: int) -> str:
    return f"{size / 2**20:,.1f} MiB"


def _say(text: str) -> None:
    """Print a line to standard error at once; the report goes to standard output."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _number(text: str) -> float:
    try:
        number = float(text.replace(",", "").replace("_", ""))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ArgumentTypeError(f"{text!r} is no number, like 500.")
    return number


def _arguments(parser: CommandParser) -> None:
    parser.add_argument(
        "what",
        nargs="?",
        metavar="WHAT",
        choices=["flow", "timeline"],
        default="flow",
        help="flow, from publishers to consumers, or timeline, reading the events of one resource.",
    )
    parser.add_argument("--for", dest="seconds", type=_number, metavar="SECONDS", help="How long at most.")
    parser.add_argument("--events", type=at_least_one, help="flow: how many events; 10,000 by default.")
    parser.add_argument("--rate", type=_number, help="flow: how many a second; by default as many as go through.")
    parser.add_argument("--size", type=at_least_one, help="flow: bytes of a value; 200 by default.")
    parser.add_argument("--keys", type=whole_number, help="flow: how many keys, 0 for none; 1,000 by default.")
    parser.add_argument("--skew", type=_number, help="flow: the share of events, 0 to 1, that have the same key.")
    parser.add_argument("--via", choices=["publish", "publish_many", "writer"], help="flow: how it is published.")
    parser.add_argument("--many", type=at_least_one, help="flow: events of a publish_many(); 100 by default.")
    parser.add_argument("--publishers", type=at_least_one, help="flow: threads that publish; 1 by default.")
    parser.add_argument("--partitions", type=at_least_one, help="flow: partitions of the topic; 4 by default.")
    parser.add_argument("--consumers", type=whole_number, help="flow: consumers that get all events; 1 by default.")
    parser.add_argument("--mode", choices=["stream", "queue"], help="flow: their mode; stream by default.")
    parser.add_argument("--batch-size", type=whole_number, help="flow: theirs, 0 for one event; 100 by default.")
    parser.add_argument("--threads", type=at_least_one, help="flow: threads that serve them; 1 by default.")
    parser.add_argument("--tenants", type=at_least_one, help="timeline: how many tenants; 10 by default.")
    parser.add_argument("--resources", type=at_least_one, help="timeline: resources of each; 1,000 by default.")
    parser.add_argument("--each", type=at_least_one, help="timeline: events of each resource; 10 by default.")
    parser.add_argument("--samples", type=at_least_one, help="timeline: how many are read; 1,000 by default.")
    add_execute(parser)


BENCH = Subcommand(
    name="bench",
    help="Measure what this database does, in a topic that is made for it and dropped afterwards.",
    report=bench,
    arguments=_arguments,
)
