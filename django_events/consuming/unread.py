"""Events whose payload is not read with others, and why one can't be read at all."""

from typing import Any

from django_events.conf import settings
from django_events.exceptions import UnreadableEvent
from django_events.received import ReceivedEvent


class UnreadEvent(ReceivedEvent):
    """An event without its payload, because that is too large to be read with others, or can't be read at all.

    A worker reads the payload before it calls the handler. If that fails, the event gets to the receivers of failures
    without it.
    """

    __slots__ = ()

    @property
    def too_large(self) -> bool:
        """Whether it is larger than MAX_BATCH_BYTES; if it was not weighed, by its stored size."""
        return self._columns[-2] or self.stored_bytes > settings.MAX_BATCH_BYTES

    @property
    def stored_bytes(self) -> int:
        """The size of payload and metadata in the database, where they may be compressed."""
        return self._columns[-1]  # type: ignore[no-any-return]

    @property
    def value(self) -> Any:
        raise unreadable(self)

    @property
    def body(self) -> bytes | None:
        raise unreadable(self)

    @property
    def metadata(self) -> dict[str, Any]:
        """Empty, because it was not read."""
        return {}

    @property
    def erased(self) -> bool:
        return False


def unreadable(event: UnreadEvent, why: str = "was not read") -> UnreadableEvent:
    return UnreadableEvent(
        f"The payload of event {event.address}, {event.stored_bytes:,} bytes as they are stored, {why}. "
        "It stays in the log, and so does the copy that a dead letter has."
    )


def gone(event: UnreadEvent) -> UnreadableEvent:
    return UnreadableEvent(
        f"Event {event.address} is not there any more: it was removed before its payload was read, of which "
        f"{event.stored_bytes:,} bytes were stored."
    )
