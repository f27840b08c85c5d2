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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from django_events.bridges.brokers import check_package, name_of, shown
from django_events.bridges.relays.answers import UNANSWERED, Unroutable
from django_events.bridges.relays.kafka_producer import KafkaProducer, is_of_its_batch, largest_of, refusal, settings_of
from django_events.bridges.relays.targets import Bridge, Newest, RelayMessage, Route
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
        if self.transactional_id is None:
            return KafkaBridge(self)
        from django_events.bridges.relays.kafka_transactions import TransactionalKafkaBridge

        return TransactionalKafkaBridge(str(self.topic), self.broker)


def kafka(
    topic: str | Callable[[ReceivedEvent], str], *, broker: str = "kafka", transactional_id: str | None = None
) -> Kafka:
    """A relay's target: a topic of the Kafka that `DJANGO_EVENTS["BROKERS"]` has under this name.

    The options there are librdkafka's, like "bootstrap.servers". With a `transactional_id`, which no other relay of
    that Kafka has, each event is there exactly once for who reads committed messages.
    """
    return Kafka(topic=topic, broker=broker, transactional_id=transactional_id)


class KafkaBridge:
    """One idempotent producer."""

    largest: int | None = None

    def __init__(self, target: Kafka) -> None:
        self._target = target
        self._producer: Any = None

    def open(self) -> None:
        settings = settings_of(self._target.broker)
        self._producer = KafkaProducer(self._target.broker, settings)
        self.largest = largest_of(settings)

    def newest(self, log: str) -> Newest | None:
        return None

    def send(self, messages: Sequence[RelayMessage]) -> Sequence[Exception | None]:
        answers: list[Any] = [UNANSWERED] * len(messages)
        sent = len(messages)

        def note(index: int, error: Any, message: Any) -> None:
            answers[index] = error

        with self._producer.explained():
            for index, message in enumerate(messages):
                if (error := self._refused(message) or self._hand_over(message, partial(note, index))) is not None:
                    answers[index], sent = error, index
                    break
            self._producer.wait()
            # A broker refuses a whole record batch: which of its messages is to blame shows when each is sent alone.
            for index in range(sent if len(messages) > 1 else 0):
                if is_of_its_batch(answers[index]):
                    answers[index] = UNANSWERED
                    if (error := self._hand_over(messages[index], partial(note, index))) is not None:
                        answers[index] = error
                    self._producer.wait()
                    if answers[index] is UNANSWERED:
                        break
            return self._judged(messages, answers)

    def _refused(self, message: RelayMessage) -> Unroutable | None:
        """Why a message can't go where a function says."""
        if callable(self._target.topic) and not self._producer.has(message.route.to):
            return Unroutable(f"Kafka {self._target.broker!r} has no topic {message.route.to!r}.")
        return None

    def _hand_over(self, message: RelayMessage, answered: Callable[[Any, Any], None]) -> Any:
        return self._producer.hand_over(message, answered)

    def _judged(self, messages: Sequence[RelayMessage], answers: Sequence[Any]) -> Sequence[Exception | None]:
        judged: list[Exception | None] = []
        for index, answer in enumerate(answers):
            if answer is None or isinstance(answer, Unroutable):
                judged.append(answer)
            elif is_of_its_batch(answer):
                judged.append(refusal(answer))
            elif answer is UNANSWERED and any(judged):
                return judged
            else:
                why = self._producer.unanswered(messages[index].route.to) if answer is UNANSWERED else answer
                acknowledged = index if not any(judged) else 0
                ahead = [one.address for one, said_of in zip(messages, answers, strict=True) if said_of is None]
                raise self._producer.error_of(why, acknowledged=acknowledged, ahead=ahead[acknowledged:])
        return judged

    def close(self) -> None:
        if self._producer is not None:
            self._producer.close()
            self._producer = None
