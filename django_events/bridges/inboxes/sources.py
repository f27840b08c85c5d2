"""What a source of an inbox has to do, for those of this package and for a site's own.

    class FromPrinter:                          # the source: what an app declares
        def __str__(self): return "printer"
        def problems(self): return iter(())
        def check_installed(self): ...
        def reader(self): return PrinterReader()

    inbox(papers, source=FromPrinter(), name="papers-in")

A reader is used in one thread. After any error, and while the inbox is paused or waits for what is behind it, it is
closed, and another one is opened for the next attempt. It keeps no position and acknowledges nothing: where to read is
asked each time, because the database alone knows it.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar

from django_events.drafts import Draft
from django_events.log.mirroring import CopiedRows

Value = TypeVar("Value")
Places = dict[str, Any]  # by log of the source, what the last message that was taken in there is; JSON
_NOTHING: Mapping[str, Any] = MappingProxyType({})  # headers or fields of a message that has none


class InboxMessage(NamedTuple):
    """One message as the source has it. `transform` gets it.

    `fields` are the bytes of a Redis entry, or of Kafka's headers, by name. Headers have small letters.
    `draft` is the event that it is taken in as without a `transform`, where the source knows.
    """

    id: str  # `1700000000000-0` of Redis, a number of the stream in JetStream, an offset in Kafka
    log: str  # the stream, or the topic and its partition
    place: Any  # what the inbox remembers of the log when it has taken this in, or what makes it
    key: str | None = None
    body: bytes | None = None
    headers: Mapping[str, str] = _NOTHING
    fields: Mapping[str, bytes] = _NOTHING
    subject: str | None = None  # of JetStream
    sent_at: datetime | None = None
    draft: Draft | None = None

    def __repr__(self) -> str:
        """Without what it says: payloads are kept out of logs."""
        return f"<message {self.address}, key {self.key!r}, subject {self.subject!r}, sent at {self.sent_at}>"

    @property
    def address(self) -> str:
        """`bank.payments/1700000000000-0`: which message it is, for people."""
        return f"{self.log}/{self.id}"

    @property
    def place_behind(self) -> Any:
        """What the inbox remembers of the log when it has taken this in. Of a batch only the last one is asked."""
        return self.place() if callable(self.place) else self.place

    def json(self) -> Any:
        """The body as JSON; ValueError if it is none."""
        return None if self.body is None else json.loads(self.body)


class GoneMessages(NamedTuple):
    """Messages that the source removed before they were taken in. They are told once, in front of what is left."""

    log: str
    messages: int
    behind: str  # the last id up to which nothing was missing
    next: str  # the id of the first that is left to be taken in
    place: Any  # where the inbox goes on if it does without them
    unit: str = "message"  # what is counted: in Kafka offsets, some of which may have had no message


class Passed(NamedTuple):
    """Where an inbox is when it has taken all of it in, if the source leaves messages out by itself, or copies rows."""

    places: Places
    lag: int | None
    rows: CopiedRows | None = None  # of a reader that copies, in the place of messages


class Found(NamedTuple):
    """What a source has behind some places."""

    messages: Sequence[InboxMessage]
    gone: Sequence[GoneMessages] = ()
    lag: int | None = None  # how many messages are behind these places, those that are found included
    passed: Passed | None = None


class CopyBeginning(NamedTuple):
    """Where a log with the ids of the source begins: behind an id, with the numbers that partitions had there."""

    places: Places
    id: int
    numbers: Sequence[int]


class SourceUnavailable(Exception):
    """Nothing can be read now: the broker is down, the log is not there, or it isn't the one that places are of."""


class SourceReader(Protocol):
    """A connection to a broker that reads, for one thread."""

    def open(self) -> None:
        """Connect; SourceUnavailable if that is not possible now."""

    def begin(self, start: str) -> Places:
        """The places from which on to read: in front of all messages for "beginning", behind all for "end".

        Any other start is the id of a message, which is the last one that is not read.
        """

    def read(self, places: Places, most: int) -> Found:
        """Up to so many messages behind these places, in the order of each log, without waiting for any.

        SourceUnavailable if a log has lost what was taken in, or is another one of the same name.
        """

    def wait(self, places: Places, seconds: float) -> None:
        """Until there is something behind these places, at most so long."""

    def close(self) -> None:
        """Close the connection, whatever state it is in. Raises nothing, and waits for nothing."""


def moment_of(seconds: float) -> datetime | None:
    """A time that a publisher says; None if it is none that Python has, as of one that means another unit."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def by_name(fields: Sequence[tuple[str, Value]]) -> dict[str, Value]:
    """Fields by name; of those of one name the last has it, and the ones before it are `name (1)`, `name (2)` …"""
    named = dict(fields)
    if len(named) == len(fields):
        return named
    named, times = dict[str, Value](), dict[str, int]()
    for name, value in reversed(fields):
        free = name
        while free in named:
            times[name] = times.get(name, 0) + 1
            free = f"{name} ({times[name]})"
        named[free] = value
    return dict(reversed(named.items()))
