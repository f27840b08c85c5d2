"""Claiming the partitions of a stream consumer: each is leased by one worker at a time.

    lease = claim(subscription, position_id, partition, holder="host:7")

A worker that serves a partition again and again prepares a statement that leases it and reads its next events at once.
"""

import secrets
from datetime import UTC, datetime, timedelta

from django.db import DatabaseError, connections

from django_events import sql
from django_events.consuming.leases import end_holder
from django_events.consuming.reading import are_whole, light
from django_events.consuming.streams.batches import ReadAhead, reach
from django_events.consuming.streams.leased_partitions import LeasedPartition
from django_events.consuming.subscriptions import Subscription
from django_events.log.segments import Segment
from django_events.sql.prepared import SharedSession

SQL = sql.beside(__name__)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CLAIMED = 9  # columns of `claim_and_read` before those of an event


def claim(
    subscription: Subscription,
    position_id: int,
    partition: int,
    min_position: int = 0,
    *,
    holder: str,
    async_commit: bool = True,
) -> LeasedPartition | None:
    """Lease a partition; None if another worker has it, it has to wait, or it has nothing to do.

    With `async_commit` the claim may not be on disk yet when this returns, so a crash of the server may undo it. A
    partition whose lease has run out is taken over. `min_position` is a bound for the planner: no position is below it,
    unless it was rewound.
    """
    nested = connections[subscription.using].in_atomic_block
    token = secrets.randbits(63)
    for _ in range(2):
        rows = sql.fetch_whole(
            subscription.using,
            SQL.claim.on(
                redrive_due=subscription.redrive_due,
                log=subscription.log,
                topic_id=subscription.topic_id,
                min_position=min_position,
            ),
            position_id=position_id,
            layout=subscription.layout,
            revision=subscription.revision,
            token=token,
            lease=subscription.consumer.lease,
            holder=holder[:200],
            async_commit=async_commit and not nested,
        )
        # A worker that froze just before its COMMIT keeps the row locked until its connection is ended.
        if rows or nested or not _end_frozen_settler(subscription.using, position_id):
            break
    if not rows:
        return None
    position, number, attempted, attempts, careful_until, lost_token, address, clock = rows[0][:8]
    redrives, last_id, barrier, _ = rows[0][8:]
    return LeasedPartition(
        subscription,
        token,
        lost_token,
        nested,
        position_id,
        partition,
        position,
        number,
        attempted,
        attempts,
        careful_until,
        address,
        clock,
        redrives,
        barrier,
        after_crash=lost_token is not None,
        readable_until=last_id or 0,
    )


class PreparedClaim:
    """Leases a partition and reads its next events, which are in one segment of the log, by one prepared statement.

    It reads on by another one.
    """

    def __init__(self, session: SharedSession, of: Subscription, position_id: int, partition: int, segment: Segment):
        self.segment = segment
        self._session, self._of, self._position_id, self._partition = session, of, position_id, partition
        chosen = sql.shared.next_events.on(
            log=segment.table,
            events=sql.shared.in_topic.on(topic_id=of.topic_id) if of.whole else SQL.in_claimed_partition,
            match=of.match,
            after=("claimed", "position"),
            upper=("claimed", "upper"),
            most=of.most,
        )
        self._read_on = SQL.read_on.on(log=of.log, light=light(chosen, of.most))
        self._statement = SQL.claim_and_read.on(
            log=of.log,
            segment=segment.table,
            topic_id=of.topic_id,
            before=max(segment.first, of.filter_from) - 1,
            redrive_due=of.redrive_due,
            light=light(chosen, of.most),
        )

    def claim(self, *, holder: str) -> LeasedPartition | None:
        """None also where anything is unusual: `claim` finds out what. The lease may not be on disk yet."""
        of, token = self._of, secrets.randbits(63)
        if not self._session.is_good:
            return None
        rows = self._session.ask(
            self._statement,
            position_id=self._position_id,
            layout=of.layout,
            revision=of.revision,
            token=token,
            lease=of.consumer.lease,
            holder=holder[:200],
            reach=reach(of, of.most),
        )
        if not rows:
            return None
        position, number, attempted, careful_until, address, clock, last_id, barrier, upper = rows[0][:CLAIMED]
        events = [row[CLAIMED:] for row in rows if row[CLAIMED] is not None]
        return LeasedPartition(
            of,
            token,
            lost_token=None,
            nested=False,
            position_id=self._position_id,
            partition=self._partition,
            position=position,
            number=number,
            attempted=attempted,
            attempts=0,
            careful_until=careful_until,
            row_address=address,
            clock=EPOCH + timedelta(microseconds=clock),
            redrives=False,
            barrier=barrier,
            after_crash=False,
            readable_until=last_id,
            read_ahead=ReadAhead(position, events, upper) if are_whole(events) else None,
            read_on=self,
        )

    def read(self, position: int, upper: int) -> sql.Rows | None:
        """The events behind a position, up to the id `upper`; None where `bounded` has to find out what is there."""
        if not self._can_read(position, upper):
            return None
        try:
            rows = self._session.ask(self._read_on, partition=self._partition, position=position, upper=upper)
        except DatabaseError as error:
            if sql.kind_of(error).of_server:
                raise
            return None
        return rows if are_whole(rows) else None

    def settle_and_read(
        self, settle: sql.Question, position: int, upper: int
    ) -> tuple[sql.Rows, sql.Rows | None] | None:
        """Settle, and read as `read`, in one message, which is a transaction; None where nothing of it is done.

        It settles last: a server that waits for a frozen worker to take the events has no row locked yet.
        """
        if not self._can_read(position, upper):
            return None
        try:
            reading = self._read_on, {"partition": self._partition, "position": position, "upper": upper}
            rows, settled = self._session.ask_each(reading, last=settle)
        except DatabaseError as error:
            if sql.kind_of(error) is sql.ErrorKind.LOST:  # of any other error, the server has undone the message
                raise
            return None
        return settled, rows if are_whole(rows) else None

    def ask(self, position: int, upper: int, *, token: int) -> bool:
        """Begin to read as `read`; False if nothing was asked. The lease's token finds the session while it sends."""
        if not self._can_read(position, upper):
            return False
        try:
            reading = self._read_on, {"partition": self._partition, "position": position, "upper": upper}
            self._session.send((SQL.hold, {"token": token}), reading)
        except DatabaseError:
            return False  # what is settled next says so, if the connection is lost
        return True

    def answer(self) -> sql.Rows | None:
        """What `read` returns, of what was asked; None also where the connection is lost."""
        try:
            _, rows = self._session.receive()
        except DatabaseError:
            return None
        return rows if are_whole(rows) else None

    def _can_read(self, position: int, upper: int) -> bool:
        return self._session.is_good and self.segment.first <= position + 1 and upper < self.segment.end


def _end_frozen_settler(using: str, position_id: int) -> bool:
    """End the worker that keeps a position's row locked although its lease is over; returns whether there was one."""
    rows = sql.fetch(using, SQL.overdue, position_id=position_id)
    for (token,) in rows:
        end_holder(using, token)
    return bool(rows)
