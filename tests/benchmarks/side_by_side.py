"""Requests to SQS and SNS that go side by side, against one after the other, where each answer takes a while."""

import itertools
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

from botocore.awsrequest import AWSResponse
from botocore.config import Config
from django.test import override_settings

from django_events.bridges.inboxes.sqs_source import SqsReader, SqsSource
from django_events.bridges.relays.aws import FORMS
from django_events.bridges.relays.sns import SNS, SnsBridge
from django_events.bridges.relays.sqs import SQS, SqsBridge
from django_events.declarations import DeclaredTopic
from tests.benchmarks.bridged import a_relay
from tests.benchmarks.consuming import consume, fill, registered, rewind
from tests.benchmarks.database import settle
from tests.benchmarks.harness import Effort, Row, figure, interleave
from tests.benchmarks.samples import value
from tests.benchmarks.taking_in import an_inbox, attributes, take_in
from tests.benchmarks.transfer import declared

EVENTS = 5_000
ROUND_TRIP = 0.015  # seconds
QUEUE = "https://sqs.eu-west-1.amazonaws.com/123456789012/bench"
TOPIC = "arn:aws:sns:eu-west-1:123456789012:bench"
OPTIONS = {"region_name": "eu-west-1", "aws_access_key_id": "AKIDEXAMPLE", "aws_secret_access_key": "example"}
ID = re.compile(r"\.Id=(\d+)")  # of a message in what SNS is sent


class Answer:
    """The body of an answer, as botocore reads it."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def stream(self, *arguments: Any, **options: Any) -> Iterator[bytes]:
        yield self._body


def answering(answer: Callable[[Any], bytes], client: Any) -> None:
    """No request of this client goes out: what it asks is answered here, when AWS would have answered."""

    def before_send(request: Any, **others: Any) -> AWSResponse:
        time.sleep(ROUND_TRIP)
        return AWSResponse(request.url, 200, {"content-type": "application/x-amz-json-1.0"}, Answer(answer(request)))

    client.meta.events.register("before-send", before_send)


def of_sqs(request: Any) -> bytes:
    entries = json.loads(request.body)["Entries"]
    return json.dumps({"Successful": [{"Id": one["Id"], "MessageId": "of-sqs"} for one in entries]}).encode()


def of_sns(request: Any) -> bytes:
    text = request.body if isinstance(request.body, str) else request.body.decode()
    taken = "".join(f"<member><Id>{number}</Id><MessageId>of-sns</MessageId></member>" for number in ID.findall(text))
    return (
        '<PublishBatchResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/"><PublishBatchResult><Failed/>'
        f"<Successful>{taken}</Successful></PublishBatchResult></PublishBatchResponse>"
    ).encode()


class AnsweredSqsBridge(SqsBridge):
    def open(self) -> None:
        super().open()
        answering(of_sqs, self._client)


class AnsweredSnsBridge(SnsBridge):
    def open(self) -> None:
        super().open()
        answering(of_sns, self._client)


class ToSqs(SQS):
    def bridge(self) -> SqsBridge:
        return AnsweredSqsBridge(self.broker, self.queue)


class ToSns(SNS):
    def bridge(self) -> SnsBridge:
        return AnsweredSnsBridge(self.broker, self.arn)


class FromSqs(SqsSource):
    """A queue with so many messages, each time that it is opened."""

    messages: int

    def reader(self) -> SqsReader:
        return AnsweredReader(self)


class AnsweredReader(SqsReader):
    def open(self) -> None:
        super().open()
        numbers = itertools.count()  # for several threads
        events = FromSqs.messages

        def answer(request: Any) -> bytes:
            asked = json.loads(request.body)
            if "Entries" in asked:
                return of_sqs(request)
            if "AttributeNames" in asked:
                return json.dumps({"Attributes": {"ApproximateNumberOfMessages": str(events)}}).encode()
            some = (next(numbers) for _ in range(asked["MaxNumberOfMessages"]))
            return json.dumps({"Messages": [_message(number) for number in some if number < events]}).encode()

        answering(answer, self._client)


def _message(n: int) -> Mapping[str, Any]:
    structured = {"content-type": {"DataType": "String", "StringValue": "application/cloudevents+json"}}
    named = {"MessageId": str(n), "ReceiptHandle": str(n), "Attributes": {"ApproximateReceiveCount": "1"}}
    return {**named, "Body": json.dumps({**attributes(n), "data": value(n)}), "MessageAttributes": structured}


TARGETS: dict[str, Callable[[str], Any]] = {
    "SQS, a standard queue": lambda broker: ToSqs(queue=QUEUE, broker=broker),
    "SQS, a FIFO queue": lambda broker: ToSqs(queue=f"{QUEUE}.fifo", broker=broker),
    "SNS, a standard topic": lambda broker: ToSns(arn=TOPIC, broker=broker),
    "SNS, a FIFO topic": lambda broker: ToSns(arn=f"{TOPIC}.fifo", broker=broker),
}


@figure(
    "N40", "relays to SQS and SNS, and an inbox from SQS, whose answers take 15 ms: side by side, against one by one"
)
def side_by_side(effort: Effort) -> Iterator[Row]:
    """The answers are made up: what is measured is the relay and its client, and no server that shares their cores."""
    events, topic = effort.events(EVENTS), DeclaredTopic(name="bench")
    FromSqs.messages = events
    with ExitStack() as stack:
        [topic_id] = stack.enter_context(declared(topic))
        fill([topic_id], events)
        brokers = {"side by side": OPTIONS, "one by one": {**OPTIONS, "config": Config(max_pool_connections=1)}}
        stack.enter_context(override_settings(DJANGO_EVENTS={"BROKERS": brokers}))

        def relayed(relay: Any) -> float:
            rewind([relay])
            settle("django_events_position")
            return consume([relay], events)

        blocks: dict[str, Callable[[], float]] = {}
        for broker in brokers:
            for name, target in TARGETS.items():
                relay = a_relay(broker, name=f"bench-{len(blocks)}", to=target(broker), form=FORMS[0])
                stack.enter_context(registered(relay))
                blocks[f"{name}, {broker}"] = partial(relayed, relay)
            inbox = an_inbox(FromSqs(queue=QUEUE, broker=broker))
            blocks[f"an inbox, {broker}"] = partial(take_in, inbox, events)
        samples = interleave(blocks, rounds=effort.rounds(5))
    for name in TARGETS:
        what = f"a relay to {name}, answers after 15 ms, requests side by side"
        yield samples.row(what, f"{name}, side by side", f"{name}, one by one", unit="events/s")
    what = "an inbox from a standard queue of SQS, answers after 15 ms, requests side by side"
    yield samples.row(what, "an inbox, side by side", "an inbox, one by one", unit="events/s")
