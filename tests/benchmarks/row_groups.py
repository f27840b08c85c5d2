"""Reading what is exported: files with the row groups that we write, beside smaller and larger ones."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq

from django_events.exporting.export import Export, export
from django_events.exporting.local import LocalEngine
from django_events.exporting.writing import COMPARED, REPEATED, ROWS_PER_GROUP, ZSTD_LEVEL
from tests.benchmarks.database import url
from tests.benchmarks.harness import Effort, Row, figure, interleave, timed
from tests.benchmarks.pipeline import TOPIC, filled
from tests.benchmarks.transfer import declared

EVENTS = 1_000_000
SIZES = {"of 10,000": 10_000, "of 122,880": ROWS_PER_GROUP, "of 1,048,576": 1 << 20}
QUERIES = {
    "a sum of what values say": "SELECT value->>'$.customer', sum(CAST(value->>'$.total' AS DECIMAL(9, 2))) "
    "FROM {files} GROUP BY ALL",
    "a count by type": "SELECT type, count(*) FROM {files} GROUP BY ALL",
    "1,000 events by their offsets": 'SELECT max(value) FROM {files} WHERE "offset" BETWEEN {first} AND {first} + 999',
}


@figure("N38", "DuckDB and Polars over Parquet with our row groups of 122,880 events, against smaller and larger ones")
def row_groups(effort: Effort) -> Iterator[Row]:
    """One file of all events, written by PyArrow with our settings and that size of a row group."""
    events = effort.events(EVENTS)
    with declared(TOPIC), tempfile.TemporaryDirectory() as folder:
        filled(TOPIC, events)
        export(LocalEngine(threads=1), Export(dsn=url(), topics=(TOPIC.name,), path=f"{folder}/exported"))
        found = sorted(map(str, Path(folder, "exported").glob("topic=*/ids=*/day=*/*.parquet")))
        rows = pa.concat_tables([pq.read_table(file, partitioning=None) for file in found]).sort_by("offset")
        files = {}
        for name, size in SIZES.items():
            files[name] = f"{folder}/{size}.parquet"
            pq.write_table(
                rows,
                files[name],
                row_group_size=size,
                compression="zstd",
                compression_level=ZSTD_LEVEL,
                use_dictionary=REPEATED,
                write_statistics=COMPARED,
            )
            yield Row(what=f"size with row groups {name}", unit="MB", measured=Path(files[name]).stat().st_size / 1e6)
        with duckdb.connect() as session:

            def asked(query: str, file: str) -> Callable[[], float]:
                text = query.format(files=f"read_parquet('{file}')", first=events // 2)
                return lambda: timed(lambda: session.sql(text).fetchall())

            for what, query in QUERIES.items():
                blocks = {name: asked(query, file) for name, file in files.items()}
                yield from _compared(effort, f"DuckDB, {what}", blocks)
        summed = polars.col("value").str.json_path_match("$.total").cast(polars.Float64).sum()
        lazily = {name: polars.scan_parquet(file).select(summed) for name, file in files.items()}
        yield from _compared(
            effort,
            "Polars, a sum of what values say",
            {name: lambda frame=frame: timed(frame.collect) for name, frame in lazily.items()},
        )


def _compared(effort: Effort, what: str, blocks: dict[str, Callable[[], float]]) -> Iterator[Row]:
    for block in blocks.values():
        block()
    samples = interleave(blocks, rounds=effort.rounds(9))
    for other in blocks:
        if other != "of 122,880":
            yield samples.row(what, "of 122,880", other, unit="s")
