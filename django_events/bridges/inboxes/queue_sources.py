"""What a source without places has to do: a queue gives each message to one reader, and forgets it when told to.

    class FromLetterbox:                        # the source: what an app declares
        is_queue = True
        window = timedelta(days=4)              # for how long a message that comes again is recognised
        def __str__(self): return "letterbox"
        def problems(self): return iter(())
        def check_installed(self): ...
        def reader(self): return LetterboxReader()

    inbox(letters, source=FromLetterbox(), name="letters-in")

A message is acknowledged after the COMMIT of the transaction that publishes it. So one comes again if a process ends
in between. What it is recognised by is its identity, which is a dedup key of the topic, taken in that transaction.

A reader is used in one thread. After any error, and while the inbox is paused or waits for what is behind it, it is
closed, and another one is opened for the next attempt. What it had in hand is the queue's again.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from typing import Protocol

from django_events.bridges.inboxes.sources import InboxMessage, SourceUnavailable

WINDOW = timedelta(days=4)  # for as long as SQS keeps a message, if it isn't told otherwise
LONGEST_WINDOW = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class QueuedMessage:
    """A message that the queue has given to this reader. `message.place` is what it is acknowledged by."""

    message: InboxMessage
    identity: str | None  # the same whenever it comes; None if it can't be recognised
    group: str | None = None  # those of a group are in order; those of None have none
    again: bool = False  # whether the queue says that it has given it before; it is looked up before it is transformed


class QueueInUse(SourceUnavailable):
    """Another consumer reads the queue, and gets all messages. The text says what to do if it is none of this inbox."""


class QueueReader(Protocol):
    """A connection to a broker that receives from a queue, for one thread."""

    in_order: bool  # whether messages that are given back stay in front of all others, so that the inbox has to rest
    holds: float  # for how many seconds the queue waits for a word of this reader, before it gives messages to another

    def open(self) -> None:
        """Connect; SourceUnavailable if that is not possible now."""

    def receive(self, most: int) -> Sequence[QueuedMessage]:
        """Up to so many messages, each group in its order. It waits for the first for a second at most.

        QueueInUse if another consumer has the queue for itself.
        """

    def acknowledge(self, messages: Iterable[QueuedMessage]) -> None:
        """Let the queue forget these: they are published. SourceUnavailable if it may give some of them again."""

    def give_back(self, messages: Iterable[QueuedMessage], after: timedelta) -> None:
        """Let these come again, after so long if the queue can wait; each group in its order."""

    def lag(self) -> int | None:
        """About how many messages are to be received, if the source can tell. An error means that it can't now."""

    def keep(self) -> None:
        """Tell the source that this reader is still there. It is called every few seconds while the inbox rests."""

    def close(self) -> None:
        """Close the connection, whatever state it is in. Raises nothing, and waits for nothing."""


def identity_of(headers: Mapping[str, str], fallback: str | None) -> str | None:
    """A CloudEvent is the same event whenever it is sent; another message is what its broker says, if it says anything.

    Of events the time is part of it: two shards may have events of the same source and id. What identities are made of
    stays apart in them, whatever is in it.
    """
    for prefix in ("ce_", "ce-", "cloudevents:", "cloudevents_"):
        named = [headers.get(f"{prefix}{name}", "") for name in ("source", "id", "time")]
        if named[0] and named[1]:
            return json.dumps(named)
    return json.dumps([fallback]) if fallback else None


def dedup_key_of(inbox: str, identity: str) -> str:
    """The dedup key of a message: short, whatever its identity is."""
    return f"inbox {inbox} {sha256(identity.encode('utf-8', 'surrogatepass')).hexdigest()}"


def check_times(what: str, *, window: object) -> Iterator[str]:
    """Yield a sentence if a window can be none."""
    if not isinstance(window, timedelta) or not timedelta(0) < window <= LONGEST_WINDOW:
        yield f"{what} has window={window!r}, expected a timedelta above 0, and of at most {LONGEST_WINDOW.days} days."
