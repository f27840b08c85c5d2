"""`export_events --upsert` with typed columns: the state of each key has what its newest event says as columns."""

import json
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError
from django.db import connection
from pydantic import BaseModel

from django_events import Draft, schema
from django_events.exporting.comparing import compare
from django_events.exporting.comparison import Compared, Comparison
from django_events.exporting.tables.delta_states import DeltaStates
from django_events.exporting.tables.iceberg_catalogs import in_folder
from django_events.exporting.tables.iceberg_states import IcebergStates
from django_events.exporting.tables.table import Conflict, Mark, Opening
from django_events.management.spark import names_of_keys
from django_events.operations import erase
from django_events.reading.dsn import Dsn
from django_events.reading.ranges import Range
from tests.integration.exporting.test_typed_exports import (
    Paid,
    Placed,
    as_later,
    columns_of,
    declared,
    declared_later,
    export,
    rewritten,
    rows,
)
from tests.spark.test_batch import topic_id
from tests.spark.test_export import incarnation

pytestmark = [
    pytest.mark.usefixtures("transactional_db"),
    pytest.mark.requirement("X9"),
    pytest.mark.requirement("X15"),
]

Log = Callable[..., Any]
KINDS = pytest.mark.parametrize("kind", ["delta", "iceberg"])
WORDS = ("--columns", "typed", "--upsert")


def placed(key: str, **fields: Any) -> Draft:
    return Draft(value=fields, key=key, type="order.placed", metadata={"schema_version": 1})


def compared(dsn: str, topic: Any, folder: Path) -> Compared:
    return compare(Comparison(dsn=dsn, topics=(str(topic),), path=str(folder), names=names_of_keys))


def found_in(said: Compared) -> list[tuple[str, int | None]]:
    return sorted(((one.kind, one.subject.id) for one in said.offenders), key=str)


def by_key(kind: str, folder: Path) -> dict[str, dict[str, Any]]:
    return {row["key"]: row for row in rows(kind, folder)}


@KINDS
def test_the_newest_event_of_each_key_has_columns(log: Log, dsn: str, tmp_path: Path, kind: str) -> None:
    topic = log(
        placed("a", total="1", number=1),
        placed("b", total="1"),
        Draft(value={"card": "1"}, key="paid", type="order.paid"),
        Draft(value={"a": 1}, key="other", type="other"),
        placed("gone", total="1"),
        placed("gone too", total="1"),
        placed("left", total="1"),
        placed("erased", total="1"),
        placed("unreadable", total="1"),
        placed("bytes", total="1"),
    )
    words = (*WORDS, "--deletes", "order.left")
    with declared(Placed, Paid):
        export(kind, topic, tmp_path, *words)
        assert len(rows(kind, tmp_path)) == 10
        log(
            placed("a", total="2.50", number=2, lines=[{"sku": "A", "price": "0.10"}]),
            placed("b", total="x", number=3),
            Draft(value=None, key="gone", type="order.placed"),  # a tombstone of a described type
            Draft(value=None, key="gone too", type="other"),
            Draft(value={}, key="left", type="order.left"),
            placed("erased", total="2"),
            placed("unreadable", total="2"),
            Draft(body=b"\0", key="bytes", type="order.placed"),
            topic=topic,
        )
        erase(topic, ids=[16], reason="asked for")
        with connection.cursor() as cursor:
            far = "jsonb_build_object('total', repeat('7', 20000)::numeric)"
            cursor.execute(f'UPDATE "django_events_event_{topic_id(topic)}" SET value = {far} WHERE id = 17')
        export(kind, topic, tmp_path, *words)

    there = by_key(kind, tmp_path)
    assert sorted(there) == ["a", "b", "bytes", "other", "paid", "unreadable"]
    assert "value" not in there["a"] and "gone" not in there["a"]
    told = {key: row["data"] and row["data"]["order_placed"] for key, row in there.items()}
    assert (told["a"]["total"], told["a"]["number"], told["a"]["lines"][0]["price"]) == (
        Decimal("2.5"),
        2,
        Decimal("0.1"),
    )
    assert (told["b"]["total"], told["b"]["number"], json.loads(there["b"]["rescued"])["total"]) == (None, 3, "x")
    assert (there["paid"]["data"]["order_paid"], there["other"]["rescued"]) == ({"card": "1"}, '{"a": 1}')
    assert (there["bytes"]["data"], there["bytes"]["body"]) == (None, b"\0")
    assert (there["unreadable"]["offset"], there["unreadable"]["data"]) == (17, None)
    assert "unreadable" in there["unreadable"]["metadata"]
    assert [there[key]["schema_version"] for key in ("a", "b", "paid", "other")] == [1, 1, 1, None]
    said = compared(dsn, topic, tmp_path)
    assert (found_in(said), said.notes, [one.events for one in said.topics]) == ([], [], [6])


@KINDS
def test_fields_are_added_older_events_upcast_and_a_changed_type_is_refused(
    log: Log, dsn: str, tmp_path: Path, kind: str
) -> None:
    @schema("order.placed", version=2)
    class Changed(BaseModel):
        total: int

    line = {"sku": "A", "price": "1"}
    topic = log(*(placed(key, total="1", number=1, lines=[line]) for key in "abc"))
    with declared(Placed):
        export(kind, topic, tmp_path, *WORDS)
    log(
        placed("b", total="2", lines=[line]),
        Draft(value={"total": "3", "currency": "CHF"}, key="c", type="order.placed", metadata={"schema_version": 2}),
        topic=topic,
    )
    with declared_later():
        export(kind, topic, tmp_path, *WORDS)

    there = by_key(kind, tmp_path)
    told = {key: row["data"]["order_placed"] for key, row in there.items()}
    assert [told[key]["total"] for key in "abc"] == [1, 2, 3]
    assert [told[key]["currency"] for key in "abc"] == [None, as_later({"total": 2})["currency"], "CHF"]
    assert [told[key]["number"] for key in "abc"] == [1, None, None]
    assert [there[key]["schema_version"] for key in "abc"] == [1, 2, 2]
    with declared_later():
        assert found_in(compared(dsn, topic, tmp_path)) == []
    log(placed("a", total="9"), topic=topic)
    with declared(Changed), pytest.raises(CommandError, match=r"data\.order_placed\.total.* is decimal128") as raised:
        export(kind, topic, tmp_path, *WORDS)
    assert raised.value.returncode == 1
    assert by_key(kind, tmp_path) == there
    with declared(Placed):  # a deploy that doesn't know of the new field leaves it in the table
        export(kind, topic, tmp_path, *WORDS)
    there = by_key(kind, tmp_path)
    assert (there["a"]["data"]["order_placed"]["total"], there["a"]["data"]["order_placed"]["currency"]) == (9, None)
    assert there["c"]["data"]["order_placed"]["currency"] == "CHF"


@KINDS
def test_what_is_erased_has_no_row(log: Log, dsn: str, tmp_path: Path, kind: str) -> None:
    topic = log(*(placed(f"k{n % 3}", total=str(n)) for n in range(9)), placed("k3", total="x"))
    with declared(Placed):
        export(kind, topic, tmp_path, *WORDS)
        erase(topic, key="k0", reason="asked for", forget_key=True)
        erase(topic, ids=[10], reason="asked for")

        said = compared(dsn, topic, tmp_path)

        assert (found_in(said), said.notes[0].partition(" that")[0]) == ([], f"2 events of {topic}")
        assert "by 2 erasures: 2." in export(kind, topic, tmp_path, *WORDS, "--erase")
    assert sorted(by_key(kind, tmp_path)) == ["k1", "k2"]
    said = compared(dsn, topic, tmp_path)
    assert (found_in(said), said.notes, said.topics[0].events) == ([], [], 2)


@KINDS
def test_each_changed_column_is_told(log: Log, dsn: str, tmp_path: Path, kind: str) -> None:
    topic = log(placed("a", total="1", number=1), placed("b", total="x"), placed("a", total="2", number=2))
    with declared(Placed):
        export(kind, topic, tmp_path, *WORDS)

    def change(there: dict[int, dict[str, Any]]) -> None:
        there[3]["data"]["order_placed"].update(number=1)
        there[2].update(rescued="{}")

    rewritten(kind, tmp_path, topic, change)

    told = {(one.kind, one.subject.id, one.what) for one in compared(dsn, topic, tmp_path).offenders}
    assert told == {
        ("differs", 2, "Its rescued is not that of the log."),
        ("differs", 3, "Its data is not that of the log."),
    }


@KINDS
def test_a_table_keeps_its_columns_and_its_kind(log: Log, tmp_path: Path, kind: str) -> None:
    topic = log(placed("a", total="1"))
    with declared(Placed):
        export(kind, topic, tmp_path / "typed", *WORDS)
        export(kind, topic, tmp_path / "text", "--upsert")
        log(placed("a", total="2"), topic=topic)
        for folder, words, said in (
            ("typed", ("--upsert",), "are columns of all types. This run has them text"),
            ("text", WORDS, "are text. This run has them columns of all types"),
            ("typed", ("--columns", "typed"), "has a row for each key"),
        ):
            with pytest.raises(CommandError, match=said):
                export(kind, topic, tmp_path / folder, *words)
        export(kind, topic, tmp_path / "one", "--upsert", "--schema", "order.placed")
    assert [row["data"]["total"] for row in rows(kind, tmp_path / "one")] == [2]


@KINDS
def test_of_two_deploys_that_upsert_at_once_one_fails(log: Log, dsn: str, tmp_path: Path, kind: str) -> None:
    @schema("order.placed")
    class Noted(BaseModel):
        total: Decimal
        note: str = ""

    topic = log(placed("a", total="1", number=5), placed("a", total="2", note="x", number=6))
    before, after = columns_of(topic, Placed), columns_of(topic, Noted)
    old, new = (table_of(kind, tmp_path, topic, columns) for columns in (before, after))
    with closing(old), closing(new):
        assert old.mark() is new.mark() is None
        new.append(batches(dsn, topic, after, 1), Mark(incarnation(topic), 2))
        with pytest.raises(Conflict):
            old.append(batches(dsn, topic, before, 1), Mark(incarnation(topic), 2))
        assert old.mark() == Mark(incarnation(topic), 2)
        old.append(batches(dsn, topic, before, 2), Mark(incarnation(topic), 3))

    [row] = rows(kind, tmp_path)
    assert (row["data"]["order_placed"]["number"], row["data"]["order_placed"]["note"]) == (6, None)
    assert json.loads(row["rescued"])["note"] == "x"


def table_of(kind: str, folder: Path, topic: Any, columns: Any) -> Any:
    if kind == "delta":
        return DeltaStates(f"{folder}/{topic}", str(topic), incarnation(topic), Opening(columns=columns))
    return IcebergStates(in_folder(str(folder)), str(topic), incarnation(topic), Opening(columns=columns))


def batches(dsn: str, topic: Any, columns: Any, offset: int) -> list[Any]:
    reader = columns.reader(Dsn(dsn), fetch_size=100, fail_on_data_loss=True, with_values=True)
    return list(reader.read(Range(str(topic), topic_id(topic), offset, offset + 1)))
