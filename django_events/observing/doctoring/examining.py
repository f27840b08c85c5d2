"""All examinations, one after the other. One that fails is unknown, and says why; the others go on."""

from collections.abc import Callable, Iterator

from django.db import DatabaseError, InterfaceError

from django_events import sql
from django_events.observing.doctoring import cleaning, from_status, logs, processes, reach, schema, server, site
from django_events.observing.doctoring.database import LIMITS, Database
from django_events.observing.findings import WORST_FIRST, Finding, unknown
from django_events.sql.blocking import blocker_of, watched
from django_events.sql.search_path import tables_missing

Examination = Callable[[Database], Iterator[Finding]]

MAY_LOOK = "To see it, use a role of readers or operators: manage.py events grants --role reader"

ALL: dict[str, Examination] = {
    "migrations": schema.migrations,
    "functions": schema.functions,
    "triggers": schema.triggers,
    "rights": schema.rights,
    "trust": schema.trust,
    "topics": site.topics,
    "consumers": site.consumers,
    "settings": site.settings,
    "transfer": processes.transfer,
    "workers": processes.workers,
    "maintenance": processes.maintenance,
    "segments": logs.room,
    "tables": logs.tables,
    "locks": logs.locks,
    "snapshots": cleaning.snapshots,
    "autovacuum": cleaning.autovacuum,
    "bloat": cleaning.bloat,
    "wraparound": cleaning.wraparound,
    "version": server.version,
    "writable": server.writable,
    "durability": server.durability,
    "limits": server.limits,
    "capacity": server.capacity,
    "disk": server.disk,
    "clock": reach.clock,
    "pooler": reach.pooler,
    "status": from_status.others,
}


def examine(using: str) -> list[Finding]:
    """Look at one database and at this process; the worst comes first. Nothing is written.

    Each examination is a short transaction of its own. A database that goes away raises.
    """
    database = Database(using)
    found = [one._replace(kind=name) for name, examination in ALL.items() for one in _findings(examination, database)]
    return sorted(found, key=lambda one: WORST_FIRST.index(one.severity))


def _findings(examination: Examination, database: Database) -> list[Finding]:
    try:
        with sql.batch(database.using, **LIMITS), watched(database.using):
            return [*examination(database)]
    except Exception as error:
        if isinstance(error, DatabaseError | InterfaceError) and sql.kind_of(error) is sql.ErrorKind.LOST:
            raise
        if isinstance(error, DatabaseError) and sql.kind_of(error) is sql.ErrorKind.TABLE_GONE:
            return [unknown(tables_missing(database.using))]
        if isinstance(error, DatabaseError) and sql.kind_of(error) is sql.ErrorKind.LOCKED:
            return [unknown(f"What it looks at is locked, by {blocker_of(error)}: see locks.")]
        if isinstance(error, DatabaseError) and sql.kind_of(error) is sql.ErrorKind.ROWS_HIDDEN:
            return [unknown(f"Row-level security hides rows of it from this role: {sql.said(error).splitlines()[0]}.")]
        if isinstance(error, DatabaseError) and sql.kind_of(error) is sql.ErrorKind.FORBIDDEN:
            return [unknown(f"This role may not look: {sql.said(error).splitlines()[0]}.", MAY_LOOK)]
        said = sql.said(error).splitlines() or [""]
        return [unknown(f"It failed: {type(error).__name__}: {said[0]}")]
