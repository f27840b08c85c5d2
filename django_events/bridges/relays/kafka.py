"""Relays to Kafka: at least once, each key in order, and a double is known by its address.

    relay(orders, to=kafka("shop.orders"), name="orders-to-kafka")

The producer is idempotent and waits for all replicas, so what it repeats by itself is there once, in order. It can't
know what another producer has sent: after a worker was killed or frozen, or an answer didn't come in time, up to a
batch of each partition comes again.

The key of a message is the event's, and the partition follows from it as it does for Java's clients. An event whose
value is null has no value, so a compacted topic forgets its key.

It needs confluent-kafka: pip install 'django-events-pg[kafka]'
"""

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from django_events.bridges.brokers import check_package, name_of, options_of, said, unmade
from django_events.bridges.relays.targets import Newest, RelayMessage, Route, TargetUnavailable
from django_events.exceptions import MessageRefused, NotReady
from django_events.received import ReceivedEvent

SECONDS = 10.0  # for the answers to a batch, where the settings don't say
ANSWERS_TAKEN = 1_000  # messages, behind which answers are taken: the client's queue has those that are not
# Errors about what is in a record batch, by Kafka's names; the last one is the client's own.
OF_A_BATCH = {"MSG_SIZE_TOO_LARGE", "INVALID_RECORD", "INVALID_MSG", "_INVALID_DIFFERENT_RECORD"}
NAME = re.compile(r"(?!\.{1,2}$)[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True, kw_only=True)
class Kafka:
    """A Kafka topic as a relay's target."""

    topic: str | Callable[[ReceivedEvent], str]
    broker: str = "kafka"

    def problems(self) -> Iterator[str]:
        if not callable(self.topic) and not (isinstance(self.topic, str) and NAME.fullmatch(self.topic)):
            yield f"kafka has {self.topic!r}, expected the name of a topic, or a function of an event."

    def check_installed(self) -> None:
        check_package("confluent_kafka", "kafka")

    def route(self, event: ReceivedEvent, partition: int | None) -> Route:
        return Route(
            name_of(self.topic, event, NAME, "the name of a topic: up to 249 letters, digits, dots, '_' and '-'")
        )

    def bridge(self) -> "KafkaBridge":
        return KafkaBridge(self)


def kafka(topic: str | Callable[[ReceivedEvent], str], *, broker: str = "kafka") -> Kafka:
    """A relay's target: a topic of the Kafka that `DJANGO_EVENTS["BROKERS"]` has under this name.

    The options there are librdkafka's, like "bootstrap.servers".
    """
    return Kafka(topic=topic, broker=broker)


class KafkaBridge:
    """One idempotent producer."""

    largest: int | None = None

    def __init__(self, target: Kafka) -> None:
        self._target = target
        self._options: Mapping[str, Any] = {}
        self._seconds = SECONDS
        self._producer: Any = None
        self._last_error = ""

    def open(self) -> None:
        import confluent_kafka

        try:
            options = self._options = options_of(self._target.broker)
        except NotReady as error:
            raise TargetUnavailable(str(error)) from None
        self._seconds = options.pop("timeout", SECONDS)
        defaults = {
            "client.id": "django-events",
            "partitioner": "murmur2_random",  # as Java's clients
            "linger.ms": 5,
            "queue.buffering.max.messages": 100_000,
            "log_level": 0,
        }
        # What keeps a relay from losing or reordering is not for the settings to say. The client gives no message up by
        # itself: one behind it, of the same key, could still be taken. `close` gives all up together.
        needed = {"enable.idempotence": True, "acks": "all", "message.timeout.ms": 0, "error_cb": self._note}
        self.largest = int(options.get("message.max.bytes", 1_000_000))
        try:
            self._producer = confluent_kafka.Producer({**defaults, **options, **needed})
        except Exception as error:
            raise TargetUnavailable(f"Kafka {self._target.broker!r}: {unmade(error, options)}.") from None

    def newest(self, log: str) -> Newest | None:
        return None

    def send(self, messages: Sequence[RelayMessage]) -> Sequence[Exception | None]:
        answers: list[Any] = [_UNANSWERED] * len(messages)
        unsent: set[int] = set()  # what the client refuses by itself

        def note(index: int, error: Any, message: Any) -> None:
            answers[index] = error

        try:
            for index, message in enumerate(messages):
                if (error := self._produce(message, partial(note, index))) is not None:
                    answers[index] = error
                    unsent.add(index)
                    break
                if index % ANSWERS_TAKEN == 0:
                    self._producer.poll(0)
            self._wait()
            # A broker refuses a whole record batch: which of its messages is to blame shows when each is sent alone.
            for index, answer in enumerate(answers):
                if len(messages) > 1 and index not in unsent and _is_of_its_batch(answer):
                    answers[index] = _UNANSWERED
                    if (error := self._produce(messages[index], partial(note, index))) is not None:
                        answers[index] = error
                    self._wait()
                    if answers[index] is _UNANSWERED:
                        break
        except Exception as error:
            raise self._unavailable(error) from None
        return self._judged(messages, answers)

    def _wait(self) -> None:
        """Until all that was handed to the client is answered, or time is up."""
        deadline = time.monotonic() + self._seconds
        while (left := deadline - time.monotonic()) > 0 and self._producer.flush(min(left, 0.5)):
            pass

    def _produce(self, message: RelayMessage, answered: Callable[[Any, Any], None]) -> Any:
        """Hand a message to the client; the error of one that it refuses for its size."""
        try:
            self._hand_over(message, answered)
        except Exception as error:
            refused = error.args[0] if error.args else None
            if _is_too_large(refused):
                return refused
            raise
        return None

    def _hand_over(self, message: RelayMessage, answered: Callable[[Any, Any], None]) -> None:
        """Give a message to the client, when its queue has room: the settings may make that smaller than a batch."""
        headers, deadline = _headers(message), None
        while True:
            try:
                self._producer.produce(
                    message.route.to, value=message.body, key=message.key, headers=headers, on_delivery=answered
                )
                return
            except BufferError:
                deadline = deadline or time.monotonic() + self._seconds
                if time.monotonic() > deadline:
                    raise
                self._producer.poll(0.1)

    def close(self) -> None:
        """Leave out what is still waiting: the next bridge sends it."""
        if self._producer is not None:
            with suppress(Exception):
                self._producer.purge(in_queue=True, in_flight=True, blocking=False)
                self._producer.flush(0.5)
            self._producer = None

    def _judged(self, messages: Sequence[RelayMessage], answers: Sequence[Any]) -> Sequence[Exception | None]:
        judged: list[Exception | None] = []
        for index, answer in enumerate(answers):
            if answer is None:
                judged.append(None)
            elif _is_of_its_batch(answer):
                judged.append(MessageRefused(f"Kafka refuses it: {answer.str()}"))
            elif answer is _UNANSWERED and any(isinstance(one, MessageRefused) for one in judged):
                return judged
            else:
                words = "no answer in time" if answer is _UNANSWERED else answer.str()
                acknowledged = index if all(one is None for one in judged) else 0
                ahead = [one.address for one, said_of in zip(messages, answers, strict=True) if said_of is None]
                raise TargetUnavailable(
                    self._said(_Words(words)), acknowledged=acknowledged, ahead=ahead[acknowledged:]
                )
        return judged

    def _note(self, error: Any) -> None:
        """What librdkafka says about its connections, which tells more than that a message got no answer."""
        self._last_error = error.str()

    def _unavailable(self, error: BaseException) -> TargetUnavailable:
        return TargetUnavailable(self._said(error))

    def _said(self, error: BaseException) -> str:
        more = f" ({said(_Words(self._last_error), self._options)})" if self._last_error else ""
        return f"Kafka {self._target.broker!r}: {said(error, self._options)}{more}"


class _Words(Exception):
    """What Kafka or its client says."""


_UNANSWERED = object()


def _is_of_its_batch(answer: Any) -> bool:
    """Whether an answer is about the content of a record batch, which may be another message's."""
    return answer is not None and answer is not _UNANSWERED and answer.name() in OF_A_BATCH


def _is_too_large(error: Any) -> bool:
    from confluent_kafka import KafkaError

    return isinstance(error, KafkaError) and error.code() == KafkaError.MSG_SIZE_TOO_LARGE


def _headers(message: RelayMessage) -> list[tuple[str, str]]:
    return [*[("ce_" + name, text) for name, text in message.attributes.items()], *message.headers.items()]
