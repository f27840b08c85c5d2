"""Relays to Amazon SNS: at least once, and by a FIFO topic each key in order, and once within five minutes.

    relay(orders, to=sns("arn:aws:sns:eu-west-1:123456789012:orders.fifo"), name="orders-to-sns")

A message is what it is in SQS. Queues get it as it is if their subscription has `RawMessageDelivery`.

It needs boto3: pip install 'django-events-pg[aws]'
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from django_events.bridges.brokers import check_package, name_of, shown
from django_events.bridges.relays.aws import FORMS, AwsBridge
from django_events.bridges.relays.targets import Route, TargetUnavailable
from django_events.received import ReceivedEvent

ARN = re.compile(r"arn:[a-z-]+:sns:[a-z0-9-]+:\d{12}:[A-Za-z0-9_-]{1,256}(\.fifo)?")


@dataclass(frozen=True, kw_only=True)
class SNS:
    """A topic of Amazon SNS as a relay's target."""

    arn: str | Callable[[ReceivedEvent], str]
    broker: str = "aws"
    forms: ClassVar[Sequence[str]] = FORMS

    def __str__(self) -> str:
        return shown(self.broker, self.arn)

    def problems(self) -> Iterator[str]:
        if not callable(self.arn) and not (isinstance(self.arn, str) and ARN.fullmatch(self.arn)):
            yield f"sns has {self.arn!r}, expected the ARN of a topic, or a function of an event."

    def check_installed(self) -> None:
        check_package("boto3", "aws")

    def route(self, event: ReceivedEvent, partition: int | None) -> Route:
        return Route(name_of(self.arn, event, ARN, "the ARN of a topic of SNS"))

    def bridge(self) -> "SnsBridge":
        return SnsBridge(self.broker, self.arn)


def sns(arn: str | Callable[[ReceivedEvent], str], *, broker: str = "aws") -> SNS:
    """A relay's target: a topic of Amazon SNS, by its ARN.

    What `DJANGO_EVENTS["BROKERS"]` has under the broker's name goes to boto3, like `region_name`.
    """
    return SNS(arn=arn, broker=broker)


class SnsBridge(AwsBridge):
    """A client of SNS."""

    service = "sns"

    def open(self) -> None:
        super().open()
        if callable(self._named):
            return
        named, used = self._named.split(":")[3], self._client.meta.region_name
        if named != used:
            self.close()
            raise TargetUnavailable(
                f"AWS {self._broker!r} has region_name={used!r}, and the topic {self._named!r} is in {named!r}."
            )

    def ask(self, address: str, entries: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = self._client.publish_batch(TopicArn=address, PublishBatchRequestEntries=entries)
        return answer

    def entry(self, text: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
        return {"Message": text, "MessageAttributes": attributes}
