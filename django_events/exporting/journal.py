"""What counts in a folder of files, decided once, even if other writers come there late.

    _django_events/journal/000000000007/record.json   the newest version of what counts
    _django_events/attempts/000000000006-1f0c…        what a run is writing, or what was left of one
    _django_events/removed/000000000004-93ab…         what is being removed

Each run, and each step of it, adds a version under the next number. A number is given once: a process that was frozen,
or has lost its lock without knowing, finds its number taken, and has changed nothing. Files are written where no reader
looks. A version says which attempt counts, and only then its folder gets the name under which readers find it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from django_events.exceptions import Refused
from django_events.exporting.layout import described
from django_events.exporting.paths import read_as_data
from django_events.exporting.storage import OF_TASKS, Storage, not_there

FOLDER = "_django_events"  # readers of data pass over names that begin like this
LAYOUT = 2
NEWER = 3  # of versions that say one of these: a process that knows only 2 would leave it out of the next one
SAID_BY_NEWER = ("erased", "values")
KEPT = 10  # versions, for people who look what happened
HEAD = {"writer": str, "run": str, "format": str, "by": list}


class Journal:
    """The journal of a folder; Refused if what is there is no journal of this writer."""

    def __init__(self, storage: Storage, path: str, writer: str, *, run: str | None = None) -> None:
        self._storage, self._root, self._writer = storage, path, writer
        self.path = f"{path}/{FOLDER}/journal"
        self._attempts, self._removed = f"{path}/{FOLDER}/attempts", f"{path}/{FOLDER}/removed"
        self.run = run or ""
        self._number = self._newest()
        self._head: Mapping[str, Any] = {}
        if self._number:
            self._take(self._read())
        if run is not None and self._head.get("run") != run:
            raise self._replaced()
        if not self._number:
            self._refuse_foreign()

    @property
    def is_new(self) -> bool:
        return not self._number

    @property
    def format(self) -> str:
        """The format of the existing files; empty if there are none."""
        return str(self._head.get("format", ""))

    @property
    def by(self) -> tuple[str, ...]:
        """What the files lie in folders by."""
        return tuple(self._head.get("by", ()))

    @property
    def has_left_over(self) -> bool:
        """Whether the folder has leftovers of other runs' attempts."""
        return bool(self._storage.names(self._attempts) or self._storage.names(self._removed))

    @property
    def hides_some(self) -> bool:
        """Whether a run was ended when an attempt of it counted, and readers don't see it yet."""
        return bool(self._unshown())

    def refuse_other_way(self, format: str, by: Sequence[str]) -> None:
        """Refused if the existing files have another format or layout: no reader could read both together."""
        if self._head and (self._head["format"], self._head["by"]) != (format, list(by)):
            raise Refused(
                f"{self.path} tells of files {described(self._head['format'], self._head['by'])}. This run writes them "
                f"{described(format, by)}. Take another folder."
            )

    def begin(self, format: str, by: Sequence[str]) -> None:
        """Take the folder over: from now on no earlier run can add a version."""
        self.run = _name(self._number + 1)
        self._head = {"writer": self._writer, "run": self.run, "format": format, "by": list(by)}
        self._save()
        self.settle()
        self._tidy()

    def attempt(self) -> str:
        """A new folder to write into, which no other run has and no reader looks at."""
        return _name(_token(self.run))

    def place_of(self, attempt: str) -> str:
        """The path of an attempt until it counts."""
        return f"{self._attempts}/{attempt}"

    def give_up(self, attempt: str) -> None:
        """Remove an attempt that doesn't count."""
        self._storage.drop(self.place_of(attempt), f"{self._removed}/{attempt}")

    def settle(self) -> None:
        """Move what counts to where readers look: an earlier run may have ended before it did."""
        for attempt, folder in self._unshown().items():
            self._show(attempt, folder)

    def decided(self) -> dict[str, str]:
        """Attempts that count, with the folders that they become."""
        raise NotImplementedError

    def content(self) -> dict[str, Any]:
        """The content of a version, besides its writer and format."""
        raise NotImplementedError

    def take(self, record: Mapping[str, Any]) -> None:
        """Read that content back; raises any of KeyError, TypeError, ValueError and AttributeError if it can't be."""
        raise NotImplementedError

    def refuse_replaced(self) -> None:
        """Refused if another run has taken the folder over."""
        if self._newest() != self._number:
            raise self._replaced()

    def damaged(self, why: str) -> Refused:
        """The error for a version that no run can have written."""
        return Refused(
            f"{self.path} is damaged, or something else wrote it: {why}. What is in the folder can't be known. Take "
            "another folder."
        )

    def _decide(self, attempt: str) -> None:
        """Add the version by which an attempt counts, and let readers see it."""
        if attempt not in self._storage.names(self._attempts):
            self.refuse_replaced()  # a later run has cleared it
            raise not_there(self.place_of(attempt))
        folder = self.decided()[attempt]
        if self._storage.names(f"{self._root}/{folder}"):
            # A later run may have written it: then there is a version of that run by now.
            raise self._in_the_way(folder) if self._newest() == self._number else self._replaced()
        self._storage.keep(self.place_of(attempt))  # before a version says that it is there
        self._save()
        self._show(attempt, folder)

    def _unshown(self) -> dict[str, str]:
        """Attempts that count and that readers don't see yet, with the folders that they become."""
        there = set(self._storage.names(self._attempts))
        return {
            attempt: folder
            for attempt, folder in self.decided().items()
            if attempt in there and not self._is_late(attempt)
        }

    def _show(self, attempt: str, folder: str) -> None:
        shown = self._storage.show(self.place_of(attempt), f"{self._root}/{folder}")
        if not shown and not self._is_late(attempt):
            raise self._in_the_way(folder)

    def _in_the_way(self, folder: str) -> Refused:
        return Refused(f"{self._root}/{folder} is there, and no run has written it. Remove it and run this again.")

    def _is_late(self, attempt: str) -> bool:
        """Whether an attempt that counts is only what tasks have written after it was moved.

        A machine of Spark's that was frozen, or cut off, goes on with a task that another one has done meanwhile.
        """
        return all(name.startswith(OF_TASKS) for name in self._storage.names(self.place_of(attempt)))

    def _tidy(self) -> None:
        """Remove what attempts of earlier runs have left that don't count.

        Only of earlier ones: frozen in here, this run may wake up when a later one has decided for an attempt.
        """
        decided = self.decided()
        for attempt in self._storage.names(self._attempts):
            of_no_use = attempt not in decided or self._is_late(attempt)
            if of_no_use and _token(attempt) < _token(self.run):
                self._storage.drop(self.place_of(attempt), f"{self._removed}/{attempt}")
        for attempt in self._storage.names(self._removed):
            self._storage.remove(f"{self._removed}/{attempt}")

    def _save(self) -> None:
        """Add a version; Refused if another run has added one since this one looked."""
        number = self._number + 1
        content = self.content()
        layout = NEWER if any(content.get(name) for name in SAID_BY_NEWER) else LAYOUT
        text = json.dumps({"layout": layout, **self._head, **content})
        file = f"{self.path}/{number:012d}/record.json"
        # The answer may be that of a second try, which finds what the first one did.
        added = self._storage.add(file, text, self.place_of(_name(number)))
        numbers = self._numbers()
        mine = added or (number in numbers and self._storage.read(file) == text)
        # Old versions are removed: a process that was frozen for long finds its number free, and higher ones. One that
        # was held up behind this may find a few higher ones: their runs have read this version, and it counts.
        if not mine or max(numbers) >= number + KEPT:
            raise self._replaced()
        self._number = number
        for old in numbers:
            if old <= number - KEPT:
                self._storage.remove(f"{self.path}/{old:012d}")

    def _replaced(self) -> Refused:
        return Refused(
            f"Another run has taken {self._root} over while this one was held up, or had lost its lock. What this one "
            "was writing doesn't count, and nothing was added. Run it again."
        )

    def _numbers(self) -> list[int]:
        return [int(name) for name in self._storage.names(self.path) if re.fullmatch("[0-9]{12}", name)]

    def _newest(self) -> int:
        return max(self._numbers(), default=0)

    def _read(self) -> Any:
        file = f"{self.path}/{self._number:012d}/record.json"
        try:
            return json.loads(self._storage.read(file))
        except ValueError:
            raise self.damaged(f"{file} is no record") from None
        except Exception:
            if self._newest() - self._number < KEPT:
                raise
            raise self._replaced() from None  # many times, since it looked which one is the newest

    def _take(self, record: Any) -> None:
        if not isinstance(record, dict) or type(record.get("layout")) is not int:
            raise self.damaged("its newest version is no record")
        if record["layout"] > NEWER:
            raise Refused(f"{self.path} was written by a newer version. Upgrade, or take another folder.")
        if not all(type(record.get(name)) is kind for name, kind in HEAD.items()):
            raise self.damaged(f"expected {', '.join(HEAD)} in its newest version")
        if record["writer"] != self._writer:
            raise Refused(f"{self._root} holds what {record['writer']} writes. Take another folder for {self._writer}.")
        self._head = {name: record[name] for name in HEAD}
        try:
            self.take(record)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self.damaged(f"its newest version can't be understood ({error!r})") from None

    def _refuse_foreign(self) -> None:
        """Without a journal, nothing may be there that readers would take for events."""
        found = self._storage.names(self._root)
        if FOLDER in found and {"journal", "stream"} & set(self._storage.names(f"{self._root}/{FOLDER}")):
            raise Refused(
                f"{self._root} was begun by an older version of django_events, which lays its files out in another "
                "way. Take another folder."
            )
        if seen := read_as_data(found):
            raise Refused(
                f"{self._root} holds {seen[0]!r}, and no journal that says what is in it: readers would take both "
                "together. Take an empty folder."
            )


def _name(token: int) -> str:
    """A name that is given once. Names of later runs have higher tokens: the number of the version they began with."""
    return f"{token:012d}-{uuid4()}"


def _token(name: str) -> int:
    found = re.match("([0-9]{12})-", name)
    return int(found[1]) if found else 0
