"""The transfer: a backlog through one worker, fresh, under an old snapshot, and as things grow."""

from collections.abc import Iterator
from contextlib import contextmanager
from statistics import harmonic_mean

from django.db import connection
from psycopg import IsolationLevel

from django_events import declarations, models
from django_events.declarations import DeclaredTopic
from django_events.log import segments
from django_events.log import topics as log_topics
from django_events.log.transfer import Transfer
from django_events.statements import log_table
from tests.benchmarks.database import connect, count, settle, truncate
from tests.benchmarks.harness import Effort, Row, at_least, figure, interleave, timed
from tests.benchmarks.samples import fill

BUFFER, LOG = "django_events_bufferedevent", "django_events_event"
BACKLOG = 500_000
BATCH = 5_000
GROWN = 0.8  # at ten times the size: within 20 % of the small case

# The least that a single writer does: take the next rows off, number them, append them.
PROTOTYPE = """
WITH moved AS (
    DELETE FROM bench_buffer
    WHERE topic_id = 1 AND id > %(mark)s AND id <= (
        SELECT max(id)
        FROM (SELECT id FROM bench_buffer WHERE topic_id = 1 AND id > %(mark)s ORDER BY id LIMIT %(batch)s) AS next
    )
    RETURNING *
),
logged AS (
    INSERT INTO bench_log
        (topic_id, id, partition, number, type, key, value, body, metadata, published_at, logged_at)
    SELECT
        topic_id, %(last)s + row_number() OVER (ORDER BY id), 0, %(last)s + row_number() OVER (ORDER BY id),
        type, key, value, body, metadata, published_at, statement_timestamp()
    FROM moved
)
SELECT count(*), max(id) FROM moved
"""


@contextmanager
def declared(*declarations_: DeclaredTopic) -> Iterator[list[int]]:
    """Topics for a while, with their tables; yields the ids of their rows."""
    using = connection.alias
    for topic in declarations_:
        declarations.registry.add(topic)
    try:
        log_topics.sync(using)
        names = [topic.name for topic in declarations_]
        yield list(models.Topic.objects.filter(name__in=names).order_by("id").values_list("id", flat=True))
    finally:
        for topic in declarations_:
            declarations.registry.discard(topic)
            _drop(topic)


def _drop(topic: DeclaredTopic) -> None:
    for row in models.Topic.objects.filter(name=topic.name):
        with connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE IF EXISTS {log_table(row.pk)}")
        row.delete()


def read_committed(using: str) -> None:
    """What the worker does with its connection before it moves anything."""
    connection.ensure_connection()
    connection.connection.isolation_level = IsolationLevel.READ_COMMITTED


def drain(transfer: Transfer, events: int) -> float:
    """Move everything; events per second. The last look, which finds nothing, is part of it."""
    moved = 0

    def repeat() -> None:
        nonlocal moved
        while now := transfer.move():
            moved += now

    seconds = timed(repeat)
    if moved != events or count(BUFFER):
        raise RuntimeError(f"{moved} of {events} events were moved, {count(BUFFER)} are left in the buffer.")
    return events / seconds


def backlog(topic_ids: list[int], events: int, transfer: Transfer | None = None) -> float:
    """Events per second through a backlog that is there when a worker starts, or goes on."""
    read_committed(connection.alias)
    if transfer is None:
        truncate(BUFFER, LOG)
    fill(BUFFER, topic_ids, events)
    settle(BUFFER)
    return drain(transfer or Transfer(connection.alias), events)


def prototype(events: int) -> float:
    """Events per second of the bare statement, in batches, over plain psycopg and plain tables."""
    truncate("bench_buffer", "bench_log")
    fill("bench_buffer", [1], events)
    settle("bench_buffer")
    moved = mark = 0
    with connect() as plain, plain.cursor() as cursor:

        def repeat() -> None:
            nonlocal moved, mark
            while True:
                cursor.execute(PROTOTYPE, {"mark": mark, "batch": BATCH, "last": moved})
                [[now, highest]] = cursor.fetchall()
                if not now:
                    return
                moved += now
                mark = highest

        seconds = timed(repeat)
    if moved != events:
        raise RuntimeError(f"The prototype moved {moved} of {events} events.")
    return events / seconds


@figure("N4", "transfer of a backlog of 500,000, one worker, against a bare prototype")
def through_a_backlog(effort: Effort) -> Iterator[Row]:
    events = effort.events(BACKLOG)
    plain, partitioned = DeclaredTopic(name="bench"), DeclaredTopic(name="bench.8", partitions=8, timeline=True)
    with declared(plain) as one, declared(partitioned) as eight:
        samples = interleave(
            {
                "transfer": lambda: backlog(one, events),
                "prototype": lambda: prototype(events),
                "8 partitions": lambda: backlog(eight, events),
            },
            rounds=effort.rounds(3),
        )
    yield samples.row(
        f"transfer of {events:,}",
        "transfer",
        "prototype",
        unit="events/s",
        goal=at_least(120_000, "measured"),
    )
    yield samples.row(
        f"transfer of {events:,}, 8 partitions with timeline",
        "8 partitions",
        "prototype",
        unit="events/s",
    )


@figure("N5", "the same under an old snapshot, after as many events were moved under it, against N4 fresh")
def under_an_old_snapshot(effort: Effort) -> Iterator[Row]:
    events = effort.events(BACKLOG)

    def fresh(topic_ids: list[int]) -> float:
        return backlog(topic_ids, events)

    def held(topic_ids: list[int]) -> float:
        truncate(BUFFER, LOG)
        with connect(autocommit=False) as old:
            old.isolation_level = IsolationLevel.REPEATABLE_READ
            old.execute("SELECT count(*) FROM django_events_topic")
            transfer = Transfer(connection.alias)
            backlog(topic_ids, events, transfer)
            rate = backlog(topic_ids, events, transfer)
            old.rollback()
        return rate

    with declared(DeclaredTopic(name="bench")) as ids:
        samples = interleave({"fresh": lambda: fresh(ids), "held": lambda: held(ids)}, rounds=effort.rounds(3))
    yield samples.row(
        f"transfer of {events:,} under a snapshot, after {events:,}",
        "held",
        "fresh",
        unit="events/s",
        goal=at_least(0.9),
    )


@figure("N17", "the transfer at ten times the events, topics and segments, against the small case")
def as_it_grows(effort: Effort) -> Iterator[Row]:
    yield _more_events(effort)
    yield from _more_topics(effort)
    yield from _more_segments(effort)


def _more_events(effort: Effort) -> Row:
    events = effort.events(BACKLOG)
    with declared(DeclaredTopic(name="bench")) as ids:
        samples = interleave(
            {
                "a tenth": lambda: backlog(ids, events // 10),
                "all": lambda: backlog(ids, events),
            },
            rounds=effort.rounds(3),
        )
    return samples.row(f"transfer of {events:,}", "all", "a tenth", unit="events/s", goal=at_least(GROWN))


def _more_topics(effort: Effort) -> Iterator[Row]:
    """A backlog in all topics, and a flow that leaves a few events in each, turn after turn."""
    events, flow = effort.events(BACKLOG), effort.events(50)
    few = [DeclaredTopic(name=f"bench.{n}") for n in range(20)]
    many = [DeclaredTopic(name=f"bench.{n}") for n in range(200)]

    def a_flow(topic_ids: list[int]) -> float:
        read_committed(connection.alias)
        truncate(BUFFER, LOG)
        transfer = Transfer(connection.alias)
        rates = []
        for _ in range(flow + 1):
            fill(BUFFER, topic_ids, BATCH * 4 // 5)
            rates.append(drain(transfer, BATCH * 4 // 5))
        return harmonic_mean(rates[1:])  # a worker that knows its topics already

    def with_topics(topics: list[DeclaredTopic], kind: str) -> float:
        with declared(*topics) as ids:
            return backlog(ids, events) if kind == "backlog" else a_flow(ids)

    samples = interleave(
        {
            "20 topics": lambda: with_topics(few, "backlog"),
            "200 topics": lambda: with_topics(many, "backlog"),
            "20 topics, a flow": lambda: with_topics(few, "flow"),
            "200 topics, a flow": lambda: with_topics(many, "flow"),
        },
        rounds=effort.rounds(3),
    )
    yield samples.row(
        f"transfer of {events:,} in 200 topics",
        "200 topics",
        "20 topics",
        unit="events/s",
        goal=at_least(GROWN),
    )
    yield samples.row(
        "transfer of a flow in 200 topics, 20 events each",
        "200 topics, a flow",
        "20 topics, a flow",
        unit="events/s",
        goal=at_least(GROWN),
    )


def _more_segments(effort: Effort) -> Iterator[Row]:
    """Segments that are there, and segments that are made on the way, as they are when a log grows."""
    events = effort.events(BACKLOG)

    def with_segments(number: int, *, ahead: bool) -> float:
        with declared(DeclaredTopic(name="bench", segment_size=events // number)) as [topic_id]:
            if ahead:
                segments.ensure(connection.alias, topic_id, events=events)
            return backlog([topic_id], events)

    samples = interleave(
        {
            "5 segments": lambda: with_segments(5, ahead=True),
            "50 segments": lambda: with_segments(50, ahead=True),
            "5 on the way": lambda: with_segments(5, ahead=False),
            "50 on the way": lambda: with_segments(50, ahead=False),
        },
        rounds=effort.rounds(3),
    )
    yield samples.row(
        f"transfer of {events:,} into 50 segments",
        "50 segments",
        "5 segments",
        unit="events/s",
        goal=at_least(GROWN),
    )
    yield samples.row(
        f"transfer of {events:,}, 50 segments made on the way",
        "50 on the way",
        "5 on the way",
        unit="events/s",
        goal=at_least(GROWN),
    )
