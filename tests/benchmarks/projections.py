"""Projections: 100,000 keys through a worker, beside bulk_create of the same rows, and beside a handler by hand."""

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from time import perf_counter
from typing import Any

from django.db import connection, models

from django_events import ReceivedEvent, declarations
from django_events.consuming import registration
from django_events.declarations import DeclaredTopic
from django_events.deriving.rebuilding import rebuild
from django_events.models import Consumer, Position
from tests.benchmarks.consuming import consume, rewind
from tests.benchmarks.database import settle, truncate
from tests.benchmarks.harness import Effort, Row, at_least, figure, interleave, timed
from tests.benchmarks.transfer import backlog, declared

KEYS = 100_000
BATCH = 1_000


class Total(models.Model):
    """What a projection keeps of each key."""

    code = models.CharField(max_length=20, primary_key=True)
    orders = models.IntegerField(default=0)
    total = models.DecimalField(max_digits=12, decimal_places=2, default=Decimal(0))

    class Meta:
        app_label = "benchmarks"
        db_table = "bench_total"


def add(row: Any, event: ReceivedEvent) -> None:
    row.orders += 1
    row.total += Decimal(event.value["total"])


def add_by_hand(events: list[ReceivedEvent]) -> None:
    """What a team writes first: a row is read, changed and saved for each event."""
    for event in events:
        row, _ = Total.objects.get_or_create(code=event.value["id"])
        add(row, event)
        row.save()


@contextmanager
def table() -> Iterator[None]:
    with connection.schema_editor() as editor:
        editor.create_model(Total)
    try:
        yield
    finally:
        with connection.schema_editor() as editor:
            editor.delete_model(Total)


def create(rows: int) -> float:
    """Rows a second of bulk_create in batches of the same size, each in a transaction of its own."""
    truncate("bench_total")
    started = perf_counter()
    for first in range(0, rows, BATCH):
        made = [Total(code=str(n), orders=1, total=Decimal("44.98")) for n in range(first, min(first + BATCH, rows))]
        Total.objects.bulk_create(made)
    return rows / (perf_counter() - started)


@figure("X13", "a projection of 100,000 keys, against bulk_create of the same rows and a handler by hand")
def projecting(effort: Effort) -> Iterator[Row]:
    keys = effort.events(KEYS)
    topic = DeclaredTopic(name="bench")
    few = keys // 20
    with declared(topic) as [topic_id], table():
        backlog([topic_id], keys)
        kept = declarations.projection("bench", into=Total, name="bench-kept", key="$.id", batch_size=BATCH)(add)
        by_hand = declarations.DeclaredConsumer(
            name="bench-by-hand", topics=("bench",), handler=add_by_hand, batch_size=BATCH
        )
        declarations.consumers.add(by_hand)
        try:
            registration.sync(connection.alias)

            def fold(*, rows: int) -> float:
                create(rows) if rows else truncate("bench_total")
                rewind([kept])
                settle("django_events_position", "bench_total")
                return consume([kept], keys)

            def fold_by_hand() -> float:
                positions = Position.objects.filter(consumer__name="bench-by-hand")
                positions.update(position=keys - few, number=keys - few)
                truncate("bench_total")
                return consume([by_hand], few)

            def made_anew() -> float:
                return keys / timed(lambda: rebuild(kept))

            ways = {
                "new rows": lambda: fold(rows=0),
                "rows that are there": lambda: fold(rows=keys),
                "a rebuild": made_anew,
                "bulk_create": lambda: create(keys),
                "one by one, by hand": fold_by_hand,
            }
            samples = interleave(ways, rounds=effort.rounds(5))
        finally:
            for one in (kept, by_hand):
                declarations.consumers.discard(one)
            Consumer.objects.filter(name__in=["bench-kept", "bench-by-hand"]).delete()
    yield samples.row("a projection, new rows", "new rows", "bulk_create", unit="events/s", goal=at_least(0.25))
    yield samples.row("a projection, rows that are there", "rows that are there", "bulk_create", unit="events/s")
    yield samples.row("a rebuild", "a rebuild", "bulk_create", unit="events/s")
    yield samples.row("a projection, new rows", "new rows", "one by one, by hand", unit="events/s", goal=at_least(5))
