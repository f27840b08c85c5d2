"""A bridge to Kafka: an idempotent producer, to which a batch is sent pipelined."""

from collections.abc import Callable, Sequence
from typing import Any

from django_events.bridges.relays.answers import UNANSWERED, Unroutable
from django_events.bridges.relays.kafka_producer import (
    PREFIX,
    KafkaProducer,
    is_of_its_batch,
    largest_of,
    refusal,
    sends_only,
    settings_of,
)
from django_events.bridges.relays.targets import Newest, RelayMessage
from django_events.received import ReceivedEvent


class KafkaBridge:
    """At least once: another producer does not know what this one has sent."""

    prefix = PREFIX
    largest: int | None = None
    sends_only = False  # known when it is open

    def __init__(self, topic: str | Callable[[ReceivedEvent], str], broker: str) -> None:
        self._by_function = callable(topic)
        self._broker = broker
        self._producer: Any = None

    def open(self) -> None:
        settings = settings_of(self._broker)
        self._producer = KafkaProducer(self._broker, settings)
        self.largest, self.sends_only = largest_of(settings), sends_only(settings)

    def newest(self, log: str) -> Newest | None:
        return None

    def send(self, messages: Sequence[RelayMessage]) -> Sequence[Exception | None]:
        with self._producer.explained():
            routable, unroutable = self._routable(messages) if self._by_function else (messages, None)
            answers, refused = self._producer.answers_to(routable)
            # A broker refuses a whole record batch: which of its messages is to blame shows when each is sent alone.
            for index in range(len(answers) if len(routable) > 1 else 0):
                if is_of_its_batch(answers[index]):
                    alone, here = self._producer.answers_to([messages[index]])
                    answers[index] = alone[0] if alone else here
                if answers[index] is not None and not is_of_its_batch(answers[index]):
                    break  # it waits, so what is behind it would overtake it
            if (last := refused or unroutable) is not None:
                answers.append(last)
            return self._judged(messages, answers)

    def _routable(self, messages: Sequence[RelayMessage]) -> tuple[Sequence[RelayMessage], Unroutable | None]:
        """The messages in front of the first that can't go where the function says, and why it can't."""
        for index, message in enumerate(messages):
            if (why := self._producer.lacks(message.route.to)) is not None:
                return messages[:index], Unroutable(f"Kafka {self._broker!r}: {why}.")
        return messages, None

    def _judged(self, messages: Sequence[RelayMessage], answers: Sequence[Any]) -> Sequence[Exception | None]:
        if all(answer is None for answer in answers):
            return answers
        judged: list[Exception | None] = []
        for index, answer in enumerate(answers):
            if answer is None or isinstance(answer, Unroutable):
                judged.append(answer)
            elif is_of_its_batch(answer):
                judged.append(refusal(answer))
            elif answer is UNANSWERED and any(judged):
                self._producer = KafkaProducer(self._broker, settings_of(self._broker))  # that one has given some up
                return judged
            else:
                why = self._producer.unanswered(messages[index].route.to) if answer is UNANSWERED else answer
                acknowledged = index if not any(judged) else 0
                ahead = [one.address for one, said_of in zip(messages, answers, strict=False) if said_of is None]
                raise self._producer.error_of(why, acknowledged=acknowledged, ahead=ahead[acknowledged:])
        return judged

    def close(self) -> None:
        if self._producer is not None:
            self._producer.give_up()
            self._producer = None
