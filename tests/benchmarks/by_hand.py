"""What a team would write by hand with psycopg: the least that a consumer does, to compare with."""

from typing import Any, NamedTuple

from tests.benchmarks.database import connect
from tests.benchmarks.harness import timed


def noop(given: object) -> None:
    """A handler that does nothing, of one event or of many."""


class Plain(NamedTuple):
    """What a team would make of a row by hand."""

    id: int
    partition: int
    number: int
    type: str
    key: str | None
    value: Any
    body: bytes | None
    metadata: Any
    published_at: Any
    logged_at: Any


READ = "SELECT {columns} FROM bench_log WHERE topic_id = %s AND id > %s ORDER BY id LIMIT %s"
LAZY = "id, partition, number, type, key, value::text, body, metadata::text, published_at, logged_at"
DECODED = "id, partition, number, type, key, value, body, metadata::text, published_at, logged_at"
PROGRESS = "UPDATE bench_position SET position = %s WHERE id = 1"


def read_log(topic_id: int, events: int, *, size: int, single: bool = False, columns: str = LAZY) -> float:
    """Events per second of a bare loop: read a batch, make an object of each, hand over, note progress, commit."""
    read, passed = READ.format(columns=columns), 0
    with connect(autocommit=False) as plain, plain.cursor() as cursor:

        def repeat() -> None:
            nonlocal passed
            position = 0
            while True:
                cursor.execute(read, (topic_id, position, size))
                batch = [Plain(*row) for row in cursor.fetchall()]
                if not batch:
                    return
                if single:
                    for event in batch:
                        noop(event)
                else:
                    noop(batch)
                position = batch[-1].id
                cursor.execute(PROGRESS, (position,))
                plain.commit()
                passed += len(batch)

        seconds = timed(repeat)
    if passed != events:
        raise RuntimeError(f"By hand, {passed} of {events} events were passed.")
    return events / seconds
