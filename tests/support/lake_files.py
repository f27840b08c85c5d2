"""Which files a table has in its newest version, by the metadata that lie there and none of the libraries that write.

So a test that reads a table back by these sees what is there for any reader of the format: Delta by the JSON and the
checkpoint of its log, Iceberg by the JSON of a version, its list of manifests and the manifests.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import fastavro
import polars

DELETED = 2  # the status of an entry in a manifest
OF_DATA = 0  # the content of a manifest, and of a file


@dataclass(frozen=True, order=True)
class LakeFile:
    path: str
    day: date | None


def delta_files(table: Path) -> list[LakeFile]:
    """Those of a Delta table in a folder."""
    files: dict[str, LakeFile] = {}
    for kind, action in _actions(table / "_delta_log"):
        assert action.get("deletionVector") is None, "rows of a file are deleted, which readers of files don't see"
        name = action["path"]
        if kind == "remove":
            files.pop(name, None)
            continue
        day = dict(action["partitionValues"]).get("day")
        files[name] = LakeFile(str(table / unquote(name)), date.fromisoformat(day) if day else None)
    return sorted(files.values(), key=lambda file: file.path)


def _actions(log: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """What the log says of files, from its newest checkpoint on, in the order of the versions."""
    assert not list(log.glob("*.checkpoint.*.parquet")), "a checkpoint of several files, or of the second version"
    begins = -1
    if checkpoints := sorted(log.glob("*.checkpoint.parquet")):
        begins = int(checkpoints[-1].name.split(".")[0])
        yield from (("add", add) for add in polars.read_parquet(checkpoints[-1])["add"].to_list() if add is not None)
    versions = sorted((int(path.stem), path) for path in log.glob("[0-9]*.json") if path.stem.isdigit())
    later = [(version, path) for version, path in versions if version > begins]
    assert [version for version, _ in later] == list(range(begins + 1, begins + 1 + len(later))), "a commit is missing"
    for _, path in later:
        for line in path.read_text().splitlines():
            for kind, action in json.loads(line).items():
                if kind in ("add", "remove"):
                    yield kind, action


def iceberg_files(folder: Path, topic: str) -> list[LakeFile]:
    """Those of an Iceberg table whose catalogue is SQLite in the folder."""
    return files_of_metadata(iceberg_metadata(folder, topic))


def iceberg_metadata(folder: Path, topic: str, namespace: str = "events") -> str:
    """Where the newest version of an Iceberg table is, by the catalogue in the folder."""
    with closing(sqlite3.connect(folder / "catalog.db")) as catalog:
        [[location]] = catalog.execute(
            "SELECT metadata_location FROM iceberg_tables WHERE table_namespace = ? AND table_name = ?",
            (namespace, topic),
        )
    return str(location)


def files_of_metadata(location: str) -> list[LakeFile]:
    """Those of an Iceberg table whose metadata are at an address of this machine."""
    metadata = json.loads(_local(location).read_text())
    current = metadata.get("current-snapshot-id")
    if current in (None, -1):
        return []
    [snapshot] = [one for one in metadata["snapshots"] if one["snapshot-id"] == current]
    found = []
    for manifest in _records(snapshot["manifest-list"]):
        assert manifest["content"] == OF_DATA, "rows of a file are deleted, which readers of files don't see"
        for entry in _records(manifest["manifest_path"]):
            file = entry["data_file"]
            if entry["status"] != DELETED:
                assert file["content"] == OF_DATA
                found.append(LakeFile(str(_local(file["file_path"])), file["partition"].get("day")))
    return sorted(found, key=lambda file: file.path)


def _records(address: str) -> list[Any]:
    with _local(address).open("rb") as opened:
        return list(fastavro.reader(opened))


def _local(address: str) -> Path:
    assert "://" not in address.removeprefix("file://"), f"{address} is on another machine"
    return Path(address.removeprefix("file://"))
