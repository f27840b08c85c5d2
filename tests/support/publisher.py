"""A publisher for tests that kill things: it publishes until SIGTERM and writes down what it did.

Each line of its journal says which values a transaction published and how it ended: committed,
rolled back, or unknown, when the connection was lost before the answer to COMMIT came.
"""

import json
import random
import sys
import time
from pathlib import Path

import django
from django.db import DatabaseError, InterfaceError, connection, transaction

django.setup()

from django_events import Draft, publish, publish_many  # noqa: E402
from django_events.workers.stopping import stop_on_signals  # noqa: E402


class RolledBackOnPurpose(Exception):
    pass


def main(name: str, journal_path: str, isolation: str = "read committed", pause: str = "0") -> None:
    dice = random.Random(name)
    sequence = 0
    # A process that sees the journal may send signals.
    with stop_on_signals() as stop, Path(journal_path).open("a", buffering=1) as journal:
        while not stop.requested:
            values: list[str] = []
            before = sequence
            try:
                outcome = "rolled back"
                with transaction.atomic():
                    with connection.cursor() as cursor:
                        cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {isolation}")
                    for _ in range(dice.randint(1, 4)):
                        sequence += 1
                        topic = dice.choice(["orders", "payments", "stock"])
                        key = f"{name}-{dice.randint(1, 3)}-{topic}"
                        type = dice.choice(["kept", "passed over"])
                        values.append(f"{name}/{sequence}")
                        if dice.random() < 0.2:
                            publish_many(topic, [Draft(value=values[-1], key=key, type=type)])
                        else:
                            publish(topic, values[-1], key=key, type=type)
                    if dice.random() < 0.2:
                        raise RolledBackOnPurpose
                    outcome = "unknown"
                outcome = "committed"
            except RolledBackOnPurpose:
                pass
            except (DatabaseError, InterfaceError):
                connection.close()
                time.sleep(0.05)
            journal.write(json.dumps({"outcome": outcome, "values": values, "after": before}) + "\n")
            stop.wait(float(pause))


if __name__ == "__main__":
    main(*sys.argv[1:])
