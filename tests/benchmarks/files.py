"""The log into Parquet without Java: beside a COPY that goes nowhere, and what others read PostgreSQL with."""

import shutil
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import psycopg
import pyarrow as pa
import pyarrow.parquet as pq

from django_events.exporting.export import Export, export
from django_events.exporting.local import LocalEngine
from tests.benchmarks.database import url
from tests.benchmarks.harness import Effort, Row, at_least, figure, interleave, timed
from tests.benchmarks.pipeline import EVENTS, QUERY, TOPIC, filled
from tests.benchmarks.transfer import declared

THREADS = 2
SELECT = f"SELECT * FROM {QUERY}"


@figure("N15", "the log into Parquet without Java, against ConnectorX, ADBC and a COPY that goes nowhere")
def files(effort: Effort) -> Iterator[Row]:
    """Ours with all that it does for exactly once: the lock, the journal, fsync, the count. Theirs without."""
    events = effort.events(EVENTS)
    with declared(TOPIC), tempfile.TemporaryDirectory() as folder:
        filled(TOPIC, events)
        out = Path(folder, "out")

        def ours(threads: int) -> float:
            shutil.rmtree(out, ignore_errors=True)
            wanted = Export(dsn=url(), topics=(TOPIC.name,), path=str(out))
            return events / timed(lambda: export(LocalEngine(threads=threads), wanted))

        blocks = {
            f"{THREADS} threads": lambda: ours(THREADS),
            "one thread": lambda: ours(1),
            "COPY to nowhere": lambda: events / timed(copied),
        }
        if find_spec("connectorx"):
            blocks["ConnectorX"] = lambda: events / timed(by_connectorx, Path(folder), events)
        if find_spec("adbc_driver_postgresql"):
            blocks["ADBC"] = lambda: events / timed(by_adbc, Path(folder))
        for block in blocks.values():
            block()
        samples = interleave(blocks, rounds=effort.rounds(5))
        for other in blocks:
            if other != f"{THREADS} threads":
                goal = at_least(1.0) if other in ("ConnectorX", "ADBC") else None
                yield samples.row("Parquet without Java", f"{THREADS} threads", other, unit="events/s", goal=goal)


def copied() -> None:
    wanted = f"COPY ({SELECT}) TO STDOUT (FORMAT binary)"
    with psycopg.connect(url()) as connection, connection.cursor() as cursor, cursor.copy(wanted) as copy:
        for _ in copy:
            pass


def by_connectorx(folder: Path, events: int) -> None:
    """In as many parts as we have threads, cut by the ids, as its users do."""
    import connectorx

    table = connectorx.read_sql(
        url().replace("postgres:@", "postgres@"),
        SELECT,
        return_type="arrow",
        partition_on="offset",
        partition_num=THREADS,
        partition_range=(1, events),
    )
    pq.write_table(table, folder / "connectorx.parquet", compression="zstd")


def by_adbc(folder: Path) -> None:
    from adbc_driver_postgresql import dbapi

    with dbapi.connect(url()) as connection, connection.cursor() as cursor:
        cursor.execute(SELECT)
        reader: pa.RecordBatchReader = cursor.fetch_record_batch()
        with pq.ParquetWriter(folder / "adbc.parquet", reader.schema, compression="zstd") as writer:
            for batch in reader:
                writer.write_batch(batch)
