"""A topic as an Iceberg table, by pyiceberg: no Spark, no Java.

Its mark is a property of the table, which a commit sets together with its snapshot. A commit says on which snapshot it
stands, and the catalogue refuses it if there is a newer one. PyIceberg would then append to the newer one, four times
by default, and two exporters at once would double every event without a word: `commit.retry.num-retries` is 0.
A rollback sets the snapshot back and leaves the properties, so each snapshot says its mark too.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io import InputFile, OutputFile
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotsUpdate
from pyiceberg.transforms import DayTransform
from pyiceberg.utils.properties import property_as_bool

from django_events.exceptions import Refused
from django_events.exporting.blanking import blanked
from django_events.exporting.erasures import LastErasure
from django_events.exporting.file_columns import FileColumns
from django_events.exporting.storage import make_below
from django_events.exporting.tables.expiring import THINNED_AT_ONCE, RemovedVersions, moment_of, not_named, remove
from django_events.exporting.tables.iceberg_catalogs import Namespace, beside_others
from django_events.exporting.tables.iceberg_expiring import (
    KEEPS_FILES,
    ROWS,
    IcebergFiles,
    Shared,
    folder_of,
    going,
    is_worth_a_commit,
    keeps_files,
)
from django_events.exporting.tables.iceberg_files import described, numbered
from django_events.exporting.tables.iceberg_rewriting import IcebergRanges, overwrite, rows_within
from django_events.exporting.tables.rows_files import RowsFile, folder_on_disk, other_partitions
from django_events.exporting.tables.table import (
    COLUMNS,
    DEFAULTS,
    ERASED,
    ERASED_AT,
    EVENTS,
    FIRST,
    INCARNATION,
    KIND,
    NEXT,
    Conflict,
    Mark,
    OpenedTable,
    Opening,
    is_at,
    lost_end,
    lost_mark,
    new_columns,
    other_kind,
)
from django_events.exporting.writing import SCHEMA, ZSTD_LEVEL
from django_events.reading.typed.columns import DATA

NEEDED = {
    TableProperties.COMMIT_NUM_RETRIES: "0",
    # Without the bounds of ids every file would have to be opened to find some of them.
    "write.metadata.metrics.column.offset": "full",
    # Of several row groups PyIceberg takes the bounds that some say for those of the file, and readers pass over rows.
    TableProperties.PARQUET_ROW_GROUP_LIMIT: str(64 << 20),  # the most that PyArrow writes into one
}
PROPERTIES = {
    **NEEDED,
    "write.parquet.compression-codec": "zstd",
    "write.parquet.compression-level": str(ZSTD_LEVEL),
    "write.metadata.delete-after-commit.enabled": "true",
    # Each commit reads and writes a list of all manifests, and each query opens all of these.
    TableProperties.MANIFEST_MERGE_ENABLED: "true",
    "write.metadata.metrics.column.value": "none",
    "write.metadata.metrics.column.body": "none",
    "write.metadata.metrics.column.metadata": "none",
}


class IcebergEvents(OpenedTable):
    """An Iceberg table in a catalogue."""

    _by_day = True

    def __init__(self, namespace: Namespace, topic: str, incarnation: str, how: Opening = DEFAULTS) -> None:
        super().__init__(how)
        self._catalog, self._name, self._folder = namespace.catalog, (namespace.name, topic), namespace.folder
        self._files, self._ranges = IcebergFiles(), IcebergRanges()
        try:
            beside_others(partial(self._catalog.create_namespace_if_not_exists, namespace.name))
            self._table = self._opened(incarnation)
            self._refuse_copied()
        except BaseException:
            self._catalog.close()
            raise

    def mark(self) -> Mark | None:
        self._table = self._loaded()
        self._refuse_copied()
        known = self._table.properties
        if INCARNATION not in known:
            raise Refused(
                f"{self.place} is an Iceberg table that no export has made: readers would take both together. Take "
                "another namespace."
            )
        if (kind := kind_of(self._table)) != self.kind:
            raise other_kind(self.place, kind)
        if NEXT not in known:
            if self._table.current_snapshot() is not None:  # "no mark" is the beginning only of a table without rows
                raise lost_mark(self.place)
            return None
        mark = Mark(known[INCARNATION], int(known[NEXT]), int(known[FIRST]) if FIRST in known else None)
        self._refuse_set_back(mark)
        return mark

    def append(self, events: Iterable[pa.RecordBatch], mark: Mark) -> None:
        self._make_ready()
        columns = self._columns_here()
        schema = SCHEMA if columns.typed is None else columns.schema
        table = pa.Table.from_batches(map(columns.conformed, events), schema)
        said = self._marking(mark)
        self._commit(lambda change: change.append(table, snapshot_properties=self._saying(said)), said)
        self.lost_end = False

    def folder_of_rows(self) -> str:
        return str(make_below(Path(folder_on_disk(self._table.location())), ROWS.rstrip("/")))

    def columns_of_rows(self) -> FileColumns:
        self._make_ready()
        schema, by = self._table.schema(), self._table.spec().fields
        day_of = schema.find_field("timestamp").field_id
        if [(one.source_id, one.transform) for one in by] != [(day_of, DayTransform())]:
            raise other_partitions(self.place, ", ".join(one.name for one in by) or "nothing")
        columns = self._columns_here()
        return replace(columns, schema=numbered(columns.schema, schema))

    def add(self, files: Sequence[RowsFile], mark: Mark) -> None:
        if not files:
            self.append([], mark)
            return
        place = f"{self._table.location()}/{ROWS}"
        described_files = [described(file, self._table, f"{place}{file.name}") for file in files]
        said = self._marking(mark)
        self._commit(partial(_add, files=described_files, said=self._saying(said)), said)
        self.lost_end = False

    def _columns_here(self) -> FileColumns:
        """The columns of events, with the fields that the table has already."""
        if self._columns.typed is None:
            return self._columns
        return self._columns.after(self._table.schema().as_arrow().field(DATA).type, self.place)

    def _marking(self, mark: Mark) -> dict[str, str]:
        """The properties that events bring with them."""
        said = marked(mark)
        if NEXT not in self._table.properties and self.first_erased.number:
            said |= _erased_until(self.first_erased)
        return said

    def _saying(self, said: dict[str, str]) -> dict[str, str]:
        """What a snapshot says: all marks, so that a rollback to before any of them shows."""
        known = self._table.properties.get(ERASED)
        return {ERASED: known, **said} if known is not None else said

    def erased(self) -> int:
        return int(self._table.properties.get(ERASED, 0))

    def last_erasure(self) -> LastErasure:
        return LastErasure(self.erased(), int(self._table.properties.get(ERASED_AT, 0)))

    def version(self) -> int:
        snapshot = self._table.current_snapshot()
        return snapshot.snapshot_id if snapshot else 0

    def keys(self, until: int) -> Iterator[pa.RecordBatch]:
        scan = self._table.scan(row_filter=f"offset <= {until}", selected_fields=("offset", "key"))
        with self._unless_moved():
            yield from scan.to_arrow_batch_reader()

    def blank(self, erased: pa.Table, mark: Mark) -> int:
        self._make_ready()
        rows, said = 0, {NEXT: str(mark.next)}
        with self._unless_moved():
            ranges = self._ranges.having(self._table, erased["offset"].to_pylist())
        for one in ranges:
            blank, changed = blanked(self._rows_within(one.within), erased)
            if changed:
                self._overwrite(blank, one.within, said)
                rows += changed
        return rows

    def say_erased(self, last: LastErasure, mark: Mark) -> None:
        self._make_ready()
        said = {**marked(mark), **_erased_until(last)}
        empty = self._schema.empty_table()
        self._commit(lambda change: change.append(empty, snapshot_properties=said), said)

    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._table.schema().column_names)

    def count(self) -> int:
        """How many rows it has."""
        return int(self._table.scan().count())

    def type_of(self, name: str) -> pa.DataType:
        """The type of a column."""
        return self._table.schema().as_arrow().field(name).type

    def read(self, start: int, end: int, columns: list[str]) -> pa.Table:
        """The rows with ids from `start` to before `end`, with these columns."""
        within = f"offset >= {start} AND offset < {end}"
        return self._table.scan(row_filter=within, selected_fields=tuple(columns)).to_arrow().select(columns)

    def batches(self, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """All rows, in no order, with these columns."""
        for batch in self._table.scan(selected_fields=tuple(columns)).to_arrow_batch_reader():
            yield batch.select(columns)

    def _make_ready(self) -> None:
        """Give the table what an append needs; Conflict if it isn't any more what `mark` has seen.

        These commits don't say on which snapshot they stand, and bring the newest one along: without the comparison an
        append would then stand on the one of another exporter.
        """
        seen = self._seen()
        try:
            if lacking := new_columns(self._table.schema().as_arrow(), self.place, self._columns):
                with self._table.update_schema() as update:
                    update.union_by_name(pa.schema(lacking))
            if any(self._table.properties.get(name) != value for name, value in NEEDED.items()):
                with self._table.transaction() as change:
                    change.set_properties(NEEDED)
        except CommitFailedException as error:
            raise Conflict(str(error)) from error
        if self._seen() != seen:
            raise Conflict(f"{self.place} had a commit of another writer.")

    def _seen(self) -> tuple[int | str | None, ...]:
        snapshot, known = self._table.current_snapshot(), self._table.properties
        return snapshot.snapshot_id if snapshot else None, *(known.get(name) for name in (INCARNATION, NEXT, ERASED))

    def compact(self, target_size: int) -> Iterator[int]:
        mark = self.mark()
        self._make_ready()  # a retry of PyIceberg's would bring files in that `expire` of another run has removed
        with self._unless_moved():
            groups = list(self._ranges.small(self._table, target_size, by_day=self._by_day))
        for one in groups:
            self._overwrite(self._rows_within(one.within), one.within, {NEXT: str(mark.next)} if mark else {})
            yield one.files - 1

    def _overwrite(self, rows: pa.Table, within: str, said: dict[str, str]) -> None:
        """Put rows back in the place of those within, in a commit of its own."""
        self._commit(partial(overwrite, rows=rows, within=within, said=self._saying(said)), {})

    def _rows_within(self, within: str) -> pa.Table:
        with self._unless_moved():
            return rows_within(self._table, within)

    def expire(self, age: timedelta, stopped: Callable[[], bool]) -> RemovedVersions:
        done = RemovedVersions()
        with done.refusing(self.place):
            self._remove(age, done, stopped)
        return done

    def _remove(self, age: timedelta, done: RemovedVersions, stopped: Callable[[], bool]) -> None:
        mark, now = self.mark(), time.time()
        if mark is None:
            return
        if keeps_files(self._table):
            done.left[self.place] = f"{self.place} has {KEEPS_FILES}=false, so nothing was removed."
            return
        written, folder = [], folder_of(self._table)
        try:
            if folder is not None:
                with done.refusing(self.place):
                    written = self._files.written(self._table, folder, before=moment_of(now, age))
            else:
                done.left[self.place] = f"The files of {self.place} can't be listed, and none was removed."
        except Shared as error:
            done.left[self.place] = f"{error}, and none was removed."
        snapshots = going(self._table, now=now, age=age)
        unnamed = not_named(written, self._names(without=snapshots))
        if stopped() or not is_worth_a_commit(self._table, snapshots, unnamed):
            return
        self._make_ready()
        said = self._saying({NEXT: str(mark.next)})
        self._commit(lambda change: change.append(self._schema.empty_table(), snapshot_properties=said), {})
        snapshots = going(self._table, now=time.time(), age=age)
        self._expire(snapshots)
        done.versions += len(snapshots)
        if folder is not None:
            remove(done, folder, not_named(written, self._names()), stopped=stopped)
            # A tag or a branch may keep others.
            done.is_all = not (age or done.left or stopped()) and len(self._table.snapshots()) == 1

    def _names(self, *, without: Collection[int] = ()) -> set[str]:
        try:
            return self._files.names(self._table, without=without)
        except FileNotFoundError as error:  # another tool has removed a snapshot, and its list
            raise Conflict(str(error)) from error

    def thin(self, age: timedelta) -> RemovedVersions:
        if keeps_files(self._table):
            return RemovedVersions()
        snapshots = going(self._table, now=time.time(), age=age)
        if len(snapshots) < THINNED_AT_ONCE:
            return RemovedVersions()
        self._expire(snapshots)
        return RemovedVersions(versions=len(snapshots))

    def _expire(self, snapshots: list[int]) -> None:
        """Remove snapshots; Conflict if the table isn't any more what it was when they were chosen."""
        current = self._table.metadata.current_snapshot_id
        unmoved = AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=current)  # type: ignore[call-arg]
        change = RemoveSnapshotsUpdate(snapshot_ids=snapshots)  # type: ignore[call-arg]
        try:
            if snapshots:
                self._catalog.commit_table(self._table, (unmoved,), (change,))
        except CommitFailedException as error:
            raise Conflict(str(error)) from error
        except ValueError as error:
            self._table = self._loaded()
            if {one.snapshot_id for one in self._table.snapshots()}.issuperset(snapshots):
                raise
            raise Conflict(str(error)) from error  # another run has removed one of them
        self._table = self._loaded()

    def values(self) -> str:
        return self._table.properties.get(COLUMNS, "")

    def close(self) -> None:
        self._catalog.close()

    @property
    def _schema(self) -> pa.Schema:
        return SCHEMA if self._columns.typed is None else self._columns.schema

    @property
    def place(self) -> str:
        return f"table {'.'.join(self._name)}"

    def _opened(self, incarnation: str) -> Table:
        try:
            return self._loaded()
        except NoSuchTableError:
            pass
        with suppress(TableAlreadyExistsError, CommitFailedException):  # another run may have made it meanwhile
            said = {COLUMNS: self._columns.said} if self._columns.said else {}
            self._make({**PROPERTIES, **self._said_of_rows(), **said, INCARNATION: incarnation})
        return self._loaded()

    def _loaded(self) -> Table:
        try:
            return _keeping_manifests(self._catalog.load_table(self._name))
        except FileNotFoundError as error:
            raise Refused(
                f"The catalogue has {self.place}, and its files are not where it says: {error} Were they moved? "
                "A catalogue has whole addresses. Move them back, or export to another place."
            ) from error

    def _refuse_copied(self) -> None:
        """Refused if the catalogue in the folder tells of a table elsewhere: it would write to the original."""
        location, here = self._table.location(), f"file://{self._folder}/{'/'.join(self._name)}"
        if self._folder and (location != here or not self._table.metadata_location.startswith(f"{here}/")):
            raise Refused(
                f"{self._folder} is a copy: by its catalogue {self.place} is at {location}, where this export would "
                "write too. Nothing was added. Export to that place, or to an empty folder."
            )

    def _refuse_set_back(self, mark: Mark) -> None:
        """Refused if the current snapshot doesn't build on the one that set the mark."""
        snapshot, said, erased = self._table.current_snapshot(), None, None
        while snapshot is not None and said is None:  # those of other tools say none
            told = snapshot.summary.additional_properties if snapshot.summary else {}
            said, erased = told.get(NEXT), told.get(ERASED)
            before = snapshot.parent_snapshot_id
            snapshot = self._table.snapshot_by_id(before) if before is not None else None
        if said is None:  # all that said one are expired: the rows tell
            if not self._is_whole(mark):
                if not self._allow_loss:
                    raise lost_end(self.place, mark)
                self.lost_end = True
        elif said == str(mark.next) and erased != self._table.properties.get(ERASED):
            raise Refused(
                f"{self.place} was set back to an earlier snapshot: by its mark all erasures up to {self.erased()} are "
                "applied, and what some of them have erased is back. Nothing was added. Set it to the snapshot that "
                f"has {ERASED} = {self.erased()} in its summary, if that is not expired, or export to another place."
            )
        elif said != str(mark.next):
            raise Refused(
                f"{self.place} was set back to an earlier snapshot: by its mark it has the events up to "
                f"{mark.next - 1}, and the newest of them are gone. Nothing was added. Set it to the snapshot that has "
                f"{NEXT} = {mark.next} in its summary, if that is not expired, or export to another place."
            )

    def _is_whole(self, mark: Mark) -> bool:
        """Whether the rows are those of the mark, where no snapshot says it."""
        return is_at(self._ranges.newest(self._table), mark)

    def _make(self, properties: dict[str, str]) -> None:
        making = self._catalog.create_table_transaction(self._name, self._schema, properties=properties)
        with making as change, change.update_spec() as update:
            update.add_field("timestamp", DayTransform(), "day")

    def _commit(self, work: Callable[[Any], object], properties: dict[str, str]) -> None:
        try:
            with self._unless_moved(), self._table.transaction() as change:
                work(change)
                if properties:
                    change.set_properties(properties)
        except CommitFailedException as error:
            raise Conflict(str(error)) from error

    @contextmanager
    def _unless_moved(self) -> Iterator[None]:
        """Conflict if a file isn't there any more because another run, or another tool, has moved the table on."""
        try:
            yield
        except FileNotFoundError as error:
            if self._loaded().metadata.current_snapshot_id == self._table.metadata.current_snapshot_id:
                raise
            raise Conflict(str(error)) from error


def kind_of(table: Table) -> str:
    """What a row of a table stands for: an event, or the state of a key."""
    return table.properties.get(KIND, EVENTS)


def marked(mark: Mark) -> dict[str, str]:
    """A mark as properties."""
    first = {FIRST: str(mark.first)} if mark.first is not None else {}
    return {INCARNATION: mark.incarnation, NEXT: str(mark.next), **first}


def _keeping_manifests(table: Table) -> Table:
    """A table of which PyIceberg doesn't delete the manifests of a refused commit.

    A catalogue also refuses a commit that is there, when its answer was lost and the transport has sent it again.
    Without its manifests no reader could read the table any more. Those of a commit that isn't there are orphans.
    """
    delete = table.io.delete

    def delete_metadata(location: str | InputFile | OutputFile) -> None:
        # Those of old versions are deleted by `write.metadata.delete-after-commit`.
        if isinstance(location, str) and location.endswith(".metadata.json"):
            delete(location)

    table.io.delete = delete_metadata  # type: ignore[method-assign]
    return table


def _erased_until(last: LastErasure) -> dict[str, str]:
    return {ERASED: str(last.number), ERASED_AT: str(last.at)}


def _add(change: Any, *, files: Sequence[DataFile], said: dict[str, str]) -> None:
    # Not `add_files`, which would give the table a mapping of names, for files whose columns have no numbers.
    update = change.update_snapshot(snapshot_properties=said)
    merges = property_as_bool(change.table_metadata.properties, TableProperties.MANIFEST_MERGE_ENABLED, False)
    with update.merge_append() if merges else update.fast_append() as snapshot:
        for file in files:
            snapshot.append_data_file(file)
