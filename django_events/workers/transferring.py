"""The transfer as a worker: `manage.py run_transfer` runs it."""

from django_events.conf import settings
from django_events.consuming.now_and_then import NowAndThen
from django_events.log.transfer import Transfer
from django_events.publishing.dedup import forget_expired
from django_events.publishing.staging import forget_staged
from django_events.workers.bell import Bell
from django_events.workers.listening import Listener
from django_events.workers.loop import connect_for_work
from django_events.workers.sampling import Sampling
from django_events.workers.stopping import Stop
from django_events.workers.wakeups import WakeUps

FORGET_EVERY = 60.0  # seconds


class TransferWorker:
    """Moves what is in the buffer, and sleeps when nothing is."""

    def __init__(self, using: str, listener: Listener) -> None:
        self.using = using
        self._transfer = Transfer(using)
        self._moved_before = False
        self._bell = Bell()
        self._time_to_forget = NowAndThen(FORGET_EVERY)
        self._more_to_forget = False
        self._sampling = Sampling(using)
        self._wake_ups = WakeUps(listener, self._bell, poll=settings.POLL_INTERVAL.total_seconds())

    def connect(self) -> None:
        if connect_for_work(self.using):
            self.reset()

    def work(self, stop: Stop) -> int:
        """Give every topic that has events one turn."""
        if self._more_to_forget or self._time_to_forget:
            self._more_to_forget = any([forget_expired(self.using), forget_staged(self.using)])
        moved = self._transfer.move(until=lambda: stop.requested)
        self._sampling.go_on()
        if moved and self._moved_before:
            self._wake_ups.busy()
        elif moved:
            self._wake_ups.heard()
        self._moved_before = bool(moved)
        return moved

    @property
    def left(self) -> bool:
        return self._transfer.left

    def wait(self, stop: Stop) -> None:
        self._wake_ups.wait(stop, at_most=self._transfer.schedule.pause)

    def reset(self) -> None:
        """Start with a full look: marks are only good for the connection that they were learnt on."""
        self._transfer.forget()

    def close(self) -> None:
        self._wake_ups.close()
        self._bell.close()
