"""Making deliveries from the log: for a queue consumer that begins in the past, or that reached its max_pending.

While a consumer is live, the transfer makes its deliveries together with the events. While it is not, workers make them
from the log, in small transactions, up to the end of the log. There the consumer becomes live, while the worker has the
topic's head locked, so that no event is left out and none is delivered twice.
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
LONGEST = 0.2  # seconds, then the worker looks whether there is something else to do
LOCK_TIMEOUT = "500ms"  # the same as of a batch of the transfer


class Filled(NamedTuple):
    """How many deliveries were made, and how many ids of the log are left to look at."""

    made: int
    left: int


def fill(subscription: Subscription) -> bool:
    """Make deliveries of the next part of the log, until some are made or the time is over.

    Returns whether part of the log was looked at: then there may be something to claim, or more to fill. There is
    nothing to do if the consumer is live or has no room, or if another worker fills it.
    """
    ends_at, got_on = time.monotonic() + LONGEST, False
    while filled := fill_some(subscription):
        got_on = True
        if filled.made or time.monotonic() >= ends_at:
            break
    return got_on


def fill_some(of: Subscription) -> Filled | None:
    """Make deliveries of the next part of the log in one transaction; None if this worker has nothing to do."""
    filled = None
    try:
        filled = _fill(of, AT_ONCE, to_the_end=False)
        # Near the end of the log, so the topic's head is locked only for a moment.
        if filled is not None and filled.left <= AT_ONCE:
            more = _fill(of, AT_ONCE, to_the_end=True)
            filled = Filled(filled.made + more.made, more.left) if more is not None else filled
    except DatabaseError as error:
        if sql.kind_of(error) is sql.ErrorKind.LOCKED:  # of the topic's head, or of the log
            return filled
        if not sql.kind_of(error).of_data or connections[of.using].in_atomic_block:
            raise
        return _fill_up_to_failure(of, made=0 if filled is None else filled.made)
    return filled


def _fill_up_to_failure(of: Subscription, *, made: int) -> Filled | None:
    """Make deliveries up to the event on which the filter fails, and stop the consumer there."""
    most = AT_ONCE // 2
    while True:
        try:
            filled = _fill(of, max(most, 1), to_the_end=False)
        except DatabaseError as error:
            if not sql.kind_of(error).of_data:
                raise
            if most < 1:
                with sql.committed(of.using):
                    after = models.Consumer.objects.using(of.using).get(pk=of.consumer_id).filled_until
                    quarantine(of.using, of.consumer_id, of.consumer.name, error, where=f"{of.topic}/{after + 1}")
                return Filled(made, 0)
        else:
            made += 0 if filled is None else filled.made
            if filled is None or not filled.left:
                return Filled(made, 0) if made else filled
        most //= 2


def _fill(of: Subscription, most: int, *, to_the_end: bool) -> Filled | None:
    """One transaction; None if the consumer is live, stopped or has no room, or if another worker fills it."""
    with sql.committed(of.using, lock_timeout=LOCK_TIMEOUT):
        if to_the_end:
            sql.fetch(of.using, sql.shared.lock_head, topic_id=of.topic_id)
        rows = sql.fetch(of.using, SQL.lock_filling, consumer_id=of.consumer_id)
        if not rows:
            return None
        after, max_pending, waits_from = rows[0]
        end = _end(of, after)
        last = end if waits_from is None else max(min(end, waits_from - 1), after)
        upper = min(last, after + most, after + _room(of, max_pending))
        if upper == after and (after < last or waits_from is not None):
            return None
        row = models.Consumer.objects.using(of.using).get(pk=of.consumer_id)
        statement = SQL.fill.on(
            consumer_id=of.consumer_id,
            topic_id=of.topic_id,
            log=of.log,
            after=after,
            upper=upper,
            match=condition(row),
        )
        [[made, there]] = sql.fetch(of.using, statement)
        if there < upper - after:
            _refuse_missing(of, after, upper, there)
        live = to_the_end and upper == last and waits_from is None
        sql.fetch(of.using, SQL.filled, consumer_id=of.consumer_id, filled_until=upper, live=live)
    return Filled(made, last - upper)


def _refuse_missing(of: Subscription, after: int, upper: int, there: int) -> None:
    """EventsMissing if fewer events are there between two ids than retention and compaction left."""
    dropped = floors(of)
    beyond = min(max(after, dropped.absent_until), upper)
    if dropped.compacted_until > after:  # what compaction left would hide what is missing above it
        counted = sql.shared.count_behind.on(log=of.log, topic_id=of.topic_id, after=beyond, upper=upper)
        [[there]] = sql.fetch(of.using, counted)
        if floors(of) != dropped:  # retention was faster
            return
    if there < upper - beyond:
        raise missing(f"One of the events {of.topic}/{after + 1} to {of.topic}/{upper}")


def _room(of: Subscription, max_pending: int | None) -> int:
    """How many more deliveries it may have; 0 until half of max_pending is free, so as not to make them one by one."""
    if max_pending is None:
        return AT_ONCE
    pending = SQL.pending_deliveries
    [[there]] = sql.fetch(of.using, pending, consumer_id=of.consumer_id, most=max_pending)
    room = max_pending - int(there)
    return room if room >= (max_pending + 1) // 2 else 0


def _end(of: Subscription, filled: int) -> int:
    rows = sql.fetch(of.using, sql.shared.last_readable.on(log=of.log, topic_id=of.topic_id, after=filled))
    return int(rows[0][0]) if rows else filled
