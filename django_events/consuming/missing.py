"""Events that a worker doesn't find in the log: retention has dropped them, or they are missing.

Ids have no gaps, and the numbers of a partition have none either. What retention dropped is at or below the floors that
it wrote down in the same transaction. Nothing else may be taken for gone.
"""

from typing import NamedTuple

from django_events import sql
from django_events.consuming.subscriptions import Subscription
from django_events.exceptions import EventsMissing


class Floors(NamedTuple):
    """The last id that retention dropped, and the last number of each partition by then."""

    id: int
    numbers: list[int]

    def number(self, partition: int) -> int:
        """The last number of a partition that was dropped."""
        return self.numbers[partition] if 0 <= partition < len(self.numbers) else 0


def floors(of: Subscription) -> Floors:
    """As they are now. Without the topic's head nothing is known to be dropped."""
    rows = sql.fetch_whole(of.using, sql.shared.head_of_topic, topic_id=of.topic_id)
    return Floors(*rows[0]) if rows else Floors(0, [])


def left_out(address: str) -> EventsMissing:
    """The error of a worker whose read answers without an event that is there: to go on behind it would lose it."""
    return EventsMissing(f"The log has event {address}, and a read left it out.")


def missing(what: str) -> EventsMissing:
    """The error of a worker that doesn't find an event which retention has not dropped."""
    return EventsMissing(
        f"{what} is missing: it is not in the log, and retention has not dropped it. Was it "
        "removed by hand, or lost with a file?"
    )
