"""The metadata that `event_context()` gives to all events which a block of code publishes."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

# One entry for each block, outermost first.
_context: ContextVar[tuple[Mapping[str, Any], ...]] = ContextVar("django_events_context", default=())


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


def has_context() -> bool:
    return bool(_context.get())


def current_context() -> dict[str, Any]:
    """The metadata in force here, with functions replaced by their values."""
    merged = {name: value for entry in _context.get() for name, value in entry.items()}
    return {name: value.get() if isinstance(value, Lazily) else value for name, value in merged.items()}


def with_context(metadata: Any) -> Any:
    """An event's metadata with those of the context added; what the event says itself wins."""
    if not (metadata is None or isinstance(metadata, Mapping)):
        return metadata
    return {**current_context(), **(metadata or {})}
