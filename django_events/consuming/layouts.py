"""By which layout of its topic a stream is read, and how it gets from one layout to the next.

    arrange(using, row)                  # under the topic's head and the locks of the consumer's positions
    pass_barrier(using, consumer_id)     # the same, by a worker that has come to a barrier

A position says: what its partition has up to here is handled, whatever the layout. So the layout that a consumer is
read by follows from its positions: it is the newest one whose first id they have all reached. Where the next one
begins is the barrier, which no position passes before that one is the newest. A rewind moves positions back, and so
the consumer may be read by an earlier layout again; the positions that were further wait at the barrier.

A consumer that turns, from reading each partition by itself to reading all together or back, does so at one id too.
"""

from collections.abc import Sequence

from django.db import OperationalError

from django_events import models, sql
from django_events.consuming import log_positions
from django_events.consuming.leases import end_holder
from django_events.log import channel
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
    leases = sql.fetch_whole(using, SQL.in_hand, consumer_id=consumer_id)
    if any(leased for _, leased in leases):
        return False
    lost = [token for token, _ in leases]
    try:
        for token in lost:  # its worker died or froze, and what it had was handled by others, or there is nothing left
            end_holder(using, token)
        with sql.committed(using), sql.batch(using, lock_timeout=LOCK_TIMEOUT):
            row = models.Consumer.objects.using(using).select_related("topic").filter(pk=consumer_id).first()
            if row is None:
                return False
            sql.fetch(using, sql.shared.lock_head, topic_id=row.topic_id)
            row.refresh_from_db(using=using)
            row.topic.refresh_from_db(using=using)
            changed = arrange(using, row, lost=lost)
            if changed:
                sql.fetch(using, sql.shared.notify, channel=channel.LOG, payload=str(row.topic_id))
            return changed
    except OperationalError as error:
        if sql.kind_of(error) is not sql.ErrorKind.LOCKED:
            raise
        return False


def arrange(using: str, row: models.Consumer, *, lost: Sequence[int] = ()) -> bool:
    """Have the consumer read by the layout that its positions have come to; returns whether anything changed.

    For a caller who has the topic's head locked. Nothing changes while a worker has a lease of it: then that worker
    tries again behind its turn. `lost` are tokens of leases that are over, and their workers' connections are ended.
    """
    positions = list(row.positions.using(using).select_for_update(of=("self",)).order_by("partition"))
    for position in positions:
        if (
            position.token in lost
            and position.barrier is not None
            and _reached(using, row, [position], position.barrier)
        ):
            position.token = position.leased_until = None
            ahead = min(position.position + AHEAD, log_positions.find(using, row.topic, "end") - 1)
            position.careful_until = max(position.careful_until, ahead)
            position.save(using=using, update_fields=["token", "leased_until", "careful_until"])
    if row.mode != "stream" or any(position.token is not None for position in positions):
        return False
    changed = False
    furthest = max((position.position for position in positions), default=0)
    if row.turns_at is not None and row.partitioned and row.turns_at <= furthest:  # one was moved there by a rewind
        row.turns_at = furthest + 1
        row.save(using=using, update_fields=["turns_at"])
    if row.turns_at is not None and _is_to_turn(using, row, positions, row.turns_at):
        positions = _turn(using, row, positions, row.turns_at)
        changed = True
    return _arrange(using, row, positions) or changed if row.partitioned else changed


def is_behind(using: str, row: models.Consumer, first_id: int) -> bool:
    """Whether the consumer still has events before an id to read."""
    return not _reached(using, row, list(row.positions.using(using)), first_id)


def partitions_from(topic: models.Topic, event_id: int) -> int:
    """How many partitions are needed for events from this one on."""
    return max(layout.partitions for layout in topic.all_layouts[index_at(topic, event_id) :])


def index_at(topic: models.Topic, event_id: int) -> int:
    """Which layout an event is in."""
    layouts = topic.all_layouts
    return max((n for n, layout in enumerate(layouts) if layout.first_id <= event_id), default=0)


def add_positions(using: str, row: models.Consumer, first_id: int) -> list[models.Position]:
    """The positions that it lacks to read from this id on, not saved yet: each at the end of its partition."""
    layouts, added = row.topic.all_layouts, []
    present = set(row.positions.using(using).values_list("partition", flat=True))
    for partition in range(partitions_from(row.topic, first_id)):
        if partition not in present:
            last = max(n for n, layout in enumerate(layouts) if layout.partitions > partition)
            is_newest = last + 1 == len(layouts)
            end = log_positions.find(using, row.topic, "end") if is_newest else layouts[last + 1].first_id
            added.append(_position(using, row, partition, end - 1))
    return added


def _arrange(using: str, row: models.Consumer, positions: list[models.Position]) -> bool:
    layouts, index = row.topic.all_layouts, 0
    while index + 1 < len(layouts) and _reached(using, row, positions, layouts[index + 1].first_id):
        index += 1
    following = None if index + 1 == len(layouts) else layouts[index + 1].first_id
    barriers = [first_id for first_id in (following, row.turns_at) if first_id is not None]
    barrier = min(barriers, default=None)
    needed = max(layout.partitions for layout in layouts[index:])
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


def _reached(using: str, row: models.Consumer, positions: Sequence[models.Position], first_id: int) -> bool:
    """Whether nothing is left to read before an id."""
    return not any(_has_unread(using, row.topic, position, first_id) for position in positions)


def _has_unread(using: str, topic: models.Topic, position: models.Position, first_id: int) -> bool:
    if position.position >= first_id - 1:
        return False
    if position.partition == ALL or topic.is_undivided:
        return True
    statement = SQL.unread_before.on(
        log=log_table(topic.pk), partition=position.partition, after=position.position, first_id=first_id
    )
    [[unread]] = sql.fetch(using, statement)
    return bool(unread)


def _is_to_turn(using: str, row: models.Consumer, positions: Sequence[models.Position], turns_at: int) -> bool:
    """Whether all is handled up to where it turns, and nothing is being tried again or stopped."""
    at_rest = all(position.attempted is None and position.stopped_at is None for position in positions)
    return at_rest and _reached(using, row, positions, turns_at)


def _turn(
    using: str, row: models.Consumer, positions: Sequence[models.Position], turns_at: int
) -> list[models.Position]:
    """Read all partitions together from now on, or each by itself."""
    row.partitioned = not row.partitioned
    if row.partitioned:
        [former] = positions
        reached = former.position
        partitions = range(partitions_from(row.topic, reached + 1))
        turned = [_position(using, row, partition, reached) for partition in partitions]
    else:
        turned = [_position(using, row, ALL, turns_at - 1)]
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
