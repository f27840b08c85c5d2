"""Pause a clock, let it go on, let it tick now, and forget one that no app declares.

    pause_clock("reports.nightly")
    resume_clock("reports.nightly")
    run_clock("reports.nightly", by="ada")
    remove_clock("reports.weekly", reason="no report is read any more")

Transfers may run meanwhile. All are recorded as interventions.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from zoneinfo import ZoneInfo

from django_events import declarations, models, sql
from django_events.exceptions import Refused, UnknownName, did_you_mean
from django_events.log import channel
from django_events.log.clock import publish_ticks
from django_events.models.buffer import writable
from django_events.models.functions import ClockTimestamp
from django_events.operating.interventions import record_of_topic
from django_events.operating.locks import bounded
from django_events.publishing.clocks import next_tick


def pause_clock(
    clock: declarations.DeclaredClock | str, *, reason: str = "", by: str | None = None, using: str | None = None
) -> bool:
    """Let a clock publish nothing more; returns whether it did until now. Repeating it changes nothing.

    Ticks whose time comes meanwhile are not published, also not afterwards. InUse names the session that keeps the
    clock locked.
    """
    using = writable(using)
    with _locked(using, clock) as row:
        if row.paused_at is not None:
            return False
        models.Clock.objects.using(using).filter(pk=row.pk).update(paused_at=ClockTimestamp())
        record_of_topic(using, row.topic, "pause", by=by, reason=reason, clock=row.name)
    return True


def resume_clock(
    clock: declarations.DeclaredClock | str, *, reason: str = "", by: str | None = None, using: str | None = None
) -> bool:
    """Let a paused clock go on with the next tick to come; returns whether it was paused. Repeating changes nothing.

    InUse names the session that keeps the clock locked.
    """
    using = writable(using)
    with _locked(using, clock) as row:
        if row.paused_at is None:
            return False
        following = next_tick(using, row.cron, row.tz)
        models.Clock.objects.using(using).filter(pk=row.pk).update(paused_at=None, next_at=following)
        record_of_topic(using, row.topic, "resume", by=by, reason=reason, clock=row.name)
        sql.fetch(using, sql.shared.notify, channel=channel.WAKE_UP, payload="")
    return True


def run_clock(
    clock: declarations.DeclaredClock | str, *, reason: str = "", by: str | None = None, using: str | None = None
) -> datetime:
    """Publish an event of a clock now, paused or not, beside its ticks; returns the time that the event says.

    Repeating it publishes another one. InUse names the session that keeps the clock locked.
    """
    using = writable(using)
    with _locked(using, clock) as row:
        now = sql.now(using).astimezone(ZoneInfo(row.tz))
        publish_ticks(using, row.pk, [now])
        record_of_topic(using, row.topic, "run", by=by, reason=reason, clock=row.name, tick=now.isoformat())
        sql.fetch(using, sql.shared.notify, channel=channel.WAKE_UP, payload=str(row.topic_id))
    return now


def remove_clock(
    clock: declarations.DeclaredClock | str,
    *,
    reason: str = "",
    by: str | None = None,
    dry_run: bool = False,
    using: str | None = None,
) -> None:
    """Forget a clock that no app declares any more. What it has published stays.

    Refused while an app declares it; UnknownName where there is none. InUse names the session that keeps it locked.
    """
    using = writable(using)
    for declared in declarations.clocks:
        if declared.name == str(clock):
            raise Refused(
                f"Clock {clock} is declared at {declared.declared_at}, so the next migrate would make it again. "
                "Nothing was changed. Remove the declaration first, or pause the clock."
            )
    with _locked(using, clock) as row:
        if not dry_run:
            told = {"cron": row.cron, "tz": row.tz, "type": row.type}
            record_of_topic(using, row.topic, "remove", by=by, reason=reason, clock=row.name, **told)
            row.delete(using=using)


@contextmanager
def _locked(using: str, clock: declarations.DeclaredClock | str) -> Iterator[models.Clock]:
    """A transaction that has the clock's row locked: no transfer publishes its ticks meanwhile."""
    with bounded(using, f"Clock {clock}"):
        rows = models.Clock.objects.using(using)
        row = rows.select_related("topic").select_for_update(of=("self",), no_key=True).filter(name=str(clock)).first()
        if row is None:
            known = rows.values_list("name", flat=True)
            raise UnknownName(f"The database {using!r} has no clock {str(clock)!r}. {did_you_mean(str(clock), known)}")
        yield row
