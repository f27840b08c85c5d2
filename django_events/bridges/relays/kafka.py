"""Relays to Kafka: each key in order; at least once, and with transactions exactly once.

    relay(orders, to=kafka("shop.orders"), name="orders-to-kafka")

The producer is idempotent and waits for all replicas, so what it repeats by itself is there once, in order. It can't
know what another producer has sent: after a worker was killed or frozen, or an answer didn't come in time, up to a
batch of each partition comes again. With a `transactional_id` none does: see `kafka_transactions`.

The key of a message is the event's, and the partition follows from it as it does for Java's clients. An event whose
value is null has no value, so a compacted topic forgets its key.

It needs confluent-kafka: pip install 'django-events-pg[kafka]'
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module

from django_events.bridges.brokers import check_package, name_of, shown
from django_events.bridges.relays.targets import Bridge, Route
from django_events.received import ReceivedEvent

NAME = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True, kw_only=True)
class Kafka:
    """A Kafka topic as a relay's target."""

    topic: str | Callable[[ReceivedEvent], str]
    broker: str = "kafka"
    transactional_id: str | None = None

    def __str__(self) -> str:
        return shown(self.broker, self.topic)

    def problems(self) -> Iterator[str]:
        if not callable(self.topic) and not (isinstance(self.topic, str) and NAME.fullmatch(self.topic)):
            yield f"kafka has {self.topic!r}, expected the name of a topic, or a function of an event."
        if self.transactional_id is None:
            return
        if not isinstance(self.transactional_id, str) or not self.transactional_id:
            yield f"kafka has transactional_id={self.transactional_id!r}, expected a text that no other relay has."
        if callable(self.topic):
            yield "kafka has a transactional_id and a function of an event: with transactions the topic is a name."

    def check_installed(self) -> None:
        check_package("confluent_kafka", "kafka")

    def route(self, event: ReceivedEvent, partition: int | None) -> Route:
        topic = name_of(self.topic, event, NAME, "the name of a topic: up to 249 letters, digits, dots, '_' and '-'")
        log = self.transactional_id or ""
        return Route(topic, f"{log}-{partition}" if log and partition is not None else log)

    def bridge(self) -> Bridge:
        made: Bridge
        if self.transactional_id is None:
            made = import_module("django_events.bridges.relays.kafka_bridge").KafkaBridge(self.topic, self.broker)
        else:
            of_transactions = import_module("django_events.bridges.relays.kafka_transactions")
            made = of_transactions.TransactionalKafkaBridge(self.topic, self.broker)
        return made


def kafka(
    topic: str | Callable[[ReceivedEvent], str], *, broker: str = "kafka", transactional_id: str | None = None
) -> Kafka:
    """A relay's target: a topic of the Kafka that `DJANGO_EVENTS["BROKERS"]` has under this name.

    The options there are librdkafka's, like "bootstrap.servers". With a `transactional_id`, which no other relay of
    that Kafka has, each event is there exactly once for who reads committed messages.
    """
    return Kafka(topic=topic, broker=broker, transactional_id=transactional_id)
