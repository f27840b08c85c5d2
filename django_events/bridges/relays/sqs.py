"""Relays to Amazon SQS: at least once, and in a FIFO queue each key in order, and once within five minutes.

    relay(orders, to=sqs("shop-orders.fifo"), name="orders-to-sqs")

A message is a CloudEvent in one JSON object. Queues whose names end in `.fifo` get the event's key as the message
group, and drop what comes a second time within five minutes. Others have no order.

It needs boto3: pip install 'django-events-pg[aws]'
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from django_events.bridges.brokers import check_package, name_of, shown
from django_events.bridges.relays.aws import FORMS, AwsBridge
from django_events.bridges.relays.targets import Route
from django_events.received import ReceivedEvent

NAME = re.compile(r"(?=.{1,80}$)[A-Za-z0-9_-]+(\.fifo)?")
URL = re.compile(r"https?://\S+")
MOST_NAMES = 10_000  # whose addresses a bridge remembers


@dataclass(frozen=True, kw_only=True)
class SQS:
    """A queue of Amazon SQS as a relay's target."""

    queue: str | Callable[[ReceivedEvent], str]
    broker: str = "aws"
    forms: ClassVar[Sequence[str]] = FORMS

    def __str__(self) -> str:
        return shown(self.broker, self.queue)

    def problems(self) -> Iterator[str]:
        if not callable(self.queue) and not is_queue(self.queue):
            yield f"sqs has {self.queue!r}, expected the name or the URL of a queue, or a function of an event."

    def check_installed(self) -> None:
        check_package("boto3", "aws")

    def route(self, event: ReceivedEvent, partition: int | None) -> Route:
        return Route(
            name_of(self.queue, event, NAME, "the name of a queue: up to 80 letters, digits, '_' and '-', or '.fifo'")
        )

    def bridge(self) -> "SqsBridge":
        return SqsBridge(self.broker, self.queue)


def is_queue(name: object) -> bool:
    return isinstance(name, str) and bool(NAME.fullmatch(name) or URL.fullmatch(name))


def sqs(queue: str | Callable[[ReceivedEvent], str], *, broker: str = "aws") -> SQS:
    """A relay's target: a queue of Amazon SQS, by its name or URL.

    What `DJANGO_EVENTS["BROKERS"]` has under the broker's name goes to boto3, like `region_name`.
    """
    return SQS(queue=queue, broker=broker)


class SqsBridge(AwsBridge):
    """A client of SQS."""

    largest = 2**20
    service = "sqs"

    def __init__(self, broker: str, named: str | Callable[[ReceivedEvent], str]) -> None:
        super().__init__(broker, named)
        self._urls: dict[str, str] = {}

    def address(self, name: str) -> str:
        if URL.fullmatch(name):
            return name
        # There is no lock: where AWS doesn't answer, threads that asked one after the other would each wait in full.
        if (url := self._urls.get(name)) is None:
            if len(self._urls) >= MOST_NAMES:
                self._urls.clear()
            url = self._urls[name] = self._client.get_queue_url(QueueName=name)["QueueUrl"]
        return url

    def ask(self, address: str, entries: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = self._client.send_message_batch(QueueUrl=address, Entries=entries)
        return answer

    def entry(self, text: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
        return {"MessageBody": text, "MessageAttributes": attributes}
