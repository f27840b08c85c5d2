"""The errors that django_events raises.

EventsError
├── Refused                  a request was turned down: nothing was changed
│   ├── InUse                a worker, a command or a lock is in the way: the same request may succeed later
│   ├── Invalid              what was given can't be used: an argument, an option, a declaration, a setting
│   │   ├── InvalidEvent     bad input to a publishing function
│   │   └── HandlerNotFound  a consumer's handler can't be imported
│   ├── UnknownName          no topic or consumer has this name
│   ├── NotReady             tables, a topic, a consumer, rights or a program are to be set up first
│   ├── WrongShard           the key is in another database: the same request succeeds there
│   ├── NotInTransaction     publishing outside a transaction, where the settings or an @outbox forbid it
│   └── WriterFull           the events of a writer wait for the database, and there is no room for another one
├── NotWritten               events that a writer took in were not written
├── NotSeen                  a consumer has not passed what was waited for
├── LeaseLost                another worker took over: nothing was settled
├── EventExpired             retention or compaction has removed the event
├── EventsMissing            events that were to be read are not in the log
├── LogReplaced              the log isn't the one that a position is of
├── HandlerTimeout           a handler took longer than its consumer allows
├── UnreadableEvent          no worker can read the payload of the event
├── MessageRefused           a broker takes everything but this message of a relay
├── UnfitEvent               the value of the event doesn't fit its schema, or can't be upcast
└── WorkerEnded              the worker's process ended while it handled the event
"""

from collections.abc import Iterable
from difflib import get_close_matches


class EventsError(Exception):
    """The root of every error that django_events raises on purpose."""


class Refused(EventsError):
    """A request was turned down, and nothing was changed. The message says why, and what to do instead."""


class InUse(Refused):
    """A worker, another command or a lock is in the way. The same request may succeed when that is over."""

    reason = ""  # how a consumer is held, and by whom, where that is what is in the way


class Invalid(Refused, ValueError):
    """An argument, an option, a declaration or a setting can't be used. The message says what was expected."""


class InvalidEvent(Invalid):
    """The event can't be published as it is. Nothing was written."""


class HandlerNotFound(Invalid):
    """The handler of a consumer can't be imported. Only this consumer is not served."""


class UnknownName(Refused, LookupError):
    """No topic or consumer has this name: no installed app declares it, or the database doesn't have it."""


class NotReady(Refused):
    """Something is to be set up first, and the message names the command: `migrate`, `events grants`, `pip install`."""


class WrongShard(Refused):
    """The key of `shard_by` is in another database, which `shard` names if it is known here. Nothing was published."""

    def __init__(self, *arguments: object, shard: str | None = None) -> None:
        super().__init__(*arguments)
        self.shard = shard


class NotInTransaction(Refused):
    """Publishing outside a transaction, which DJANGO_EVENTS["REQUIRE_TRANSACTION"] or an @outbox forbids."""


class WriterFull(Refused):
    """The writer has no room: its events wait for the database. Nothing of this one was kept."""


class NotWritten(EventsError):
    """Events that a writer had taken in were not written, or it is not known whether they were."""


class NotSeen(EventsError, TimeoutError):
    """A consumer has not passed what was waited for, in time or because it gave up on it. The event is published."""

    def __init__(self, *arguments: object, consumer: str = "", dead_letter: bool = False) -> None:
        super().__init__(*arguments)
        self.consumer = consumer
        self.dead_letter = dead_letter


class LeaseLost(EventsError):
    """Another worker took over what this one was handling. Nothing was settled."""


class EventExpired(EventsError, LookupError):
    """Retention or compaction has removed the event: it was there, and is not any more."""


class EventsMissing(EventsError):
    """Events that were to be read are not in the log. None behind them was handled, nor one written from Spark."""


class LogReplaced(EventsError):
    """The log isn't the one that a position is of: its topic was removed or made anew, or its end was lost."""


class HandlerTimeout(EventsError, TimeoutError):
    """The handler took longer than its consumer's timeout."""


class UnreadableEvent(EventsError):
    """The payload of the event can't be read, or was dropped from the log by retention. Its handler was not called."""


class MessageRefused(EventsError):
    """The target of a relay refuses this message for itself, as one that is too large: no other attempt is worth it.

    What stands in the way of all messages is `bridges.TargetUnavailable` instead.
    """


class UnfitEvent(EventsError):
    """The value of the event doesn't fit its schema, or no upcaster leads to the newest version of it."""


class WorkerEnded(EventsError):
    """The worker's process ended while it handled this event, as often as attempts are allowed."""


def rights_missing(role: str, error: Exception, *, kind: str = "publisher|consumer|operator|reader|sink") -> str:
    """Say which right a role of the database has not got, and the way out."""
    missing = str(error).strip().splitlines()[0]
    return f"The role {role!r} may not do this: {missing}. What it needs: manage.py events grants --role {kind}"


def rows_hidden(role: str, error: Exception) -> str:
    """Say that row-level security is in the way of a role of the database, and the way out."""
    refused = str(error).strip().splitlines()[0]
    return (
        f"The role {role!r} would not see all rows, and what it doesn't see would be taken for gone: {refused}. Take "
        f"that table's row-level security back, or let the role see all rows: ALTER ROLE {role} BYPASSRLS"
    )


LISTED, NEAREST = 60, 10  # names, where one isn't known


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Say which known name was probably meant, or list them; of many, the nearest ones."""
    known = sorted(known)
    if close := get_close_matches(name, known, n=1):
        return f"Did you mean {close[0]!r}?"
    if len(known) > LISTED:
        nearest = get_close_matches(name, known, n=NEAREST, cutoff=0.0)
        return f"The nearest of {len(known)} are: {', '.join(nearest)}."
    return f"Known are: {', '.join(known)}." if known else "None is known."
