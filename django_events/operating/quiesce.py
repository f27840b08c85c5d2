"""Make a consumer stand still while its positions change: the operator waits for workers, and they begin nothing new.

with standing_still(using, rows, partition, timedelta(seconds=10), verb="rewind"):
    ...  # no worker handles these partitions, and none begins to
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType

from django.db import OperationalError, connections

from django_events import declarations, models, sql
from django_events.consuming.leases import end_holder
from django_events.exceptions import InUse, Refused, UnknownName
from django_events.models.functions import ClockTimestamp
from django_events.outcomes import Move
from django_events.sql.blocking import blocker_of, watched

SQL = sql.beside(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.2
HOLD = timedelta(seconds=5)


class Patience:
    """Wait for the events in hand, and keep workers from claiming more meanwhile.

    Without that, a worker with a backlog would claim again before the operator gets the lock.
    """

    def __init__(self, using: str, rows: Sequence[models.Consumer], wait: timedelta, *, verb: str) -> None:
        self.using, self.rows, self.wait, self.verb = using, rows, wait, verb
        self.alone = not connections[
            using
        ].in_atomic_block  # workers don't see the hold of an open transaction, so waiting would be in vain
        self._deadline, self._pause = time.monotonic() + wait.total_seconds(), FIRST_PAUSE
        self._consumers = models.Consumer.objects.using(using).filter(pk__in=[row.pk for row in rows])
        self._holding = False

    def __enter__(self) -> "Patience":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._holding:
            self._consumers.update(held_until=None)

    def hold(self) -> None:
        """Have the workers leave the consumers alone for some seconds."""
        if self.alone:
            self._holding = True
            self._consumers.update(held_until=ClockTimestamp() + HOLD)

    def wait_for(self, holder: str, *, locked: bool = False) -> None:
        """Sleep, so that the holder of the lease or lock can finish; InUse when the time is over."""
        if time.monotonic() >= self._deadline or not self.alone:
            what = "locked" if locked else "handling events"
            how = f"still {what} after {self.wait.total_seconds():.0f} s" if self.alone else f"{what} now"
            way = (
                "Try again, or wait longer."
                if self.alone
                else f"Outside of a transaction, {self.verb} waits for it to finish."
            )
            raise _held(self.rows[0], f"is {how}, by {holder}", way)
        time.sleep(self._pause)
        self._pause = min(self._pause * 2, LONGEST_PAUSE)


@contextmanager
def standing_still(
    using: str,
    rows: Sequence[models.Consumer],
    partition: int | None,
    wait: timedelta,
    *,
    verb: str,
    with_topics: bool = True,
) -> Iterator[None]:
    """A transaction in which no worker handles these partitions, and none begins to.

    With `with_topics`, no event enters their logs either, and queues are not filled.
    """
    ids = [row.pk for row in rows]
    with Patience(using, rows, wait, verb=verb) as patience:
        while True:
            patience.hold()
            busy = [holder for _, holder, leased in _leases(using, ids, partition) if leased]
            if not busy:
                standing = False
                try:
                    with sql.committed(using), sql.batch(using), watched(using):
                        queues = [row for row in rows if row.mode == "queue"]
                        # Before the heads: a claim in a site's transaction may need one of them, and would deadlock.
                        sql.fetch(using, sql.shared.stand_still, consumer_ids=[row.pk for row in queues])
                        for row in rows if with_topics else []:
                            sql.fetch(using, sql.shared.lock_head, topic_id=row.topic_id)
                        for row in queues:  # keeps workers from filling it
                            lock(using, row)
                        sql.fetch(using, sql.shared.lock_positions, consumer_ids=ids, partition=partition)
                        leases = sql.fetch(using, sql.shared.leases, consumer_ids=ids, partition=partition)
                        busy = [holder for _, holder, leased in leases if leased]
                        if not busy:
                            standing = True
                            for row in queues:
                                sql.fetch(using, SQL.give_back, consumer_id=row.pk)
                            yield
                            return
                except OperationalError as error:
                    if sql.kind_of(error) is not sql.ErrorKind.LOCKED:
                        raise
                    if standing:
                        raise locked(rows[0], error) from error
                    patience.wait_for(blocker_of(error), locked=True)
            if busy:
                patience.wait_for(busy[0])


def lock(using: str, row: models.Consumer) -> None:
    """Lock the row of a queue consumer. Always before its positions, deliveries and dead letters: no deadlock."""
    fresh = models.Consumer.objects.using(using).select_for_update(no_key=True).filter(pk=row.pk).first()
    if fresh is None:
        raise gone(row)
    row.live, row.filled_until = fresh.live, fresh.filled_until


def locked(row: models.Consumer, error: OperationalError) -> InUse:
    """The lock of a session that has no lease is in the way."""
    return _held(row, f"is locked, by {blocker_of(error)}", "Try again.")


def _held(row: models.Consumer, reason: str, way: str) -> InUse:
    error = InUse(f"Consumer {row} {reason}. Nothing was changed. {way}")
    error.reason = reason
    return error


def gone(row: models.Consumer) -> UnknownName:
    """The error for a consumer that was unregistered since it was found."""
    return UnknownName(f"Consumer {row} was unregistered or registered anew in this moment. Nothing was changed.")


def refuse_queries(rows: Sequence[models.Consumer]) -> None:
    """Refused if one of them is a streaming query of Spark."""
    for row in rows:
        if row.mode == "spark":
            raise Refused(
                f"Consumer {row} is a streaming query of Spark, and its checkpoint decides what it reads. Nothing was "
                "changed. Stop the query, or start it with another checkpoint."
            )


def refuse_derived(rows: Sequence[models.Consumer], verb: str) -> None:
    """Refused if one of them keeps a table true: events that come again would count twice there."""
    names = {row.name for row in rows}
    for declared in declarations.consumers:
        if declared.derived and declared.name in names:
            raise Refused(
                f"Consumer {declared} keeps a table, in which events that come again would count twice: to {verb} is "
                f"not for it. Nothing was changed. To fold all of its log anew: manage.py events rebuild {declared}"
            )


def refuse_going_back(rows: Sequence[models.Consumer], moves: Sequence[Move]) -> None:
    """The same, if one of them would get events again. It may leave some out."""
    if any(move.after < move.before for move in moves):
        refuse_derived(rows, "rewind")


def _leases(using: str, consumer_ids: list[int], partition: int | None) -> list[tuple[int, str, bool]]:
    """The holders of leases on these positions. Sessions whose lease is over are ended, so that they hold no lock."""
    rows = sql.fetch(using, sql.shared.leases, consumer_ids=consumer_ids, partition=partition)
    for token, _, leased in rows:
        if not leased:
            end_holder(using, token)
    return [(token, holder, leased) for token, holder, leased in rows]
