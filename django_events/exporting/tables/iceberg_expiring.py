"""Which snapshots of an Iceberg table go, and which files in its folder none of the others names.

Files that no snapshot names may be those of a commit that isn't done yet, by a process that is held up. So they are
listed, and then a commit of no events moves the table on, which refuses each commit that was begun before: whatever is
written afterwards is not in the list.
"""

import gzip
import json
import math
from collections.abc import Collection
from datetime import timedelta
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from django_events.exporting.paths import split
from django_events.exporting.tables.expiring import expired, moment_of, not_named
from django_events.exporting.tables.folders import (
    FolderByFsspec,
    FolderInStore,
    LocalFolder,
    Refusing,
    StoredFile,
    TableFolder,
    files_of_table,
)
from django_events.exporting.tables.table import ERASED, NEXT

KEEPS_FILES = "gc.enabled"  # a property of the table: if false, as files of it are another table's too, none may go
METADATA, OF_METADATA = "metadata/", (".avro", ".metadata.json")
ROWS, OF_ROWS = "data/", (".parquet", ".orc", ".avro")


def going(table: Table, *, now: float, age: timedelta) -> list[int]:
    """The snapshots that go.

    None that is the newest of a branch, or has a tag. Those that were never the table's newest, like staged ones, go
    by their age alone. First halves of an overwrite, which no query has seen, go.
    """
    known = table.metadata
    kept = {ref.snapshot_id for ref in known.refs.values()} | {known.current_snapshot_id}
    times = {one.snapshot_id: one.timestamp_ms / 1000 for one in known.snapshots}
    history = {entry.snapshot_id: entry.timestamp_ms / 1000 for entry in known.snapshot_log}
    halves = _halves(table)
    too_old = [
        one for one, at in times.items() if one not in history and one not in halves and at <= moment_of(now, age)
    ]
    former = expired([(one, at) for one, at in history.items() if one in times and one not in halves], now=now, age=age)
    return [one for one in (*former, *halves, *too_old) if one not in kept]


def _halves(table: Table) -> set[int]:
    """First halves of overwrites: between two snapshots that were the newest, and never so themselves.

    Some catalogues forget the beginning of that history, so it has to have the snapshot before, too. An overwrite
    begins by taking files out; what was added on a branch, and came to the main one, is whole. Other catalogues have
    them in that history: both halves of an overwrite of ours say the same mark.
    """
    by_id = {one.snapshot_id: one for one in table.metadata.snapshots}
    logged = {entry.snapshot_id for entry in table.metadata.snapshot_log}
    found: set[int] = set()
    for one in table.metadata.snapshots:
        parent = by_id.get(one.parent_snapshot_id or -1)
        if parent is not None and _takes_out(parent) and (said := _mark_of(parent)) and said == _mark_of(one):
            found.add(parent.snapshot_id)
        if one.snapshot_id not in logged:
            continue
        between: list[Snapshot] = []
        before = parent
        while before is not None and before.snapshot_id not in logged:
            between.append(before)
            before = by_id.get(before.parent_snapshot_id or -1)
        if before is not None and between and _takes_out(between[-1]):
            found.update(half.snapshot_id for half in between)
    return found


def _takes_out(snapshot: Snapshot) -> bool:
    return snapshot.summary is not None and snapshot.summary.operation in (Operation.DELETE, Operation.OVERWRITE)


def _mark_of(snapshot: Snapshot) -> tuple[str, ...]:
    known = snapshot.summary.additional_properties if snapshot.summary else {}
    return (known[NEXT], known.get(ERASED, "")) if NEXT in known else ()


class IcebergFiles:
    """The files in the folder of a table. What was read of them is kept, as they never change."""

    def __init__(self) -> None:
        self._named_by: dict[str, list[str]] = {}  # files of rows, by manifest
        self._examined: set[str] = set()  # files of metadata that nothing names, and that say they are of this table

    def written(self, table: Table, folder: TableFolder, *, before: float) -> list[StoredFile]:
        """Files that may go if none names them, or Shared if another table has its files there too."""
        there = files_of_table(folder)
        unnamed = not_named((file for file in there if _is_metadata(file)), _named_by_metadata(table))
        self._examined &= {file.path for file in unnamed}
        for file in unnamed:
            if file.name.endswith(".metadata.json") and file.path not in self._examined:
                if (other := _table_in(folder, file)) not in (None, str(table.metadata.table_uuid)):
                    raise Shared(f"{table.location()} has files of another table, {other}")
                self._examined.add(file.path)
        candidates = [file for file in there if _is_metadata(file) or _is_of_rows(file)]
        if before < math.inf and any(file.modified is None for file in candidates):
            raise Refusing("have no time by their store, and none was removed. With --expire 0 they may go")
        return [file for file in candidates if file.is_before(before)]

    def names(self, table: Table, *, without: Collection[int] = ()) -> set[str]:
        """The addresses of all files that a table names, but for those that only these snapshots name."""
        manifests: dict[str, ManifestFile] = {}
        names = _named_by_metadata(table)
        for snapshot in table.snapshots():
            if snapshot.snapshot_id not in without:
                names.add(snapshot.manifest_list)
                manifests |= {one.manifest_path: one for one in snapshot.manifests(table.io)}
        self._named_by = {
            path: self._named_by[path] if path in self._named_by else _rows_in(manifest, table.io)
            for path, manifest in manifests.items()
        }
        return names.union(manifests, *self._named_by.values())


class Shared(Exception):
    """Another table has its files in the same folder, as after one was renamed, so none may go."""


def keeps_files(table: Table) -> bool:
    """Whether nothing may be removed, by the table's properties."""
    return table.properties.get(KEEPS_FILES, "").strip().lower() == "false"


def folder_of(table: Table) -> TableFolder | None:
    """Where a table lies; None if that can't be listed."""
    io, (scheme, machine, path) = table.io, split(table.location())
    if scheme in ("", "file"):
        return LocalFolder(path)
    if isinstance(io, PyArrowFileIO):
        _, _, prefix = io.parse_location(table.location(), io.properties)
        return FolderInStore(io.fs_by_scheme(scheme, machine), prefix)
    if isinstance(io, FsspecFileIO):
        store = io.get_fs(scheme, machine)
        return FolderByFsspec(store, store._strip_protocol(table.location()))
    return None


def is_worth_a_commit(table: Table, snapshots: list[int], files: list[StoredFile]) -> bool:
    """Whether more would go than the next run would find of that commit itself."""
    lists = [one.manifest_list for one in table.snapshots() if one.snapshot_id in snapshots]
    return len(snapshots) > 1 or bool(not_named(files, lists))


def _named_by_metadata(table: Table) -> set[str]:
    known = table.metadata
    statistics = (one.statistics_path for one in (*known.statistics, *known.partition_statistics))
    return {table.metadata_location, *(entry.metadata_file for entry in known.metadata_log), *statistics}


def _rows_in(manifest: ManifestFile, io: FileIO) -> list[str]:
    return [entry.data_file.file_path for entry in manifest.fetch_manifest_entry(io)]


def _is_metadata(file: StoredFile) -> bool:
    return file.path.endswith(OF_METADATA) and file.path == f"{METADATA}{file.name}"


def _is_of_rows(file: StoredFile) -> bool:
    return file.path.endswith(OF_ROWS) and file.path.startswith(ROWS)


def _table_in(folder: TableFolder, file: StoredFile) -> str | None:
    """The table that a file of metadata is of; None if it isn't whole, or isn't there any more."""
    try:
        text = folder.read(file.path)
        known: Any = json.loads(gzip.decompress(text) if file.name.endswith(".gz.metadata.json") else text)
    except (FileNotFoundError, ValueError, EOFError, gzip.BadGzipFile):
        return None
    except OSError as error:
        raise Refusing.saying("can't be read, and none was removed", error) from error
    return known.get("table-uuid") if isinstance(known, dict) else None
