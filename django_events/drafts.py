"""What goes into publishing and what comes out: plain data that touches no database.

publish_many("orders", [Draft(value={"id": 7}, type="order.placed", key="7")])
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, TypedDict


class Unset(Enum):
    """The mark of an argument that was not given, where None already means something."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return "UNSET"

    def __bool__(self) -> bool:
        return False


UNSET = Unset.UNSET


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """One event for `publish_many`. It has exactly one of value and body; value=None is JSON null."""

    value: Any = field(default=UNSET, repr=False)  # payloads are kept out of logs
    body: bytes | Unset = field(default=UNSET, repr=False)
    type: str = ""
    key: str | None = None
    metadata: Mapping[str, Any] | None = field(default=None, repr=False)
    partition: int | None = None
    publish_at: datetime | None = None
    dedup_key: str | None = None
    dedup_window: timedelta | None = None
    shard_by: str | None = None


class EventFields(TypedDict, total=False):
    """What `publish` takes beside the value."""

    body: bytes | Unset
    type: str
    key: str | None
    metadata: Mapping[str, Any] | None
    partition: int | None
    publish_at: datetime | None
    dedup_key: str | None
    dedup_window: timedelta | None
    shard_by: str | None
    using: str | None


@dataclass(frozen=True, slots=True)
class Receipt:
    """What is known when an event was published. It gets its id later, in the log.

    The ticket is its place in the buffer, or with `publish_at`, where it is `scheduled`, its handle for `cancel()`. An
    event whose dedup key was taken is not `new`: nothing was published, and there is no ticket. `wait_for()` takes
    receipts: it goes by the database they are of, and by the moment of publishing, in seconds of that database's clock.
    """

    topic: str
    ticket: int | None
    new: bool = True
    using: str | None = field(default=None, kw_only=True, compare=False)
    scheduled: bool = field(default=False, kw_only=True, compare=False)
    moment: tuple[float, float] | None = field(default=None, kw_only=True, compare=False, repr=False)
