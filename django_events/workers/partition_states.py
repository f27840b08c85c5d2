"""What a process knows of one position between two looks, and the question by which it looks: is it due, or when?"""

import time
from dataclasses import dataclass
from functools import cache

from django_events import sql
from django_events.consuming.subscriptions import Subscription

SQL = sql.beside(__name__)

MOST_LOOKED_AT = 5_000
FIRST_REFUSAL, LONGEST_REFUSAL = 0.02, 5.0  # seconds


@dataclass(slots=True, eq=False)
class PartitionState:
    """What this process knows of one position: a partition of a stream, or a whole queue."""

    subscription: Subscription
    position_id: int
    partition: int
    ours: bool = False  # this process served it last, and no worker serves it now
    in_turn: bool = False  # this process serves it now, and no other worker can
    arrived_in_turn: bool = False  # events came meanwhile, perhaps too late for that turn
    unlooked: bool = False  # it is to be claimed because events came: no look has said that it can be
    left_out: bool = False  # of a look since it was taken to be claimed: while it is served, it is not due
    reached: int = 0  # the id up to which this process has served it
    refusal: float = 0.0  # seconds, how long it is left alone because it could not be claimed; 0 if it could
    refused_until: float = 0.0
    unclaimable: int = 0  # nothing up to this id can be claimed, see `deliveries.Unclaimable`
    unclaimable_until: float = 0.0

    def events_arrived(self) -> None:
        """Events came into the partition."""
        self.arrived_in_turn = self.in_turn

    def claimed(self) -> None:
        """A turn begins."""
        self.allow()
        self.ours, self.in_turn = False, True

    def served(self, until: int | None) -> None:
        """A turn is over, and the partition is served up to the id `until`; None if the lease was lost."""
        self.in_turn = False
        self.reached = until or 0
        # Where a batch is waited for, the arrival of an event is no reason to claim.
        if until is not None and self.subscription.consumer.min_batch == 1:
            self.ours = True

    def refuse(self) -> None:
        """It was due and could not be claimed: leave it alone for a while, twice as long each time."""
        self.refusal = min(self.refusal * 2 or FIRST_REFUSAL, LONGEST_REFUSAL)
        self.refused_until = time.monotonic() + self.refusal
        self.forget()

    def allow(self) -> None:
        """It may be claimable again."""
        self.refusal = self.refused_until = 0.0

    def forget(self) -> None:
        """What this process knew of it may have changed."""
        self.ours, self.reached = False, 0

    def statement(self, min_position: int, *, patient: bool) -> sql.Statement:
        """The question whether, or in how many seconds, the partitions of this subscription are due."""
        of, consumer = self.subscription, self.subscription.consumer
        events = sql.shared.in_topic.on(topic_id=of.topic_id) if of.whole else sql.shared.in_its_partition
        waiting, redrive = SQL.seconds_to_wait, SQL.due_redrive.on(condition=of.redrive_due)
        lowest = SQL.lowest_position.on(consumer_id=of.consumer_id)
        if consumer.min_batch > 1 and patient and consumer.max_wait is not None:
            return SQL.due_batches.on(
                consumer_id=of.consumer_id,
                min_position=min_position,
                log=of.log,
                events=events,
                match=of.match,
                waiting=waiting,
                redrive=redrive,
                lowest=lowest,
                enough=consumer.min_batch,
                most=MOST_LOOKED_AT if of.filtered else consumer.min_batch,
                longest=sql.literal(consumer.max_wait.total_seconds()),
            )
        return SQL.due.on(
            consumer_id=of.consumer_id,
            min_position=min_position,
            log=of.log,
            events=events,
            waiting=waiting,
            redrive=redrive,
            lowest=lowest,
        )


class QueueState(PartitionState):
    """The same of a queue, of which several workers take deliveries at a time."""

    __slots__ = ()

    def events_arrived(self) -> None:
        self.allow()

    def claimed(self) -> None:
        """Other workers may take deliveries meanwhile."""
        self.allow()
        self.ours = False

    def served(self, until: int | None) -> None:
        """The next delivery of a key, and the deliveries that were freed, can be claimed now."""
        self.allow()
        self.unclaimable = 0
        self.ours = True

    def statement(self, min_position: int, *, patient: bool) -> sql.Statement:
        return SQL.due_queue.on(
            consumer_id=self.subscription.consumer_id,
            unclaimable=self.unclaimable if time.monotonic() < self.unclaimable_until else 0,
            redrive=_due_redrive_of_queue(),
        )


@cache
def _due_redrive_of_queue() -> sql.Statement:
    return SQL.due_redrive.on(condition=sql.shared.redrive_of_queue)
