"""Queues in figures: how many events are available, in hand, waiting, retried and dead, and the oldest of each.

figures(using, standings(using))    # by the id of the consumer
"""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import NamedTuple

from django_events import sql
from django_events.observing.lag import COUNTED, Standing

SQL = sql.beside(__name__)


class Figure(NamedTuple):
    """How many events of a queue are in a state; at least so many, if there are `more`. The oldest came so long ago."""

    events: int = 0
    more: bool = False
    oldest: timedelta | None = None

    def __str__(self) -> str:
        return f"≥ {self.events:,}" if self.more else f"{self.events:,}"


class QueueFigures(NamedTuple):
    """What becomes of the events that a queue has not settled; each is in one of these states."""

    available: Figure = Figure()  # for any worker, now
    in_hand: Figure = Figure()  # of a worker, which may be lost
    waiting: Figure = Figure()  # for a time, before their first attempt
    retrying: Figure = Figure()  # for a time, after an attempt that failed
    dead: Figure = Figure()  # until a worker takes them up again; the oldest died so long ago
    longest_in_hand: timedelta | None = None

    def states(self) -> Iterator[tuple[str, Figure]]:
        yield from (("available", self.available), ("in hand", self.in_hand), ("waiting", self.waiting))
        yield from (("retrying", self.retrying), ("dead", self.dead))

    def flat(self) -> dict[str, object]:
        """As JSON tells it."""
        told: dict[str, object] = {name.replace(" ", "_"): one._asdict() for name, one in self.states()}
        return {**told, "longest_in_hand": self.longest_in_hand}


def figures(using: str, standings: Iterable[Standing], *, counted: int = COUNTED) -> dict[int, QueueFigures]:
    """The figures of those consumers that are queues, by their ids. Each is counted up to a limit."""
    queues = [one for one in standings if one.mode == "queue"]
    found = {one.consumer_id: QueueFigures() for one in queues}
    busy = [one.consumer_id for one in queues if one.lag or one.dead_letters]
    if busy:
        with sql.by_index(using):
            rows = sql.fetch(using, SQL.figures, consumer_ids=busy, most=counted)
        found.update((consumer_id, _figures(*row)) for consumer_id, *row in rows)
    return found


def _figures(
    available: int,
    more_available: bool,
    available_for: timedelta | None,
    in_hand: int,
    in_hand_for: timedelta | None,
    longest_in_hand: timedelta | None,
    waiting: int,
    more_waiting: bool,
    waiting_for: timedelta | None,
    retrying: int,
    retrying_for: timedelta | None,
    dead: int,
    more_dead: bool,
    dead_for: timedelta | None,
) -> QueueFigures:
    return QueueFigures(
        Figure(available, more_available, available_for),
        Figure(in_hand, False, in_hand_for),
        Figure(waiting, more_waiting, waiting_for),
        Figure(retrying, more_waiting, retrying_for),
        Figure(dead, more_dead, dead_for),
        longest_in_hand,
    )
