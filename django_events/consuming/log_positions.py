"""Positions in a log as people name them: the beginning, the end, an id, a time.

Each is resolved to the id of the next event to handle. The caller has the topic's head locked, so that neither the
transfer nor retention moves the ends of the log meanwhile.
"""

from datetime import datetime

from django_events import declarations, models, sql
from django_events.exceptions import Invalid, Refused
from django_events.models.times import first_since
from django_events.statements import log_table

SQL = sql.beside(__name__)


def find(using: str, topic: models.Topic, to: declarations.Start) -> int:
    """The id that is meant; Refused if the log has no such position."""
    first, end = _bounds(using, topic)
    if to == "beginning":
        return first
    if to == "end":
        return end
    if isinstance(to, datetime):
        return first_since(using, topic.pk, to, first=first, end=end)
    if isinstance(to, bool) or not isinstance(to, int):
        raise Invalid(
            f"{to!r} is no position in a log, expected 'beginning', 'end', a datetime, or the id of an event."
        )
    if first <= to <= end:
        return to
    if to < 1:
        raise Invalid(f"{to} is no position in a log: ids begin at 1. Say 'beginning' for the oldest event.")
    if to < first:
        raise Refused(
            f"Topic {topic} begins at {first}: what was before it has expired. Event {to} doesn't exist any more. "
            "Say 'beginning' for the oldest event in the log."
        )
    raise Refused(
        f"Topic {topic} ends at {end - 1}, so event {to} doesn't exist yet, and the events before it would be "
        "left out. Say 'end' for the next event that comes."
    )


def begin(using: str, topic: models.Topic, start: declarations.Start) -> int:
    """Where a new consumer begins. An id that the log doesn't have is moved to its nearer end: the declaration is
    the same for every database, also for empty ones."""
    if isinstance(start, int):
        first, end = _bounds(using, topic)
        return min(max(start, first), end)
    return find(using, topic, start)


def number_at(using: str, topic: models.Topic, partition: int, position: int) -> int:
    """How many events a partition had up to a position; of all partitions it is the position itself."""
    if partition == models.Position.ALL or topic.is_undivided:
        return position
    statement = sql.shared.number_at.on(log=log_table(topic.pk), partition=partition, after=0, upper=position)
    if rows := sql.fetch(using, statement):
        return int(rows[0][0])
    behind = SQL.next_number.on(log=log_table(topic.pk), partition=partition, after=position)
    if rows := sql.fetch(using, behind):  # retention's floor is one less, unless the beginning was removed by hand
        return int(rows[0][0]) - 1
    topic.head.refresh_from_db(using=using)
    floors = topic.head.number_floors
    return int(floors[partition]) if partition < len(floors) and position >= topic.head.id_floor else 0


def _bounds(using: str, topic: models.Topic) -> tuple[int, int]:
    """The first id that is there, or may be gone by compaction only, and the one that comes next."""
    topic.head.refresh_from_db(using=using)  # retention may have raised it while the caller waited for its lock
    log, floor = log_table(topic.pk), topic.head.id_floor
    [[first]] = sql.fetch(using, sql.shared.first_id.on(log=log, topic_id=topic.pk))
    [[last]] = sql.fetch(using, sql.shared.last_id.on(log=log, topic_id=topic.pk, floor=floor))
    is_compacted = topic.head.compacted_until > floor
    return (floor + 1 if first is None or is_compacted else first), last + 1
