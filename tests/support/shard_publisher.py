"""A publisher of events that go to the shard of their key, until SIGTERM: what was committed is in its journal.

Each key is published by one process alone, one event after the other.
"""

import json
import random
import sys
from pathlib import Path

import django
from django.db import transaction

django.setup()

from django_events import publish, shard_of  # noqa: E402
from django_events.exceptions import WrongShard  # noqa: E402
from django_events.workers.stopping import stop_on_signals  # noqa: E402


def main(name: str, journal_path: str) -> None:
    dice = random.Random(name)
    numbers = dict.fromkeys([f"{name}-{number}" for number in range(10)], 0)
    refused = 0
    with stop_on_signals() as stop, Path(journal_path).open("a", buffering=1) as journal:
        while not stop.requested:
            key = dice.choice(list(numbers))
            shard = shard_of(key)
            try:
                with transaction.atomic(using=shard):
                    publish("steps", numbers[key], key=key, shard_by=key, using=shard)
                    if dice.random() < 0.1:
                        stop.wait(0.02)
            except WrongShard:
                refused += 1
            else:
                journal.write(json.dumps({"outcome": "committed", "values": [f"{key} {numbers[key]}"]}) + "\n")
                numbers[key] += 1
            stop.wait(0.03)
    print(f"{refused} refused")


if __name__ == "__main__":
    main(*sys.argv[1:])
