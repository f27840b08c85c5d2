"""One way to serve a consumer, whether it is a stream or a queue: claim something, then handle it for a turn.

    server = server_of(subscription, position_id, partition, holder="host:7")
    if lease := server.claim():
        server.serve(lease, handler, on_failure=log_failure(lease))

A server is one worker's, for one position: a partition of a stream, or a whole queue.
"""

from collections.abc import Callable, Collection
from typing import Any, Protocol

from django_events.consuming.handlers import BoundHandler
from django_events.consuming.handling import OnFailure
from django_events.consuming.leases import Lease
from django_events.consuming.queues.deliveries import ALWAYS, Queue, Unclaimable, Window
from django_events.consuming.queues.server import QueueServer
from django_events.consuming.streams.server import StreamServer
from django_events.consuming.subscriptions import Subscription
from django_events.sql.prepared import SharedSession


class Server(Protocol):
    """What workers and `drain()` ask of both kinds."""

    @property
    def subscription(self) -> Subscription:
        """What it serves, by the layout that the consumer was read by when it was made."""

    @property
    def ask_again(self) -> bool:
        """Whether the last claim found nothing, but did part of a longer work that may bring something."""

    @property
    def more(self) -> bool:
        """Whether other workers may find something to claim right behind the last claim."""

    @property
    def unclaimable(self) -> Unclaimable | None:
        """Up to where nothing can be claimed for a while."""

    @property
    def may_be_blocked(self) -> bool:
        """Whether a position that is due may have nothing to claim, because deliveries wait for others of their key."""

    def claim(self, min_position: int = 0, *, ours: Collection[Lease] = (), async_commit: bool = True) -> Lease | None:
        """Lease what is to be handled next; None if there is nothing now.

        `ours` are the leases of this process: one of them that ran out isn't taken over, its handler is still running.
        """

    def serve(
        self, lease: Any, handler: BoundHandler, *, on_failure: OnFailure, stopping: Callable[[], bool] = ...
    ) -> int:
        """Handle and settle what is leased, for a turn; returns how many events were passed.

        After LeaseLost or any other error, nothing more is settled than before the error: give the lease up then.
        """

    def start_over(self) -> None:
        """Look everywhere the next time: something changed."""

    def write_counts(self) -> float | None:
        """Write down what was counted, once in a while; called when the worker has nothing to do.

        Returns in how many seconds to call it again, None if nothing is left to be written.
        """

    def close(self) -> None:
        """Write down what was counted: there is no next time."""


def server_of(
    subscription: Subscription,
    position_id: int,
    partition: int,
    *,
    holder: str,
    patient: bool = True,
    session: SharedSession | None = None,
    received: Window = ALWAYS,
) -> Server:
    """The server of a position. A patient one waits until there are min_batch events, or max_wait is over.

    With a session, statements that are asked again and again are prepared. With a window, a queue is served only as far
    as its events were received in it; a stream has no such times.
    """
    if subscription.is_queue:
        return QueueServer(
            Queue(subscription, holder=holder, since=received.since, until=received.until, session=session)
        )
    return StreamServer(subscription, position_id, partition, holder=holder, patient=patient, session=session)
