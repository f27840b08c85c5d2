"""Tables of a lakehouse, and how they are read back: by DuckDB, from the files that the newest version names.

Which files these are is read in the metadata, without the libraries that have written them.
"""

from collections.abc import Sequence
from datetime import UTC
from io import StringIO
from pathlib import Path
from typing import Any

import duckdb
import pytest
from django.core.management import call_command
from pyiceberg.catalog import Catalog

from tests.support.lake_files import delta_files, files_of_metadata, iceberg_files, iceberg_metadata

COLUMNS = ('"offset"', "partition", "number", "timestamp", "type", "key", "value", "body", "metadata", "published_at")
TYPED = (*(name for name in COLUMNS if name != "value"), "data", "rescued")


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


def with_extension(session: duckdb.DuckDBPyConnection, name: str) -> None:
    """Have DuckDB read what it has an extension for, or skip."""
    try:
        session.load_extension(name)
    except duckdb.Error:
        try:
            session.install_extension(name)
            session.load_extension(name)
        except duckdb.Error as error:
            said = str(error).splitlines()[0]
            pytest.skip(f"DuckDB's extension {name} is not installed, and can't be downloaded: {said}")


def read_back(
    folder: Path, format: str, topic: str = "things", *, columns: Sequence[str] = COLUMNS
) -> list[dict[str, Any]]:
    """What a reader of the table sees, in order, with the column that names the topic."""
    return read_files(files_of(folder, format, topic), topic, columns=columns)


def read_files(files: list[str], topic: str = "things", *, columns: Sequence[str] = COLUMNS) -> list[dict[str, Any]]:
    """What is in these, in order. A field of typed columns that a file doesn't have yet is NULL."""
    if not files:
        return []
    source = "read_parquet($of, hive_partitioning = false, union_by_name = true)"
    with duckdb.connect() as reader:
        return _rows(reader, source, files, topic, columns)


def read_by_extension(folder: Path, format: str, topic: str = "things") -> list[dict[str, Any]]:
    """What DuckDB's extension for the format finds, which reads the metadata itself; skipped where it isn't there."""
    place = str(folder / topic) if format == "delta" else iceberg_metadata(folder, topic)
    with duckdb.connect() as reader:
        with_extension(reader, format)
        return _rows(reader, f"{format}_scan($of)", place, topic, COLUMNS)


def _rows(
    reader: duckdb.DuckDBPyConnection, source: str, of: Any, topic: str, columns: Sequence[str]
) -> list[dict[str, Any]]:
    reader.execute("SET TimeZone = 'UTC'")
    found = reader.sql(f"SELECT {', '.join(columns)} FROM {source}", params={"of": of})
    rows = [{"topic": topic, **row} for row in found.to_arrow_table().to_pylist()]
    for row in rows:
        for name in ("timestamp", "published_at"):
            row[name] = row[name].astimezone(UTC)
    return sorted(rows, key=lambda row: row["offset"])
