"""A transfer of one topic, as a worker: what others publish it leaves to the site's own transfers."""

import time

from django_events.workers.listening import Listener
from django_events.workers.stopping import Stop
from django_events.workers.transferring import TransferWorker


class TransferOfOne(TransferWorker):
    """Moves the events of one topic as `run_transfer` does, and counts what it did."""

    def __init__(self, using: str, topic_id: int, listener: Listener) -> None:
        super().__init__(using, listener, only=topic_id)
        self.moved = self.batches = 0
        self.seconds = 0.0

    def work(self, stop: Stop) -> int:
        began = time.perf_counter()
        if moved := super().work(stop):
            self.moved += moved
            self.batches += 1
            self.seconds += time.perf_counter() - began
        return moved
