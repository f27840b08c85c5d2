"""Consumers that are set aside because their log can't be read or their filter fails. Others go on meanwhile.

setbacks = ConsumerSetbacks(using)
setbacks.note(subscription, [position_id], error)   # what the database said
if setbacks.rest(position_id): ...                  # seconds until its time has come
setbacks.over(subscription, [position_id])          # it was served
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from django.db import DatabaseError, connections

from django_events import sql
from django_events.consuming.subscriptions import Subscription
from django_events.exceptions import EventsMissing
from django_events.log.setbacks import AT_MOST, LONGEST_ERROR, Failing, Setbacks, code_of

logger = logging.getLogger("django_events.consumer")
SQL = sql.beside(__name__)


def sets_aside(using: str, error: BaseException) -> bool:
    """Whether an error is about one consumer's log or filter. Never in a caller's transaction, which the error ends."""
    if connections[using].in_atomic_block:
        return False
    if isinstance(error, EventsMissing):
        return True
    return isinstance(error, DatabaseError) and sql.kind_of(error).stays


class Releasable(Protocol):
    """What `released_if_unread` asks of a lease."""

    @property
    def using(self) -> str: ...

    def release(self) -> None: ...


@contextmanager
def released_if_unread(lease: Releasable) -> Iterator[None]:
    """Release a lease whose events can't be read: no handler has seen them, so the next worker need not be careful."""
    try:
        yield
    except (DatabaseError, EventsMissing) as error:
        if sets_aside(lease.using, error):
            lease.release()
        raise


class ConsumerSetbacks(Setbacks):
    """The consumers that one process can't serve, by their positions."""

    def __init__(self, using: str) -> None:
        super().__init__(using)
        self._failing: set[int] = set()

    def next_after(self, moment: float) -> float | None:
        """When the next rest ends that was not over at that moment."""
        with self._lock:
            return min((one.again_at for one in self._of.values() if one.again_at > moment), default=None)

    def found_failing(self, consumer_ids: Iterable[int]) -> None:
        """Which consumers are failing by their rows, which this process or another one wrote."""
        self._failing = set(consumer_ids)

    def concerns(self, subscription: Subscription) -> bool:
        """Whether it could not be served lately, as far as this process knows."""
        if not self._of and not self._failing:
            return False
        return subscription.consumer_id in self._failing or any(p in self._of for p, _ in subscription.positions)

    def note(self, subscription: Subscription, position_ids: Iterable[int], error: Failing) -> None:
        """Set positions aside that could not be served. It is logged once, and again if the reason changes."""
        said = sql.said(error)
        if self._noted(f"{subscription.consumer.name} of {subscription.topic}", position_ids, error):
            logger.error(
                "Consumer %s can't be served, others are. It is tried again, after %s at most. %s",
                subscription,
                AT_MOST,
                said,
                extra=subscription.fields,
            )
        self._tell(subscription, code_of(error), said)

    def over(self, subscription: Subscription, position_ids: Iterable[int]) -> None:
        """These positions were served, or have nothing to do."""
        times = self._ended(position_ids)
        if any(position_id in self._of for position_id, _ in subscription.positions):
            return
        failing = subscription.consumer_id in self._failing
        self._failing.discard(subscription.consumer_id)
        if times:
            about = subscription.fields
            logger.info("Consumer %s can be served again, after %d tries.", subscription, times, extra=about)
        if times or failing:
            self._tell(subscription, "", "")

    def _tell(self, of: Subscription, failure: str, error: str) -> None:
        question = (
            SQL.note_consumer_failure,
            {"consumer_id": of.consumer_id, "failure": failure, "error": error[:LONGEST_ERROR]},
        )
        if failed := self._write(question):
            logger.warning("That can't be written into the row of the consumer. %s", failed)
