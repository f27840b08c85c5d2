"""What becomes of an event that failed: tried again later, a dead letter, the end of its partition, or nothing."""

import traceback
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

from django_events import declarations, sql
from django_events.consuming.fingerprints import fingerprint
from django_events.consuming.subscriptions import Subscription
from django_events.consuming.unread import UnreadEvent
from django_events.event_columns import COPIED
from django_events.exceptions import MessageRefused, UnreadableEvent
from django_events.received import ReceivedEvent
from django_events.retries import Ignore, RetryLater

SQL = sql.beside(__name__)

LONGEST_ERROR = 2_000
LONGEST_TRACEBACK = 20_000


class Verdict(Enum):
    RETRY = "retry"
    DEAD_LETTER = "dead letter"
    STOP = "stop"
    IGNORE = "ignore"

    @property
    def outcome(self) -> str:
        """The value of the metrics' label `outcome`."""
        return _OUTCOMES[self]


_OUTCOMES = {
    Verdict.RETRY: "retried",
    Verdict.DEAD_LETTER: "dead_lettered",
    Verdict.STOP: "stopped",
    Verdict.IGNORE: "ignored",
}


@dataclass(frozen=True)
class Failure:
    """An event in its attempt, the error of that attempt, and what follows.

    An attempt that doesn't count is repeated under the same number: the event is not to blame for the error. One whose
    handler was not called took no `seconds`.
    """

    event: ReceivedEvent
    error: BaseException
    verdict: Verdict
    pause: timedelta | None = None
    counts: bool = True
    seconds: float | None = None

    @property
    def attempts(self) -> int:
        """How many attempts at the event are counted from now on."""
        return self.event.attempt - (not self.counts)

    @property
    def is_failed_attempt(self) -> bool:
        """Whether the attempt is one that failed: not one that was ignored, or that has to be repeated."""
        return self.counts and self.verdict is not Verdict.IGNORE

    @property
    def passes(self) -> bool:
        """Whether the consumer goes on with the next event."""
        return self.verdict in (Verdict.DEAD_LETTER, Verdict.IGNORE)

    @property
    def failing_since(self) -> datetime | None:
        """Since when the event has waited for what it is not to blame for, if the error says that."""
        return self.error.since if isinstance(self.error, RetryLater) else None

    @property
    def summary(self) -> str:
        """`ValueError: no such order`, in text that a database takes."""
        return summary_of(self.error)

    def fingerprint(self, consumer: declarations.DeclaredConsumer) -> str:
        """What tells this failure of the consumer from others, in text that a database takes."""
        return storable(fingerprint(self.error, self.summary, within=consumer.package))

    @property
    def traceback(self) -> str:
        """The last part of the traceback, in text that a database takes."""
        try:
            lines = "".join(traceback.format_exception(self.error))
        except Exception:
            lines = "".join(traceback.format_tb(self.error.__traceback__)) + self.summary
        return storable(lines)[-LONGEST_TRACEBACK:]


def judge(
    consumer: declarations.DeclaredConsumer, event: ReceivedEvent, error: BaseException, *, may_stop: bool = True
) -> Failure:
    """What follows from an error of this attempt. Queues and redriven dead letters never stop: `may_stop` is False."""
    if isinstance(error, Ignore):
        return Failure(event, error, Verdict.IGNORE)
    if isinstance(error, RetryLater) and not error.counts:
        if consumer.is_relay:  # workers that ended in an outage prove nothing: attempts are counted anew after it
            event = event.with_attempt(1)
        return Failure(event, error, Verdict.RETRY, error.after, counts=False)
    # A payload that can't be read now can't be read later, and a message that its broker refused is refused again.
    if event.attempt >= consumer.retry.attempts or isinstance(error, UnreadableEvent | MessageRefused):
        stops = consumer.on_exhausted == "stop" and may_stop
        return Failure(event, error, Verdict.STOP if stops else Verdict.DEAD_LETTER)
    pause = error.after if isinstance(error, RetryLater) else consumer.retry.pause(event.attempt)
    return Failure(event, error, Verdict.RETRY, pause)


def summary_of(error: BaseException) -> str:
    """The class of an error and its message, even if making the message raises."""
    try:
        said = str(error)
    except Exception:
        said = "(its text can't be made)"
    name = type(error).__qualname__
    return storable(f"{name}: {said}" if said else name)[:LONGEST_ERROR]


def storable(text: str) -> str:
    """Any text, changed so that PostgreSQL takes it: with a NUL or a surrogate an error could not be stored."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def bury(subscription: Subscription, failure: Failure) -> None:
    """Store a full copy of the event with its error as a dead letter, or replace the error of the one that exists.

    In the caller's transaction.
    """
    if isinstance(failure.event, UnreadEvent) and _bury_unread(subscription, failure):
        return
    event_id, *copied = failure.event.columns
    stored = dict(zip(COPIED, copied, strict=True))
    sql.fetch(
        subscription.using,
        SQL.bury,
        consumer_id=subscription.consumer_id,
        event_id=event_id,
        attempts=failure.event.attempt,
        error=failure.summary,
        traceback=failure.traceback,
        fingerprint=failure.fingerprint(subscription.consumer),
        **{**stored, "metadata": "{}" if stored["metadata"] is None else stored["metadata"]},
    )


def _bury_unread(of: Subscription, failure: Failure) -> bool:
    """As `bury`, without reading the payload; False if neither the log nor a dead letter has the event any more."""
    statement = SQL.bury_unread.on(log=of.log, topic_id=of.topic_id, event_id=failure.event.id)
    rows = sql.fetch(
        of.using,
        statement,
        consumer_id=of.consumer_id,
        attempts=failure.event.attempt,
        error=failure.summary,
        traceback=failure.traceback,
        fingerprint=failure.fingerprint(of.consumer),
    )
    return bool(rows)
