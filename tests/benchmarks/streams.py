"""Streams to browsers: what thousands cost a process, and how soon each gets its events."""

import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from django_events import publish
from django_events.benching.percentiles import percentile
from django_events.declarations import DeclaredTopic
from testproject.private_postgres.server import choose_free_port
from tests.benchmarks.database import connect, truncate
from tests.benchmarks.end_to_end import ENDING, RATE, STATISTICS, cast, latencies_by_hand
from tests.benchmarks.harness import Effort, Row, Samples, figure
from tests.benchmarks.transfer import BUFFER, declared
from tests.support.processes import listens

STREAMS, POLLED = 2_000, 200
TRANSACTIONS = "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"


@figure(
    "N26", "server-sent events to 2,000 browsers by one process, against a reader by hand and a view that is polled"
)
def streams(effort: Effort) -> Iterator[Row]:
    """100 events a second, each for one user; from the commit to the client, which is a process of its own.

    The reader by hand is the one of N8. Those who poll ask once a second.
    """
    seconds = max(effort.events(30), 10)
    values: dict[str, list[float]] = {}

    def note(who: str, milliseconds: list[float]) -> None:
        ordered = sorted(milliseconds)
        for share in (0.5, 0.99):
            values.setdefault(f"{who}, p{100 * share:.0f}", []).append(percentile(ordered, share))

    for _ in range(effort.rounds(3)):
        for count in (1, POLLED, STREAMS):
            at_work = _followed("live", count, seconds)
            note(f"{count:,} streams", at_work.milliseconds)
            values.setdefault(f"transactions, {count:,}", []).append(at_work.transactions)
            values.setdefault(f"memory, {count:,}", []).append(at_work.memory)
        polled = _followed("poll", POLLED, seconds)
        note("polled", polled.milliseconds)
        values.setdefault("transactions, polled", []).append(polled.transactions)
        note("by hand", latencies_by_hand(seconds)["since the commit"])
    samples = Samples(values)
    for share in ("p50", "p99"):
        row = partial(samples.row, unit="ms")
        for count in (1, POLLED, STREAMS):
            what = f"{count:,} streams, {RATE} events/s, since the commit, {share}"
            yield row(what, f"{count:,} streams, {share}", f"by hand, {share}")
        what = f"{POLLED} streams, beside {POLLED} browsers that poll, {share}"
        yield row(what, f"{POLLED:,} streams, {share}", f"polled, {share}")
    transactions = partial(samples.row, unit="tx/s")
    yield transactions(
        f"transactions with {STREAMS:,} streams, beside 1", f"transactions, {STREAMS:,}", "transactions, 1"
    )
    yield transactions(f"transactions with {POLLED} streams", f"transactions, {POLLED}", "transactions, polled")
    memory = [
        (many - one) / (STREAMS - 1)
        for many, one in zip(values[f"memory, {STREAMS:,}"], values["memory, 1"], strict=True)
    ]
    yield Row(what="memory of the server for each stream", unit="KiB", measured=sorted(memory)[len(memory) // 2])


class AtWork:
    """How it went: how long each event took, transactions a second, and the memory of the server."""

    def __init__(self, milliseconds: list[float], transactions: float, memory: float) -> None:
        self.milliseconds = milliseconds
        self.transactions = transactions
        self.memory = memory


def _followed(how: str, count: int, seconds: int) -> AtWork:
    truncate(BUFFER)
    with declared(DeclaredTopic(name="bench")), cast() as processes, connect() as plain:
        processes.transfer()
        publish("bench", {"sent": 0}, key="-")
        port = choose_free_port()
        site = ["tests.benchmarks.streams_site:application", "--port", str(port), "--lifespan", "off"]
        server = processes.start_module("uvicorn", *site, "--log-level", "warning")
        processes.wait_until(lambda: listens(port), what="a server that listens")
        clients = processes.play("follow", how, port, count)
        processes.wait_until(lambda: clients.poll() or processes.said(clients), what="all clients", seconds=300)
        assert clients.poll() is None, processes.said(clients)
        before, began = _transactions(plain), time.monotonic()
        publisher = processes.play("publish_at_a_rate", RATE, seconds, count)
        sent = processes.result("publish_at_a_rate", publisher, seconds=seconds + ENDING)
        time.sleep(STATISTICS)  # sessions tell of their transactions late, and what is on its way arrives
        transactions = (_transactions(plain) - before) / (time.monotonic() - began)
        memory = _memory(server.pid)
        arrived = dict(processes.stop("follow", clients))
    late = [1_000 * (arrived[began] - committed) for began, committed in sent]
    return AtWork(late, transactions, memory)


def _transactions(plain: "psycopg.Connection[Any]") -> int:
    [[value]] = plain.execute(TRANSACTIONS).fetchall()
    return int(value)


def _memory(pid: int) -> float:
    """What a process has in memory, in KiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith("VmRSS:")))
