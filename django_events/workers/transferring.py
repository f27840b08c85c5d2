"""The transfer as a worker: `manage.py run_transfer` runs it."""

from django_events import sql
from django_events.conf import settings
from django_events.log.setbacks import TopicSetbacks
from django_events.log.transfer import Transfer
from django_events.sql import prepared
from django_events.workers.listening import Listener
from django_events.workers.loop import connect_for_work
from django_events.workers.stopping import Stop
from django_events.workers.wakeup_flag import WakeupFlag
from django_events.workers.wakeups import SOON, WakeUps

# So many batches one after the other, large or small, and publishers need not notify: there is something to do anyway.
BUSY, BUSY_SMALL = 2, 5


class TransferWorker:
    """Moves what is in the buffer, of all topics or `only` of one, and sleeps when nothing is."""

    def __init__(self, using: str, listener: Listener, *, only: int | None = None) -> None:
        self.using = using
        self._transfer = Transfer(using, only=only)
        self._in_a_row = 0
        self._wakeup = WakeupFlag()
        self._wake_ups = WakeUps(listener, self._wakeup, poll=settings.POLL_INTERVAL.total_seconds())

    def connect(self) -> None:
        if connect_for_work(self.using):
            self.reset()
            self._transfer.session = prepared.begin(self.using, {**sql.BATCH_SETTINGS, **sql.vanishing()})

    def work(self, stop: Stop) -> int:
        """Give every topic that has events one turn."""
        named, moved, enough = self._wake_ups.take(), 0, False
        if named is not None:
            moved, enough = self._transfer.move_few(named)
        if not enough:
            moved += self._transfer.move(until=lambda: stop.requested)
            if moved or self._transfer.left:
                self._wake_ups.look_again()
        self._in_a_row = self._in_a_row + 1 if moved else 0
        if self._in_a_row >= (BUSY_SMALL if enough else BUSY):
            self._wake_ups.busy()
        elif moved and not enough:
            self._wake_ups.found()
        return moved

    @property
    def left(self) -> bool:
        return self._transfer.left

    @property
    def setbacks(self) -> TopicSetbacks:
        """The topics whose events can't be moved."""
        return self._transfer.setbacks

    def wait(self, stop: Stop) -> None:
        dues: list[float | None] = [SOON] if self.setbacks else []
        # A transfer of a single topic publishes neither scheduled events nor ticks, so it doesn't wake up for them.
        if self._transfer.only is None:
            dues += [self._transfer.schedule.pause, self._transfer.ticks.pause]
        self._wake_ups.wait(stop, at_most=min((due for due in dues if due is not None), default=None))

    def reset(self) -> None:
        """Start with a full look: what was learnt on the lost connection may not hold any more."""
        self._transfer.forget()

    def close(self) -> None:
        self._wake_ups.close()
        self._wakeup.close()
