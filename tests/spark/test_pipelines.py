"""The pages about Spark's pipelines and states: their blocks run as they stand, twice, and each event is there once."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from django.db.models import Max
from psycopg.conninfo import conninfo_to_dict

from django_events import Draft
from django_events.declarations import registry
from django_events.log.topics import sync
from django_events.models import Event
from django_events.operations import erase
from tests.integration.exporting.test_typed_exports import declared
from tests.spark.conftest import SHORT_LIVED
from tests.spark.test_batch import publish

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X1")]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/spark-pipelines.md").read_text()
[SPECIFICATION] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
TABLES, STAGES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
EXAMPLE = ROOT / "testproject/pipelines"
LINES = [{"quantity": 1, "sku": "tea"}]


def placed(order: int, customer: str, total: Any, *, version: int = 2, keyed: bool = True) -> Draft:
    what = {"lines": LINES} if version == 2 else LINES[0]
    value = {"order": order, "customer": customer, "total": total, **what}
    metadata = {"schema_version": version} if version > 1 else {}
    return Draft(value=value, type="order.placed", key=str(order) if keyed else None, metadata=metadata)


EVENTS = [
    placed(1, "Ada", "12.50"),
    placed(2, "Bob", "3", version=1),
    placed(3, "Cyd", "much"),
    Draft(value={"order": 1}, type="order.paid", key="1"),
    placed(4, "Dan", 1),
    placed(5, "Eve", 1),
]
LATER = [
    Draft(value={"order": 2}, type="order.paid", key="2"),
    Draft(value={"why": "twice"}, type="order.deleted", key="4"),
    Draft(value=None, type="order.gone", key="5"),
    Draft(value={"after": "all"}, type="order.shipped", key="5"),
    placed(4, "Dan", 2),
    placed(6, "Fay", 4),  # is erased
    placed(7, "Guy", 5, keyed=False),
]
ORDERS = [
    Draft(value={"order": 1, "total": "12.50"}, type="order.placed", key="1"),
    Draft(value={"order": 2, "total": "much"}, type="order.placed", key="2"),
    Draft(value={"order": 1}, type="order.paid", key="1"),
]


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


def run(folder: Path, **settings: str) -> None:
    environment = {
        **os.environ,
        **settings,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(ROOT),  # Spark doesn't find a package that is installed to be edited
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "JAVA_TOOL_OPTIONS": SHORT_LIVED,
        "TZ": "Asia/Kolkata",
    }
    done = subprocess.run(
        [Path(sys.executable).with_name("spark-pipelines"), "--conf", "spark.sql.catalogImplementation=hive", "run"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "Run is COMPLETED" in done.stdout + done.stderr


def rows(folder: Path, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(folder / "spark-warehouse" / table).to_pylist()  # type: ignore[no-untyped-call]
    return sorted(found, key=lambda row: row["offset"])


@pytest.mark.quick
def test_the_page_shows_the_files_of_the_example() -> None:
    assert (EXAMPLE / "spark-pipeline.yml").read_text() == SPECIFICATION
    assert (EXAMPLE / "transformations/orders.py").read_text() == TABLES


@pytest.mark.timeout(600)
def test_a_pipeline_goes_on_where_it_stopped(log: Callable[..., Any], dsn: str, tmp_path: Path) -> None:
    """The files as they are, but for where Spark keeps its checkpoints."""
    shutil.copytree(EXAMPLE, tmp_path / "shop/pipelines")
    shutil.copytree(EXAMPLE.with_name("event_schemas"), tmp_path / "shop/event_schemas")
    folder = tmp_path / "shop/pipelines"
    specification = folder / "spark-pipeline.yml"
    specification.write_text(
        replaced(specification.read_text(), ("/data/pipelines/shop", str(tmp_path / "storage"))), encoding="utf-8"
    )
    parameters = (f"{name}={value}\n" for name, value in conninfo_to_dict(dsn).items())
    (tmp_path / "services").write_text(f"[shop]\n{''.join(parameters)}")
    first = published(log, *EVENTS)

    run(folder, PGSERVICEFILE=str(tmp_path / "services"))
    more = published(log, *LATER)
    erase("orders", ids=[more[-2]], reason="a test")
    run(folder, PGSERVICEFILE=str(tmp_path / "services"))

    offsets = [*first, *more]
    assert [row["offset"] for row in rows(folder, "orders_bronze")] == offsets
    silver = rows(folder, "orders_silver")
    assert [row["offset"] for row in silver] == offsets
    placed = {n: row["data"]["order_placed"] for n, row in enumerate(silver) if row["data"]}
    assert {n: one and (one["customer"], one["total"], one["lines"]) for n, one in placed.items()} == {
        0: ("Ada", Decimal("12.5"), LINES),
        1: ("Bob", 3, LINES),
        2: ("Cyd", None, LINES),
        3: None,
        4: ("Dan", 1, LINES),
        5: ("Eve", 1, LINES),
        6: None,
        10: ("Dan", 2, LINES),
        12: ("Guy", 5, LINES),
    }
    assert [silver[n]["schema_version"] for n in (0, 1, 2, 3, 7)] == [2, 2, 2, 1, None]
    assert {n: json.loads(row["rescued"]) for n, row in enumerate(silver) if row["rescued"] is not None} == {
        2: EVENTS[2].value,
        7: LATER[1].value,
        8: None,
        9: LATER[3].value,
    }
    assert [n for n, row in enumerate(silver) if row["is_gone"]] == [7, 8, 11]
    assert [tuple(row.values()) for row in rows(folder, "orders_now")] == [
        ("3", "order.placed", "Cyd", None, LINES, offsets[2]),
        ("1", "order.paid", "Ada", Decimal("12.5"), LINES, offsets[3]),
        ("2", "order.paid", "Bob", 3, LINES, offsets[6]),
        ("5", "order.shipped", None, None, None, offsets[9]),
        ("4", "order.placed", "Dan", 2, LINES, offsets[10]),
    ]


def published(log: Callable[..., Any], *drafts: Draft) -> list[int]:
    """Into the log of the shop's orders, by code that checks nothing; their ids."""
    with declared(name="orders"):
        sync("default")
        last = Event.objects.filter(topic__name="orders").aggregate(last=Max("id"))["last"] or 0
        log(*drafts, topic=registry.get("orders"))
    return [*range(last + 1, last + len(drafts) + 1)]


@pytest.mark.timeout(600)
def test_a_state_goes_on_where_it_stopped(
    log: Callable[..., Any], spark: Any, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = log(*ORDERS)
    program = replaced(STAGES, ("/data", str(tmp_path)))

    def run_program() -> None:
        options = {"dsn": dsn, "subscribe": str(topic), "startingOffsets": "earliest"}
        orders = spark.readStream.format("django_events").options(**options).load()
        exec(compile(program, "spark-pipelines.md", "exec"), {"spark": spark, "orders": orders, "__name__": "__main__"})

    before = spark.conf.get("spark.sql.streaming.stateStore.providerClass")
    try:
        run_program()
        publish(topic, 1)  # has no key
        log(Draft(value={}, type="order.paid", key="2"), Draft(value={}, type="order.sent", key="1"), topic=topic)
        run_program()
        run_program()
    finally:
        spark.conf.set("spark.sql.streaming.stateStore.providerClass", before)

    found = spark.read.parquet(str(tmp_path / "stages")).collect()
    assert sorted((row.until, row.key, row.stage) for row in found) == [
        (3, "1", "order.placed"),
        (5, "2", "order.placed"),
        (6, "1", "order.paid"),
    ]
    assert all(row.seconds >= 0 for row in found)
