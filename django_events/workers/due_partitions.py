"""What the consumers of a process have to do: which partitions are due, and when the next one will be.

Looking writes nothing. The partition that was served longest ago comes first, so that a busy one can't keep the others
waiting. A partition without events is never served.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from django.db import DatabaseError

from django_events import models, sql
from django_events.consuming.setbacks import ConsumerSetbacks, sets_aside
from django_events.consuming.streams import layouts
from django_events.consuming.subscriptions import Subscription
from django_events.consuming.subscriptions import subscriptions as all_subscriptions
from django_events.log.setbacks import Failing
from django_events.workers.partition_states import PartitionState, QueueState

logger = logging.getLogger("django_events.consumer")
SQL = sql.beside(__name__)

PASS_AGAIN = 1.0  # seconds, until a barrier that could not be passed is tried again
LOGS_AT_ONCE, SUBSCRIPTIONS_AT_ONCE = 50, 200  # a statement about very many logs would lock very many tables at once


class DuePosition(NamedTuple):
    """What a look says of a position: in how many seconds it can be claimed, and whether it stands, see `due`."""

    position_id: int
    due_in: float
    served_at: object
    min_position: int
    consumer_id: int
    layout: int | None
    revision: int
    stands: bool


class Due(NamedTuple):
    """A partition that can be claimed now, as far as is known, at `min_position` or above unless it was rewound."""

    subscription: Subscription
    position_id: int
    partition: int
    min_position: int = 0


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
        self.patient = patient  # whether a small batch waits for more events
        self._subscriptions: list[Subscription] = []
        self._states: dict[int, PartitionState] = {}
        self._by_target: dict[tuple[int, int], list[PartitionState]] = {}  # by the topic's id and the partition
        self._served: set[int] = set()  # the ids of the topics
        self._min_positions: dict[int, int] = {}  # by the consumer's id
        self._arrived: dict[int, PartitionState] = {}  # to be claimed without looking, in the order of arrival
        self._topic_ids: set[int] = set()  # to be looked at next time
        self._due: deque[PartitionState] = deque()
        self._next: float | None = None
        self._pass_at: float | None = None
        self._looked_at: float | None = None
        self._looking = threading.Lock()
        self._noticing = threading.Lock()  # never held during a query: the thread that listens must not wait
        self._take_on(subscriptions)

    def _take_on(self, subscriptions: Sequence[Subscription]) -> None:
        """Serve these from now on: what is known of their positions begins anew, unless they are the same."""
        states, by_target = {}, dict[tuple[int, int], list[PartitionState]]()
        for subscription in subscriptions:
            for position_id, partition in subscription.positions:
                state = known = self._states.get(position_id)
                if state is None or state.subscription is not subscription:
                    kind = QueueState if subscription.is_queue else PartitionState
                    # A turn may be under way of which the new state knows nothing: after it the partition is looked at.
                    state = kind(subscription, position_id, partition, left_out=known is not None)
                states[position_id] = state
                by_target.setdefault((subscription.topic_id, partition), []).append(state)
        self._tell_left(subscriptions)
        with self._noticing:
            self._subscriptions, self._states, self._by_target = list(subscriptions), states, by_target
            self._served = {subscription.topic_id for subscription in subscriptions}
            self._arrived = {one: state for one, state in self._arrived.items() if states.get(one) is state}
        self._due = deque(state for state in self._due if states.get(state.position_id) is state)

    def _tell_left(self, subscriptions: Sequence[Subscription]) -> None:
        """Log, once for each revision, what is left to other workers, and what this process serves again."""
        before = {(s.consumer_id, s.revision): s.outdated for s in self._subscriptions}
        left = {s.consumer_id for s in self._subscriptions if s.outdated}
        for one in subscriptions:
            if one.outdated and not before.get((one.consumer_id, one.revision)):
                logger.warning(
                    "Consumer %s is left to workers of the code that was registered: here it is declared with %s. "
                    "If this is the newer code, run: manage.py migrate --database %s",
                    one,
                    one.outdated,
                    self.using,
                    extra=one.fields,
                )
            elif not one.outdated and one.consumer_id in left:
                logger.info(
                    "Consumer %s is served again: it is registered as it is declared here.", one, extra=one.fields
                )

    @property
    def more(self) -> bool:
        """Whether there may be something to take for another thread."""
        return bool(self._due or self._arrived or self._topic_ids)

    def take(self) -> Due | None:
        """A partition to claim; None if nothing was due at the last look."""
        try:
            state = self._due.popleft()
        except IndexError:
            return None
        state.left_out = False  # what made another thread look before this will be seen by the claim
        min_position = state.reached or self._min_positions.get(state.subscription.consumer_id, 0)
        return Due(state.subscription, state.position_id, state.partition, min_position)

    def arrived(self, targets: Iterable[tuple[int, int]]) -> None:
        """Events came into these partitions, each named by its topic's id and its number.

        Partitions that this process served last are claimed without looking, those that it serves now after their
        turn. At the other ones it looks first.
        """
        with self._noticing:
            for topic_id, partition in targets:
                states = self._at(topic_id, partition)
                if not states and topic_id in self._served:
                    self._topic_ids.add(topic_id)  # a partition of the topic's next layout
                for state in states:
                    state.events_arrived()
                    if state.ours:
                        self._arrived[state.position_id] = state
                    elif not state.in_turn:
                        self._topic_ids.add(topic_id)

    def _at(self, topic_id: int, partition: int) -> list[PartitionState]:
        """Where an event of a partition goes: to consumers that are partitioned, and to those of the whole topic."""
        return self._by_target.get((topic_id, partition), []) + self._by_target.get((topic_id, models.Position.ALL), [])

    def look_at(self, topic_ids: Iterable[int]) -> None:
        """Something happened in these topics: look at them next time."""
        with self._noticing:
            self._topic_ids.update(topic_ids)

    def freed(self, topic_ids: Iterable[int]) -> None:
        """A person changed consumers of these topics, or a worker stopped serving them: all may be claimable now."""
        topic_ids = set(topic_ids)
        for state in self._states.values():
            if state.refusal and state.subscription.topic_id in topic_ids:
                state.allow()
                state.unclaimable = 0
        self.look_at(topic_ids)

    def look_everywhere(self) -> None:
        """Something may have happened anywhere: look at all partitions next time."""
        self._looked_at = None

    def unclaimable(self, position_id: int, until: int, seconds: float) -> None:
        """No delivery up to an id can be claimed, for so many seconds: see `deliveries.Unclaimable`."""
        if state := self._states.get(position_id):
            state.unclaimable, state.unclaimable_until = until, time.monotonic() + seconds

    def refused(self, position_id: int) -> None:
        """A partition could not be claimed: leave it alone for a while if a look had said that it can be."""
        if state := self._states.get(position_id):
            with self._noticing:
                if state.unlooked:
                    state.forget()
                else:
                    state.refuse()
            self.look_at([state.subscription.topic_id])

    def set_aside(self, due: Due, error: Failing) -> None:
        """A partition could not be claimed or served, because of its log or filter: it rests for a while."""
        self.setbacks.note(due.subscription, [due.position_id], error)
        if state := self._states.get(due.position_id):
            with self._noticing:
                state.forget()

    def claimed(self, position_id: int) -> None:
        """A partition is served by this process now."""
        if state := self._states.get(position_id):
            with self._noticing:
                state.claimed()
                self._arrived.pop(position_id, None)

    def served(self, position_id: int, *, until: int | None, ended: bool = False) -> None:
        """A partition's turn is over, and it is served up to this id; None if the lease was lost, or that isn't known.

        The topic is looked at again, unless all that was there is handled (`ended`): events that came since have told
        of themselves, and looks during the turn left the partition out.
        """
        state = self._states.get(position_id)
        if state is None:  # of a layout that is over
            self.look_everywhere()
            return
        with self._noticing:
            state.served(until)
            arrived, state.arrived_in_turn = state.arrived_in_turn, False
            if not (ended and state.ours) or state.left_out:
                self._topic_ids.add(state.subscription.topic_id)
            elif arrived:
                self._arrived[position_id] = state

    def look(self, *, period: float) -> bool:
        """Find out what is due, where something happened; everywhere once in a period, and when something gets due.

        Returns whether anything is.
        """
        with self._looking:
            if self._due:
                return True
            subscriptions, everywhere = self._to_look_at(period)
            if not subscriptions:
                return self._take_arrived()
            if everywhere:
                self._pass_at = None
            if everywhere and (changed := self._see_positions()):
                subscriptions = self._renew(subscriptions, changed)
            rows = self._fetch_known(subscriptions)
            now = time.monotonic()
            rows = [row._replace(due_in=max(row.due_in, self._rest(row.position_id, now))) for row in rows]
            waits = [now + row.due_in for row in rows if row.due_in > 0]
            if self._next is not None and not everywhere:
                waits.append(self._next)
            self._next = min(waits, default=None)
            due = sorted((row.served_at is not None, row.served_at, row.position_id) for row in rows if row.due_in <= 0)
            found = [self._states[position_id] for *_, position_id in due]
            for state in found:
                state.unlooked = False
            self._due.extend(found)
            return bool(self._due)

    def _take_arrived(self) -> bool:
        """No topic is to be looked at: let partitions of this process be claimed, into which events came."""
        with self._noticing:
            arrived, self._arrived = [one for one in self._arrived.values() if not self._rests(one)], {}
            for state in arrived:
                state.ours, state.unlooked = False, True  # until it is served, or looked at
        self._due.extend(arrived)
        return bool(arrived)

    def _rest(self, position_id: int, now: float) -> float:
        """For how many seconds a position is left alone."""
        return max(self._states[position_id].refused_until - now, self.setbacks.rest(position_id))

    def _rests(self, state: PartitionState) -> bool:
        return self.setbacks.rest(state.position_id) > 0

    def _to_look_at(self, period: float) -> tuple[list[Subscription], bool]:
        now = time.monotonic()
        late = any(moment <= now for moment in self._moments())
        everywhere = self._looked_at is None or late or now - self._looked_at >= period
        with self._noticing:
            topic_ids, self._topic_ids = self._topic_ids, set()
            if topic_ids or everywhere:  # arrivals are looked at as well: other partitions may have waited for longer
                topic_ids |= {state.subscription.topic_id for state in self._arrived.values()}
                self._arrived = {}
        if everywhere:
            self._looked_at = now
            found = self._subscriptions
        else:
            found = [s for s in self._subscriptions if s.topic_id in topic_ids]
        for subscription in found:
            for position_id, _ in subscription.positions:
                self._states[position_id].left_out = True
        return found, everywhere

    def seconds_to_next(self, *, period: float) -> float:
        """How long until the next look: something gets due, or the period is over."""
        now = time.monotonic()
        times = [*self._moments(), now if self._looked_at is None else self._looked_at + period]
        return max(min(times) - now, 0)

    def _moments(self) -> list[float]:
        """When something gets due, or is tried again after a rest that was not over at the last look."""
        again = self.setbacks.next_after(self._looked_at or 0.0)
        return [moment for moment in (self._next, self._pass_at, again) if moment is not None]

    def _see_positions(self) -> set[int]:
        """Find the lowest position of each consumer, so that a look opens no older segment.

        Returns the consumers that have another revision, or not the positions any more, that this process knows.
        """
        rows = sql.fetch_whole(self.using, SQL.lowest_positions, position_ids=list(self._states))
        self._min_positions = {consumer_id: position for consumer_id, position, *_ in rows}
        self.setbacks.found_failing(consumer_id for consumer_id, _, _, failing, _ in rows if failing)
        there = {consumer_id: (count, revision) for consumer_id, _, count, _, revision in rows}
        known = {s.consumer_id: (len(s.positions), s.revision) for s in self._subscriptions}
        found = {consumer_id: there.get(consumer_id, (0, 0)) for consumer_id in known}
        return {one for one in known if found[one][0] < known[one][0] or found[one][1] != known[one][1]}

    def _fetch_known(self, subscriptions: list[Subscription]) -> list[DuePosition]:
        """What is due by the layouts that the consumers are read by now, also if that changes now."""
        rows = self._fetch(subscriptions)
        changed = self._pass_barriers({row.consumer_id for row in rows if row.stands})
        changed |= {row.consumer_id for row in rows if not row.stands and not self._is_known(row)}
        if changed:
            rows = self._fetch(self._renew(subscriptions, changed))
            if any(not row.stands and not self._is_known(row) for row in rows):  # changed again
                self.look_everywhere()
        return [row for row in rows if not row.stands and self._is_known(row)]

    def _pass_barriers(self, standing: set[int]) -> set[int]:
        """Have the consumers that stand go on by the next layout; returns those that do."""
        free = {one for one in standing if layouts.may_pass(self.using, one)}
        passed = {one for one in free if layouts.pass_barrier(self.using, one)}
        # Another session has the locks, or a worker died with a lease: nothing may tell when that is over.
        if free - passed:
            self._pass_at = time.monotonic() + PASS_AGAIN
        return passed

    def _is_known(self, row: DuePosition) -> bool:
        state = self._states.get(row.position_id)
        of = None if state is None else state.subscription
        return of is not None and (of.layout, of.revision) == (row.layout, row.revision)

    def _renew(self, subscriptions: list[Subscription], changed: set[int]) -> list[Subscription]:
        """These subscriptions by the positions that their consumers have now; NotReady if one was unregistered."""
        consumers = {s.consumer.name: s.consumer for s in self._subscriptions if s.consumer_id in changed}
        fresh = {(s.consumer.name, s.topic_id): s for s in all_subscriptions(self.using, consumers.values())}
        self._take_on([fresh.get((s.consumer.name, s.topic_id), s) for s in self._subscriptions])
        return [fresh.get((s.consumer.name, s.topic_id), s) for s in subscriptions]

    def _fetch(self, subscriptions: list[Subscription]) -> list[DuePosition]:
        subscriptions = [
            s for s in subscriptions if not s.outdated and not all(self.setbacks.rest(one) for one, _ in s.positions)
        ]
        rows: list[DuePosition] = []
        for some in _portions(subscriptions):
            rows += self._fetch_some(some)
        for subscription in subscriptions:
            if self.setbacks.concerns(subscription):
                self._end_setbacks(subscription, {row.position_id for row in rows})
        return rows

    def _end_setbacks(self, subscription: Subscription, busy: set[int]) -> None:
        """Positions that could be looked at, and have nothing to do, are set aside no longer."""
        idle = [one for one, _ in subscription.positions if one not in busy and not self.setbacks.rest(one)]
        if idle:
            self.setbacks.over(subscription, idle)

    def _fetch_some(self, subscriptions: list[Subscription]) -> list[DuePosition]:
        try:
            found = sql.fetch_whole(self.using, sql.union_all([self._statement(s) for s in subscriptions]))
        except DatabaseError as error:
            if not sets_aside(self.using, error):
                raise
            return self._fetch_apart(subscriptions, error)
        rows = [DuePosition._make(row) for row in found]
        for row in rows:
            self._min_positions[row.consumer_id] = row.min_position or 0
        return rows

    def _fetch_apart(self, subscriptions: list[Subscription], error: DatabaseError) -> list[DuePosition]:
        """The question failed for one of the consumers: find out for which, and go on with the others."""
        if len(subscriptions) > 1:
            return [row for s in subscriptions for row in self._fetch_some([s])]
        [broken] = subscriptions
        self.setbacks.note(broken, [position_id for position_id, _ in broken.positions], error)
        return []

    def _statement(self, of: Subscription) -> sql.Statement:
        [position_id, _], *_ = of.positions
        return self._states[position_id].statement(self._min_positions.get(of.consumer_id, 0), patient=self.patient)


def _portions(subscriptions: Iterable[Subscription]) -> Iterator[list[Subscription]]:
    """Subscriptions in portions that one statement may ask about."""
    some: list[Subscription] = []
    logs: set[int] = set()
    for one in subscriptions:
        if len(some) == SUBSCRIPTIONS_AT_ONCE or len(logs | {one.topic_id}) > LOGS_AT_ONCE:
            yield some
            some, logs = [], set()
        some.append(one)
        logs.add(one.topic_id)
    if some:
        yield some
