"""Where the logs of topics end, read under their locks, and what a transfer remembers of them.

ends = LogEnds("default", known)
rows = sql.fetch_each(using, ends.question([topic_id]))[0]
[end] = ends.read(rows)

Planning the look at one log takes longer than moving some events into it. So in a batch of many topics the transfer
trusts the ends that it read or wrote itself a short while ago. The first event behind such an end has the id of what
another transfer wrote since, so the primary key of the log refuses the batch, and the ends are read anew.
"""

import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from uuid import UUID

from django_events import sql
from django_events.log.segments import Segment
from django_events.statements import log_table

SQL = sql.beside(__name__)

FEW = 4  # logs: their ends are always read
TRUSTED_FOR = 5.0  # seconds after an end was read
DOUBTED_FOR = (
    60.0  # seconds after another transfer was met: each wrong guess costs a batch, and an error in the server's log
)


@dataclass(slots=True)
class Known:
    """What a transfer remembers of one topic. Whether it still holds is asked under the topic's lock: see `LogEnds`."""

    name: str
    mark: int = 0
    partitions: int = 1
    is_undivided: bool = True
    segment: Segment | None = None  # where the log ends
    incarnation: UUID | None = None
    last_id: int = 0
    numbers: dict[int, int] = field(default_factory=dict)
    logged_at: str | None = None  # of the last event
    read_at: float | None = None  # when the end was read
    met_at: float | None = None  # when another transfer was met
    room: int = 0
    unplaced: int = 0  # how often no segment took the batch, though segments were made
    left_at: float = 0.0  # since when another session keeps the topic's lock
    asked: bool = False  # whether that session was looked for


class LogEnd(NamedTuple):
    """Where the next events of a topic go, read under its lock."""

    topic_id: int
    partitions: int
    is_undivided: bool  # all that ever was in it is in one partition
    last_id: int
    logged_at: str | None


class Moved(NamedTuple):
    """How many events of a partition a batch moved, and for how many seconds the oldest had waited."""

    topic_id: int
    partition: int
    events: int
    waited: float
    logged_at: str


class Outdated(Exception):
    """Topics, buffer or server are not those of before: what the transfer remembers is wrong."""


class LogEnds:
    """The ends of the logs that a transfer knows."""

    def __init__(self, using: str, known: dict[int, Known]) -> None:
        self.using = using
        self.trusting = True  # not in a transaction of the caller: what it rolls back was never written
        self._known = known

    def trusted(self, topic_ids: Collection[int]) -> list[int]:
        """Those whose ends need not be read, but for `unchanged`."""
        if not self.trusting or len(topic_ids) <= FEW:
            return []
        now = time.monotonic()
        return [topic_id for topic_id in topic_ids if self._is_trusted(self._known[topic_id], now)]

    def _is_trusted(self, known: Known, now: float) -> bool:
        is_fresh = known.read_at is not None and now - known.read_at < TRUSTED_FOR
        return is_fresh and (known.met_at is None or now - known.met_at >= DOUBTED_FOR)

    def doubt(self, topic_ids: Iterable[int]) -> bool:
        """Another transfer was met: read the ends anew for a while. Returns whether any would have been trusted."""
        now, trusted = time.monotonic(), False
        for topic_id in topic_ids:
            known = self._known[topic_id]
            trusted = trusted or self._is_trusted(known, now)
            known.met_at = now
        return trusted

    def unchanged(self, topic_ids: Collection[int]) -> sql.Question:
        """Which of these topics are as they were when their ends were read. Behind the statement that locks, too."""
        known = [self._known[topic_id] for topic_id in topic_ids]
        return SQL.unchanged, {
            "topic_ids": list(topic_ids),
            "incarnations": [one.incarnation for one in known],
            "partitions": [one.partitions for one in known],
            "last_ids": [one.last_id for one in known],
        }

    def remembered(self, topic_ids: Iterable[int]) -> Iterator[LogEnd]:
        """The ends without reading them, for topics that are `unchanged`."""
        for topic_id in topic_ids:
            known = self._known[topic_id]
            yield LogEnd(topic_id, known.partitions, known.is_undivided, known.last_id, known.logged_at)

    def question(self, topic_ids: Iterable[int]) -> sql.Question:
        """What to ask, in a statement behind the one that locks: an earlier snapshot could miss a batch."""
        ends = [
            SQL.last.on(log=log_table(topic_id), topic_id=topic_id, known=self._known[topic_id].last_id)
            for topic_id in topic_ids
        ]
        return sql.union_all(ends), {}

    def read(self, rows: Iterable[tuple[Any, ...]]) -> Iterator[LogEnd]:
        """The ends; what is remembered of the partitions is brought up to date. Outdated if it can't be."""
        for topic_id, incarnation, partitions, most, id_floor, number_floors, last_id, number, logged_at in rows:
            known = self._known[topic_id]
            if known.incarnation is None:
                known.incarnation = incarnation
            if id_floor > known.last_id:  # what another transfer moved may be gone already
                for partition, number_floor in enumerate(number_floors):
                    known.numbers[partition] = max(number_floor, known.numbers.get(partition, 0))
            last_id = max(last_id or 0, id_floor)
            if known.incarnation != incarnation or last_id < known.last_id:
                raise Outdated
            if last_id > known.last_id and most == 1:
                known.numbers[0] = max(number or 0, known.numbers.get(0, 0))
            elif last_id > known.last_id:
                statement = SQL.numbers.on(log=log_table(topic_id), partitions=most, since=known.last_id)
                known.numbers.update(sql.fetch(self.using, statement))
            known.last_id, known.partitions, known.is_undivided = last_id, partitions, most == 1
            known.logged_at, known.read_at = logged_at, time.monotonic() if self.trusting else None
            yield LogEnd(topic_id, partitions, most == 1, last_id, logged_at)
