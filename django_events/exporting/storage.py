"""The few calls on a file system that an export rests on, and how a disk answers them.

    storage = OfDisk()
    storage.show("/data/events/_django_events/attempts/1f…", "/data/events/batch=000000000007")

`add` is what exactly once rests on: it writes a record under a name, or changes nothing because that name is taken. On
a disk with POSIX semantics a folder gets its name in one step, even if others try at the same moment. For other file
systems Spark has the calls: see `spark.exporting.storage`.
"""

import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from errno import EACCES, EEXIST, EINVAL, ENOTEMPTY, ENOTSUP
from pathlib import Path
from typing import Protocol

from django_events.exceptions import Refused
from django_events.exporting.paths import split

SUCCESS = "/_SUCCESS"  # for readers who wait until all files of a folder are there
OF_TASKS = ("_temporary", "__")  # what Spark's committers call the folders that its tasks write into


class Storage(Protocol):
    """What an export needs of a file system. Paths are as Spark has them."""

    def names(self, folder: str) -> list[str]:
        """The names in a folder; none if it doesn't exist."""

    def read(self, file: str) -> str:
        """The text of a file."""

    def add(self, file: str, text: str, draft: str) -> bool:
        """Write a file in a folder of its own, in one step; `draft` is a place for what is not complete.

        False, and nothing is changed, if the folder is there. Once it is there, a power failure doesn't take it away.
        """

    def keep(self, folder: str) -> None:
        """Wait until a power failure can't take away what is in a folder, as far as the file system has a way to."""

    def show(self, source: str, target: str) -> bool:
        """Give a folder the name by which readers find it. False if that is taken, or the folder is gone."""

    def drop(self, folder: str, aside: str) -> None:
        """Remove a folder that another process may still look at: it is whole, or under the other name."""

    def remove(self, folder: str) -> None:
        """Remove a folder as far as it can be; what another process still writes into it stays."""


class SharedDisk(Storage, Protocol):
    """Storage that tasks write files into by themselves: its folders are the same on all of their machines."""

    def make(self, folder: str) -> None:
        """Make a folder and those above it."""

    def gather(self, files: Sequence[str], source: str, target: str) -> None:
        """Move these files from one folder into another, which is made; Refused if one is not there.

        Of a file's name the first part, its task's own folder, is left out. SUCCESS is added.
        """


class OfDisk:
    """Storage on a disk that this process sees."""

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(path.name for path in _here(folder).iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return []

    def read(self, file: str) -> str:
        return _here(file).read_text()

    def add(self, file: str, text: str, draft: str) -> bool:
        written, place = _here(draft), _here(file)
        make_folder(written)
        try:
            with (written / place.name).open("w") as out:
                out.write(text)
                out.flush()
                os.fsync(out.fileno())
        except FileNotFoundError:  # a later run has cleared what this one was writing
            return False
        _keep(written)
        if self._move(written, place.parent):
            return True
        self.remove(draft)
        return False

    def keep(self, folder: str) -> None:
        for place, _, names in os.walk(_here(folder)):
            for name in names:
                _keep(Path(place, name))
            _keep(Path(place))
        _keep(_here(folder).parent)

    def show(self, source: str, target: str) -> bool:
        return self._move(_here(source), _here(target))

    def drop(self, folder: str, aside: str) -> None:
        self._move(_here(folder), _here(aside))
        self.remove(aside)

    def remove(self, folder: str) -> None:
        shutil.rmtree(_here(folder), ignore_errors=True)

    def make(self, folder: str) -> None:
        make_folder(_here(folder))

    def gather(self, files: Sequence[str], source: str, target: str) -> None:
        place = _here(target)
        place.mkdir()
        for file in files:
            folder, _, name = file.partition("/")[2].rpartition("/")
            try:
                (_here(source) / file).rename(make_below(place, folder) / name)
            except FileNotFoundError:
                raise not_there(f"{source}/{file}") from None
        _here(target + SUCCESS).touch()

    def _move(self, source: Path, target: Path) -> bool:
        make_folder(target.parent)
        try:
            # The system call refuses a folder that has something in it: nothing is looked up before, nor copied after.
            os.rename(source, target)  # noqa: PTH104
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno in (EEXIST, ENOTEMPTY):
                return False
            raise
        _keep(target.parent)
        return True


def keep_files(folder: str, files: Iterable[str]) -> None:
    """Wait until a power failure can't take away these files, which are somewhere below a folder."""
    paths = [Path(folder, file) for file in files]
    for path in [*paths, *sorted({path.parent for path in paths}), Path(folder)]:
        _keep(path)


def files_below(folder: str) -> Iterator[Path]:
    """The files in a folder and below it, in order, as readers find them: by links, too; Refused if one leads nowhere.

    A folder that is not there has none.
    """
    return _files_below(_here(folder), ())


def data_files(folder: str) -> Iterator[Path]:
    """Those of them that an export has written."""
    return (file for file in files_below(folder) if file.name.startswith("part-"))


def _files_below(place: Path, above: tuple[Path, ...]) -> Iterator[Path]:
    if place.is_symlink() and not place.exists():
        raise Refused(f"{place} is a link to what is not there. Is a disk not mounted?")
    if not place.is_dir():
        yield from [place] if above else []
    elif (here := place.resolve()) not in above:  # a link may lead back
        with suppress(FileNotFoundError):  # it was removed meanwhile
            for found in sorted(place.iterdir()):
                yield from _files_below(found, (*above, here))


def not_there(path: str) -> Refused:
    """The error for what was written, and is not there any more."""
    return Refused(
        f"{path} is not there, though it was written. Expected a folder that this machine, and all of Spark's, see, "
        "and that nothing else clears. Nothing was added."
    )


def make_below(place: Path, folder: str) -> Path:
    """Make a folder below a place; FileNotFoundError if another run has cleared the place: it is not made again."""
    for name in folder.split("/") if folder else ():
        place = place / name
        place.mkdir(exist_ok=True)
    return place


def _here(path: str) -> Path:
    return Path(split(path)[2])


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, so that a power failure doesn't take them away.

    Refused in a file system that takes none, like that of /proc, and says of each that it is not there.
    """
    if not folder.is_dir():
        make_folder(folder.parent)
        try:
            folder.mkdir(exist_ok=True)
        except FileNotFoundError as error:
            if not folder.parent.is_dir():  # another run has cleared it meanwhile
                raise
            raise Refused(f"{folder} can't be made: {folder.parent} takes no folders. Say another folder.") from error
        _keep(folder.parent)


def _keep(path: Path) -> None:
    """Wait until the disk has a file, or what a folder says is in it."""
    try:
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
    except FileNotFoundError:  # another run clears it
        return
    except OSError as error:
        # Some file systems have no such call for folders. What this user may not read, another one wrote elsewhere.
        if error.errno not in (EACCES, EINVAL, ENOTSUP):
            raise
