"""One relay, to the broker that the test has started."""

import os
from datetime import timedelta
from typing import Any

from django_events import Backoff, jetstream, kafka, rabbitmq, redis_stream, relay, sns, sqs, topic

BROKER = os.environ.get("RELAY_BROKER", "redis")
OF_SNS = "arn:aws:sns:eu-west-1:123456789012"
TARGETS: dict[str, Any] = {
    "redis": lambda: redis_stream("parcels"),
    "kafka": lambda: kafka("parcels"),
    "kafka-transactions": lambda: kafka("parcels", broker="kafka-transactions", transactional_id="parcels"),
    "aws": lambda: sqs("parcels.fifo"),
    "aws-standard": lambda: sqs("parcels", broker="aws-standard"),
    "sns": lambda: sns(f"{OF_SNS}:parcels.fifo", broker="sns"),
    "sns-standard": lambda: sns(f"{OF_SNS}:parcels", broker="sns-standard"),
    "rabbitmq": lambda: rabbitmq("parcels"),
    "nats": lambda: jetstream("parcels", stream="PARCELS"),
}

parcels = topic("parcels", partitions=2)
relayed = relay(
    parcels,
    to=TARGETS[BROKER](),
    name="relayed",
    batch_size=60 if "aws" in BROKER or "sns" in BROKER else 20,  # several requests to AWS
    lease=timedelta(seconds=2),
    retry=Backoff(attempts=3, base=timedelta(milliseconds=100), cap=timedelta(milliseconds=500)),
)
