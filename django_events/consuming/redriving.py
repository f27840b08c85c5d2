"""A dead letter that is handled again: claimed with its partition, handled and settled like any event."""

from collections.abc import Sequence
from dataclasses import dataclass

from django_events import sql
from django_events.consuming.failures import Failure, Verdict, judge
from django_events.consuming.leases import Lease, Settlement
from django_events.consuming.received import ReceivedEvent
from django_events.consuming.subscriptions import Subscription
from django_events.exceptions import LeaseLost


@dataclass(slots=True)
class Redrive:
    """The oldest dead letter of a leased partition that somebody wants handled again."""

    lease: Lease
    dead_letter_id: int
    attempts: int
    event: ReceivedEvent

    @property
    def subscription(self) -> Subscription:
        return self.lease.subscription

    def judge(self, event: ReceivedEvent, error: BaseException) -> Failure:
        return judge(self.subscription.consumer, event, error, may_stop=False)

    def is_careful(self, event: ReceivedEvent) -> bool:
        return True

    def attempts_of(self, event: ReceivedEvent) -> int:
        return self.attempts

    def count_attempt(self, event: ReceivedEvent) -> ReceivedEvent:
        rows = sql.fetch(
            self.lease.using,
            sql.statement("count_redrive"),
            dead_letter_id=self.dead_letter_id,
            position_id=self.lease.position_id,
            token=self.lease.token,
        )
        if not rows:
            raise LeaseLost(f"The dead letter {event.address} of consumer {self.subscription} is not this worker's.")
        self.attempts = rows[0][0]
        return event.with_attempt(self.attempts)

    def settle(
        self, handled: Sequence[ReceivedEvent], failure: Failure | None = None, *, careful_until: int | None = None
    ) -> Settlement:
        """Delete it if it was handled or discarded; write its new error down if not."""
        if failure is None or failure.verdict is Verdict.DISCARD:
            rows = sql.fetch(self.lease.using, sql.statement("drop_dead_letter"), dead_letter_id=self.dead_letter_id)
        else:
            rows = sql.fetch(
                self.lease.using,
                sql.statement("settle_redrive"),
                dead_letter_id=self.dead_letter_id,
                pause=failure.pause if failure.verdict is Verdict.RETRY else None,
                error=failure.summary,
                traceback=failure.traceback,
            )
        if not rows:
            raise LeaseLost(f"The dead letter {self.event.address} of consumer {self.subscription} was discarded.")
        return self.lease.settle_redrive(
            failed=failure is not None and failure.verdict is not Verdict.DISCARD,
            discarded=failure is not None and failure.verdict is Verdict.DISCARD,
        )

    def settled(self, settlement: Settlement) -> None:
        self.lease.settled(settlement)


def next_redrive(lease: Lease) -> Redrive | None:
    """The next dead letter of a leased partition to handle again, in the order of their ids."""
    rows = sql.fetch(
        lease.using,
        sql.statement("next_redrive").on(redrive_due=sql.statement("redrive_due")),
        position_id=lease.position_id,
    )
    if not rows:
        return None
    dead_letter_id, attempts, *columns = rows[0]
    of = lease.subscription
    return Redrive(lease, dead_letter_id, attempts, ReceivedEvent(of.topic, columns, consumer=of.consumer.name))
