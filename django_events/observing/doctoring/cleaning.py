"""Dead rows: who keeps them, whether autovacuum comes for them, and how far transaction ids are."""

from collections.abc import Iterator
from datetime import datetime

from django_events import sql
from django_events.observing.doctoring.database import Database
from django_events.observing.doctoring.from_status import of_kinds
from django_events.observing.findings import Finding, error, ok, warning
from django_events.phrases import moment

SQL = sql.beside(__name__)

# What the migration gives to tables whose rows come and go, as far as a change of it hurts.
TUNED = {
    "django_events_bufferedevent": {"autovacuum_vacuum_threshold": "5000", "vacuum_truncate": "off"},
    "django_events_scheduledevent": {"autovacuum_vacuum_threshold": "5000", "vacuum_truncate": "off"},
    "django_events_dedupkey": {"autovacuum_vacuum_threshold": "5000", "vacuum_truncate": "off"},
    "django_events_delivery": {"autovacuum_vacuum_threshold": "5000", "vacuum_truncate": "off"},
    "django_events_deliverylease": {"autovacuum_vacuum_threshold": "1000", "vacuum_truncate": "off"},
    "django_events_position": {"autovacuum_vacuum_threshold": "1000", "vacuum_truncate": "off"},
}
OFF = {"off", "false", "no", "0", "f", "n"}
FAR = 1_000_000_000  # transaction ids; at 2,100 million the server takes no more


def snapshots(database: Database) -> Iterator[Finding]:
    """Is a transaction, a prepared one or a slot so old that dead rows pile up?"""
    found = [*of_kinds(database, "snapshot")]
    yield from found or [ok("No transaction, prepared transaction or slot is older than an hour.")]


def bloat(database: Database) -> Iterator[Finding]:
    """Have they piled up already?"""
    found = [*of_kinds(database, "bloat")]
    yield from found or [ok("No table is full of dead rows.")]


def autovacuum(database: Database) -> Iterator[Finding]:
    """Is it on, for the server and for each table, and tuned as the migration did?"""
    names = ["autovacuum", "track_counts"]
    values: dict[str, str] = dict(sql.fetch(database.using, sql.shared.server_settings, names=names))
    answers = [
        error(f"{name} is off, so no dead row is ever removed.", f"ALTER SYSTEM SET {name} = on", **{name: value})
        for name, value in values.items()
        if value == "off"
    ]
    newest: datetime | None = None
    for table, options, cleaned_at in sql.fetch(database.using, SQL.care, tables=list(TUNED)):
        answers += _of_table(table, dict(option.split("=", 1) for option in options))
        newest = max(filter(None, [newest, cleaned_at]), default=None)
    said = f"the last vacuum was at {moment(newest)}" if newest else "no table has needed it yet"
    yield from answers or [ok(f"It is on for every table, and {said}.", vacuumed_at=newest)]


def _of_table(table: str, options: dict[str, str]) -> Iterator[Finding]:
    if options.get("autovacuum_enabled", "on") in OFF:
        remedy = f"ALTER TABLE {table} RESET (autovacuum_enabled)"
        yield error(f"It is off for {table}.", remedy, table=table)
    changed = {
        name: f"{options.get(name, 'unset')} instead of {value}"
        for name, value in TUNED.get(table, {}).items()
        if options.get(name) != value
    }
    if changed:
        told = ", ".join(f"{name} is {how}" for name, how in changed.items())
        values = ", ".join(f"{name} = {TUNED[table][name]}" for name in changed)
        yield warning(f"{table} is not tuned as it was made: {told}.", f"ALTER TABLE {table} SET ({values})")


def wraparound(database: Database) -> Iterator[Finding]:
    """Is the server close to the end of its transaction ids?"""
    [[ours, whole]] = sql.fetch(database.using, SQL.transaction_ids)
    seen = {"tables": ours, "database": whole}
    if max(ours or 0, whole) > FAR:
        oldest = max(ours or 0, whole)
        what = f"{oldest:,} transaction ids since the oldest that is kept; the server stops at 2,100 million."
        yield error(what, "End what is old (snapshots above), then: VACUUM FREEZE", **seen)
    else:
        yield ok(f"{whole:,} of 2,100 million transaction ids since the oldest that is kept.", **seen)
