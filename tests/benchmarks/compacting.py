"""What compaction costs: a log of many events of few keys, reading its state, and the transfer beside it."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from django.db import connection

from django_events import models
from django_events.declarations import DeclaredTopic
from django_events.log.compaction import compact
from django_events.models import Event
from django_events.statements import log_table
from tests.benchmarks.database import count, settle
from tests.benchmarks.harness import Effort, Row, Samples, figure, interleave, timed
from tests.benchmarks.operations import fill_log, moved_per_second, repeated
from tests.benchmarks.transfer import LOG, declared

EVENTS, KEYS = 10_000_000, 100_000
LOOKS = 500
PRICES = DeclaredTopic(name="bench", compact=True, timeline=True)


def run(query: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(query)


def size_of(table: str) -> float:
    """In megabytes, of a log with all its segments too."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT sum(pg_total_relation_size(relid)) FROM pg_partition_tree(%s)", [table])
        return float(cursor.fetchall()[0][0]) / 1e6


@figure("S14", "compaction of 10,000,000 events of 100,000 keys, against a bare copy of the newest of each key")
def compacted(effort: Effort) -> Iterator[Row]:
    events, keys = effort.events(EVENTS), effort.events(KEYS)
    times: dict[str, list[float]] = {"compact": [], "copy": []}
    sizes: dict[str, list[float]] = {"compacted": [], "before": []}
    for _ in range(effort.rounds(3)):
        with declared(PRICES) as [topic_id]:
            fill_log(topic_id, events + 1, size=120, key=f"(n %% {keys})::text")
            settle(LOG)
            log = log_table(topic_id)
            newest = f"SELECT DISTINCT ON (key) * FROM {log} ORDER BY key, id DESC"
            times["copy"].append(timed(run, f"CREATE TABLE bench_newest AS {newest}"))
            run("DROP TABLE bench_newest")
            sizes["before"].append(size_of(log))
            row = models.Topic.objects.get(pk=topic_id)
            times["compact"].append(timed(compact, connection.alias, row))
            if count(log) != keys + 1:
                raise RuntimeError(f"{count(log):,} events are left.")
            sizes["compacted"].append(size_of(log))
    yield Samples(times).row(f"compaction of {events:,} events", "compact", "copy", unit="s")
    yield Samples(sizes).row("on disk", "compacted", "before", unit="MB")


@figure("S14", "the state of 100,000 keys in a compacted log, against a table of them")
def state(effort: Effort) -> Iterator[Row]:
    keys = effort.events(KEYS)
    with declared(replace(PRICES, segment_size=keys)) as [topic_id]:
        fill_log(topic_id, 10 * keys + 1, size=120, key=f"(n %% {keys})::text")
        compact(connection.alias, models.Topic.objects.get(pk=topic_id))
        if count(log_table(topic_id)) != keys + 1:
            raise RuntimeError("It was not compacted.")
        settle(LOG)
        run("DROP TABLE IF EXISTS bench_state")
        run(f"CREATE TABLE bench_state AS SELECT * FROM {log_table(topic_id)}")
        run("ALTER TABLE bench_state ADD PRIMARY KEY (key, id)")
        run("ANALYZE bench_state")

        def by_key() -> float:
            return timed(lambda: [Event.objects.latest("bench", key=str(n)) for n in range(LOOKS)]) / LOOKS * 1e3

        def plain_by_key() -> float:
            query = "SELECT * FROM bench_state WHERE key = %s ORDER BY id DESC LIMIT 1"

            def look(key: str) -> None:
                with connection.cursor() as cursor:
                    cursor.execute(query, [key])
                    cursor.fetchall()

            return timed(lambda: [look(str(n)) for n in range(LOOKS)]) / LOOKS * 1e3

        def all_of_it() -> float:
            return timed(lambda: list(Event.objects.latest("bench").values_list("key", "value")))

        def plain_all() -> float:
            with connection.cursor() as cursor:
                return timed(lambda: cursor.execute("SELECT key, value FROM bench_state").fetchall())

        samples = interleave(
            {"key": by_key, "plain key": plain_by_key, "all": all_of_it, "plain": plain_all}, rounds=effort.rounds(5)
        )
        run("DROP TABLE bench_state")
    yield samples.row("latest() of one key", "key", "plain key", unit="ms")
    yield samples.row(f"latest() of {keys:,} keys", "all", "plain", unit="s")


@figure("S14", "the transfer while its topic is compacted once a second, against alone")
def beside_compaction(effort: Effort) -> Iterator[Row]:
    keys = effort.events(KEYS)
    values: dict[str, list[float]] = {"beside": [], "alone": []}
    with declared(PRICES) as [topic_id]:
        fill_log(topic_id, 1_000_001, size=120, key=f"(n %% {keys})::text")
        for turn in range(effort.rounds(6)):
            for beside in (False, True) if turn % 2 else (True, False):
                with compacting() if beside else nullcontext():
                    values["beside" if beside else "alone"].append(moved_per_second(effort.events(200_000)))
    yield Samples(values).row("transfer", "beside", "alone", unit="events/s")


@contextmanager
def compacting() -> Iterator[None]:
    """Compaction once a second, by another session: each time as if it had been interrupted."""
    topic = models.Topic.objects.get(name="bench")

    def again() -> None:
        models.TopicHead.objects.filter(topic=topic).update(kept_events=-1)
        compact(connection.alias, topic)

    with repeated(again, every=1):
        yield
