"""Tables of a lakehouse, and how they are read back: by DuckDB, from the files that the newest version names.

Which files these are is read in the metadata, without the libraries that have written them.
"""

from datetime import UTC
from io import StringIO
from pathlib import Path
from typing import Any

import duckdb
from django.core.management import call_command
from pyiceberg.catalog import Catalog

from tests.support.lake_files import delta_files, files_of_metadata, iceberg_files

COLUMNS = ('"offset"', "partition", "number", "timestamp", "type", "key", "value", "body", "metadata", "published_at")


def run(*arguments: Any, format: str) -> str:
    out = StringIO()
    call_command("export_events", *map(str, arguments), "--format", format, stdout=out, stderr=StringIO())
    return out.getvalue()


def files_of(folder: Path, format: str, topic: str = "things") -> list[str]:
    """The files of the newest version."""
    found = delta_files(folder / topic) if format == "delta" else iceberg_files(folder, topic)
    return [file.path for file in found]


def files_in(catalog: Catalog, namespace: str, topic: str = "things") -> list[str]:
    """The files of the newest version, of a table that a catalogue of Iceberg's knows."""
    return [file.path for file in files_of_metadata(catalog.load_table((namespace, topic)).metadata_location)]


def read_back(folder: Path, format: str, topic: str = "things") -> list[dict[str, Any]]:
    """What a reader of the table sees, in order, with the column that names the topic."""
    return read_files(files_of(folder, format, topic), topic)


def read_files(files: list[str], topic: str = "things") -> list[dict[str, Any]]:
    """What is in these, in order."""
    if not files:
        return []
    with duckdb.connect() as reader:
        reader.execute("SET TimeZone = 'UTC'")
        found = reader.sql(
            f"SELECT {', '.join(COLUMNS)} FROM read_parquet($files, hive_partitioning = false)", params={"files": files}
        )
        rows = [{"topic": topic, **row} for row in found.to_arrow_table().to_pylist()]
    for row in rows:
        for name in ("timestamp", "published_at"):
            row[name] = row[name].astimezone(UTC)
    return sorted(rows, key=lambda row: row["offset"])
