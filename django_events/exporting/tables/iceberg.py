"""A topic as an Iceberg table, by pyiceberg: no Spark, no Java.

Its mark is a property of the table, which a commit sets together with its snapshot. A commit says on which snapshot it
stands, and the catalogue refuses it if there is a newer one. PyIceberg would then append to the newer one, four times
by default, and two exporters at once would double every event without a word: `commit.retry.num-retries` is 0.
A rollback sets the snapshot back and leaves the properties, so each snapshot says its mark too.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.io import InputFile, OutputFile
from pyiceberg.table import Table, TableProperties
from pyiceberg.transforms import DayTransform

from django_events.exceptions import Invalid, Refused
from django_events.exporting.file_columns import PLAIN, FileColumns
from django_events.exporting.paths import read_as_data
from django_events.exporting.tables.table import (
    COLUMNS,
    INCARNATION,
    NEXT,
    Conflict,
    Mark,
    is_at,
    lost_end,
    lost_mark,
    new_columns,
    refuse_other_values,
)
from django_events.exporting.writing import SCHEMA, ZSTD_LEVEL
from django_events.reading.typed.columns import DATA

NAMESPACE = "events"
CATALOG = "catalog.db"
NO_RETRIES = {TableProperties.COMMIT_NUM_RETRIES: "0"}
PROPERTIES = {
    **NO_RETRIES,
    "write.parquet.compression-codec": "zstd",
    "write.parquet.compression-level": str(ZSTD_LEVEL),
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.metrics.column.value": "none",
    "write.metadata.metrics.column.body": "none",
    "write.metadata.metrics.column.metadata": "none",
}
MERGED = 64 << 20  # bytes of files that one commit of `compact` rewrites in memory


@dataclass(frozen=True)
class Namespace:
    """Where in a catalogue the tables are; and in which folder, if the catalogue is there too."""

    catalog: Catalog
    name: str
    folder: str | None = None


def in_folder(folder: str) -> Namespace:
    """A catalogue in the folder of its tables, in SQLite: for one machine."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    found = read_as_data(path.name for path in Path(folder).iterdir())
    if found and CATALOG not in found:
        raise Refused(f"{folder} holds {found[0]!r}, and no catalogue that knows of it. Take an empty folder.")
    catalog = SqlCatalog("django_events", uri=f"sqlite:///{folder}/{CATALOG}", warehouse=f"file://{folder}")
    return Namespace(catalog, NAMESPACE, folder)


def configured(name: str, namespace: str) -> Namespace:
    """A catalogue that PyIceberg is told of, by `.pyiceberg.yaml` or the environment."""
    try:
        return Namespace(load_catalog(name), namespace)
    except ValueError:  # its text has the address, and with it a password
        raise Invalid(
            f"PyIceberg can't open catalogue {name!r}. Expected its address in .pyiceberg.yaml, or as "
            f"PYICEBERG_CATALOG__{name.upper()}__URI, beginning with http://, https://, thrift://, sqlite:// or "
            "postgresql://, or with a `type` beside it."
        ) from None


class IcebergEvents:
    """An Iceberg table in a catalogue."""

    def __init__(
        self,
        namespace: Namespace,
        topic: str,
        incarnation: str,
        *,
        allow_loss: bool = False,
        columns: FileColumns = PLAIN,
    ) -> None:
        self._catalog, self._name, self._folder = namespace.catalog, (namespace.name, topic), namespace.folder
        self._allow_loss, self._columns = allow_loss, columns
        try:
            self._catalog.create_namespace_if_not_exists(namespace.name)
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
                f"{self._place} is an Iceberg table that no export has made: readers would take both together. Take "
                "another namespace."
            )
        if NEXT not in known:
            if self._table.current_snapshot() is not None:  # "no mark" is the beginning only of a table without rows
                raise lost_mark(self._place)
            return None
        mark = Mark(known[INCARNATION], int(known[NEXT]))
        self._refuse_set_back(mark)
        return mark

    def append(self, events: Iterable[pa.RecordBatch], mark: Mark) -> None:
        self._make_ready()
        columns = self._columns
        if columns.typed is not None:
            columns = columns.after(self._table.schema().as_arrow().field(DATA).type, self._place)
        schema = SCHEMA if columns.typed is None else columns.schema
        table = pa.Table.from_batches(map(columns.conformed, events), schema)
        said = {INCARNATION: mark.incarnation, NEXT: str(mark.next)}
        self._commit(lambda change: change.append(table, snapshot_properties=said), said)

    def _make_ready(self) -> None:
        """Give the table what an append needs; Conflict if it isn't any more what `mark` has seen.

        These commits don't say on which snapshot they stand, and bring the newest one along: without the comparison an
        append would then stand on the one of another exporter.
        """
        seen = self._seen()
        try:
            if lacking := new_columns(self._table.schema().as_arrow(), self._place, self._columns):
                with self._table.update_schema() as update:
                    update.union_by_name(pa.schema(lacking))
            if any(self._table.properties.get(name) != value for name, value in NO_RETRIES.items()):
                with self._table.transaction() as change:
                    change.set_properties(NO_RETRIES)
        except CommitFailedException as error:
            raise Conflict(str(error)) from error
        if self._seen() != seen:
            raise Conflict(f"{self._place} had a commit of another writer.")

    def _seen(self) -> tuple[int | None, str | None, str | None]:
        snapshot, known = self._table.current_snapshot(), self._table.properties
        return snapshot.snapshot_id if snapshot else None, known.get(INCARNATION), known.get(NEXT)

    def compact(self, target_size: int) -> int:
        mark, fewer = self.mark(), 0
        for first, last, files in list(self._small(target_size)):
            self._merge(f"offset >= {first} AND offset <= {last}", {NEXT: str(mark.next)} if mark else {})
            fewer += files - 1
        return fewer

    def _merge(self, within: str, said: dict[str, str]) -> None:
        merged = self._table.scan(row_filter=within).to_arrow().cast(self._table.schema().as_arrow()).sort_by("offset")
        self._commit(lambda change: change.overwrite(merged, within, snapshot_properties=said), {})

    def refuse_other_values(self) -> None:
        refuse_other_values(self._table.properties.get(COLUMNS), self._columns, self._place)

    def close(self) -> None:
        self._catalog.close()

    @property
    def _schema(self) -> pa.Schema:
        return SCHEMA if self._columns.typed is None else self._columns.schema

    @property
    def _place(self) -> str:
        return f"table {'.'.join(self._name)}"

    def _opened(self, incarnation: str) -> Table:
        try:
            return self._loaded()
        except NoSuchTableError:
            pass
        with suppress(TableAlreadyExistsError, CommitFailedException):  # another run may have made it meanwhile
            said = {COLUMNS: self._columns.said} if self._columns.said else {}
            self._make({**PROPERTIES, INCARNATION: incarnation, **said})
        return self._loaded()

    def _loaded(self) -> Table:
        try:
            return _keeping_manifests(self._catalog.load_table(self._name))
        except FileNotFoundError as error:
            raise Refused(
                f"The catalogue has {self._place}, and its files are not where it says: {error} Were they moved? "
                "A catalogue has whole addresses. Move them back, or export to another place."
            ) from error

    def _refuse_copied(self) -> None:
        """Refused if the catalogue in the folder tells of a table elsewhere: it would write to the original."""
        location, here = self._table.location(), f"file://{self._folder}/{'/'.join(self._name)}"
        if self._folder and (location != here or not self._table.metadata_location.startswith(f"{here}/")):
            raise Refused(
                f"{self._folder} is a copy: by its catalogue {self._place} is at {location}, where this export would "
                "write too. Nothing was added. Export to that place, or to an empty folder."
            )

    def _refuse_set_back(self, mark: Mark) -> None:
        """Refused if the current snapshot doesn't build on the one that set the mark."""
        snapshot, said = self._table.current_snapshot(), None
        while snapshot is not None and said is None:  # those of other tools say none
            said = snapshot.summary.additional_properties.get(NEXT) if snapshot.summary else None
            before = snapshot.parent_snapshot_id
            snapshot = self._table.snapshot_by_id(before) if before is not None else None
        if said is None:  # all that said one are expired: the rows tell
            if not self._allow_loss and not is_at(self._newest_offset(), mark):
                raise lost_end(self._place, mark)
        elif said != str(mark.next):
            raise Refused(
                f"{self._place} was set back to an earlier snapshot: by its mark it has the events up to "
                f"{mark.next - 1}, and the newest of them are gone. Nothing was added. Set it to the snapshot that has "
                f"{NEXT} = {mark.next} in its summary, if that is not expired, or export to another place."
            )

    def _newest_offset(self) -> int | None:
        bounds = [_bounds(file)[1] for file in self._table.inspect.data_files().to_pylist()]
        return max((one for one in bounds if one is not None), default=None)

    def _make(self, properties: dict[str, str]) -> None:
        making = self._catalog.create_table_transaction(self._name, self._schema, properties=properties)
        with making as change, change.update_spec() as update:
            update.add_field("timestamp", DayTransform(), "day")

    def _commit(self, work: Callable[[Any], object], properties: dict[str, str]) -> None:
        try:
            with self._table.transaction() as change:
                work(change)
                if properties:
                    change.set_properties(properties)
        except CommitFailedException as error:
            raise Conflict(str(error)) from error

    def _small(self, target_size: int) -> Iterator[tuple[int, int, int]]:
        """Ids from and to of neighbouring files of one day that are small, and how many files they are."""
        files = sorted(
            (day, *file_bounds, file["file_size_in_bytes"])
            for file in self._table.inspect.data_files().to_pylist()
            # Rows of others may have no time, and files of another partitioning no day.
            if None not in (day := file["partition"].get("day"), *(file_bounds := _bounds(file)))
        )
        limit = min(target_size, MERGED)
        group: list[Any] = []
        for file in [*files, None]:
            fits = file and group and file[0] == group[0][0] and sum(one[3] for one in group) + file[3] <= limit
            if group and not fits:
                if len(group) > 1:
                    yield group[0][1], group[-1][2], len(group)
                group = []
            if file and file[3] < limit:
                group.append(file)


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


def _bounds(file: dict[str, Any]) -> tuple[int | None, int | None]:
    offset = file["readable_metrics"]["offset"]
    return offset["lower_bound"], offset["upper_bound"]
