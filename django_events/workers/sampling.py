"""A sample for the charts when a minute is over, taken by a worker that has other things to do."""

import logging
import time

from django.db import Error, connections

from django_events import sql
from django_events.consuming.samples import take

logger = logging.getLogger("django_events.worker")

LATE = 1.0  # seconds behind the full minute, so that a clock of the database that is a little late is in it too


class Sampling:
    """Asks for a sample once a minute, at first at once. When that fails it says so once, and goes on trying."""

    def __init__(self, using: str) -> None:
        self.using = using
        self._minute: int | None = None
        self._fails = False

    def go_on(self) -> None:
        """Take one if it is time. Nothing that goes wrong is a reason for the worker to stop."""
        minute = int(time.time() - LATE) // 60
        if minute == self._minute:
            return
        self._minute = minute
        try:
            take(self.using)
        except Exception as error:
            if not self._fails:
                logger.warning(
                    "No sample for the charts of %r could be taken, it is tried every minute. %s",
                    self.using,
                    str(error).strip(),
                    exc_info=not isinstance(error, Error),
                )
            self._fails = True
            if sql.is_lost(error):
                connections[self.using].close()  # the worker connects anew, and goes on
        else:
            self._fails = False
