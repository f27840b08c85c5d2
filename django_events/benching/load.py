"""What is to be published and how, with the bounds of it; and what the n-th event looks like.

Load(events=10_000, rate=500).expected_bytes
"""

import json
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal
from zlib import crc32

from django_events.conf import settings
from django_events.drafts import Draft

Via = Literal["publish", "publish_many", "writer"]

MOST_EVENTS = 5_000_000
MOST_SECONDS = 3_600
MOST_BYTES = 10 << 30
MOST_CONSUMERS = 8
MOST_THREADS = 64
MOST_MANY = 10_000
SMALLEST = 40  # bytes of a value, with its number in it
OF_A_ROW = 160  # bytes of an event beside its value and its key: columns, header, index
OF_A_DELIVERY = 200
TYPE = "bench"
FRAME = len(json.dumps({"n": 0, "filler": ""})) - 1  # what a value has but for its number and the filler
GOLDEN = (5**0.5 - 1) / 2  # its multiples are spread evenly, whatever their number


@dataclass(frozen=True, kw_only=True)
class Load:
    """A load. Without a rate it is as much as goes through; `seconds` is how long it is published at most."""

    events: int = 10_000
    rate: float | None = None
    seconds: float = 60.0
    size: int = 200
    keys: int = 1_000
    skew: float = 0.0
    via: Via = "publish"
    many: int = 100
    publishers: int = 1
    partitions: int = 4
    consumers: int = 1
    mode: Literal["stream", "queue"] = "stream"
    batch_size: int | None = 100
    threads: int = 1

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each thing that is asked too much."""
        bounds: list[tuple[str, float | None, float, float]] = [
            ("--events", self.events, 1, MOST_EVENTS),
            ("--rate", self.rate, 0.1, 1_000_000),
            ("--for", self.seconds, 1, MOST_SECONDS),
            ("--size", self.size, SMALLEST, settings.MAX_PAYLOAD_BYTES or 1 << 20),
            ("--keys", self.keys, 0, MOST_EVENTS),
            ("--skew", self.skew, 0, 1),
            ("--many", self.many, 1, MOST_MANY),
            ("--publishers", self.publishers, 1, MOST_THREADS),
            ("--partitions", self.partitions, 1, 1_000),
            ("--consumers", self.consumers, 0, MOST_CONSUMERS),
            ("--batch-size", self.batch_size, 1, 10_000),
            ("--threads", self.threads, 1, MOST_THREADS),
        ]
        for option, value, least, most in bounds:
            if value is not None and not least <= value <= most:
                yield f"{option} is {value:,}, expected {least:,} to {most:,}."
        if self.expected_bytes > MOST_BYTES:
            yield (
                f"{self.planned:,} events of {self.size:,} bytes need about {self.expected_bytes / 2**30:,.1f} GiB of "
                f"disk, and no more than {MOST_BYTES >> 30} are written. Ask for fewer, or for smaller ones."
            )

    @property
    def planned(self) -> int:
        """How many events there are at most: with a rate, what is due until the end."""
        return self.events if self.rate is None else max(min(self.events, int(self.rate * self.seconds)), 1)

    @property
    def expected_bytes(self) -> int:
        """About how much is written to the tables: the log, the buffer, the deliveries. WAL is as much again."""
        deliveries = self.consumers * OF_A_DELIVERY if self.mode == "queue" else 0
        return self.planned * (2 * (self.size + OF_A_ROW) + deliveries)

    @property
    def step(self) -> int:
        """How many events are published with one call."""
        return self.many if self.via == "publish_many" else 1

    def due(self, n: int) -> float | None:
        """When the n-th event is due, in seconds from the start; nothing if there is no rate.

        What is published with one call is due together, when the last of it is.
        """
        if self.rate is None:
            return None
        last = min((n // self.step + 1) * self.step, self.planned) - 1
        return last / self.rate

    def value(self, n: int) -> dict[str, Any]:
        """A value of about `size` bytes of JSON that doesn't compress well, with the number in it."""
        room = max(self.size - FRAME - len(str(n)), 0)
        start = n * 31 % (len(self._filler) - room)
        return {"n": n, "filler": self._filler[start : start + room]}

    def key(self, n: int) -> str | None:
        """One of the keys, or the hot one: always the same for the same n."""
        if not self.keys:
            return None
        if n * GOLDEN % 1 < self.skew:
            return "key-0"
        return f"key-{crc32(b'%d' % n) % self.keys}"

    def draft(self, n: int) -> Draft:
        return Draft(value=self.value(n), type=TYPE, key=self.key(n))

    @cached_property
    def _filler(self) -> str:
        return secrets.token_urlsafe(2 * self.size + 100)
