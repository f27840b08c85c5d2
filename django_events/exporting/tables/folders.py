"""The files in the folder of a table, on a disk or in an object store: what is there, and how some of it is removed.

Symbolic links are neither followed nor removed: what is behind them may be of another table.
"""

import math
import os
import re
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

from pyarrow.fs import FileSelector, FileSystem

REQUESTS = 16  # at once, to an object store
PORTION = 256  # files that are removed between two looks whether to stop
WHEN = ("last_modified", "LastModified", "mtime", "updated", "created")  # what stores of fsspec call it
TABLE_IN_IT = re.compile(r"(.+/)(?:metadata/[^/]+\.metadata\.json|_delta_log/[^/]+)")


class StoredFile(NamedTuple):
    """A file: its path in the folder, its bytes, and when it was written, by the clock of what keeps it.

    A store may not say when: that is never long enough ago.
    """

    path: str
    size: int
    modified: float | None

    def is_before(self, moment: float) -> bool:
        return moment == math.inf or (self.modified is not None and self.modified < moment)

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
            if found.is_file and not _is_folder(found.path, found.size):
                modified = found.mtime_ns / 1e9 if found.mtime_ns else None
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


class FolderByFsspec:
    """What lies below a prefix of a store that fsspec knows, like s3fs and adlfs. PyArrow would not say when."""

    def __init__(self, store: Any, prefix: str) -> None:
        self._store, self._prefix = store, f"{prefix.rstrip('/')}/"

    def files(self) -> Iterator[StoredFile]:
        self._store.invalidate_cache()  # or it answers what it has listed before
        with _refused():
            found = self._store.find(self._prefix, detail=True)
        for path, known in found.items():
            size = known.get("size") or 0
            if known.get("type") != "directory" and not _is_folder(path, size):
                yield StoredFile(path.lstrip("/").removeprefix(self._prefix.lstrip("/")), size, _moment(known))

    def read(self, path: str) -> bytes:
        with _refused():
            return bytes(self._store.cat_file(f"{self._prefix}{path}"))

    def remove(self, paths: list[str]) -> None:
        for path in paths:
            with suppress(FileNotFoundError), _refused():
                self._store.rm_file(f"{self._prefix}{path}")


@contextmanager
def _refused() -> Iterator[None]:
    """What a store of fsspec refuses as OSError: some, like adlfs, let errors of their client through, or say it by a
    RuntimeError. Those have no class in common, so whatever a store raises is what it refuses.
    """
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error


def _moment(known: dict[str, Any]) -> float | None:
    """When a file was written, as a store of fsspec says it."""
    said = next((known[name] for name in WHEN if known.get(name)), None)
    if isinstance(said, str):
        try:
            said = datetime.fromisoformat(said)
        except ValueError:
            return None
    return said.timestamp() if isinstance(said, datetime) else said if isinstance(said, float) else None


def _is_folder(path: str, size: int) -> bool:
    """Whether an object only stands for a folder, as consoles of stores make them."""
    return path.endswith("/") or (not size and not path.rpartition("/")[2].startswith("part-"))


class Refusing(Exception):
    """What keeps the files doesn't list, read or remove them."""

    @classmethod
    def saying(cls, what: str, error: OSError) -> Self:
        """With what the store says, in one line."""
        return cls(f"{what}: {next(iter(str(error).splitlines()), type(error).__name__)}")


def files_of_table(folder: TableFolder) -> list[StoredFile]:
    """The files in the folder of a table, but for those of other tables that lie in it; or Refusing."""
    try:
        found = list(folder.files())
    except OSError as error:  # also that of pyarrow and delta-rs, for whatever a store answers
        raise Refusing.saying("can't be listed, and none was removed", error) from error
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
            raise Refusing.saying("can't be removed, or not all of them", error) from error
        yield from some


def _refuse(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error
