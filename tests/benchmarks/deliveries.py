"""Queue consumers: what they cost the transfer, and how fast one process handles their events, as things grow too."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from statistics import quantiles

from django.db import connection, transaction
from psycopg import IsolationLevel

from django_events import models
from django_events.consuming.queues.deliveries import Queue
from django_events.consuming.subscriptions import subscriptions
from django_events.declarations import DeclaredConsumer, DeclaredTopic
from django_events.log.transfer import Transfer
from tests.benchmarks import peers
from tests.benchmarks.by_hand import noop
from tests.benchmarks.consuming import consume, registered
from tests.benchmarks.database import connect, settle, truncate
from tests.benchmarks.harness import Effort, Row, Samples, at_least, at_most, figure, interleave, timed
from tests.benchmarks.samples import value
from tests.benchmarks.transfer import BUFFER, LOG, backlog, declared, read_committed

DELIVERIES, LEASES = "django_events_delivery", "django_events_deliverylease"
EVENTS = 100_000
KEYS = 1_000
UNDER_A_SNAPSHOT = 100_000  # events, handled before it is measured again

# What each way of handling takes: whether in order, and the key of the event `n`.
WAYS = {
    "in any order": (False, "NULL"),
    "by key": (True, f"'key ' || n % {KEYS}"),
    "nine in ten of one key": (True, f"CASE WHEN n % 10 > 0 THEN 'hot' ELSE 'key ' || n % {KEYS} END"),
}


@contextmanager
def queues(
    topic: DeclaredTopic, count: int = 1, *, ordered: bool = False, batch_size: int | None = None, types: str = ""
) -> Iterator[list[Queue]]:
    """Live queue consumers of a topic, without a worker."""
    consumers = [
        DeclaredConsumer(
            name=f"queue-{n}",
            topics=(topic.name,),
            handler=noop,
            partitioned=False,
            mode="queue",
            ordered=ordered,
            batch_size=batch_size,
            types=(types.format(n),) if types else None,
        )
        for n in range(count)
    ]
    with registered(*consumers):
        models.Consumer.objects.filter(name__startswith="queue-").update(live=True)
        try:
            yield [Queue(of, holder="bench") for of in subscriptions(connection.alias, consumers)]
        finally:
            truncate(DELIVERIES, LEASES)


@figure("N10", "the transfer with queue consumers, against none")
def with_queues(effort: Effort) -> Iterator[Row]:
    events = effort.events(EVENTS)
    topic = DeclaredTopic(name="bench")

    def moved(count: int, types: str = "") -> float:
        truncate(DELIVERIES, LEASES)
        with queues(topic, count, types=types):
            return backlog(ids, events)

    blocks: dict[str, Callable[[], float]] = {f"{count}": partial(moved, count) for count in (0, 1, 3, 10)}
    blocks["5,000 of other types"] = partial(moved, 5_000, types="other.{}")
    with declared(topic) as ids:
        samples = interleave(blocks, rounds=effort.rounds(3))
    for count, goal in (("1", 0.7), ("3", 0.45), ("10", 0.22)):
        yield samples.row(
            f"transfer of {events:,} with {count} queue consumers", count, "0", unit="events/s", goal=at_least(goal)
        )
    yield samples.row(
        f"transfer of {events:,}, 5,000 queue consumers of other types", "5,000 of other types", "0", unit="events/s"
    )


def fill_log(topic_id: int, events: int, key: str) -> None:
    """Put events into the log, and a delivery of each to its live consumers with them, as the transfer does."""
    truncate(BUFFER, LOG, DELIVERIES, LEASES)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {BUFFER} (topic_id, type, key, value)"
            f" SELECT %s, 'order.placed', {key.replace('%', '%%')}, jsonb_set(%s, '{{id}}', to_jsonb(n))"
            " FROM generate_series(1, %s) AS n",
            [topic_id, json.dumps(value(0)), events],
        )
    read_committed(connection.alias)
    transfer = Transfer(connection.alias)
    while transfer.move():
        pass
    settle(DELIVERIES, LEASES)


def handle(queue: Queue, events: int, *, size: int = 1) -> float:
    """Events per second of a worker that claims, does nothing, and settles in the transaction of a handler."""
    done = 0

    def repeat() -> None:
        nonlocal done
        while done < events and (hand := queue.claim(min(size, events - done))):
            with transaction.atomic():
                hand.take_lock()
                settlement = hand.settle(hand.events)
            hand.settled(settlement)
            done += len(settlement.out)

    seconds = timed(repeat)
    if done != events:
        raise RuntimeError(f"{done} of {events} events were handled.")
    return events / seconds


@figure("N7", "a queue consumer in one process, against claiming and settling alone, and against others from PyPI")
def consumed(effort: Effort) -> Iterator[Row]:
    events, single = effort.events(EVENTS), effort.events(30_000)
    topic = DeclaredTopic(name="bench")
    goals = {"in any order": 20_000, "by key": 15_000, "nine in ten of one key": 5_000}

    def alone(way: str) -> float:
        ordered, key = WAYS[way]
        with queues(topic, ordered=ordered) as [queue]:
            fill_log(ids[0], events, key)
            return handle(queue, events, size=1_000)

    def rate(way: str, size: int | None) -> float:
        ordered, key = WAYS[way]
        with queues(topic, ordered=ordered, batch_size=size) as [queue]:
            fill_log(ids[0], events if size else single, key)
            return consume([queue.subscription.consumer], events if size else single)

    others = peers.installed()
    blocks: dict[str, Callable[[], float]] = {f"claim and settle {way}": partial(alone, way) for way in WAYS}
    blocks |= {f"{way}, batches of {size:,}": partial(rate, way, size) for way in WAYS for size in (1_000, 100)}
    blocks |= {f"{way}, one by one": partial(rate, way, None) for way in WAYS}
    blocks |= {peer: partial(peers.rate, peer, effort.events(peers.JOBS[peer])) for peer in others}
    with declared(topic) as ids:
        samples = interleave(blocks, rounds=effort.rounds(3))
    for way, goal in goals.items():
        for size, enough in (("batches of 1,000", goal), ("batches of 100", None), ("one by one", 2_000)):
            for against in (f"claim and settle {way}", *others):
                yield samples.row(
                    f"queue {way}, {size}",
                    f"{way}, {size}",
                    against,
                    unit="events/s",
                    goal=None if enough is None else at_least(enough, "measured"),
                )


@figure("N11", "claiming with 1,000,000 deliveries and 100,000 dead letters, against an empty system")
def with_a_backlog(effort: Effort) -> Iterator[Row]:
    backlog, claims = effort.events(1_000_000), 300
    topic = DeclaredTopic(name="bench")

    def slowest(way: str, *, behind: int) -> float:
        """The time that nine in ten claims of one delivery, with their settling, don't exceed."""
        ordered, key = WAYS[way]
        with queues(topic, ordered=ordered) as [queue]:
            fill_log(ids[0], claims + behind, key)
            if behind:
                make_dead_letters(queue, behind // 10)
            seconds = [timed(handle, queue, 1) for _ in range(claims)]
            models.DeadLetter.objects.all().delete()
        return quantiles(seconds, n=10)[-1] * 1_000

    for way in WAYS:
        with declared(topic) as ids:
            blocks = {"empty": partial(slowest, way, behind=0), "backlog": partial(slowest, way, behind=backlog)}
            samples = interleave(blocks, rounds=effort.rounds(3))
        yield samples.row(f"claim {way}, p90", "backlog", "empty", unit="ms", goal=at_most(3))


def make_dead_letters(queue: Queue, count: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO django_events_deadletter (consumer_id, event_id, partition, number, type, key, value,"
            " metadata, published_at, logged_at, attempts, error, traceback)"
            " SELECT %s, n, 0, n, '', 'dead ' || n %% 1000, '{}', '{}', now(), now(), 8, 'ValueError', ''"
            " FROM generate_series(1, %s) AS n",
            [queue.subscription.consumer_id, count],
        )
    settle("django_events_deadletter")


@figure("N19", "claiming deliveries under an old snapshot, after 100,000 were handled under it, against before")
def under_an_old_snapshot(effort: Effort) -> Iterator[Row]:
    under, measured = effort.events(UNDER_A_SNAPSHOT), effort.events(20_000)
    topic = DeclaredTopic(name="bench")
    for way, goal in (("in any order", 0.9), ("by key", 0.5)):
        values: dict[str, list[float]] = {"before": [], "after": []}
        ordered, key = WAYS[way]
        for _ in range(effort.rounds(3)):
            with declared(topic) as ids, queues(topic, ordered=ordered) as [queue]:
                fill_log(ids[0], under + 2 * measured, key)
                with connect(autocommit=False) as old:
                    old.isolation_level = IsolationLevel.REPEATABLE_READ
                    old.execute(f"SELECT count(*) FROM {DELIVERIES}")
                    values["before"].append(handle(queue, measured, size=1_000))
                    handle(queue, under, size=1_000)
                    values["after"].append(handle(queue, measured, size=1_000))
                    old.rollback()
        samples = Samples(values)
        yield samples.row(
            f"deliveries {way} under a snapshot, after {under:,}",
            "after",
            "before",
            unit="events/s",
            goal=at_least(goal),
        )
