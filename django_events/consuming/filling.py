"""Deliveries from the log: for a queue consumer that begins in the past, or that had as many as it may have.

While a consumer is live, its deliveries come with the events. While it is not, workers make them
from the log, in small transactions, up to the end of the log; there it becomes live, under the head of the
topic, so that no event comes in between and none comes twice.
"""

import time
from typing import NamedTuple

from django.db import DatabaseError, connections

from django_events import models, sql
from django_events.consuming.missing import floors, missing
from django_events.consuming.subscriptions import Subscription
from django_events.log.quarantine import quarantine
from django_events.matching import condition

SQL = sql.beside(__name__)

AT_ONCE = 5_000  # ids of the log
LONGEST = 0.2  # seconds: then it is seen whether there is something else to do
LOCK_TIMEOUT = "500ms"  # as a batch of the transfer


class Filled(NamedTuple):
    """How many deliveries were made, and how many ids of the log are left to look at."""

    made: int
    left: int


def fill(subscription: Subscription) -> bool:
    """Make deliveries of the next part of the log, until there are some, or no time; returns whether it got on.

    Then there may be something to claim, made now or there before, or more to fill. Where there is no room, or somebody
    else is at it, or the consumer is live, there is nothing to do here.
    """
    ends_at, got_on = time.monotonic() + LONGEST, False
    while filled := fill_some(subscription):
        got_on = True
        if filled.made or time.monotonic() >= ends_at:
            break
    return got_on


def fill_some(of: Subscription) -> Filled | None:
    """The next part of the log, one transaction; None if there is nothing to do for this worker."""
    filled = None
    try:
        filled = _fill(of, AT_ONCE, to_the_end=False)
        if filled is not None and filled.left <= AT_ONCE:  # the end is near: nobody has to wait for long
            more = _fill(of, AT_ONCE, to_the_end=True)
            filled = Filled(filled.made + more.made, more.left) if more is not None else filled
    except DatabaseError as error:
        if sql.kind_of(error) is sql.ErrorKind.LOCKED:  # on the head, or on the log
            return filled
        if not sql.kind_of(error).of_data or connections[of.using].in_atomic_block:
            raise
        return _fill_up_to_failure(of, made=0 if filled is None else filled.made)
    return filled


def _fill_up_to_failure(of: Subscription, *, made: int) -> Filled | None:
    """Fill what is before the event on which the filter fails, and stop there."""
    most = AT_ONCE // 2
    while True:
        try:
            filled = _fill(of, max(most, 1), to_the_end=False)
        except DatabaseError as error:
            if not sql.kind_of(error).of_data:
                raise
            if most < 1:
                with sql.committed(of.using):
                    after = models.ConsumerRow.objects.using(of.using).get(pk=of.consumer_id).filled_until
                    quarantine(of.using, of.consumer_id, of.consumer.name, error, where=f"{of.topic}/{after + 1}")
                return Filled(made, 0)
        else:
            made += 0 if filled is None else filled.made
            if filled is None or not filled.left:
                return Filled(made, 0) if made else filled
        most //= 2


def _fill(of: Subscription, most: int, *, to_the_end: bool) -> Filled | None:
    """One transaction. Nothing if the consumer is live, stopped, has no room, or is somebody else's."""
    with sql.committed(of.using, lock_timeout=LOCK_TIMEOUT):
        if to_the_end:
            sql.fetch(of.using, sql.shared.lock_head, topic_id=of.topic_id)
        rows = sql.fetch(of.using, SQL.lock_filling, consumer_id=of.consumer_id)
        if not rows:
            return None
        after, max_pending = rows[0]
        last = _end(of, after)
        upper = min(last, after + most, after + _room(of, max_pending))
        if upper == after < last:
            return None
        row = models.ConsumerRow.objects.using(of.using).get(pk=of.consumer_id)
        statement = SQL.fill.on(
            consumer_id=of.consumer_id,
            topic_id=of.topic_id,
            log=of.log,
            after=after,
            upper=upper,
            match=condition(row),
        )
        [[made, there]] = sql.fetch(of.using, statement)
        if there < upper - after and there < upper - max(after, floors(of).id):
            raise missing(f"One of the events {of.topic}/{after + 1} to {of.topic}/{upper}")
        live = to_the_end and upper == last
        sql.fetch(of.using, SQL.filled, consumer_id=of.consumer_id, filled_until=upper, live=live)
    return Filled(made, last - upper)


def _room(of: Subscription, max_pending: int | None) -> int:
    """How many deliveries more it may have. Half of them are made room for before more are made: not one by one."""
    if max_pending is None:
        return AT_ONCE
    pending = SQL.pending_deliveries
    [[there]] = sql.fetch(of.using, pending, consumer_id=of.consumer_id, most=max_pending)
    room = max_pending - int(there)
    return room if room >= (max_pending + 1) // 2 else 0


def _end(of: Subscription, filled: int) -> int:
    rows = sql.fetch(of.using, sql.shared.horizon.on(log=of.log, topic_id=of.topic_id, after=filled))
    return int(rows[0][0]) if rows else filled
