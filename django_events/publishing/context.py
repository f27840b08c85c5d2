"""What all events that a block of code publishes carry in their metadata. `event_context()` says it."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")

# One entry for each block, outermost first.
_context: ContextVar[tuple[Mapping[str, Any], ...]] = ContextVar("django_events_context", default=())


class Lazily:
    """A value that is asked for when it is wanted, and once, whichever thread wants it."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function: Callable[[], Any] | None = function
        self._value: Any = None
        self._asking = threading.RLock()

    def get(self) -> Any:
        with self._asking:
            if (function := self._function) is not None:
                self._function = None  # what it asks the database must not ask for it again
                try:
                    self._value = function()
                except BaseException:
                    self._function = function
                    raise
            return self._value


@contextmanager
def carrying(metadata: Mapping[str, Any]) -> Iterator[None]:
    """Let this be in the metadata of events, beside what is there already."""
    with entered(_context, metadata):
        yield


@contextmanager
def entered(blocks: ContextVar[tuple[T, ...]], entry: T) -> Iterator[None]:
    """Let a block have an entry. It takes away its own only: those of generators don't end in the order they began."""
    blocks.set((*blocks.get(), entry))
    try:
        yield
    finally:
        blocks.set(tuple(one for one in blocks.get() if one is not entry))


def has_context() -> bool:
    return bool(_context.get())


def current_context() -> dict[str, Any]:
    """What is in force here, with the values of functions."""
    merged = {name: value for entry in _context.get() for name, value in entry.items()}
    return {name: value.get() if isinstance(value, Lazily) else value for name, value in merged.items()}


def with_context(metadata: Any) -> Any:
    """The metadata of an event that is published where there is a context."""
    if not (metadata is None or isinstance(metadata, Mapping)):
        return metadata
    return {**current_context(), **(metadata or {})}
