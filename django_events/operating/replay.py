"""Moving consumers by hand: to another place in the log, to a stop, on again, and away.

    rewind("billing", to=1042)                       # the next event it handles
    rewind("billing", to="beginning", partition=3)
    pause("billing")
    resume("billing")

Workers may run meanwhile. Each of these is recorded as an intervention.
"""

from datetime import timedelta
from typing import NamedTuple

from django.db.models import QuerySet

from django_events import declarations, models, sql
from django_events.consuming import log_positions
from django_events.consuming.registered import Named, refuse_several, registered
from django_events.consuming.registration import refuse_in_use
from django_events.exceptions import ConsumerInUse, PositionRefused
from django_events.models.buffer import writable
from django_events.models.functions import ClockTimestamp
from django_events.operating.interventions import record
from django_events.operating.orphans import forget_orphans
from django_events.operating.quiesce import lock, refuse_queries, standing_still
from django_events.operating.retrying import try_again

SQL = sql.beside(__name__)


class Move(NamedTuple):
    """A partition of a consumer, the next event it would have handled, and the one it handles now.

    So many events come again; with a minus, so many are left out. Of a queue, where some were handled and others not,
    events may come again while others are left out.
    """

    topic: str
    partition: int
    before: int
    after: int
    dead_letters: int
    events: int
    left_out: int = 0

    @property
    def again(self) -> int:
        """How many events come again."""
        return max(self.events, 0)

    @property
    def omitted(self) -> int:
        """How many events are left out."""
        return self.left_out or max(-self.events, 0)


def rewind(
    consumer: Named,
    *,
    to: declarations.Start,
    topic: declarations.DeclaredTopic | str | None = None,
    partition: int | None = None,
    by: str | None = None,
    wait: timedelta = timedelta(seconds=10),
    dry_run: bool = False,
    using: str | None = None,
) -> list[Move]:
    """Let a consumer go on at another place: the id of the next event to handle, a time, "beginning" or "end".

    In a transaction of its own: all its topics and partitions move, or the one that is named, or none. Workers may
    run: it waits for the events in hand, and ConsumerInUse says that they took longer. Dead letters behind the
    new place are dropped, because their events come again. Repeating it moves there again.
    """
    using = writable(using)
    rows = registered(using, consumer, topic=topic)
    refuse_queries(rows)
    if isinstance(to, int):
        refuse_several(rows, to, PositionRefused)
    if dry_run:
        with sql.committed(using):
            return [move for row in rows for move, _ in _moves(using, row, to, partition)]
    moves: list[Move] = []
    with standing_still(using, rows, partition, wait, verb="rewind"):
        for row in rows:  # in the order of their topics: heads before consumers, always the same way
            for move, position in _moves(using, row, to, partition):
                moves.append(move)
                if row.mode == "queue":
                    _refill(using, row, move)
                position.save(using=using)
                _dead_letters(using, position, move).delete()
                record(
                    using,
                    row,
                    "rewind",
                    by=by,
                    partition=move.partition,
                    before=move.before,
                    after=move.after,
                    to=str(to),
                    dead_letters=move.dead_letters,
                    **({"left_out": move.left_out} if move.left_out else {}),
                )
    return moves


def pause(
    consumer: Named,
    *,
    topic: declarations.DeclaredTopic | str | None = None,
    by: str | None = None,
    using: str | None = None,
) -> list[models.Consumer]:
    """Let no worker begin anything more for a consumer; what is in hand is finished. Returns what was paused.

    It stays registered, and counts for retention. Repeating it changes nothing.
    """
    using = writable(using)
    with sql.committed(using):
        rows = [row for row in registered(using, consumer, topic=topic) if row.paused_at is None]
        refuse_queries(rows)
        for row in rows:
            models.Consumer.objects.using(using).filter(pk=row.pk).update(paused_at=ClockTimestamp())
            record(using, row, "pause", by=by)
    return rows


def resume(
    consumer: Named,
    *,
    topic: declarations.DeclaredTopic | str | None = None,
    by: str | None = None,
    using: str | None = None,
) -> list[models.Consumer]:
    """Let a paused consumer go on, and what stopped or waits for a retry be tried again now.

    Attempts are counted anew. Returns what went on. Repeating it changes nothing.
    """
    using = writable(using)
    resumed = []
    with sql.committed(using):
        for row in registered(using, consumer, topic=topic):
            again = try_again(using, row)
            if any(again.values()) or row.paused_at is not None:
                models.Consumer.objects.using(using).filter(pk=row.pk).update(paused_at=None)
                record(using, row, "resume", by=by, **again)
                resumed.append(row)
    return resumed


def unregister(
    consumer: Named,
    *,
    topic: declarations.DeclaredTopic | str | None = None,
    by: str | None = None,
    dry_run: bool = False,
    using: str | None = None,
) -> list[models.Consumer]:
    """Forget a consumer and how far it was, so that the log isn't kept for it any longer.

    ConsumerInUse refuses it while an app declares it, while it handles events, and while it has dead letters.
    """
    using = writable(using)
    with sql.committed(using):
        rows = registered(using, consumer, topic=topic)
        for row in rows:
            _refuse_declared(row)
            if row.mode == "queue":  # nobody claims, and then no event comes in for it
                refuse_in_use(using, row)
                sql.fetch(using, sql.shared.lock_head, topic_id=row.topic_id)
                lock(using, row)
            list(row.positions.using(using).select_for_update())
            refuse_in_use(using, row)
            if dead := row.dead_letters.using(using).count():
                raise ConsumerInUse(
                    f"Consumer {row} has {dead} dead letters, which would be lost. Nothing was changed. "
                    "Redrive or discard them first."
                )
        if not dry_run:
            for row in rows:
                reached = {str(p.partition): p.position for p in row.positions.using(using)}
                record(using, row, "unregister", by=by, positions=reached)
                row.delete(using=using)
    if not dry_run:
        forget_orphans(using)
    return rows


def _refuse_declared(row: models.Consumer) -> None:
    for declared in declarations.consumers:
        if declared.name == row.name and row.topic.name in declared.topics:
            raise ConsumerInUse(
                f"Consumer {row} is declared at {declared.declared_at}, so the next migrate would register it again. "
                "Nothing was changed. Remove the declaration first, or pause the consumer."
            )


def _moves(
    using: str, row: models.Consumer, to: declarations.Start, partition: int | None
) -> list[tuple[Move, models.Position]]:
    positions = list(row.positions.using(using).order_by("partition"))
    if partition is not None:
        positions = [position for position in positions if position.partition == partition]
        if not positions:
            raise PositionRefused(f"Consumer {row} has no position in partition {partition}. Nothing was changed.")
    place = log_positions.find(using, row.topic, to)
    if row.mode == "queue":
        [position] = positions
        move = _move_of_queue(using, row, place)
        _set_anew(position, place - 1, place - 1)
        return [(move._replace(dead_letters=_dead_letters(using, position, move).count()), position)]
    moves = []
    for position in positions:
        before, number = position.position + 1, position.number
        _set_anew(position, place - 1, log_positions.number_at(using, row.topic, position.partition, place - 1))
        move = Move(row.topic.name, position.partition, before, place, 0, number - position.number)
        moves.append((move._replace(dead_letters=_dead_letters(using, position, move).count()), position))
    return moves


def _set_anew(position: models.Position, at: int, number: int) -> None:
    position.position, position.number = at, number
    position.attempted, position.attempts, position.careful_until = None, 0, 0
    position.retry_at = position.stopped_at = position.token = position.leased_until = None
    position.error = position.holder = ""


def _move_of_queue(using: str, row: models.Consumer, place: int) -> Move:
    """Of what it was given, some may be handled already and others not: those come again, and these are left out."""
    given, around = _given(using, row), SQL.pending_around
    [[before, behind, oldest]] = sql.fetch(using, around, consumer_id=row.pk, position=place - 1, given=given)
    again = max(given - place + 1 - behind, 0)
    left_out = before + max(place - 1 - given, 0)
    next_event = given + 1 if oldest is None else min(oldest, given + 1)
    return Move(row.topic.name, models.Position.ALL, next_event, place, 0, again or -left_out, left_out)


def _given(using: str, row: models.Consumer) -> int:
    """The id up to which a queue consumer was given its events."""
    return log_positions.find(using, row.topic, "end") - 1 if row.live else row.filled_until


def _refill(using: str, row: models.Consumer, move: Move) -> None:
    """Behind the place, events come from the log again; where there is none behind it, they come with the transfer."""
    end = log_positions.find(using, row.topic, "end")
    filled_until = move.after - 1 if move.events > 0 or move.after > row.filled_until else row.filled_until
    live = move.after == end or (row.live and move.events <= 0)
    sql.fetch(
        using,
        SQL.refill,
        consumer_id=row.pk,
        position=move.after - 1,
        filled_until=end - 1 if live else filled_until,
        live=live,
    )


def _dead_letters(using: str, position: models.Position, move: Move) -> QuerySet[models.DeadLetter]:
    """Those whose events come again."""
    letters = models.DeadLetter.objects.using(using).filter(consumer_id=position.consumer_id, event_id__gte=move.after)
    if position.consumer.mode == "stream":
        letters = letters.filter(event_id__lt=move.before)
    return letters if move.partition == models.Position.ALL else letters.filter(partition=move.partition)
