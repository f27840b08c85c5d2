"""What there is to do for the consumers of a process: which partitions are due, and when the next one is.

Looking writes nothing. Partitions that were served longest ago come first, so that a busy one can't
keep the others waiting, and an empty one is never served.
"""

import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple, NoReturn

from django.db import DatabaseError

from django_events import models, sql
from django_events.consuming.setbacks import ConsumerSetbacks, sets_aside
from django_events.consuming.subscriptions import Subscription
from django_events.exceptions import ConsumerNotReady
from django_events.log.setbacks import Failing

SQL = sql.beside(__name__)

MOST_LOOKED_AT = 5_000
FIRST_REFUSAL, LONGEST_REFUSAL = 0.02, 5.0  # seconds
SUBSCRIPTIONS_AT_ONCE = 50  # a statement about very many logs would lock very many tables at the same time


Row = tuple[int, float, object, int]


class Due(NamedTuple):
    """A partition that can be claimed now, as far as one knows, and passed up to `floor` unless it was rewound."""

    subscription: Subscription
    position_id: int
    partition: int
    floor: int = 0


class DuePartitions:
    """The partitions of some subscriptions that are due. Threads may share it; each takes its own."""

    def __init__(
        self,
        using: str,
        subscriptions: Sequence[Subscription],
        *,
        patient: bool = True,
        setbacks: ConsumerSetbacks | None = None,
    ) -> None:
        self.using = using
        self.setbacks = ConsumerSetbacks(using) if setbacks is None else setbacks
        self.patient = patient  # whether small batches wait for more
        self._lanes = {
            position_id: Due(subscription, position_id, partition)
            for subscription in subscriptions
            for position_id, partition in subscription.positions
        }
        self._subscriptions = list(subscriptions)
        self._places: dict[tuple[int, int], list[int]] = {}
        for due in self._lanes.values():
            self._places.setdefault((due.subscription.topic_id, due.partition), []).append(due.position_id)
        self._ours: set[int] = set()  # served last by this process, and by nobody now
        self._told: dict[int, None] = {}
        self._reached: dict[int, int] = {}
        self._floors: dict[int, int] = {}
        self._refused: dict[int, tuple[float, float]] = {}
        self._unclaimable: dict[int, tuple[int, float]] = {}
        self._due: deque[Due] = deque()
        self._next: float | None = None
        self._noticed: set[int] = set()
        self._looked_at: float | None = None
        self._lock = threading.Lock()
        self._noticing = threading.Lock()  # never held during a query: the listener must not wait

    @property
    def more(self) -> bool:
        """Whether there may be something to take for another thread."""
        return bool(self._due or self._told or self._noticed)

    def take(self) -> Due | None:
        """A partition to claim; None if nothing was due when it was looked for last."""
        try:
            due = self._due.popleft()
        except IndexError:
            return None
        floor = self._reached.get(due.position_id, 0) or self._floors.get(due.subscription.consumer_id, 0)
        return due._replace(floor=floor)

    def arrived(self, places: Iterable[tuple[int, int]]) -> None:
        """Events came into these partitions, each named by its topic's id and its number.

        Queue consumers that could give nothing may be able to now. Where this process served such a partition last,
        it need not look before it claims.
        """
        with self._noticing:
            for topic_id, partition in places:
                for position_id in self._at(topic_id, partition):
                    if self._lanes[position_id].subscription.is_queue:
                        self._refused.pop(position_id, None)
                    if position_id in self._ours:
                        self._told[position_id] = None
                    else:
                        self._noticed.add(topic_id)

    def _at(self, topic_id: int, partition: int) -> list[int]:
        """The positions into which an event of a partition comes: of consumers of just it, and of all of the topic."""
        return self._places.get((topic_id, partition), []) + self._places.get((topic_id, models.Position.ALL), [])

    def look_at(self, topic_ids: Iterable[int]) -> None:
        """Something happened in these topics: look at them next time."""
        with self._noticing:
            self._noticed.update(topic_ids)

    def freed(self, topic_ids: Iterable[int]) -> None:
        """Somebody did something to consumers of these topics, or stopped serving them: all may be free now."""
        topic_ids = set(topic_ids)
        for position_id in tuple(self._refused):
            if self._lanes[position_id].subscription.topic_id in topic_ids:
                self._refused.pop(position_id, None)
                self._unclaimable.pop(position_id, None)
        self.look_at(topic_ids)

    def look_everywhere(self) -> None:
        """Something may have happened anywhere."""
        self._looked_at = None

    def unclaimable(self, position_id: int, until: int, seconds: float) -> None:
        """Deliveries up to an id can't be had, and to find that out took long: believe it for so many seconds."""
        self._unclaimable[position_id] = until, time.monotonic() + seconds

    def _looked_until(self, position_id: int) -> int:
        until, believed_until = self._unclaimable.get(position_id, (0, 0.0))
        return until if time.monotonic() < believed_until else 0

    def refused(self, position_id: int) -> None:
        """A partition could not be claimed although it was due: leave it alone for a while, longer each time."""
        _, pause = self._refused.get(position_id, (0.0, FIRST_REFUSAL / 2))
        pause = min(pause * 2, LONGEST_REFUSAL)
        self._refused[position_id] = (time.monotonic() + pause, pause)
        with self._noticing:
            self._ours.discard(position_id)
            self._reached.pop(position_id, None)
        self.look_at([self._lanes[position_id].subscription.topic_id])

    def set_aside(self, due: Due, error: Failing) -> None:
        """A partition could not be claimed or served because of its own log, for example: it rests for a while."""
        self.setbacks.note(due.subscription, [due.position_id], error)
        with self._noticing:
            self._ours.discard(due.position_id)
            self._reached.pop(due.position_id, None)

    def claimed(self, position_id: int) -> None:
        """A partition is served by this process now."""
        self._refused.pop(position_id, None)
        with self._noticing:
            self._ours.discard(position_id)
            self._told.pop(position_id, None)

    def served(self, position_id: int, *, until: int | None) -> None:
        """A partition's turn is over, and it is served until this id; None if it was lost or that isn't known.

        What came meanwhile was left alone by whoever looked.
        """
        subscription = self._lanes[position_id].subscription
        with self._noticing:
            self._noticed.add(subscription.topic_id)
            if subscription.is_queue:  # the next of its keys, and what it gave back, can be had
                self._refused.pop(position_id, None)
                self._unclaimable.pop(position_id, None)
                self._ours.add(position_id)
                return
            if until is None:
                self._reached.pop(position_id, None)
                return
            self._reached[position_id] = until
            if subscription.consumer.min_batch == 1:  # otherwise it is not enough that something came
                self._ours.add(position_id)

    def look(self, *, period: float) -> bool:
        """Find out what is due, where something was noticed; everywhere once in a period, and when something is due.

        Returns whether anything is.
        """
        with self._lock:
            if self._due:
                return True
            subscriptions, everywhere = self._to_look_at(period)
            if not subscriptions:
                return self._take_up()
            if everywhere:
                self._see_floors()
            rows = self._fetch(subscriptions)
            now = time.monotonic()
            rows = [
                (lane, max(due_in, self._refused_for(lane, now), self.setbacks.rest(lane)), served, floor)
                for lane, due_in, served, floor in rows
            ]
            waits = [now + due_in for _, due_in, _, _ in rows if due_in > 0]
            if self._next is not None and not everywhere:
                waits.append(self._next)
            self._next = min(waits, default=None)
            due = sorted(
                (served_at is not None, served_at, position_id)
                for position_id, due_in, served_at, _ in rows
                if due_in <= 0
            )
            self._due.extend(self._lanes[position_id] for *_, position_id in due)
            return bool(self._due)

    def _take_up(self) -> bool:
        """Nothing is to be looked at: put what came to partitions of this process on the agenda unseen."""
        with self._noticing:
            told, self._told = {one: None for one in self._told if not self.setbacks.rest(one)}, {}
            self._ours -= told.keys()  # until they are served
        self._due.extend(self._lanes[position_id] for position_id in told)
        return bool(told)

    def _to_look_at(self, period: float) -> tuple[list[Subscription], bool]:
        now = time.monotonic()
        late = any(moment <= now for moment in self._moments())
        everywhere = self._looked_at is None or late or now - self._looked_at >= period
        with self._noticing:
            noticed, self._noticed = self._noticed, set()
            if noticed or everywhere:  # what was told of is looked at too: others may wait for longer
                noticed |= {self._lanes[position_id].subscription.topic_id for position_id in self._told}
                self._told = {}
        if everywhere:
            self._looked_at = now
            return self._subscriptions, True
        return [s for s in self._subscriptions if s.topic_id in noticed], False

    def seconds_to_next(self, *, period: float) -> float:
        """How long until it is time to look: something gets due, or the period is over."""
        now = time.monotonic()
        times = [*self._moments(), now if self._looked_at is None else self._looked_at + period]
        return max(min(times) - now, 0)

    def _moments(self) -> list[float]:
        """When something gets due, or is to be tried again; what was looked at since is no reason any more."""
        again = self.setbacks.next_after(self._looked_at or 0.0)
        return [moment for moment in (self._next, again) if moment is not None]

    def _refused_for(self, position_id: int, now: float) -> float:
        until, _ = self._refused.get(position_id, (now, 0.0))
        return until - now

    def _see_floors(self) -> None:
        """How far each consumer is at least, so that a look opens no older segment; and whether all are still there."""
        rows = sql.fetch_whole(self.using, SQL.floors, position_ids=list(self._lanes))
        self._floors = {consumer_id: floor for consumer_id, floor, _, _ in rows}
        self.setbacks.found_failing(consumer_id for consumer_id, _, _, failing in rows if failing)
        if sum(count for _, _, count, _ in rows) < len(self._lanes):
            self._raise_outdated()

    def _fetch(self, subscriptions: list[Subscription]) -> list[Row]:
        subscriptions = [s for s in subscriptions if not all(self.setbacks.rest(lane) for lane, _ in s.positions)]
        rows: list[Row] = []
        for start in range(0, len(subscriptions), SUBSCRIPTIONS_AT_ONCE):
            rows += self._fetch_some(subscriptions[start : start + SUBSCRIPTIONS_AT_ONCE])
        for subscription in subscriptions:
            if self.setbacks.concerns(subscription):
                self._see_idle(subscription, {lane for lane, *_ in rows})
        return rows

    def _see_idle(self, subscription: Subscription, busy: set[int]) -> None:
        """What could be looked at, and has nothing to do, is set aside no longer."""
        lanes = [lane for lane, _ in subscription.positions if lane not in busy and not self.setbacks.rest(lane)]
        if lanes:
            self.setbacks.over(subscription, lanes)

    def _fetch_some(self, subscriptions: list[Subscription]) -> list[Row]:
        try:
            rows = sql.fetch_whole(self.using, sql.union_all([self._statement(s) for s in subscriptions]))
        except DatabaseError as error:
            if not sets_aside(self.using, error):
                raise
            return self._fetch_apart(subscriptions, error)
        for position_id, _, _, floor in rows:
            if position_id not in self._lanes:
                self._raise_outdated()
            self._floors[self._lanes[position_id].subscription.consumer_id] = floor
        return rows

    def _raise_outdated(self) -> NoReturn:
        names = ", ".join(sorted({s.consumer.name for s in self._subscriptions}))
        raise ConsumerNotReady(
            f"A consumer was registered anew or unregistered since this process began to serve {names}: its positions "
            "are others now. Start the process again."
        )

    def _fetch_apart(self, subscriptions: list[Subscription], error: DatabaseError) -> list[Row]:
        """One of the consumers can't be asked: find out which, and serve the others."""
        if len(subscriptions) > 1:
            return [row for s in subscriptions for row in self._fetch_some([s])]
        [broken] = subscriptions
        self.setbacks.note(broken, [lane for lane, _ in broken.positions], error)
        return []

    def _statement(self, of: Subscription) -> sql.Statement:
        floor = self._floors.get(of.consumer_id, 0)
        if of.is_queue:
            [[position_id, _]] = of.positions
            return SQL.due_queue.on(
                consumer_id=of.consumer_id,
                floor=self._looked_until(position_id),
                redrive=sql.shared.redrive_of_queue,
            )
        events = sql.shared.in_topic.on(topic_id=of.topic_id) if of.whole else sql.shared.in_its_partition
        consumer = of.consumer
        if consumer.min_batch > 1 and self.patient and consumer.max_wait is not None:
            return SQL.due_batches.on(
                consumer_id=of.consumer_id,
                floor=floor,
                log=of.log,
                events=events,
                match=of.match,
                redrive_due=sql.shared.redrive_due,
                enough=consumer.min_batch,
                most=MOST_LOOKED_AT if consumer.filtered else consumer.min_batch,
                longest=sql.literal(consumer.max_wait.total_seconds()),
            )
        return SQL.due.on(
            consumer_id=of.consumer_id,
            floor=floor,
            log=of.log,
            events=events,
            redrive_due=sql.shared.redrive_due,
        )
