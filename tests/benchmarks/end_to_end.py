"""All of it at once, in processes of their own: how long an event takes, what waiting costs, what goes through."""

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

from django.db import connection

from django_events import models, publish
from django_events.benching.percentiles import percentile
from django_events.declarations import DeclaredConsumer, DeclaredTopic
from django_events.observing.lag import lag
from tests.benchmarks import peers
from tests.benchmarks.by_hand import noop
from tests.benchmarks.consuming import a_consumer, registered
from tests.benchmarks.database import CONSUMED, PUBLISHED, connect, settle, truncate, url
from tests.benchmarks.harness import Effort, Row, Samples, at_least, at_most, figure
from tests.benchmarks.samples import encoded
from tests.benchmarks.transfer import BUFFER, LOG, declared
from tests.support.processes import Processes

RATE = 100  # events per second
ENDING = 30.0  # seconds
STATISTICS = 12.0  # seconds: a session that has nothing to do tells of its transactions after 10
FAR_BEHIND = 20_000  # events: enough for full batches everywhere
SETTLING = 5.0  # seconds, until the lag is what it stays
WRITTEN = "sum(n_tup_ins + n_tup_upd + n_tup_del)"
MAINTAINED = "relname IN ('django_events_sample', 'django_events_maintenancestep')"


class Cast(Processes):
    """The processes of a figure, and what they found out."""

    def play(self, role: str, *arguments: object) -> subprocess.Popen[str]:
        """Start a role of roles.py."""
        return self._start([sys.executable, "-m", "tests.benchmarks.roles", role, *map(str, arguments)], name=role)

    def play_traced(self, role: str, *arguments: object) -> subprocess.Popen[str]:
        """The same, and its result has what it did when: ask for that of `traced-…`."""
        words = ["-m", "tests.benchmarks.roles", "traced", role, *map(str, arguments)]
        return self._start([sys.executable, *words], name=f"traced-{role}")

    def transfer(self) -> subprocess.Popen[str]:
        return self.start("run_transfer", "--verbosity", "0")

    def result(self, role: str, process: subprocess.Popen[str], *, seconds: float = ENDING) -> Any:
        """Wait for the end of a role, and return what it found out."""
        code = process.wait(seconds)
        said = self.log_of(role)
        if code:
            raise RuntimeError(f"{role} ended with {code}: {said[-2_000:]}")
        return json.loads(said.splitlines()[-1])

    def stop(self, role: str, process: subprocess.Popen[str]) -> Any:
        process.send_signal(signal.SIGTERM)
        return self.result(role, process)


@contextmanager
def cast() -> Iterator[Cast]:
    """Processes on the database of the figure; whatever happens, they are gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        processes = Cast(url(), Path(folder))
        try:
            yield processes
        finally:
            processes.end()


def one(query: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(query)
        [[value]] = cursor.fetchall()
    return int(value or 0)


@figure("N8", "latency at 100 events a second through publisher, transfer and consumer, against the same by hand")
def latency(effort: Effort) -> Iterator[Row]:
    """Three processes each, but two for peers, which have no log in between; events come at random times.

    Each event is timed from before publish() to its handler. N8q is a queue consumer, N8e the transfer and the
    consumer in one process as in `run_events`.
    """
    seconds = max(effort.events(30), 10)
    peers_here = [name for name in peers.NEEDED if peers.is_installed(name)]
    ways: dict[str, Callable[[int], dict[str, list[float]]]] = {
        "N8": partial(latencies, "stream"),
        "N8q": partial(latencies, "queue"),
        "N8e": partial(latencies, "all_in_one"),
        "by hand": latencies_by_hand,
        **{peer: partial(_latencies_of_peer, peer) for peer in peers_here},
    }
    values: dict[str, list[float]] = {}
    for turn in range(effort.rounds(5)):
        names = list(ways)
        for who in names[turn % len(names) :] + names[: turn % len(names)]:
            for what, milliseconds in by_shares(ways[who](seconds)).items():
                values.setdefault(f"{who}, {what}", []).append(milliseconds)
    samples = Samples(values)
    for since in ("since publish()", "since the commit"):
        for share, goal in (("p50", at_most(1.2)), ("p99", at_most(1.6))):
            of = f", {since}, {share}"
            for id, what in WAYS.items():
                is_goal = id == "N8" and since == "since publish()"
                yield samples.row(
                    f"{id}: {what} at {RATE}/s{of}", id + of, f"by hand{of}", unit="ms", goal=goal if is_goal else None
                )
            for peer in peers_here:
                yield samples.row(
                    f"publish(), transfer, handler at {RATE}/s{of}, beside a peer's job",
                    "N8" + of,
                    peer + of,
                    unit="ms",
                )


WAYS = {
    "N8": "publish(), transfer, handler",
    "N8q": "publish(), transfer, handler of a queue",
    "N8e": "publish(), transfer and handler in one process",
}


def by_shares(latencies: Mapping[str, list[float]]) -> dict[str, float]:
    """The middle one and the one that 99 of 100 are below, of each kind."""
    return {
        f"{since}, p{100 * share:.0f}": percentile(sorted(milliseconds), share)
        for since, milliseconds in latencies.items()
        for share in (0.5, 0.99)
    }


def latencies(way: str, seconds: int) -> dict[str, list[float]]:
    truncate(BUFFER)
    mode = "queue" if way == "queue" else "stream"
    topic = DeclaredTopic(name="bench")
    consumer = DeclaredConsumer(name="bench", topics=("bench",), handler=noop, mode=mode, partitioned=mode == "stream")
    with declared(topic), registered(consumer), cast() as processes:
        if way != "all_in_one":
            processes.transfer()
        reader = processes.play("note_latency", way)
        publish("bench", {"sent": 0})
        processes.wait_until(lambda: is_passed(consumer, 1), what="the first event")
        publisher = processes.play("publish_at_a_rate", RATE, seconds)
        sent = processes.result("publish_at_a_rate", publisher, seconds=seconds + ENDING)
        processes.wait_until(lambda: is_passed(consumer, 1 + len(sent)), what="the last event")
        return joined(sent, processes.stop("note_latency", reader))


def is_passed(consumer: DeclaredConsumer, events: int) -> bool:
    """Whether so many events are in the log, and none of them waits for the consumer."""
    return one(f"SELECT count(*) FROM {LOG}") == events and lag(consumer) == 0


def latencies_by_hand(seconds: int) -> dict[str, list[float]]:
    truncate("bench_buffer", "bench_log")
    with cast() as processes, connect() as plain:
        plain.execute("UPDATE bench_position SET position = 0")
        processes.play("move_by_hand")
        reader = processes.play("read_by_hand")
        row = (*encoded(0)[:4], '{"sent": 0}', *encoded(0)[5:])
        columns = "topic_id, partition, type, key, value, body, metadata"
        plain.execute(f"INSERT INTO bench_buffer ({columns}) VALUES (%s, %s, %s, %s, %s, %s, %s)", row)
        processes.wait_until(lambda: one("SELECT position FROM bench_position") > 0, what="the first event")
        publisher = processes.play("insert_at_a_rate", RATE, seconds)
        sent = processes.result("insert_at_a_rate", publisher, seconds=seconds + ENDING)
        processes.wait_until(lambda: one("SELECT position FROM bench_position") > len(sent), what="the last event")
        return joined(sent, processes.stop("read_by_hand", reader))


def _latencies_of_peer(peer: str, seconds: int) -> dict[str, list[float]]:
    peers.install(peer)
    with cast() as processes:
        worker = processes.play("note_latency_of_peer", peer)
        with peers.publisher(peer) as make:
            make(0, 0.0)
        processes.wait_until(lambda: not peers.waiting(peer), what="the first job")
        publisher = processes.play("publish_to_peer", peer, RATE, seconds)
        sent = processes.result("publish_to_peer", publisher, seconds=seconds + ENDING)
        processes.wait_until(lambda: not peers.waiting(peer), what="the last job")
        return joined(sent, processes.stop("note_latency_of_peer", worker))


def joined(sent: list[tuple[float, float]], arrived: list[tuple[float, float]]) -> dict[str, list[float]]:
    """Milliseconds from the beginning and from the commit to the handler, of each event."""
    handled = dict(arrived)
    return {
        "since publish()": [1_000 * (handled[began] - began) for began, _ in sent],
        "since the commit": [1_000 * (handled[began] - committed) for began, committed in sent],
    }


@figure("N9", "what 100 idle consumers in one process and a transfer cost")
def idle(effort: Effort) -> Iterator[Row]:
    seconds = 60 if effort.quick else 180  # maintenance comes once a minute
    topics = [DeclaredTopic(name=f"bench.{n}") for n in range(10)]
    consumers = [a_consumer(topics[n % 10], name=f"bench-{n}", batch_size=1_000) for n in range(100)]
    with declared(*topics), registered(*consumers), cast() as processes:
        processes.transfer()
        processes.play("consume", 1_000, *(f"{consumer.name}@{consumer.topics[0]}" for consumer in consumers))
        for topic in topics:
            publish(topic, {"n": 0})
        positions = models.Position.objects.filter(consumer__topic__name__in=[topic.name for topic in topics])
        processes.wait_until(lambda: not positions.filter(position=0).exists(), what="the first events")
        connection.close()
        with connect() as plain:
            plain.execute("VACUUM (ANALYZE)")  # or autovacuum would, and be counted
        settle()
        connection.close()
        time.sleep(STATISTICS)
        with connect() as plain:
            before = _spent(plain)
            time.sleep(seconds)
            after = _spent(plain)
    transactions, rows, maintained, wal = (b - a for a, b in zip(before, after, strict=True))
    what = f"100 idle consumers of 10 topics and a transfer with maintenance, {seconds} s"
    yield Row(
        what=f"{what}: transactions",
        unit="tx/s",
        measured=(transactions - 1) / seconds,  # one is the first look at the counters
        goal=at_most(1, "measured"),
    )
    yield Row(what=f"{what}: rows written, but by maintenance", unit="rows", measured=rows, goal=at_most(0, "measured"))
    yield Row(what=f"{what}: rows that maintenance wrote", unit="rows/min", measured=maintained * 60 / seconds)
    yield Row(what=f"{what}: WAL", unit="bytes/s", measured=wal / seconds)


def _spent(plain: Any) -> list[float]:
    row = plain.execute(
        "SELECT"
        " (SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()),"
        f" (SELECT {WRITTEN} FROM pg_stat_user_tables WHERE NOT {MAINTAINED}),"
        f" (SELECT {WRITTEN} FROM pg_stat_user_tables WHERE {MAINTAINED}),"
        " pg_current_wal_lsn() - '0/0'"
    ).fetchone()
    return [float(value) for value in row]


@figure("N18", "everything at once: publish_many() of 1,000, the transfer, a stream consumer in batches of 1,000")
def at_once(effort: Effort) -> Iterator[Row]:
    """A process each. Where the publisher is the fastest, it waits for the consumer, or nothing would be flat."""
    seconds = 10 if effort.quick else 60
    topic = DeclaredTopic(name="bench")
    truncate(BUFFER)
    with (
        declared(topic) as [topic_id],
        registered(a_consumer(topic, name="bench", batch_size=1_000)),
        cast() as processes,
    ):
        query = (
            f"SELECT ({PUBLISHED}) - {one(PUBLISHED)},"
            f" (SELECT coalesce(max(id), 0) FROM {LOG} WHERE topic_id = {topic_id}), ({CONSUMED})"
        )
        processes.transfer()
        processes.play("consume", 1_000, "bench@bench")
        publisher = processes.play("publish_without_end", FAR_BEHIND)
        processes.wait_until(lambda: one(CONSUMED) > 0, what="the first events")
        time.sleep(SETTLING)
        samples = _sampled(query, seconds)
        waited = processes.stop("publish_without_end", publisher)["waited"]
    first, last = samples[0], samples[-1]
    rates = [(b - a) / (last.at - first.at) for a, b in zip(first.counts, last.counts, strict=True)]
    paced = f", the publisher waiting {waited:.0%} of the time" if waited else ""
    yield Row(
        what=f"everything at once for {seconds} s{paced}",
        unit="events/s",
        measured=min(rates),
        goal=at_least(35_000, "measured"),
    )
    half = len(samples) // 2
    for what, goal in (("in_buffer", None), ("in_log", None), ("behind", at_most(1.2))):
        early = mean(getattr(sample, what) for sample in samples[:half])
        late = mean(getattr(sample, what) for sample in samples[half:])
        ratio = late / max(early, 1)
        yield Row(
            what=f"events {what.replace('_', ' the ')}, mean of the second half",
            unit="events",
            measured=late,
            against="the first half",
            reference=early,
            ratio=ratio,
            spread=(ratio, ratio),
            goal=goal,
        )


class Sample(NamedTuple):
    """How many events were published, moved and consumed at a moment."""

    at: float
    published: int
    moved: int
    consumed: int

    @property
    def counts(self) -> tuple[int, int, int]:
        return self[1:]

    @property
    def in_buffer(self) -> int:
        return self.published - self.moved

    @property
    def in_log(self) -> int:
        return self.moved - self.consumed

    @property
    def behind(self) -> int:
        return self.published - self.consumed


def _sampled(query: str, seconds: int) -> list[Sample]:
    samples = []
    with connect() as plain:
        for _ in range(seconds * 5):
            row = plain.execute(query).fetchone()
            samples.append(Sample(time.perf_counter(), *row))
            time.sleep(0.2)
    return samples
