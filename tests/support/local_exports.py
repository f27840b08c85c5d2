"""Files that this process writes without Spark, and how they are read back by DuckDB, which had no part in them."""

from datetime import UTC
from io import StringIO
from pathlib import Path
from typing import Any

import duckdb
from django.core.management import call_command

COLUMNS = ("topic", "partition", '"offset"', "number", "timestamp", "type", "key", "value", "body", "metadata")


def run(*arguments: Any, command: str = "export_events") -> str:
    out, err = StringIO(), StringIO()
    call_command(command, *map(str, arguments), engine="local", stdout=out, stderr=err)
    return out.getvalue()


def read_back(folder: Path) -> list[dict[str, Any]]:
    """What a reader of the files sees, in order."""
    found = [str(path) for path in folder.glob("topic=*/**/*.parquet")]
    if not found:
        return []
    with duckdb.connect() as reader:
        reader.execute("SET TimeZone = 'UTC'")
        files = reader.sql(
            f"SELECT {', '.join(COLUMNS)}, published_at "
            "FROM read_parquet($files, hive_partitioning = true, hive_types_autocast = false)",
            params={"files": found},
        )
        rows = files.to_arrow_table().to_pylist()
    for row in rows:
        row["timestamp"] = row["timestamp"].astimezone(UTC)
        row["published_at"] = row["published_at"].astimezone(UTC)
    return sorted(rows, key=lambda row: (row["topic"], row["offset"]))


def left_over(folder: Path) -> list[Path]:
    """What attempts that don't count have left."""
    return [path for name in ("attempts", "removed") for path in (folder / "_django_events" / name).glob("*")]
