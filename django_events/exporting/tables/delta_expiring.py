"""Which commits in the log of a Delta table go, and which files in its folder no other version names.

A version can be read as long as the log has a checkpoint at or before it and all commits since. So commits go that are
behind a checkpoint; the version that was the newest so long ago stays, with all that came after it. What these name are
the files of the newest one, and those that commits since have taken out.

A file that no commit on record has taken out may be of a commit that isn't done yet, by a process that is held up. So
files are listed, and if such ones are among them, a commit changes the table's properties: by Delta's rules each
commit that was begun before conflicts with it. Whatever is written afterwards is not in the list.
"""

import json
import re
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from itertools import takewhile
from typing import Any
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem

from django_events.exporting.paths import split
from django_events.exporting.tables.folders import (
    REQUESTS,
    FolderInStore,
    LocalFolder,
    StoredFile,
    TableFolder,
)

LOG = "_delta_log"
COMMIT = re.compile(rf"{LOG}/(\d{{20}})\.json")
CHECKPOINT = re.compile(rf"{LOG}/(\d{{20}})\.checkpoint\.parquet")
# Commits, checkpoints in one or several parts, sums, and merged commits, by the last version that they are of.
OF_VERSION = re.compile(rf"{LOG}/(?:\d{{20}}\.)?(\d{{20}})\.(?:json|crc|checkpoint\..+|compacted\.json)")
NEWEST_CHECKPOINT = f"{LOG}/_last_checkpoint"
OF_ROWS = re.compile(r"part-.*\.parquet")  # as delta-rs and Spark call them; others' files may lie in the folder too
# What a process that was killed has left of a file, on a disk: no version can name it.
STAGED = re.compile(r"(.+)#\d+")


class DeltaLog:
    """What is in the log of a table, and which of it goes."""

    def __init__(self, files: list[StoredFile], folder: TableFolder, *, newest: int, before: float) -> None:
        self._files, self._folder, self._newest = files, folder, newest
        self.commits = {int(match[1]): file for file in files if (match := COMMIT.fullmatch(file.path))}
        first = newest
        while first - 1 in self.commits:
            first -= 1
        # One below a gap counts for nothing: a process that was held up for so long may have made it too late.
        stretch = [one for one in range(first, newest + 1) if one in self.commits]
        # A clock may have been wrong: a version is old only if all before it are.
        old = list(takewhile(lambda one: self.commits[one].is_before(before), stretch))
        self.oldest = old[-1] if old else first  # version that stays

    @cached_property
    def needs_checkpoint(self) -> bool:
        """Whether all before the newest version goes, which has no checkpoint."""
        return self.oldest == self._newest and self._checkpoint != self._newest

    @cached_property
    def going(self) -> list[StoredFile]:
        """Files of the log that go, the oldest first."""
        base = self._newest if self.needs_checkpoint else self._checkpoint
        found = [(int(match[1]), file) for file in self._files if (match := OF_VERSION.fullmatch(file.path))]
        return [file for version, file in sorted(found) if version < base]

    @property
    def versions_going(self) -> int:
        return commits_among(self.going)

    @property
    def is_worth_a_commit(self) -> bool:
        """Whether more would go than the next run would find of that commit itself."""
        return self.versions_going > 1

    @cached_property
    def _checkpoint(self) -> int:
        """The newest checkpoint that all versions that stay can be read from; -1 if there is none."""
        try:
            pointed: Any = json.loads(self._folder.read(NEWEST_CHECKPOINT))
            last = min(int(pointed["version"]), self.oldest)
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return -1
        found = (int(match[1]) for file in self._files if (match := CHECKPOINT.fullmatch(file.path)))
        return max((version for version in found if version <= last), default=-1)


class DeltaFiles:
    """The files of rows that a table names. What commits have taken out is kept, as they never change."""

    def __init__(self) -> None:
        self._taken_out: dict[int, list[str]] = {}

    def names(self, table: DeltaTable, folder: TableFolder, log: DeltaLog) -> set[str]:
        """The addresses of those that it names in the versions that stay."""
        since = range(log.oldest + 1, table.version() + 1)
        self._taken_out = {version: files for version, files in self._taken_out.items() if version in log.commits}
        return self._by(since, folder).union(table.file_uris())

    def former(self, folder: TableFolder, log: DeltaLog) -> set[str]:
        """Those that were taken out before: of a commit that isn't done yet, none of its files is one of them."""
        return self._by([version for version in log.commits if version <= log.oldest], folder)

    def _by(self, versions: Iterable[int], folder: TableFolder) -> set[str]:
        """What these commits have taken out."""
        unread = [version for version in versions if version not in self._taken_out]
        with ThreadPoolExecutor(REQUESTS) as pool:
            self._taken_out.update(zip(unread, pool.map(partial(_taken_out_by, folder), unread), strict=True))
        return set().union(*(self._taken_out[version] for version in versions))


def folder_of(place: str) -> TableFolder:
    """Where a table lies."""
    scheme, _, path = split(place)
    if scheme in ("", "file"):
        return LocalFolder(path)
    return FolderInStore(PyFileSystem(DeltaStorageHandler(place)), "")


def commits_among(files: Iterable[StoredFile]) -> int:
    """How many of these make a version."""
    return sum(1 for file in files if COMMIT.fullmatch(file.path))


def written_before(
    files: list[StoredFile], folder: TableFolder, moment: float, *, partitions: Collection[str]
) -> list[StoredFile]:
    """Files that may go if none names them: of rows, and what is left of those and of the log's."""
    is_staged = STAGED.fullmatch if isinstance(folder, LocalFolder) else lambda path: None
    found = []
    for file in files:
        staged = is_staged(file.path)
        path = staged[1] if staged else file.path
        if (_is_of_rows(path, partitions) or (staged and path.startswith(f"{LOG}/"))) and file.is_before(moment):
            found.append(file)
    return found


def _is_of_rows(path: str, partitions: Collection[str]) -> bool:
    *folders, name = path.split("/")
    columns = (unquote(one.partition("=")[0]) if "=" in one else None for one in folders)
    return OF_ROWS.fullmatch(name) is not None and all(column in partitions for column in columns)


def _taken_out_by(folder: TableFolder, version: int) -> list[str]:
    lines = folder.read(f"{LOG}/{version:020d}.json").splitlines()
    actions = (json.loads(line) for line in lines if line.strip())
    return [unquote(action["remove"]["path"]) for action in actions if "remove" in action]
