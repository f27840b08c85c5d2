"""Others from PyPI with a no-op job, each in one process and in the fastest setting that its documentation names.

They are in the extra `bench`. A peer that isn't installed is left out, and a line says so. Two things are timed: a
worker from its start to the end of a backlog, with everything that it writes down about its jobs; and one job from
before it is made to its function, where jobs come one by one and the worker is notified of each.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from django_events.workers.stopping import Stop
from tests.benchmarks.database import connect, count, settle, truncate, url
from tests.benchmarks.harness import timed
from tests.benchmarks.samples import value

Arrived = list[tuple[float, float]]

# procrastinate fetches one job per statement, so it gets faster with jobs side by side in its loop (its
# howto/production/concurrency), and by deleting those that succeeded, so that its table stays small.
PROCRASTINATE = "procrastinate, async, concurrency 10, delete_jobs successful"
# pgqueuer fetches in batches and acknowledges in batches. On uvloop, as its command line runs it; of the batch
# sizes 10, 100, 1,000 and 2,000 and its three drivers, these were the fastest here.
PGQUEUER = "pgqueuer, drain, batches of 1,000, asyncpg pool, uvloop"

# Per round: as many as take each a few seconds.
JOBS = {PROCRASTINATE: 2_000, PGQUEUER: 40_000}
SLICE = 10_000  # jobs per statement when a backlog is made


NEEDED = {"procrastinate": ("procrastinate",), "pgqueuer": ("pgqueuer", "asyncpg", "uvloop")}


def installed() -> list[str]:
    """Those that can be run here, with their settings for a backlog."""
    return [peer for peer in JOBS if is_installed(peer.split(",")[0])]


def is_installed(name: str) -> bool:
    """Whether a peer can be run here; says what is missing if not."""
    missing = [module for module in NEEDED[name] if find_spec(module) is None]
    if missing:
        print(f"Left out: {name}; not installed: {', '.join(missing)}.", file=sys.stderr, flush=True)
    return not missing


def rate(peer: str, jobs: int) -> float:
    """Jobs per second of one of them through a backlog of so many."""
    return {PROCRASTINATE: _procrastinate, PGQUEUER: _pgqueuer}[peer](jobs)


@contextmanager
def publisher(peer: str) -> Iterator[Callable[[int, float], None]]:
    """A function that makes a job that says when it was sent, in a transaction of its own on one connection."""
    if peer == "procrastinate":
        import procrastinate

        app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=url(), min_size=1, max_size=1))
        with app.open():
            task = app.configure_task("note")
            yield lambda n, sent: task.defer(event={**value(n), "sent": sent}) and None
    else:
        from pgqueuer.db import SyncPsycopgDriver
        from pgqueuer.queries import SyncQueries

        with connect() as plain:
            queries = SyncQueries(SyncPsycopgDriver(plain))

            def one(n: int, sent: float) -> None:
                queries.enqueue("note", json.dumps({**value(n), "sent": sent}).encode())

            yield one


def install(peer: str) -> None:
    """Make the tables of one of them, empty."""
    if peer == "procrastinate":
        import procrastinate

        app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=url()))
        with app.open():
            if not _exists("procrastinate_jobs"):
                app.schema_manager.apply_schema()
        truncate("procrastinate_jobs CASCADE")
    else:
        import asyncpg
        from pgqueuer.db import AsyncpgDriver
        from pgqueuer.queries import Queries

        async def install_tables() -> None:
            connection = await asyncpg.connect(url())
            try:
                if not _exists("pgqueuer"):
                    await Queries(AsyncpgDriver(connection)).install()
            finally:
                await connection.close()

        asyncio.run(install_tables())
        truncate("pgqueuer, pgqueuer_log")


def waiting(peer: str) -> int:
    """How many jobs are not done."""
    table = {"procrastinate": "procrastinate_jobs", "pgqueuer": "pgqueuer"}[peer]
    return count(table)


def note_arrivals(peer: str, stop: Stop) -> Arrived:
    """Work until told to stop; returns when each job was sent and when its function got it."""
    arrived: Arrived = []
    {"procrastinate": _note_procrastinate, "pgqueuer": _note_pgqueuer}[peer](arrived, stop)
    return arrived


def _note_procrastinate(arrived: Arrived, stop: Stop) -> None:
    import procrastinate

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url(), min_size=10, max_size=10))

    @app.task(name="note")
    async def note(event: dict[str, Any]) -> None:
        arrived.append((event["sent"], time.time()))

    async def work() -> None:
        async with app.open_async():
            worker = asyncio.create_task(
                app.run_worker_async(concurrency=10, delete_jobs="successful", install_signal_handlers=False)
            )
            await _until(stop)
            worker.cancel()
            await asyncio.wait([worker])

    asyncio.run(work())


def _note_pgqueuer(arrived: Arrived, stop: Stop) -> None:
    import asyncpg
    import uvloop
    from pgqueuer import PgQueuer

    async def note(job: Any) -> None:
        arrived.append((json.loads(job.payload)["sent"], time.time()))

    async def work() -> None:
        async with asyncpg.create_pool(url(), min_size=4, max_size=4) as pool:
            queuer = PgQueuer.from_asyncpg_pool(pool)
            queuer.entrypoint("note")(note)
            worker = asyncio.create_task(queuer.qm.run(batch_size=10))
            await _until(stop)
            queuer.qm.shutdown.set()
            await asyncio.wait([worker], timeout=5)

    uvloop.run(work())


async def _until(stop: Stop) -> None:
    while not stop.requested:
        await asyncio.sleep(0.05)


def _procrastinate(jobs: int) -> float:
    import procrastinate

    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url(), min_size=10, max_size=10))
    handled = 0

    @app.task(name="noop")
    async def noop(event: dict[str, Any]) -> None:
        nonlocal handled
        handled += 1

    async def prepare() -> None:
        async with app.open_async():
            if not _exists("procrastinate_jobs"):
                await app.schema_manager.apply_schema_async()
            for first in range(0, jobs, SLICE):
                numbers = range(first, min(first + SLICE, jobs))
                await noop.batch_defer_async(*({"event": value(n)} for n in numbers))

    async def work() -> None:
        async with app.open_async():
            await app.run_worker_async(
                wait=False, concurrency=10, delete_jobs="successful", install_signal_handlers=False
            )

    asyncio.run(prepare())
    settle("procrastinate_jobs")
    seconds = timed(asyncio.run, work())
    truncate("procrastinate_jobs CASCADE")
    return _rate(PROCRASTINATE, jobs, handled, seconds)


def _pgqueuer(jobs: int) -> float:
    import asyncpg
    import uvloop
    from pgqueuer import PgQueuer
    from pgqueuer.domain.types import QueueExecutionMode
    from pgqueuer.queries import Queries

    handled = 0

    async def noop(job: object) -> None:
        nonlocal handled
        handled += 1

    async def on_a_pool(use: Callable[[PgQueuer], Any]) -> None:
        async with asyncpg.create_pool(url(), min_size=4, max_size=4) as pool:
            await use(PgQueuer.from_asyncpg_pool(pool))

    async def prepare(queuer: PgQueuer) -> None:
        queries = Queries(queuer.connection)
        if not _exists("pgqueuer"):
            await queries.install()
        for first in range(0, jobs, SLICE):
            payloads = [json.dumps(value(n)).encode() for n in range(first, min(first + SLICE, jobs))]
            await queries.enqueue(["noop"] * len(payloads), payloads, [0] * len(payloads))

    async def work(queuer: PgQueuer) -> None:
        queuer.entrypoint("noop")(noop)
        await queuer.qm.run(batch_size=1_000, mode=QueueExecutionMode.drain)

    uvloop.run(on_a_pool(prepare))
    settle("pgqueuer")
    seconds = timed(uvloop.run, on_a_pool(work))
    truncate("pgqueuer, pgqueuer_log")
    return _rate(PGQUEUER, jobs, handled, seconds)


def _exists(table: str) -> bool:
    with connect() as plain:
        [exists] = plain.execute("SELECT to_regclass(%s) IS NOT NULL", [table]).fetchone() or [False]
    return bool(exists)


def _rate(peer: str, jobs: int, handled: int, seconds: float) -> float:
    if handled != jobs:
        raise RuntimeError(f"{peer} handled {handled} of {jobs} jobs.")
    return jobs / seconds
