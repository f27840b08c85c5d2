"""What a worker has in hand under a token, whatever kind of consumer it is of."""

from dataclasses import dataclass, field

from django_events import sql
from django_events.consuming.received import ReceivedEvent
from django_events.consuming.subscriptions import Subscription
from django_events.exceptions import LeaseLost


@dataclass(slots=True)
class Held:
    """A lease, by the database's clock and fenced by a random token: who has another one settles nothing."""

    subscription: Subscription
    token: int
    lost_token: int | None  # of who had it before, and let its time run out
    nested: bool  # in a transaction of the caller's, as in a test
    released: bool = field(default=False, kw_only=True)
    # What the keeper of the leases and the handler's thread tell each other.
    lost: bool = field(default=False, kw_only=True)
    handling: ReceivedEvent | None = field(default=None, kw_only=True)
    timed_out: ReceivedEvent | None = field(default=None, kw_only=True)
    handling_since: float = field(default=0.0, kw_only=True)

    @property
    def using(self) -> str:
        return self.subscription.using

    @property
    def at_position(self) -> int | None:
        """The position whose lease it is; None where the lease is a row of its own."""
        return None

    @property
    def what(self) -> str:
        """Of what it is, for the log."""
        raise NotImplementedError

    def hold(self) -> None:
        """As the first statement of a handler's transaction: let whoever takes over find it, or raise LeaseLost."""
        [[had, *_]] = sql.fetch(self.using, sql.statement("hold"), token=self.token)
        if not had:
            raise self.lose()

    def lose(self) -> LeaseLost:
        """Somebody else has it now: the error to raise, so that nothing of this turn is committed."""
        self.lost = True
        return LeaseLost(
            f"Consumer {self.subscription} lost its lease of {self.what}: it was taken over or rewound. "
            "What was handled meanwhile is not settled."
        )
