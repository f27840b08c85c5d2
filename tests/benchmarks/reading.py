"""Reading a long log by key and by time, through the ORM and with plain psycopg."""

import random
from collections.abc import Iterator
from datetime import timedelta
from time import perf_counter
from typing import Any

from django_events.benching.percentiles import percentile
from django_events.declarations import DeclaredTopic
from django_events.models import Event
from django_events.statements import log_table
from tests.benchmarks.database import connect, settle
from tests.benchmarks.harness import Effort, Row, at_most, figure
from tests.benchmarks.operations import fill_log
from tests.benchmarks.transfer import declared

TENANTS, RESOURCES, EACH = 10, 100_000, 10
KEY = "format('tenant-%%s/resource-%%s', n %% {tenants}, n / {tenants} %% {resources})"
COLUMNS = "id, partition, number, type, key, value, body, metadata, published_at, logged_at"
SAMPLES = 5_000


@figure("N13", "timelines of one key out of 10,000,000 events of 1,000,000 keys, against a plain query")
def timelines(effort: Effort) -> Iterator[Row]:
    """Keys at random, each asked through the ORM and by psycopg in turn; what a key's events are is checked."""
    resources = effort.events(RESOURCES)
    events = TENANTS * resources * EACH
    topic = DeclaredTopic(name="bench", timeline=True)
    with declared(topic) as [topic_id], connect() as plain:
        fill_log(topic_id, events, key=KEY.format(tenants=TENANTS, resources=resources))
        plain.execute(f"VACUUM (ANALYZE) {log_table(topic_id)}")  # autovacuum does so within a minute
        settle()
        query = f"SELECT {COLUMNS} FROM {log_table(topic_id)} WHERE topic_id = %s AND key = %s ORDER BY id"
        by_orm, by_hand, more = [], [], []
        for turn in range(effort.rounds(SAMPLES) + 100):
            key = f"tenant-{random.randrange(TENANTS)}/resource-{random.randrange(resources)}"
            began = perf_counter()
            found = list(Event.objects.timeline(topic, key))
            between = perf_counter()
            rows = plain.execute(query, (topic_id, key)).fetchall()
            ended = perf_counter()
            if [event.id for event in found] != [row[0] for row in rows] or len(found) != EACH:
                raise RuntimeError(f"The timeline of {key} is {found}.")
            if turn < 100:  # until caches are warm
                continue
            by_orm.append(1_000 * (between - began))
            by_hand.append(1_000 * (ended - between))
            more.append(by_orm[-1] - by_hand[-1])
        what = f"timeline of one key, {events:,} events of {TENANTS * resources:,} keys"
        yield _row(what, by_orm, by_hand, 0.5)
        yield _row(what, by_orm, by_hand, 0.99, at_most(5, "measured"))
        yield Row(
            what=f"{what}: more than the plain query takes, p50",
            unit="ms",
            measured=percentile(sorted(more), 0.5),
            goal=at_most(0.5, "measured"),
        )
        yield from _by_time(topic, topic_id, effort)


def _by_time(topic: DeclaredTopic, topic_id: int, effort: Effort) -> Iterator[Row]:
    """The first hundred events behind a moment, which is found by halving, against those behind an id."""
    rows = Event.objects.of(topic)
    last = rows.order_by("-id")[0].id
    by_time, by_id = [], []
    for _ in range(effort.rounds(500)):
        event = rows.get(id=random.randrange(1, last - 1_000))
        began = perf_counter()
        timed = list(Event.objects.between(topic, event.logged_at, event.logged_at + timedelta(seconds=1))[:100])
        between = perf_counter()
        known = list(Event.objects.since(topic, event.id - 1)[:100])
        ended = perf_counter()
        if [one.id for one in timed] != [one.id for one in known]:
            raise RuntimeError(f"Between is {timed[:3]} …, expected {known[:3]} …")
        by_time.append(1_000 * (between - began))
        by_id.append(1_000 * (ended - between))
    yield _row("100 events from a moment on", by_time, by_id, 0.5, against="100 events from an id on")


def _row(
    what: str, measured: list[float], reference: list[float], share: float, goal: Any = None, *, against: str = ""
) -> Row:
    one, other = percentile(sorted(measured), share), percentile(sorted(reference), share)
    return Row(
        what=f"{what}, p{100 * share:.0f}",
        unit="ms",
        measured=one,
        against=against or "the plain query",
        reference=other,
        ratio=one / other,
        goal=goal,
    )
