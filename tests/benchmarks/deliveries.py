"""Deliveries of queue consumers: what they cost the transfer, and how fast one process claims and settles them."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from django.db import connection, transaction
from psycopg import IsolationLevel

from django_events import models
from django_events.consuming.deliveries import Queue
from django_events.consuming.matching import is_pattern
from django_events.consuming.subscriptions import subscriptions
from django_events.declarations import Consumer, Topic
from django_events.log.transfer import Transfer
from tests.benchmarks import peers
from tests.benchmarks.by_hand import noop
from tests.benchmarks.consuming import registered
from tests.benchmarks.database import connect, settle, truncate
from tests.benchmarks.harness import Effort, Row, Samples, at_least, figure, interleave, timed
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
def queues(topic: Topic, count: int = 1, *, ordered: bool = False, **filters: str) -> Iterator[list[Queue]]:
    """Live queue consumers of a topic, without a worker."""
    consumers = [
        Consumer(name=f"queue-{n}", topics=(topic.name,), handler=noop, partitioned=False, types=_types(n, **filters))
        for n in range(count)
    ]
    with registered(*consumers):
        models.Consumer.objects.filter(name__startswith="queue-").update(mode="queue", ordered=ordered, live=True)
        try:
            found = subscriptions(connection.alias, consumers)
            yield [Queue(subscription, holder="bench", ordered=ordered) for subscription in found]
        finally:
            truncate(DELIVERIES, LEASES)


def _types(n: int, *, types: str = "") -> tuple[str, ...] | None:
    if not types:
        return None
    wanted = types.format(n)
    if is_pattern(wanted):
        raise ValueError("Patterns are not compiled here.")
    return (wanted,)


@figure("N10", "the transfer with queue consumers, against none")
def with_queues(effort: Effort) -> Iterator[Row]:
    events = effort.events(EVENTS)
    topic = Topic(name="bench")

    def moved(count: int, **filters: str) -> float:
        truncate(DELIVERIES, LEASES)
        with queues(topic, count, **filters):
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


def handle(queue: Queue, events: int, *, size: int) -> float:
    """Events per second of a worker that claims, does nothing, and settles in the transaction of a handler."""
    done = 0

    def repeat() -> None:
        nonlocal done
        while done < events and (hand := queue.claim(min(size, events - done))):
            with transaction.atomic():
                hand.hold()
                settlement = hand.settle(hand.events)
            hand.settled(settlement)
            done += len(settlement.out)

    seconds = timed(repeat)
    if done != events:
        raise RuntimeError(f"{done} of {events} events were handled.")
    return events / seconds


@figure("N7", "claiming and settling deliveries in one process, without a handler, against others from PyPI")
def claimed(effort: Effort) -> Iterator[Row]:
    events = effort.events(EVENTS)
    topic = Topic(name="bench")
    goals = {"in any order": 20_000, "by key": 15_000, "nine in ten of one key": 5_000}

    def rate(way: str, size: int) -> float:
        ordered, key = WAYS[way]
        with queues(topic, ordered=ordered) as [queue]:
            fill_log(ids[0], events, key)
            return handle(queue, events, size=size)

    others = peers.installed()
    blocks: dict[str, Callable[[], float]] = {
        f"{way}, batches of {size:,}": partial(rate, way, size) for way in WAYS for size in (1_000, 100)
    }
    blocks |= {peer: partial(peers.rate, peer, effort.events(peers.JOBS[peer])) for peer in others}
    with declared(topic) as ids:
        samples = interleave(blocks, rounds=effort.rounds(3))
    for way, goal in goals.items():
        for peer in others:
            yield samples.row(
                f"deliveries {way}, batches of 1,000",
                f"{way}, batches of 1,000",
                peer,
                unit="events/s",
                goal=at_least(goal, "measured"),
            )
        yield samples.row(
            f"deliveries {way}, batches of 100", f"{way}, batches of 100", f"{way}, batches of 1,000", unit="events/s"
        )


@figure("N19", "claiming deliveries under an old snapshot, after 100,000 were handled under it, against before")
def under_an_old_snapshot(effort: Effort) -> Iterator[Row]:
    under, measured = effort.events(UNDER_A_SNAPSHOT), effort.events(20_000)
    topic = Topic(name="bench")
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
