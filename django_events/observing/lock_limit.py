"""A look at a database that waits for no lock for long, and says which session has it.

with within_lock_limit(using):
    found = standings(using)

Who looks wants to know what is wrong: a log that is locked must not keep that page or command waiting.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import DatabaseError

from django_events import models, sql
from django_events.exceptions import InUse
from django_events.log.holders import LockHolder, holders

LONGEST = "500ms"  # that it waits for a lock
READERS_WAIT = "AccessExclusiveLock"


@contextmanager
def within_lock_limit(using: str) -> Iterator[None]:
    """A transaction that only reads. InUse names the session that has locked what is looked at, and what ends it."""
    try:
        with sql.by_index(using, lock_timeout=LONGEST):
            yield
    except DatabaseError as error:
        if sql.kind_of(error) is not sql.ErrorKind.LOCKED:
            raise
        raise InUse(_locked_by(using)) from error


def _locked_by(using: str) -> str:
    """The session that has locked a log, or what to ask where it is another table or the lock is over already."""
    for holder in _of_readers(using):
        return f"{holder}: nothing can be read from it. End it, or its session: {holder.session.ending}"
    return (
        f"Another session has locked a table of events in the database {using!r}. Ask again; if that lasts: manage.py "
        "events doctor"
    )


def _of_readers(using: str) -> list[LockHolder]:
    try:
        with sql.by_index(using, lock_timeout=LONGEST):
            topic_ids = list(models.Topic.objects.using(using).values_list("pk", flat=True))
            return [one for one in holders(using, topic_ids) if one.mode == READERS_WAIT]
    except DatabaseError as error:
        if sql.kind_of(error) is not sql.ErrorKind.LOCKED:
            raise
        return []
