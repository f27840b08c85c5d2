"""A server of moto's, which plays AWS; prints its port, and runs until it is killed.

Moto's queues lose a message that is added while another one is deleted, forget the deduplication id of what is deleted,
give out a group that comes again with its last message first, and take longer for each message that they have. Those of
this server don't, and remember deduplication ids for longer than five minutes, so that a test may take its time.
"""

import signal
import sys
import time
from threading import RLock
from typing import Any

from moto.server import ThreadedMotoServer
from moto.sqs import models

REMEMBERED = 3_600.0  # seconds
LOOKS_AGAIN = 0.02  # seconds
receive_now = models.SQSBackend.receive_message
queue_attributes = models.SQSBackend.get_queue_attributes
change_visibility = models.SQSBackend.change_message_visibility


class CarefulQueue(models.Queue):
    """One that several threads may use at once."""

    __module__ = models.Queue.__module__  # by which moto knows of which service it is

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.lock = RLock()
        self.counts = False  # whether its attributes say how many messages it has; moto asks for them with each message
        self._remembered: dict[str, float] = {}
        super().__init__(*arguments, **options)

    def add_message(self, message: models.Message) -> None:
        with self.lock:
            if self.fifo_queue and (once := message.deduplication_id):
                if time.monotonic() - self._remembered.get(once, -REMEMBERED) < REMEMBERED:
                    return
                self._remembered[once] = time.monotonic()
            self._messages.append(message)

    def delete_message(self, receipt_handle: str) -> None:
        with self.lock:
            super().delete_message(receipt_handle)

    def unlock_groups(self) -> None:
        """Let go of messages that were received, and are visible again: of a whole group before any of it is given."""
        self._pending_messages = {one for one in self._pending_messages if not one.visible}

    @property
    def approximate_number_of_messages(self) -> int:
        return len(self.messages) if self.counts else 0

    @property
    def approximate_number_of_messages_not_visible(self) -> int:
        return sum(not one.visible for one in self._messages) if self.counts else 0

    @property
    def approximate_number_of_messages_delayed(self) -> int:
        return sum(one.delayed for one in self._messages) if self.counts else 0


def receive(
    backend: models.SQSBackend, queue_name: str, count: int, wait_seconds_timeout: int, *others: Any, **named: Any
) -> list[models.Message]:
    queue: Any = backend.get_queue(queue_name)
    deadline = time.monotonic() + wait_seconds_timeout
    while True:
        with queue.lock:
            queue.unlock_groups()
            found = receive_now(backend, queue_name, count, 0, *others, **named)
        if found or time.monotonic() >= deadline:
            return found
        time.sleep(LOOKS_AGAIN)


def attributes_of(backend: models.SQSBackend, queue_name: str, attribute_names: list[str]) -> dict[str, Any]:
    queue: Any = backend.get_queue(queue_name)
    with queue.lock:
        queue.counts = any(name == "All" or name.startswith("Approximate") for name in attribute_names)
        try:
            return queue_attributes(backend, queue_name, attribute_names)
        finally:
            queue.counts = False


def hide(backend: models.SQSBackend, queue_name: str, *others: Any, **named: Any) -> None:
    queue: Any = backend.get_queue(queue_name)
    with queue.lock:
        change_visibility(backend, queue_name, *others, **named)


if __name__ == "__main__":
    changed: Any = models
    changed.Queue = CarefulQueue
    changed.SQSBackend.receive_message = receive
    changed.SQSBackend.get_queue_attributes = attributes_of
    changed.SQSBackend.change_message_visibility = hide
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=int(sys.argv[1]), verbose=False)
    server.start()
    print("ready", flush=True)
    signal.pause()
