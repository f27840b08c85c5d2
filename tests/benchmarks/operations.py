"""What looking after it costs: status with many consumers far behind, retention, and publishing beside maintenance."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from itertools import cycle
from time import perf_counter

from django.db import connection, transaction

from django_events import models, publish, sql
from django_events.benching.percentiles import percentile
from django_events.declarations import DeclaredTopic
from django_events.log import retention, segments
from django_events.log.transfer import Transfer
from django_events.maintaining import steps
from django_events.maintaining.expiring import expire
from django_events.management.events.looking.status import status
from django_events.observing import state
from django_events.observing.lag import oldest_waits, standings
from django_events.operations import repartition
from django_events.statements import log_table
from tests.benchmarks.consuming import a_consumer, registered
from tests.benchmarks.database import count, settle, truncate
from tests.benchmarks.end_to_end import RATE, cast
from tests.benchmarks.harness import Effort, Row, Samples, at_least, at_most, figure, interleave, timed
from tests.benchmarks.samples import fill
from tests.benchmarks.transfer import BUFFER, LOG, declared, read_committed

BEHIND = 10_000_000
CONSUMERS = 1_000
RETAINED = 1_000_000
AT_ONCE = 50  # segments: a transaction that makes or drops very many runs out of lock memory
BEFORE_IT = 1_000  # events: what is kept
LOGGED = """
INSERT INTO {log} (topic_id, id, partition, number, type, key, value, metadata, published_at, logged_at)
SELECT
    %(topic_id)s, n, (n - 1) %% %(partitions)s, (n - 1) / %(partitions)s + 1, 'order.placed', {key},
    jsonb_build_object('id', n, 'customer', repeat('x', %(size)s)), '{{}}', moment, moment
FROM generate_series(%(first)s, %(last)s) AS n
CROSS JOIN LATERAL (SELECT clock_timestamp() - interval '1 day' + n * interval '1 ms' AS moment) AS at
"""


def fill_log(topic_id: int, events: int, *, size: int = 20, key: str = "(n %% 10000)::text") -> None:
    """Put events into a log that is empty, as if they had been moved; made by the server.

    `key` is an expression in SQL of the event's id `n`.
    """
    topic = models.Topic.objects.get(pk=topic_id)
    some = min(AT_ONCE * topic.segment_size, 1_000_000)
    for first in range(1, events + 1, some):
        last = min(first + some - 1, events)
        segments.ensure(connection.alias, topic_id, events=last - first + 1)
        with connection.cursor() as cursor:
            cursor.execute(
                LOGGED.format(log=log_table(topic_id), key=key),
                {
                    "topic_id": topic_id,
                    "partitions": topic.partitions,
                    "size": size,
                    "first": first,
                    "last": last,
                },
            )


@figure("N12", "lag and status of 1,000 consumers far behind, against 10 consumers")
def looked_at(effort: Effort) -> Iterator[Row]:
    events = effort.events(BEHIND)
    one, eight = DeclaredTopic(name="bench"), DeclaredTopic(name="bench.8", partitions=8)
    with declared(one, eight) as ids:
        for topic_id in ids:
            fill_log(topic_id, events)
        settle(LOG)
        for topic, goal in ((one, at_most(0.05, "measured")), (eight, None)):
            what = f"{CONSUMERS:,} consumers of {topic.partitions} partitions, {events:,} events behind"
            samples = _looks(topic, effort)
            yield samples.row(f"lag of {what}", "lag", "lag of 10", unit="s", goal=goal)
            yield samples.row(f"events status with {what}", "status", "status of 10", unit="s")
            yield samples.row(f"metrics of {what}", "metrics", "metrics of 10", unit="s")
            yield samples.row(f"ages of {what}", "ages", "ages of 10", unit="s")


def _looks(topic: DeclaredTopic, effort: Effort) -> Samples:
    """The same looks at ten and at a thousand, one after the other: they can't be there at the same time."""
    values: dict[str, list[float]] = {}
    looks: dict[str, Callable[[list[int]], object]] = {
        "lag": lambda _: standings("default"),
        "status": lambda _: status("default", names=[], format="table"),
        "metrics": lambda _: state.read("default"),
        "ages": lambda ids: oldest_waits("default", ids),
    }
    for number, called in ((10, " of 10"), (CONSUMERS, "")):
        consumers = [a_consumer(topic, name=f"bench-{n}", batch_size=1_000) for n in range(number)]
        with registered(*consumers):
            settle("django_events_consumer", "django_events_position")
            ids = list(models.Consumer.objects.values_list("pk", flat=True))
            for name, look in looks.items():
                look(ids)  # the first one fills caches
                values[name + called] = [timed(look, ids) for _ in range(effort.rounds(25))]
    return Samples(values)


@figure("N14", "retention of 1,000,000 events by dropping them, against deleting them")
def retained(effort: Effort) -> Iterator[Row]:
    events = effort.events(RETAINED)
    left: dict[str, list[float]] = {"dropped": [], "deleted": []}

    def dropped() -> float:
        topic = DeclaredTopic(name="bench", segment_size=events, retention_events=BEFORE_IT)
        with declared(topic) as [topic_id]:
            before = _size()
            fill_log(topic_id, events + BEFORE_IT, size=180)
            settle(LOG)
            row = models.Topic.objects.get(pk=topic_id)
            seconds = timed(expire, connection.alias, row)
            left["dropped"].append(max(_size() - before, 1) / 1e6)
            if count(log_table(topic_id)) != BEFORE_IT:
                raise RuntimeError("It was not dropped.")
        return seconds

    def deleted() -> float:
        before = _size()
        with declared(DeclaredTopic(name="bench", segment_size=events * 2)) as [topic_id]:
            fill_log(topic_id, events + BEFORE_IT, size=180)
            settle(LOG)
            with connection.cursor() as cursor:
                seconds = timed(cursor.execute, f"DELETE FROM {log_table(topic_id)} WHERE id <= {events}")
            left["deleted"].append((_size() - before) / 1e6)
        return seconds

    def divided() -> float:
        topic = DeclaredTopic(name="bench", segment_size=events, retention_events=events * 9)
        with declared(topic) as [topic_id]:
            fill_log(topic_id, events * 9 // 10)  # small ones: a segment above retention.LARGEST_PART stays whole
            settle(LOG)
            began = perf_counter()
            with retention.writing(connection.alias, topic_id) as row:
                if row is None or not retention.divide(connection.alias, row):
                    raise RuntimeError("It was not divided.")
            return perf_counter() - began

    samples = interleave({"dropped": dropped, "deleted": deleted, "divided": divided}, rounds=effort.rounds(5))
    goal = at_most(0.2, "measured")
    yield samples.row(f"retention of {events:,}", "dropped", "deleted", unit="s", goal=goal)
    yield Samples(left).row("on disk afterwards, of what was there", "dropped", "deleted", unit="MB")
    yield samples.row(f"ending a segment of {events * 9 // 10:,} early", "divided", "deleted", unit="s")


def _size() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_database_size(current_database())")
        [[size]] = cursor.fetchall()
    return int(size)


@figure("N14", "maintenance in which nothing is due, of 200 topics and of 1,000 segments")
def nothing_due(effort: Effort) -> Iterator[Row]:
    kept = timedelta(days=30)
    topics = [DeclaredTopic(name=f"bench.{n}", segment_size=200, retention=kept) for n in range(200)]
    with declared(*topics) as ids:
        for topic_id in ids:
            fill_log(topic_id, 500)
        settle(LOG)
        for name, run in (("segments", steps.make_segments), ("retention", steps.apply_retention)):
            seconds = sorted(timed(run, connection.alias, lambda: False) for _ in range(effort.rounds(9)))
            goal = at_most(0.1, "measured")
            yield Row(what=f"{name} of 200 topics", unit="s", measured=seconds[len(seconds) // 2], goal=goal)


@contextmanager
def of_segments(number: int) -> Iterator[int]:
    """A topic whose log has so many segments, with a hundred events each."""
    with declared(DeclaredTopic(name=f"bench.{number}", segment_size=100)) as [topic_id]:
        fill_log(topic_id, number * 100)
        settle(log_table(topic_id))
        yield topic_id
        some = segments.segments(connection.alias, topic_id)
        for start in range(0, len(some), AT_ONCE):
            with connection.cursor() as cursor:
                cursor.execute(f"DROP TABLE {', '.join(one.table for one in some[start : start + AT_ONCE])}")


@figure("H5", "reading a log of 1,000 segments, planning included, against one of 10")
def planned(effort: Effort) -> Iterator[Row]:
    few, many = 10, 1_000

    def read(topic_id: int, number: int) -> float:
        after = number * 50
        statement = sql.shared.next_events.on(
            log=log_table(topic_id),
            after=sql.literal(after),
            upper=sql.literal(after + 100),
            most=sql.literal(100),
            events=sql.shared.in_topic.on(topic_id=topic_id),
            match=sql.all_of([]),
        )
        return min(timed(sql.fetch, connection.alias, statement) for _ in range(5))

    with of_segments(few) as a, of_segments(many) as b:
        samples = interleave(
            {"1,000 segments": lambda: read(b, many), "10 segments": lambda: read(a, few)}, rounds=effort.rounds(25)
        )
    yield samples.row("100 events out of the middle", "1,000 segments", "10 segments", unit="s", goal=at_most(2))


@figure("N24", "publishing and the transfer beside maintenance that drops and divides without end, against none")
def beside_maintenance(effort: Effort) -> Iterator[Row]:
    seconds = max(effort.events(10), 5)
    values: dict[str, list[float]] = {}
    topic = DeclaredTopic(name="bench", retention_events=BEFORE_IT)
    with declared(topic):
        for turn in range(effort.rounds(5)):
            for maintained in (False, True) if turn % 2 else (True, False):
                for name, value in _published(seconds, maintained=maintained).items():
                    values.setdefault(name, []).append(value)
    samples = Samples(values)
    for share in ("p50", "p99"):
        what = f"publish() at {RATE}/s, {share}"
        yield samples.row(what, f"{share} beside maintenance", f"{share} alone", unit="s", goal=at_most(1.5))
    yield samples.row("transfer", "transfer beside maintenance", "transfer alone", unit="events/s", goal=at_least(0.8))
    dropped = sum(values["segments dropped"]) / len(values["segments dropped"])
    yield Row(what="segments that it dropped meanwhile", unit="a second", measured=dropped)


def _published(seconds: int, *, maintained: bool) -> dict[str, float]:
    """Latencies of a publisher, then the rate of the transfer of a backlog."""
    where = "beside maintenance" if maintained else "alone"
    truncate(BUFFER)
    with cast() as processes:
        maintenance = processes.play("maintain_without_end") if maintained else None
        transfer = processes.transfer()
        publisher = processes.play("publish_at_a_rate", RATE, seconds)
        sent = processes.result("publish_at_a_rate", publisher, seconds=seconds + 30)
        latencies = sorted(committed - began for began, committed in sent)
        transfer.terminate()
        transfer.wait(30)
        rate = moved_per_second(100_000)
        told = processes.stop("maintain_without_end", maintenance) if maintenance else None
    found = {
        f"p50 {where}": percentile(latencies, 0.5),
        f"p99 {where}": percentile(latencies, 0.99),
        f"transfer {where}": rate,
    }
    return {**found, "segments dropped": told["segments"] / told["seconds"]} if told else found


@figure("X7", "publishing and the transfer while the number of partitions changes twice a second, against never")
def beside_repartitioning(effort: Effort) -> Iterator[Row]:
    values: dict[str, list[float]] = {}
    with declared(DeclaredTopic(name="bench", partitions=4)):
        for turn in range(effort.rounds(10)):
            for changing in (False, True) if turn % 2 else (True, False):
                where = "changing" if changing else "alone"
                with repartitioned() if changing else nullcontext():
                    values.setdefault(f"publish {where}", []).append(_publish_some(effort.events(2_000)))
                    values.setdefault(f"transfer {where}", []).append(moved_per_second(effort.events(50_000)))
    samples = Samples(values)
    yield samples.row("publish()", "publish changing", "publish alone", unit="tx/s", goal=at_least(0.9))
    yield samples.row("transfer", "transfer changing", "transfer alone", unit="events/s", goal=at_least(0.9))


@contextmanager
def repartitioned() -> Iterator[None]:
    """Other partitions twice a second, by another session."""
    numbers = cycle((8, 3, 5, 4))
    with repeated(lambda: repartition("bench", next(numbers)), every=0.5):
        yield


@contextmanager
def repeated(act: Callable[[], object], *, every: float) -> Iterator[None]:
    """Act beside the block once in so many seconds, in another session."""
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(every):
            act()
        connection.close()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _publish_some(events: int) -> float:
    """Transactions per second."""

    def publish_all() -> None:
        for number in range(events):
            with transaction.atomic():
                publish("bench", {"id": number}, key=str(number % 100))

    return events / timed(publish_all)


def moved_per_second(events: int) -> float:
    """Events per second through a backlog; what another session holds now is tried again."""
    read_committed(connection.alias)
    truncate(BUFFER)
    topic_id = models.Topic.objects.get(name="bench").pk
    fill(BUFFER, [topic_id], events)
    settle(BUFFER)
    transfer, moved = Transfer(connection.alias), 0
    began = perf_counter()
    while moved < events:
        moved += transfer.move()
    return events / (perf_counter() - began)
