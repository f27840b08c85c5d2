"""The server: its version, what it is set to, how full it is."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from shutil import disk_usage

from django.db import connections

from django_events import sql
from django_events.checks.databases import OLDEST_POSTGRESQL
from django_events.conf import settings
from django_events.log.inventory import sizes
from django_events.observing.doctoring.database import Database
from django_events.observing.findings import Finding, error, ok, unknown, warning
from django_events.phrases import count, duration

SQL = sql.beside(__name__)

FORGOTTEN = timedelta(minutes=10)
SHORTEST = 1_000  # milliseconds
FULL = 0.9
NAMES = [
    "default_transaction_read_only",
    "fsync",
    "full_page_writes",
    "idle_in_transaction_session_timeout",
    "max_prepared_transactions",
    "statement_timeout",
    "synchronous_commit",
]
GB = 1 << 30


def version(database: Database) -> Iterator[Finding]:
    """Is it new enough?"""
    number: int = connections[database.using].pg_version  # type: ignore[attr-defined]
    named = f"PostgreSQL {number // 10_000}.{number % 10_000}"
    if number < OLDEST_POSTGRESQL:
        yield error(f"{named}; django_events needs 14.1 or newer.", "Upgrade the server.", version=number)
    else:
        yield ok(f"{named}.", version=number)


def writable(database: Database) -> Iterator[Finding]:
    """Is it the primary, with sessions that may write, and with an encoding that has every character?"""
    values = _settings(database)
    *_, standby, encoding = _load(database)
    seen = {"standby": standby, "encoding": encoding}
    if standby:
        what = "The server is a standby: nothing can be published or moved here."
        yield error(what, "Point the alias at the primary, or promote it.", **seen)
    elif values.get("default_transaction_read_only") == "on":
        what = "Transactions are read-only by default: nothing can be published or moved."
        remedy = "RESET default_transaction_read_only for the server, the database, the role or in OPTIONS."
        yield error(what, remedy, **seen)
    if encoding != "UTF8":
        what = f"The database is encoded in {encoding}, which lacks characters that JSON has."
        yield error(what, "Make a database with ENCODING 'UTF8' and restore into it.", **seen)
    elif not standby and values.get("default_transaction_read_only") != "on":
        yield ok(f"It is a primary, writable, in {encoding}.", **seen)


def durability(database: Database) -> Iterator[Finding]:
    """Is what was committed still there after a crash?"""
    values = _settings(database)
    answers = [
        error(
            f"{name} is off: a crash of the machine can destroy the database.",
            f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf()",
            **{name: "off"},
        )
        for name in ("fsync", "full_page_writes")
        if values.get(name) == "off"
    ]
    if values.get("synchronous_commit") == "off":
        what = "synchronous_commit is off: a crash takes back events whose publishers were told that they are there."
        remedy = "Set it to on or local for the role or the database; workers set it for themselves."
        answers.append(warning(what, remedy, synchronous_commit="off"))
    yield from answers or [ok("What was committed outlives a crash.", **values)]


def limits(database: Database) -> Iterator[Finding]:
    """Do limits of the server cut off what is needed, or are there none for what is forgotten?"""
    values = _settings(database)
    _, _, forgotten, *_ = _load(database)
    answers = []
    if 0 < (shortest := int(values.get("statement_timeout", 0))) < SHORTEST:
        what = f"statement_timeout is {shortest} ms, which cuts off migrations and what handlers ask for."
        answers.append(warning(what, "Give the role of workers a longer one.", statement_timeout=shortest))
    if forgotten and values.get("idle_in_transaction_session_timeout") == "0":
        what = f"{count(forgotten, 'session')} idle in a transaction for more than 10 min, and no limit ends them."
        remedy = "ALTER ROLE … SET idle_in_transaction_session_timeout = '5min'"
        answers.append(warning(what, remedy, forgotten=forgotten))
    if values.get("max_prepared_transactions", "0") != "0" and settings.WAKE_UPS is None:
        every = settings.POLL_INTERVAL.total_seconds()
        what = (
            "Transactions can be prepared, so publishers wake no transfer: it looks milliseconds after it found events,"
            f" and every {every:g} s while none come."
        )
        remedy = "Where no transaction that publishes is prepared: DJANGO_EVENTS['WAKE_UPS'] = True"
        answers.append(warning(what, remedy, max_prepared_transactions=int(values["max_prepared_transactions"])))
    vanished = settings.VANISHED_AFTER
    said = f"None that hurts. A transaction of ours whose host vanishes is ended after {duration(vanished)}."
    yield from answers or [ok(said, vanished_after=vanished, **values)]


def capacity(database: Database) -> Iterator[Finding]:
    """Are there connections left, and locks enough for a look at the whole log?"""
    connected, for_all, _, of_logs, locks, *_ = _load(database)
    answers = []
    seen = {"connections": connected, "max_connections": for_all, "tables_and_indexes": of_logs, "locks": locks}
    if connected > for_all * FULL:
        what = f"{connected} of {for_all} connections are taken."
        answers.append(warning(what, "Fewer threads, a pooler, or a higher max_connections.", **seen))
    if of_logs * 2 > locks:
        what = f"The logs have {of_logs:,} tables and indexes, the server's lock table has room for about {locks:,}."
        remedy = "Larger segments or shorter retention, or a higher max_locks_per_transaction."
        answers.append(warning(what, remedy, **seen))
    said = f"{connected} of {for_all} connections, {of_logs:,} tables and indexes of logs for {locks:,} locks."
    yield from answers or [ok(said, **seen)]


def disk(database: Database) -> Iterator[Finding]:
    """How large is it, and is there room? That is seen from the machine of the server only."""
    [[whole, folder, started]] = sql.fetch(database.using, SQL.disk)
    logs = sum(size for _, size in sizes(database.using, [log.topic for log in database.logs]).values())
    seen = {"database": whole, "logs": logs}
    said = f"The database has {_size(whole)}, of which logs {_size(logs)}."
    if folder is None or not _is_here(Path(folder), started):
        yield unknown(f"{said} How much is free can't be seen from here.", "Watch it on the server.", **seen)
        return
    usage = disk_usage(folder)
    seen |= {"free": usage.free, "total": usage.total}
    said += f" {_size(usage.free)} of {_size(usage.total)} are free."
    if usage.free < usage.total * (1 - FULL) and usage.free < max(whole, 10 * GB):
        remedy = "Shorter retention, or more room. A full disk stops every transaction."
        yield (error if usage.free < GB else warning)(said, remedy, **seen)
    else:
        yield ok(said, **seen)


def _is_here(folder: Path, started: int) -> bool:
    """Whether a folder of this machine is the server's: its file says when the server was started."""
    try:
        lines = (folder / "postmaster.pid").read_text(encoding="utf-8", errors="replace").splitlines()
        return abs(int(lines[2]) - started) <= 1
    except (OSError, IndexError, ValueError):
        return False


def _size(number: int) -> str:
    for unit, size in (("GB", GB), ("MB", 1 << 20), ("kB", 1 << 10)):
        if number >= size:
            return f"{number / size:,.1f} {unit}"
    return f"{number} bytes"


def _settings(database: Database) -> dict[str, str]:
    """As sessions of this role begin with them, whatever is set for an examination."""
    return dict(sql.fetch(database.using, sql.shared.server_settings, names=NAMES))


def _load(database: Database) -> tuple[int, int, int, int, int, bool, str]:
    [row] = sql.fetch(database.using, SQL.server_load, age=FORGOTTEN)
    connected, for_all, forgotten, of_logs, locks, standby, encoding = row
    return connected, for_all, forgotten, of_logs, locks, standby, encoding
