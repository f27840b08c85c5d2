"""How far consumers are behind: streams by subtraction, without looking at the events in between, queues by count.

lag("billing")     # events that were not passed yet
progress(using)    # every partition of every consumer, for those who watch
standings(using)   # every consumer on every topic: its partitions added up, and the one in the worst state
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime, timedelta
from typing import NamedTuple

from django.db import DatabaseError

from django_events import declarations, models, sql
from django_events.consuming.registered import Named, registered
from django_events.log.inventory import TOPICS_AT_ONCE
from django_events.models.buffer import writable
from django_events.statements import log_table

SQL = sql.beside(__name__)

ALL = models.Position.ALL
WORST_FIRST = ("stopped", "retrying", "lost", "paused", "handling", "idle")
COUNTED = 1_000  # dead letters and deliveries of a consumer; more are not counted
COUNTED_OF_ONE = 1_000_000  # where one consumer is looked at by its name


class PartitionProgress(NamedTuple):
    """One partition of a consumer: how far it is, the last id of the topic, what is left, and what it is doing."""

    consumer: str
    topic: str
    partition: int
    position: int
    last_id: int | None
    lag: int
    more_lag: bool
    state: str
    handled: int
    failed: int
    ignored: int
    dead_lettered: int
    attempted: int | None
    attempts: int
    retry_at: datetime | None
    error: str
    holder: str
    served_at: datetime | None
    failing_since: datetime | None


class Standing(NamedTuple):
    """A consumer on a topic: its partitions added up, and from `partition` on the one in the worst state.

    The state is that one's; `in_state` partitions are in it. There are at least so many dead letters, or events behind,
    if there are more.
    """

    consumer: str
    topic: str
    mode: str
    state: str
    in_state: int
    partitions: int
    lag: int
    more_lag: bool
    handled: int
    failed: int
    ignored: int
    dead_lettered: int
    dead_letters: int
    more_dead_letters: bool
    partition: int
    position: int
    attempted: int | None
    attempts: int
    retry_at: datetime | None
    error: str
    holder: str
    served_at: datetime | None
    unserved_for: timedelta | None
    paused_at: datetime | None
    consumer_id: int
    topic_id: int
    failing_since: datetime | None  # of the partition of a relay that has waited longest for its target


def importance(one: Standing) -> tuple[int, int, int, str, str]:
    """A key to sort by: consumers that need an operator come first."""
    return WORST_FIRST.index(one.state), -one.dead_letters, -one.lag, one.consumer, one.topic


class Ends(NamedTuple):
    """The ends of logs, as arrays of one length."""

    topic_ids: list[int]
    partitions: list[int]
    numbers: list[int]


def lag(consumer: Named, *, topic: declarations.DeclaredTopic | str | None = None, using: str | None = None) -> int:
    """How many events a consumer has not passed yet, filtered ones included."""
    using = writable(using)
    rows = registered(using, consumer, topic=topic)
    return sum(one.lag for one in progress(using, rows, counted=None))


def progress(
    using: str, rows: Iterable[models.Consumer] | None = None, *, counted: int | None = COUNTED
) -> list[PartitionProgress]:
    """Every partition of these consumers, or of all, by name, topic and partition."""
    consumer_ids = _ids(rows)
    ends = _ends(using, consumer_ids)
    with sql.by_index(using):
        found = sql.fetch(
            using,
            SQL.progress.on(partitions=SQL.partitions, state=sql.shared.state_of_position),
            consumer_ids=consumer_ids,
            most_pending=counted,
            topic_ids=ends.topic_ids,
            partitions=ends.partitions,
            ends=ends.numbers,
        )
    return [PartitionProgress._make(row) for row in found]


def standings(
    using: str,
    rows: Iterable[models.Consumer] | None = None,
    *,
    counted: int | None = None,
    known: Mapping[tuple[int, int], int] | None = None,
) -> list[Standing]:
    """These consumers, or all, each on each of its topics, by name and topic.

    Dead letters and deliveries of a consumer are counted up to `counted`, by default to `COUNTED`. Who has just asked
    where the logs end passes it on as `known`.
    """
    most = counted or COUNTED
    consumer_ids = _ids(rows)
    ends = _ends(using, consumer_ids) if known is None else _arrays(known)
    with sql.by_index(using):
        found = sql.fetch(
            using,
            SQL.standings.on(partitions=SQL.partitions, state=sql.shared.state_of_position),
            consumer_ids=consumer_ids,
            most=most,
            most_pending=most,
            topic_ids=ends.topic_ids,
            partitions=ends.partitions,
            ends=ends.numbers,
        )
    return [Standing._make(row) for row in found]


def _ids(rows: Iterable[models.Consumer] | None) -> list[int] | None:
    return None if rows is None else [row.pk for row in rows]


def _ends(using: str, consumer_ids: list[int] | None) -> Ends:
    """Where the logs end that these consumers read, as far as they go now: positions are read after it."""
    consumers = models.Consumer.objects.using(using)
    if consumer_ids is not None:
        consumers = consumers.filter(pk__in=consumer_ids)
    topics = models.Topic.objects.using(using).filter(pk__in=consumers.values("topic_id")).select_related("head")
    return _arrays(ends_of(using, list(topics)))


def _arrays(known: Mapping[tuple[int, int], int]) -> Ends:
    return Ends(
        [topic_id for topic_id, _ in known],
        [partition for _, partition in known],
        list(known.values()),
    )


def ends_of(using: str, topics: Sequence[models.Topic]) -> dict[tuple[int, int], int]:
    """The last number of each partition of these topics, and under partition -1 the last id.

    What the log can't tell any more, because its last segments were dropped, is in the topic's head. So it is with a
    log that can't be read.
    """
    known = {}
    for topic in topics:
        floors = [topic.head.id_floor] if topic.is_undivided else topic.head.number_floors
        known.update({(topic.pk, partition): floor for partition, floor in enumerate(floors)})
        known[topic.pk, ALL] = topic.head.id_floor
    for start in range(0, len(topics), TOPICS_AT_ONCE):
        some = topics[start : start + TOPICS_AT_ONCE]
        rows = _ask_logs(using, [statement for topic in some for statement in _statements(topic)])
        known.update({(topic_id, partition): end for topic_id, partition, end in rows if end is not None})
    for topic in topics:
        if topic.is_undivided:
            known[topic.pk, 0] = known[topic.pk, ALL]
    return known


def _ask_logs(using: str, statements: Sequence[sql.Statement], *, by_index: bool = False) -> sql.Rows:
    """What statements about many logs answer together; a log that can't be read is left out."""
    try:
        with sql.unlocked(using), sql.by_index(using) if by_index else nullcontext():
            return sql.fetch(using, sql.union_all(list(statements)))
    except DatabaseError as error:
        if not sql.kind_of(error).stays:
            raise
    if len(statements) == 1:
        return []
    return [row for statement in statements for row in _ask_logs(using, [statement], by_index=by_index)]


def _statements(topic: models.Topic) -> list[sql.Statement]:
    log = log_table(topic.pk)
    last = SQL.end_of_log.on(topic_id=topic.pk, log=log)
    if topic.is_undivided:
        return [last]
    partitions = sql.shared.ends_of_partitions.on(topic_id=topic.pk, partitions=topic.most_partitions, log=log)
    return [last, partitions]


def oldest_waits(using: str, consumer_ids: Sequence[int], *, due: bool = False) -> dict[int, timedelta]:
    """For how long the oldest event waits that each of these consumers has not passed yet; of those that have one.

    Of a queue that is the oldest that isn't settled, in hand or waiting too; with `due` the oldest that a worker
    could handle now. One look by index for each of their partitions, in a statement for many topics.
    """
    kinds = sql.fetch(using, SQL.kinds_of_consumers, consumer_ids=list(consumer_ids))
    statements = [_oldest(list(consumer_ids), *kind, due=due) for kind in kinds]
    waits: dict[int, timedelta] = {}
    for start in range(0, len(statements), TOPICS_AT_ONCE):
        found = _ask_logs(using, statements[start : start + TOPICS_AT_ONCE], by_index=True)
        waits |= {consumer_id: max(age, timedelta(0)) for consumer_id, age in found if age is not None}
    return waits


def _oldest(
    consumer_ids: list[int], topic_id: int, is_undivided: bool, mode: str, partitioned: bool, *, due: bool
) -> sql.Statement:
    log = log_table(topic_id)
    if mode == "queue":
        oldest = SQL.oldest_due if due else SQL.oldest_unsettled
        return oldest.on(consumer_ids=sql.literal(consumer_ids), topic_id=topic_id, log=log)
    return SQL.oldest_unpassed.on(
        consumer_ids=sql.literal(consumer_ids),
        topic_id=topic_id,
        log=log,
        lowest=0 if partitioned else ALL,
        highest=declarations.MAX_PARTITIONS if partitioned else ALL,
        events=(
            sql.shared.in_topic.on(topic_id=topic_id)
            if is_undivided or not partitioned
            else sql.shared.in_its_partition
        ),
    )
