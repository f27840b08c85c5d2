"""A topic as an Iceberg table, by pyiceberg: no Spark, no Java.

Its mark is a property of the table, which a commit sets together with its snapshot. A commit says on which snapshot it
stands, and the catalogue refuses it if there is a newer one. PyIceberg would then append to the newer one, four times
by default, and two exporters at once would double every event without a word: `commit.retry.num-retries` is 0.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, TableAlreadyExistsError
from pyiceberg.table import Table, TableProperties
from pyiceberg.transforms import DayTransform

from django_events.exceptions import Invalid, Refused
from django_events.exporting.tables.table import Conflict, Mark, new_columns
from django_events.exporting.writing import SCHEMA, ZSTD_LEVEL

NAMESPACE = "events"
CATALOG = "catalog.db"
INCARNATION, NEXT = "django-events.incarnation", "django-events.next"
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


def in_folder(folder: str) -> tuple[Catalog, str]:
    """A catalogue in the folder of its tables, in SQLite: for one machine."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    found = sorted(path.name for path in Path(folder).iterdir() if path.name != "lost+found")
    if found and CATALOG not in found:
        raise Refused(f"{folder} holds {found[0]!r}, and no catalogue that knows of it. Take an empty folder.")
    catalog = SqlCatalog("django_events", uri=f"sqlite:///{folder}/{CATALOG}", warehouse=f"file://{folder}")
    return catalog, NAMESPACE


def configured(name: str, namespace: str) -> tuple[Catalog, str]:
    """A catalogue that PyIceberg is told of, by `.pyiceberg.yaml` or the environment."""
    try:
        return load_catalog(name), namespace
    except ValueError:  # its text has the address, and with it a password
        raise Invalid(
            f"PyIceberg can't open catalogue {name!r}. Expected its address in .pyiceberg.yaml, or as "
            f"PYICEBERG_CATALOG__{name.upper()}__URI, beginning with http://, https://, thrift://, sqlite:// or "
            "postgresql://, or with a `type` beside it."
        ) from None


class IcebergEvents:
    """An Iceberg table in a catalogue."""

    def __init__(self, catalog: Catalog, namespace: str, topic: str, incarnation: str) -> None:
        self._catalog, self._name = catalog, (namespace, topic)
        try:
            catalog.create_namespace_if_not_exists(namespace)
            self._table = self._opened(incarnation)
        except BaseException:
            catalog.close()
            raise

    def mark(self) -> Mark | None:
        self._table.refresh()
        known = self._table.properties
        if INCARNATION not in known:
            raise Refused(
                f"{self._place} is an Iceberg table that no export has made: readers would take both together. Take "
                "another namespace."
            )
        return Mark(known[INCARNATION], int(known[NEXT])) if NEXT in known else None

    def append(self, events: Iterable[pa.RecordBatch], mark: Mark) -> None:
        self._make_ready()
        table = pa.Table.from_batches(events, SCHEMA)
        self._commit(lambda change: change.append(table), {INCARNATION: mark.incarnation, NEXT: str(mark.next)})

    def _make_ready(self) -> None:
        """Give the table what an append needs; Conflict if it isn't any more what `mark` has seen.

        These commits don't say on which snapshot they stand, and bring the newest one along: without the comparison an
        append would then stand on the one of another exporter.
        """
        seen = self._seen()
        try:
            if lacking := new_columns(self._table.schema().as_arrow(), self._place):
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
        self._table.refresh()
        fewer = 0
        for first, last, files in list(self._small(target_size)):
            self._merge(f"offset >= {first} AND offset <= {last}")
            fewer += files - 1
        return fewer

    def _merge(self, within: str) -> None:
        merged = self._table.scan(row_filter=within).to_arrow().cast(self._table.schema().as_arrow()).sort_by("offset")
        self._commit(lambda change: change.overwrite(merged, within), {})

    def close(self) -> None:
        self._catalog.close()

    @property
    def _place(self) -> str:
        return f"table {'.'.join(self._name)}"

    def _opened(self, incarnation: str) -> Table:
        try:
            return self._catalog.load_table(self._name)
        except NoSuchTableError:
            pass
        with suppress(TableAlreadyExistsError, CommitFailedException):  # another run may have made it meanwhile
            self._make({**PROPERTIES, INCARNATION: incarnation})
        return self._catalog.load_table(self._name)

    def _make(self, properties: dict[str, str]) -> None:
        making = self._catalog.create_table_transaction(self._name, SCHEMA, properties=properties)
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
            (file["partition"]["day"], *file_bounds, file["file_size_in_bytes"])
            for file in self._table.inspect.data_files().to_pylist()
            if None not in (file_bounds := _bounds(file))
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


def _bounds(file: dict[str, Any]) -> tuple[int, int]:
    offset = file["readable_metrics"]["offset"]
    return offset["lower_bound"], offset["upper_bound"]
