"""The errors that django_events raises.

EventsError
├── InvalidEvent         bad input to a publishing function; nothing was written
├── InvalidTopic         a declaration that can't be a topic
├── UnknownTopic         a topic that no installed app declares
├── TopicNotReady        a declared topic that the database doesn't have yet
├── TopicChangeRefused   a changed declaration that the events in the log don't allow
├── NotInTransaction     publishing outside a transaction, where the settings forbid it
├── NotReady             the tables of django_events are not in the database
└── InvalidSetting       a value in DJANGO_EVENTS that can't be used
"""

from collections.abc import Iterable
from difflib import get_close_matches


class EventsError(Exception):
    """The root of every error that django_events raises on purpose."""


class InvalidEvent(EventsError, ValueError):
    """The event can't be published as it is. Nothing was written."""


class InvalidTopic(EventsError, ValueError):
    """The declaration can't be a topic."""


class UnknownTopic(EventsError, LookupError):
    """No installed app declares this topic."""


class TopicNotReady(EventsError):
    """The topic is declared, but the database doesn't have it: run `manage.py migrate`."""


class TopicChangeRefused(EventsError):
    """The declaration changed in a way that the events in the log don't allow."""


class NotInTransaction(EventsError):
    """Publishing outside a transaction is forbidden by DJANGO_EVENTS["REQUIRE_TRANSACTION"]."""


class NotReady(EventsError):
    """The tables of django_events are not in the database: run `manage.py migrate`."""


class InvalidSetting(EventsError, ValueError):
    """A value in DJANGO_EVENTS can't be used."""


def tables_missing(using: str) -> str:
    """Say that a database wasn't migrated, and the way out."""
    return f"The tables of django_events are not in the database {using!r}. Run: manage.py migrate --database {using}"


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Say which known name was probably meant, or list them all."""
    known = sorted(known)
    if close := get_close_matches(name, known, n=1):
        return f"Did you mean {close[0]!r}?"
    return f"Known are: {', '.join(known)}." if known else "None is known."
