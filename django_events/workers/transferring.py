"""The transfer as a worker: `manage.py run_transfer` runs it."""

from typing import cast

from django.db import connections
from psycopg import Connection, IsolationLevel

from django_events.conf import settings
from django_events.log.transfer import Transfer
from django_events.workers.stopping import Stop
from django_events.workers.wakeups import WakeUps


class TransferWorker:
    """Moves what is in the buffer, and sleeps when nothing is."""

    def __init__(self, using: str) -> None:
        self.using = using
        self._transfer = Transfer(using)
        self._wake_ups = WakeUps(using, poll=settings.POLL_INTERVAL.total_seconds())

    def work(self, stop: Stop) -> int:
        """Give every topic that has events one turn."""
        wrapper = connections[self.using]
        if wrapper.connection is None:
            self.reset()
            wrapper.ensure_connection()
            # Batches rely on it that each statement sees what was committed before it.
            cast("Connection[object]", wrapper.connection).isolation_level = IsolationLevel.READ_COMMITTED
        moved = self._transfer.move(until=lambda: stop.requested)
        if moved:
            self._wake_ups.busy()
        return moved

    @property
    def left(self) -> bool:
        return self._transfer.left

    def wait(self, stop: Stop) -> None:
        self._wake_ups.wait(stop)

    def reset(self) -> None:
        """Start with a full look: marks are only good for the connection that they were learnt on."""
        self._transfer.forget()

    def close(self) -> None:
        self._wake_ups.close()
