"""By which layout of its topic a stream is read, and how it gets from one layout to the next.

    arrange(using, row)                  # under the topic's head and the locks of the consumer's positions
    pass_barrier(using, consumer_id)     # the same, by a worker that has come to a barrier

A position says: what its partition has up to here is handled, whatever the layout. So the layout that a consumer is
read by follows from its positions: it is the newest one whose first id they have all reached. Where the next one
begins is the barrier, which no position passes before that one is the newest. A rewind moves positions back, and so
the consumer may be read by an earlier layout again; the positions that were further wait at the barrier.

A consumer that waits for other shards, from `waits_from` on, stands at a barrier too, which no worker passes.
A consumer that turns, from reading each partition by itself to reading all together or back, does so at one id too.
"""

from collections.abc import Sequence

from django.db import OperationalError
from django.db.models import Max, Min

from django_events import models, sql
from django_events.consuming import log_positions
from django_events.consuming.leases import end_holder
from django_events.log import channel
from django_events.log.floors import floors_of
from django_events.statements import log_table

SQL = sql.beside(__name__)

ALL = models.Position.ALL
AHEAD = 1_000  # events: how much a worker may have in hand, which are handled one by one if it was lost with them
LOCK_TIMEOUT = "100ms"  # the topic's head is locked meanwhile, so the transfer waits
COUNTS = ("handled", "failed", "ignored", "dead_lettered")


def pass_barrier(using: str, consumer_id: int) -> bool:
    """Go on by the next layout if all positions have come to the barrier; returns whether anything changed.

    Where a worker has one of the positions, or another session has the locks, nothing is done: the next one tries too.
    """
    consumers = models.Consumer.objects.using(using).select_related("topic")
    row = consumers.filter(pk=consumer_id).first()
    if row is None or _waits(using, row):
        return False
    leases = sql.fetch_whole(using, SQL.in_hand, consumer_id=consumer_id)
    if any(leased for *_, leased in leases):
        return False
    # Of a worker that died or froze, with nothing left to handle before the barrier: no other one would take it over.
    lost: list[int] = [
        token for token, partition, barrier, _ in leases if barrier and _reached(using, row, barrier, partition)
    ]
    for token in lost:
        end_holder(using, token)
    try:
        with sql.committed(using), sql.batch(using, lock_timeout=LOCK_TIMEOUT):
            sql.fetch(using, sql.shared.lock_head, topic_id=row.topic_id)
            fresh = consumers.filter(pk=consumer_id).first()  # it may have been changed while the head was locked
            if fresh is None or not arrange(using, fresh, lost=lost):
                return False
            sql.fetch(using, sql.shared.notify, channel=channel.LOG, payload=str(row.topic_id))
            return True
    except OperationalError as error:
        if sql.kind_of(error) is not sql.ErrorKind.LOCKED:
            raise
        return False


def may_pass(using: str, consumer_id: int) -> bool:
    """Whether nothing is left to read before the barrier: asked without a lock, and again by `pass_barrier`."""
    row = models.Consumer.objects.using(using).select_related("topic").filter(pk=consumer_id).first()
    if row is None:
        return False
    barrier = _barrier_of(using, row)
    return barrier is None or (barrier != row.waits_from and _reached(using, row, barrier))


def stand(using: str, row: models.Consumer) -> None:
    """Write the barrier that `waits_from`, a turn or the next layout makes now, also where a worker has a lease.

    For a caller who has the topic's head locked. The layout stays, so `arrange` is to be called too.
    """
    following = None
    if row.partitioned:
        index = row.positions.using(using).aggregate(layout=Max("layout"))["layout"] or 0
        following = _first_id_after(row, index)
    barrier = _lowest(following, row.turns_at, row.waits_from)
    for position in row.positions.using(using).select_for_update(of=("self",)).order_by("partition"):
        if position.barrier != barrier:
            position.barrier = barrier
            position.save(using=using, update_fields=["barrier"])


def arrange(using: str, row: models.Consumer, *, lost: Sequence[int] = ()) -> bool:
    """Have the consumer read by the layout that its positions have come to; returns whether anything changed.

    For a caller who has the topic's head locked. The layout doesn't change while a worker has a lease of it: then that
    worker tries again behind its turn. `lost` are tokens of leases that are over, and their workers' connections are
    ended.
    """
    if row.mode != "stream":
        return False
    positions = list(row.positions.using(using).select_for_update(of=("self",)).order_by("partition"))
    changed = _move_turn(using, row, positions)
    for position in positions:
        if position.token in lost and position.barrier is not None:
            position.token = position.leased_until = None
            ahead = min(position.position + AHEAD, log_positions.find(using, row.topic, "end") - 1)
            position.careful_until = max(position.careful_until, ahead)
            position.save(using=using, update_fields=["token", "leased_until", "careful_until"])
    if any(position.token is not None for position in positions):
        return changed
    if row.turns_at is not None and _is_to_turn(using, row, positions, row.turns_at):
        positions = _turn(using, row, positions, row.turns_at)
        changed = True
    return _arrange(using, row, positions) or changed if row.partitioned else changed


def _move_turn(using: str, row: models.Consumer, positions: Sequence[models.Position]) -> bool:
    """Have the consumer turn no earlier than it can; and where it reads all together, stop only there."""
    changed = False
    if row.turns_at is not None and positions:
        # A rewind may have moved one beyond it; and an event that is being tried again comes before it.
        furthest = max(position.position for position in positions)
        attempted = [p.attempted for p in positions if p.partition == ALL and p.attempted is not None]
        turns_at = max([row.turns_at, *(event_id + 1 for event_id in attempted)])
        turns_at = max(turns_at, furthest + 1) if row.partitioned else turns_at
        if turns_at != row.turns_at:
            row.turns_at = turns_at
            row.save(using=using, update_fields=["turns_at"])
            changed = True
    for position in positions:
        if position.partition == ALL and position.barrier != _lowest(row.turns_at, row.waits_from):
            position.barrier = _lowest(row.turns_at, row.waits_from)
            position.save(using=using, update_fields=["barrier"])
            changed = True
    return changed


def is_behind(using: str, row: models.Consumer, first_id: int) -> bool:
    """Whether the consumer still has events before an id to read."""
    return not _reached(using, row, first_id)


def add_positions(using: str, row: models.Consumer, first_id: int) -> list[models.Position]:
    """The positions that it lacks to read from this id on, not saved yet: each at the end of its partition."""
    layouts, added = row.topic.all_layouts, []
    present = set(row.positions.using(using).values_list("partition", flat=True))
    for partition in range(row.topic.partitions_from(row.topic.layout_at(first_id))):
        if partition not in present:
            last = max(n for n, layout in enumerate(layouts) if layout.partitions > partition)
            is_newest = last + 1 == len(layouts)
            end = log_positions.find(using, row.topic, "end") if is_newest else layouts[last + 1].first_id
            added.append(_position(using, row, partition, end - 1))
    return added


def _arrange(using: str, row: models.Consumer, positions: list[models.Position]) -> bool:
    layouts, index = row.topic.all_layouts, 0
    while index + 1 < len(layouts) and _reached(using, row, layouts[index + 1].first_id):
        index += 1
    barrier = _lowest(_first_id_after(row, index), row.turns_at, row.waits_from)
    needed = row.topic.partitions_from(index)
    kept = [position for position in positions if position.partition < needed]
    changed = False
    if len(kept) < len(positions):
        _fold(using, kept[0], [position for position in positions if position.partition >= needed])
        changed = True
    for position in kept:
        layout = index if position.partition < layouts[index].partitions else None
        if (position.layout, position.barrier) != (layout, barrier):
            # Also where only the other is new: a claim that waits for the row's lock looks at the row again.
            position.layout, position.barrier = layout, barrier
            position.save(using=using, update_fields=["layout", "barrier"])
            changed = True
    return changed


def _first_id_after(row: models.Consumer, index: int) -> int | None:
    """Where the layout that follows this one begins, if there is one."""
    layouts = row.topic.all_layouts
    return None if index + 1 == len(layouts) else layouts[index + 1].first_id


def _lowest(*ids: int | None) -> int | None:
    return min((one for one in ids if one is not None), default=None)


def _barrier_of(using: str, row: models.Consumer) -> int | None:
    barrier: int | None = row.positions.using(using).aggregate(barrier=Min("barrier"))["barrier"]
    return barrier


def _waits(using: str, row: models.Consumer) -> bool:
    """Whether the consumer waits for other shards at its barrier, which no worker passes then."""
    return row.waits_from is not None and _barrier_of(using, row) == row.waits_from


def _reached(using: str, row: models.Consumer, first_id: int, partition: int | None = None) -> bool:
    """Whether nothing is left to read before an id, in any partition of the consumer or in this one."""
    topic = row.topic
    if topic.is_undivided or not row.partitioned:
        lowest = row.positions.using(using).aggregate(lowest=Min("position"))["lowest"] or 0
        return max(lowest, _floor(using, topic)) >= first_id - 1
    statement = SQL.unread_before.on(log=log_table(topic.pk), first_id=first_id)
    return not sql.fetch(using, statement, consumer_id=row.pk, partition=partition)


def _floor(using: str, topic: models.Topic) -> int:
    """The last id that retention has dropped: nothing up to it is left to read."""
    floors = floors_of(using, topic.pk)
    return 0 if floors is None else floors.id


def _is_to_turn(using: str, row: models.Consumer, positions: Sequence[models.Position], turns_at: int) -> bool:
    """Whether all is handled up to where it turns, and nothing is being tried again or stopped."""
    floor = _floor(using, row.topic)
    at_rest = all((p.attempted is None or p.attempted <= floor) and p.stopped_at is None for p in positions)
    return at_rest and _reached(using, row, turns_at)


def _turn(
    using: str, row: models.Consumer, positions: Sequence[models.Position], turns_at: int
) -> list[models.Position]:
    """Read all partitions together from now on, or each by itself."""
    row.partitioned = not row.partitioned
    if row.partitioned:
        [former] = positions
        reached = former.position
        partitions = range(row.topic.partitions_from(row.topic.layout_at(reached + 1)))
        turned = [_position(using, row, partition, reached) for partition in partitions]
    else:
        turned = [_position(using, row, ALL, turns_at - 1)]
        turned[0].barrier = row.waits_from
    for position in turned:
        position.careful_until = max(former.careful_until for former in positions)
        position.save(using=using)
    _fold(using, turned[0], positions)
    row.turns_at = None
    row.save(using=using, update_fields=["partitioned", "turns_at"])
    return turned


def _position(using: str, row: models.Consumer, partition: int, position: int) -> models.Position:
    number = log_positions.number_at(using, row.topic, partition, position)
    return models.Position(consumer_id=row.pk, partition=partition, position=position, number=number)


def _fold(using: str, into: models.Position, gone: Sequence[models.Position]) -> None:
    """Delete positions that are needed no more, and keep their counts."""
    for name in COUNTS:
        setattr(into, name, getattr(into, name) + sum(getattr(position, name) for position in gone))
    into.save(using=using, update_fields=COUNTS)
    models.Position.objects.using(using).filter(pk__in=[position.pk for position in gone]).delete()
