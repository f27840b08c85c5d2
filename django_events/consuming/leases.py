"""What a worker has in hand under a token, whatever kind of consumer it is of."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from django.db import DatabaseError, connections, transaction

from django_events import sql
from django_events.consuming.received import ReceivedEvent
from django_events.consuming.subscriptions import Subscription
from django_events.exceptions import LeaseLost

logger = logging.getLogger("django_events.consumer")
SQL = sql.beside(__name__)

END_HOLDER_TIMEOUT = "5s"
PATIENCE, PAUSE = 5.0, 0.01  # seconds: for a session of this process that is about to end


@dataclass(slots=True)
class Lease:
    """A lease, by the database's clock and fenced by a random token: who has another one settles nothing."""

    subscription: Subscription
    token: int
    lost_token: int | None  # of who had it before, and let its time run out
    nested: bool  # in a transaction of the caller's, as in a test
    released: bool = field(default=False, kw_only=True)
    holding: bool = field(default=False, kw_only=True)  # a handler's transaction began with `hold`, and nothing settled
    # What the keeper of the leases and the handler's thread tell each other.
    lost: bool = field(default=False, kw_only=True)
    handling: ReceivedEvent | None = field(default=None, kw_only=True)
    timed_out: ReceivedEvent | None = field(default=None, kw_only=True)
    handling_since: float = field(default=0.0, kw_only=True)

    @property
    def using(self) -> str:
        return self.subscription.using

    @property
    def at_position(self) -> int | None:
        """The position whose lease it is; None where the lease is a row of its own."""
        return None

    @property
    def what(self) -> str:
        """Of what it is, for the log."""
        raise NotImplementedError

    @property
    def may_freeze(self) -> bool:
        """Whether what is settled is in a transaction of the worker's, which ends by another message only."""
        return not self.nested and connections[self.using].in_atomic_block

    def take_lock(self) -> None:
        """As the first statement of a handler's transaction: let whoever takes over find it, or raise LeaseLost.

        After a handler closed its connection, the session of that has the lock until the server has noticed.
        """
        self.holding = True
        deadline = time.monotonic() + PATIENCE
        while not self._try_hold():
            if not self._is_ours():
                raise self.lose()
            if (why := self._held_elsewhere(late=time.monotonic() > deadline)) is not None:
                raise self.lose(why)
            time.sleep(PAUSE)

    def lose(self, why: str = "it was taken over or rewound") -> LeaseLost:
        """Somebody else has it now: the error to raise, so that nothing of this turn is committed."""
        self.lost = True
        return LeaseLost(
            f"Consumer {self.subscription} lost its lease of {self.what}: {why}. "
            "What was handled meanwhile is not settled."
        )

    def refuse_unfound(self, found: bool | None) -> None:
        """LeaseLost where a settling transaction has not got the lock of its lease: somebody takes over just now.

        Where a handler ended the transaction that had it, that is what is wrong, and the caller knows.
        """
        if found is False and not self.holding:
            raise self.lose()

    def _try_hold(self) -> bool:
        [[had, *_]] = sql.fetch(self.using, SQL.hold, token=self.token)
        return bool(had)

    def _is_ours(self) -> bool:
        held = sql.fetch(self.using, sql.shared.held, consumer_ids=[self.subscription.consumer_id], partition=None)
        return any(token == self.token for token, *_ in held)

    def _held_elsewhere(self, *, late: bool) -> str | None:
        """What has the lock and won't let it go soon: a prepared transaction never does by itself."""
        for pid, prepared in sql.fetch(self.using, SQL.holder_of_lease, token=self.token):
            if pid is None:
                end = f"ROLLBACK PREPARED {sql.quoted(prepared)}"
                return f"the prepared transaction {prepared!r} has its lock. If a handler prepared it, undo it: {end}"
            if late:
                return f"the session {pid}, which was closed, has its lock still, and is ended by who takes over"
        return "its lock is not to be had" if late else None


def give_up(using: str, tokens: Sequence[int]) -> set[int]:
    """End leases without settling, of partitions or hands, so that nobody has to wait for their time to be over.

    Returns the tokens of those that were still leases.
    """
    if not tokens:
        return set()
    return {token for (token,) in sql.fetch(using, SQL.give_up, tokens=list(tokens))}


def end_holder(using: str, token: int) -> None:
    """End the transaction of a worker that lost this lease, and wait for a while until its locks are gone.

    Where this role may not end it, the token still keeps it from settling.
    """
    with sql.batch(using, lock_timeout=END_HOLDER_TIMEOUT):
        try:
            with transaction.atomic(using):
                for pid, told in sql.fetch(using, sql.shared.end_holder, token=token):
                    done = "is ended" if told else "is gone"
                    logger.warning("The frozen worker's connection, pid %d, %s.", pid, done)
                sql.fetch(using, SQL.wait_for_holder, token=token)
        except DatabaseError as error:
            if sql.kind_of(error) not in (sql.ErrorKind.LOCKED, sql.ErrorKind.FORBIDDEN, sql.ErrorKind.ROWS_HIDDEN):
                raise
            logger.error("The frozen worker's connection can't be ended. %s", sql.said(error))
