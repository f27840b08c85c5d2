"""A consumer goes on at another offset of the log.

    rewind("billing", to=1042)                       # the next event it handles
    rewind("billing", to="beginning", partition=3)

Workers may run meanwhile. It is recorded as an intervention.
"""

from datetime import timedelta

from django.db.models import F, Min, QuerySet

from django_events import declarations, models, sql
from django_events.consuming import log_positions
from django_events.consuming.registered import Named, refuse_several, registered
from django_events.consuming.streams import layouts
from django_events.consuming.waiting import wait_again
from django_events.exceptions import InUse, Refused
from django_events.models.buffer import writable
from django_events.operating.derived import refuse_going_back
from django_events.operating.interventions import record
from django_events.operating.quiesce import refuse_queries, standing_still
from django_events.outcomes import Move

SQL = sql.beside(__name__)


def rewind(
    consumer: Named,
    *,
    to: declarations.Start,
    topic: declarations.DeclaredTopic | str | None = None,
    partition: int | None = None,
    reason: str = "",
    by: str | None = None,
    wait: timedelta = timedelta(seconds=10),
    dry_run: bool = False,
    using: str | None = None,
) -> list[Move]:
    """Let a consumer go on at another offset: the id of the next event to handle, a time, "beginning" or "end".

    In a transaction of its own: all its topics and partitions move, or the one that is named, or none. Workers may
    run: it waits for the events in hand, and InUse says that they took longer. Dead letters behind the
    new offset are dropped, because their events come again. Repeating it moves there again.
    """
    using = writable(using)
    rows = registered(using, consumer, topic=topic)
    refuse_queries(rows)
    if isinstance(to, int):
        refuse_several(rows, to)
    if dry_run:
        with sql.committed(using):
            moves = [move for row in rows for move, _ in _moves(using, row, to, partition)]
            refuse_going_back(using, rows, moves)
            return moves
    moves = []
    # By an earlier layout all partitions are other ones, so none of them may be in hand.
    still = None if any(_has_layouts(row) for row in rows) else partition
    with standing_still(using, rows, still, wait, verb="rewind"):
        for row in rows:
            _look_again(using, row, partition=still)
        for row in rows:  # in the order of their topics, heads before consumers: always the same order, so no deadlock
            for position in _lacking(using, row, log_positions.find(using, row.topic, to)):
                position.save(using=using)
            going = _moves(using, row, to, partition)
            refuse_going_back(using, [row], [move for move, _ in going])
            went_back = False
            for move, position in going:
                moves.append(move)
                went_back |= move.after < move.before
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
                    reason=reason,
                )
            if _has_layouts(row):
                layouts.arrange(using, row)
            if went_back:  # what comes again is judged by the filter of now
                _forget_former_filters(using, row)
            lowest = row.positions.using(using).aggregate(lowest=Min("position"))["lowest"]
            wait_again(using, row, after=-1 if lowest is None else lowest)
    return moves


def move_to_end(using: str, row: models.Consumer) -> list[Move]:
    """Set a stream consumer to the end of its log, with nothing in hand: what is there was taken in otherwise.

    In the transaction of `standing_still`, with its topics. Events are judged by the filter of now from there on.
    """
    _look_again(using, row, partition=None)
    for position in _lacking(using, row, log_positions.find(using, row.topic, "end")):
        position.save(using=using)
    moves = []
    for move, position in _moves(using, row, "end", None):
        position.save(using=using)
        moves.append(move)
    if _has_layouts(row):
        layouts.arrange(using, row)
    _forget_former_filters(using, row)
    return moves


def _forget_former_filters(using: str, row: models.Consumer) -> None:
    former = models.Consumer.objects.using(using).filter(pk=row.pk, former_filters__isnull=False)
    former.update(former_filters=None, revision=F("revision") + 1)


def _moves(
    using: str, row: models.Consumer, to: declarations.Start, partition: int | None
) -> list[tuple[Move, models.Position]]:
    offset = log_positions.find(using, row.topic, to)
    positions = [*row.positions.using(using), *_lacking(using, row, offset)]
    positions.sort(key=lambda position: position.partition)
    if partition is not None:
        positions = [position for position in positions if position.partition == partition]
        if not positions:
            raise Refused(f"Consumer {row} has no position in partition {partition}. Nothing was changed.")
    if row.mode == "queue":
        [position] = positions
        move = _move_of_queue(using, row, offset)
        _set_anew(position, offset - 1, offset - 1)
        return [(move._replace(dead_letters=_dead_letters(using, position, move).count()), position)]
    moves = []
    for position in positions:
        before, number = position.position + 1, position.number
        _set_anew(position, offset - 1, log_positions.number_at(using, row.topic, position.partition, offset - 1))
        move = Move(row.topic.name, position.partition, before, offset, 0, number - position.number)
        moves.append((move._replace(dead_letters=_dead_letters(using, position, move).count()), position))
    return moves


def _has_layouts(row: models.Consumer) -> bool:
    """Whether it is read by another layout before an id, or behind it."""
    return row.turns_at is not None or (row.partitioned and len(row.topic.all_layouts) > 1)


def _look_again(using: str, row: models.Consumer, *, partition: int | None) -> None:
    """What was changed while the workers were waited for; InUse if it has to be waited for others."""
    row.refresh_from_db(using=using, fields=["partitioned", "turns_at"])
    row.topic.refresh_from_db(using=using, fields=["partitions", "layouts"])
    if partition is not None and _has_layouts(row):
        raise InUse(
            f"Topic {row.topic} got another number of partitions in this moment. Nothing was changed. Try again."
        )


def _lacking(using: str, row: models.Consumer, offset: int) -> list[models.Position]:
    """Positions in the partitions of earlier layouts, by which it is going to be read again."""
    return layouts.add_positions(using, row, offset) if row.partitioned else []


def _set_anew(position: models.Position, at: int, number: int) -> None:
    position.position, position.number = at, number
    position.attempted, position.attempts, position.careful_until = None, 0, 0
    position.retry_at = position.failing_since = position.stopped_at = None
    position.token = position.leased_until = None
    position.error = position.holder = ""


def _move_of_queue(using: str, row: models.Consumer, offset: int) -> Move:
    """Of what it was given, some may be handled already and others not: those come again, and these are left out."""
    given, around = _given(using, row), SQL.pending_around
    [[before, behind, oldest]] = sql.fetch(using, around, consumer_id=row.pk, position=offset - 1, given=given)
    again = max(given - offset + 1 - behind, 0)
    left_out = before + max(offset - 1 - given, 0)
    next_event = given + 1 if oldest is None else min(oldest, given + 1)
    return Move(row.topic.name, models.Position.ALL, next_event, offset, 0, again or -left_out, left_out)


def _given(using: str, row: models.Consumer) -> int:
    """The id up to which a queue consumer has got deliveries."""
    return log_positions.find(using, row.topic, "end") - 1 if row.live else row.filled_until


def _refill(using: str, row: models.Consumer, move: Move) -> None:
    """Behind the offset, events come from the log again; where there is none behind it, they come with the transfer."""
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
    """The dead letters whose events come again."""
    letters = models.DeadLetter.objects.using(using).filter(consumer_id=position.consumer_id, event_id__gte=move.after)
    if position.consumer.mode == "stream":
        letters = letters.filter(event_id__lt=move.before)
    return letters if move.partition == models.Position.ALL else letters.filter(partition=move.partition)
