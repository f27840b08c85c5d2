"""Files of rows that others write for a commit of a table: by threads here, as Spark's tasks do it.

What the table promises is what it promises of events that pass through one process: the same mark, in the same commit.
"""

import json
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from decimal import Decimal
from errno import ENOSPC
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake import Field as DeltaField
from django.core.management import CommandError
from django.db import connection
from pydantic import BaseModel
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import StringType

from django_events import Draft, schema, upcaster
from django_events.exceptions import EventsMissing, Invalid, Refused
from django_events.exporting.file_columns import FileColumns
from django_events.exporting.local import LocalEngine
from django_events.exporting.range_files import RangeFiles
from django_events.exporting.tables import export
from django_events.exporting.tables.delta import DeltaEvents
from django_events.exporting.tables.export import TableExport, TableSummary, export_to_tables
from django_events.exporting.tables.iceberg import IcebergEvents
from django_events.exporting.tables.iceberg_catalogs import NAMESPACE, in_folder
from django_events.exporting.tables.rows_files import RowsFile, folder_on_disk, read_footers
from django_events.exporting.tables.table import Conflict, EventTable, Mark, Opening
from django_events.exporting.writing import ParquetOutput
from django_events.management.described import file_columns
from django_events.operations import erase
from django_events.reading.dsn import Dsn
from django_events.reading.ranges import Range
from django_events.statements import log_table
from tests.integration.exporting.test_comparing import verify
from tests.integration.exporting.test_erasing import without_times_of_erasures
from tests.integration.exporting.test_expiring import rows_on_disk
from tests.integration.exporting.test_table_exports import table_of
from tests.integration.exporting.test_table_partitions import DAYS, offsets
from tests.integration.exporting.test_table_partitions import around_midnight as around_midnight
from tests.integration.exporting.test_typed_exports import Placed, columns_of, declared, placed, rows
from tests.spark.test_batch import HOSTILE, drop_first_segment, publish, stored, topic_id
from tests.spark.test_export import incarnation
from tests.support.fix_topics import compact_topic
from tests.support.lake_files import delta_files, iceberg_files
from tests.support.tables import files_of, read_back, read_by_extension, run

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X15")]

Log = Callable[..., Any]
BOTH = pytest.mark.parametrize("format", ["delta", "iceberg"])
SMALL = 4 << 10  # bytes, so that a commit has several files


class Going:
    """Nothing stops it."""

    requested = False

    def wait(self, seconds: float | None) -> None:
        raise AssertionError("nothing follows")


@pytest.fixture
def by_files(dsn: str, tmp_path: Path) -> Callable[..., TableSummary]:
    """Export to tables by files that threads write."""

    def go(format: str, *, writer: Any = None, **options: Any) -> TableSummary:
        wanted = TableExport(
            **{
                "dsn": dsn,
                "topics": ("things",),
                "path": str(tmp_path),
                "format": format,
                "target_size": SMALL,
                **options,
            }
        )
        return export_to_tables(wanted, stop=Going(), writer=writer or LocalEngine(threads=2))

    return go


@pytest.fixture(autouse=True)
def many_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_events.exporting.range_files.WORTH_A_TASK", SMALL)


@BOTH
def test_a_table_holds_what_postgresql_holds(log: Log, tmp_path: Path, by_files: Any, format: str) -> None:
    drafts = [Draft(value=value, type=f"t{n % 5}", key=str(n)) for n, value in enumerate(HOSTILE * 30)]
    topic = log(*drafts, Draft(body=b"\0\xff"), partitions=3)

    done = by_files(format, events_per_commit=len(drafts) // 2)

    assert (done.events, done.commits) == (len(drafts) + 1, 3)
    assert len(files_of(tmp_path, format)) > 6
    assert read_back(tmp_path, format) == stored(topic)
    assert rows_on_disk(tmp_path) == files_of(tmp_path, format)
    assert verify(tmp_path)[0]["proved"]


@BOTH
def test_the_command_lets_threads_write_them(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(*(Draft(value=n) for n in range(2_000)))

    said = run(topic, "--to", tmp_path, "--threads", 2, "--target-size", "4KB", format=format)

    assert said.startswith("Exported 2,000 events") and said.endswith("in commits: 1.\n")
    assert len(files_of(tmp_path, format)) > 1
    assert read_back(tmp_path, format) == stored(topic)


@pytest.mark.slow
@BOTH
def test_readers_of_the_format_find_the_same(log: Log, tmp_path: Path, by_files: Any, format: str) -> None:
    topic = log(*(Draft(value=value, key=str(n)) for n, value in enumerate(HOSTILE)), Draft(body=b"\0\xff"))
    by_files(format, events_per_commit=5)

    assert read_by_extension(tmp_path, format) == stored(topic)


@BOTH
def test_either_goes_on_where_the_other_has_stopped(log: Log, tmp_path: Path, by_files: Any, format: str) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))
    run(topic, "--to", tmp_path, format=format)
    publish(topic, *range(10))
    assert by_files(format).events == 10
    publish(topic, *range(10))
    assert run(topic, "--to", tmp_path, "--compact", format=format).startswith("Exported 10 events")
    publish(topic, *range(10))
    assert by_files(format, compact=True, target_size=128 << 20).events == 10
    assert by_files(format).commits == 0

    assert read_back(tmp_path, format) == stored(topic)
    assert len(files_of(tmp_path, format)) == 1


def test_of_delta_each_day_is_a_folder_and_a_filter_opens_no_other(
    around_midnight: Any, tmp_path: Path, by_files: Any
) -> None:
    by_files("delta")

    files = delta_files(tmp_path / "things")
    assert {file.day: offsets(file.path) for file in files} == DAYS
    assert [Path(file.path).parent.name for file in files] == [f"day={day}" for day in DAYS]
    Path(files[0].path).unlink()  # whatever opens it now fails
    events = polars.scan_delta(str(tmp_path / "things"))
    assert events.filter(polars.col("offset") > 2).collect()["offset"].sort().to_list() == [3, 4]
    assert events.filter(polars.col("type") > "t1").collect()["offset"].sort().to_list() == [3, 4]
    with pytest.raises(FileNotFoundError):
        events.collect()


def test_of_iceberg_the_day_is_hidden_and_a_filter_opens_no_other(
    around_midnight: Any, tmp_path: Path, by_files: Any
) -> None:
    by_files("iceberg")

    files = iceberg_files(tmp_path, "things")
    assert {file.day: offsets(file.path) for file in files} == DAYS
    with closing(in_folder(str(tmp_path)).catalog) as catalog:
        table = catalog.load_table((NAMESPACE, "things"))
        Path(files[0].path).unlink()
        assert sorted(table.scan("timestamp >= '2026-03-02T00:00:00+00:00'").to_arrow()["offset"].to_pylist()) == [3, 4]
        assert sorted(table.scan("offset > 2").to_arrow()["offset"].to_pylist()) == [3, 4]


@BOTH
def test_what_is_said_of_files_is_what_the_other_way_says(log: Log, tmp_path: Path, by_files: Any, format: str) -> None:
    """Statistics of the same columns with the same values, and of Iceberg the same numbers of columns."""
    log(*(Draft(value=n, type=f"t{n}", key=f"k{n}") for n in range(20)), partitions=2)
    by_files(format, path=str(tmp_path / "files"))
    run("things", "--to", tmp_path / "rows", format=format)

    if format == "delta":
        tables = [DeltaTable(str(tmp_path / name / "things")) for name in ("files", "rows")]
        said = [polars.DataFrame(table.get_add_actions(flatten=True)) for table in tables]
        ours, others = ({k: v for k, v in one.to_dicts()[0].items() if "." in k} for one in said)
        times = {name for name in others if "timestamp" in name or "published_at" in name}
        assert {k: v for k, v in ours.items() if k not in times} == {k: v for k, v in others.items() if k not in times}
        assert all(ours[name] >= others[name] for name in times if name.startswith("max"))
        assert ours["null_count.offset"] == 0
        [commit] = (tmp_path / "files/things/_delta_log").glob("*1.json")
        assert '\\"offset\\"' in commit.read_text() and '\\"key\\"' not in commit.read_text()
    else:
        said = []
        for name in ("files", "rows"):
            with closing(in_folder(str(tmp_path / name)).catalog) as catalog:
                table = catalog.load_table((NAMESPACE, "things"))
                [file] = table.inspect.data_files().to_pylist()
                metrics = file["readable_metrics"]
                for one in metrics.values():
                    one["column_size"] = None
                said.append((metrics, file["partition"], file["record_count"], table.properties.keys()))
        assert said[0] == said[1]
    numbers = [
        [str(pq.ParquetFile(file).schema_arrow.field("offset").metadata) for file in files_of(tmp_path / name, format)]
        for name in ("files", "rows")
    ]
    assert format == "delta" or numbers[0] == numbers[1] != ["None"]


def ready(table: EventTable, dsn: str, topic: Any, start: int, end: int) -> list[RowsFile]:
    """Files of a range, which no commit names yet."""
    made = RangeFiles(
        dsn=Dsn(dsn),
        by=("day",),
        format="parquet",
        target_size=SMALL,
        columns=table.columns_of_rows(),
        allow_loss=False,
    )
    folder = table.folder_of_rows()
    whole = Range(str(topic), topic_id(topic), start, end)
    sent, names = LocalEngine(threads=1).write_range(made, whole, folder, 100)
    files = read_footers(folder, names)
    assert sent == sum(file.rows for file in files) == end - start
    return files


@BOTH
@pytest.mark.parametrize("first_time", [True, False])
def test_of_two_that_add_at_the_same_point_one_fails(
    log: Log, dsn: str, tmp_path: Path, format: str, first_time: bool
) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))
    start = 1 if first_time else 5
    if not first_time:
        run(topic, "--to", tmp_path, "--until", 5, format=format)
    one, other = (table_of(tmp_path, format, topic) for _ in range(2))
    assert one.mark() == other.mark()
    files = ready(one, dsn, topic, start, 11), ready(other, dsn, topic, start, 8)

    one.add(files[0], Mark(incarnation(topic), 11))
    with pytest.raises(Conflict):
        other.add(files[1], Mark(incarnation(topic), 8))
    with pytest.raises(Conflict):
        other.add([], Mark(incarnation(topic), 8))

    assert other.mark() == one.mark() == Mark(incarnation(topic), 11)
    assert read_back(tmp_path, format) == stored(topic)
    one.close()
    other.close()


@BOTH
@pytest.mark.parametrize("comes", ["rows", "columns"])
def test_what_comes_before_the_files_are_written_conflicts_too(
    log: Log, dsn: str, tmp_path: Path, format: str, comes: str
) -> None:
    """Between the look at the mark and the commit that adds a column: the table has moved on from what was seen."""

    @schema("order.placed")
    class Noted(Placed):
        note: str = ""

    topic = log(placed(total="1"), placed(total="2"), placed(total="3", note="x"))
    with declared(Placed):
        run(topic, "--to", tmp_path, "--columns", "typed", "--until", 2, format=format)
    columns = columns_of(topic, Placed), columns_of(topic, Noted)
    old, new = (typed_table(format, tmp_path, topic, one) for one in columns)
    assert old.mark() == new.mark() == Mark(incarnation(topic), 2)
    if comes == "rows":
        old.add(ready(old, dsn, topic, 2, 3), Mark(incarnation(topic), 3))
    else:
        typed_table(format, tmp_path, topic, columns[1]).columns_of_rows()

    if comes == "rows" or format == "delta":
        with pytest.raises(Conflict):
            new.add(ready(new, dsn, topic, 2, 4), Mark(incarnation(topic), 4))
        assert new.mark() == Mark(incarnation(topic), 3 if comes == "rows" else 2)
    old.mark()
    old.close()
    new.close()


def typed_table(format: str, folder: Path, topic: Any, columns: FileColumns) -> EventTable:
    if format == "delta":
        return DeltaEvents(f"{folder}/{topic}", str(topic), incarnation(topic), Opening(columns=columns))
    return IcebergEvents(in_folder(str(folder)), str(topic), incarnation(topic), Opening(columns=columns))


class LineWithTax(BaseModel):
    sku: str
    price: Decimal
    tax: Decimal | None = None


@BOTH
def test_typed_columns_are_added_and_a_changed_type_is_refused(
    log: Log, dsn: str, tmp_path: Path, by_files: Any, format: str
) -> None:
    @schema("order.placed", version=2)
    class PlacedWithTax(BaseModel):
        total: Decimal
        lines: list[LineWithTax] = []
        currency: str

    @schema("order.placed", version=3)
    class PlacedAsWhole(BaseModel):
        total: int
        currency: str

    line = {"sku": "A", "price": "1"}
    topic = log(placed(total="1", number=5, lines=[line], named={"a": 1}), placed(total="x"))
    with declared(Placed):
        by_files(format, columns={"things": columns_of(topic, Placed)})
    log(placed(total="2", lines=[line]), topic=topic)
    log(
        Draft(
            value={"total": "3", "currency": "CHF", "lines": [{**line, "tax": "0.2"}]},
            type="order.placed",
            metadata={"schema_version": 2},
        ),
        topic=topic,
    )
    with declared(PlacedWithTax):

        @upcaster("order.placed", 1)
        def with_currency(value: dict[str, Any]) -> dict[str, Any]:
            return {"total": value["total"], "lines": value.get("lines", []), "currency": "EUR"}

        columns = file_columns([str(topic)], columns="typed", schema=None)
        by_files(format, columns=columns)
        assert verify(tmp_path)[0]["findings"] == []

    found = [row["data"] and row["data"]["order_placed"] for row in rows(format, tmp_path)]
    assert [one and one["total"] for one in found] == [1, None, 2, 3]
    assert [one and one.get("currency") for one in found] == [None, None, "EUR", "CHF"]
    assert found[0]["number"] == 5 and dict(found[0]["named"]) == {"a": 1}
    assert [[line.get("tax") for line in found[n]["lines"]] for n in (0, 2, 3)] == [[None], [None], [Decimal("0.2")]]
    assert json.loads(rows(format, tmp_path)[1]["rescued"]) == {"total": "x"}

    log(placed(total="9"), topic=topic)
    with pytest.raises(Refused, match=r"data\.order_placed\.total.* is decimal128"):
        by_files(format, columns={"things": columns_of(topic, PlacedAsWhole)})
    assert len(rows(format, tmp_path)) == 4


@BOTH
def test_a_long_text_takes_no_row_away_from_readers(
    log: Log, tmp_path: Path, by_files: Any, monkeypatch: pytest.MonkeyPatch, format: str
) -> None:
    """Of a text that is long a row group says no bounds; those of the others are not those of the file."""
    monkeypatch.setattr("django_events.exporting.writing.ROWS_PER_GROUP", 1)
    topic = log(*(Draft(value=text, type="of no schema") for text in ("z" * 9_000, "m", "n")))
    with declared(Placed):
        by_files(format, columns={"things": columns_of(topic, Placed)}, target_size=1 << 20)

    [file] = files_of(tmp_path, format)
    assert pq.read_metadata(file).num_row_groups == 3
    if format == "iceberg":
        with closing(in_folder(str(tmp_path)).catalog) as catalog:
            table = catalog.load_table((NAMESPACE, "things"))
            [metrics] = table.inspect.data_files()["readable_metrics"].to_pylist()
            assert (metrics["rescued"]["upper_bound"], metrics["rescued"]["null_value_count"]) == (None, 0)
            assert metrics["type"]["upper_bound"] == "of no schema"
            assert table.scan("rescued > '\"x'").to_arrow()["offset"].to_pylist() == [1]
    else:
        found = polars.scan_delta(str(tmp_path / "things")).filter(polars.col("rescued") > '"x').collect()
        assert found["offset"].to_list() == [1]


@BOTH
@pytest.mark.parametrize("moment", ["20000-01-01", "0300-01-01 BC", "infinity"])
def test_a_time_that_python_has_not_takes_no_bounds_and_ends_nothing(
    log: Log, tmp_path: Path, by_files: Any, format: str, moment: str
) -> None:
    topic = log(*(Draft(value=n) for n in range(3)))
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {log_table(topic_id(topic))} SET published_at = %s WHERE id = 2", [moment])

    by_files(format)

    with duckdb.connect() as reader:
        found = reader.sql(
            "SELECT published_at::varchar FROM read_parquet($of)", params={"of": files_of(tmp_path, format)}
        )
        assert str(found.fetchall()[1][0])[:4] == {"20": "2000", "03": "0300", "in": "None"}[moment[:2]]
    assert verify(tmp_path)[0]["proved"]


@pytest.mark.parametrize("does", ["merged", "erased in"])
def test_a_file_of_iceberg_that_is_written_anew_takes_no_row_away_from_readers(
    log: Log, tmp_path: Path, by_files: Any, does: str
) -> None:
    """PyIceberg itself writes it: of several row groups it would take the bounds that some of them say."""
    topic = log(*(Draft(value=text, type="of no schema") for text in ("z" * 9_000, "m", "n", "o")))
    with declared(Placed):
        typed = {"columns": {"things": columns_of(topic, Placed)}}
        by_files("iceberg", **typed, **({"events_per_commit": 1} if does == "merged" else {"target_size": 1 << 20}))
        with closing(in_folder(str(tmp_path)).catalog) as catalog:
            change = catalog.load_table((NAMESPACE, "things")).transaction()
            change.set_properties({"write.parquet.row-group-limit": "1"}).commit_transaction()
        if does == "merged":
            run(topic, "--to", tmp_path, "--columns", "typed", "--compact", format="iceberg")
        else:
            erase(topic, ids=[4], reason="asked for")
            run(topic, "--to", tmp_path, "--columns", "typed", "--erase", format="iceberg")

    [file] = files_of(tmp_path, "iceberg")
    assert pq.read_metadata(file).num_row_groups == 1
    with closing(in_folder(str(tmp_path)).catalog) as catalog:
        table = catalog.load_table((NAMESPACE, "things"))
        assert table.scan("rescued > '\"x'").to_arrow()["offset"].to_pylist() == [1]


@BOTH
def test_an_erasure_in_between_is_read_again(log: Log, tmp_path: Path, by_files: Any, format: str) -> None:
    """An export that has read an event before it was erased can't bring it back."""
    topic = log(*(Draft(value={"n": n}, key=f"k{n % 2}") for n in range(20)))
    run(topic, "--to", tmp_path, "--until", 11, format=format)
    times: list[int] = []

    class ErasedMeanwhile(LocalEngine):
        def write_range(self, *of: Any) -> Any:
            written = super().write_range(*of)
            times.append(written[0])
            if len(times) == 1:
                erase(topic, key="k1", reason="asked for")
                with closing(table_of(tmp_path, format, topic)) as other:
                    applied(other, topic, format)
            return written

    by_files(format, writer=ErasedMeanwhile(threads=2))

    assert times == [10, 10]
    assert without_times_of_erasures(read_back(tmp_path, format)) == without_times_of_erasures(stored(topic))
    assert [row["value"] for row in read_back(tmp_path, format) if row["key"] == "k1"] == [None] * 10


def applied(table: EventTable, topic: Any, format: str) -> None:
    """Have the erasures of the log applied in a table, as another export does it."""
    from django_events.exporting.erasing import Applied
    from django_events.exporting.tables.erasing import erase_in_table
    from django_events.management.commands.export_events import _erasing
    from django_events.management.spark import dsn_of
    from django_events.reading import topics as known_topics

    mark = table.mark()
    assert mark is not None
    with Dsn(dsn_of("default")).connected() as connection:
        [one] = known_topics.find(connection, known_topics.TopicChoice(names=(str(topic),)))
        Applied().apply(
            connection,
            one,
            _erasing(None),
            place="here",
            after=table.erased(),
            work=lambda erasures: erase_in_table(table, str(topic), format, erasures),
        )


@BOTH
def test_a_commit_of_another_kind_in_between_is_no_rival(log: Log, tmp_path: Path, by_files: Any, format: str) -> None:
    topic = log(*(Draft(value=n) for n in range(30)))
    run(topic, "--to", tmp_path, "--part", 10, format=format)
    publish(topic, *range(30))
    times: list[int] = []

    class CompactedMeanwhile(LocalEngine):
        def write_range(self, *of: Any) -> Any:
            times.append(1)
            if len(times) == 1:
                with closing(table_of(tmp_path, format, topic)) as other:
                    assert sum(other.compact(1 << 20))
            return super().write_range(*of)

    assert by_files(format, writer=CompactedMeanwhile(threads=2)).events == 30

    assert len(times) == (1 if format == "delta" else 2)  # Delta's commits that merge files don't conflict with others
    assert read_back(tmp_path, format) == stored(topic)


@BOTH
def test_what_a_killed_run_has_left_is_removed(log: Log, dsn: str, tmp_path: Path, by_files: Any, format: str) -> None:
    topic = log(*(Draft(value=n) for n in range(20)))
    by_files(format, until=export.END, events_per_commit=10)
    with closing(table_of(tmp_path, format, topic)) as killed:
        killed.mark()
        left = ready(killed, dsn, topic, 11, 21)
        half = Path(killed.folder_of_rows(), left[0].name.replace("part-", "part-9"))
    half.write_bytes(b"PAR1")  # of a task that was killed while it wrote
    assert len(rows_on_disk(tmp_path)) == len(files_of(tmp_path, format)) + 2

    run(topic, "--to", tmp_path, "--expire", 0, format=format)

    assert rows_on_disk(tmp_path) == files_of(tmp_path, format)
    assert read_back(tmp_path, format) == stored(topic)


@BOTH
def test_files_that_were_begun_before_an_expiry_are_not_added(
    log: Log, dsn: str, tmp_path: Path, by_files: Any, format: str
) -> None:
    """It is held up with its files written; another run removes them, as no commit names them; then it goes on."""
    topic = log(*(Draft(value=n) for n in range(20)))
    by_files(format, events_per_commit=10)
    publish(topic, *range(10))
    with closing(table_of(tmp_path, format, topic)) as late:
        late.mark()
        files = ready(late, dsn, topic, 21, 31)
        run(topic, "--to", tmp_path, "--until", 21, "--expire", 0, format=format)

        with pytest.raises(Conflict):
            late.add(files, Mark(incarnation(topic), 31))

    by_files(format)
    assert read_back(tmp_path, format) == stored(topic)
    assert all(Path(file).exists() for file in files_of(tmp_path, format))


class Disturbed(LocalEngine):
    """Its files are touched before they are committed."""

    def __init__(self, touch: Callable[[Path], object], rows: int = 0) -> None:
        super().__init__(threads=2)
        self._touch, self._more = touch, rows

    def write_range(self, made: RangeFiles, whole: Range, folder: str, bytes_per_row: float) -> tuple[int, list[str]]:
        rows, files = super().write_range(made, whole, folder, bytes_per_row)
        self._touch(Path(folder, files[-1]))
        return rows + self._more, files


@BOTH
@pytest.mark.parametrize("how", ["gone", "cut", "fewer"])
def test_files_that_are_not_whole_are_not_added(log: Log, tmp_path: Path, by_files: Any, format: str, how: str) -> None:
    topic = log(*(Draft(value="x" * 50, key=str(n)) for n in range(300)))
    touch = {
        "gone": Path.unlink,
        "cut": lambda path: path.write_bytes(path.read_bytes()[:-9]),
        "fewer": lambda path: None,
    }[how]
    writer = Disturbed(touch, rows=how == "fewer")
    said = r"300 of 301 events from 1 on were written" if how == "fewer" else r"is not there, though it was written"

    with pytest.raises(Refused, match=said):
        by_files(format, writer=writer)

    assert read_back(tmp_path, format) == []
    assert by_files(format).events == 300
    assert read_back(tmp_path, format) == stored(topic)


@BOTH
def test_a_range_that_lacks_events_is_not_added(
    log: Log, tmp_path: Path, by_files: Any, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tasks that read one range, or one that reads half of it, would not make the number of ids."""
    topic = log(*(Draft(value=n) for n in range(30)))
    cut = RangeFiles.cut

    def one_less(self: RangeFiles, whole: Range, **how: Any) -> list[Range]:
        return cut(self, replace(whole, end=whole.end - 1), **how)

    with monkeypatch.context() as patched:
        patched.setattr(RangeFiles, "cut", one_less)
        with pytest.raises(Refused, match="29 of 30 events from 1 on were read"):
            by_files(format)

    assert read_back(tmp_path, format) == []
    by_files(format)
    assert read_back(tmp_path, format) == stored(topic)


@BOTH
def test_what_a_thread_is_refused_leaves_no_file(
    log: Log, tmp_path: Path, by_files: Any, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*(Draft(value=n) for n in range(2_000)))
    run(topic, "--to", tmp_path, "--until", 11, format=format)
    write, begun = ParquetOutput.write, list[str]()

    def full(self: ParquetOutput, table: Any) -> None:
        write(self, table)
        begun.extend(rows_on_disk(tmp_path))
        raise OSError(ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(ParquetOutput, "write", full)
        with pytest.raises(CommandError, match="The disk is full"):
            run(topic, "--to", tmp_path, "--threads", 2, format=format)

    assert len(set(begun)) > 1
    assert rows_on_disk(tmp_path) == files_of(tmp_path, format)
    assert run(topic, "--to", tmp_path, "--threads", 2, format=format).startswith("Exported 1,990 events")
    assert read_back(tmp_path, format) == stored(topic)


@BOTH
def test_what_other_threads_have_written_goes_if_one_is_refused(
    log: Log, tmp_path: Path, by_files: Any, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk each run would take more of it, for files that no commit names."""
    log(*(Draft(value=n) for n in range(2_000)))
    write, close, is_whole = ParquetOutput.write, ParquetOutput.close, threading.Event()

    def refused(self: ParquetOutput, table: Any) -> None:
        if table["offset"][0].as_py() > 1:
            assert is_whole.wait(30)
            raise OSError(ENOSPC, "No space left on device")
        write(self, table)

    def noted(self: ParquetOutput) -> None:
        close(self)
        is_whole.set()

    monkeypatch.setattr(ParquetOutput, "write", refused)
    monkeypatch.setattr(ParquetOutput, "close", noted)
    with pytest.raises(OSError, match="No space left"):
        by_files(format)

    assert is_whole.is_set() and not rows_on_disk(tmp_path)


@BOTH
def test_what_retention_removes_meanwhile_is_said(log: Log, tmp_path: Path, by_files: Any, format: str) -> None:
    topic = log(*(Draft(value=n) for n in range(250)), segment_size=100)
    run(topic, "--to", tmp_path, "--until", 11, format=format)

    class RemovedMeanwhile(LocalEngine):
        def write_range(self, *of: Any) -> Any:
            drop_first_segment(topic)
            return super().write_range(*of)

    with pytest.raises(EventsMissing):
        by_files(format, writer=RemovedMeanwhile(threads=1))

    assert rows_on_disk(tmp_path) == files_of(tmp_path, format)
    assert by_files(format, allow_loss=True).events == 150


@BOTH
def test_a_range_that_compaction_has_emptied_moves_the_mark(
    log: Log, tmp_path: Path, by_files: Any, format: str
) -> None:
    topic = log(*(Draft(value=n, key=str(n % 7)) for n in range(450)), segment_size=100, compact=True)
    compact_topic(topic)

    done = by_files(format, events_per_commit=100)

    assert (done.commits, done.events) == (5, 57)
    assert read_back(tmp_path, format) == stored(topic)
    assert verify(tmp_path)[0]["proved"]


def test_a_table_that_asks_for_another_writer_is_refused(log: Log, tmp_path: Path, by_files: Any) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))
    run(topic, "--to", tmp_path, format="delta")
    DeltaTable(f"{tmp_path}/{topic}").alter.add_constraint({"dense": '"offset" > 0'})
    publish(topic, 1)

    with pytest.raises(Refused, match=r"has delta\.constraints\.dense set, which Spark's tasks and threads don't heed"):
        by_files("delta")

    assert run(topic, "--to", tmp_path, format="delta").startswith("Exported 1 events")


def test_a_table_with_other_partitions_is_refused(log: Log, tmp_path: Path, by_files: Any) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))
    run(topic, "--to", tmp_path, format="iceberg")
    with closing(in_folder(str(tmp_path)).catalog) as catalog:
        known = catalog.load_table((NAMESPACE, str(topic)))
        with known.update_spec() as update:
            update.add_field("type", IdentityTransform(), "type")
    publish(topic, 1)

    with pytest.raises(Refused, match="is partitioned by day, type, and Spark's tasks, or threads, write files"):
        by_files("iceberg")

    assert run(topic, "--to", tmp_path, format="iceberg").startswith("Exported 1 events")


@BOTH
def test_columns_of_others_are_left_to_them(log: Log, tmp_path: Path, by_files: Any, format: str) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))
    run(topic, "--to", tmp_path, format=format)
    if format == "delta":
        DeltaTable(f"{tmp_path}/{topic}").alter.add_columns(DeltaField("note", "string"))
    else:
        with closing(in_folder(str(tmp_path)).catalog) as catalog:
            known = catalog.load_table((NAMESPACE, str(topic)))
            with known.update_schema() as update:
                update.add_column("note", StringType())
    publish(topic, *range(10))

    by_files(format)

    assert [(row["offset"], row["note"]) for row in rows(format, tmp_path)] == [(n, None) for n in range(1, 21)]


def test_an_object_store_is_refused() -> None:
    with pytest.raises(
        Invalid, match="Neither Spark's tasks nor threads write the files of a table to 's3://bucket/lake'"
    ):
        folder_on_disk("s3://bucket/lake")
    assert folder_on_disk("file:///data/lake") == "/data/lake"
