"""Tables of a lakehouse whose files Spark's tasks write: the same table as without Spark, by the same marks."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError
from pydantic import BaseModel

from django_events import Draft, schema
from django_events.operations import erase
from tests.faults.test_table_exports import positions
from tests.faults.test_table_exports import rows as rows_in
from tests.integration.exporting.test_comparing import verify
from tests.integration.exporting.test_erasing import without_times_of_erasures
from tests.integration.exporting.test_expiring import rows_on_disk
from tests.integration.exporting.test_typed_exports import declared, rows
from tests.spark.rivals import rival
from tests.spark.test_batch import HOSTILE, publish, stored
from tests.support.processes import wait_until
from tests.support.tables import files_of, read_back, run

pytestmark = [pytest.mark.usefixtures("transactional_db", "spark"), pytest.mark.requirement("X15")]

Log = Callable[..., Any]
BOTH = pytest.mark.parametrize("format", ["delta", "iceberg"])
SPARK = ("--engine", "spark")
SMALL = ("--target-size", "4KB")


@BOTH
def test_a_table_holds_what_postgresql_holds(log: Log, tmp_path: Path, format: str) -> None:
    drafts = [Draft(value=value, type=f"t{n % 5}", key=str(n)) for n, value in enumerate(HOSTILE * 30)]
    topic = log(*drafts, Draft(body=b"\0\xff"), partitions=3)

    said = run(topic, "--to", tmp_path, *SPARK, *SMALL, "--part", len(drafts) // 2, format=format)

    assert said.startswith(f"Exported {len(drafts) + 1:,} events to {tmp_path} in ")
    assert said.endswith("in commits: 3.\n")
    assert read_back(tmp_path, format) == stored(topic)
    assert len(rows_on_disk(tmp_path)) > 6
    assert verify(tmp_path)[0]["proved"]
    assert run(topic, "--to", tmp_path, *SPARK, format=format).startswith("Nothing to export")


@BOTH
def test_either_driver_goes_on_where_the_other_has_stopped(log: Log, tmp_path: Path, format: str) -> None:
    topic = log(*(Draft(value={"n": n}, key=f"k{n % 3}") for n in range(10)))
    run(topic, "--to", tmp_path, format=format)
    publish(topic, *range(10))
    assert run(topic, "--to", tmp_path, *SPARK, format=format).startswith("Exported 10 events")
    publish(topic, *range(10))
    run(topic, "--to", tmp_path, format=format)
    erase(topic, key="k1", reason="asked for", forget_key=True)
    publish(topic, *range(10))

    said = run(topic, "--to", tmp_path, *SPARK, "--erase", "--compact", "--expire", 0, format=format)

    assert "by 1 erasure: 3." in said
    assert without_times_of_erasures(read_back(tmp_path, format)) == without_times_of_erasures(stored(topic))
    assert rows_on_disk(tmp_path) == files_of(tmp_path, format)
    assert len(files_of(tmp_path, format)) == 1
    assert verify(tmp_path)[0]["proved"]


@BOTH
def test_values_are_columns_by_upcasters_that_are_named(log: Log, tmp_path: Path, format: str) -> None:
    @schema("order.billed")
    class BilledOnce(BaseModel):
        total: int
        lines: list[dict[str, int]] = []

    @schema("order.billed", version=2)
    class BilledNow(BilledOnce):
        currency: str

    topic = log(Draft(value={"total": 1, "lines": [{"a": 1}]}, type="order.billed"), Draft(value="x"))
    words = ("--to", tmp_path, *SPARK, "--columns", "typed")
    with declared(BilledOnce):
        run(topic, *words, format=format)
    log(Draft(value={"total": 2}, type="order.billed"), Draft(value={"total": "x"}, type="order.billed"), topic=topic)
    with declared(BilledNow):
        run(topic, *words, "--upcasters", "tests.support.typed_upcasters", format=format)

    found = [row["data"] and row["data"]["order_billed"] for row in rows(format, tmp_path)]
    assert [one and (one["total"], one["currency"]) for one in found] == [
        (1, None),
        None,
        (2, "EUR"),
        (None, "EUR"),
    ]
    assert dict(found[0]["lines"][0]) == {"a": 1}
    assert [row["rescued"] for row in rows(format, tmp_path)] == [None, '"x"', None, '{"total": "x"}']


@pytest.mark.slow
@BOTH
def test_a_follower_goes_on_until_it_is_stopped(log: Log, tmp_path: Path, scratch: dict[str, str], format: str) -> None:
    topic = log(*(Draft(value=n) for n in range(10)))
    out = tmp_path / "out"
    words = ("export_events", topic, "--to", out, "--format", format, *SPARK)
    following = (*words, "--follow", "--every", "0.1", "--consumer", "lake")
    with rival(*following, said=tmp_path / "said", environment=scratch, master="local[2]") as first:
        wait_until(lambda: rows_in(out, format) == 10 and positions() == 10, seconds=120)
        publish(topic, *range(5))
        wait_until(lambda: rows_in(out, format) == 15 and positions() == 15, seconds=120)
        with pytest.raises(CommandError, match="Another export_events or stream_events writes to"):
            run(topic, "--to", out, *SPARK, format=format)
        first.process.send_signal(signal.SIGTERM)
        assert first.end() == 0, first.said

    assert read_back(out, format) == stored(topic)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--engine", "spark", "--upsert"], "--upsert is not for --engine spark: a commit of states compares its keys"),
        (["--master", "local[2]"], "--master is for --engine spark. Without it this process writes tables."),
        (["--remote", "sc://h:1"], "--remote is for --engine spark. Without it this process writes tables."),
        (["--upcasters", "a.b"], "--upcasters is for typed columns with --engine spark"),
        (["--engine", "spark", "--threads", "2"], "--threads is for --engine local."),
        (["--threads", "2", "--upsert"], "--upsert is not for --threads: a commit of states compares its keys"),
        (["--engine", "spark", "--upcasters", "a.b"], "--upcasters is for typed columns with --engine spark"),
    ],
)
def test_what_can_not_be_said_together_is_said(log: Log, tmp_path: Path, arguments: list[str], said: str) -> None:
    topic = log(Draft(value=1))

    with pytest.raises(CommandError) as raised:
        run(topic, "--to", tmp_path, *arguments, format="delta")

    assert raised.value.returncode == 2 and said in str(raised.value)
    assert not list(tmp_path.iterdir())


def test_an_object_store_is_refused_before_anything_is_made(log: Log) -> None:
    topic = log(Draft(value=1))

    with pytest.raises(CommandError, match=r"Neither Spark's tasks nor threads write the files of a table to 's3:"):
        run(topic, "--to", "s3://bucket/lake", *SPARK, format="delta")
