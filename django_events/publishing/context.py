"""What all events that a block of code publishes carry in their metadata, whichever way they are published.

with event_context(user=request.user.pk, request=request_id):
    order.save()
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_context: ContextVar[dict[str, Any] | None] = ContextVar("django_events_context", default=None)


@contextmanager
def event_context(**metadata: Any) -> Iterator[None]:
    """Let every event that is published in the block have this in its metadata, by triggers too.

    Blocks add up, and what an event says itself wins. A value may be a function without parameters, which is called
    when the first event or the first statement that writes wants it. Tasks and `sync_to_async` take the block along,
    threads that are started in it don't.
    """
    token = _context.set({**(_context.get() or {}), **metadata})
    try:
        yield
    finally:
        _context.reset(token)


def has_context() -> bool:
    return bool(_context.get())


def current_context() -> dict[str, Any]:
    """What is in force here, with functions called, each of them once."""
    context = _context.get()
    if context is None:
        return {}
    for name, value in context.items():
        if callable(value):
            context[name] = None  # if it asks the database, that asks for the context again
            try:
                context[name] = value()
            except BaseException:
                context[name] = value
                raise
    return context


def with_context(metadata: Any) -> Any:
    """The metadata of an event that is published here."""
    if not has_context() or not (metadata is None or isinstance(metadata, Mapping)):
        return metadata
    return {**current_context(), **(metadata or {})}
