"""The transfer as a worker: `manage.py run_transfer` runs it."""

from django_events.conf import settings
from django_events.log.setbacks import TopicSetbacks
from django_events.log.transfer import Transfer
from django_events.workers.listening import Listener
from django_events.workers.loop import connect_for_work
from django_events.workers.stopping import Stop
from django_events.workers.wakeup_flag import WakeupFlag
from django_events.workers.wakeups import WakeUps


class TransferWorker:
    """Moves what is in the buffer, of all topics or `only` of one, and sleeps when nothing is."""

    def __init__(self, using: str, listener: Listener, *, only: int | None = None) -> None:
        self.using = using
        self._transfer = Transfer(using, only=only)
        self._moved_before = False
        self._wakeup = WakeupFlag()
        self._wake_ups = WakeUps(listener, self._wakeup, poll=settings.POLL_INTERVAL.total_seconds())

    def connect(self) -> None:
        if connect_for_work(self.using):
            self.reset()

    def work(self, stop: Stop) -> int:
        """Give every topic that has events one turn."""
        moved = self._transfer.move(until=lambda: stop.requested)
        if moved and self._moved_before:
            self._wake_ups.busy()
        elif moved:
            self._wake_ups.heard()
        self._moved_before = bool(moved)
        return moved

    @property
    def left(self) -> bool:
        return self._transfer.left

    @property
    def setbacks(self) -> TopicSetbacks:
        """The topics whose events can't be moved."""
        return self._transfer.setbacks

    def wait(self, stop: Stop) -> None:
        # A transfer of a single topic doesn't publish scheduled events, so it doesn't wake up for them.
        self._wake_ups.wait(stop, at_most=self._transfer.schedule.pause if self._transfer.only is None else None)

    def reset(self) -> None:
        """Start with a full look: what was learnt on the lost connection may not hold any more."""
        self._transfer.forget()

    def close(self) -> None:
        self._wake_ups.close()
        self._wakeup.close()
