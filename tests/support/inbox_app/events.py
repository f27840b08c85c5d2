"""One inbox, from the broker that the test has started."""

import os
from datetime import timedelta
from typing import Any

from django_events import Backoff, Draft, InboxMessage, inbox, redis_source, topic

SOURCES: dict[str, Any] = {"redis": lambda: redis_source("letters")}

letters = topic("letters", partitions=2)


def letter(message: InboxMessage) -> Draft:
    return Draft(value=message.json(), type="letter", key=message.key)


received = inbox(
    letters,
    source=SOURCES[os.environ.get("INBOX_BROKER", "redis")](),
    name="received",
    transform=letter,
    batch_size=20,
    retry=Backoff(attempts=3, base=timedelta(milliseconds=100), cap=timedelta(milliseconds=500)),
)
