"""One relay, to the broker that the test has started."""

import os
from datetime import timedelta
from typing import Any

from django_events import Backoff, jetstream, kafka, rabbitmq, redis_stream, relay, sqs, topic

TARGETS: dict[str, Any] = {
    "redis": lambda: redis_stream("parcels"),
    "kafka": lambda: kafka("parcels"),
    "kafka-transactions": lambda: kafka("parcels", broker="kafka-transactions", transactional_id="parcels"),
    "aws": lambda: sqs("parcels.fifo"),
    "rabbitmq": lambda: rabbitmq("parcels"),
    "nats": lambda: jetstream("parcels", stream="PARCELS"),
}

parcels = topic("parcels", partitions=2)
relayed = relay(
    parcels,
    to=TARGETS[os.environ.get("RELAY_BROKER", "redis")](),
    name="relayed",
    batch_size=20,
    lease=timedelta(seconds=2),
    retry=Backoff(attempts=3, base=timedelta(milliseconds=100), cap=timedelta(milliseconds=500)),
)
