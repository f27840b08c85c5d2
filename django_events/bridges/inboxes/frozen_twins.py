"""Ending the session of a process that serves the same inbox, and is frozen while it sends rows.

    twins = FrozenTwins(using)
    twins.end()                   # whenever a lock was not granted in time

Such a session has locks for which others wait, and PostgreSQL has no timeout for a COPY whose client says nothing. One
of which nothing came between two looks, for as long as VANISHED_AFTER says, is ended: its transaction is rolled back.
"""

import logging
import time

from django_events import sql
from django_events.conf import settings

logger = logging.getLogger("django_events.inboxes")
SQL = sql.beside(__name__)

# By it the transactions in which inboxes write are known: nothing else is ended, however long it takes.
APPLICATION = "django_events inbox"
WRITES = {"application_name": APPLICATION}


class FrozenTwins:
    """What one thread knows of the sessions of other processes."""

    def __init__(self, using: str) -> None:
        self.using = using
        self._silent: dict[tuple[object, ...], float] = {}  # since when nothing more has come of them

    def end(self) -> None:
        """End those of which nothing has come for long enough. Not in a transaction."""
        now, longest = time.monotonic(), settings.VANISHED_AFTER.total_seconds()
        found = sql.fetch(self.using, SQL.copying, application=APPLICATION)
        looked = {one: self._silent.get(one, now) for one in found}
        self._silent = {one: since for one, since in looked.items() if now - since < longest}
        for pid, began, came in looked.keys() - self._silent.keys():
            for _ in sql.fetch(self.using, SQL.end_copying, pid=pid, began=began, came=came, application=APPLICATION):
                logger.warning(
                    "The session of a frozen process, pid %d, which kept others from taking anything in, is ended.",
                    pid,
                    extra={"database": self.using},
                )
