"""Relays to Kafka by its transactions: each event is there exactly once, for readers of what is committed.

    relay(orders, to=kafka("shop.orders", transactional_id="shop.orders"), name="orders-to-kafka")

Each partition has a transactional id, like `shop.orders-3`. A batch is one transaction, and in it is the position: the
id of the last event, as an offset of a group that has the same name. Kafka lets only the newest producer of a
transactional id write. So a worker that was frozen can commit nothing any more; and whether a commit is done whose
answer was lost, or whose worker was killed, the next producer finds out by the position.
"""

import json
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime
from functools import partial
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from django_events.bridges.relays.answers import UNANSWERED
from django_events.bridges.relays.kafka_producer import (
    KafkaProducer,
    is_of_its_batch,
    largest_of,
    refusal,
    settings_of,
)
from django_events.bridges.relays.targets import Newest, Overtaken, RelayMessage


class TransactionalKafkaBridge:
    """A producer for each partition that is sent."""

    largest: int | None = None

    def __init__(self, topic: str, broker: str) -> None:
        self._topic, self._broker = topic, broker
        self._settings: dict[str, Any] = {}
        self._logs: dict[str, KafkaLog] = {}

    def open(self) -> None:
        self._settings = settings_of(self._broker)
        self.largest = largest_of(self._settings)

    def newest(self, log: str) -> Newest | None:
        if log not in self._logs:
            self._logs[log] = KafkaLog(
                self._topic, log, KafkaProducer(self._broker, self._settings, transactional_id=log)
            )
        return self._logs[log].newest()

    def send(self, messages: Sequence[RelayMessage]) -> Sequence[Exception | None]:
        log = messages[0].route.log  # of all of them: they are of one partition
        try:
            return self._logs[log].send(messages)
        except Overtaken:
            self._logs.pop(log).close()
            raise

    def close(self) -> None:
        while self._logs:
            self._logs.popitem()[1].close()


class KafkaLog:
    """What is written by one transactional id."""

    def __init__(self, topic: str, name: str, producer: KafkaProducer) -> None:
        self._topic, self._name, self._producer = topic, name, producer
        self._group: Any = None
        self._begun = False

    def newest(self) -> Newest | None:
        """The newest event that is committed; None if Kafka knows of none, or has forgotten it.

        From here on no earlier producer can write, and what one of them had not committed is gone.
        """
        reading = {"group.id": self._name, "enable.auto.commit": False, "isolation.level": "read_committed"}
        with self._producer.explained():
            if not self._begun:
                self._producer.client.init_transactions(self._producer.seconds)
                self._begun = True
            with closing(Consumer({**self._producer.connecting(), **reading})) as consumer:
                [found] = consumer.committed([TopicPartition(self._topic, 0)], timeout=self._producer.seconds)
                self._group = consumer.consumer_group_metadata()
            if found.error is not None:
                raise KafkaException(found.error)
        if found.offset < 0:
            return None
        said = json.loads(found.metadata or "")
        return Newest(found.offset, said["id"], datetime.fromisoformat(said["time"]), said["relay"])

    def send(self, messages: Sequence[RelayMessage]) -> Sequence[Exception | None]:
        """A broker refuses a whole record batch: which of its messages is to blame shows when each is sent alone."""
        with self._producer.explained():
            answers = self._transaction(messages)
            if answers is not None:
                return answers
            answers = []
            for message in messages:
                answers += self._transaction([message]) or []
                if answers[-1] is not None:
                    break
            return answers

    def _transaction(self, messages: Sequence[RelayMessage]) -> list[Exception | None] | None:
        """Commit messages, up to the first that is refused; None if it isn't known which one is."""
        answers: list[Any] = [UNANSWERED] * len(messages)
        refused: list[Exception | None] = []

        def note(index: int, error: Any, message: Any) -> None:
            answers[index] = error

        client = self._producer.client
        client.begin_transaction()
        for index, message in enumerate(messages):
            if (error := self._producer.hand_over(message, partial(note, index))) is not None:
                if not is_of_its_batch(error):
                    raise self._producer.error_of(error)
                messages, answers, refused = messages[:index], answers[:index], [refusal(error)]
                break
        self._producer.wait()
        if of_batch := next((answer for answer in answers if is_of_its_batch(answer)), None):
            client.abort_transaction(self._producer.seconds)
            return [refusal(of_batch)] if len(messages) == 1 else None
        for answer in answers:
            if answer is not None:
                said = self._producer.unanswered(self._topic) if answer is UNANSWERED else answer
                raise self._producer.error_of(said)
        self._note_position(messages)
        client.commit_transaction(self._producer.seconds)
        return [*answers, *refused]

    def _note_position(self, messages: Sequence[RelayMessage]) -> None:
        """As part of the transaction. A dead letter says nothing of what is in front of it."""
        if not messages or messages[-1].redriven:
            return
        last = messages[-1]
        said = json.dumps({name: last.attributes[name] for name in ("id", "time", "relay")})
        position = TopicPartition(self._topic, 0, last.event_id, said)
        self._producer.client.send_offsets_to_transaction([position], self._group, self._producer.seconds)

    def close(self) -> None:
        self._producer.close()
