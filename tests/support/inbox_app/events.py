"""One inbox, from the broker that the test has started."""

import os
import signal
from datetime import timedelta
from typing import Any

from django_events import (
    Backoff,
    Draft,
    InboxMessage,
    inbox,
    jetstream_source,
    kafka_source,
    rabbitmq_source,
    redis_source,
    sqs_source,
    topic,
)

SOURCES: dict[str, Any] = {
    "redis": lambda: redis_source("letters"),
    "rabbitmq": lambda: rabbitmq_source("letters"),
    "aws": lambda: sqs_source("letters.fifo", visibility=timedelta(seconds=3)),
    "aws-standard": lambda: sqs_source("letters", broker="aws-standard", visibility=timedelta(seconds=3)),
    "nats": lambda: jetstream_source("LETTERS"),
    "kafka": lambda: kafka_source("letters"),
    "kafka-transactions": lambda: kafka_source("letters", broker="kafka-transactions"),
}

letters = topic("letters", partitions=2)


def letter(message: InboxMessage) -> Draft:
    value = message.json()
    if str(value) == os.environ.get("INBOX_FREEZES_AT"):
        del os.environ["INBOX_FREEZES_AT"]  # once: if its transaction was ended meanwhile, the message comes again
        os.kill(os.getpid(), signal.SIGSTOP)
    return Draft(value=value, type="letter", key=message.key)


received = inbox(
    letters,
    source=SOURCES[os.environ.get("INBOX_BROKER", "redis")](),
    name="received",
    transform=letter,
    batch_size=20,
    retry=Backoff(attempts=3, base=timedelta(milliseconds=100), cap=timedelta(milliseconds=500)),
)
