"""Consumers that can't be served now, because their log can't be read or their filter fails. Others go on meanwhile.

    setbacks = Setbacks(using)
    setbacks.note(subscription, [position_id], error)   # what the database said
    if setbacks.rest(position_id): ...                  # seconds until its time has come
    setbacks.over(subscription, [position_id])          # it was served

What an error means is judged in `log.setbacks`. It is written into the consumer's row, for status, doctor and admin.
"""

import logging
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from django.db import DatabaseError, connections

from django_events import sql
from django_events.consuming.subscriptions import Subscription
from django_events.log.setbacks import LONGEST_ERROR, LONGEST_REST, Cause, cause_of, rest_after
from django_events.phrases import duration

logger = logging.getLogger("django_events.consumer")


def sets_aside(using: str, error: DatabaseError) -> bool:
    """Whether an error is about the log or the filter of one consumer. A caller's transaction is over by it."""
    if connections[using].in_atomic_block or sql.passes_by_itself(error):
        return False
    return cause_of(error) is Cause.REFUSED


class Releasable(Protocol):
    """A lease, or deliveries in hand."""

    @property
    def using(self) -> str: ...

    def release(self) -> None: ...


@contextmanager
def released_if_unread(held: Releasable) -> Iterator[None]:
    """Let go of what can't be read: no handler has it, so the next worker need not be careful with it."""
    try:
        yield
    except DatabaseError as error:
        if sets_aside(held.using, error):
            held.release()
        raise


@dataclass(frozen=True, slots=True)
class Setback:
    """A position that can't be served: what the database said last, how often by now, and when it is tried again."""

    subscription: Subscription
    said: str
    error: DatabaseError
    times: int
    again_at: float


class Setbacks:
    """Those of one process. They outlive its connections, and its threads share them."""

    def __init__(self, using: str) -> None:
        self.using = using
        self._of: dict[int, Setback] = {}
        self._failing: set[int] = set()
        self._lock = threading.Lock()

    @property
    def consumers(self) -> list[Setback]:
        """One for each consumer of a topic, by name."""
        with self._lock:
            found = {one.subscription.consumer_id: one for one in self._of.values()}
        return sorted(found.values(), key=lambda one: str(one.subscription))

    def rest(self, position_id: int) -> float:
        """For how many seconds a position is not to be tried yet."""
        found = self._of.get(position_id)
        return 0.0 if found is None else max(found.again_at - time.monotonic(), 0.0)

    def next_after(self, moment: float) -> float | None:
        """When the first rest is over that was not over at that moment."""
        with self._lock:
            return min((one.again_at for one in self._of.values() if one.again_at > moment), default=None)

    def found_failing(self, consumer_ids: Iterable[int]) -> None:
        """What is written in the rows of the consumers, by this process or another one."""
        self._failing = set(consumer_ids)

    def concerns(self, subscription: Subscription) -> bool:
        """Whether it could not be served lately, as far as this process knows."""
        if not self._of and not self._failing:
            return False
        return subscription.consumer_id in self._failing or any(p in self._of for p, _ in subscription.positions)

    def note(self, subscription: Subscription, position_ids: Iterable[int], error: DatabaseError) -> None:
        """Positions could not be served. It is said once, and again if the reason is another one."""
        said, now = sql.said(error), time.monotonic()
        with self._lock:
            before = {one.said for one in self._of.values() if one.subscription.consumer_id == subscription.consumer_id}
            for position_id in position_ids:
                known = self._of.get(position_id)
                times = 1 if known is None else known.times + 1
                self._of[position_id] = Setback(subscription, said, error, times, now + rest_after(times))
        if said not in before:
            logger.error(
                "Consumer %s can't be served, others are. It is tried again, after %s at most. %s",
                subscription,
                duration(timedelta(seconds=LONGEST_REST)),
                said,
            )
        self._write(subscription, sql.state(error) or "", said)

    def over(self, subscription: Subscription, position_ids: Iterable[int]) -> None:
        """These positions were served, or have nothing to do."""
        with self._lock:
            ended = [one for position_id in position_ids if (one := self._of.pop(position_id, None))]
            if any(position_id in self._of for position_id, _ in subscription.positions):
                return
            failing = subscription.consumer_id in self._failing
            self._failing.discard(subscription.consumer_id)
        if ended:
            times = max(one.times for one in ended)
            logger.info("Consumer %s can be served again, after %d tries.", subscription, times)
        if ended or failing:
            self._write(subscription, "", "")

    def raise_first(self) -> None:
        """For callers who are to be told by the database's own error."""
        for one in self.consumers:
            raise one.error

    def _write(self, subscription: Subscription, failure: str, error: str) -> None:
        """For others to see; where that can't be written down, the log has it all the same."""
        if connections[self.using].in_atomic_block:  # of a caller who is told
            return
        question = (
            sql.statement("note_consumer_failure"),
            {"consumer_id": subscription.consumer_id, "failure": failure, "error": error[:LONGEST_ERROR]},
        )
        try:
            with sql.batch(self.using, question, lock_timeout="200ms"):
                pass
        except DatabaseError as failed:
            if sql.is_lost(failed):
                raise
            logger.warning("That can't be written into the row of the consumer. %s", sql.said(failed))
