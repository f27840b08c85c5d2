"""Which consumers stand at a barrier: from which event on they are read by another layout, and who holds them back.

barriers("default")   # of all consumers, by name and topic
"""

from collections.abc import Iterable
from typing import Any, NamedTuple

from django_events import models, sql
from django_events.phrases import count
from django_events.statements import log_table

SQL = sql.beside(__name__)

SHOWN = 5


class PartitionLeft(NamedTuple):
    """A partition that has not come to the barrier yet: how many events are left before it, and what goes on there."""

    partition: int
    left: int
    state: str


class Barrier(NamedTuple):
    """An event from which on a consumer is read by another layout.

    `partitions` is how many are read by themselves from there on; null if all are read together. `held_back_by` are the
    partitions that have events left before it, the slowest first.
    """

    consumer_id: int
    consumer: str
    topic: str
    event: int
    partitions: int | None
    held_back_by: tuple[PartitionLeft, ...]

    @property
    def left(self) -> int:
        """How many events are left before it."""
        return sum(one.left for one in self.held_back_by)

    def flat(self) -> dict[str, Any]:
        """As JSON tells it."""
        held_back_by = [one._asdict() for one in self.held_back_by]
        return {"event": self.event, "partitions": self.partitions, "left": self.left, "held_back_by": held_back_by}

    @property
    def said(self) -> str:
        """The same in a sentence."""
        by_partition = None if self.partitions is None else f"by {count(self.partitions, 'partition')}"
        how = by_partition or "all partitions together"
        who = ", ".join(_told(one) for one in self.held_back_by[:SHOWN]) or "nothing, the next event takes it there"
        more = f" and {len(self.held_back_by) - SHOWN} more" if len(self.held_back_by) > SHOWN else ""
        return (
            f"{self.consumer} of {self.topic}: it reads {how} from event {self.event:,} on. Before that: {who}{more}."
        )


def _told(one: PartitionLeft) -> str:
    where = "" if one.partition == models.Position.ALL else f"partition {one.partition}: "
    return f"{where}{count(one.left, 'event')} left, {one.state}"


def barriers(using: str, consumers: Iterable[models.Consumer] | None = None) -> list[Barrier]:
    """The barriers of these consumers, or of all."""
    at_barriers = models.Position.objects.using(using).filter(barrier__isnull=False)
    rows = models.Consumer.objects.using(using).filter(pk__in=at_barriers.values("consumer")).select_related("topic")
    if consumers is not None:
        rows = rows.filter(pk__in=[row.pk for row in consumers])
    return [barrier for row in rows.order_by("name", "topic__name") if (barrier := _of(using, row)) is not None]


def _of(using: str, row: models.Consumer) -> Barrier | None:
    topic = row.topic
    statement = SQL.left_before_barrier.on(
        log=log_table(topic.pk), is_undivided=sql.literal(topic.is_undivided), state=sql.shared.state_of_position
    )
    found = sql.fetch(using, statement, consumer_id=row.pk)
    if not found:  # passed in this moment
        return None
    event = found[0][0]
    if event == row.waits_from:  # for other shards
        return None
    turns = row.turns_at == event
    by_partition = row.partitioned != turns
    partitions = topic.all_layouts[topic.layout_at(event)].partitions
    behind = [PartitionLeft(partition, left, state) for _, partition, left, state in found if left > 0]
    behind.sort(key=lambda one: -one.left)
    return Barrier(row.pk, row.name, topic.name, event, partitions if by_partition else None, tuple(behind))
