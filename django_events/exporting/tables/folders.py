"""The files in the folder of a table, on a disk or in an object store: what is there, and how some of it is removed.

Symbolic links are neither followed nor removed: what is behind them may be of another table.
"""

import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Protocol

from pyarrow.fs import FileSelector, FileSystem

REQUESTS = 16  # at once, to an object store
PORTION = 256  # files that are removed between two looks whether to stop
TABLE_IN_IT = re.compile(r"(.+/)(?:metadata/[^/]+\.metadata\.json|_delta_log/[^/]+)")


class StoredFile(NamedTuple):
    """A file: its path in the folder, its bytes, and when it was written, by the clock of what keeps it."""

    path: str
    size: int
    modified: float

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]


class TableFolder(Protocol):
    """Where the files of one table lie."""

    def files(self) -> Iterator[StoredFile]:
        """All files, in no order; OSError if they can't be listed."""

    def read(self, path: str) -> bytes:
        """What is in a file; FileNotFoundError if it isn't there."""

    def remove(self, paths: list[str]) -> None:
        """Remove files; OSError if one can't be. One that isn't there any more is no error."""


class LocalFolder:
    """A folder on a disk."""

    def __init__(self, root: str) -> None:
        self._root = root

    def files(self) -> Iterator[StoredFile]:
        for folder, _, names in os.walk(self._root, onerror=_refuse):
            below = Path(folder)
            for name in names:
                with suppress(FileNotFoundError):
                    known = (below / name).lstat()
                    if stat.S_ISREG(known.st_mode):
                        path = (below / name).relative_to(self._root).as_posix()
                        yield StoredFile(path, known.st_size, known.st_mtime)

    def read(self, path: str) -> bytes:
        return Path(self._root, path).read_bytes()

    def remove(self, paths: list[str]) -> None:
        refused = None
        for path in paths:
            try:
                Path(self._root, path).unlink(missing_ok=True)
            except OSError as error:
                refused = error
        if refused is not None:
            raise refused


class FolderInStore:
    """What lies below a prefix of an object store."""

    def __init__(self, store: FileSystem, prefix: str) -> None:
        self._store, self._prefix = store, prefix and f"{prefix.rstrip('/')}/"

    def files(self) -> Iterator[StoredFile]:
        for found in self._store.get_file_info(FileSelector(self._prefix, allow_not_found=True, recursive=True)):
            if found.is_file:
                modified = found.mtime_ns / 1e9 if found.mtime_ns else time.time()
                yield StoredFile(found.path.removeprefix(self._prefix), found.size, modified)

    def read(self, path: str) -> bytes:
        with self._store.open_input_stream(f"{self._prefix}{path}") as opened:
            return bytes(opened.read())

    def remove(self, paths: list[str]) -> None:
        with ThreadPoolExecutor(REQUESTS) as pool:
            list(pool.map(self._remove, paths))

    def _remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._store.delete_file(f"{self._prefix}{path}")


class Refusing(Exception):
    """What keeps the files doesn't list or remove them."""


def files_of_table(folder: TableFolder) -> list[StoredFile]:
    """The files in the folder of a table, but for those of other tables that lie in it; or Refusing."""
    try:
        found = list(folder.files())
    except OSError as error:  # also that of pyarrow and delta-rs, for whatever a store answers
        raise Refusing(f"can't be listed, and none was removed: {_first_line(error)}") from error
    others = tuple({match[1] for file in found if (match := TABLE_IN_IT.match(file.path))})
    return [file for file in found if not file.path.startswith(others)]


def remove_files(folder: TableFolder, files: list[StoredFile], *, stopped: Callable[[], bool]) -> Iterator[StoredFile]:
    """Remove files, in their order, until it is to stop; yields those that are gone, or raises Refusing."""
    for first in range(0, len(files), PORTION):
        if stopped():
            break
        some = files[first : first + PORTION]
        try:
            folder.remove([file.path for file in some])
        except OSError as error:
            raise Refusing(f"can't be removed, or not all of them: {_first_line(error)}") from error
        yield from some


def _refuse(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _first_line(error: OSError) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
