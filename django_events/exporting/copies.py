"""What was exported, as its readers see it, for a comparison with the log: a table, or files of Parquet or JSON.

Which of them a place has is told by what lies there. Nothing is made, and nothing is written.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from django_events.exceptions import Refused
from django_events.exporting.blanking import is_of_erased
from django_events.exporting.event_files import OPENED, within
from django_events.exporting.journal import FOLDER
from django_events.exporting.parts import Parts
from django_events.exporting.paths import read_as_data, split
from django_events.exporting.storage import OfDisk, files_below
from django_events.exporting.tables.table import STATES, Mark, Opening
from django_events.exporting.writing import SCHEMA
from django_events.reading.topics import TopicLog
from django_events.reading.typed.columns import DATA, NAMES, RESCUED, VERSION
from django_events.reading.typed.evolution import conformed, evolved, plain

PAYLOAD = ("value", "body", DATA, RESCUED)
FOLDER_OF_ROW = "folder"  # where a row is, in files that lie by day or type
BLANK = "blank"  # whether an event has nothing of these, and metadata as an erasure leaves them


class States(NamedTuple):
    """What a table of states has besides: the types of events by which a key is gone, and its rows in no order, as many
    at a time as is asked for, as `Copy.read` has them.
    """

    deletes: tuple[str, ...]
    pieces: Callable[[int], Iterator[pa.Table]]


class Copy(Protocol):
    """What was exported of a topic.

    `ranges` are the ids that it says to have, in order, but for those that were `removed` on purpose. `lacks` are
    columns of events that it doesn't have, `values` is what these are typed as, `fills_lists` whether a list
    of structs that a value lacks is empty there, `by` is what its rows lie in folders by, `rows` is how many rows it
    has in all, and `erased` the number of the last erasure that is applied.
    """

    place: str
    incarnation: str
    ranges: list[tuple[int, int]]
    removed: list[tuple[int, int]]
    lacks: list[str]
    values: str
    fills_lists: bool
    by: tuple[str, ...]
    rows: int
    erased: int
    states: States | None

    def read(self, start: int, end: int) -> pa.Table:
        """The rows with ids from `start` to before `end`, in any order: the columns that it has, and BLANK.

        If its rows lie in folders by something, FOLDER_OF_ROW is a column, too. Typed ones have the types of events,
        whatever the format calls them.
        """


def with_blank(rows: pa.Table, names: Sequence[str]) -> pa.Table:
    """These columns of rows, and whether each is blank."""
    is_blank = np.ones(rows.num_rows, bool)
    for name in PAYLOAD:
        if name in rows.column_names:
            is_blank &= pc.is_null(rows[name]).to_numpy()
    if "metadata" in rows.column_names:
        is_blank &= is_of_erased(rows["metadata"])
    return rows.select(names).append_column(BLANK, pa.array(is_blank))


def known_columns(there: Iterable[str]) -> tuple[list[str], list[str]]:
    """Of the columns of a copy those of events, and those that it lacks."""
    found = set(there)
    values = NAMES if DATA in found else ("value",)
    names = [one for name in SCHEMA.names for one in (values if name == "value" else (name,))]
    return [name for name in names if name in found], [name for name in names if name not in found]


def _with_types(rows: pa.Table, data: pa.DataType | None) -> pa.Table:
    """Rows whose typed columns have their types of events, and `data` all of its fields."""
    if data is None:
        return rows
    own = rows[DATA].combine_chunks()
    own = pa.concat_arrays(own.chunks) if isinstance(own, pa.ChunkedArray) and own.num_chunks else own
    wanted = {DATA: conformed(own.cast(plain(own.type)), data) if len(own) else pa.array([], data)}
    for name, kind in ((VERSION, pa.int32()), (RESCUED, pa.string())):
        wanted[name] = rows[name].cast(kind)
    for name, column in wanted.items():
        rows = rows.set_column(rows.column_names.index(name), name, column)
    return rows


def _and_payload(names: Sequence[str], there: Sequence[str]) -> list[str]:
    """Columns, and what else tells whether an event is blank."""
    return [*names, *(name for name in (*PAYLOAD, "metadata") if name in there and name not in names)]


def copies(logs: Sequence[TopicLog], path: str, catalog: str | None) -> Iterator[tuple[TopicLog, Copy]]:
    """The exports of each topic that has some there."""
    if _has_files(path, catalog):
        yield from _files(logs, path)
    if catalog is not None or _has_catalog(path):
        yield from _iceberg(logs, path, catalog)
    if catalog is None:
        yield from _delta(logs, path)


def topics_of_files(path: str, catalog: str | None) -> set[str]:
    """The names of the topics that were exported into files there, whether the database has them or not."""
    return {part.topic for part in Parts(OfDisk(), path).done} if _has_files(path, catalog) else set()


def strays(path: str, catalog: str | None) -> list[str]:
    """What lies beside the files of topics, and readers of the whole folder take for data."""
    if not _has_files(path, catalog) or _has_catalog(path):
        return []
    from deltalake import DeltaTable

    names = OfDisk().names(path)  # before the journal is read, which knows of topics before they have a folder
    known = {part.of_topic for part in Parts(OfDisk(), path).planned}
    others = [name for name in read_as_data(names) if name not in known]
    root = Path(split(path)[2])
    return [name for name in others if not ((root / name).is_dir() and DeltaTable.is_deltatable(f"{root}/{name}"))]


def _has_files(path: str, catalog: str | None) -> bool:
    return catalog is None and _is_local(path) and (Path(split(path)[2]) / FOLDER).is_dir()


def _has_catalog(path: str) -> bool:
    """Whether a folder has Iceberg's catalogue of its tables."""
    return _is_local(path) and (Path(split(path)[2]) / "catalog.db").exists()


def _is_local(path: str) -> bool:
    return split(path)[0] in ("", "file")


def _files(logs: Sequence[TopicLog], path: str) -> Iterator[tuple[TopicLog, Copy]]:
    for log in logs:
        try:
            journal = Parts(OfDisk(), path)  # as it is now: the topic before may have taken hours
        except Refused as error:
            raise Refused(f"Of folders, only what export_events has written is compared. {error}") from None
        if journal.is_new:
            raise Refused(f"{path} has no export yet: its first run ended before it had planned what to write.")
        if journal.format not in OPENED:
            said = f"{path} holds files in format {journal.format}"
            raise Refused(f"{said}, and only Parquet and JSON are compared with the log.")
        if journal.hides_some:
            raise Refused(
                f"{path} has files that count, and that readers don't see yet: a run was ended, or is at it. Run "
                "export_events again, which shows them, and then this."
            )
        if any(part.topic == log.name for part in journal.done):
            yield log, FilesOfTopic(path, log.name, journal)


def _delta(logs: Sequence[TopicLog], path: str) -> Iterator[tuple[TopicLog, Copy]]:
    from deltalake import DeltaTable

    for log in logs:
        if DeltaTable.is_deltatable(place := f"{path}/{log.name}"):
            yield log, DeltaCopy(place, log)


def _iceberg(logs: Sequence[TopicLog], path: str, name: str | None) -> Iterator[tuple[TopicLog, Copy]]:
    from django_events.exporting.tables.iceberg_catalogs import configured, in_folder

    namespace = configured(name, path) if name else in_folder(path)
    try:
        there = [log for log in logs if namespace.catalog.table_exists((namespace.name, log.name))]
    finally:
        namespace.catalog.close()
    for log in there:
        yield log, IcebergCopy(configured(name, path) if name else in_folder(path), log)


class FilesOfTopic:
    """Files of a topic, as a reader of the folder finds them, whatever the journal says."""

    fills_lists = False
    states: States | None = None

    def __init__(self, path: str, topic: str, journal: Parts) -> None:
        parts = [part for part in journal.done if part.topic == topic]
        self.place, self.incarnation = f"{path}/{parts[0].of_topic}", parts[0].incarnation
        self.erased, self.values, self.by = journal.erased.get(topic, 0), journal.values.kind, journal.by
        root = Path(split(path)[2])
        removed = journal.removed(topic)
        self.ranges = sorted((part.start, part.end) for part in parts if part not in removed)
        self.removed = sorted((part.start, part.end) for part in removed)
        files = [file for file in files_below(self.place) if _is_read(file, root)]
        # What was added since `parts` was read is not compared.
        newer = [root / part.folder for part in Parts(OfDisk(), path).done if part not in parts]
        opened = OPENED[journal.format]
        self._files = {file: opened(file) for file in files if not any(map(file.is_relative_to, newer))}
        self.rows = sum(one.rows for one in self._files.values())
        schemas = [one.schema for one in self._files.values()]
        known = {name for one in schemas for name in one.names} or set(SCHEMA.names)
        self._columns, self.lacks = known_columns(known)
        self._data: pa.DataType | None = None
        if DATA in known:  # later files may have more fields
            types = [one.field(DATA).type for one in schemas if DATA in one.names]
            self._data = reduce(lambda one, other: evolved(one, other, DATA, self.place), types, types[0])
        type_of = {**dict(zip(SCHEMA.names, SCHEMA.types, strict=True)), VERSION: pa.int32(), RESCUED: pa.string()}
        type_of |= {DATA: self._data, FOLDER_OF_ROW: pa.string()}
        names = [*self._columns, FOLDER_OF_ROW] if self.by else self._columns
        self._schema = pa.schema([(name, type_of[name]) for name in names])

    def read(self, start: int, end: int) -> pa.Table:
        found = [with_blank(self._schema.empty_table(), self._schema.names)]
        for file, one in self._files.items():
            if one.bounds is None or (one.bounds[0] < end and one.bounds[1] >= start):
                names = _and_payload(self._columns, one.schema.names)
                rows = self._filled(one.read(names, start, end), file)
                found.append(with_blank(_with_types(rows, self._data), self._schema.names).cast(found[0].schema))
        return pa.concat_tables(found)

    def _filled(self, rows: pa.Table, file: Path) -> pa.Table:
        """Rows with all columns: those that only other files have are NULL to a reader."""
        folder = "/".join(file.relative_to(split(self.place)[2]).parts[1:-1])  # below that of the part
        for field in self._schema:
            if field.name == FOLDER_OF_ROW:
                rows = rows.append_column(field, pa.repeat(pa.scalar(folder), rows.num_rows))
            elif field.name not in rows.column_names:
                rows = rows.append_column(field, pa.nulls(rows.num_rows, field.type))
        return rows


def _is_read(file: Path, root: Path) -> bool:
    """Whether readers take a file for data, by its name and those of its folders."""
    names = file.relative_to(root).parts
    return len(read_as_data(names)) == len(names)


def _range_of(mark: Mark | None) -> list[tuple[int, int]]:
    """The ids that a table was given, whatever rows it has now."""
    return [(mark.first or 1, mark.next)] if mark else []


class DeltaCopy:
    """A Delta table at the version that it has now."""

    fills_lists = False
    by: tuple[str, ...] = ()

    def __init__(self, place: str, log: TopicLog) -> None:
        from deltalake import DeltaTable

        from django_events.exporting.tables.delta import DeltaEvents, kind_of
        from django_events.exporting.tables.delta_states import DeltaStates

        is_of_states = kind_of(DeltaTable(place)) == STATES
        opened = (DeltaStates if is_of_states else DeltaEvents)(
            place, log.name, log.incarnation, Opening(allow_loss=True)
        )
        mark = opened.mark()
        self.place, self.erased = place, opened.erased()
        table = DeltaTable(place, version=opened.version())
        self._rows = table.to_pyarrow_dataset()
        self._columns, self.lacks = known_columns(self._rows.schema.names)
        self._data = plain(self._rows.schema.field(DATA).type) if DATA in self._columns else None
        self.values = opened.values()
        self.rows = self._rows.count_rows()
        self.incarnation = mark.incarnation if mark else log.incarnation
        self.ranges = _range_of(mark)
        self.removed: list[tuple[int, int]] = []
        self.states = States(opened.deletes(), self._pieces) if is_of_states else None

    def read(self, start: int, end: int) -> pa.Table:
        return self._of_events(self._rows.to_table(self._names, filter=within(start, end)))

    def _pieces(self, size: int) -> Iterator[pa.Table]:
        # Or many batches of large values would be in memory: they are read ahead, of several files.
        few = {"batch_size": size, "batch_readahead": 1, "fragment_readahead": 1}
        for batch in self._rows.to_batches(self._names, **few):
            yield self._of_events(pa.Table.from_batches([batch]))

    @property
    def _names(self) -> list[str]:
        return _and_payload(self._columns, self._rows.schema.names)

    def _of_events(self, rows: pa.Table) -> pa.Table:
        return with_blank(_with_types(rows, self._data), self._columns)


class IcebergCopy:
    """An Iceberg table at the snapshot that it has now."""

    fills_lists = True
    by: tuple[str, ...] = ()

    def __init__(self, namespace: Any, log: TopicLog) -> None:
        from django_events.exporting.tables.iceberg import IcebergEvents, kind_of
        from django_events.exporting.tables.iceberg_states import IcebergStates

        is_of_states = kind_of(namespace.catalog.load_table((namespace.name, log.name))) == STATES
        made = IcebergStates if is_of_states else IcebergEvents
        self._opened = made(namespace, log.name, log.incarnation, Opening(allow_loss=True))
        try:
            mark = self._opened.mark()
            self.place, self.erased = self._opened.place, self._opened.erased()
            self._columns, self.lacks = known_columns(self._opened.columns())
            self._data = plain(self._opened.type_of(DATA)) if DATA in self._columns else None
            self.values = self._opened.values()
            self.rows = self._opened.count()
            self.incarnation = mark.incarnation if mark else log.incarnation
            self.states = States(self._opened.deletes(), self._pieces) if is_of_states else None
        finally:
            self._opened.close()
        self.ranges = _range_of(mark)
        self.removed: list[tuple[int, int]] = []

    def read(self, start: int, end: int) -> pa.Table:
        return self._of_events(self._opened.read(start, end, self._names))

    def _pieces(self, size: int) -> Iterator[pa.Table]:
        for batch in self._opened.batches(self._names):
            for start in range(0, batch.num_rows, size):
                yield self._of_events(pa.Table.from_batches([batch.slice(start, size)]))

    @property
    def _names(self) -> list[str]:
        return _and_payload(self._columns, self._opened.columns())

    def _of_events(self, rows: pa.Table) -> pa.Table:
        return with_blank(_with_types(rows, self._data), self._columns)
