"""Which session keeps this one waiting for a lock. A session that waits can't ask, so a second one does.

with watched(using):
    ...  # waits for a lock, and fails because it is not granted

blocker_of(error)  # session 4711 of shop (psql, 10.0.0.7) since 2026-11-23 18:00:00Z, idle in transaction after UPDATE
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from threading import Event, Thread
from typing import NamedTuple

from django.db import DatabaseError, Error, connections

from django_events import sql
from django_events.phrases import moment

SQL = sql.beside(__name__)

AFTER, EVERY = 0.1, 0.1  # seconds: what is done sooner costs no second connection
LONGEST = 2.0  # seconds that the second connection may take to be there


class Session(NamedTuple):
    """A session, or a prepared transaction: then without a pid. Of the sessions of others a role may see less."""

    pid: int | None
    name: str
    role: str
    application: str
    address: str
    state: str
    since: datetime | None
    does: str

    @property
    def called(self) -> str:
        """`session 4711 of shop (worker, 10.0.0.7)`."""
        if self.pid is None:
            return f"prepared transaction {self.name!r} of {self.role}" if self.name else "a prepared transaction"
        known = ", ".join(filter(None, [self.application, self.address]))
        return f"session {self.pid} of {self.role or 'another role'}" + (f" ({known})" if known else "")

    @property
    def busy(self) -> str:
        """` since 2026-11-23 18:00:00Z, idle in transaction after UPDATE`, as far as it can be seen."""
        since = f" since {moment(self.since)}" if self.since else ""
        doing = f"{self.state} after {self.does}" if self.does and self.state.startswith("idle") else self.does
        return f"{since}, {doing}" if doing else since

    @property
    def ending(self) -> str:
        """What ends it, in SQL."""
        if self.pid is None:
            name = sql.quoted(self.name)
            return f"COMMIT PREPARED {name}, or ROLLBACK PREPARED {name}"
        return f"SELECT pg_terminate_backend({self.pid})"

    def __str__(self) -> str:
        return f"{self.called}{self.busy}"


def blocker_of(error: BaseException) -> str:
    """Whom a statement waited for that failed within `watched`, as far as that could be seen."""
    return str(getattr(error, "blocked_by", None) or "another session")


@contextmanager
def watched(using: str, *, after: float = AFTER) -> Iterator[None]:
    """Within a transaction: an error of the database knows whom its statement waited for, see `blocker_of`.

    A second session begins to look `after` so many seconds, which must be well within the timeout of locks.
    """
    [[pid]] = sql.fetch(using, SQL.backend)
    seen: list[Session] = []
    over = Event()
    watching = Thread(target=_watch, args=(using, pid, seen, over, after), name="django_events blocking", daemon=True)
    watching.start()
    try:
        yield
    except DatabaseError as error:
        if seen:
            error.blocked_by = seen[-1]  # type: ignore[attr-defined]
        raise
    finally:
        over.set()
        watching.join(LONGEST)


def blockers(using: str, pid: int) -> list[Session]:
    """Those for which a session waits now, the longest first."""
    return [Session(*row) for row in sql.fetch(using, SQL.blockers.on(told=sql.shared.session_as_told), pid=pid)]


def _watch(using: str, pid: int, seen: list[Session], over: Event, after: float) -> None:
    if over.wait(after):
        return
    try:
        while not over.is_set():
            seen += blockers(using, pid)[:1]
            over.wait(EVERY)
    except Error:  # too many connections, for example: then it stays unknown
        return
    finally:
        connections[using].close()  # this thread's own
