"""Exports with typed columns: files and tables have what events say as columns, and what doesn't fit as text."""

import copy
import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from django.core.management import CommandError
from django.db import connection
from django.db.models import F
from pydantic import BaseModel, Field
from pyiceberg.catalog.sql import SqlCatalog

from django_events import Draft, declarations, schema, upcaster
from django_events.exporting.comparing import compare
from django_events.exporting.comparison import Comparison
from django_events.exporting.file_columns import PLAIN, FileColumns
from django_events.exporting.tables.delta import DeltaEvents
from django_events.exporting.tables.iceberg import IcebergEvents
from django_events.exporting.tables.iceberg_catalogs import in_folder
from django_events.exporting.tables.table import Conflict, EventTable, Mark, Opening
from django_events.management.described import file_columns
from django_events.management.spark import names_of_keys
from django_events.models import Intervention
from django_events.operations import erase
from django_events.reading.dsn import Dsn
from django_events.reading.ranges import Range
from django_events.testing import isolate_declarations
from tests.spark.test_batch import HOSTILE, stored, topic_id
from tests.spark.test_export import incarnation
from tests.support import worst_values
from tests.support.local_exports import run as run_local
from tests.support.logs import move
from tests.support.tables import run as run_table

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X9")]

Log = Callable[..., Any]
LARGE = 9_007_199_254_740_993
EMPTY = dict.fromkeys(("total", "number", "at", "lines", "named", "either"))
FILES = pytest.mark.parametrize(
    "kind", ["parquet", *(pytest.param(k, marks=pytest.mark.slow) for k in ("delta", "iceberg"))]
)
KINDS = pytest.mark.parametrize("kind", ["parquet", "delta", pytest.param("iceberg", marks=pytest.mark.slow)])


class Line(BaseModel):
    sku: str
    price: Decimal


@schema("order.placed")
class Placed(BaseModel):
    total: Decimal
    number: int = 0
    at: datetime | None = None
    lines: list[Line] = []
    named: dict[str, int] = {}
    either: int | str | None = None


@schema("order.paid")
class Paid(BaseModel):
    card: str


@contextmanager
def declared(*models: type[BaseModel], name: str = "things") -> Iterator[None]:
    """A topic of the database, as an app declares it."""
    with isolate_declarations():
        for one in [one for one in declarations.registry if one.name == name]:
            declarations.registry.discard(one)
        declarations.topic(name, schemas=list(models), undescribed="pass", schema_check="off")
        yield


def export(kind: str, topic: Any, folder: Path, *arguments: str) -> str:
    if kind == "parquet":
        return run_local(topic, "--to", folder, *arguments)
    return run_table(topic, "--to", folder, *arguments, format=kind)


def rows(kind: str, folder: Path, topic: str = "things") -> list[dict[str, Any]]:
    """What a reader finds, in the order of the ids."""
    if kind == "parquet":
        files = sorted(map(str, folder.glob(f"topic={topic}/ids=*/day=*/*.parquet")))
        with duckdb.connect() as reader:
            reader.execute("SET TimeZone = 'UTC'")
            asked = "SELECT * FROM read_parquet($files, union_by_name = true, hive_partitioning = false)"
            found = reader.sql(asked, params={"files": files}).to_arrow_table()
    elif kind == "delta":
        found = DeltaTable(f"{folder}/{topic}").to_pyarrow_table()
    else:
        with closing(
            SqlCatalog("django_events", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
        ) as c:
            found = c.load_table(("events", topic)).scan().to_arrow()
    return sorted(found.to_pylist(), key=lambda row: row["offset"])


def placed(**fields: Any) -> Draft:
    return Draft(value=fields, type="order.placed", metadata={"schema_version": 1})


@KINDS
@pytest.mark.requirement("X15")
def test_values_are_columns_and_what_does_not_fit_is_rescued(log: Log, tmp_path: Path, kind: str) -> None:
    moment = datetime(2026, 11, 20, 18, 0, 0, 123456, UTC)
    topic = log(
        placed(
            total="25.00",
            number=LARGE,
            at="2026-11-20T19:00:00.123456+01:00",
            lines=[{"sku": "A", "price": "0.10"}],
            named={"a": 1},
            either="x",
        ),
        placed(total="x", number=5),
        Draft(value={"card": "1"}, type="order.paid"),
        Draft(value={"a": 1}, type="other"),
        Draft(body=b"\0"),
        Draft(value=None, type="order.paid"),
    )

    with declared(Placed, Paid):
        export(kind, topic, tmp_path, "--columns", "typed")

    found = rows(kind, tmp_path)
    assert "value" not in found[0]
    first, second = found[0]["data"]["order_placed"], found[1]["data"]["order_placed"]
    assert (first["total"], first["number"], first["at"].astimezone(UTC)) == (Decimal("25.00"), LARGE, moment)
    assert [(line["sku"], line["price"]) for line in first["lines"]] == [("A", Decimal("0.10"))]
    assert dict(first["named"]) == {"a": 1}
    assert first["either"] == '"x"'
    assert (second["total"], second["number"]) == (None, 5)
    assert found[2]["data"]["order_paid"] == {"card": "1"}
    assert [row["data"] is None for row in found] == [False, False, False, True, True, True]
    assert [row["schema_version"] for row in found] == [1, 1, 1, None, None, None]
    rescued = [row["rescued"] and json.loads(row["rescued"]) for row in found]
    assert rescued == [None, {"total": "x", "number": 5}, None, {"a": 1}, None, None]
    assert (found[4]["body"], found[5]["rescued"]) == (b"\0", "null")


def test_what_is_rescued_is_as_postgresql_has_it(log: Log, tmp_path: Path) -> None:
    strange = [
        *HOSTILE,
        {"total": "1e400"},
        {"total": 10**40},
        {"total": "1", "number": 2**63},
        {"total": 1, "more": 0.1},
    ]
    topic = log(*(Draft(value=value, type="order.placed") for value in strange), placed(total="1"))
    with declared(Placed):
        export("parquet", topic, tmp_path, "--columns", "typed")

    found = rows("parquet", tmp_path)
    assert [row["rescued"] for row in found[:-1]] == [row["value"] for row in stored(topic)[:-1]]
    assert (found[-1]["rescued"], found[-1]["data"]["order_placed"]["total"]) == (None, 1)
    assert found[-3]["data"]["order_placed"] == {**EMPTY, "total": 1}
    assert found[-2]["data"]["order_placed"] == {**EMPTY, "total": 1}


@pytest.mark.requirement("D4")
def test_the_worst_values_are_rescued_and_their_neighbours_are_whole(log: Log, dsn: str, tmp_path: Path) -> None:
    topic = log(placed(total="0"))
    good = """'{"total": "5"}'::jsonb"""
    wrapped = [f"jsonb_build_object('total', 1, 'either', {one})" for one in worst_values.ALL.values()]
    with connection.cursor() as cursor:
        for value in [*worst_values.ALL.values(), *wrapped]:
            for one in (value, good):
                cursor.execute(
                    "INSERT INTO django_events_bufferedevent (topic_id, type, value) "
                    f"SELECT id, 'order.placed', {one} FROM django_events_topic WHERE name = %s",
                    [str(topic)],
                )
    move()
    with declared(Placed):
        export("parquet", topic, tmp_path, "--columns", "typed")

    found = rows("parquet", tmp_path)
    asked = Range(str(topic), topic_id(topic), 1, len(found) + 1)
    texts = pa.Table.from_batches(PLAIN.reader(Dsn(dsn), fetch_size=100, fail_on_data_loss=True).read(asked))
    assert len(found) == 1 + 4 * len(worst_values.ALL)
    for row, text in zip(found, texts["value"].to_pylist(), strict=True):
        if row["offset"] % 2:
            assert (row["rescued"], row["data"]["order_placed"]["total"]) == (None, 5 if row["offset"] > 1 else 0)
        elif row["rescued"] is None and text is not None:
            assert json.loads(row["data"]["order_placed"]["either"] or "null") == json.loads(text)["either"]
        else:
            assert row["rescued"] == text


@KINDS
@pytest.mark.requirement("X15")
def test_fields_are_added_and_a_changed_type_is_refused(log: Log, tmp_path: Path, kind: str) -> None:
    @schema("order.placed", version=2)
    class Grown(BaseModel):
        total: Decimal
        lines: list["GrownLine"] = []
        currency: str

    class GrownLine(BaseModel):
        sku: str
        price: Decimal
        tax: Decimal | None = None

    Grown.model_rebuild(_types_namespace={"GrownLine": GrownLine})

    @schema("order.placed", version=3)
    class Changed(BaseModel):
        total: int
        currency: str

    topic = log(placed(total="1", number=5, lines=[{"sku": "A", "price": "1"}]))
    with declared(Placed):
        export(kind, topic, tmp_path, "--columns", "typed")
    with declared(Grown, Paid):

        @upcaster("order.placed", 1)
        def with_currency(value: dict[str, Any]) -> dict[str, Any]:
            return {"total": value["total"], "lines": value.get("lines", []), "currency": "EUR"}

        log(placed(total="2"), placed(number=5), topic=topic)
        new = {"total": "3", "currency": "CHF", "lines": [{"sku": "B", "price": "1", "tax": "0.2"}]}
        log(Draft(value=new, type="order.placed", metadata={"schema_version": 2}), topic=topic)
        export(kind, topic, tmp_path, "--columns", "typed")

    found = [row["data"] and row["data"]["order_placed"] for row in rows(kind, tmp_path)]
    assert [one and one["total"] for one in found] == [1, 2, None, 3]
    assert [one and one.get("currency") for one in found] == [None, "EUR", None, "CHF"]
    assert [one and one["number"] for one in found] == [5, None, None, None]
    assert found[3]["lines"][0]["tax"] == Decimal("0.2")
    assert [row["schema_version"] for row in rows(kind, tmp_path)] == [1, 2, None, 2]
    assert json.loads(rows(kind, tmp_path)[2]["rescued"]) == {"number": 5}

    log(placed(total="9"), topic=topic)
    with declared(Changed), pytest.raises(CommandError, match=r"data\.order_placed\.total.* is decimal128") as raised:
        export(kind, topic, tmp_path, "--columns", "typed")
    assert raised.value.returncode == 1
    assert len(rows(kind, tmp_path)) == 4


@pytest.mark.requirement("X15")
@pytest.mark.parametrize("kind", ["delta", pytest.param("iceberg", marks=pytest.mark.slow)])
def test_of_two_deploys_that_append_at_once_one_fails(log: Log, dsn: str, tmp_path: Path, kind: str) -> None:
    @schema("order.placed")
    class Noted(BaseModel):
        total: Decimal
        note: str = ""

    topic = log(placed(total="1", number=5), placed(total="2", note="x", number=6))
    before, after = columns_of(topic, Placed), columns_of(topic, Noted)
    old, new = (table_of(kind, tmp_path, topic, columns) for columns in (before, after))
    assert old.mark() is new.mark() is None

    new.append(batches(dsn, topic, after, 1), Mark(incarnation(topic), 2))
    with pytest.raises(Conflict):
        old.append(batches(dsn, topic, before, 1), Mark(incarnation(topic), 2))
    assert old.mark() == Mark(incarnation(topic), 2)
    old.append(batches(dsn, topic, before, 2), Mark(incarnation(topic), 3))
    old.close()
    new.close()

    first, second = (row["data"]["order_placed"] for row in rows(kind, tmp_path))
    assert (first["total"], first["note"], first["number"]) == (1, None, None)
    assert (second["total"], second["note"], second["number"]) == (2, None, 6)
    assert [json.loads(row["rescued"]) for row in rows(kind, tmp_path)] == [
        {"total": "1", "number": 5},
        {"total": "2", "number": 6, "note": "x"},
    ]


def columns_of(topic: Any, *models: type[BaseModel]) -> FileColumns:
    with declared(*models):
        return file_columns([str(topic)], columns="typed", schema=None)[str(topic)]


def table_of(kind: str, folder: Path, topic: Any, columns: FileColumns) -> EventTable:
    if kind == "delta":
        return DeltaEvents(f"{folder}/{topic}", str(topic), incarnation(topic), Opening(columns=columns))
    return IcebergEvents(in_folder(str(folder)), str(topic), incarnation(topic), Opening(columns=columns))


def batches(dsn: str, topic: Any, columns: FileColumns, offset: int) -> list[pa.RecordBatch]:
    reader = columns.reader(Dsn(dsn), fetch_size=100, fail_on_data_loss=True)
    return list(reader.read(Range(str(topic), topic_id(topic), offset, offset + 1)))


@FILES
def test_one_type_by_its_schema(log: Log, tmp_path: Path, kind: str) -> None:
    topic = log(placed(total="1"), Draft(value={"card": "1"}, type="order.paid"))

    with declared(Placed, Paid):
        export(kind, topic, tmp_path, "--schema", "order.placed@1")

        found = rows(kind, tmp_path)
        assert found[0]["data"]["total"] == 1
        assert (found[1]["data"], found[1]["rescued"]) == (None, '{"card": "1"}')
        for other in (["--columns", "typed"], ["--schema", "order.paid"], []):
            with pytest.raises(CommandError, match=r"columns of 'order\.placed'\. This run has them"):
                export(kind, topic, tmp_path, *other)


@FILES
def test_fields_have_the_names_that_events_have(log: Log, tmp_path: Path, kind: str) -> None:
    names = ["a-b", "$x", "\N{LATIN SMALL LETTER U WITH DIAERESIS}", "1st", "select", "offset", "element", "@type"]

    @schema("order-placed/\N{SNOWMAN}")
    class Named(BaseModel):
        a: int = Field(alias="a-b")
        x: int = Field(alias="$x")
        u: int = Field(alias="\N{LATIN SMALL LETTER U WITH DIAERESIS}")
        first: int = Field(alias="1st")
        select: int
        offset: int
        element: int
        at_type: int = Field(alias="@type")
        left_out: int = Field(0, alias="unit price")

    value = {name: n for n, name in enumerate(names)}
    topic = log(Draft(value=value, type="order-placed/\N{SNOWMAN}"))
    log(Draft(value={**value, "unit price": 1}, type="order-placed/\N{SNOWMAN}"), topic=topic)
    with declared(Named):
        export(kind, topic, tmp_path, "--columns", "typed", "--part", "1")

    first, second = rows(kind, tmp_path)
    assert first["data"] == second["data"] == {"order_placed__": value}
    assert (first["rescued"], json.loads(second["rescued"])) == (None, {**value, "unit price": 1})


@FILES
def test_text_stays_text(log: Log, tmp_path: Path, kind: str) -> None:
    topic = log(placed(total="1"))
    with declared(Placed):
        export(kind, topic, tmp_path)
        with pytest.raises(CommandError, match=r"text\. This run has them columns of all types"):
            export(kind, topic, tmp_path, "--columns", "typed")


def test_the_guide_asks_for_them(log: Log, tmp_path: Path) -> None:
    section = Path("docs/how-to/export-events.md").read_text().split("## Typed columns")[1].split("\n## ")[0]
    sums, kept = re.findall(r"^```sql\n(.*?)^```", section, re.DOTALL | re.MULTILINE)

    @schema("order.placed")
    class Bought(BaseModel):
        customer: str
        total: Decimal

    topic = log(*(placed(customer="Ada", total=str(n)) for n in range(5)), placed(total="x"))
    with declared(Bought):
        export("parquet", topic, tmp_path, "--columns", "typed")

    with duckdb.connect() as reader:
        assert reader.sql(sums.replace("/data/typed", str(tmp_path))).fetchall() == [("Ada", Decimal(10))]
        assert reader.sql(kept.replace("/data/typed", str(tmp_path))).fetchall() == [("order.placed", 1)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_small_files_with_columns_are_merged(log: Log, tmp_path: Path, kind: str) -> None:
    topic = log(*(placed(total=str(n), lines=[{"sku": "A", "price": "1"}], named={"a": n}) for n in range(20)))
    with declared(Placed):
        export(kind, topic, tmp_path, "--columns", "typed", "--part", "5")
        before = rows(kind, tmp_path)
        assert "Files that were merged: 3." in export(kind, topic, tmp_path, "--columns", "typed", "--compact")
    assert rows(kind, tmp_path) == before


def test_statistics_tell_which_files_to_open(log: Log, tmp_path: Path) -> None:
    topic = log(*(placed(total=str(n), number=n) for n in range(20)))
    with declared(Placed):
        export("parquet", topic, tmp_path, "--columns", "typed")
    [file] = tmp_path.rglob("part-*.parquet")
    group = pq.read_metadata(file).row_group(0)
    bounds = {group.column(index).path_in_schema: group.column(index).statistics for index in range(group.num_columns)}
    number = bounds["data.order_placed.number"]
    assert (number.min, number.max) == (0, 19)
    assert (bounds["rescued"].null_count, bounds["schema_version"].max, bounds["metadata"]) == (20, 1, None)
    assert pq.read_schema(file).field("data").type.field("order_placed").type.field("total").type == pa.decimal128(
        38, 18
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--columns", "typed", "--format", "json"], "Typed columns are for --format parquet"),
        (["--columns", "typed", "--upcasters", "shop"], "--upcasters is for typed columns with --engine spark"),
        (["--schema", "order.gone"], "No schema describes events of type 'order.gone'"),
        (["--schema", "order.placed@7"], "There is no schema of 'order.placed' version 7"),
    ],
)
def test_what_can_not_be_typed_is_said(log: Log, tmp_path: Path, arguments: list[str], said: str) -> None:
    topic = log(placed(total="1"))
    with declared(Placed), pytest.raises(CommandError, match=said) as raised:
        export("parquet", topic, tmp_path, *arguments)
    assert raised.value.returncode == 2


def test_a_topic_that_describes_nothing_is_said(log: Log, tmp_path: Path) -> None:
    topic = log(placed(total="1"))
    with declared(), pytest.raises(CommandError, match="Topic 'things' describes no events") as raised:
        export("parquet", topic, tmp_path, "--columns", "typed")
    assert raised.value.returncode == 2


@KINDS
@pytest.mark.requirement("X15")
def test_what_is_erased_has_no_columns_any_more(log: Log, tmp_path: Path, kind: str) -> None:
    topic = log(*(placed(total=str(n), lines=[{"sku": "A", "price": "1"}], named={"a": n}) for n in range(3)))
    log(placed(total="x", number=5), topic=topic)
    with declared(Placed):
        export(kind, topic, tmp_path, "--columns", "typed")
        erase(topic, ids=[2, 4], reason="asked for")
        export(kind, topic, tmp_path, "--columns", "typed", "--erase")
        log(placed(total="9"), topic=topic)
        export(kind, topic, tmp_path, "--columns", "typed", "--erase")

    found = rows(kind, tmp_path)
    totals = [row["data"] and row["data"]["order_placed"]["total"] for row in found]
    assert totals == [0, None, 2, None, 9]
    assert [row["rescued"] for row in found] == [None] * 5
    assert "value" not in found[0]


@schema("order.placed", version=2)
class PlacedLater(BaseModel):
    """Since then an order has a currency, and no number."""

    total: Decimal
    at: datetime | None = None
    lines: list[Line] = []
    currency: str


@contextmanager
def declared_later() -> Iterator[None]:
    with declared(PlacedLater):
        upcaster("order.placed", 1)(as_later)
        yield


def as_later(value: dict[str, Any]) -> dict[str, Any]:
    return {"total": value["total"], "lines": value.get("lines", []), "currency": "EUR"}


def later(**fields: Any) -> Draft:
    return Draft(value=fields, type="order.placed", metadata={"schema_version": 2})


def exported_over_a_change(log: Log, kind: str, to: Path) -> Any:
    """What fits and what doesn't, of two versions, in columns of before the change and of since then."""
    line, at = {"sku": "\u00fc", "price": "1.5"}, "2026-03-29T01:30:00.5+02:00"
    topic = log(
        placed(total="1.50", number=7, at=at, lines=[line], named={"a.b": 1}, either=5),
        placed(total="2", either="5"),
        placed(total="x", number=3),
        placed(total="3", currency="not described"),
        Draft(value={"a": 1}, type="other"),
        Draft(value=None, type="order.placed"),
        Draft(body=b"\0", type="order.placed"),
        *(Draft(value=value, type="order.placed") for value in HOSTILE),
    )
    with declared(Placed):
        export(kind, topic, to, "--columns", "typed")
    with declared_later():
        log(
            placed(total="4", lines=[line]),
            placed(number=5),
            later(total="5", currency="CHF", at=at),
            later(total="6", currency=7),
            *(later(total=str(n), currency="EUR") for n in range(400)),
            topic=topic,
        )
        export(kind, topic, to, "--columns", "typed")
    return topic


@KINDS
@pytest.mark.requirement("X15")
def test_typed_columns_are_compared_with_the_log(log: Log, dsn: str, tmp_path: Path, kind: str) -> None:
    topic = exported_over_a_change(log, kind, tmp_path)
    wanted = Comparison(dsn=dsn, topics=(str(topic),), path=str(tmp_path), names=names_of_keys)

    with declared_later():
        found = compare(wanted)

    assert ([(one.kind, one.subject.id, one.what) for one in found.offenders], found.notes) == ([], [])
    assert [one.events for one in found.topics] == [7 + len(HOSTILE) + 404]
    with isolate_declarations():
        found = compare(wanted)
    assert (list(found.offenders), len(found.notes)) == ([], 1)
    first = f"the first is {topic}/{FIRST_LATER}: values of these were not compared. Declare their upcasters."
    assert found.notes[0].startswith(f"1 event of {topic} can't be upcast here as in ") and first in found.notes[0]


def rewritten(kind: str, folder: Path, topic: Any, change: Callable[[dict[int, dict[str, Any]]], None]) -> None:
    """Do to some rows what no export does, by another tool."""

    def changed(rows: pa.Table) -> pa.Table:
        made = rows.to_pylist()
        change({row["offset"]: row for row in made})
        return pa.Table.from_pylist(made, schema=rows.schema)

    if kind == "delta":
        table = DeltaTable(f"{folder}/{topic}")
        write_deltalake(table, changed(table.to_pyarrow_table()), mode="overwrite")
    elif kind == "iceberg":
        with closing(in_folder(str(folder)).catalog) as catalog:
            known = catalog.load_table(("events", str(topic)))
            known.overwrite(changed(known.scan().to_arrow()))
    else:
        for file in folder.rglob("part-*.parquet"):
            pq.write_table(changed(pq.read_table(file, partitioning=None)), file)


FIRST_LATER = 8 + len(HOSTILE)  # the id of the first event since the change
CHANGED: dict[str, tuple[int, str, Callable[[dict[str, Any]], None]]] = {
    "a number": (1, "data", lambda row: row["data"]["order_placed"].update(number=8)),
    "a decimal": (1, "data", lambda row: row["data"]["order_placed"].update(total=Decimal("1.51"))),
    "a time": (1, "data", lambda row: row["data"]["order_placed"].update(at=datetime(2026, 3, 29, tzinfo=UTC))),
    "in a list": (1, "data", lambda row: row["data"]["order_placed"]["lines"][0].update(sku="u")),
    "a line less": (1, "data", lambda row: row["data"]["order_placed"].update(lines=[])),
    "in a map": (1, "data", lambda row: row["data"]["order_placed"].update(named=[("a.b", 2)])),
    "the text of a union": (2, "data", lambda row: row["data"]["order_placed"].update(either="6")),
    "what is told of a rescued one": (3, "data", lambda row: row["data"]["order_placed"].update(number=4)),
    "what was rescued": (3, "rescued", lambda row: row.update(rescued='{"total": "y", "number": 3}')),
    "what was rescued is gone": (3, "data", lambda row: row.update(rescued=None)),
    "what no column told": (5, "data", lambda row: row.update(rescued=None)),
    "what was upcast": (FIRST_LATER, "data", lambda row: row["data"]["order_placed"].update(currency="CHF")),
    "the newer version": (FIRST_LATER + 2, "data", lambda row: row["data"]["order_placed"].update(currency="EUR")),
    "one of many": (FIRST_LATER + 300, "data", lambda row: row["data"]["order_placed"].update(total=Decimal(7))),
    "the version": (FIRST_LATER + 2, "schema_version", lambda row: row.update(schema_version=None)),
    "an older version": (FIRST_LATER + 2, "schema_version", lambda row: row.update(schema_version=1)),
    "all of it": (2, "data", lambda row: row.update(data=None, schema_version=None)),
}


@pytest.mark.requirement("X15")
@pytest.mark.parametrize(
    "kind",
    ["parquet", pytest.param("delta", marks=pytest.mark.slow), pytest.param("iceberg", marks=pytest.mark.long)],
)
def test_each_changed_column_is_told_by_its_address(log: Log, dsn: str, tmp_path: Path, kind: str) -> None:
    topic = exported_over_a_change(log, kind, tmp_path / "whole")
    for number, (event_id, column, change) in enumerate(CHANGED.values()):
        folder = tmp_path / "whole" if kind == "iceberg" else tmp_path / str(number)  # a catalogue can't be copied
        if kind != "iceberg":
            shutil.copytree(tmp_path / "whole", folder)
        before: dict[str, Any] = {}

        def once(rows: dict[int, dict[str, Any]], at: int = event_id, change: Any = change, kept: Any = before) -> None:
            if at in rows:
                kept.update(copy.deepcopy(rows[at]))
                change(rows[at])

        rewritten(kind, folder, topic, once)
        with declared_later():
            found = compare(Comparison(dsn=dsn, topics=(str(topic),), path=str(folder), names=names_of_keys))

        told = [(one.kind, one.subject.id, one.what) for one in found.offenders]
        assert told == [("differs", event_id, f"Its {column} is not that of the log.")]
        if kind == "iceberg":
            rewritten(kind, folder, topic, lambda rows, kept=before: rows[kept["offset"]].update(kept))


@KINDS
@pytest.mark.requirement("X15")
def test_columns_of_one_type_are_compared(log: Log, dsn: str, tmp_path: Path, kind: str) -> None:
    topic = log(placed(total="1", number=2), Draft(value={"card": "x"}, type="order.paid"), placed(total="3"))
    with declared(Placed):
        export(kind, topic, tmp_path, "--schema", "order.placed")
    wanted = Comparison(dsn=dsn, topics=(str(topic),), path=str(tmp_path), names=names_of_keys)
    assert (list(compare(wanted).offenders), compare(wanted).notes) == ([], [])

    rewritten(kind, tmp_path, topic, lambda rows: (rows[1]["data"].update(number=9), rows[2].update(rescued="{}")))

    told = {(one.subject.id, one.what) for one in compare(wanted).offenders}
    assert told == {(1, "Its data is not that of the log."), (2, "Its rescued is not that of the log.")}


@KINDS
@pytest.mark.parametrize("forget", [False, True])
@pytest.mark.requirement("X15")
def test_what_is_erased_is_known_without_the_values(
    log: Log, dsn: str, tmp_path: Path, kind: str, forget: bool
) -> None:
    drafts = [Draft(value={"total": str(n)}, key=f"k{n % 2}", type="order.placed") for n in range(4)]
    topic = log(*drafts, Draft(value={"total": "x"}, key="k0", type="order.placed"), Draft(body=b"1", key="k0"))
    wanted = Comparison(dsn=dsn, topics=(str(topic),), path=str(tmp_path), names=names_of_keys)
    with declared(Placed):
        export(kind, topic, tmp_path, "--columns", "typed")
        erase(topic, key="k0", reason="asked for", forget_key=forget)
        Intervention.objects.update(at=F("at") - timedelta(seconds=5))  # that one had to wait

        found = compare(wanted)

        assert ([one.erased for one in found.topics], list(found.offenders)) == ([0], [])
        assert f"4 events of {topic} that are erased in the log have their payloads" in found.notes[0]

        export(kind, topic, tmp_path, "--columns", "typed", "--erase")

    found = compare(wanted)
    assert ([one.erased for one in found.topics], list(found.offenders)) == ([4], [])
    assert found.notes == []


def test_a_payload_that_is_left_in_typed_columns_is_told(log: Log, dsn: str, tmp_path: Path) -> None:
    topic = log(*(Draft(value={"total": text}, key=text, type="order.placed") for text in ("1", "x", "2")))
    with declared(Placed):
        export("parquet", topic, tmp_path, "--columns", "typed")
        [file] = tmp_path.rglob("part-*.parquet")
        before = file.read_bytes()
        erase(topic, ids=[1, 2], reason="asked for")
        export("parquet", topic, tmp_path, "--columns", "typed", "--erase")
    file.write_bytes(before)

    found = compare(Comparison(dsn=dsn, topics=(str(topic),), path=str(tmp_path), names=names_of_keys))

    assert [(one.kind, one.subject.id) for one in found.offenders] == [("not erased", 1), ("not erased", 2)]


def test_a_file_that_was_erased_in_is_read_as_fast_as_before(log: Log, tmp_path: Path) -> None:
    topic = log(*(placed(total="1.00", lines=[{"sku": "A", "price": "0.10"}]) for _ in range(20)))
    with declared(Placed):
        export("parquet", topic, tmp_path, "--columns", "typed")
        before = footers(tmp_path)
        erase(topic, ids=[2], reason="asked for")
        export("parquet", topic, tmp_path, "--columns", "typed", "--erase")

    assert rows("parquet", tmp_path)[1]["data"] is None
    assert footers(tmp_path) == before
    assert before["data.order_placed.total"] == before["data.order_placed.lines.list.element.price"]


def footers(folder: Path) -> dict[str, Any]:
    """How each column of the only file is written."""
    [file] = folder.rglob("part-*.parquet")
    group = pq.read_metadata(file).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    order = [one.column_index for one in group.sorting_columns]
    return {one.path_in_schema: (one.is_stats_set, one.has_dictionary_page, one.compression, order) for one in columns}


def test_files_whose_fields_became_more_are_compared(log: Log, dsn: str, tmp_path: Path) -> None:
    @schema("order.paid")
    class More(Paid):
        bank: str | None = None

    topic = log(Draft(value={"card": "1"}, type="order.paid"))
    with declared(Paid):
        export("parquet", topic, tmp_path, "--columns", "typed")
    topic.publish({"card": "2", "bank": "b"}, type="order.paid")
    move()
    with declared(More):
        export("parquet", topic, tmp_path, "--columns", "typed")
    erase(topic, ids=[1, 2], reason="asked for")

    found = compare(Comparison(dsn=dsn, topics=(str(topic),), path=str(tmp_path), names=names_of_keys))

    assert (len(found.offenders), found.notes[0].partition(" that")[0]) == (0, f"2 events of {topic}")
