"""What becomes of an event that failed: tried again later, a dead letter, the end of its partition, or nothing."""

import traceback
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from django_events import declarations, sql
from django_events.consuming.received import ReceivedEvent, UnreadEvent
from django_events.consuming.subscriptions import Subscription
from django_events.event_columns import COPIED
from django_events.exceptions import UnreadableEvent
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
        """What it is for the event, as metrics say it."""
        return _OUTCOMES[self]


_OUTCOMES = {
    Verdict.RETRY: "retried",
    Verdict.DEAD_LETTER: "dead_lettered",
    Verdict.STOP: "stopped",
    Verdict.IGNORE: "ignored",
}


@dataclass(frozen=True)
class Failure:
    """An event, the error of its attempt, and what follows."""

    event: ReceivedEvent
    error: BaseException
    verdict: Verdict
    pause: timedelta | None = None

    @property
    def passes(self) -> bool:
        """Whether the consumer goes on behind the event."""
        return self.verdict in (Verdict.DEAD_LETTER, Verdict.IGNORE)

    @property
    def summary(self) -> str:
        """`ValueError: no such order`, in text that a database takes."""
        return summary_of(self.error)

    @property
    def traceback(self) -> str:
        """The end of it, where the error is."""
        try:
            lines = "".join(traceback.format_exception(self.error))
        except Exception:
            lines = "".join(traceback.format_tb(self.error.__traceback__)) + self.summary
        return storable(lines)[-LONGEST_TRACEBACK:]


def judge(
    consumer: declarations.Consumer, event: ReceivedEvent, error: BaseException, *, may_stop: bool = True
) -> Failure:
    """What follows from an error of this attempt. Only what is ahead of the position can stop a partition."""
    if isinstance(error, Ignore):
        return Failure(event, error, Verdict.IGNORE)
    # What can't be read today can't be read tomorrow.
    if event.attempt >= consumer.retry.attempts or isinstance(error, UnreadableEvent):
        stops = consumer.on_exhausted == "stop" and may_stop
        return Failure(event, error, Verdict.STOP if stops else Verdict.DEAD_LETTER)
    pause = error.after if isinstance(error, RetryLater) else consumer.retry.pause(event.attempt)
    return Failure(event, error, Verdict.RETRY, pause)


def summary_of(error: BaseException) -> str:
    """The kind of an error and what it says, whatever happens when it is asked."""
    try:
        said = str(error)
    except Exception:
        said = "(its text can't be made)"
    name = type(error).__qualname__
    return storable(f"{name}: {said}" if said else name)[:LONGEST_ERROR]


def storable(text: str) -> str:
    """Any text as one that PostgreSQL takes: an error must not be kept from the books by what it says."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


def bury(subscription: Subscription, failure: Failure) -> None:
    """Keep a full copy of the event with its error. In the caller's transaction; again replaces the error."""
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
        **{**stored, "metadata": "{}" if stored["metadata"] is None else stored["metadata"]},
    )


def _bury_unread(of: Subscription, failure: Failure) -> bool:
    """False where the log has dropped it, and there is no copy: then a dead letter says at least that it was."""
    statement = SQL.bury_unread.on(log=of.log, topic_id=of.topic_id, event_id=failure.event.id)
    rows = sql.fetch(
        of.using,
        statement,
        consumer_id=of.consumer_id,
        attempts=failure.event.attempt,
        error=failure.summary,
        traceback=failure.traceback,
    )
    return bool(rows)
