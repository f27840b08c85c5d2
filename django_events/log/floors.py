"""What retention and compaction have removed of a topic's log: written down in the transaction that removes it."""

from typing import NamedTuple

from django_events import sql

SQL = sql.beside(__name__)


class Floors(NamedTuple):
    """The last id that retention dropped, the last number of each partition by then, and how far it is compacted."""

    id: int
    numbers: list[int]
    compacted_until: int
    compacts: bool = True  # by itself: then the last event of each partition up to there is in the log

    @property
    def absent_until(self) -> int:
        """The last id that may be absent: above it, nothing is missing."""
        return max(self.id, self.compacted_until)

    def number(self, partition: int) -> int:
        """The last number of a partition that was dropped."""
        return self.numbers[partition] if 0 <= partition < len(self.numbers) else 0


def floors_of(using: str, topic_id: int) -> Floors | None:
    """The floors of a topic now; None where the topic has no head."""
    rows = sql.fetch_whole(using, SQL.floors, topic_id=topic_id)
    return Floors(*rows[0]) if rows else None
