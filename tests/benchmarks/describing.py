"""Schemas: what it costs that events are checked when they are published, and made models when they are read."""

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

from django.db import connection, transaction
from pydantic import BaseModel

from django_events import BufferedWriter, Draft, declarations, schema
from django_events.log import topics
from django_events.publishing.encoding import PLAIN
from django_events.received import ReceivedEvent
from tests.benchmarks.database import truncate
from tests.benchmarks.harness import Effort, Row, at_most, figure, interleave, timed
from tests.benchmarks.samples import TYPE, key, value

TRANSACTIONS = 20
MANY = 1_000
READ = 5_000


class Item(BaseModel):
    sku: str
    quantity: int
    price: Decimal


@schema(TYPE)
class OrderPlaced(BaseModel):
    id: int
    customer: str
    status: Literal["placed", "cancelled"]
    currency: str
    total: Decimal
    placed_at: datetime
    items: list[Item]


@figure("N27", "publish(), publish_many() and a writer of events that a schema checks, and event.data, against none")
def described(effort: Effort) -> Iterator[Row]:
    """A value of 150 to 213 bytes with two or three objects in it. It is ready before, and so is the instance."""
    truncate("django_events_bufferedevent")
    values = [value(n) for n in range(MANY)]
    models = [OrderPlaced(**one) for one in values]
    with ExitStack() as stack:
        plain = _declared(stack, "bench-plain")
        strict = _declared(stack, "bench-strict", schemas=[OrderPlaced])
        unchecked = _declared(stack, "bench-unchecked", schemas=[OrderPlaced], schema_check="off")

        def one_by_one(topic: declarations.DeclaredTopic, published: list[Any], kind: str) -> float:
            def repeat() -> None:
                for n in range(TRANSACTIONS):
                    with transaction.atomic():
                        topic.publish(published[n], type=kind, key=key(n))

            return timed(repeat) / TRANSACTIONS

        def at_once(topic: declarations.DeclaredTopic, published: list[Any], kind: str) -> float:
            drafts = [Draft(value=one, type=kind, key=key(n)) for n, one in enumerate(published)]
            return MANY / timed(topic.publish_many, drafts)

        singly = interleave(
            {
                "none": lambda: one_by_one(plain, values, TYPE),
                "value": lambda: one_by_one(strict, values, TYPE),
                "model": lambda: one_by_one(strict, models, ""),
                "off": lambda: one_by_one(unchecked, models, ""),
            },
            rounds=effort.rounds(300),
        )
        together = interleave(
            {
                "none": lambda: at_once(plain, values, TYPE),
                "value": lambda: at_once(strict, values, TYPE),
                "model": lambda: at_once(strict, models, ""),
                "off": lambda: at_once(unchecked, models, ""),
            },
            rounds=effort.rounds(100),
        )
        with ExitStack() as writers:
            into = {topic: writers.enter_context(BufferedWriter(topic)) for topic in (plain, strict, unchecked)}

            def one_of_many(topic: declarations.DeclaredTopic, published: list[Any], kind: str) -> float:
                def repeat() -> None:
                    for n, one in enumerate(published):
                        into[topic].publish(one, type=kind, key=key(n))
                    into[topic].flush()

                return MANY / timed(repeat)

            written = interleave(
                {
                    "none": lambda: one_of_many(plain, values, TYPE),
                    "value": lambda: one_of_many(strict, values, TYPE),
                    "model": lambda: one_of_many(strict, models, ""),
                    "off": lambda: one_of_many(unchecked, models, ""),
                },
                rounds=effort.rounds(100),
            )
        texts = [one.model_dump_json() for one in models]
        reading = interleave(
            {
                "value": lambda: READ / timed(_read, "value", texts, strict.name),
                "data": lambda: READ / timed(_read, "data", texts, strict.name),
            },
            rounds=effort.rounds(50),
        )
    yield singly.row("publish() of a value, checked", "value", "none", unit="s", goal=at_most(1.15))
    yield singly.row("publish() of a model, checked", "model", "none", unit="s")
    yield singly.row("publish() of a model, not checked", "off", "none", unit="s")
    yield together.row("publish_many() of 1,000 values, checked", "value", "none", unit="events/s")
    yield together.row("publish_many() of 1,000 models, checked", "model", "none", unit="events/s")
    yield together.row("publish_many() of 1,000 models, not checked", "off", "none", unit="events/s")
    yield written.row("BufferedWriter of 1,000 values, checked", "value", "none", unit="events/s")
    yield written.row("BufferedWriter of 1,000 models, checked", "model", "none", unit="events/s")
    yield written.row("BufferedWriter of 1,000 models, not checked", "off", "none", unit="events/s")
    yield reading.row("event.data", "data", "value", unit="events/s")


def _declared(stack: ExitStack, name: str, **options: Any) -> declarations.DeclaredTopic:
    topic = declarations.topic(name, **options)
    stack.callback(declarations.registry.discard, topic)
    topics.sync(connection.alias)
    return topic


def _read(attribute: str, texts: list[str], topic: str) -> None:
    moment = "2026-03-01 12:00:00+00"
    for n in range(READ):
        columns = (n + 1, 0, n + 1, TYPE, key(n), texts[n % MANY], PLAIN[0], '{"schema_version":1}', moment, moment)
        getattr(ReceivedEvent(topic, columns), attribute)
