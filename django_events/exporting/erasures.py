"""Which events were erased in the log, for what was exported before: by the records of `erase()`.

    some = found(connection, log, after=copy.erased, names=names)
    some.until           # the number of the last one, for the mark of the copy
    some.chosen(batch)   # rows of `offset` and `key` that are to be blanked, with what stands there instead

A record has no key, only a keyed hash of it, so that of each key of the copy is made and looked for. It also says up to
which id the log was searched: an event of that key behind it came after the erasure, and stays.
"""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import psycopg
import pyarrow as pa
import pyarrow.compute as pc

from django_events.exceptions import EventsMissing, NotReady, Refused
from django_events.reading.dsn import Connection, fetch
from django_events.reading.topics import TopicLog
from django_events.statements import beside

SQL = beside(__name__)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

REPLACED = pa.schema([("offset", pa.int64()), ("key", pa.string()), ("metadata", pa.string())])


class KeyNames(NamedTuple):
    """How records call a key: by each secret that the site has or had, with a name for each secret."""

    secrets: Sequence[str]
    of: Callable[[str], Iterable[str]]


class LastErasure(NamedTuple):
    """The mark of a copy: the number of an erasure, and when it began, in microseconds since 1970.

    A database that was restored gives a number again, but to an erasure of another time.
    """

    number: int = 0
    at: int = 0


class _Erased(NamedTuple):
    """What an erasure has put in the place of the events of a key, up to an id."""

    until: int
    new_key: str | None
    metadata: str


@dataclass(frozen=True)
class _ErasedIds:
    """What an erasure of ids has put in the place of their metadata: ranges from and to, in order."""

    firsts: "np.typing.NDArray[np.int64]"
    lasts: "np.typing.NDArray[np.int64]"
    metadata: str

    def of(self, offsets: "np.typing.NDArray[np.int64]") -> list[int]:
        """At which indexes there is one of the ids."""
        index = np.searchsorted(self.firsts, offsets, "right") - 1
        found: list[int] = np.flatnonzero((index >= 0) & (offsets <= self.lasts[index])).tolist()
        return found


@dataclass(frozen=True)
class Erasures:
    """Those that a copy lacks. `last` is the last one, behind which the next look begins."""

    last: LastErasure
    names: KeyNames
    number: int  # how many they are
    by_key: dict[str, list[_Erased]]
    by_id: list[_ErasedIds]
    interrupted: list[int]
    without: list[int]  # whose keys can't be found

    def __bool__(self) -> bool:
        return bool(self.by_key or self.by_id or self.without)

    @property
    def until(self) -> int:
        return self.last.number

    @property
    def last_id(self) -> int:
        """Behind it no event was erased."""
        ids = [one.until for erased in self.by_key.values() for one in erased]
        return max([*ids, *(int(one.lasts[-1]) for one in self.by_id)], default=0)

    @property
    def nothing(self) -> pa.Table:
        """No row, in the shape of `chosen`."""
        return REPLACED.empty_table()

    def chosen(self, rows: "pa.Table | pa.RecordBatch") -> pa.Table:
        """Of rows with `offset` and `key` those that were erased, with the key and the metadata that they have now."""
        found = self._of_keys(rows) if self.by_key else {}
        offsets = rows["offset"].to_numpy()
        for one in self.by_id:
            for index in one.of(offsets):
                found.setdefault(index, (rows["key"][index].as_py(), one.metadata))
        indexes = sorted(found)
        return pa.table(
            {
                "offset": pa.array(offsets[indexes] if indexes else [], pa.int64()),
                "key": pa.array([found[index][0] for index in indexes], pa.string()),
                "metadata": pa.array([found[index][1] for index in indexes], pa.string()),
            },
            REPLACED,
        )

    def _of_keys(self, rows: "pa.Table | pa.RecordBatch") -> dict[int, tuple[str | None, str]]:
        """By index the key and the metadata that a row gets."""
        column = rows["key"].cast(pa.string())
        keys = [key for key in pc.unique(column).to_pylist() if key is not None]
        erased = {key: some for key in keys if (some := self._of_key(key))}
        if not erased:
            return {}
        found: dict[int, tuple[str | None, str]] = {}
        offsets = rows["offset"].to_numpy()
        is_one = pc.fill_null(pc.is_in(column, value_set=pa.array(list(erased), pa.string())), False)
        for index in np.flatnonzero(is_one.to_numpy(zero_copy_only=False)).tolist():
            key = column[index].as_py()
            for one in erased[key]:
                if offsets[index] <= one.until:
                    known, metadata = found.get(index, (key, one.metadata))  # the first erasure has noted its time
                    found[index] = (one.new_key or known, metadata)
        return found

    def _of_key(self, key: str) -> list[_Erased]:
        return [one for name in self.names.of(key) for one in self.by_key.get(name, ())]


def before_reading(connection: Connection, log: TopicLog) -> LastErasure:
    """The mark of a copy whose first event is read after this; none for a role that may not read the records."""
    try:
        with connection.transaction():
            fetch(connection, SQL.let_erasures_begin)
            found = fetch(connection, SQL.last_before_reading, topic=log.name, incarnation=log.incarnation)
    except psycopg.errors.InsufficientPrivilege:
        found = []
    return LastErasure(found[0][0], _microseconds(found[0][1])) if found else LastErasure()


def found(
    connection: Connection, log: TopicLog, *, after: int, names: KeyNames, without: Collection[int] = ()
) -> Erasures:
    """The erasures of a topic that a copy lacks; Refused if the key of one can't be found, and `without` has it not.

    One that was interrupted, or is at work, is left out and named. The mark goes past it, and its record says so: when
    it is done it has another number, and a later run finds it. One that a later one stands in for is left to that.
    """
    with connection.transaction():
        fetch(connection, SQL.let_erasures_begin)
        rows = _records(connection, log, after)
        if not_done := [number for number, _, details in rows if not details.keys() & {"until", "passed", "closed_by"}]:
            with _noting():
                fetch(connection, SQL.pass_erasures, numbers=not_done)
            rows = _records(connection, log, after)  # some may be done by now
    erasures = _read(rows, after, names)
    for number, at, _ in rows:
        if number in erasures.without and number not in without:
            raise _forgotten(number, at)
    return erasures


def pending(connection: Connection, log: TopicLog, *, after: int, names: KeyNames) -> Erasures:
    """The same to look at only: nothing is noted, and `without` has all whose keys can't be found."""
    return _read(_records(connection, log, after), after, names)


def _records(connection: Connection, log: TopicLog, after: int) -> list[tuple[int, datetime, dict[str, Any]]]:
    return fetch(connection, SQL.erasures, topic=log.name, incarnation=log.incarnation, after=after)


def _read(rows: Iterable[tuple[int, datetime, dict[str, Any]]], after: int, names: KeyNames) -> Erasures:
    by_key: dict[str, list[_Erased]] = {}
    by_id: list[_ErasedIds] = []
    last, interrupted, left_out, done = LastErasure(after), list[int](), list[int](), 0
    for number, at, details in rows:
        if number > after:
            last = LastErasure(number, _microseconds(at))
        if "closed_by" in details:
            continue
        if "until" not in details:
            interrupted.append(number)
            continue
        if details.get("key") is not None and details.get("secret") not in names.secrets:
            left_out.append(number)
            continue
        done += 1
        metadata = json.dumps({"erased": at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")})
        if (key := details.get("key")) is not None:
            by_key.setdefault(key, []).append(_Erased(details["until"], details.get("new_key"), metadata))
        else:
            firsts, lasts = np.array(details["ranges"], np.int64).T
            by_id.append(_ErasedIds(firsts, lasts, metadata))
    return Erasures(last, names, done, by_key, by_id, interrupted, left_out)


def newest(connection: Connection, log: TopicLog) -> tuple[int, int]:
    """What changes when there is another erasure to apply."""
    [[number, done]] = fetch(connection, SQL.newest_erasure, topic=log.name, incarnation=log.incarnation)
    return number, done


def refuse_older_database(connection: Connection, log: TopicLog, erased: LastErasure, place: str) -> None:
    """EventsMissing if the database doesn't know of an erasure that is applied: it would bring back what was erased."""
    [[at, are_done]] = fetch(
        connection, SQL.erasure_is_done, id=erased.number, topic=log.name, incarnation=log.incarnation
    )
    if at is None or _microseconds(at) != erased.at or not are_done:
        raise EventsMissing(
            f"The database is older than {place}: erasure {erased.number} is applied there, and not in this database, "
            "whose events would bring back what was erased. If this is a replica that is behind, wait for it. After a "
            "restore, erase again, and export to another place."
        )


def begin_record(connection: Connection, log: TopicLog, by: str, details: dict[str, Any]) -> int:
    """Note in the database that this is going to be done."""
    said = json.dumps({**details, "finished": False})
    with _noting():
        [[number]] = fetch(connection, SQL.begin_exported_erasure, by=by[:200], topic=log.name, details=said)
    return int(number)


@contextmanager
def _noting() -> Iterator[None]:
    """What is noted in the database; NotReady if that can't be."""
    try:
        yield
    except (psycopg.errors.ReadOnlySqlTransaction, psycopg.errors.InsufficientPrivilege) as error:
        raise NotReady(
            f"--erase notes in the database what it does, and that was refused: {str(error).splitlines()[0]}. Name the "
            "primary's alias by --database, as a role that has the rights of an operator: manage.py events grants "
            "--role operator"
        ) from error


def finish_record(connection: Connection, number: int, details: dict[str, Any]) -> None:
    """Note what came of it."""
    fetch(connection, SQL.finish_exported_erasure, id=number, details=json.dumps({**details, "finished": True}))


def _microseconds(at: datetime) -> int:
    return (at - EPOCH) // timedelta(microseconds=1)


def _forgotten(number: int, at: datetime) -> Refused:
    return Refused(
        f"Erasure {number} of {at:%Y-%m-%d} names its key by a hash that was made with a SECRET_KEY which is not in "
        "the settings any more, so the key can't be found in what was exported. Put that secret into "
        f"SECRET_KEY_FALLBACKS, and run this again. If it is lost, erase that key again, and say --without {number}."
    )
