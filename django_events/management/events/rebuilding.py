"""`manage.py events rebuild`, `check-projection` and `as-of`: tables that consumers keep, filled anew or looked at."""

import sys
import time
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser

from django_events.consuming.registered import registered
from django_events.declarations import DeclaredProjection, consumers
from django_events.deriving.rebuilding import abandon_rebuild
from django_events.deriving.rebuilding import rebuild as rebuild_table
from django_events.management.events.subcommand import (
    DRY_RUN,
    Address,
    Subcommand,
    add_by,
    add_execute,
    add_name,
    add_reason,
    address,
    at_least_one,
    refused,
    text,
    wrong_usage,
)
from django_events.management.reporting import Report, fields, table
from django_events.outcomes import Rebuilt
from django_events.phrases import duration
from django_events.workers.loop import Exit

BAR = 30  # characters
EVERY, EVERY_IN_A_FILE = 0.2, 10.0  # seconds between two lines of progress


class Progress:
    """How far a rebuild is, with the time left: a line that changes, or in a file one now and then."""

    def __init__(self) -> None:
        self._out = sys.stderr
        self._changes = self._out.isatty()
        self._began: tuple[float, int] | None = None
        self._shown_at = 0.0

    def __call__(self, so_far: Rebuilt) -> None:
        now = time.monotonic()
        if self._began is None:
            self._began = now, so_far.ids
        if now - self._shown_at < (EVERY if self._changes else EVERY_IN_A_FILE):
            return
        self._shown_at = now
        self._out.write(f"\r\033[K{self._line(so_far, now)}" if self._changes else f"{self._line(so_far, now)}\n")
        self._out.flush()

    def end(self) -> None:
        if self._changes:
            self._out.write("\r\033[K")
            self._out.flush()

    def _line(self, so_far: Rebuilt, now: float) -> str:
        since, first = self._began or (now, so_far.ids)
        whole = so_far.ids + so_far.left
        share = so_far.ids / whole if whole else 1.0
        bar = "#" * int(BAR * share)
        rate = (so_far.ids - first) / (now - since) if now > since else 0.0
        left = f", {duration(timedelta(seconds=round(so_far.left / rate)))} left" if rate else ""
        return f"[{bar:<{BAR}}] {share:.0%}, {so_far.ids:,} of {whole:,} ids, {rate:,.0f}/s{left}"


def rebuild(
    using: str,
    *,
    name: str,
    from_what_is_there: bool,
    past_failures: bool,
    anew: bool,
    abandon: bool,
    wait: int,
    reason: str,
    by: str | None,
    execute: bool,
    **options: Any,
) -> Report:
    if abandon:
        return _abandon(using, name, execute=execute)
    progress = Progress()
    try:
        done = rebuild_table(
            name,
            from_what_is_there=from_what_is_there,
            past_failures=past_failures,
            anew=anew,
            reason=reason,
            by=by,
            wait=timedelta(seconds=wait),
            on_progress=progress,
            dry_run=not execute,
            using=using,
        )
    finally:
        progress.end()
    data = {"executed": execute, **done._asdict()}
    cells = [(topic, reached, done.ends[topic], done.ends[topic] - reached) for topic, reached in done.reached.items()]
    logs = table(["topic", "folded up to", "log ends at", "left"], cells)
    facts = fields([("table", done.table), ("events folded", f"{done.events:,}"), ("not folded", f"{done.failed:,}")])
    return Report(data, f"{logs}\n\n{facts}\n\n{_told(done, execute=execute)}")


def _told(done: Rebuilt, *, execute: bool) -> str:
    if execute:
        dead = f" {done.failed:,} events that could not be folded are dead letters." if done.failed else ""
        return f"The new table of {done.consumer} is served now, and the former one is dropped.{dead}"
    how = "It would go on from here" if done.continued else "It would fill a new table from here"
    return f"{how}, and then put it in the place of the one that is served. {DRY_RUN}"


def _abandon(using: str, name: str, *, execute: bool) -> Report:
    if not execute:
        told = f"What a rebuild of {name} has filled so far would be dropped. {DRY_RUN}"
        return Report({"consumer": name, "executed": False, "abandoned": False}, told)
    dropped = abandon_rebuild(name, using=using)
    told = f"What the rebuild of {name} had filled is dropped." if dropped else f"No rebuild of {name} was begun."
    return Report({"consumer": name, "executed": True, "abandoned": dropped}, told)


def check_projection(using: str, *, name: str, sample: int, **options: Any) -> Report:
    declared = _projection(using, name)
    found = declared.check(sample=sample, using=using)
    data = {**found._asdict(), "drifts": [drift._asdict() for drift in found.drifts]}
    until = ", ".join(f"{topic}/{reached}" for topic, reached in found.reached.items())
    told = f"{found.keys:,} keys were folded anew up to {until}."
    if not found.drifts and not found.failed:
        return Report(data, f"{told} The rows are what their events say.")
    parts = []
    if found.drifts:
        parts.append(table(["key", "field", "in the row", "by its events"], found.drifts))
    parts += [f"Can't be folded: {failed}" for failed in found.failed]
    keys = len({drift.key for drift in found.drifts})
    parts.append(f"{told} {keys:,} of them differ. To fold all anew: manage.py events rebuild {name}")
    return Report(data, "\n\n".join(parts), code=Exit.FAILED)


def as_of(using: str, *, name: str, key: str, at: list[Address], **options: Any) -> Report:
    declared = _projection(using, name)
    named = {one.topic: one.id for one in at if one.topic is not None}
    if len(named) < len(at) and len(at) > 1:
        raise wrong_usage("Of several topics, say each with its id: --at orders/1042 --at returns/77.")
    row = declared.as_of(named or at[0].id, key=key, using=using)
    when = " and ".join(map(str, at))
    if row is None:
        return Report({"projection": name, "key": key, "row": None}, f"At {when} there was no row of {key!r}.")
    values = {field.name: getattr(row, field.attname) for field in row._meta.concrete_fields}
    shown = {column: str(value) for column, value in values.items() if value is not None}
    return Report({"projection": name, "key": key, "row": shown}, fields(list(shown.items())))


def _projection(using: str, name: str) -> DeclaredProjection[Any]:
    registered(using, name)
    declared = consumers.get(name)
    if not isinstance(declared, DeclaredProjection):
        raise refused(f"Consumer {name} is no projection, so there are no rows of it.")
    return declared


def _arguments_of_as_of(parser: CommandParser) -> None:
    add_name(parser)
    parser.add_argument("--key", type=text, required=True, help="Whose row.")
    parser.add_argument(
        "--at",
        type=address,
        action="append",
        required=True,
        metavar="ADDRESS",
        help="When this event had been folded, like 1042; of several topics each, like orders/1042.",
    )


def _arguments_of_rebuild(parser: CommandParser) -> None:
    add_name(parser)
    parser.add_argument(
        "--from-what-is-there",
        action="store_true",
        help="Also if retention or compaction has removed events: what was folded from them is lost.",
    )
    parser.add_argument(
        "--past-failures",
        action="store_true",
        help="Go on behind events that can't be folded: they are dead letters after the change-over.",
    )
    parser.add_argument("--anew", action="store_true", help="Begin again, instead of going on with what was stopped.")
    parser.add_argument("--abandon", action="store_true", help="Drop what was filled so far, and leave it at that.")
    parser.add_argument(
        "--wait",
        type=at_least_one,
        default=60,
        help="How many seconds the change-over waits for events in hand and for locks; 60 by default.",
    )
    add_reason(parser)
    add_by(parser)
    add_execute(parser)


def _arguments_of_check(parser: CommandParser) -> None:
    add_name(parser)
    parser.add_argument(
        "--sample", type=at_least_one, default=1_000, metavar="N", help="How many keys; 1,000 by default."
    )


REBUILD = Subcommand(
    name="rebuild",
    help="Fill the table of a derived consumer anew, beside the one that is served.",
    report=rebuild,
    arguments=_arguments_of_rebuild,
)
CHECK_PROJECTION = Subcommand(
    name="check-projection",
    help="Fold a sample of keys anew, and compare with the rows of a projection.",
    report=check_projection,
    arguments=_arguments_of_check,
)
AS_OF = Subcommand(
    name="as-of",
    help="The row of a projection as it was when an event had been folded.",
    report=as_of,
    arguments=_arguments_of_as_of,
)
