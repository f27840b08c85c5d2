"""The processes that work: what each has in hand, by its leases, and the sessions that wait for something to do.

for worker in at_work("default"):
    worker.host, worker.pid, [one.event for one in worker.in_hand]

An idle worker writes nothing, so no row tells of it: it is seen by its LISTEN session alone, where there is one.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, NamedTuple

from django_events import declarations, sql
from django_events.log import channel

SQL = sql.beside(__name__)

LISTED = 1_000  # leases, and sessions


class InHand(NamedTuple):
    """A partition, or deliveries of a queue, that a thread of a worker leased."""

    thread: str
    consumer: str
    topic: str
    partition: int
    event: int | None
    events: int | None  # of a stream it isn't known how many the handler was given
    since: datetime | None
    leased_until: datetime
    lost: bool
    renewed_at: datetime | None
    consumer_id: int
    topic_id: int


class WorkingProcess(NamedTuple):
    """A process with something in hand. `pid` is empty where the holder is named by a program of the site's."""

    host: str
    pid: str
    since: datetime | None  # when it took what it has had for longest
    seen_at: datetime | None  # its last sign of life: a lease taken or renewed, as far as the lease's length is known
    in_hand: list[InHand]

    @property
    def name(self) -> str:
        return f"{self.host}:{self.pid}" if self.pid else self.host

    @property
    def threads(self) -> list[str]:
        return sorted({one.thread for one in self.in_hand if one.thread})

    @property
    def consumers(self) -> list[str]:
        return sorted({one.consumer for one in self.in_hand})

    @property
    def lost(self) -> bool:
        """Whether one of its leases is over: it is gone, frozen or cut off."""
        return any(one.lost for one in self.in_hand)

    def flat(self) -> dict[str, Any]:
        """With stable keys, for JSON."""
        hidden = ("consumer_id", "topic_id")
        in_hand = [{k: v for k, v in one._asdict().items() if k not in hidden} for one in self.in_hand]
        told = {"host": self.host, "pid": self.pid, "threads": self.threads, "consumers": self.consumers}
        return {**told, "since": self.since, "seen_at": self.seen_at, "lost": self.lost, "in_hand": in_hand}


class WaitingSession(NamedTuple):
    """A session that waits to be woken: of a worker, or of a transfer that sleeps."""

    pid: int
    role: str
    application: str
    address: str
    since: datetime
    what: str  # "transfer" or "listens"


class Maintainer(NamedTuple):
    """A process that ran a step of maintenance, and when it began the last one."""

    holder: str
    at: datetime
    steps: list[str]


class SeenProcesses(NamedTuple):
    """All that tells of processes."""

    workers: list[WorkingProcess]
    sessions: list[WaitingSession]
    maintainers: list[Maintainer]
    sees_all: bool  # whether this role may see the sessions of others


def look(using: str) -> SeenProcesses:
    """The processes of a database, as far as it knows of them: it reads, and nothing else."""
    [[sees_all]] = sql.fetch(using, SQL.sees_sessions)
    sessions = sql.fetch(using, SQL.waiting_sessions, lock=channel.ASLEEP, most=LISTED)
    maintainers = sql.fetch(using, SQL.maintainers)
    return SeenProcesses(
        at_work(using), [WaitingSession(*row) for row in sessions], [Maintainer(*row) for row in maintainers], sees_all
    )


def at_work(using: str) -> list[WorkingProcess]:
    """Processes with something in hand, those first whose lease is over, then those that have had it for longest."""
    lengths = {one.name: one.lease for one in declarations.consumers}
    rows = sql.fetch(
        using,
        SQL.leases.on(event_of_position=sql.shared.event_of_position, first_in_hand=sql.shared.first_in_hand),
        most=LISTED,
    )
    found = []
    for holder, of_holder in groupby(sorted(rows, key=lambda row: _process(row[0])), key=lambda row: _process(row[0])):
        in_hand = [_in_hand(row, lengths.get(row[1])) for row in of_holder]
        seen = [one.renewed_at for one in in_hand if one.renewed_at is not None]
        began = [one.since for one in in_hand if one.since is not None]
        found.append(WorkingProcess(*holder, _first(began), max(seen, default=None), in_hand))
    return sorted(found, key=lambda one: (not one.lost, one.since is None, one.since, one.name))


def _in_hand(row: tuple[Any, ...], length: timedelta | None) -> InHand:
    holder, consumer, topic, partition, event, events, since, until, lost, consumer_id, topic_id = row
    thread = holder.partition("/")[2]
    # A lease that is handed back ends at once: then this is too early, by its length at most.
    renewed_at = None if length is None else until - length
    return InHand(
        thread, consumer, topic, partition, event, events, since, until, lost, renewed_at, consumer_id, topic_id
    )


def _process(holder: str) -> tuple[str, str]:
    """Host and pid of `web-1:4711/2`; a name that a program chose is the host, as it is."""
    host, colon, pid = holder.partition("/")[0].rpartition(":")
    return (host, pid) if colon and pid.isdigit() else (holder.partition("/")[0], "")


def _first(times: Iterable[datetime]) -> datetime | None:
    return min(times, default=None)
