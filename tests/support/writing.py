"""A process with a BufferedWriter, for tests that end it in some way.

Its journal has a line for each event that was taken in, one for each that was written, and what a test waits for.
"""

import json
import os
import signal
import sys
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import django

django.setup()

from django_events import BufferedWriter, close_writers  # noqa: E402

MANY = 500


def main(way: str, journal_path: str) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    if way != "unhandled":
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with Path(journal_path).open("a", buffering=1) as journal:

        def note(outcome: str, *values: str) -> None:
            journal.write(json.dumps({"outcome": outcome, "values": values}) + "\n")

        def publish(writer: BufferedWriter, n: int, who: str = "p") -> None:
            value = f"{who}/{n}"
            future = writer.publish(value, key=f"{who} {n % 7}")
            note("taken", value)
            if way in ("killed", "unhandled"):
                future.add_done_callback(lambda future: note("written", value))

        ways: dict[str, Any] = {
            "forever": forever,
            "killed": forever,
            "unhandled": forever,
            "hook": hook,
            "waiting": waiting,
            "own": own_handler,
            "left": left_open,
            "fork": fork,
        }
        ways[way](publish, note)


def forever(publish: Any, note: Any) -> None:
    """Publish until something ends the process."""
    with BufferedWriter("orders", max_items=20, max_flushes=2, max_age=timedelta(milliseconds=20)) as writer:
        for n in count():
            publish(writer, n)


def waiting(publish: Any, note: Any) -> None:
    """Publish a little, and wait for a signal."""
    with BufferedWriter("orders", max_wait=timedelta(milliseconds=300)) as writer:
        for n in range(30):
            publish(writer, n)
        note("waits")
        signal.pause()


def own_handler(publish: Any, note: Any) -> None:
    """SIGTERM is the site's own business, and stays it."""
    told: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: told.append(number))
    with BufferedWriter("orders", max_items=20) as writer:
        for n in count():
            publish(writer, n)
            if told:
                break
    note("left by itself")
    sys.exit(3)


def hook(publish: Any, note: Any) -> None:
    """A server that ends its process by os._exit(), after the hook that it has for its site."""
    many = timedelta(hours=1)
    writers = [BufferedWriter("orders", max_flushes=1, max_age=many) for _ in range(2)]
    for n in range(MANY):
        publish(writers[n % 2], n, f"p/{n % 2}")
    close_writers()
    os._exit(5)


def left_open(publish: Any, note: Any) -> None:
    """The writer is never closed."""
    writer = BufferedWriter("orders", max_age=timedelta(hours=1))
    for n in range(MANY):
        publish(writer, n)


def fork(publish: Any, note: Any) -> None:
    """Parent and child use the same writer, and the parent's batch is half full when it forks."""
    writer = BufferedWriter("orders", max_items=200, max_flushes=1, max_age=timedelta(hours=1))
    for n in range(MANY):
        publish(writer, n)
    child = os.fork()
    who = "p" if child else "child"
    for n in range(MANY, 2 * MANY):
        publish(writer, n, who)
    if child:
        _, status = os.waitpid(child, 0)
        note("the child ended", str(os.waitstatus_to_exitcode(status)))


if __name__ == "__main__":
    main(*sys.argv[1:])
