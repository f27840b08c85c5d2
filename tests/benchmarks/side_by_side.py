"""Requests to SQS and SNS that go side by side, against one after the other, where each answer takes a while."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from typing import Any

from botocore.config import Config
from django.test import override_settings

from django_events import sns, sqs, sqs_source
from django_events.declarations import DeclaredTopic
from django_events.declarations.declared_relay import forms_of
from tests.benchmarks.bridged import a_relay
from tests.benchmarks.consuming import consume, fill, registered, rewind
from tests.benchmarks.database import settle
from tests.benchmarks.harness import Effort, Row, figure, interleave
from tests.benchmarks.samples import value
from tests.benchmarks.taking_in import an_inbox, attributes, take_in
from tests.benchmarks.transfer import declared
from tests.support.aws_server import REGION, Aws
from tests.support.proxies import SlowProxy

EVENTS = 2_000
ROUND_TRIP = 0.015  # seconds
ARN = f"arn:aws:sns:{REGION}:123456789012"
TARGETS: dict[str, Callable[[str], Any]] = {
    "SQS, a standard queue": lambda broker: sqs("bench", broker=broker),
    "SQS, a FIFO queue": lambda broker: sqs("bench.fifo", broker=broker),
    "SNS, a standard topic": lambda broker: sns(f"{ARN}:bench", broker=broker),
    "SNS, a FIFO topic": lambda broker: sns(f"{ARN}:bench.fifo", broker=broker),
}


@figure(
    "N40", "relays to SQS and SNS, and an inbox from SQS, whose answers take 15 ms: side by side, against one by one"
)
def side_by_side(effort: Effort) -> Iterator[Row]:
    """The server is moto's, in Python and on the same cores: of AWS these are lower bounds."""
    events, topic = effort.events(EVENTS), DeclaredTopic(name="bench")
    with ExitStack() as stack:
        [topic_id] = stack.enter_context(declared(topic))
        fill([topic_id], events)
        aws = stack.enter_context(closing(Aws()))
        proxy = stack.enter_context(closing(SlowProxy(f"tcp://127.0.0.1:{aws.port}", ROUND_TRIP)))
        options = {**aws.options, **aws.at(proxy.port), "timeout": 10.0}
        brokers = {"side by side": options, "one by one": {**options, "config": Config(max_pool_connections=1)}}
        stack.enter_context(override_settings(DJANGO_EVENTS={"BROKERS": brokers}))

        def prepare() -> None:
            aws.clear()
            for name in ("bench", "bench.fifo"):
                aws.make_queue(name)
                aws.make_topic(name, name)

        def relayed(relay: Any) -> float:
            prepare()
            rewind([relay])
            settle("django_events_position")
            return consume([relay], events)

        def taken_in(broker: str) -> float:
            prepare()
            _fill_queue(aws, events)
            return take_in(an_inbox(sqs_source("bench", broker=broker)), events)

        blocks: dict[str, Callable[[], float]] = {}
        for broker in brokers:
            for name, target in TARGETS.items():
                to = target(broker)
                relay = a_relay(broker, name=f"bench-{len(blocks)}", to=to, form=forms_of(to)[0])
                stack.enter_context(registered(relay))
                blocks[f"{name}, {broker}"] = partial(relayed, relay)
            blocks[f"an inbox, {broker}"] = partial(taken_in, broker)
        samples = interleave(blocks, rounds=effort.rounds(5))
    for name in TARGETS:
        what = f"a relay to {name}, answers after 15 ms, requests side by side"
        yield samples.row(what, f"{name}, side by side", f"{name}, one by one", unit="events/s")
    what = "an inbox from a standard queue of SQS, answers after 15 ms, requests side by side"
    yield samples.row(what, "an inbox, side by side", "an inbox, one by one", unit="events/s")


def _fill_queue(aws: Aws, events: int) -> None:
    client = aws.client("sqs")
    url = client.get_queue_url(QueueName="bench")["QueueUrl"]
    structured = {"content-type": {"DataType": "String", "StringValue": "application/cloudevents+json"}}
    bodies = [json.dumps({**attributes(n), "data": value(n)}) for n in range(events)]
    for begin in range(0, events, 10):
        some = enumerate(bodies[begin : begin + 10])
        entries = [{"Id": str(n), "MessageBody": body, "MessageAttributes": structured} for n, body in some]
        client.send_message_batch(QueueUrl=url, Entries=entries)
