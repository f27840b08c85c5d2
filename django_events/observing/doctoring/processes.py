"""The processes that keep events moving: is there a transfer, is there a worker, how does maintenance go?

None of them sends a heartbeat. A transfer that sleeps holds a lock of the server. A fresh sample is no sign of one:
maintenance by cron takes it too.
"""

from collections.abc import Iterator
from datetime import timedelta

from django.db.models import DurationField, ExpressionWrapper, F

from django_events import declarations, models, sql
from django_events.conf import settings
from django_events.log import channel
from django_events.models.functions import ClockTimestamp
from django_events.models.maintenance import NEVER
from django_events.observing.commands import events_command, manage_command
from django_events.observing.doctoring.database import Database
from django_events.observing.doctoring.from_status import of_kinds
from django_events.observing.findings import Finding, error, ok, unknown, warning
from django_events.phrases import count, duration

SQL = sql.beside(__name__)

SAMPLED = timedelta(minutes=3)  # a transfer takes a sample each minute
STALE = timedelta(hours=2)  # a step of maintenance: each is due several times an hour, or once


def transfer(database: Database) -> Iterator[Finding]:
    """Does a transfer run? The lock of a sleeping one tells so; an old sample tells that none has run for long."""
    late = [*of_kinds(database, "transfer")]
    yield from late
    sleepers = sql.fetch(database.using, SQL.sleepers, lock=channel.ASLEEP)
    sampled = _newest_sample(database.using)
    seen = {"sleepers": [pid for pid, *_ in sleepers], "sampled_before": sampled}
    if late:
        return
    if sleepers:
        pid, application, address = sleepers[0]
        called = f", {application}" if application else ""
        yield ok(f"One sleeps until something comes: session {pid} ({address}{called}).", **seen)
    elif sampled is not None and sampled >= SAMPLED and settings.SAMPLES_KEPT is not None:
        what = f"No sign of one: none sleeps, and the last sample is from {duration(sampled)} ago."
        yield error(what, f"Start one: {manage_command(database.using, 'run_transfer')}", **seen)
    else:
        what = "None sleeps, and nothing waits in the buffer for long that would show whether one runs."
        yield unknown(what, f"Is one running? {manage_command(database.using, 'run_transfer')}", **seen)


def _newest_sample(using: str) -> timedelta | None:
    """How long ago it was taken."""
    age = ExpressionWrapper(ClockTimestamp() - F("taken_at"), output_field=DurationField())
    return models.Sample.objects.using(using).order_by("-at").values_list(age, flat=True).first()


def workers(database: Database) -> Iterator[Finding]:
    """Does each declared consumer that has something to do get it done?"""
    unserved = [*of_kinds(database, "unserved")]
    yield from unserved
    declared = [one for one in database.standings if one.consumer in {c.name for c in declarations.consumers}]
    if unserved:
        return
    holding, behind = sum(bool(one.holder) for one in declared), sum(bool(one.lag) for one in declared)
    seen = {"consumers": len(declared), "behind": behind, "held": holding}
    yield ok(f"{count(len(declared), 'consumer')}: {holding} in hand, {behind} behind, none left alone.", **seen)


def maintenance(database: Database) -> Iterator[Finding]:
    """Did each step run lately, and work?"""
    age = ExpressionWrapper(ClockTimestamp() - F("finished_at"), output_field=DurationField())
    failing = ExpressionWrapper(ClockTimestamp() - F("failing_since"), output_field=DurationField())
    begun = models.MaintenanceStep.objects.using(database.using).exclude(started_at=NEVER)
    steps = [*begun.annotate(age=age, failing=failing).order_by("name")]
    running = manage_command(database.using, "run_transfer")
    maintain = events_command(database.using, "maintain")
    if not steps:
        yield unknown("It never ran here.", f"It is part of run_transfer; {maintain} runs it once.")
        return
    bad = False
    for step in steps:
        since: timedelta | None = step.age
        seen = {"step": step.name, "finished_before": since, "failing_for": step.failing}
        if step.error:
            bad = True
            lasting = f" for {duration(step.failing)}" if step.failing is not None else ""
            yield error(f"{step.name} fails{lasting}: {step.error}", "Repair the cause; it is tried again.", **seen)
        elif since is None:
            bad = True
            yield warning(f"{step.name} has begun and never ended.", "Look at the log of run_transfer.", **seen)
        elif since > STALE:
            bad = True
            what = f"{step.name} ran {duration(since)} ago the last time."
            yield error(what, f"Is one running? {running}, or {maintain} by cron", **seen)
    if not bad:
        oldest = max(step.age for step in steps)
        yield ok(f"{count(len(steps), 'step')}, none longer ago than {duration(oldest)}.", steps=len(steps))
