"""Relays to Kafka by its transactions: each event is there exactly once, for readers of what is committed.

    relay(orders, to=kafka("shop.orders", transactional_id="shop.orders"), name="orders-to-kafka")

Each partition has a transactional id, like `shop.orders-3`. A batch is one transaction, and in it is the position: the
id of the last event, as an offset of a group that has the same name. Kafka lets only the newest producer of a
transactional id write. So a worker that was frozen can commit nothing any more; and whether a commit is done whose
answer was lost, or whose worker was killed, the next producer finds out by the position.

The threads of a process share their producers, `KafkaLogs`: a partition that another thread sends next goes on by the
producer that is there.
"""

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import datetime
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from django_events.bridges.relays.answers import UNANSWERED
from django_events.bridges.relays.kafka_producer import (
    PREFIX,
    SECONDS,
    KafkaProducer,
    is_of_its_batch,
    largest_of,
    refusal,
    sends_only,
    settings_of,
)
from django_events.bridges.relays.targets import Newest, Overtaken, RelayMessage, TargetUnavailable

UNUSED = 300.0  # seconds, after which a producer ends: its partition may be another worker's by now


class KafkaLogs:
    """What one process writes by transactions: a log with a producer for each partition, whichever thread sends it."""

    def __init__(self, topic: str, broker: str) -> None:
        self._topic, self._broker = topic, broker
        self._logs: dict[str, KafkaLog] = {}
        self._finding = threading.Lock()

    def bridge(self) -> "TransactionalKafkaBridge":
        """One for a thread."""
        return TransactionalKafkaBridge(self, self._broker)

    @contextmanager
    def held(self, name: str, settings: dict[str, Any]) -> Iterator["KafkaLog"]:
        """A log, which no other thread uses until the block ends; TargetUnavailable if one does for too long."""
        with self._finding:
            if (log := self._logs.get(name)) is None:
                log = self._logs[name] = KafkaLog(self._topic, name, self._broker, settings)
            others = [one for one in self._logs.values() if one is not log]
        for other in others:
            other.close_if_unused()
        if not log.used.acquire(timeout=log.seconds):
            raise TargetUnavailable(f"Another thread of this worker still sends by the transactional id {name!r}.")
        try:
            yield log
        finally:
            log.used_at = time.monotonic()
            log.used.release()

    def close(self) -> None:
        """End all producers, for a process that sends no more."""
        with self._finding:
            logs = list(self._logs.values())
            self._logs.clear()
        for log in logs:
            log.close()


class TransactionalKafkaBridge:
    """How one thread sends by the producers of its process. It has none itself, so there is nothing to close."""

    prefix = PREFIX
    largest: int | None = None
    sends_only = False  # known when it is open

    def __init__(self, logs: KafkaLogs, broker: str) -> None:
        self._logs, self._broker = logs, broker
        self._settings: dict[str, Any] = {}

    def open(self) -> None:
        self._settings = settings_of(self._broker)
        self.largest, self.sends_only = largest_of(self._settings), sends_only(self._settings)

    def newest(self, log: str) -> Newest | None:
        with self._logs.held(log, self._settings) as one:
            return one.newest()

    def send(self, messages: Sequence[RelayMessage]) -> Sequence[Exception | None]:
        with self._logs.held(messages[0].route.log, self._settings) as one:  # all are of one partition
            return one.send(messages)

    def close(self) -> None:
        """A producer that an error happened to is closed by now, and others go on."""


class LoneKafkaBridge(TransactionalKafkaBridge):
    """One that shares no producer, as if it were alone in its process."""

    def close(self) -> None:
        self._logs.close()


class KafkaLog:
    """What is written by one transactional id, by one thread at a time: the one that has acquired `used`.

    It has a producer while nothing else can have been written, and knows the newest event that it has. What one thread
    knows of that may be older: another one may have sent more meanwhile, by the same producer.
    """

    def __init__(self, topic: str, name: str, broker: str, settings: dict[str, Any]) -> None:
        self.used, self.used_at = threading.Lock(), time.monotonic()
        self.seconds: float = settings.get("timeout", SECONDS)
        self._topic, self._name = topic, name
        self._broker, self._settings = broker, settings
        self._producer: Any = None
        self._group: Any = None
        self._newest: Newest | None = None
        self._one_by_one = False

    def newest(self) -> Newest | None:
        """The newest event that is committed; None if Kafka knows of none, or has forgotten it.

        From here on no earlier producer can write, and what one of them had not committed is gone.
        """
        if self._producer is None:
            try:
                self._newest = self._begin()
            except BaseException:
                self.close()
                raise
        return self._newest

    def _begin(self) -> Newest | None:
        """Make a producer, and ask Kafka what is there."""
        self._producer = KafkaProducer(self._broker, self._settings, transactional_id=self._name)
        with self._producer.explained():
            self._producer.client.poll(0)  # what logs in by a function of the settings does it then
            self._producer.client.init_transactions(self._producer.seconds)
        reading = {"group.id": self._name, "enable.auto.commit": False, "isolation.level": "read_committed"}
        with self._producer.explained():
            with closing(Consumer({**self._producer.connecting(), **reading})) as consumer:
                consumer.poll(0)
                try:
                    [found] = consumer.committed([TopicPartition(self._topic, 0)], timeout=self._producer.seconds)
                except KafkaException:
                    consumer.poll(0.2)  # it may have heard why, like that the login has no right to the group
                    raise
                self._group = consumer.consumer_group_metadata()
            if found.error is not None:
                raise KafkaException(found.error)
        if found.offset < 0:
            return None
        try:
            return _newest_of(found.offset, json.loads(found.metadata or ""))
        except (ValueError, TypeError, KeyError):
            raise self._producer.error_of(
                f"the group {self._name!r} has an offset of {self._topic!r} that no relay has committed. A "
                "transactional_id has to be one that no group of others has"
            ) from None

    def send(self, messages: Sequence[RelayMessage]) -> Sequence[Exception | None]:
        """Send what is newer than all that is there; Overtaken if it isn't, or if nothing is known of what is there."""
        if self._producer is None or self._has(messages[0]):
            raise Overtaken
        at_once = 1 if self._one_by_one else len(messages)
        self._one_by_one = False
        answers: list[Exception | None] = []
        try:
            with self._producer.explained():
                while len(answers) < len(messages) and not any(answers):
                    answers += self._transaction(messages[len(answers) :][:at_once])
        except BaseException:
            self.close()
            raise
        return answers

    def _transaction(self, messages: Sequence[RelayMessage]) -> list[Exception | None]:
        """Commit messages, up to the first that is refused.

        A broker refuses a whole record batch: which of its messages is to blame shows when each is sent alone, by the
        next producer. One whose transaction was aborted may fail in the next one, too.
        """
        client = self._producer.client
        client.begin_transaction()
        answers, refused = self._producer.answers_to(messages)
        if refused is not None and not is_of_its_batch(refused):
            raise self._producer.error_of(refused)
        messages = messages[: len(answers)]
        if of_batch := next((answer for answer in answers if is_of_its_batch(answer)), None):
            self.close()
            if len(messages) == 1:
                return [refusal(of_batch)]
            self._one_by_one = True
            raise Overtaken
        for answer in answers:
            if answer is not None:
                said = self._producer.unanswered(self._topic) if answer is UNANSWERED else answer
                raise self._producer.error_of(said)
        self._note_position(messages)
        client.commit_transaction(self._producer.seconds)
        if messages and not messages[-1].redriven:
            self._newest = _newest_of(messages[-1].event_id, _said_of(messages[-1]))
        return answers if refused is None else [*answers, refusal(refused)]

    def _has(self, message: RelayMessage) -> bool:
        return self._newest is not None and not message.redriven and message.event_id <= self._newest.event_id

    def _note_position(self, messages: Sequence[RelayMessage]) -> None:
        """As part of the transaction. A dead letter says nothing of what is in front of it."""
        if not messages or messages[-1].redriven:
            return
        last = messages[-1]
        position = TopicPartition(self._topic, 0, last.event_id, json.dumps(_said_of(last)))
        self._producer.client.send_offsets_to_transaction([position], self._group, self._producer.seconds)

    def close_if_unused(self) -> None:
        """End the producer of a partition that this process has not sent for a while."""
        if time.monotonic() - self.used_at > UNUSED and self.used.acquire(blocking=False):
            try:
                self.close()
            finally:
                self.used.release()

    def close(self) -> None:
        """End the producer. What it has not committed, the next one of its id ends."""
        if self._producer is not None:
            self._producer.give_up()
            self._producer = None


def _said_of(message: RelayMessage) -> dict[str, str]:
    return {name: message.attributes[PREFIX + name] for name in ("id", "time", "relay")}


def _newest_of(event_id: int, said: Mapping[str, str]) -> Newest:
    return Newest(event_id, said["id"], datetime.fromisoformat(said["time"]), said["relay"])
