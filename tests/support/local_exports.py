"""Files that this process writes without Spark, and how they are read back by DuckDB, which had no part in them."""

from datetime import UTC
from io import StringIO
from pathlib import Path
from typing import Any

import duckdb
import pytest
from django.core.management import call_command
from django.db import connection

from django_events.management.commands import export_events
from django_events.reading.rows import RangeReader
from tests.spark.test_export import left_over, url
from tests.support.proxies import Proxy

__all__ = ["left_over", "read_back", "run", "through_what_goes_away"]

READ = {
    "parquet": "read_parquet($files, hive_partitioning = true, hive_types_autocast = false)",
    "json": (
        "(SELECT * REPLACE (from_base64(body) AS body) FROM read_json($files, format = 'newline_delimited', "
        "hive_partitioning = true, hive_types_autocast = false, columns = {partition: 'INTEGER', "
        "\"offset\": 'BIGINT', number: 'BIGINT', timestamp: 'TIMESTAMPTZ', type: 'VARCHAR', key: 'VARCHAR', "
        "value: 'VARCHAR', body: 'VARCHAR', metadata: 'VARCHAR', published_at: 'TIMESTAMPTZ'}))"
    ),
}
COLUMNS = ("topic", "partition", '"offset"', "number", "timestamp", "type", "key", "value", "body", "metadata")


def run(*arguments: Any, command: str = "export_events") -> str:
    out, err = StringIO(), StringIO()
    call_command(command, *map(str, arguments), engine="local", stdout=out, stderr=err)
    return out.getvalue()


def through_what_goes_away(patched: pytest.MonkeyPatch) -> None:
    """Have a command reach the database by what ends for good when the first events are read."""
    proxy = Proxy(url(connection.get_connection_params()))
    read_by = RangeReader.read_by

    def read_nothing(*arguments: Any) -> Any:
        proxy.close()
        yield from read_by(*arguments)

    patched.setattr(export_events, "dsn_of", lambda using: proxy.url)
    patched.setattr(RangeReader, "read_by", read_nothing)


def read_back(folder: Path, format: str = "parquet") -> list[dict[str, Any]]:
    """What a reader of the files sees, in order."""
    found = [str(path) for path in folder.glob(f"topic=*/**/part-*.{format}")]
    if not found:
        return []
    with duckdb.connect() as reader:
        reader.execute("SET TimeZone = 'UTC'")
        files = reader.sql(f"SELECT {', '.join(COLUMNS)}, published_at FROM {READ[format]}", params={"files": found})
        rows = files.to_arrow_table().to_pylist()
    for row in rows:
        row["timestamp"] = row["timestamp"].astimezone(UTC)
        row["published_at"] = row["published_at"].astimezone(UTC)
    return sorted(rows, key=lambda row: (row["topic"], row["offset"]))
