"""A topic as a Delta table, by delta-rs: no Spark, no Java.

Its mark is Delta's own: the version of an application's transaction, which a commit sets together with its files. Two
commits that set the same one conflict, whatever the retries.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, Transaction, WriterProperties, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from django_events.exceptions import Refused
from django_events.exporting.tables.table import Conflict, Mark, new_columns
from django_events.exporting.writing import COMPARED, ROWS_PER_GROUP, SCHEMA, ZSTD_LEVEL

DAY = pa.field("day", pa.date32())  # of `timestamp`, in UTC: Delta has no partitions that aren't columns
WITH_DAY = SCHEMA.append(DAY)
DESCRIPTION = "Events of topic {topic}, by django_events. Incarnation: {incarnation}"
DESCRIBED = re.compile(r"by django_events\. Incarnation: (\S+)")


class DeltaEvents:
    """A Delta table in a folder, or at an address that delta-rs knows."""

    def __init__(self, place: str, topic: str, incarnation: str) -> None:
        self._place, self._topic, self._incarnation = place, topic, incarnation
        self._table = self._opened()

    def mark(self) -> Mark | None:
        self._table.update_incremental()
        found = DESCRIBED.search(self._table.metadata().description or "")
        if found is None:
            raise Refused(
                f"{self._place} is a Delta table that no export has made: readers would take both together. Take "
                "another folder."
            )
        last = self._table.transaction_version(_name(self._topic, found[1]))
        return Mark(found[1], last + 1 if last is not None else 0) if last is not None else None

    def append(self, events: Iterable[pa.RecordBatch], mark: Mark) -> None:
        known = pa.schema(self._table.schema().to_arrow())
        lacking = new_columns(known, self._place)
        failed: list[BaseException] = []
        source = pa.RecordBatchReader.from_batches(WITH_DAY, _noted(_with_day(events), failed))
        transaction = Transaction(_name(self._topic, mark.incarnation), mark.next - 1)
        try:
            write_deltalake(
                self._table,
                source,
                mode="append",
                schema_mode="merge" if lacking else None,
                writer_properties=WRITER,
                commit_properties=CommitProperties(app_transactions=[transaction]),
            )
        except CommitFailedError as error:
            raise Conflict(str(error)) from error
        except Exception:
            if failed:
                raise failed[0] from None
            raise

    def compact(self, target_size: int) -> int:
        self._table.update_incremental()
        try:
            done: dict[str, Any] = self._table.optimize.compact(target_size=target_size, writer_properties=WRITER)
        except CommitFailedError as error:
            raise Conflict(str(error)) from error
        return int(done["numFilesRemoved"] - done["numFilesAdded"])

    def close(self) -> None:
        """Nothing is open between two calls."""

    def _opened(self) -> DeltaTable:
        if not DeltaTable.is_deltatable(self._place):
            self._refuse_foreign()
            try:
                return DeltaTable.create(
                    self._place,
                    WITH_DAY,
                    mode="error",
                    partition_by=[DAY.name],
                    name=self._topic,
                    description=DESCRIPTION.format(topic=self._topic, incarnation=self._incarnation),
                    configuration={"delta.dataSkippingStatsColumns": ",".join(COMPARED)},
                )
            except DeltaError:  # another run may have made it meanwhile
                if not DeltaTable.is_deltatable(self._place):
                    raise
        return DeltaTable(self._place)

    def _refuse_foreign(self) -> None:
        folder = Path(self._place)
        if folder.is_dir() and (found := sorted(path.name for path in folder.iterdir() if path.name != "_delta_log")):
            raise Refused(f"{self._place} holds {found[0]!r}, and is no Delta table. Take an empty folder.")


def _name(topic: str, incarnation: str) -> str:
    return f"django_events/{topic}/{incarnation}"


def _with_day(events: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in events:
        days = pc.cast(pc.floor_temporal(batch["timestamp"].cast(pa.timestamp("us")), unit="day"), pa.date32())
        yield pa.RecordBatch.from_arrays([*batch.columns, days], schema=WITH_DAY)


def _noted(events: Iterator[pa.RecordBatch], failed: list[BaseException]) -> Iterator[pa.RecordBatch]:
    """What an error of ours becomes on its way through Rust is only a text."""
    try:
        yield from events
    except BaseException as error:
        failed.append(error)
        raise


WRITER = WriterProperties(compression="ZSTD", compression_level=ZSTD_LEVEL, max_row_group_size=ROWS_PER_GROUP)
