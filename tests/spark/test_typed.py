"""Typed columns in Spark: what a schema describes has types, and what doesn't fit is text beside it."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from django.core.management import CommandError
from pydantic import BaseModel

from django_events import Draft, schema
from django_events.contracts.files import write
from django_events.declarations import registry
from django_events.reading.typed.evolution import plain
from django_events.spark.exporting import tasks
from tests.integration.exporting.test_typed_exports import LARGE, Paid, Placed, declared, export, placed, rows
from tests.spark.test_export import run

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X9")]

Log = Callable[..., Any]
Read = Callable[..., Any]
FULL = placed(
    total="25.00",
    number=LARGE,
    at="2026-11-20T19:00:00.123456+01:00",
    lines=[{"sku": "A", "price": "0.10"}],
    named={"a": 1},
    either="x",
)
BILLED_1 = {"type": "object", "properties": {"total": {"type": "integer"}}}
BILLED_2 = {**BILLED_1, "properties": {**BILLED_1["properties"], "currency": {"type": "string"}}}  # type: ignore[dict-item]
BILLED = json.dumps({"order.billed": {"1": BILLED_1, "2": BILLED_2}})


@pytest.fixture
def schemas(tmp_path: Path) -> str:
    """The files of a site, as `events schemas write` makes them."""
    folder = tmp_path / "event_schemas"
    with declared(Placed, Paid):
        write(folder, [registry.get("things")])
    return str(folder)


@pytest.mark.slow
def test_one_type_has_the_columns_of_its_schema(log: Log, read: Read, schemas: str) -> None:
    bad = placed(total="x", number=5)
    topic = log(FULL, *[placed(total=str(n)) for n in range(50)], bad, Draft(value={"card": "1"}, type="order.paid"))

    frame = read(topic, schema="order.placed@1", schemas=schemas)

    assert frame.schema["data"].dataType.simpleString() == (
        "struct<at:timestamp,either:string,lines:array<struct<price:decimal(38,18),sku:string>>,"
        "named:map<string,bigint>,number:bigint,total:decimal(38,18)>"
    )
    rows = frame.orderBy("offset").collect()
    first = rows[0].data
    assert (first.total, first.number) == (Decimal("25.00"), LARGE)
    assert first["at"].astimezone(UTC) == datetime(2026, 11, 20, 18, 0, 0, 123456, UTC)
    assert [(line.sku, line.price) for line in first.lines] == [("A", Decimal("0.10"))]
    assert (first.named, first.either) == ({"a": 1}, '"x"')
    assert [row.data.total for row in rows[1:51]] == list(range(50))
    assert (rows[51].data.total, rows[51].data.number) == (None, 5)
    assert [row.rescued for row in rows] == [*[None] * 51, '{"total": "x", "number": 5}']
    assert [row.schema_version for row in rows] == [1] * 52
    assert frame.where("data.total > 20 AND rescued IS NULL").count() == 30


def test_all_types_are_fields_of_one_column(log: Log, read: Read, schemas: str) -> None:
    topic = log(FULL, Draft(value={"card": "1"}, type="order.paid"), Draft(value=[5], type="other"), Draft(body=b"x"))

    frame = read(topic, columns="typed", schemas=schemas).orderBy("offset")

    assert "value" not in frame.columns
    assert frame.schema["data"].dataType.fieldNames() == ["order_paid", "order_placed"]
    rows = frame.select("data.order_placed.total", "data.order_paid.card", "rescued", "body", "topic").collect()
    assert [tuple(row) for row in rows] == [
        (Decimal(25), None, None, None, "things"),
        (None, "1", None, None, "things"),
        (None, None, "[5]", None, "things"),
        (None, None, None, b"x", "things"),
    ]
    some = read(topic, columns="rescued, offset, data, value", schemas=schemas)
    assert some.columns == ["rescued", "offset", "data", "value"]
    assert [(row.rescued, row.offset, row.value) for row in some.orderBy("offset").collect()][2] == ("[5]", 3, "[5]")
    assert read(topic, columns="type, typed", schemas=schemas).columns == ["type", "data", "schema_version", "rescued"]
    assert read(topic, columns="data", schemas=schemas, types="order.paid").select("data.order_paid.card").collect()


def test_older_versions_need_an_upcaster_that_executors_can_import(log: Log, read: Read) -> None:
    topic = log(
        Draft(value={"total": 1}, type="order.billed"),
        Draft(value={"total": 2, "currency": "CHF"}, type="order.billed", metadata={"schema_version": 2}),
    )

    def rows(**options: str) -> list[tuple[Any, ...]]:
        frame = read(topic, schema="order.billed", schemas=BILLED, **options).orderBy("offset")
        return [
            tuple(row) for row in frame.select("data.total", "data.currency", "schema_version", "rescued").collect()
        ]

    assert rows() == [(None, None, None, '{"total": 1}'), (2, "CHF", 2, None)]
    assert rows(upcasters="tests.support.typed_upcasters") == [(1, "EUR", 2, None), (2, "CHF", 2, None)]
    with pytest.raises(Exception, match=r"The upcasters of 'no\.such' can't be imported here"):
        rows(upcasters="no.such")


def test_a_stream_and_sql_have_them_too(log: Log, spark: Any, dsn: str, schemas: str, tmp_path: Path) -> None:
    topic = log(*(placed(total=str(n), lines=[{"sku": "A", "price": "1"}]) for n in range(30)), placed(total="x"))
    options = {"dsn": dsn, "subscribe": str(topic), "schema": "order.placed", "schemas": schemas}
    frame = spark.readStream.format("django_events").options(startingOffsets="earliest", **options).load()
    query = frame.writeStream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    query.start(str(tmp_path / "out"), format="parquet").awaitTermination()
    written = spark.read.parquet(str(tmp_path / "out"))

    assert sorted(row.total for row in written.where("rescued IS NULL").select("data.total").collect()) == [*range(30)]
    assert [row.rescued for row in written.where("rescued IS NOT NULL").collect()] == ['{"total": "x"}']
    said = ", ".join(f"{name} '{value}'" for name, value in options.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW typed_orders USING django_events OPTIONS ({said})")
    [row] = spark.sql("SELECT sum(data.total) AS sum, count(rescued) AS rescued FROM typed_orders").collect()
    assert (row["sum"], row.rescued) == (sum(range(30)), 1)
    spark.catalog.dropTempView("typed_orders")


def test_the_guide_reads_them(log: Log, spark: Any, dsn: str, tmp_path: Path) -> None:
    section = Path("docs/how-to/use-spark.md").read_text().split("## Typed columns")[1].split("\n## ")[0]

    @schema("order.placed", version=2)
    class Bought(BaseModel):
        customer: str
        total: Decimal

    value = {"customer": "Ada", "total": "5"}
    log(Draft(value=value, type="order.placed", metadata={"schema_version": 2}))
    with declared(Bought, Paid):
        write(tmp_path, [registry.get("things")])
    names: dict[str, Any] = {"spark": spark, "dsn": dsn}
    for language, block in re.findall(r"^```(python|sql)\n(.*?)^```", section, re.DOTALL | re.MULTILINE):
        given = block.replace("/srv/shop/event_schemas", str(tmp_path))
        given = re.sub("(subscribe.*?)orders", r"\1things", given)  # the project has a topic orders of its own
        if language == "python":
            exec(given.replace("shop.upcasters", "tests.support.typed_upcasters"), names)
        else:
            spark.sql(given.replace("service=shop", dsn))

    assert [tuple(row) for row in names["totals"].collect()] == [("Ada", Decimal(5))]
    assert names["orders"].select("data.order_placed.total").collect()[0].total == 5
    assert names["upcast"].count() == spark.sql("SELECT * FROM placed WHERE data.total = 5").count() == 1
    spark.catalog.dropTempView("placed")


def test_spark_writes_them_into_the_folder_that_threads_write_into(log: Log, spark: Any, tmp_path: Path) -> None:
    topic = log(*(placed(total=str(n), named={"a": n}) for n in range(10)), placed(total="x"))
    with declared(Placed, Paid):
        run(topic, "--to", tmp_path, "--columns", "typed")
        log(*(placed(total=str(n)) for n in range(10, 20)), placed(total="y"), topic=topic)
        export("parquet", topic, tmp_path, "--columns", "typed")
        with pytest.raises(CommandError, match=r"columns of all types\. This run has them text"):
            run(topic, "--to", tmp_path)

    found = rows("parquet", tmp_path)
    totals = [row["data"]["order_placed"]["total"] for row in found]
    assert totals == [*range(10), None, *range(10, 20), None]
    assert [row["rescued"] for row in found if row["rescued"]] == ['{"total": "x"}', '{"total": "y"}']
    schemas = {pq.read_schema(path).field("data").type for path in tmp_path.rglob("part-*.parquet")}
    assert len({str(plain(one)) for one in schemas}) == 1


@pytest.mark.parametrize("upcasters", ["", "tests.support.typed_upcasters"])
def test_tasks_upcast_by_modules_that_are_named(log: Log, spark: Any, tmp_path: Path, upcasters: str) -> None:
    @schema("order.billed", version=2)
    class Billed(BaseModel):
        total: int
        currency: str

    topic = log(Draft(value={"total": 1}, type="order.billed"))
    with declared(Billed):
        run(topic, "--to", tmp_path, "--columns", "typed", *(("--upcasters", upcasters) if upcasters else ()))

    [row] = rows("parquet", tmp_path)
    billed = {"total": 1, "currency": "EUR"}
    assert (row["data"], row["rescued"]) == (({"order_billed": billed}, None) if upcasters else (None, '{"total": 1}'))


def test_a_stream_of_several_topics_is_written_with_them(log: Log, spark: Any, tmp_path: Path) -> None:
    topic = log(*(placed(total=str(n)) for n in range(10)), Draft(value={"card": "1"}, type="order.paid"))
    old = Draft(value={"total": 1}, type="order.billed")
    log(old, name="bills")
    words = (topic, "bills", "--to", tmp_path / "out", "--once", "--columns", "typed")

    @schema("order.billed", version=2)
    class Billed(BaseModel):
        total: int
        currency: str

    @schema("order.billed", version=2)
    class BilledOtherwise(BaseModel):
        total: str
        currency: str

    def written(model: type[BaseModel], *more: str) -> str:
        with declared(Placed, Paid), declared(model, name="bills"):
            return run(*words, *more, command="stream_events")

    assert written(Billed) == "Events written: 12.\n"
    log(old, topic=registry.get("bills"))
    assert written(Billed, "--upcasters", "tests.support.typed_upcasters") == "Events written: 1.\n"
    frame = spark.read.option("mergeSchema", "true").parquet(str(tmp_path / "out"))
    bills = frame.where("topic = 'bills'").orderBy("offset").select("data.order_billed", "rescued").collect()
    assert [tuple(row) for row in bills] == [(None, '{"total": 1}'), ((1, "EUR"), None)]
    assert [row[0] for row in frame.selectExpr("sum(data.order_placed.total)").collect()] == [45]
    with pytest.raises(CommandError, match=r"Column 'data\.order_billed\.total' of .* is int64"):
        written(BilledOtherwise)
    with pytest.raises(CommandError, match=r"columns of all types\. This run has them text"):
        run(*words[:-2], command="stream_events")


BILLS = [
    Draft(value={"total": 1}, type="order.billed"),
    Draft(value={"total": 2, "currency": "CHF"}, type="order.billed", metadata={"schema_version": 2}),
    Draft(value={"card": "1"}, type="order.paid"),
    Draft(body=b"x"),
]
AS_ONE_TYPE = [
    ({"total": 1, "currency": "EUR"}, None),
    ({"total": 2, "currency": "CHF"}, None),
    (None, '{"card": "1"}'),
    (None, None),
]


@contextmanager
def billing() -> Iterator[None]:
    @schema("order.billed", version=2)
    class Billed(BaseModel):
        total: int
        currency: str

    with declared(Billed, Paid):
        yield


@pytest.mark.parametrize("by_the_jvm", [False, True])
def test_columns_of_one_type_are_written_by_spark_too(
    log: Log, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_the_jvm: bool
) -> None:
    """All events are there, by tasks and by Spark's own writer, and a thread goes on in the same folder."""
    topic = log(*BILLS)
    words = (topic, "--to", tmp_path, "--schema", "order.billed@2")
    if by_the_jvm:
        monkeypatch.setattr(tasks, "disk_of", lambda *arguments: None)

    with billing():
        assert run(*words, "--upcasters", "tests.support.typed_upcasters").startswith("Exported 4 events")
        log(BILLS[1], topic=topic)
        assert export("parquet", topic, tmp_path, "--schema", "order.billed@2").startswith("Exported 1 events")

    found = rows("parquet", tmp_path)
    assert [(row["data"], row["rescued"]) for row in found] == [*AS_ONE_TYPE, AS_ONE_TYPE[1]]
    assert found[3]["body"] == b"x"


@pytest.mark.parametrize("by_the_jvm", [False, True])
def test_a_stream_is_written_with_the_columns_of_one_type(
    log: Log, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_the_jvm: bool
) -> None:
    topic = log(*BILLS)
    words = (topic, "--to", tmp_path / "out", "--once", "--schema", "order.billed")
    if by_the_jvm:
        monkeypatch.setattr(tasks, "disk_of", lambda *arguments: None)

    with billing():
        said = run(*words, "--upcasters", "tests.support.typed_upcasters", command="stream_events")
        log(BILLS[1], topic=topic)
        assert run(*words, command="stream_events") == "Events written: 1.\n"
        with pytest.raises(CommandError, match=r"columns of 'order\.billed'\. This run has them"):
            run(*words[:-2], "--columns", "typed", command="stream_events")
        with pytest.raises(CommandError, match=r"No schema describes events of type .order\.gone."):
            run(*words[:-1], "order.gone", command="stream_events")

    assert said == "Events written: 4.\n"
    found = spark.read.parquet(str(tmp_path / "out")).orderBy("offset").collect()
    made = [(row.data and row.data.asDict(), row.rescued) for row in found]
    assert made == [*AS_ONE_TYPE, AS_ONE_TYPE[1]]


def test_events_of_other_types_are_read_beside_the_columns_of_one(log: Log, read: Read) -> None:
    topic = log(*BILLS)

    frame = read(topic, schema="order.billed@2", schemas=BILLED, types="*").orderBy("offset")

    found = [(row.data and row.data.total, row.rescued, row.body) for row in frame.collect()]
    assert found == [(None, '{"total": 1}', None), (2, None, None), (None, '{"card": "1"}', None), (None, None, b"x")]


@pytest.mark.parametrize("how", [["--columns", "typed"], ["--schema", "order.placed"]])
def test_jobs_read_files_with_typed_columns(log: Log, spark: Any, tmp_path: Path, how: list[str]) -> None:
    from django_events.spark.jobs.inputs import Inputs
    from django_events.spark.jobs.registry import JOBS

    topic = log(*(placed(total=str(n)) for n in range(10)), Draft(value={"total": 7}, type="other"))
    with declared(Placed, Paid):
        export("parquet", topic, tmp_path, *how)

    [events] = Inputs(spark=spark, dsn="", path=str(tmp_path)).of(JOBS["windows"])
    found = JOBS["windows"].function(events, field="$.total", every="1 day").collect()

    assert {row.type: (row.events, row.numbers, row["sum"]) for row in found} == {
        "order.placed": (10, 10, 45.0),
        "other": (1, 1, 7.0),
    }


@pytest.mark.quick
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"schema": "order.gone"}, "No schema describes events of type 'order.gone'"),
        ({"schema": "order.placed@9"}, "There is no schema of 'order.placed' version 9"),
        ({"schema": "order.placed", "types": "order.*"}, "Options 'types' and 'schema' both say"),
        ({"schemas": "/nowhere", "columns": "typed"}, "has no schemas of these topics"),
        ({"schemas": "{}", "columns": "typed"}, "No schema says what values are"),
        ({"schemas": "{", "columns": "typed"}, "The schemas are '{', expected JSON like"),
        ({"upcasters": "shop.upcasters"}, "Option 'upcasters' goes with columns='typed'"),
        ({"schema": "order.placed", "upcasters": "shop/upcasters"}, "expected modules like"),
        ({"columns": "typed, no"}, "Option 'columns' has 'no'"),
    ],
)
def test_options_that_can_not_be_meant_are_said(schemas: str, options: dict[str, str], said: str) -> None:
    from django_events.exceptions import Invalid
    from django_events.spark.options import columns_of, for_batch

    given = {"dsn": "host=nowhere", "subscribe": "things", "schemas": schemas, **options}
    if options.keys() == {"upcasters"}:
        del given["schemas"]
    with pytest.raises(Invalid, match=said):
        columns_of(given)
        for_batch(given)
