"""Publishing: one event beside an insert, one alone, and a thousand at once."""

import json
from collections.abc import Callable, Iterator
from decimal import Decimal

from django.db import connection, transaction

from django_events import BufferedWriter, publish, publish_many
from testproject.shop.models import Order, Product
from tests.benchmarks.database import connect, truncate
from tests.benchmarks.harness import Effort, Row, at_least, at_most, figure, interleave, timed
from tests.benchmarks.samples import (
    PLAIN_COLUMNS,
    TYPE,
    PlainEvent,
    draft,
    encoded,
    key,
    plain_event,
    value,
)

# Small blocks and many rounds: a slow fsync spoils one of many ratios, and their median doesn't see it.
TRANSACTIONS = 20
MANY = 1_000
RAW_INSERT = f"INSERT INTO bench_buffer ({PLAIN_COLUMNS}) VALUES (%s, %s, %s, %s, %s, %s, %s)"
RAW_COPY = f"COPY bench_buffer ({PLAIN_COLUMNS}) FROM STDIN"


def publish_one(n: int) -> None:
    publish("payments", value(n), type=TYPE, key=key(n))


def create_one(n: int) -> None:
    PlainEvent.objects.create(type=TYPE, key=key(n), value=value(n), topic_id=1)


def insert_one(n: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(RAW_INSERT, (1, None, TYPE, key(n), json.dumps(value(n)), None, "{}"))


def _transactions(*steps: Callable[[int], object]) -> float:
    """Seconds per transaction of these steps."""

    def repeat() -> None:
        for n in range(TRANSACTIONS):
            with transaction.atomic():
                for step in steps:
                    step(n)

    return timed(repeat) / TRANSACTIONS


def _clear() -> None:
    truncate(
        "django_events_bufferedevent",
        "bench_event",
        "bench_buffer",
        "shop_order",
        "shop_payment",
        "shop_invoice",
        "shop_receipt",
    )


@figure("N1", "publish() next to one ORM insert in the same atomic(), against the insert alone")
def beside_an_insert(effort: Effort) -> Iterator[Row]:
    _clear()
    product, _ = Product.objects.get_or_create(sku="A-1001", defaults={"price": Decimal("22.49"), "on_shelf": 10})

    def order(n: int) -> None:
        Order.objects.create(customer="Ada Lovelace", product=product, quantity=2, total=Decimal("44.98"))

    samples = interleave(
        {
            "insert": lambda: _transactions(order),
            "publish": lambda: _transactions(order, publish_one),
            "orm": lambda: _transactions(order, create_one),
            "raw": lambda: _transactions(order, insert_one),
        },
        rounds=effort.rounds(300),
    )
    yield samples.row("insert + publish()", "publish", "insert", unit="s", goal=at_most(1.25))
    yield samples.row("insert + ORM insert of the event", "orm", "insert", unit="s")
    yield samples.row("insert + raw INSERT of the event", "raw", "insert", unit="s")
    yield samples.row("insert + publish()", "publish", "raw", unit="s")


@figure("N2", "publish() alone in atomic(), against an ORM create of the event")
def alone(effort: Effort) -> Iterator[Row]:
    _clear()
    samples = interleave(
        {
            "publish": lambda: 1 / _transactions(publish_one),
            "orm create": lambda: 1 / _transactions(create_one),
        },
        rounds=effort.rounds(300),
    )
    yield samples.row("publish()", "publish", "orm create", unit="tx/s", goal=at_least(1.3))


@figure("N3", "publish_many() of 1,000, against bulk_create() and against a raw COPY")
def many_at_once(effort: Effort) -> Iterator[Row]:
    """Drafts, instances and encoded rows are ready before; what is timed is the writing, with its commit."""
    _clear()
    drafts = [draft(n) for n in range(MANY)]
    rows = [encoded(n) for n in range(MANY)]

    def publishing() -> float:
        return MANY / timed(publish_many, "payments", drafts)

    def bulk_create() -> float:
        instances = [plain_event(n) for n in range(MANY)]
        return MANY / timed(PlainEvent.objects.bulk_create, instances)

    with connect(autocommit=False) as plain:

        def write_rows() -> None:
            with plain.transaction(), plain.cursor() as cursor, cursor.copy(RAW_COPY) as copy:
                for row in rows:
                    copy.write_row(row)

        samples = interleave(
            {
                "publish_many": publishing,
                "bulk_create": bulk_create,
                "raw COPY": lambda: MANY / timed(write_rows),
            },
            rounds=effort.rounds(200),
        )
    yield samples.row("publish_many() of 1,000", "publish_many", "bulk_create", unit="events/s", goal=at_least(3))
    yield samples.row("publish_many() of 1,000", "publish_many", "raw COPY", unit="events/s", goal=at_least(0.7))


@figure("N22", "BufferedWriter, one event at a time, against publish_many() of 1,000")
def buffered(effort: Effort) -> Iterator[Row]:
    """Values are ready before; what is timed is publishing them and the flush that settles the last one."""
    truncate("django_events_bufferedevent")
    many = effort.events(20_000)
    values = [value(n) for n in range(many)]
    keys = [key(n) for n in range(many)]
    drafts = [draft(n) for n in range(many)]

    def publish_in_batches() -> None:
        for start in range(0, many, MANY):
            publish_many("payments", drafts[start : start + MANY])

    def write(writer: BufferedWriter) -> None:
        for n in range(many):
            writer.publish(values[n], type=TYPE, key=keys[n])
        writer.flush()

    with BufferedWriter("payments") as writer, BufferedWriter("payments", max_flushes=1) as alone:
        samples = interleave(
            {
                "publish_many": lambda: many / timed(publish_in_batches),
                "writer": lambda: many / timed(write, writer),
                "one flush": lambda: many / timed(write, alone),
            },
            rounds=effort.rounds(40),
        )
    yield samples.row("BufferedWriter, four flushes", "writer", "publish_many", unit="events/s")
    yield samples.row("BufferedWriter, one flush", "one flush", "publish_many", unit="events/s")
