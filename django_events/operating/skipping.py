"""Have a consumer give up on one event at an operator's request. The event becomes a dead letter, so nothing is lost.

    skip("billing", 1042, reason="a test order, ticket 77")

Workers may run meanwhile.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

from django.db import DatabaseError, OperationalError, transaction
from django.db.models import F

from django_events import declarations, models, sql
from django_events.consuming import log_positions
from django_events.consuming.failures import LONGEST_ERROR, storable
from django_events.consuming.fingerprints import alike
from django_events.consuming.leases import end_holder, void_token
from django_events.consuming.registered import Named, refuse_several, registered
from django_events.consuming.subscriptions import judged
from django_events.declarations.limits import refuse_no_id
from django_events.exceptions import Invalid, Refused
from django_events.models.buffer import writable
from django_events.models.databases import for_database
from django_events.models.functions import ClockTimestamp
from django_events.operating.derived import refuse_rolled_up
from django_events.operating.interventions import record, this_user
from django_events.operating.quiesce import Patience, gone, lock, locked, refuse_queries, standing_still
from django_events.outcomes import Skipped
from django_events.sql.blocking import blocker_of, watched
from django_events.statements import log_table

SQL = sql.beside(__name__)

MISSING = models.Position.ALL  # stands for the partition of an event that is missing from the log


class _Skip(NamedTuple):
    """What is to be done: a consumer, an event in its log, and who says so."""

    using: str
    row: models.Consumer
    event_id: int
    partition: int
    who: str
    reason: str
    wait: timedelta
    dry_run: bool

    @property
    def address(self) -> str:
        return f"{self.row.topic.name}/{self.event_id}"

    @property
    def log(self) -> str:
        return log_table(self.row.topic_id)


def skip(
    consumer: Named,
    event_id: int,
    *,
    topic: declarations.DeclaredTopic | str | None = None,
    reason: str,
    by: str | None = None,
    wait: timedelta = timedelta(seconds=10),
    dry_run: bool = False,
    using: str | None = None,
) -> Skipped:
    """Let a consumer give up on one event now: it becomes a dead letter, which can be redriven later.

    Of a stream, the event that its partition is at, failing, stopped or not begun; of a queue, any that waits, also one
    that is missing from the log: only then there is nothing for a dead letter to keep. In a transaction of its own.
    Workers may run: it waits for who has the event in hand, and InUse says that it took longer. Refused
    says why any other event is none to skip, and so for who repeats it.
    """
    if not reason.strip():
        raise Invalid("An event is skipped for a reason: reason is empty.")
    refuse_no_id("event_id", event_id)
    event_id = int(event_id)  # a text of digits, or NumPy's number, is compared and recorded below
    using = writable(using)
    rows = registered(using, consumer, topic=topic)
    refuse_queries(rows)
    refuse_rolled_up(using, rows, verb="skip")
    refuse_several(rows, event_id)
    [row] = rows
    partition = _partition(using, row, event_id)
    asked = _Skip(using, row, event_id, partition, by or this_user(), storable(reason), wait, dry_run)
    return _of_queue(asked) if row.mode == "queue" else _of_stream(asked)


def _partition(using: str, row: models.Consumer, event_id: int) -> int:
    """The partition of the event; MISSING where its delivery is all that is left of it.

    An event and its delivery are committed together. So the delivery is looked for in the earlier statement: in the
    other order, an event that enters the log between the two would be taken for missing.
    """
    with sql.committed(using):
        has_delivery = row.deliveries.using(using).filter(event_id=event_id).exists()
        found = models.Event.objects.using(using).of(row.topic.name).filter(id=event_id)
        partition = found.values_list("partition", flat=True).first()
    if partition is not None:
        return partition
    if has_delivery:
        return MISSING
    raise Refused(
        f"There is no event {row.topic}/{event_id} in the log. Nothing was changed. If a stream is to go on behind it: "
        f"manage.py events rewind {row.name} --to {event_id + 1}{for_database(row._state.db)}"
    )


def _of_stream(asked: _Skip) -> Skipped:
    """Move the position to the event, under the lock by which workers claim and settle."""
    using, row, event_id = asked.using, asked.row, asked.event_id
    partition = asked.partition if row.partitioned else models.Position.ALL
    if not asked.dry_run:
        _of_stream(asked._replace(dry_run=True))  # a skip that is going to be refused keeps no worker waiting
    with _stream_standing_still(asked, partition):
        position = row.positions.using(using).filter(partition=partition).first()
        if position is None:
            raise gone(row)
        _refuse_dead_letter(asked)
        _refuse_unless_next(asked, position)
        attempted = position.attempted == event_id
        attempts, error = (position.attempts, position.error) if attempted else (0, "")
        skipped = Skipped(row.topic.name, event_id, asked.partition, attempts, error or _stopped_by(position))
        if not asked.dry_run:
            _bury(asked, skipped)
            position.position = event_id
            position.number = log_positions.number_at(using, row.topic, partition, event_id)
            position.attempted, position.attempts, position.error = None, 0, ""
            position.retry_at = position.failing_since = position.stopped_at = None
            void_token(position)
            position.dead_lettered += 1
            position.save(using=using)
            _record(asked, skipped)
    return skipped


@contextmanager
def _stream_standing_still(asked: _Skip, partition: int) -> Iterator[None]:
    if asked.dry_run:
        with _looking(asked):
            yield
        return
    with standing_still(asked.using, [asked.row], partition, asked.wait, verb="skip", with_topics=False):
        yield


@contextmanager
def _looking(asked: _Skip) -> Iterator[None]:
    """A transaction with a short lock timeout."""
    try:
        with sql.committed(asked.using), sql.batch(asked.using), watched(asked.using):
            yield
    except OperationalError as error:
        if sql.kind_of(error) is not sql.ErrorKind.LOCKED:
            raise
        raise locked(asked.row, error) from error


def _stopped_by(position: models.Position) -> str:
    """Where what follows can't be read, it stopped before any attempt."""
    return "" if position.stopped_at is None else position.error


def _refuse_unless_next(asked: _Skip, position: models.Position) -> None:
    """A stream gives up on the event that it is at: to leave out more is to move it, and that is another verb."""
    row, event_id = asked.row, asked.event_id
    if event_id <= position.position:
        raise Refused(
            f"Consumer {row} passed {asked.address} already: it is behind {row.topic}/{position.position}. Nothing was "
            f"changed. To have it handled again: "
            f"manage.py events rewind {row.name} --to {event_id}{for_database(asked.using)}"
        )
    if earlier := _next(asked, position.position, event_id - 1):
        raise Refused(
            f"Consumer {row} is at {row.topic}/{earlier}, which comes before {asked.address}. Nothing was changed. "
            f"Skip that one, or leave out all that come before an event: "
            f"manage.py events rewind {row.name} --to ID{for_database(asked.using)}"
        )
    if _next(asked, event_id - 1, event_id) is None:
        raise Refused(
            f"Event {asked.address} is not for consumer {row}: its filter leaves it out. Nothing was changed."
        )


def _next(asked: _Skip, after: int, upper: int) -> int | None:
    """The event that the consumer is at, behind an id: the first that matches, or on which its filter fails."""
    found, fails = _tried(asked, after, upper)
    while fails and upper - after > 1:
        middle = (after + upper) // 2
        found, fails_before = _tried(asked, after, middle)
        if found is not None:
            return found
        if fails_before:
            upper = middle
        else:
            after = middle
    return upper if fails else found


def _tried(asked: _Skip, after: int, upper: int) -> tuple[int | None, bool]:
    """The first match, and whether the filter fails before one is found."""
    try:
        with transaction.atomic(asked.using):
            return _first_match(asked, after, upper), False
    except DatabaseError as error:
        if not sql.kind_of(error).of_data:
            raise
        return None, True


def _first_match(asked: _Skip, after: int, upper: int) -> int | None:
    """The first event for the consumer behind an id, in the partition of the one that is meant."""
    row = asked.row
    if row.partitioned and not row.topic.is_undivided:
        events = sql.shared.in_partition.on(partition=asked.partition)
    else:
        events = sql.shared.in_topic.on(topic_id=row.topic_id)
    for match, behind, until in judged(row, after, upper):
        statement = sql.shared.batch_end.on(
            log=asked.log, events=events, match=match, after=behind, upper=until, most=1
        )
        [[found]] = sql.fetch(asked.using, statement)
        if found is not None:
            return int(found)
    return None


def _of_queue(asked: _Skip) -> Skipped:
    """Delete the delivery, under the locks of the workers that fill, claim and settle, taken in the same order."""
    if asked.dry_run:
        with _looking(asked):
            delivery = asked.row.deliveries.using(asked.using).filter(event_id=asked.event_id).first()
            _refuse_unless_waiting(asked, there=delivery is not None)
            attempts, error = (0, "") if delivery is None else (delivery.attempts, delivery.error)
            return Skipped(asked.row.topic.name, asked.event_id, asked.partition, attempts, error)
    with Patience(asked.using, [asked.row], asked.wait, verb="skip") as patience:
        while True:
            _end_lapsed(asked)
            try:
                with sql.committed(asked.using), sql.batch(asked.using), watched(asked.using):
                    return _skip_delivery(asked)
            except _InHandError as held:
                holder, is_lock = held.holder, False
            except OperationalError as error:
                if sql.kind_of(error) is not sql.ErrorKind.LOCKED:
                    raise
                holder, is_lock = blocker_of(error), True
            patience.hold()
            patience.wait_for(holder, locked=is_lock)


class _InHandError(Exception):
    """A worker has the delivery: the transaction is undone, for its locks are in the way of others."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


def _skip_delivery(asked: _Skip) -> Skipped:
    """Try once, in the caller's transaction."""
    using, row = asked.using, asked.row
    lock(using, row)
    list(row.positions.using(using).select_for_update(no_key=True))
    found = sql.fetch(using, SQL.lock_delivery, consumer_id=row.pk, event_id=asked.event_id)
    _refuse_unless_waiting(asked, there=bool(found))
    [[free, holder, attempts, error]] = found
    if not free:
        raise _InHandError(holder or "a worker")
    skipped = Skipped(row.topic.name, asked.event_id, asked.partition, attempts, error)
    # What else a dead worker had in hand stays leased: the worker that takes it over handles it one by one.
    sql.fetch(
        using,
        SQL.skip_delivery.on(told=SQL.tell_nothing if row.outcomes is None else SQL.tell_skipped),
        consumer_id=row.pk,
        event_id=asked.event_id,
        history=row.history is not None,
        worker=asked.who[:200],
    )
    _bury(asked, skipped)
    row.positions.using(using).update(dead_lettered=F("dead_lettered") + int(asked.partition != MISSING))
    _record(asked, skipped)
    return skipped


def _end_lapsed(asked: _Skip) -> None:
    """End the session of a worker that died or froze with the event in hand, so that it holds no lock."""
    held = asked.row.deliveries.using(asked.using).filter(event_id=asked.event_id, token__isnull=False)
    leases = models.DeliveryLease.objects.using(asked.using).filter(token__in=held.values("token"))
    for lease in leases.filter(leased_until__lte=ClockTimestamp()):
        end_holder(asked.using, lease.token)


def _refuse_unless_waiting(asked: _Skip, *, there: bool) -> None:
    row, event_id = asked.row, asked.event_id
    _refuse_dead_letter(asked)
    if not row.live and event_id > row.filled_until:  # and if it has a delivery: it would be made again
        position = row.positions.using(asked.using).first()
        if position is not None and position.stopped_at is not None:
            raise Refused(
                f"Consumer {row} is not at {asked.address}: it was given what is up to {row.topic}/{row.filled_until}, "
                f"and stopped there. {position.error} Nothing was changed. Repair the cause, then: manage.py events "
                f"resume {row.name}{for_database(asked.using)}. Or leave the event out: manage.py events rewind "
                f"{row.name} --to {event_id + 1}{for_database(asked.using)}"
            )
        raise Refused(
            f"Consumer {row} is not at {asked.address} yet: it catches up, and was given what is up to "
            f"{row.topic}/{row.filled_until}. Nothing was changed. Try again when it is there."
        )
    if not there:
        raise Refused(
            f"No delivery of {asked.address} waits for consumer {row}: it handled the event, or its filter leaves it "
            f"out. Nothing was changed. To have it handled again: "
            f"manage.py events rewind {row.name} --to {event_id}{for_database(asked.using)}"
        )


def _refuse_dead_letter(asked: _Skip) -> None:
    letter = asked.row.dead_letters.using(asked.using).filter(event_id=asked.event_id)
    found = letter.values_list("redrive_at", flat=True)
    if not found:
        return
    [redrive_at] = found
    how = "is a dead letter" if redrive_at is None else "is a dead letter, and waits to be handled again,"
    way = "To be done with it" if redrive_at is None else "To have it not handled"
    raise Refused(
        f"Event {asked.address} {how} of consumer {asked.row} already. Nothing was changed. {way}, discard it: "
        f"manage.py events discard {asked.row.name} {asked.address}{for_database(asked.using)}"
    )


def _bury(asked: _Skip, skipped: Skipped) -> None:
    """Copy the event into the dead letters. Refused where the log has it no more, or has it after all."""
    error = storable(f"Skipped by {asked.who}: {asked.reason}")[:LONGEST_ERROR]
    rows = sql.fetch(
        asked.using,
        SQL.bury_from_log.on(log=asked.log, topic_id=asked.row.topic_id, event_id=asked.event_id),
        consumer_id=asked.row.pk,
        attempts=skipped.attempts,
        error=error,
        traceback=skipped.error,
        fingerprint=alike(error),
    )
    if rows and asked.partition == MISSING:
        raise Refused(f"Event {asked.address} is in the log again. Nothing was changed. Try again.")
    if not rows and asked.partition != MISSING:
        raise Refused(f"There is no event {asked.address} in the log any more. Nothing was changed.")


def _record(asked: _Skip, skipped: Skipped) -> None:
    details = {"event": skipped.event_id, "partition": skipped.partition, "attempts": skipped.attempts}
    record(asked.using, asked.row, "skip", by=asked.who, **details, reason=asked.reason, error=skipped.error)
