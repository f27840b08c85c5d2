"""Others from PyPI with a no-op job, each in one process and in the fastest setting that its documentation names.

They are in the extra `bench`. Whoever isn't installed is left out, with a word about it. What is timed
is a worker from its start to the end of a backlog, with everything it writes down about its jobs.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from tests.benchmarks.database import connect, settle, truncate, url
from tests.benchmarks.harness import timed
from tests.benchmarks.samples import value

# procrastinate fetches one job per statement, so it gets faster with jobs side by side in its loop (its
# howto/production/concurrency), and by deleting those that succeeded, so that its table stays small.
PROCRASTINATE = "procrastinate, async, concurrency 10, delete_jobs successful"
# pgqueuer fetches in batches and acknowledges in batches. On uvloop, as its command line runs it; of the batch
# sizes 10, 100, 1,000 and 2,000 and its three drivers, these were the fastest here.
PGQUEUER = "pgqueuer, drain, batches of 1,000, asyncpg pool, uvloop"

# Per round: as many as take each a few seconds.
JOBS = {PROCRASTINATE: 2_000, PGQUEUER: 40_000}
SLICE = 10_000  # jobs per statement when a backlog is made


def installed() -> list[str]:
    """The names of those that can be run here."""
    needed = {PROCRASTINATE: ("procrastinate",), PGQUEUER: ("pgqueuer", "asyncpg", "uvloop")}
    found = []
    for peer, modules in needed.items():
        if missing := [module for module in modules if find_spec(module) is None]:
            print(f"Left out: {peer}; not installed: {', '.join(missing)}.", file=sys.stderr, flush=True)
        else:
            found.append(peer)
    return found


def rate(peer: str, jobs: int) -> float:
    """Jobs per second of one of them through a backlog of so many."""
    return {PROCRASTINATE: _procrastinate, PGQUEUER: _pgqueuer}[peer](jobs)


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
