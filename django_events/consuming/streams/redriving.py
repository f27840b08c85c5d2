"""A dead letter of a stream that is handled again: claimed with its partition, handled and settled like any event."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.db import DatabaseError, transaction

from django_events import sql
from django_events.consuming.failures import Failure, Verdict, judge
from django_events.consuming.reading import ALL, NOTHING, Rows, bounded, is_of_payload, loaded
from django_events.consuming.streams.leased_partitions import LeasedPartition, PartitionSettlement
from django_events.consuming.subscriptions import Subscription
from django_events.exceptions import LeaseLost
from django_events.models import Position
from django_events.received import ReceivedEvent

SQL = sql.beside(__name__)


@dataclass(slots=True)
class Redrive:
    """The oldest dead letter of a leased partition that is due to be handled again."""

    lease: LeasedPartition
    dead_letter_id: int
    attempts: int
    event: ReceivedEvent

    @property
    def subscription(self) -> Subscription:
        return self.lease.subscription

    @property
    def redriven(self) -> bool:
        return True

    def judge(self, event: ReceivedEvent, error: BaseException) -> Failure:
        return judge(self.subscription.consumer, event, error, may_stop=False)

    def is_careful(self, event: ReceivedEvent) -> bool:
        return True

    def attempts_of(self, event: ReceivedEvent) -> int:
        return self.attempts

    def count_attempt(self, event: ReceivedEvent) -> ReceivedEvent:
        rows = sql.fetch(
            self.lease.using,
            SQL.count_redrive,
            dead_letter_id=self.dead_letter_id,
            position_id=self.lease.position_id,
            token=self.lease.token,
        )
        if not rows:
            raise LeaseLost(
                f"The dead letter {event.address} of consumer {self.subscription} is not handled by this worker any "
                "more: its lease was taken over, or the redrive was undone."
            )
        self.attempts = rows[0][0]
        return event.with_attempt(self.attempts)

    def load(self, event: ReceivedEvent) -> ReceivedEvent | None:
        read = loaded(_rows(self.lease, event.id, most_bytes=ALL), event)
        return read and _in_partition(self.lease, read)

    def settle(
        self, handled: Sequence[ReceivedEvent], failure: Failure | None = None, *, careful_until: int | None = None
    ) -> PartitionSettlement:
        """Delete it if it was handled or ignored; write its new error down if not."""
        if failure is None or failure.verdict is Verdict.IGNORE:
            rows = sql.fetch(self.lease.using, SQL.drop_dead_letter, dead_letter_id=self.dead_letter_id)
        else:
            rows = sql.fetch(
                self.lease.using,
                SQL.settle_redrive,
                dead_letter_id=self.dead_letter_id,
                pause=failure.pause if failure.verdict is Verdict.RETRY else None,
                attempts=failure.attempts,
                error=failure.summary,
                traceback=failure.traceback,
                fingerprint=failure.fingerprint(self.subscription.consumer),
            )
        if not rows:
            raise self._discarded()
        return self.lease.settle_redrive(
            failed=failure is not None and failure.is_failed_attempt,
            ignored=failure is not None and failure.verdict is Verdict.IGNORE,
        )

    def settle_handled(self, handled: Sequence[ReceivedEvent]) -> PartitionSettlement:
        """As `Claim.settle_handled`."""
        with transaction.atomic(self.lease.using):
            return self.settle(handled)

    def settled(self, settlement: PartitionSettlement) -> None:
        self.lease.settled(settlement)

    def _discarded(self) -> LeaseLost:
        return LeaseLost(f"The dead letter {self.event.address} of consumer {self.subscription} was discarded.")


def next_redrive(lease: LeasedPartition) -> Redrive | None:
    """The next dead letter of a leased partition to handle again, by event id; None if none is due."""
    rows = sql.fetch(
        lease.using,
        SQL.next_redrive.on(redrive_due=lease.subscription.redrive_due),
        position_id=lease.position_id,
    )
    if not rows:
        return None
    dead_letter_id, attempts, event_id = rows[0]
    try:
        read, cut = _rows(lease, event_id)
    except DatabaseError as error:
        if not is_of_payload(lease.using, error):
            raise
        read, cut = _rows(lease, event_id, most_bytes=NOTHING)
    of = lease.subscription
    events = of.received(read[:1]) if cut is None else [of.unread(cut)]
    return Redrive(lease, dead_letter_id, attempts, _in_partition(lease, events[0])) if events else None


def _in_partition(lease: LeasedPartition, event: ReceivedEvent) -> ReceivedEvent:
    """The event in the partition that handles it: the topic may have been divided anew since it was in another one.

    Handlers may have something for each partition, as relays have a place in the target: one worker uses it at a time.
    """
    return event if lease.partition == Position.ALL else event.in_partition(lease.partition)


def _rows(lease: LeasedPartition, event_id: int, *, most_bytes: int | None = None) -> Rows:
    consumer_id = lease.subscription.consumer_id
    letter = sql.shared.read_dead_letters
    return bounded(lease.using, letter, most_bytes=most_bytes, consumer_id=consumer_id, event_ids=[event_id])
