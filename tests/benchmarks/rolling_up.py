"""Roll-ups: a backlog folded by a pool of one thread, beside one plain GROUP BY of the log and a handler in Python."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal

from django.db import connection, models

from django_events import ReceivedEvent, declarations
from django_events import models as ours
from django_events.declarations import DeclaredConsumer, DeclaredRollUp, DeclaredTopic
from django_events.deriving import rollups
from django_events.log import segments
from django_events.statements import log_table
from tests.benchmarks.consuming import POSITIONS, a_consumer, again, consume, registered
from tests.benchmarks.database import connect, settle
from tests.benchmarks.harness import Effort, Row, at_least, figure, interleave, timed
from tests.benchmarks.transfer import declared

EVENTS, BUCKETS, GROUPS = 2_000_000, 100, 100
BY_PYTHON = 100_000
BEGINNING = "2026-01-01 00:00:00+00"
SHAPE = {"store": "$.store"}, {"revenue": "$.total"}

FILL = """
INSERT INTO {log} (topic_id, id, partition, number, type, key, value, metadata, published_at, logged_at)
SELECT
    %(topic_id)s, n, 0, n, 'order.placed', (n %% 10000)::text,
    jsonb_build_object(
        'id', n, 'customer', 'Ada Lovelace', 'status', 'placed', 'currency', 'EUR', 'store', 's' || n %% {groups},
        'total', round((n %% 9973) / 100.0, 2), 'items', '[{{"sku": "A-1001", "quantity": 2, "price": "19.99"}}]'::jsonb
    ),
    '{{}}', moment, moment
FROM generate_series(%(first)s::bigint, %(last)s) AS n
CROSS JOIN LATERAL (
    SELECT timestamptz '{beginning}' + interval '1 minute' * ({bucket})
) AS at (moment)
"""
PLAIN = """
CREATE TABLE bench_rollup AS
SELECT
    date_trunc('minute', published_at) AS bucket, value ->> 'store' AS store,
    count(*) AS count, sum((value ->> 'total')::numeric) AS revenue
FROM {log}
WHERE topic_id = {topic_id}
GROUP BY 1, 2
"""


class Figures(models.Model):
    """What a handler would keep by itself."""

    bucket = models.DateTimeField()
    store = models.TextField()
    number = models.BigIntegerField()
    revenue = models.DecimalField(max_digits=20, decimal_places=2)

    class Meta:
        app_label = "benchmarks"
        managed = False
        db_table = "bench_figures"
        unique_together = (("bucket", "store"),)


def by_python(events: list[ReceivedEvent]) -> None:
    """A handler of batches that adds them up, then writes each row that changed."""
    sums: dict[tuple[object, str], list[Decimal]] = defaultdict(lambda: [Decimal(0), Decimal(0)])
    for event in events:
        kept = sums[event.published_at.replace(second=0, microsecond=0), event.value["store"]]
        kept[0] += 1
        kept[1] += Decimal(str(event.value["total"]))
    rows = [(bucket, store, number, revenue) for (bucket, store), (number, revenue) in sorted(sums.items())]
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO bench_figures AS t (bucket, store, number, revenue) VALUES (%s, %s, %s, %s)"
            " ON CONFLICT (bucket, store) DO UPDATE SET number = t.number + excluded.number,"
            " revenue = t.revenue + excluded.revenue",
            rows,
        )


IN_ORDER, SCATTERED = "(n - 1) * {buckets} / %(events)s", "n * 7919 / {groups} %% {buckets}"


def fill(topic_id: int, events: int, *, bucket: str = IN_ORDER) -> None:
    """Events in equally many buckets and groups: in the order of their times, as a log has them, or in none."""
    some = 500_000
    for first in range(1, events + 1, some):
        last = min(first + some - 1, events)
        segments.ensure(connection.alias, topic_id, events=last - first + 1)
        of_time = bucket.format(buckets=BUCKETS, groups=GROUPS)
        statement = FILL.format(log=log_table(topic_id), groups=GROUPS, bucket=of_time, beginning=BEGINNING)
        with connection.cursor() as cursor:
            cursor.execute(statement, {"topic_id": topic_id, "first": first, "last": last, "events": events})


@contextmanager
def made(*declared: DeclaredRollUp) -> Iterator[None]:
    """Roll-ups for a while, with their tables."""
    for one in declared:
        declarations.consumers.add(one)
    try:
        rollups.sync(connection.alias)
        for one in declared:
            declarations.consumers.discard(one)
        with registered(*declared):
            yield
    finally:
        for one in declared:
            declarations.consumers.discard(one)
        ours.RollUp.objects.filter(name__in=[one.name for one in declared]).delete()
        rollups.drop_stranded(connection.alias)


def fold_again(rollup: DeclaredRollUp, events: int) -> float:
    """Events per second from an empty table on."""
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {ours.RollUp.objects.get(name=rollup.name).table}")
    return again(rollup, events=events)


def plain(topic_id: int, events: int) -> float:
    """Events per second of one GROUP BY of the whole log, into a table."""
    with connect() as raw:
        raw.execute("DROP TABLE IF EXISTS bench_rollup")
        raw.execute("SET max_parallel_workers_per_gather = 0")  # the roll-up has one session too
        return events / timed(raw.execute, PLAIN.format(log=log_table(topic_id), topic_id=topic_id))


def python(consumer: DeclaredConsumer, events: int, last: int) -> float:
    """Events per second of the handler, through the last events of the log."""
    before = last - events
    ours.Position.objects.filter(consumer__name=consumer.name).update(position=before, number=before, served_at=None)
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE bench_figures")
    settle(POSITIONS)
    return consume([consumer], events)


def same(rollup: DeclaredRollUp) -> bool:
    """Whether the roll-up has what the plain statement found."""
    table = ours.RollUp.objects.get(name=rollup.name).table
    columns = ["bucket", "store", "count", "revenue"]
    both = [
        f"SELECT {', '.join(columns)} FROM {one}" for one in (f"{table} WHERE bucket > '-infinity'", "bench_rollup")
    ]
    with connection.cursor() as cursor:
        cursor.execute(f"({both[0]} EXCEPT {both[1]}) UNION ALL ({both[1]} EXCEPT {both[0]})")
        return not cursor.fetchall()


@figure("N25", "a roll-up of 2,000,000 events into 10,000 rows, against one GROUP BY and a handler in Python")
def rolled_up(effort: Effort) -> Iterator[Row]:
    events, by_handler = effort.events(EVENTS), effort.events(BY_PYTHON)
    by, sums = (tuple(one.items()) for one in SHAPE)
    topic, other = DeclaredTopic(name="bench"), DeclaredTopic(name="bench.scattered")
    rollup, scattered = (
        DeclaredRollUp(
            name=f"{of}-rollup",
            topics=(of.name,),
            handler="django_events.deriving.rolling_up.RollUpFold",
            partitioned=False,
            by=by,
            sums=sums,
        )
        for of in (topic, other)
    )
    consumer = a_consumer(topic, name="bench-python", batch_size=1_000, handler=by_python)
    with connection.schema_editor() as editor:
        editor.create_model(Figures)
    with declared(topic, other) as [topic_id, other_id]:
        fill(topic_id, events)
        fill(other_id, events, bucket=SCATTERED)
        with connect() as raw:
            for log in (topic_id, other_id):
                raw.execute(f"VACUUM (ANALYZE) {log_table(log)}")  # autovacuum does so within a minute
        settle()
        with made(rollup, scattered), registered(consumer):
            blocks: dict[str, Callable[[], float]] = {
                "a roll-up": lambda: fold_again(rollup, events),
                "one GROUP BY": lambda: plain(topic_id, events),
                "a roll-up, no order": lambda: fold_again(scattered, events),
                "one GROUP BY, no order": lambda: plain(other_id, events),
                "a handler in Python": lambda: python(consumer, by_handler, events),
            }
            samples = interleave(blocks, rounds=effort.rounds(5))
            for one, log in ((rollup, topic_id), (scattered, other_id)):
                plain(log, events)
                if not same(one):
                    raise RuntimeError("The roll-up and the GROUP BY differ.")
            yield samples.row(
                f"{events:,} events into {BUCKETS * GROUPS:,} rows",
                "a roll-up",
                "one GROUP BY",
                unit="events/s",
                goal=at_least(0.5),
            )
            yield samples.row(
                "of times in no order, so that each range has all rows",
                "a roll-up, no order",
                "one GROUP BY, no order",
                unit="events/s",
                goal=at_least(0.5),
            )
            yield samples.row(
                f"{events:,} events into {BUCKETS * GROUPS:,} rows",
                "a roll-up",
                "a handler in Python",
                unit="events/s",
            )
