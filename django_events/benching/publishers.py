"""Publishers: threads that publish a load in one of the ways there are, at its rate or as fast as it goes through."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import closing

from django.db import transaction

from django_events.benching.load import TYPE, Load
from django_events.benching.timings import Timings, clock
from django_events.declarations import DeclaredTopic
from django_events.publishing.api import publish, publish_many
from django_events.publishing.writer import BufferedWriter
from django_events.workers.stopping import Stop

# Without a rate, publishers wait while so many events are not through: the buffer's table would keep its size for ever.
MOST_IN_FLIGHT = 20_000
LATE = 1.0  # seconds, for what was due in the end and is late
LOOK_AGAIN = 0.002  # seconds

Publish = Callable[[range], None]


class Publishers:
    """What the threads share."""

    def __init__(self, using: str, topic: DeclaredTopic, load: Load, timings: Timings) -> None:
        self.using = using
        self._topic = topic
        self._load = load
        self._timings = timings

    def work(self, stop: Stop) -> None:
        """Publish until all is, its time is over, or it is told to stop. One thread's share."""
        if self._load.via == "writer":
            with closing(BufferedWriter(self._topic, using=self.using)) as writer:
                self._publish_with(stop, lambda numbers: self._write(writer, numbers))
        else:
            self._publish_with(stop, self._many if self._load.via == "publish_many" else self._one)

    def _publish_with(self, stop: Stop, publish_these: Publish) -> None:
        load, timings = self._load, self._timings
        ending = timings.started + load.seconds + (LATE if load.rate else 0.0)
        while not stop.requested and clock() < ending:
            if load.rate is None and timings.in_flight >= MOST_IN_FLIGHT:
                stop.wait(LOOK_AGAIN)
                continue
            if not (numbers := timings.take(load.step)):
                return
            due = self._wait_until_due(numbers, stop)
            if stop.requested:
                return
            timings.note_due(numbers, due)
            publish_these(numbers)

    def _wait_until_due(self, numbers: Sequence[int], stop: Stop) -> float:
        offset = self._load.due(numbers[0])
        if offset is None:
            return clock()
        due = self._timings.started + offset
        if (left := due - clock()) > LOOK_AGAIN:
            stop.wait(left - LOOK_AGAIN)
        if (left := due - clock()) > 0 and not stop.requested:
            time.sleep(left)
        return due

    def _one(self, numbers: range) -> None:
        [n] = numbers
        value, key = self._load.value(n), self._load.key(n)
        with transaction.atomic(self.using):
            publish(self._topic, value, type=TYPE, key=key, using=self.using)
        self._timings.note_committed(numbers)

    def _many(self, numbers: range) -> None:
        drafts = [self._load.draft(n) for n in numbers]
        with transaction.atomic(self.using):
            publish_many(self._topic, drafts, using=self.using)
        self._timings.note_committed(numbers)

    def _write(self, writer: BufferedWriter, numbers: range) -> None:
        [n] = numbers

        def committed(future: "Future[bool]") -> None:
            if future.exception() is None:
                self._timings.note_committed(numbers)

        writer.publish(self._load.value(n), type=TYPE, key=self._load.key(n)).add_done_callback(committed)
