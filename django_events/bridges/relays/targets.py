"""What a bridge to a broker has to do, for those of this package and for a site's own.

    class ToPrinter:                            # the target: what an app declares
        def problems(self): return iter(())
        def check_installed(self): ...
        def route(self, event, partition): return Route("paper")
        def bridge(self): return PrinterBridge()

    relay(orders, to=ToPrinter(), name="orders-on-paper")

A relay opens one bridge in each thread of a worker, and uses it in that thread only. After any error it closes the
bridge and opens a new one for the next attempt. A target whose bridges share something in a process has a method more,
`bridges`, see `Bridges`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple, Protocol

from django_events.retries import RetryLater


class Route(NamedTuple):
    """Where a message goes, and what of the target keeps the number of the newest event, if anything does."""

    to: str
    log: str = ""


@dataclass(slots=True)
class RelayMessage:
    """One event as it is sent. Headers are in the order of CloudEvents' attributes.

    `body` is None for an event whose value is null, and one that was erased. No bridge changes a message: it isn't
    frozen because that takes as long as all else that is done to make one.
    """

    event_id: int
    address: str  # `orders/1042`, the same for each attempt
    route: Route
    key: str | None
    attributes: Mapping[str, str] = field(repr=False)  # `id`, `source`, `type` …, behind the bridge's `prefix`
    headers: Mapping[str, str] = field(repr=False)  # `content-type` and the trace context
    body: bytes | None = field(repr=False)
    redriven: bool = False  # a dead letter, which comes behind events of higher ids

    @property
    def size(self) -> int:
        """About how many bytes the target gets."""
        named = (*self.attributes.items(), *self.headers.items())
        beside = sum(len(name) + len(text.encode()) + 3 for name, text in named)
        return len(self.body or b"") + len((self.key or "").encode()) + beside


class Newest(NamedTuple):
    """The newest event that a log of the target has: its id, and if they are still there its address and its time."""

    event_id: int
    address: str = ""
    published_at: datetime | None = None
    relay: str = ""  # the name of the one that sent it, if it is still there


class TargetUnavailable(RetryLater):
    """Nothing can be sent now: the target is down, full, or not set up. No event is to blame, and no attempt counts.

    `acknowledged` says how many of the first messages are acknowledged all the same, and `ahead` the addresses of those
    that are behind others that are not. `after` is how long the target
    wants to be left alone; without it the relay's `retry` says so. `since` is the relay's to say, too.
    """

    counts = False

    def __init__(
        self,
        reason: str,
        *,
        acknowledged: int = 0,
        after: timedelta | None = None,
        ahead: Iterable[str] = (),
        since: datetime | None = None,
    ) -> None:
        super().__init__(reason, after=timedelta(0) if after is None else after)
        self.since = since
        self.acknowledged = acknowledged
        self.asked_for = after
        self.ahead = frozenset(ahead)


class Overtaken(Exception):
    """The target has events that this bridge did not know of: another worker was faster, or an answer was lost.

    The relay asks `newest` again, and sends what is not there.
    """


class Bridge(Protocol):
    """A connection to a broker, for one thread.

    One that says `sends_only = True`, by the time it is open, promises that its `send` doesn't use Django's connection
    to the events' database: meanwhile the server is asked for the next batch there. One with a `prefix`, like "ce_",
    gets the names of attributes behind it, as the headers of its broker have them.
    """

    largest: int | None  # bytes of one message, where the target says so; known when it is open

    def open(self) -> None:
        """Connect; TargetUnavailable if that is not possible now."""

    def newest(self, log: str) -> Newest | None:
        """The newest event in a log of the target, with the id 0 if there is none; None if the target can't tell.

        TargetUnavailable if something else than a relay has written there.
        """

    def send(self, messages: Sequence[RelayMessage]) -> Sequence[Exception | None]:
        """Send these in their order, pipelined, and wait until all are acknowledged.

        Returns one entry for each message: None, or the MessageRefused of one that the target refuses for itself. The
        list may be shorter: those behind it were not sent. Overtaken and TargetUnavailable are raised.
        """

    def close(self) -> None:
        """Close the connection, whatever state it is in. Raises nothing, and waits for nothing."""


class Bridges(Protocol):
    """What makes the bridges of one relay in one process, where they share something.

    A target's `bridges()` returns it, or None where they share nothing.
    """

    def bridge(self) -> Bridge:
        """A new bridge for a thread, not open yet."""

    def close(self) -> None:
        """Close what they share. Raises nothing, and waits for nothing."""
