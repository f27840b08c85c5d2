"""What a partition is read in: batches of events, and what was read ahead of them."""

from typing import NamedTuple, Protocol

from django_events import sql
from django_events.consuming.subscriptions import Subscription
from django_events.received import ReceivedEvent

# How many ids a read looks at, at least, where a filter or the partition may leave out most of them.
RANGE = 10_000
MOST = 1_000_000  # events in one read, where neither batch_size nor memory sets a limit


class ReadOn(Protocol):
    """Reads the events behind a position, up to an id; None where that has to be done in another way."""

    def read(self, position: int, upper: int) -> sql.Rows | None: ...

    def settle_and_read(
        self, settle: sql.Question, position: int, upper: int
    ) -> tuple[sql.Rows, sql.Rows | None] | None: ...

    def ask(self, position: int, upper: int, *, token: int) -> bool: ...

    def answer(self) -> sql.Rows | None: ...


class EventBatch(NamedTuple):
    """The next events, and the position and number that the consumer has reached when all of them are handled."""

    events: list[ReceivedEvent]
    position: int
    number: int


class ReadAhead(NamedTuple):
    """The rows of the events behind a position, up to an id."""

    after: int
    rows: sql.Rows
    upper: int


def reach(of: Subscription, most: int) -> int:
    """How many ids to look at for so many events."""
    return most if of.is_dense else max(RANGE, 2 * most * of.partitions)
