"""What a process does and when, noted at the calls that everything goes through: the time line of one event."""

import re
import time
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

import psycopg

from django_events.consuming import leases
from django_events.workers.listening import Listener
from django_events.workers.wakeup_flag import WakeupFlag

Mark = tuple[float, str]  # the moment, and what ended or began then


class Trace:
    """The marks of this process, from all its threads. It replaces methods of psycopg and of the workers."""

    def __init__(self, who: str) -> None:
        self.marks: list[Mark] = []
        self._who = who

    def note(self, what: str) -> None:
        self.marks.append((time.time(), f"{self._who}: {what}"))

    def begin(self) -> None:
        self._follow_statements(psycopg.Cursor)
        self._follow_statements(psycopg.ClientCursor)
        self._follow_commits()
        self._follow_wake_ups()
        self._follow_locks()

    def _follow_statements(self, of: type[psycopg.Cursor[Any]]) -> None:
        execute, trace = of.execute, self

        def noting(self: Any, query: Any, *arguments: Any, **named: Any) -> Any:
            if of is psycopg.Cursor and isinstance(self, psycopg.ClientCursor):
                return execute(self, query, *arguments, **named)  # it was noted by the class below
            begins = self.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            name = _name(query) if self.connection.autocommit or not begins else f"BEGIN, {_name(query)}"
            trace.note(f"sends {name}")
            try:
                return execute(self, query, *arguments, **named)
            finally:
                trace.note(f"has the answer to {name}")

        of.execute = noting  # type: ignore[method-assign, assignment]

    def _follow_commits(self) -> None:
        commit, trace = psycopg.Connection.commit, self

        def noting(self: Any) -> None:
            trace.note("sends COMMIT")
            commit(self)
            trace.note("has the answer to COMMIT")

        psycopg.Connection.commit = noting  # type: ignore[method-assign]

    def _follow_locks(self) -> None:
        begin_with, trace = leases.begin_with, self

        def noting(*arguments: Any, **named: Any) -> bool:
            trace.note("sends BEGIN and the lock")
            locked = begin_with(*arguments, **named)
            trace.note("has the answer to BEGIN and the lock")
            return locked

        leases.begin_with = noting  # type: ignore[attr-defined]

    def _follow_wake_ups(self) -> None:
        tell, wait, trace = Listener._tell, WakeupFlag.wait, self

        def telling(self: Listener, channel: str, payload: str) -> None:
            trace.note("is notified")
            tell(self, channel, payload)

        def waiting(self: WakeupFlag, *arguments: Any) -> bool:
            woken = wait(self, *arguments)
            if woken:
                trace.note("is awake")
            return woken

        Listener._tell, WakeupFlag.wait = telling, waiting  # type: ignore[method-assign]


def _name(query: Any) -> str:
    """What a statement is about: how it begins, or the first of our names in it."""
    text = query.decode() if isinstance(query, bytes) else str(query)
    if found := re.search(r"EXECUTE|take_lock|pg_try_advisory_xact_lock|django_events_publish\w*|PREPARE", text):
        return found[0]
    found = re.search(r"(DELETE FROM|UPDATE|INSERT INTO|FROM) (django_events_\w+)", text)
    return found[0] if found else text.split("(")[0].strip()[:30]


def cycles(marks: list[Mark], events: list[tuple[float, float]]) -> Iterator[list[Mark]]:
    """The marks of each event, from when it was begun to when its handler got it, unless two of them overlap."""
    marks, before = sorted(marks), 0.0
    moments = [moment for moment, _ in marks]
    for began, handled in sorted(events):
        if before < began:
            yield [(began, "begins"), *marks[bisect_left(moments, began) : bisect_left(moments, handled)]]
        before = max(before, handled)
