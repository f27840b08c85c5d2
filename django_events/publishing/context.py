"""The metadata that `event_context()` gives to all events which a block of code publishes."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from typing import Any, TypeVar

from django_events.received import ReceivedEvent

T = TypeVar("T")

CAUSED_BY = "caused_by"

# One entry for each block, outermost first: what it says, or the event that a handler has in hand.
_context: ContextVar[tuple[Mapping[str, Any] | ReceivedEvent, ...]] = ContextVar("django_events_context", default=())


class Lazily:
    """A value that is computed when the first thread wants it, and only once."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function: Callable[[], Any] | None = function
        self._value: Any = None
        self._asking = threading.RLock()

    def get(self) -> Any:
        with self._asking:
            if (function := self._function) is not None:
                self._function = None  # a query that the function runs must not call it again
                try:
                    self._value = function()
                except BaseException:
                    self._function = function
                    raise
            return self._value


@contextmanager
def carrying(metadata: Mapping[str, Any]) -> Iterator[None]:
    """Add this to the metadata of events in the block."""
    with entered(_context, metadata):
        yield


@contextmanager
def entered(blocks: ContextVar[tuple[T, ...]], entry: T) -> Iterator[None]:
    """Add an entry for a block, and remove that one only: blocks of generators don't end in the order they began."""
    blocks.set((*blocks.get(), entry))
    try:
        yield
    finally:
        blocks.set(tuple(one for one in blocks.get() if one is not entry))


def enter_cause(event: ReceivedEvent) -> Token[tuple[Mapping[str, Any] | ReceivedEvent, ...]]:
    """Begin the block of a handler, as `carrying` does, at a fraction of its price: each event has one."""
    return _context.set((*_context.get(), event))


def leave_cause(before: Token[tuple[Mapping[str, Any] | ReceivedEvent, ...]]) -> None:
    """End it, and with it the blocks that the handler left open."""
    _context.reset(before)


def current_cause() -> ReceivedEvent | None:
    """The event that the handler which runs here has in hand; None outside of one."""
    for entry in reversed(_context.get()):
        if isinstance(entry, ReceivedEvent):
            return entry
    return None


def has_context() -> bool:
    return bool(_context.get())


def has_only_cause() -> bool:
    """Whether a handler is all that gives metadata here."""
    return all(isinstance(entry, ReceivedEvent) for entry in _context.get())


def lone_cause() -> str | None:
    """The address of the event that a handler has in hand, if that is all that is in force here."""
    blocks = _context.get()
    return blocks[0].address if len(blocks) == 1 and isinstance(blocks[0], ReceivedEvent) else None


def current_context() -> dict[str, Any]:
    """The metadata in force here, with functions replaced by their values."""
    merged: dict[str, Any] = {}
    for entry in _context.get():
        merged.update({CAUSED_BY: entry.address} if isinstance(entry, ReceivedEvent) else entry)
    return {name: value.get() if isinstance(value, Lazily) else value for name, value in merged.items()}


def with_context(metadata: Any) -> Any:
    """An event's metadata with those of the context added; what the event says itself wins."""
    if not (metadata is None or isinstance(metadata, Mapping)):
        return metadata
    return {**current_context(), **(metadata or {})}
