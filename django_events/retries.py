"""What happens after an attempt that failed: the schedule, and what a handler can decide itself.

@consumer(orders, name="billing", retry=Backoff(attempts=5, base=timedelta(seconds=1)))
def bill(event: ReceivedEvent) -> None:
    if bank.is_closed():
        raise RetryLater(after=timedelta(hours=1))
    if event.value["total"] == 0:
        raise Ignore("nothing to bill")
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from django_events.exceptions import Invalid

# A time that far ahead is a mistake, and a little further PostgreSQL and Python have no name for it.
LONGEST_PAUSE = timedelta(days=3_650)


@dataclass(frozen=True, kw_only=True)
class Backoff:
    """How often an event is attempted, and how long to wait in between: twice as long each time, up to a cap.

    Or as long as `pauses` says, one after the other; the last one comes again. Each pause is shortened by chance, by a
    quarter at most, so that what failed together is not tried together.
    """

    attempts: int = 8
    base: timedelta = timedelta(seconds=1)
    cap: timedelta = timedelta(minutes=10)
    pauses: Sequence[timedelta] = ()

    def __post_init__(self) -> None:
        if isinstance(self.pauses, list):
            object.__setattr__(self, "pauses", tuple(self.pauses))

    def pause(self, attempt: int) -> timedelta:
        """How long to wait after this attempt failed; the first one is 1."""
        if self.pauses:
            seconds = self.pauses[min(attempt, len(self.pauses)) - 1].total_seconds()
        else:
            doubled = self.base.total_seconds() * 2.0 ** min(attempt - 1, 100)
            seconds = min(doubled, self.cap.total_seconds())
        return timedelta(seconds=seconds * random.uniform(0.75, 1))  # noqa: S311  # jitter

    def as_row(self) -> dict[str, Any]:
        """As the consumer's row has it, for the functions in SQL: times are in seconds."""
        return {
            "attempts": self.attempts,
            "base": self.base.total_seconds(),
            "cap": self.cap.total_seconds(),
            "pauses": [pause.total_seconds() for pause in self.pauses],
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "Backoff":
        """What `as_row` gave."""
        base, cap = timedelta(seconds=row["base"]), timedelta(seconds=row["cap"])
        pauses = tuple(timedelta(seconds=pause) for pause in row["pauses"])
        return cls(attempts=row["attempts"], base=base, cap=cap, pauses=pauses)

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each value that can't be used."""
        if isinstance(self.attempts, bool) or not isinstance(self.attempts, int) or self.attempts < 1:
            yield f"Backoff has attempts={self.attempts!r}, expected a whole number from 1."
        for option in ("base", "cap"):
            value: Any = getattr(self, option)
            if not _is_pause(value):
                yield f"Backoff has {option}={value!r}, expected a timedelta from zero to ten years."
        pauses: Any = self.pauses
        if not isinstance(pauses, tuple) or not all(map(_is_pause, pauses)):
            yield f"Backoff has pauses={pauses!r}, expected a list of timedeltas from zero to ten years."
        elif pauses and (self.base, self.cap) != (Backoff.base, Backoff.cap):
            yield "Backoff has pauses, and base or cap too: pauses say how long each one is."


class RetryLater(Exception):
    """Raised by a handler: try this event again after a while. It counts as an attempt."""

    counts: ClassVar[bool] = True  # False for what says nothing about the event, as that a broker is down
    since: datetime | None = None  # when that began, if it is known

    def __init__(self, reason: str = "", *, after: timedelta) -> None:
        if not _is_pause(after):
            raise Invalid(f"RetryLater has after={after!r}, expected a timedelta from zero to ten years.")
        super().__init__(reason or f"to be tried again after {after}")
        self.after = after


class Ignore(Exception):
    """Raised by a handler: this event is settled, and not tried again. What the handler wrote is undone."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def _is_pause(value: Any) -> bool:
    return isinstance(value, timedelta) and timedelta(0) <= value <= LONGEST_PAUSE
