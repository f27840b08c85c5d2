"""Waiting for one's own writes, and snapshots of tables."""

from collections.abc import Callable, Iterator

from django.db import connection

from django_events import publish
from django_events.declarations import DeclaredConsumer, DeclaredTopic
from django_events.operations import snapshot
from tests.benchmarks.by_hand import noop
from tests.benchmarks.changes import BUFFER, Captured, create_tables
from tests.benchmarks.consuming import registered
from tests.benchmarks.database import connect, settle, truncate
from tests.benchmarks.end_to_end import ENDING, RATE, cast, is_passed, percentile
from tests.benchmarks.harness import Effort, Row, Samples, at_least, at_most, figure, interleave, timed
from tests.benchmarks.transfer import declared

ROWS = 1_000_000


@figure("X12", "wait_for() behind each of 100 commits a second, against the handler that it waits for")
def waiting(effort: Effort) -> Iterator[Row]:
    """Three processes. The handler of N8 notes when it gets the event; the publisher, when wait_for() returned.

    A handler notes before its transaction is committed, and wait_for() returns behind that.
    """
    seconds = max(effort.events(30), 10)
    values: dict[str, list[float]] = {}
    for _ in range(effort.rounds(5)):
        for what, milliseconds in _latencies(seconds).items():
            ordered = sorted(milliseconds)
            for share in (0.5, 0.99):
                values.setdefault(f"{what}, p{100 * share:.0f}", []).append(percentile(ordered, share))
    samples = Samples(values)
    for share, goal in (("p50", at_most(2.0)), ("p99", at_most(2.0))):
        yield samples.row(
            f"wait_for() at {RATE}/s, since the commit, {share}",
            f"seen, {share}",
            f"handled, {share}",
            unit="ms",
            goal=goal,
        )
    yield samples.row("wait_for() of what was passed before", "again, p50", "seen, p50", unit="ms")


def _latencies(seconds: int) -> dict[str, list[float]]:
    truncate(BUFFER)
    topic = DeclaredTopic(name="bench")
    consumer = DeclaredConsumer(name="bench", topics=("bench",), handler=noop)
    with declared(topic), registered(consumer), cast() as processes:
        processes.transfer()
        reader = processes.play("note_latency", "stream")
        publish("bench", {"sent": 0})
        processes.wait_until(lambda: is_passed(consumer, 1), what="the first event")
        publisher = processes.play("publish_and_wait", RATE, seconds)
        sent = processes.result("publish_and_wait", publisher, seconds=seconds + ENDING)
        processes.wait_until(lambda: is_passed(consumer, 1 + len(sent)), what="the last event")
        handled = dict(processes.stop("note_latency", reader))
    return {
        "seen": [1_000 * (seen - committed) for _, committed, seen, _ in sent],
        "handled": [1_000 * (handled[began] - committed) for began, committed, _, _ in sent],
        "again": [1_000 * (again - seen) for _, _, seen, again in sent],
    }


@figure("X18", "a snapshot of a captured table of 1,000,000 rows, against COPY of it, and one INSERT of all by hand")
def snapshots(effort: Effort) -> Iterator[Row]:
    rows = effort.events(ROWS)
    create_tables()
    for trigger in Captured._meta.triggers:  # type: ignore[attr-defined]  # of an app that isn't installed
        trigger.register(Captured)
    table = Captured._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} (customer, status, quantity, total, placed_at)"
            f" SELECT 'customer ' || n % 1000, 'placed', n % 7, 44.98, now() FROM generate_series(1, {rows}) AS n"
        )
        truncate(BUFFER)
        cursor.execute(f"VACUUM (ANALYZE) {table}")

    def of(measure: Callable[[], object]) -> Callable[[], float]:
        def rate() -> float:
            truncate(BUFFER)
            settle()
            return rows / timed(measure)

        return rate

    blocks = {
        "snapshot()": of(lambda: snapshot(Captured, most_buffered=2 * rows)),
        "COPY to a client": of(_copied),
        "one INSERT": of(_inserted),
    }
    samples = interleave(blocks, rounds=effort.rounds(5))
    what = f"snapshot() of a captured table of {rows:,} rows"
    yield samples.row(what, "snapshot()", "COPY to a client", unit="rows/s")
    yield samples.row(what, "snapshot()", "one INSERT", unit="rows/s", goal=at_least(0.3))
    truncate(BUFFER, table)


def _copied() -> None:
    with connect() as plain, plain.cursor() as cursor, cursor.copy(f"COPY {Captured._meta.db_table} TO STDOUT") as rows:
        for _ in rows:
            pass


def _inserted() -> None:
    """What the trigger's statement makes of all rows at once, and none is locked."""
    with connect() as plain:
        plain.execute(
            f"INSERT INTO {BUFFER} (topic_id, type, key, value, metadata)"
            " SELECT (SELECT id FROM django_events_topic WHERE name = 'payments'), 'captured.snapshot', r.id::text,"
            " to_jsonb(shown), '{}'"
            f" FROM {Captured._meta.db_table} AS r"
            " CROSS JOIN LATERAL (SELECT r.id, r.customer, r.status, r.quantity, r.total::text AS total,"
            """ to_char(r.placed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS placed_at) AS shown"""
        )
