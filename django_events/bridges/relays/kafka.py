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
from functools import cached_property
from importlib import import_module
from typing import Any

from django_events.bridges.brokers import check_package, name_of, shown
from django_events.bridges.relays.targets import Bridge, Bridges, Route, TargetUnavailable
from django_events.received import ReceivedEvent

NAME = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True, kw_only=True)
class Kafka:
    """A Kafka topic as a relay's target."""

    topic: str | Callable[[ReceivedEvent], str]
    broker: str = "kafka"
    transactional_id: str | Callable[[str], str] | None = None

    def __str__(self) -> str:
        return shown(self.broker, self.topic)

    def problems(self) -> Iterator[str]:
        if not callable(self.topic) and not (isinstance(self.topic, str) and NAME.fullmatch(self.topic)):
            yield f"kafka has {self.topic!r}, expected the name of a topic, or a function of an event."
        if self.transactional_id is None:
            return
        if not callable(self.transactional_id) and not _is_id(self.transactional_id):
            yield (
                f"kafka has transactional_id={self.transactional_id!r}, expected a text that no other relay has, or a "
                "function that makes one of a database's alias."
            )
        if callable(self.topic):
            yield "kafka has a transactional_id and a function of an event: with transactions the topic is a name."

    def check_installed(self) -> None:
        check_package("confluent_kafka", "kafka")

    def route(self, event: ReceivedEvent, partition: int | None) -> Route:
        if (fixed := self._fixed_route) is not None:
            return fixed
        topic = name_of(self.topic, event, NAME, "the name of a topic: up to 249 letters, digits, dots, '_' and '-'")
        log = self._id_in(event.database)
        return Route(topic, f"{log}-{partition}" if log and partition is not None else log)

    @cached_property
    def _fixed_route(self) -> Route | None:
        """Where all events go, if no function decides that, and no partition has a log of its own."""
        return Route(self.topic) if isinstance(self.topic, str) and self.transactional_id is None else None

    def _id_in(self, database: str) -> str:
        """The transactional id of a database's relay, or nothing; TargetUnavailable if the function says none.

        It is made of the alias alone, so that all events of a partition have the same.
        """
        if not callable(self.transactional_id):
            return self.transactional_id or ""
        try:
            found = self.transactional_id(database)
        except Exception as error:
            raise TargetUnavailable(
                f"The function of transactional_id raised {type(error).__name__} of {database!r}, expected a text."
            ) from error
        if not _is_id(found):
            raise TargetUnavailable(
                f"The function of transactional_id says {found!r} of {database!r}, expected a text."
            )
        return found

    def bridge(self) -> Bridge:
        made: Bridge
        if self.transactional_id is None:
            made = import_module("django_events.bridges.relays.kafka_bridge").KafkaBridge(self.topic, self.broker)
        else:
            made = self._transactions().LoneKafkaBridge(self.bridges(), self.broker)
        return made

    def bridges(self) -> Bridges | None:
        """What the threads of a process share, if they do: the producers of transactions."""
        if self.transactional_id is None:
            return None
        shared: Bridges = self._transactions().KafkaLogs(self.topic, self.broker)
        return shared

    def _transactions(self) -> Any:
        return import_module("django_events.bridges.relays.kafka_transactions")


def _is_id(transactional_id: object) -> bool:
    return isinstance(transactional_id, str) and bool(transactional_id)


def kafka(
    topic: str | Callable[[ReceivedEvent], str],
    *,
    broker: str = "kafka",
    transactional_id: str | Callable[[str], str] | None = None,
) -> Kafka:
    """A relay's target: a topic of the Kafka that `DJANGO_EVENTS["BROKERS"]` has under this name.

    The options there are librdkafka's, like "bootstrap.servers". With a `transactional_id`, which no other relay of
    that Kafka has, each event is there exactly once for who reads committed messages. Where several databases relay, it
    is a function of a database's alias, because each needs its own.
    """
    return Kafka(topic=topic, broker=broker, transactional_id=transactional_id)
