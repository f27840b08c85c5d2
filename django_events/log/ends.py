"""Where the logs of topics end, read under their locks, and what a transfer remembers of them.

ends = LogEnds("default", known)
rows = sql.fetch_each(using, ends.question([topic_id]))[0]
[end] = ends.read(rows)
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from django_events import sql
from django_events.log.segments import Segment
from django_events.statements import log_table

SQL = sql.beside(__name__)


@dataclass(slots=True)
class Known:
    """What a transfer remembers of one topic. Whether it still holds is asked under the topic's lock, always."""

    name: str
    mark: int = 0
    partitions: int = 1
    segment: Segment | None = None  # where the log ends
    incarnation: UUID | None = None
    last_id: int = 0
    numbers: dict[int, int] = field(default_factory=dict)
    room: int = 0
    unplaced: int = 0  # how often no segment took the batch, though segments were made
    left_at: float = 0.0  # since when another session keeps the topic's lock
    asked: bool = False  # whether that session was looked for


class LogEnd(NamedTuple):
    """Where the next events of a topic go, read under its lock."""

    topic_id: int
    partitions: int
    last_id: int
    logged_at: str | None


class Moved(NamedTuple):
    """How many events of a partition a batch moved, and for how many seconds the oldest had waited."""

    topic_id: int
    partition: int
    events: int
    waited: float


class Outdated(Exception):
    """Topics, buffer or server are not those of before: what the transfer remembers is wrong."""


class LogEnds:
    """The ends of the logs that a transfer knows."""

    def __init__(self, using: str, known: dict[int, Known]) -> None:
        self.using = using
        self._known = known

    def question(self, topic_ids: Iterable[int]) -> sql.Question:
        """What to ask, in a statement behind the one that locks: an earlier snapshot could miss a batch."""
        ends = [
            SQL.last.on(log=log_table(topic_id), topic_id=topic_id, known=self._known[topic_id].last_id)
            for topic_id in topic_ids
        ]
        return sql.union_all(ends), {}

    def read(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[LogEnd]:
        """The ends; what is remembered of the partitions is brought up to date. Outdated if it can't be."""
        for topic_id, incarnation, partitions, id_floor, number_floors, last_id, number, logged_at in rows:
            known = self._known[topic_id]
            if known.incarnation is None:
                known.incarnation = incarnation
            if id_floor > known.last_id:  # what another transfer moved may be gone already
                for partition, number_floor in enumerate(number_floors):
                    known.numbers[partition] = max(number_floor, known.numbers.get(partition, 0))
            last_id = max(last_id or 0, id_floor)
            if known.incarnation != incarnation or last_id < known.last_id:
                raise Outdated
            if last_id > known.last_id and partitions == 1:
                known.numbers[0] = max(number or 0, known.numbers.get(0, 0))
            elif last_id > known.last_id:
                statement = SQL.numbers.on(log=log_table(topic_id), partitions=partitions, since=known.last_id)
                known.numbers.update(sql.fetch(self.using, statement))
            known.last_id, known.partitions = last_id, partitions
            yield LogEnd(topic_id, partitions, last_id, logged_at)
