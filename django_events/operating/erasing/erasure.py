"""One erasure: what is asked for, what came of it, and how a step of it is done while others work.

erasure.erased.errors += erasure.count(lambda: sql.fetch(erasure.using, statement, consumer_ids=…))
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from django.db import OperationalError
from django.db.models import QuerySet

from django_events import models, sql
from django_events.exceptions import InUse
from django_events.sql.blocking import blocker_of, watched
from django_events.statements import log_table

TRIES = 5
LOCK_TIMEOUT = "2s"
PAUSE = 0.05


@dataclass(kw_only=True)
class Erased:
    """What was erased, or would be: how many rows of each kind, and by which workers some events are still in hand.

    `key` is what the record says in kind of the key; `new_key` is what stands in its kind everywhere, if it went.
    """

    topic: str
    key: str | None
    new_key: str | None = None
    events: int = 0
    buffered: int = 0
    scheduled: int = 0
    staged: int = 0
    dead_letters: int = 0
    deliveries: int = 0
    errors: int = 0
    dedup_keys: int = 0
    in_hand: list[str] = field(default_factory=list)

    @property
    def rows(self) -> int:
        """How many rows were changed."""
        return sum(value for value in vars(self).values() if isinstance(value, int))


@dataclass(slots=True)
class Seen:
    """What the search found."""

    anything: bool = False  # of what is to be erased
    until: int = 0  # the last id that the log had when it was searched for a key, whether it has it still or not
    in_hand: set[int] = field(default_factory=set)  # deliveries that workers had when their events were erased


@dataclass(frozen=True, kw_only=True, slots=True)
class Erasure:
    """What one call of `erase()` carries from one kind of row to the next."""

    READ_AT_ONCE: ClassVar = 50_000  # ids of a log without a timeline, or rows of the buffer
    ERASED_AT_ONCE: ClassVar = 2_000

    using: str
    topic: models.Topic
    key: str | None
    new_key: str | None
    ids: Sequence[int]
    dry_run: bool
    erased: Erased
    seen: Seen = field(default_factory=Seen)
    keys_follow: bool = False  # the keys go later, and what has one is counted then

    @property
    def log(self) -> str:
        return log_table(self.topic.pk)

    @property
    def consumers(self) -> "QuerySet[models.Consumer]":
        return models.Consumer.objects.using(self.using).filter(topic=self.topic).order_by("pk")

    @property
    def consumer_ids(self) -> list[int]:
        """Read anew each time: a consumer may have been registered while the log was searched."""
        return list(self.consumers.values_list("pk", flat=True))

    def add(self, kind: str, rows: int) -> None:
        """Count erased rows that all have the key."""
        if not self.keys_follow:
            setattr(self.erased, kind, getattr(self.erased, kind) + rows)

    def batches(self, ids: Sequence[int]) -> Iterator[list[int]]:
        """Yield the ids in portions of what one step erases."""
        for start in range(0, len(ids), self.ERASED_AT_ONCE):
            yield list(ids[start : start + self.ERASED_AT_ONCE])

    def count(self, step: Callable[[], sql.Rows]) -> int:
        """Run a step whose answer is a count."""
        [[count]] = self.patiently(step)
        return int(count)

    def patiently(self, step: Callable[[], sql.Rows]) -> sql.Rows:
        """Run a step in a transaction of its own, and again if another session's lock was in the way."""
        for tries in range(1, TRIES + 1):
            try:
                with sql.batch(self.using, lock_timeout=LOCK_TIMEOUT), watched(self.using):
                    return step()
            except OperationalError as error:
                if not sql.kind_of(error).passes_here:
                    raise
                if tries == TRIES:
                    by = blocker_of(error)
                    raise InUse(
                        f"Events of {self.topic}, or what a consumer keeps of them, are locked, by {by}. What was "
                        "erased so far stays erased. Say the same again when that is over."
                    ) from error
                time.sleep(PAUSE * tries)
        raise AssertionError
