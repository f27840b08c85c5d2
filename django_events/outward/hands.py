"""What a worker has in hand for one endpoint: claimed deliveries, which of them are under way, and whether it rests."""

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import timedelta

from django_events.consuming.programs.claiming import still_claimed
from django_events.consuming.queues.claimed_deliveries import ClaimedDeliveries
from django_events.consuming.queues.server import QueueServer
from django_events.outward.endpoints import Endpoint
from django_events.outward.exchange import WebhookAnswer
from django_events.received import ReceivedEvent

AHEAD = 4  # times as many deliveries are claimed as are sent, where those of one key wait for each other
FAILURES_IN_A_ROW = 3  # and the receiver is down, rather than an event bad
LONGEST_PROBE = 60.0  # seconds between two requests to a receiver that is down


@dataclass(eq=False, slots=True)
class Hand:
    """Deliveries that were claimed together, of one endpoint."""

    line: "EndpointLine"
    claimed: ClaimedDeliveries
    renewal: ExitStack
    under_way: set[int] = field(default_factory=set)  # events
    requests: int = 0
    lost: bool = False
    proven_at: float = field(default_factory=time.monotonic)  # when the database last said that the lease is ours

    @property
    def good_until(self) -> float:
        """Until when no other worker can have these deliveries, unless a person took them away."""
        return self.proven_at + self.claimed.subscription.consumer.lease.total_seconds()

    def is_ours(self) -> bool:
        """Whether nothing was taken over. A process that was frozen asks the database before it sends anything more."""
        if self.claimed.lost or self.lost:
            return False
        if time.monotonic() > self.proven_at + self.claimed.subscription.consumer.lease.total_seconds() / 2:
            now = time.monotonic()
            if still_claimed(self.claimed) != set(self.claimed.left):
                return False
            self.proven_at = now
        return True

    def next(self) -> Iterator[list[ReceivedEvent]]:
        """The events that can be sent now, those of each request. In an ordered queue, requests of a key don't overlap.

        What failed before goes by itself, so that one bad event doesn't fail others again and again. Events that are to
        be read one by one are.
        """
        if not self.claimed.events and not self.under_way and self.claimed.unread:
            self.claimed.next(1)
        most, together = self.line.endpoint.batch_size, list[ReceivedEvent]()
        busy = {self._order(event_id) for event_id in self.under_way}
        for event in tuple(self.claimed.events):
            order = self._order(event.id)
            if event.id in self.under_way or order in busy:
                continue
            alone = most == 1 or self.claimed.is_careful(event)
            if alone and order in {self._order(one.id) for one in together}:
                busy.add(order)  # behind those that are not sent yet
            elif alone:
                busy.add(order)
                yield [event]
            else:
                together.append(event)
            if len(together) == most:
                busy |= {self._order(one.id) for one in together}
                yield together
                together = []
        if together:
            yield together

    def _order(self, event_id: int) -> object:
        """What must not be under way twice: in an ordered queue the key, otherwise only the event itself."""
        key = self.claimed.keys[event_id] if self.claimed.ordered else None
        return event_id if key is None else key


@dataclass(eq=False, slots=True)
class EndpointLine:
    """One endpoint as a worker serves it."""

    endpoint: Endpoint
    server: QueueServer
    position_id: int
    hands: list[Hand] = field(default_factory=list)
    more: bool = False  # there may be something to claim, as soon as there is room
    failures: int = 0  # one after the other, because of the receiver
    rests_until: float = 0.0

    @property
    def requests(self) -> int:
        """How many are under way."""
        return sum(hand.requests for hand in self.hands)

    @property
    def rests(self) -> bool:
        return time.monotonic() < self.rests_until

    def room(self, most: int) -> int:
        """How many deliveries can be claimed now, if a process sends up to `most` requests to all endpoints.

        An endpoint with nothing under way always has room for one: however many others are slow, it isn't held up.
        """
        limit, size = self.endpoint.concurrency, self.endpoint.batch_size
        if self.rests or (self.failures >= FAILURES_IN_A_ROW and self.hands):
            return 0
        if self.failures >= FAILURES_IN_A_ROW:  # one request finds out whether it is up again
            return 1
        free = min(limit - self.requests, max(most, 0 if self.hands else 1))
        waiting = sum(len(hand.claimed.left) - len(hand.under_way) for hand in self.hands)
        if not self.server.queue.ordered:
            return max(free * size - waiting, 0)
        return free * size * AHEAD if free > 0 and waiting < limit * size * AHEAD else 0

    def freed(self) -> None:
        """Deliveries can be claimed that could not be a moment ago, wherever they are."""
        self.more = True
        self.server.start_over()

    def note(self, answer: WebhookAnswer) -> None:
        """Learn from an answer whether the receiver wants a rest, or is down."""
        if not answer.down:
            self.failures = 0
            return
        rest = answer.retry_after or timedelta(0)
        if self.rests:  # it was sent before the last one failed, and says nothing new
            self.rests_until = max(self.rests_until, time.monotonic() + rest.total_seconds())
            return
        self.failures += 1
        if self.failures >= FAILURES_IN_A_ROW:
            doubled = 2.0 ** min(self.failures - FAILURES_IN_A_ROW, 10)
            jitter = random.uniform(0.75, 1)  # noqa: S311
            rest = max(rest, timedelta(seconds=min(doubled, LONGEST_PROBE) * jitter))
        self.rests_until = max(self.rests_until, time.monotonic() + rest.total_seconds())
