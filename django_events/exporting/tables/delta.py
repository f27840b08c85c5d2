"""A topic as a Delta table, by delta-rs: no Spark, no Java.

Its mark is Delta's own: the version of an application's transaction, which a commit sets together with its files. Two
commits that set the same one conflict, whatever the retries. RESTORE sets the rows back and leaves the mark, so each
append also says its mark in the history, which tells whether it was undone.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import FileSelector, PyFileSystem

from django_events.exceptions import Refused
from django_events.exporting.blanking import ERASED_METADATA, LEFT
from django_events.exporting.erasures import LastErasure
from django_events.exporting.file_columns import FileColumns
from django_events.exporting.paths import read_as_data, split
from django_events.exporting.storage import make_folder
from django_events.exporting.tables.delta_expiring import (
    DeltaFiles,
    DeltaLog,
    commits_among,
    folder_of,
    written_before,
)
from django_events.exporting.tables.delta_files import added
from django_events.exporting.tables.expiring import RemovedVersions, moment_of, not_named, remove
from django_events.exporting.tables.folders import files_of_table
from django_events.exporting.tables.rows_files import RowsFile, folder_on_disk, other_partitions
from django_events.exporting.tables.table import (
    COLUMNS,
    DEFAULTS,
    ERASED,
    EVENTS,
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
from django_events.exporting.writing import COMPARED, ROWS_PER_GROUP, SCHEMA, ZSTD_LEVEL
from django_events.reading.typed.columns import DATA

DAY = pa.field("day", pa.date32())  # of `timestamp`, in UTC: Delta has no partitions that aren't columns
WITH_DAY = SCHEMA.append(DAY)
DESCRIPTION = "Events of topic {topic}, by django_events"
# Delta's log has the least and the greatest value of a column in each file, and keeps them longer than the file: a key
# that was forgotten would stay there.
IN_STATISTICS = [name for name in COMPARED if name != "key"]
COMMITS_PER_CHECKPOINT = 10  # as Spark has it; delta-rs would write one for each 100
# Numbers beside the mark; the last one is when the last erasure began, as a version can be nothing else.
OF_FIRST, OF_GREATEST, OF_ERASURES, OF_TIMES = "first", "greatest", "erasures", "times of erasures"
FEW, MORE = 4, 8  # commits that are looked at first, and how many times as many each time after
EXPIRED = "django-events.expired"  # the version in which files were looked for that no commit has named
CHANGES = "delta.enableChangeDataFeed"
CONSTRAINTS, COLUMN_NAMES = "delta.constraints.", "delta.columnMapping.mode"


class DeltaEvents(OpenedTable):
    """A Delta table in a folder, or at an address that delta-rs knows."""

    _partitions: ClassVar = [DAY.name]

    def __init__(self, place: str, topic: str, incarnation: str, how: Opening = DEFAULTS) -> None:
        super().__init__(how)
        self._place, self._topic, self._incarnation = place, topic, incarnation
        self._table = self._opened()
        self._whole_at: int | None = None  # the version that was last found to have all rows of its mark
        self._files = DeltaFiles()

    def mark(self) -> Mark | None:
        self._table.update_incremental()
        made_for = self._made_for()
        last = self._table.transaction_version(_name(self._topic, made_for))
        if last is None:
            if self._table.file_uris():  # "no mark" is the beginning only of a table without rows
                raise lost_mark(self._place)
            return None
        mark = Mark(made_for, last + 1, self._table.transaction_version(_name(self._topic, made_for, OF_FIRST)))
        self._refuse_set_back(mark)
        return mark

    def append(self, events: Iterable[pa.RecordBatch], mark: Mark) -> None:
        self._refuse_anew(mark)
        self._append(events, self._saying(mark))
        self.lost_end = False

    def folder_of_rows(self) -> str:
        return folder_on_disk(self._place)

    def columns_of_rows(self) -> FileColumns:
        self._refuse_unheeded()
        seen = self._table.version()
        if new_columns(pa.schema(self._table.schema().to_arrow()), self._place, self._columns):
            self._append([], CommitProperties())
            if self._table.version() != seen + 1:  # what comes next would stand on a commit that `mark` hasn't seen
                raise Conflict(f"{self._place} had a commit of another writer.")
        return self._columns_here()

    def add(self, files: Sequence[RowsFile], mark: Mark) -> None:
        if not files:
            self.append([], mark)
            return
        self._refuse_anew(mark)
        try:
            self._table.create_write_transaction(
                [added(file, partition=DAY.name, compared=IN_STATISTICS) for file in files],
                "append",
                self._table.schema(),
                partition_by=self._partitions,
                commit_properties=self._saying(mark),
            )
        except CommitFailedError as error:
            raise Conflict(str(error)) from error
        self._table.update_incremental()
        self.lost_end = False

    def _refuse_unheeded(self) -> None:
        """Refused if the table asks of its writers what is only done where rows pass through delta-rs."""
        known = self._table.metadata()
        if known.partition_columns != self._partitions:
            raise other_partitions(self._place, ", ".join(known.partition_columns) or "nothing")
        for name, value in known.configuration.items():
            if name.startswith(CONSTRAINTS) or (name == COLUMN_NAMES and value != "none"):
                raise Refused(
                    f"{self._place} has {name} set, which Spark's tasks and threads don't heed. Nothing was added. "
                    "Leave --engine spark and --threads out, or take that setting away."
                )

    def _refuse_anew(self, mark: Mark) -> None:
        if mark.incarnation != self._made_for():  # `mark` looks for the one that the table was made for
            raise Refused(
                f"Topic {self._topic!r} was made anew since {self._place} was made for it, and its ids began again. "
                "Nothing was added. Take another folder, or remove that table: no export has added an event to it."
            )

    def _shaped(self, events: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Events with the columns of the table."""
        return _with_day(events, schema)

    def _shape_of(self, columns: FileColumns) -> pa.Schema:
        """The columns of a table whose events have these."""
        return WITH_DAY if columns.typed is None else columns.schema.append(DAY)

    def _append(self, events: Iterable[pa.RecordBatch], saying: CommitProperties) -> None:
        known = pa.schema(self._table.schema().to_arrow())
        # Another tool may add columns.
        differs = bool(new_columns(known, self._place, self._columns)) or len(known) > len(self._schema)
        columns = self._columns_here()
        schema = self._schema if columns.typed is None else self._shape_of(columns)
        failed: list[BaseException] = []
        batches = self._shaped(map(columns.conformed, events), schema)
        source = pa.RecordBatchReader.from_batches(schema, _noted(batches, failed))
        try:
            write_deltalake(
                self._table,
                source,
                mode="append",
                schema_mode="merge" if differs else None,
                writer_properties=WRITER,
                commit_properties=saying,
            )
        except CommitFailedError as error:
            raise Conflict(str(error)) from error
        except Exception:
            if failed:
                raise failed[0] from None
            raise

    def _columns_here(self) -> FileColumns:
        """The columns of events, with the fields that the table has already."""
        known = pa.schema(self._table.schema().to_arrow())
        if self._columns.typed is None or DATA not in known.names:
            return self._columns
        return self._columns.after(known.field(DATA).type, self._place)

    def _saying(
        self, mark: Mark, *, erased: LastErasure | None = None, greatest: int | None = None
    ) -> CommitProperties:
        """What a commit sets and says. Of two that set one version, even the same, the second conflicts."""
        said, versions = {NEXT: str(mark.next)}, {"": mark.next - 1, OF_FIRST: mark.first, OF_GREATEST: greatest}
        if self._marked(mark) is None and self.first_erased.number:
            erased = self.first_erased
        if erased is not None:
            said[ERASED] = str(erased.number)
            versions |= {OF_ERASURES: erased.number, OF_TIMES: erased.at}
        transactions = [
            Transaction(_name(self._topic, mark.incarnation, of), version)
            for of, version in versions.items()
            if version is not None
        ]
        return CommitProperties(custom_metadata=said, app_transactions=transactions)

    def _marked(self, mark: Mark) -> int | None:
        """The last id by the mark of this incarnation, in the version that is loaded."""
        return self._table.transaction_version(_name(self._topic, mark.incarnation))

    def _greatest(self, mark: Mark) -> int | None:
        """The greatest id of a row of a table of states, as the commit of the mark or a later one says it."""
        return self._table.transaction_version(_name(self._topic, mark.incarnation, OF_GREATEST))

    def erased(self) -> int:
        return self._table.transaction_version(_name(self._topic, self._made_for(), OF_ERASURES)) or 0

    def last_erasure(self) -> LastErasure:
        at = self._table.transaction_version(_name(self._topic, self._made_for(), OF_TIMES))
        return LastErasure(self.erased(), at or 0)

    def version(self) -> int:
        return self._table.version()

    def keys(self, until: int) -> Iterator[pa.RecordBatch]:
        rows = self._table.to_pyarrow_dataset()
        yield from rows.to_batches(columns=["offset", "key"], filter=pc.field("offset") <= until)

    def blank(self, erased: pa.Table, mark: Mark) -> int:
        self._refuse_changes()
        first, last = erased["offset"][0].as_py(), erased["offset"][-1].as_py()
        payload = [name for name in pa.schema(self._table.schema().to_arrow()).names if name not in LEFT]
        there = [*(f"t.{_quoted(name)} IS NOT NULL" for name in payload), f"t.metadata NOT LIKE '{ERASED_METADATA}'"]
        has_payload = " OR ".join(there)
        blanks = {_quoted(name): "NULL" for name in payload}
        try:
            done = (
                self._table.merge(
                    erased,
                    f't."offset" = s."offset" AND t."offset" >= {first} AND t."offset" <= {last}',
                    source_alias="s",
                    target_alias="t",
                    writer_properties=WRITER,
                    commit_properties=self._saying(mark),
                )
                .when_matched_update({"key": "s.key", "metadata": "s.metadata", **blanks}, has_payload)
                .when_matched_update({"key": "s.key"}, "t.key <> s.key")
                .execute()
            )
        except CommitFailedError as error:
            raise Conflict(str(error)) from error
        return int(done["num_target_rows_updated"])

    def _refuse_changes(self) -> None:
        """Refused if the table keeps a feed of its changes: what is erased would be written anew, for its readers."""
        if (self._table.metadata().configuration.get(CHANGES) or "").lower() == "true":
            raise Refused(
                f"{self._place} has {CHANGES} set, so that whatever --erase takes away would be written anew in "
                "_change_data, where VACUUM leaves it. Nothing was erased. Set it to false, remove that folder, and "
                "run this again."
            )

    def say_erased(self, last: LastErasure, mark: Mark) -> None:
        self._append([], self._saying(mark, erased=last))

    def compact(self, target_size: int) -> Iterator[int]:
        self._table.update_incremental()
        try:
            done: dict[str, Any] = self._table.optimize.compact(target_size=target_size, writer_properties=WRITER)
        except CommitFailedError as error:
            raise Conflict(str(error)) from error
        yield int(done["numFilesRemoved"] - done["numFilesAdded"])

    def expire(self, age: timedelta, stopped: Callable[[], bool]) -> RemovedVersions:
        done = RemovedVersions()
        try:
            with done.refusing(self.place):
                self._remove(age, done, stopped)
        except FileNotFoundError as error:  # another tool has removed a commit that was read
            raise Conflict(str(error)) from error
        return done

    def _remove(self, age: timedelta, done: RemovedVersions, stopped: Callable[[], bool]) -> None:
        mark, before = self.mark(), moment_of(time.time(), age)
        if mark is None:
            return
        folder = folder_of(self._place)
        there = files_of_table(folder)
        log = DeltaLog(there, folder, newest=self._table.version(), before=before)
        written = written_before(there, folder, before, partitions=self._table.metadata().partition_columns)
        unnamed = not_named(written, self._files.names(self._table, folder, log))
        if stopped() or not (unnamed or log.is_worth_a_commit):
            return
        if log.needs_checkpoint:
            self._table.create_checkpoint()
        if not_named(unnamed, self._files.former(folder, log)):
            self._refuse_what_was_begun(mark)
        else:
            self._append([], self._saying(mark))  # the mark stays in the history
        self._table.update_incremental()
        # They are read before commits go that another tool may remove too.
        named = self._files.names(self._table, folder, log)
        done.versions += commits_among(remove(done, folder, log.going, stopped=stopped))
        remove(done, folder, not_named(written, named), stopped=stopped)
        done.is_all = not age and not stopped() and not self._has_keys_in_log()

    def _has_keys_in_log(self) -> bool:
        """Whether the log has keys in its statistics, which stay until checkpoints with them go."""
        columns = self._table.metadata().configuration.get("delta.dataSkippingStatsColumns")
        return columns is None or "key" in [name.strip(" `") for name in columns.split(",")]

    def _refuse_what_was_begun(self, mark: Mark) -> None:
        """Make a commit that each commit conflicts with which was begun before, also one that only merges files."""
        last = {EXPIRED: str(self._table.version())}
        try:
            self._table.alter.set_table_properties(
                last, raise_if_not_exists=False, commit_properties=self._saying(mark)
            )
        except CommitFailedError as error:
            raise Conflict(str(error)) from error

    def thin(self, age: timedelta) -> RemovedVersions:
        """None goes: checkpoints make commits take the same time, however many versions there are."""
        return RemovedVersions()

    def values(self) -> str:
        return self._table.metadata().configuration.get(COLUMNS) or ""

    def close(self) -> None:
        """Nothing is open between two calls."""

    @property
    def place(self) -> str:
        return self._place

    @property
    def _schema(self) -> pa.Schema:
        return self._shape_of(self._columns)

    def _opened(self) -> DeltaTable:
        if not DeltaTable.is_deltatable(self._place):
            self._refuse_foreign()
            if (folder := _on_disk(self._place)) is not None:
                make_folder(folder)  # delta-rs would, and say less of why it can't
            try:
                return DeltaTable.create(
                    self._place,
                    self._schema,
                    mode="error",
                    partition_by=self._partitions,
                    name=self._topic,
                    description=DESCRIPTION.format(topic=self._topic),
                    configuration={
                        INCARNATION: self._incarnation,
                        **({COLUMNS: self._columns.said} if self._columns.said else {}),
                        **self._said_of_rows(),
                        "delta.dataSkippingStatsColumns": ",".join(IN_STATISTICS),
                        "delta.checkpointInterval": str(COMMITS_PER_CHECKPOINT),
                    },
                    raise_if_key_not_exists=False,  # the one of ours is none of Delta's
                )
            except DeltaError:  # another run may have made it meanwhile
                if not DeltaTable.is_deltatable(self._place):
                    raise
        return DeltaTable(self._place)

    def _made_for(self) -> str:
        """The incarnation of the topic that the table was made for; Refused if no export has made it."""
        known: dict[str, str] = self._table.metadata().configuration
        if INCARNATION not in known:
            raise Refused(
                f"{self._place} is a Delta table that no export has made: readers would take both together. Take "
                "another folder."
            )
        if (kind := kind_of(self._table)) != self.kind:
            raise other_kind(self._place, kind)
        return known[INCARNATION]

    def _refuse_foreign(self) -> None:
        if found := read_as_data(_names(self._place)):
            raise Refused(f"{self._place} holds {found[0]!r}, and is no Delta table. Take an empty folder.")

    def _refuse_set_back(self, mark: Mark) -> None:
        """Refused if a RESTORE has undone the append that set the mark."""
        version = self._table.version()
        if version == self._whole_at:
            return
        kept = version  # the newest version whose rows are there
        for commit in self._commits():
            if commit.get(NEXT) == str(mark.next):
                if commit["version"] > kept:
                    raise self._set_back(mark, f"Restore version {commit['version']} or a later one to go on, or e")
                break
            if commit.get("operation") == "RESTORE" and commit["version"] <= kept:
                restored = commit["operationParameters"].get("version")
                if restored is None and self._is_whole(mark):
                    break  # it was said as a time: the rows tell
                kept = int(restored) if restored is not None else -1
        else:  # the history is cleaned up to there
            if not self._is_whole(mark):
                if kept < version:
                    raise self._set_back(mark, "E")
                if not self._allow_loss:
                    raise lost_end(self._place, mark)
                self.lost_end = True
        self._whole_at = version

    def _set_back(self, mark: Mark, advice: str) -> Refused:
        return Refused(
            f"{self._place} was set back to an earlier version: by its mark it has the events up to {mark.next - 1}, "
            f"and the newest of them are gone. Nothing was added. {advice}xport to another place."
        )

    def _commits(self) -> Iterator[dict[str, Any]]:
        """The history, the newest commit first, and only as much of it as is asked for."""
        seen, limit = 0, FEW
        while len(found := self._table.history(limit)) > seen:
            yield from found[seen:]
            seen, limit = len(found), limit * MORE

    def _is_whole(self, mark: Mark) -> bool:
        """Whether the rows are those of the mark, where the history doesn't say it."""
        return is_at(self._newest_offset(), mark)

    def _newest_offset(self) -> int | None:
        files = pa.table(self._table.get_add_actions(flatten=True))
        return pc.max(files["max.offset"]).as_py() if "max.offset" in files.column_names else None


def kind_of(table: DeltaTable) -> str:
    """What a row of a table stands for: an event, or the state of a key."""
    return table.metadata().configuration.get(KIND) or EVENTS


def _names(place: str) -> list[str]:
    """The names in a folder, or below a prefix of an object store."""
    if (folder := _on_disk(place)) is not None:
        return [path.name for path in folder.iterdir()] if folder.is_dir() else []
    store = PyFileSystem(DeltaStorageHandler(place))
    return [found.base_name for found in store.get_file_info(FileSelector("", allow_not_found=True))]


def _on_disk(place: str) -> Path | None:
    """The folder at a place; None in an object store."""
    scheme, _, path = split(place)
    return Path(path) if scheme in ("", "file") else None


def _name(topic: str, incarnation: str, of: str = "") -> str:
    """What a number that a commit sets is called: the mark, or another one beside it."""
    return f"django_events{of and f' {of}'}/{topic}/{incarnation}"


def _quoted(name: str) -> str:
    """A column in an expression of DataFusion."""
    return '"' + name.replace('"', '""') + '"'


def _with_day(events: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for batch in events:
        days = pc.cast(pc.floor_temporal(batch["timestamp"].cast(pa.timestamp("us")), unit="day"), pa.date32())
        yield pa.RecordBatch.from_arrays([*batch.columns, days], schema=schema)


def _noted(events: Iterator[pa.RecordBatch], failed: list[BaseException]) -> Iterator[pa.RecordBatch]:
    """What an error of ours becomes on its way through Rust is only a text."""
    try:
        yield from events
    except BaseException as error:
        failed.append(error)
        raise


WRITER = WriterProperties(compression="ZSTD", compression_level=ZSTD_LEVEL, max_row_group_size=ROWS_PER_GROUP)
