"""One topic. At the other site it has the same ids, or new ones, as the test says."""

import os
from datetime import timedelta

from django_events import Backoff, inbox, log_source, topic

letters = topic("letters", partitions=2, segment_size=1_000)

if ids := os.environ.get("MIRROR_IDS"):
    received = inbox(
        letters,
        source=log_source("letters", broker="shop"),
        name="received",
        keep_ids=ids == "kept",
        batch_size=20,
        retry=Backoff(attempts=3, base=timedelta(milliseconds=100), cap=timedelta(milliseconds=500)),
    )
