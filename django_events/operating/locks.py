"""The transaction of an operator's verb, which waits for the locks of other sessions for some seconds and not longer.

with bounded(using, "Consumer billing of orders"):
    ...  # InUse names the session that holds a lock for longer
"""

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import OperationalError

from django_events import sql
from django_events.exceptions import InUse
from django_events.sql.blocking import blocker_of, watched

LOCK_TIMEOUT = "5s"


@contextmanager
def bounded(using: str, what: str) -> Iterator[None]:
    """A transaction, or a savepoint of the caller's; `what` is locked by another session if a lock isn't granted."""
    try:
        with sql.committed(using), sql.batch(using, lock_timeout=LOCK_TIMEOUT), watched(using):
            yield
    except OperationalError as error:
        if sql.kind_of(error) is not sql.ErrorKind.LOCKED:
            raise
        raise InUse(
            f"{what} is locked, by {blocker_of(error)}. Nothing was changed. Try again when that is over."
        ) from error
