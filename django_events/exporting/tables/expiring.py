"""Which former versions of a table stay, and what removing the others, and files that none names, has come to.

The time that a commit of Iceberg takes grows with the number of snapshots. So those of the chosen age aren't all kept:
the newest ones stay, and of those before them the last of each slot of time. A file that was taken out of the table is
still named by the last snapshot of the slot before, so it stays for nearly that age, however many commits there are.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import unquote

from django_events.exporting.tables.folders import Refusing, StoredFile, TableFolder, remove_files

NEWEST = 20  # snapshots that stay, if they aren't too old
SLOTS = 28  # of the age, in which one snapshot stays: six hours, of seven days
THINNED_AT_ONCE = 20  # snapshots that go in one commit, between two times of tidying: more than stay in between


@dataclass
class RemovedVersions:
    """What was removed, and why what could not be."""

    versions: int = 0
    files: int = 0
    bytes: int = 0
    left: dict[str, str] = field(default_factory=dict)  # by the place of a table
    is_all: bool = False  # whether of one table nothing is left but its newest version

    @contextmanager
    def refusing(self, place: str) -> Iterator[None]:
        """What keeps the files may refuse to list or remove them in the block: that is said, and is no error."""
        try:
            yield
        except Refusing as error:
            self.left[place] = f"The files of {place} {error}"

    def add(self, other: "RemovedVersions") -> None:
        self.versions += other.versions
        self.files += other.files
        self.bytes += other.bytes
        self.left |= other.left


def moment_of(now: float, age: timedelta) -> float:
    """Before which what is old was written. If all is, no times are compared: another clock may be ahead of this."""
    return now - age.total_seconds() if age else math.inf


def expired(versions: Iterable[tuple[int, float]], *, now: float, age: timedelta) -> list[int]:
    """Of versions and their times, those which go.

    The newest one stays, the one that was the newest that long ago, and of those since then the newest ones, and the
    last of each slot.
    """
    known = sorted(versions, key=lambda version: version[1])
    oldest = max((index for index, (_, at) in enumerate(known) if at <= moment_of(now, age)), default=0)
    slot = max(age.total_seconds() / SLOTS, 0.001)
    going = [version for version, _ in known[:oldest]]
    for (version, at), (_, next_at) in zip(known[oldest + 1 : -NEWEST], known[oldest + 2 :], strict=False):
        if at // slot == next_at // slot:
            going.append(version)
    return going


def not_named(files: Iterable[StoredFile], named: Collection[str]) -> list[StoredFile]:
    """Files whose names, which are unique, none of these addresses has, however it spells the folder."""
    names = {name for address in named for name in _spellings(address)}
    return [file for file in files if names.isdisjoint(_spellings(file.path))]


def remove(
    done: RemovedVersions, folder: TableFolder, files: list[StoredFile], *, stopped: Callable[[], bool]
) -> list[StoredFile]:
    """Remove files, and count those that are gone, which are returned; or Refusing."""
    gone = []
    for file in remove_files(folder, files, stopped=stopped):
        gone.append(file)
        done.files += 1
        done.bytes += file.size
    return gone


def _spellings(address: str) -> set[str]:
    name = address.rpartition("/")[2]
    return {name, unquote(name)}
