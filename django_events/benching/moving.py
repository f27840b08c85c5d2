"""A transfer of one topic, as a worker: what others publish it leaves to the site's own transfers."""

import time

from django_events.conf import settings
from django_events.log.transfer import Transfer
from django_events.workers.bell import Bell
from django_events.workers.listening import Listener
from django_events.workers.loop import connect_for_work
from django_events.workers.stopping import Stop
from django_events.workers.wakeups import WakeUps


class TransferOfOne:
    """Moves the events of one topic, sleeps and is woken like `run_transfer`, and counts what it did."""

    def __init__(self, using: str, topic_id: int, listener: Listener) -> None:
        self.using = using
        self.moved = self.batches = 0
        self.seconds = 0.0
        self._transfer = Transfer(using, only=topic_id)
        self._moved_before = False
        self._bell = Bell()
        self._wake_ups = WakeUps(listener, self._bell, poll=settings.POLL_INTERVAL.total_seconds())

    def connect(self) -> None:
        if connect_for_work(self.using):
            self.reset()

    def work(self, stop: Stop) -> int:
        began = time.perf_counter()
        moved = self._transfer.move(until=lambda: stop.requested)
        if moved:
            self.moved += moved
            self.batches += 1
            self.seconds += time.perf_counter() - began
            if self._moved_before:
                self._wake_ups.busy()
            else:
                self._wake_ups.heard()
        self._moved_before = bool(moved)
        return moved

    @property
    def left(self) -> bool:
        return self._transfer.left

    def wait(self, stop: Stop) -> None:
        self._wake_ups.wait(stop)

    def reset(self) -> None:
        self._transfer.forget()

    def close(self) -> None:
        self._wake_ups.close()
        self._bell.close()
