"""Subscriptions: what thousands of filters cost the transfer, by their index, and without it."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

from django.db import connection

from django_events import models
from django_events.consuming.queues.filter_terms import Term, digest
from django_events.declarations import DeclaredTopic
from django_events.log.transfer import Transfer
from tests.benchmarks.database import settle, truncate
from tests.benchmarks.harness import Effort, Row, at_least, at_most, figure, interleave, timed
from tests.benchmarks.transfer import BUFFER, LOG, declared, drain, read_committed

SUBSCRIPTIONS = 5_000
EVENTS = 50_000
FEW = 1_000  # events: one by one, each is tried on all filters
SINGLE = 200

FILL = """
INSERT INTO django_events_bufferedevent (topic_id, type, key, value, metadata)
SELECT
    %(topic_id)s, 'order.placed', 'key ' || n %% %(subscriptions)s,
    jsonb_build_object(
        'tenant', 'tenant ' || n %% %(subscriptions)s, 'total', n %% 1000, 'status', 'placed', 'note', repeat('x', 100)
    ),
    jsonb_build_object()
FROM generate_series(1, %(events)s) AS n
"""
# What a team writes without an index of what is asked for: each event against each filter.
CROSS_JOIN = """
SELECT count(*)
FROM django_events_event AS e
JOIN django_events_consumer AS c ON c.keys @> to_jsonb(e.key) OR e.value @@ c."where"::jsonpath
WHERE e.topic_id = %(topic_id)s AND e.id <= %(events)s
"""


@contextmanager
def subscriptions(topic_id: int, count: int) -> Iterator[None]:
    """So many live subscriptions: half of them ask for a key, half for a tenant and more in the value."""
    rows, terms = [], list[Term]()
    for n in range(count):
        where = f'$.tenant == "tenant {n}" && $.total >= 0'
        row = models.Consumer(
            name=f"subscription-{n}",
            topic_id=topic_id,
            mode="queue",
            partitioned=False,
            live=True,
            subscribed=True,
            indexed=True,
            keys=[f"key {n}"] if n % 2 else None,
            where=None if n % 2 else where,
        )
        row.filter_digest = digest(row)
        rows.append(row)
        terms.append(Term("key", "$", f"key {n}") if n % 2 else Term("value", '$."tenant"[*]', f"tenant {n}"))
    made = models.Consumer.objects.bulk_create(rows)
    models.Position.objects.bulk_create(models.Position(consumer=row, partition=-1) for row in made)
    models.FilterTerm.objects.bulk_create(
        models.FilterTerm(consumer=row, topic_id=topic_id, filter_digest=row.filter_digest, **term._asdict())
        for row, term in zip(made, terms, strict=True)
    )
    settle("django_events_consumer", "django_events_position", "django_events_filterterm")
    try:
        yield
    finally:
        models.Consumer.objects.filter(topic_id=topic_id).delete()
        truncate("django_events_delivery")


def fill(topic_id: int, events: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(FILL, {"topic_id": topic_id, "events": events, "subscriptions": SUBSCRIPTIONS})


def through(topic_id: int, events: int) -> float:
    """Events per second of a backlog."""
    read_committed(connection.alias)
    truncate(BUFFER, LOG, "django_events_delivery")
    fill(topic_id, events)
    settle(BUFFER)
    return drain(Transfer(connection.alias), events)


def one_at_a_time(topic_id: int) -> float:
    """The seconds that a batch of one event takes, in the middle."""
    read_committed(connection.alias)
    transfer, seconds = Transfer(connection.alias), []
    for _ in range(SINGLE):
        fill(topic_id, 1)
        began = time.perf_counter()
        transfer.move()
        seconds.append(time.perf_counter() - began)
    return median(seconds)


def cross_join(topic_id: int) -> float:
    """Events per second."""

    def join() -> None:
        with connection.cursor() as cursor:
            cursor.execute(CROSS_JOIN, {"topic_id": topic_id, "events": FEW})

    return FEW / timed(join)


@figure("P4", "the transfer with 5,000 subscriptions with filters on key and value, against none, and without an index")
def with_subscriptions(effort: Effort) -> Iterator[Row]:
    events, rounds = effort.events(EVENTS), effort.rounds(5)
    with (
        declared(DeclaredTopic(name="bench")) as [topic_id],
        declared(DeclaredTopic(name="bench.none")) as [plain],
        subscriptions(topic_id, SUBSCRIPTIONS),
    ):
        samples = interleave(
            {"none": lambda: through(plain, events), "5,000": lambda: through(topic_id, events)}, rounds=rounds
        )
        yield samples.row("events to one subscription each", "5,000", "none", unit="events/s", goal=at_least(0.15))
        singles = interleave(
            {"none": lambda: one_at_a_time(plain), "5,000": lambda: one_at_a_time(topic_id)}, rounds=rounds
        )
        yield singles.row("a batch of one event", "5,000", "none", unit="s", goal=at_most(2))
        models.Consumer.objects.filter(topic_id=topic_id).update(indexed=False)
        slow = interleave(
            {"one by one": lambda: through(topic_id, FEW), "cross join": lambda: cross_join(topic_id)}, rounds=1
        )
        yield slow.row("each filter tried on each event", "one by one", "cross join", unit="events/s")
