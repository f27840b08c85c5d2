"""A bridge to Kafka: an idempotent producer, to which a batch is sent pipelined."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from django_events.bridges.relays.answers import UNANSWERED, Unroutable
from django_events.bridges.relays.kafka_producer import (
    KafkaProducer,
    is_of_its_batch,
    largest_of,
    refusal,
    settings_of,
)
from django_events.bridges.relays.targets import Newest, RelayMessage
from django_events.received import ReceivedEvent


class KafkaBridge:
    """At least once: another producer does not know what this one has sent."""

    largest: int | None = None

    def __init__(self, topic: str | Callable[[ReceivedEvent], str], broker: str) -> None:
        self._by_function = callable(topic)
        self._broker = broker
        self._producer: Any = None

    def open(self) -> None:
        settings = settings_of(self._broker)
        self._producer = KafkaProducer(self._broker, settings)
        self.largest = largest_of(settings)

    def newest(self, log: str) -> Newest | None:
        return None

    def send(self, messages: Sequence[RelayMessage]) -> Sequence[Exception | None]:
        answers: list[Any] = [UNANSWERED] * len(messages)
        sent, hand_over = len(messages), self._producer.hand_over

        def note(index: int, error: Any, message: Any) -> None:
            answers[index] = error

        with self._producer.explained():
            for index, message in enumerate(messages):
                error = self._unroutable(message) if self._by_function else None
                error = error or hand_over(message, partial(note, index))
                if error is not None:
                    answers[index], sent = error, index
                    break
            self._producer.wait()
            # A broker refuses a whole record batch: which of its messages is to blame shows when each is sent alone.
            for index in range(sent if len(messages) > 1 else 0):
                if is_of_its_batch(answers[index]):
                    answers[index] = UNANSWERED
                    if (error := hand_over(messages[index], partial(note, index))) is not None:
                        answers[index] = error
                    self._producer.wait()
                    if answers[index] is UNANSWERED:
                        break
            return self._judged(messages, answers)

    def _unroutable(self, message: RelayMessage) -> Unroutable | None:
        """Why a message can't go where the function says."""
        why = self._producer.lacks(message.route.to)
        return None if why is None else Unroutable(f"Kafka {self._broker!r}: {why}.")

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
