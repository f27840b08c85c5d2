"""The pages about Spark's pipelines and states: their blocks run as they stand, twice, and each event is there once."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from django_events import Draft
from tests.spark.conftest import SHORT_LIVED
from tests.spark.test_batch import publish

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X1")]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/spark-pipelines.md").read_text()
[SPECIFICATION] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
TABLES, STAGES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
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


def run(folder: Path) -> None:
    environment = {
        **os.environ,
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


@pytest.mark.timeout(600)
def test_a_pipeline_goes_on_where_it_stopped(log: Callable[..., Any], dsn: str, tmp_path: Path) -> None:
    topic = log(*ORDERS)
    (tmp_path / "transformations").mkdir()
    tables = replaced(TABLES, ("service=shop", dsn), ('"orders"', f'"{topic}"'))
    (tmp_path / "transformations/orders.py").write_text(tables)
    specification = replaced(SPECIFICATION, ("/data/pipelines/shop", str(tmp_path / "storage")))
    (tmp_path / "spark-pipeline.yml").write_text(specification)

    run(tmp_path)
    log(Draft(value={"order": 2}, type="order.paid", key="2"), topic=topic)
    run(tmp_path)

    assert [row["offset"] for row in rows(tmp_path, "orders_bronze")] == [1, 2, 3, 4]
    silver = rows(tmp_path, "orders_silver")
    assert [(row["order"], row["total"] and str(row["total"])) for row in silver] == [
        (1, "12.50"),
        (2, None),
        (1, None),
        (2, None),
    ]
    assert [(row["key"], row["state"]) for row in rows(tmp_path, "orders_now")] == [
        ("1", "order.paid"),
        ("2", "order.paid"),
    ]


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
