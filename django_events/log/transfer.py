"""The transfer: it moves events from the buffer into the log, where they get their ids.

    transfer = Transfer(using="default")
    while transfer.move():
        ...

One transaction per batch, under the locks of its topics. It moves what it finds in the buffer; a notification only
wakes it. Any number of transfers may run: each topic has one writer at a time.

A transfer that sleeps is told which topics have events. It moves those by a small batch each (`move_few`), if it knows
the topics and the connection is its own. In all other cases it looks at the whole buffer (`move`).

What waits for a mirror stays in the buffer: its log has the events of its source only. A topic is one if its row says
so, or if it is declared as one and not migrated yet.

How a batch goes, and what follows when it fails:

    move_few            a small batch moved nothing, or as much as it may: move looks at everything
    _look_and_move      look, and if all fits into one batch with room for it: move in the same transaction
    _turns, _take       otherwise topic by topic: a batch for those that fit together, one for each that is flooded,
                        and one for each that was locked or failed lately
      _has_room         no: make segments; they can't be made: _set_aside; another transfer makes them: _leave
      _move_locked      a topic that another transfer has locked, or that is a mirror by now: _leave
      _failed           the transaction was rolled back. The error is
                          of the server:    raise it
                          of a log:         _quarantined: stop the queue consumers whose filter fails, and move again
                          with others:      _take each topic by itself
                          a duplicate:      another transfer wrote behind an end that was trusted: _take all again,
                                            and read the ends
                          no memory:        raise it
                          a lock:           _wait_for_lock: from now on the topic goes alone
                          no segment:       _place_again: make it
                          anything else:    _set_aside
      _remembered       it was committed: move the marks up
"""

import logging
import time
from collections.abc import Callable, Collection, Iterator
from datetime import timedelta

from django.db import DatabaseError, connections

from django_events import sql, telemetry
from django_events.conf import settings
from django_events.log import channel, segments
from django_events.log.clock import DueTicks
from django_events.log.ends import Known, LogEnd, LogEnds, Moved, Outdated
from django_events.log.holders import holders
from django_events.log.inventory import TOPICS_AT_ONCE
from django_events.log.mark import FinalTickets
from django_events.log.pending import Looks, Pending, Turn
from django_events.log.quarantine import quarantine_failing
from django_events.log.schedule import Schedule
from django_events.log.setbacks import TopicSetbacks
from django_events.log.small_batches import MOST, SmallBatches
from django_events.sql.prepared import PreparedSession

logger = logging.getLogger("django_events.transfer")
SQL = sql.beside(__name__)

MOST_UNPLACED = 5
# Topics whose logs aren't read: each costs a few locks, however many segments it has.
TRUSTED_AT_ONCE = 4 * TOPICS_AT_ONCE
FEW_TOPICS = 4  # a batch each; more of them are moved sooner by one that is for all
ASKED_AFTER = 1.0  # seconds: a batch of another transfer takes well under that


class Transfer:
    """One worker's view of the buffer and the log of a database. Not for several threads."""

    def __init__(
        self,
        using: str,
        *,
        batch_size: int | None = None,
        ahead: timedelta = timedelta(0),
        only: int | None = None,
    ) -> None:
        """`ahead` is how much earlier than due scheduled events and ticks are published: for tests.

        With the id of a topic in `only`, all others are left to other transfers, and so is what is scheduled.
        """
        self.using = using
        self.only = only
        self.batch_size = batch_size or settings.TRANSFER_BATCH_SIZE
        self.schedule = Schedule(using, ahead=ahead)
        self.ticks = DueTicks(using, ahead=ahead)
        self.left = False
        self.setbacks = TopicSetbacks(using)
        self.session: PreparedSession | None = None  # where statements may be prepared
        self.forget()

    def forget(self) -> None:
        """Start anew with a full look. Marks must not outlive the connection they were learnt on:
        ids of commits that a crash of the server lost come again."""
        self._known: dict[int, Known] = {}
        self._ends = LogEnds(self.using, self._known)
        self._trusted_at_once = TRUSTED_AT_ONCE
        self.schedule.forget()
        self.ticks.forget()
        self._final = FinalTickets(self.using)
        self._looks = Looks(
            self.using,
            self._known,
            self._final,
            self.schedule,
            self.setbacks,
            batch_size=self.batch_size,
            only=self.only,
        )
        self._blocked: set[int] = set()
        self._began = 0.0

    def move(self, *, until: Callable[[], bool] = lambda: False) -> int:
        """Give every topic that has events one turn; returns how many events were moved.

        Topics share a batch as far as they fit, so a flooded topic holds up a quiet one by one batch.
        `until` is asked between batches. Afterwards `left` says whether events had to be left where
        they are for now: another transfer is at them, or there is a lock on the log. `setbacks` are the topics whose
        log takes no events: it is not as it was made, or the site has added a rule. They are tried again now and then.
        """
        moved, self.left = 0, False
        if self._final.crashed:
            self.forget()
        self._ends.trusting = not connections[self.using].in_atomic_block
        for _ in range(2):
            try:
                for events in self._moves():
                    moved += events
                    if until():
                        break
                return moved
            except Outdated:
                self.forget()
                if moved:
                    break
        self.left = True
        return moved

    def move_few(self, topic_ids: Collection[int]) -> tuple[int, bool]:
        """Move the events of these topics by a small batch each, and look at nothing else.

        Returns how many events were moved, and whether that was all, as far as is known; if not, `move` has to follow.
        """
        moved, buffer_file = 0, self._looks.buffer_file
        if self.session is None or not self.session.is_good or buffer_file is None:
            return moved, False
        if self._final.crashed or self.schedule.is_due or self.ticks.is_due or len(topic_ids) > FEW_TOPICS:
            return moved, False
        small = SmallBatches(self.session, self._known)
        for topic_id in topic_ids:
            if self.only not in (None, topic_id):
                continue
            if topic_id in self._blocked or topic_id in self.setbacks or self._looks.is_declared_mirror(topic_id):
                return moved, False
            self._began, final = time.monotonic(), self._final.upper
            batch = small.move(topic_id, filenode=buffer_file)
            if not batch.moved:
                return moved, False
            name, complete = self._known[topic_id].name, batch.events < MOST
            seen = Pending(topic_id, name, batch.events, batch.upper, complete, fails=False, mirror=False)
            moved += self._remembered(Turn(final, [seen]), batch.moved)
            if not complete:
                return moved, False
        return moved, True

    def _moves(self) -> Iterator[int]:
        """Look, and move the events that wait, batch by batch."""
        seen, moved = self._look_and_move()
        if self.only is None and self._publishes_due():
            yield moved or 0
            seen, moved = self._look_and_move()
        if moved is not None:
            yield moved
            return
        for turn in self._turns(seen):
            yield self._take(turn)

    def _publishes_due(self) -> bool:
        """Put what is scheduled for now into the buffer, and the ticks of clocks; returns whether there was any."""
        published = self.schedule.publish(limit=self.batch_size) if self.schedule.is_due else 0
        ticked = self.ticks.publish() if self.ticks.is_due else 0
        return bool(published or ticked)

    def _look_and_move(self) -> tuple[Turn, int | None]:
        """The usual case, in one transaction: what waits fits into one batch, and there is room for it.

        Returns what was seen, and how many events were moved; None if that has to be done topic by topic.
        """
        seen: Turn | None = None
        self._began = time.monotonic()
        try:
            with sql.batch(self.using, self._looks.question(), *self.ticks.questions()) as [rows, *next_tick]:
                seen = self._looks.answered(rows)
                self.ticks.answered(*next_tick)
                if not seen.pending:
                    return seen, 0
                if not self._fits_one_batch(seen.pending):
                    return seen, None
                moved = self._move_locked(seen.pending)
        except DatabaseError as error:
            if seen is None:
                raise
            return seen, self._failed(seen, error)
        return seen, self._remembered(seen, moved)

    def _fits_one_batch(self, pending: list[Pending]) -> bool:
        return (
            (len(pending) == 1 or all(p.complete for p in pending))
            and len(pending) <= self._at_once(pending)
            and all(
                not self._goes_alone(p) and self._known[p.topic_id].last_id + p.events <= self._known[p.topic_id].room
                for p in pending
            )
        )

    def _at_once(self, pending: list[Pending]) -> int:
        """How many topics a batch may have: the server's table of locks has room for so many."""
        trusts_all = len(self._ends.trusted([p.topic_id for p in pending])) == len(pending)
        return self._trusted_at_once if trusts_all else TOPICS_AT_ONCE

    def _goes_alone(self, pending: Pending) -> bool:
        """Whether a topic would hold others up, as far as is known."""
        return pending.topic_id in self._blocked or self._fails(pending)

    def _fails(self, pending: Pending) -> bool:
        return pending.fails or pending.topic_id in self.setbacks

    def _turns(self, first: Turn) -> Iterator[Turn]:
        """Every topic with events once, in as few batches as they fit into."""
        final, pending = first
        self._look_for_room(pending)
        alone = [p for p in pending if self._goes_alone(p)]
        pending = [p for p in pending if not self._goes_alone(p)]
        batch: list[Pending] = []
        at_once = self._at_once(pending)
        for p in pending:
            if p.complete or len(pending) == 1:
                if len(batch) == at_once:
                    yield Turn(final, batch)
                    batch = []
                batch.append(p)
        for flooded in pending:
            if flooded.complete or len(pending) == 1:
                continue
            now_final, seen = self._look(only=flooded.topic_id)
            if sum(p.events for p in batch + seen) > self.batch_size or len(batch) >= at_once:
                yield Turn(final, batch)
                final, batch = now_final, []
            batch += seen
        yield Turn(final, batch)
        for p in alone:
            yield Turn(final, [p])

    def _look(self, *, only: int | None = None) -> Turn:
        with sql.batch(self.using, self._looks.question(only=only)) as [rows]:
            return self._looks.answered(rows, only=only)

    def _take(self, turn: Turn) -> int:
        """Move what was seen, except topics that are locked or have no room: the others don't wait for those."""
        turn = Turn(turn.final, [p for p in turn.pending if self._has_room(p)])
        if not turn.pending:
            return 0
        self._began = time.monotonic()
        try:
            with sql.batch(self.using):
                moved = self._move_locked(turn.pending)
        except DatabaseError as error:
            return self._failed(turn, error)
        return self._remembered(turn, moved)

    def _failed(self, turn: Turn, error: DatabaseError) -> int:
        """A batch was rolled back: walk down the tree at the top of this module. Returns how many events were moved."""
        kind = sql.kind_of(error)
        if kind.of_server:
            raise error
        if kind is sql.ErrorKind.DUPLICATE and self._ends.doubt(p.topic_id for p in turn.pending):
            return self._take(turn)
        if kind is sql.ErrorKind.OUT_OF_MEMORY:
            self._trusted_at_once = TOPICS_AT_ONCE
        if kind.of_log and self._quarantined(turn.pending):
            self.left = True
            return 0
        if len(turn.pending) > 1:
            return sum(self._take(Turn(turn.final, [p])) for p in turn.pending)
        [alone] = turn.pending
        if kind is sql.ErrorKind.OUT_OF_MEMORY:
            raise error
        if kind is sql.ErrorKind.LOCKED:
            self._wait_for_lock(alone)
        elif kind is sql.ErrorKind.NO_SEGMENT:
            self._place_again(alone, error)
        else:
            self._set_aside(alone, error)
        return 0

    def _set_aside(self, pending: Pending, error: DatabaseError) -> None:
        """The topic's log takes no events: it is tried again now and then, and its row says why."""
        self.setbacks.note(pending.topic_id, pending.topic, error, told=pending.fails)

    def _quarantined(self, pending: list[Pending]) -> bool:
        """Whether it was because of queue consumers' filters, which are stopped now, so that it won't come again."""
        if connections[self.using].in_atomic_block:
            return False
        lock = sql.shared.lock_heads, {"topic_ids": [p.topic_id for p in pending]}
        try:
            with sql.batch(self.using, lock) as [heads]:
                if not heads:
                    return False
                [ends] = sql.fetch_each(self.using, self._ends.question(topic_id for (topic_id,) in heads))
                last_ids = {end.topic_id: end.last_id for end in self._ends.read(ends)}
                ours = [p for p in pending if p.topic_id in last_ids]
                return bool(ours) and quarantine_failing(self.using, last_ids, lambda: self._move_locked(ours))
        except DatabaseError as error:
            if sql.kind_of(error).of_server:
                raise
            return False  # a log can't even be read

    def _wait_for_lock(self, pending: Pending) -> None:
        """A session has the lock: from now on the topic has a batch of its own, so that others don't wait with it."""
        if pending.topic_id not in self._blocked:
            self._blocked.add(pending.topic_id)
            self._say_who_holds(pending)
        self._leave(pending)

    def _place_again(self, pending: Pending, error: DatabaseError) -> None:
        """Another transfer filled the segments, or one was dropped: make what is missing. That may not be enough."""
        known = self._known[pending.topic_id]
        known.unplaced += 1
        if known.unplaced > MOST_UNPLACED:
            self._set_aside(pending, error)
        elif self._has_room(pending, sure=True):
            self.left = True

    def _leave(self, pending: Pending) -> None:
        """Leave a topic to the transfer that seems to have its lock; if that lasts, find out and say who has it."""
        self.left = True
        self._ends.doubt([pending.topic_id])
        known, now = self._known[pending.topic_id], time.monotonic()
        known.left_at = known.left_at or now
        if pending.topic_id in self.setbacks or (not known.asked and now - known.left_at > ASKED_AFTER):
            known.asked = True
            self._say_who_holds(pending)

    def _say_who_holds(self, pending: Pending) -> None:
        found = list(holders(self.using, [pending.topic_id]))
        for holder in found:
            if holder.kind == "headless":
                self.setbacks.note_headless(pending.topic_id, pending.topic, told=pending.fails)
                return
        if pending.topic_id in self.setbacks:
            return
        whose = "; ".join(map(str, found)) or "its holder is gone by now, or not to be seen by this role"
        about = {"database": self.using, "topic": pending.topic}
        logger.warning("Topic %r waits for a lock on its head or its log: %s.", pending.topic, whose, extra=about)

    def _look_for_room(self, pending: list[Pending]) -> None:
        """How much room there is, of many topics in a statement; what is locked is asked for by itself."""
        new = [p.topic_id for p in pending if not self._known[p.topic_id].room]
        if len(new) < 2:
            return
        try:
            with sql.batch(self.using, lock_timeout=segments.LOCK_TIMEOUT):
                rooms = segments.rooms(self.using, new)
        except DatabaseError as error:
            if sql.kind_of(error).of_server:
                raise
            return
        for topic_id, room in rooms.items():
            self._known[topic_id].room = room

    def _has_room(self, pending: Pending, *, sure: bool = False) -> bool:
        """See that the segments for these events are there, and one more in reserve."""
        known = self._known[pending.topic_id]
        try:
            if not known.room:
                known.room = segments.room(self.using, pending.topic_id)
            if sure or known.last_id + pending.events > known.room:
                known.room = segments.ensure(self.using, pending.topic_id, events=pending.events)
        except DatabaseError as error:
            kind = sql.kind_of(error)
            if kind.of_server or kind is sql.ErrorKind.OUT_OF_MEMORY:
                raise
            self._set_aside(pending, error)
            return False
        enough = known.last_id + pending.events <= known.room
        if not enough:
            self._leave(pending)
        return enough

    def _move_locked(self, pending: list[Pending]) -> list[Moved]:
        """The batch, in the caller's transaction."""
        log_ends = {end.topic_id: end for end in self._locked_ends([p.topic_id for p in pending])}
        ours = [p for p in pending if p.topic_id in log_ends and self._fits(p, log_ends[p.topic_id])]
        if not ours:
            return []
        numbers = [
            (p.topic_id, partition, number)
            for p in ours
            for partition, number in self._known[p.topic_id].numbers.items()
        ]
        unpartitioned = all(end.is_undivided for end in log_ends.values())
        rows = sql.fetch(
            self.using,
            (SQL.move_unpartitioned if unpartitioned else SQL.move).on(ranges=SQL.ranges, told=SQL.told),
            topic_ids=[p.topic_id for p in ours],
            marks=[self._known[p.topic_id].mark for p in ours],
            events=[p.events for p in ours],
            last_ids=[log_ends[p.topic_id].last_id for p in ours],
            partitions=[log_ends[p.topic_id].partitions for p in ours],
            logged_ats=[log_ends[p.topic_id].logged_at for p in ours],
            number_topic_ids=[topic_id for topic_id, _, _ in numbers],
            number_partitions=[partition for _, partition, _ in numbers],
            numbers=[number for _, _, number in numbers],
            channel=channel.LOG,
            longest=channel.LONGEST_PAYLOAD,
        )
        return [Moved(*row[:5]) for row in rows]

    def _locked_ends(self, topic_ids: list[int]) -> list[LogEnd]:
        """Where the logs end of those topics that could be locked: read after the lock, in a later snapshot."""
        lock = sql.shared.lock_heads, {"topic_ids": topic_ids}
        trusted = self._ends.trusted(topic_ids)
        if not trusted and self._blocked.isdisjoint(topic_ids) and len(topic_ids) <= TOPICS_AT_ONCE:
            heads, ends = sql.fetch_each(self.using, lock, self._ends.question(topic_ids))
            locked = {topic_id for (topic_id,) in heads}
            return list(self._ends.read(row for row in ends if row[0] in locked))
        # Most ends need not be read, or reading one may have to wait, or they are very many.
        heads, unchanged = sql.fetch_each(self.using, lock, self._ends.unchanged(trusted))
        as_known = {topic_id for (topic_id,) in unchanged}
        remembered = [topic_id for (topic_id,) in heads if topic_id in as_known]
        to_read = [topic_id for (topic_id,) in heads if topic_id not in as_known]
        found = list(self._ends.remembered(remembered))
        for start in range(0, len(to_read), TOPICS_AT_ONCE):
            with sql.unlocked(self.using):
                [ends] = sql.fetch_each(self.using, self._ends.question(to_read[start : start + TOPICS_AT_ONCE]))
                found += self._ends.read(ends)
        return found

    def _fits(self, pending: Pending, end: LogEnd) -> bool:
        """Whether there is still room: another transfer may have moved on since this one looked."""
        return end.last_id + pending.events <= self._known[pending.topic_id].room

    def _remembered(self, turn: Turn, moved: list[Moved]) -> int:
        """After the commit: move the marks up, and note what was seen. Returns how many events were moved."""
        served = set()
        for row in moved:
            known = self._known[row.topic_id]
            known.last_id += row.events
            known.logged_at = row.logged_at
            known.numbers[row.partition] = known.numbers.get(row.partition, 0) + row.events
            served.add(row.topic_id)
        self._blocked -= served
        for p in turn.pending:
            known = self._known[p.topic_id]
            if p.topic_id not in served:
                self._leave(p)
            else:
                known.left_at, known.asked, known.unplaced = 0.0, False, 0
                known.mark = max(known.mark, turn.final if p.complete else min(p.upper, turn.final))
                self._final.saw(p.upper)
        self.setbacks.over(p.topic_id for p in turn.pending if self._fails(p) and p.topic_id in served)
        events = sum(row.events for row in moved)
        if events and telemetry.MOVED.observed:
            self._tell(turn, moved, events)
        self._final.note(events)
        return events

    def _tell(self, turn: Turn, moved: list[Moved], events: int) -> None:
        """Tell telemetry what a batch did: once per batch and topic, however many events there are."""
        telemetry.BATCH_SECONDS.tell(time.monotonic() - self._began, self.using)
        telemetry.BATCH_EVENTS.tell(events, self.using)
        for p in turn.pending:
            if rows := [row for row in moved if row.topic_id == p.topic_id]:
                telemetry.MOVED.tell(sum(row.events for row in rows), self.using, p.topic)
                telemetry.PUBLISH_TO_LOG.tell(max(0.0, *(row.waited for row in rows)), self.using, p.topic)
