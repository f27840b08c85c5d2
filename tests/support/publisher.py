"""A publisher for tests that kill things: it publishes until SIGTERM and writes down what it did.

Each line of its journal says which values a transaction published and how it ended: committed,
rolled back, or unknown, when the connection was lost before the answer to COMMIT came.

With `behind` it waits while that consumer has much to do: on a slow machine it would publish for minutes what consumers
then handle for many minutes.
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


MUCH = 300  # events
LAG = """
SELECT sum(CASE c.mode
    WHEN 'queue' THEN (SELECT count(*) FROM django_events_delivery d WHERE d.consumer_id = c.id)
    ELSE (SELECT coalesce(max(e.id), 0) FROM django_events_event e WHERE e.topic_id = c.topic_id) - p.position
END)
FROM django_events_consumer c
JOIN django_events_position p ON p.consumer_id = c.id
WHERE c.name = %s
"""


def has_much_to_do(consumer: str) -> bool:
    """Whether a queue, or a stream that isn't partitioned, is far behind; not while the database can't say."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(LAG, [consumer])
            [[behind]] = cursor.fetchall()
    except (DatabaseError, InterfaceError):
        connection.close()
        return False
    return behind is not None and behind > MUCH


def main(
    name: str, journal_path: str, isolation: str = "read committed", pause: str = "0", behind: str | None = None
) -> None:
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
            while behind is not None and not stop.requested and has_much_to_do(behind):
                stop.wait(0.2)


if __name__ == "__main__":
    main(*sys.argv[1:])
