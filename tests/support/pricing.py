"""A publisher of states for tests: it sets keys of its own, deletes some, and writes down what it did, until SIGTERM.

Each line of its journal has the keys and values that a transaction published, if it committed.
"""

import json
import random
import sys
from pathlib import Path

import django
from django.db import transaction

django.setup()

from django_events import Draft, publish_many  # noqa: E402
from django_events.workers.stopping import stop_on_signals  # noqa: E402

KEYS = 150


class RolledBackOnPurpose(Exception):
    pass


def main(name: str, journal_path: str, topic: str) -> None:
    dice = random.Random(name)
    sequence = 0
    with stop_on_signals() as stop, Path(journal_path).open("a", buffering=1) as journal:
        while not stop.requested:
            told: list[tuple[str, int | None]] = []
            for _ in range(dice.randint(1, 40)):
                sequence += 1
                told.append((f"{name}-{dice.randrange(KEYS)}", None if dice.random() < 0.1 else sequence))
            try:
                with transaction.atomic():
                    publish_many(topic, [Draft(value=value, key=key) for key, value in told])
                    if dice.random() < 0.1:
                        raise RolledBackOnPurpose
            except RolledBackOnPurpose:
                continue
            journal.write(json.dumps(told) + "\n")
            stop.wait(0.01)  # other tests run beside


if __name__ == "__main__":
    main(*sys.argv[1:])
