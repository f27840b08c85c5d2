"""Leases: what a worker may settle under a token, of a stream or a queue alike; and how a lost lease is taken away."""

import logging
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from django.db import DatabaseError, connections, transaction

from django_events import models, sql
from django_events.consuming.subscriptions import Subscription
from django_events.exceptions import LeaseLost
from django_events.received import ReceivedEvent
from django_events.sql.beginning import begin_with

logger = logging.getLogger("django_events.consumer")
SQL = sql.beside(__name__)

END_HOLDER_TIMEOUT = "5s"
PATIENCE, PAUSE = 5.0, 0.01  # seconds, for a closed session of this process whose lock the server still has


@dataclass(slots=True)
class Lease:
    """A right to settle events of one consumer, for some time by the database's clock.

    It is fenced by a random token, which the leased rows have too. A worker that takes the lease over, or a rewind,
    changes the token in the rows. From then on, what this worker settles under its old token changes nothing, and
    LeaseLost says so. A `LeasedPartition` is of a stream, `ClaimedDeliveries` are of a queue.
    """

    subscription: Subscription
    token: int
    lost_token: int | None  # of the worker whose lease ran out, where this one took it over
    nested: bool  # in a transaction of the caller's, as in a test
    released: bool = field(default=False, kw_only=True)
    lock_taken: bool = field(default=False, kw_only=True)  # in the open transaction, by `take_lock`
    # Written by the thread that renews leases, or read by it while the handler's thread works.
    lost: bool = field(default=False, kw_only=True)
    handling: ReceivedEvent | None = field(default=None, kw_only=True)
    timed_out: ReceivedEvent | None = field(default=None, kw_only=True)
    handling_since: float = field(default=0.0, kw_only=True)

    @property
    def using(self) -> str:
        return self.subscription.using

    @property
    def at_position(self) -> int | None:
        """The position whose row has the lease; None where the lease is a row of its own."""
        return None

    @property
    def what(self) -> str:
        """What is leased, for log lines and errors: `partition 3`, `12 deliveries`."""
        raise NotImplementedError

    @property
    def fields(self) -> dict[str, Any]:
        """What a log record is about, for `extra`."""
        return self.subscription.fields

    def fields_of(self, event: ReceivedEvent) -> dict[str, Any]:
        """The same, about an event of it."""
        about = {"event_id": event.id, "event_type": event.type, "attempt": event.attempt}
        return {**self.fields, "partition": event.partition, **about}

    @property
    def where(self) -> str:
        """At which event it is, for errors: `behind event 7`."""
        raise NotImplementedError

    @property
    def reached(self) -> int | None:
        """Up to which id its partition is settled; None where that isn't known."""
        return None

    @property
    def ended(self) -> bool:
        """Whether all is settled that was there when it was last looked at, and nothing waits."""
        return False

    @property
    def commits_separately(self) -> bool:
        """Whether the COMMIT is a message of its own: a worker that freezes before it keeps its rows locked."""
        return not self.nested and connections[self.using].in_atomic_block

    def reading_on(self) -> AbstractContextManager[object]:
        """Meanwhile the next events are read, where that can be. The block must not use the connection."""
        return nullcontext()

    @contextmanager
    def no_time_of_the_handler(self) -> Iterator[None]:
        """Let the block be none of the time that the handler may take: it waits for the server, under a lease."""
        handling, began, self.handling = self.handling, time.monotonic(), None
        try:
            yield
        finally:
            self.handling_since += time.monotonic() - began
            self.handling = handling

    def release(self) -> None:
        """End the lease, and let other workers have what is not settled."""
        raise NotImplementedError

    def take_lock(self) -> None:
        """Take the advisory lock of this lease, as the first statement of a handler's transaction, or raise LeaseLost.

        A worker that takes the lease over finds a frozen transaction by this lock, and ends it. After a handler closed
        its connection, the server may need a moment to release the lock, so it is tried for `PATIENCE` seconds.
        """
        self.lock_taken = True
        deadline = time.monotonic() + PATIENCE
        while not self._try_lock():
            if not self._is_ours():
                raise self.lose()
            if (why := self._locked_by(late=time.monotonic() > deadline)) is not None:
                raise self.lose(why)
            time.sleep(PAUSE)

    def lose(self, why: str = "it was taken over or rewound") -> LeaseLost:
        """Mark the lease as lost; returns the error to raise, so that nothing of this turn is committed."""
        self.lost = True
        return LeaseLost(
            f"Consumer {self.subscription} lost its lease of {self.what}: {why}. "
            "What was handled meanwhile is not settled."
        )

    def refuse_unlocked(self, locked: bool | None) -> None:
        """LeaseLost where a settling transaction did not get the lock of its lease: a takeover is under way.

        Where a handler ended the transaction that had taken the lock, the caller reports that instead.
        """
        if locked is False and not self.lock_taken:
            raise self.lose()

    def _try_lock(self) -> bool:
        return begin_with(self.using, SQL.take_lock, token=self.token)

    def _is_ours(self) -> bool:
        leases = sql.fetch(self.using, sql.shared.leases, consumer_ids=[self.subscription.consumer_id], partition=None)
        return any(token == self.token for token, *_ in leases)

    def _locked_by(self, *, late: bool) -> str | None:
        """What has the lock and will not release it soon; None to try again. A prepared transaction never does."""
        for pid, prepared in sql.fetch(self.using, SQL.lock_holder, token=self.token):
            if pid is None:
                end = f"ROLLBACK PREPARED {sql.quoted(prepared)}"
                return f"the prepared transaction {prepared!r} has its lock. If a handler prepared it, undo it: {end}"
            if late:
                return f"session {pid}, whose connection was closed, still has its lock; the next worker ends it"
        return "its lock can't be taken" if late else None


def give_up(using: str, tokens: Sequence[int]) -> set[int]:
    """End leases without settling, so that other workers need not wait until they run out.

    The next worker goes on carefully, as after a crash. Returns the tokens of those that were still leases.
    """
    if not tokens:
        return set()
    return {token for (token,) in sql.fetch(using, SQL.give_up, tokens=list(tokens))}


def void_token(position: models.Position) -> None:
    """Void the token of a position whose lease is over, before the row is saved.

    A worker died or froze with it. It can't settle under that token any more, which would move the position back, and
    that there is one still tells the next worker to handle what was in hand one by one.
    """
    if position.token is not None:
        position.token = secrets.randbits(63)


def end_holder(using: str, token: int) -> None:
    """End the connection of the worker that lost this lease, and wait for a while until its locks are gone.

    Where this role may not end it, the worker still can't settle: its token is void.
    """
    with sql.batch(using, lock_timeout=END_HOLDER_TIMEOUT):
        try:
            with transaction.atomic(using):
                for pid, ended in sql.fetch(using, sql.shared.end_holder, token=token):
                    what = "is ended" if ended else "is gone"
                    logger.warning("The frozen worker's connection, pid %d, %s.", pid, what)
                sql.fetch(using, SQL.wait_for_holder, token=token)
        except DatabaseError as error:
            if sql.kind_of(error) not in (sql.ErrorKind.LOCKED, sql.ErrorKind.FORBIDDEN, sql.ErrorKind.ROWS_HIDDEN):
                raise
            logger.error("The frozen worker's connection can't be ended. %s", sql.said(error))
