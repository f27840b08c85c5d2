"""What an inbox writes: the events of its messages and how far it is, in one transaction.

    row = find(using, inbox)
    if not take_in(using, row, topic, batch):
        ...                        # the position is another one by now: nothing was written

The row of the inbox is locked and compared in the same transaction. So of two workers that read the same messages one
publishes them, and the other one publishes nothing. So does one that was frozen, or one whose COMMIT had no answer and
that tries again.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from django.db import DatabaseError, transaction

from django_events import sql, telemetry
from django_events.bridges.inboxes.frozen_twins import WRITES
from django_events.bridges.inboxes.sources import CopyBeginning, InboxMessage, Places
from django_events.declarations import DeclaredInbox, DeclaredTopic
from django_events.exceptions import NotReady
from django_events.log.mirroring import WRITING, CopiedRows, MirroredLog
from django_events.publishing.encoding import BufferRow, Encoded
from django_events.publishing.storing import copy, explained, store

SQL = sql.beside(__name__)
# A site's limit is meant for pages: a batch that it cuts off is never taken in. Waiting for a lock is another matter.
UNLIMITED = {"statement_timeout": "0", "lock_timeout": "5s", **WRITES}
NOTING = {"lock_timeout": "1s"}


class InboxRow(NamedTuple):
    """What the database says of an inbox."""

    id: int
    position: Places | None
    start: str
    generation: int  # how often it was begun anew or paused
    is_paused: bool
    source: str  # of which the position is
    topic_id: int
    topic: str
    waits_for: str  # what of this database, in a sentence; empty if it doesn't

    @property
    def expected(self) -> str | None:
        """The position as statements compare it: nothing is written from another one."""
        return None if self.position is None else json.dumps(self.position)


@dataclass(kw_only=True)
class Intake:
    """What is to be written together. All but its events is known when those have been iterated."""

    begins_at: Places
    events: Sequence[Encoded] | Iterator[BufferRow] = ()
    last: dict[str, InboxMessage] = field(default_factory=dict)  # by log, the last message that is taken in
    passed: Places = field(default_factory=dict)
    published: int = 0
    left_out: int = 0
    unread: list[str] = field(default_factory=list)  # addresses of messages whose events say that they can't be read
    gone: int = 0
    lag: int | None = None
    begins: CopyBeginning | None = None  # where the log of a mirror begins
    rows: CopiedRows | None = None  # of a mirror, in the place of events

    @cached_property
    def position(self) -> Places:
        """Where the inbox is when all of it is taken in."""
        return {**self.begins_at, **{log: one.place_behind for log, one in self.last.items()}, **self.passed}

    def drop(self, events: int) -> None:
        """So many are not published: the dedup keys that `transform` gave them are taken."""
        self.published -= events
        self.left_out += events

    @property
    def taken(self) -> int:
        return self.published - len(self.unread) + (len(self.rows.rows) if self.rows is not None else 0)


def find(using: str, inbox: DeclaredInbox) -> InboxRow:
    """The row of an inbox; NotReady where it isn't registered."""
    for inbox_id, position, *others in sql.fetch(using, SQL.find, name=inbox.name):
        return InboxRow(inbox_id, None if position is None else json.loads(position), *others)
    raise NotReady(
        f"Inbox {inbox.name!r} is declared at {inbox.declared_at}, and not registered in the database {using!r}. "
        f"Run: manage.py migrate --database {using}"
    )


def take_in(using: str, row: InboxRow, topic: DeclaredTopic, intake: Intake) -> bool:
    """Publish events and move the position from where the row has it, or do nothing; returns whether it was there."""
    events = intake.events
    with (
        telemetry.publishing(topic.name, events=intake.published),
        explained(using, topic),
        sql.committed(using, **UNLIMITED),
    ):
        # The position comes last: a worker that freezes in its COPY, which no limit of the server ends, has nothing
        # locked that others wait for.
        if isinstance(events, Iterator):
            copy(using, topic, events)
        elif events:
            intake.drop(len(store(using, topic, events)))
        moved = _advance(using, row, intake)
        if not moved:
            transaction.set_rollback(True, using)
    return moved


def copy_in(using: str, row: InboxRow, log: MirroredLog, intake: Intake) -> bool:
    """The same for a mirror, whose events go straight into the log."""
    with sql.committed(using, **WRITING, **WRITES):
        moved = _advance(using, row, intake)
        if moved and intake.begins is not None:
            log.begin(intake.begins.id, intake.begins.numbers)
        if moved and intake.rows is not None:
            log.append(intake.rows)
    return moved


def _advance(using: str, row: InboxRow, intake: Intake) -> bool:
    moved = sql.fetch(
        using,
        SQL.advance,
        inbox_id=row.id,
        generation=row.generation,
        expected=row.expected,
        source=row.source,
        topic_id=row.topic_id,
        position=json.dumps(intake.position),
        taken=intake.taken,
        left_out=intake.left_out,
        unreadable=len(intake.unread),
        gone=intake.gone,
        lag=intake.lag,
    )
    return bool(moved)


def note_served(using: str, row: InboxRow, lag: int | None) -> bool:
    """Write down that a worker reads the source, and that nothing is wrong; returns whether the row is still so."""
    with _noting(using) as noted:
        noted += sql.fetch(
            using, SQL.served, inbox_id=row.id, generation=row.generation, expected=row.expected, lag=lag
        )
    return bool(noted)


def note_failure(using: str, row: InboxRow, error: str) -> bool:
    """Write down why nothing can be taken in, and keep since when; returns whether the row is still so."""
    with _noting(using) as noted:
        noted += sql.fetch(
            using, SQL.fail, inbox_id=row.id, generation=row.generation, expected=row.expected, error=error
        )
    return bool(noted)


def note_waiting(using: str, row: InboxRow, reason: str) -> bool:
    """Write down what it waits for, and keep since when; returns whether the row is still so."""
    with _noting(using) as noted:
        noted += sql.fetch(
            using, SQL.wait, inbox_id=row.id, generation=row.generation, expected=row.expected, reason=reason
        )
    return bool(noted)


@contextmanager
def _noting(using: str) -> Iterator[sql.Rows]:
    """Where another process has the lock of the row, it takes in a batch, or is frozen: then there is no note of this
    one, and the row counts as it was.
    """
    noted: sql.Rows = []
    try:
        with sql.committed(using, **NOTING):
            yield noted
    except DatabaseError as error:
        if sql.kind_of(error) is not sql.ErrorKind.LOCKED:
            raise
        noted.append(())
