"""The pages for those who read what is exported: each of their blocks in Python and SQL, on real files and tables.

What isn't run is skipped with its reason: where an extension of DuckDB can't be downloaded, or dbt isn't there.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import jinja2
import pytest
from deltalake import DeltaTable
from pydantic import BaseModel
from pyiceberg.catalog.sql import SqlCatalog

from django_events import Draft, schema
from tests.support import local_exports, tables
from tests.support.tables import with_extension

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.slow]

READING, TABLES = (Path(f"docs/how-to/{name}.md").read_text() for name in ("read-exports", "lakehouse"))
TOTALS = {"Ada": 30, "Bob": 12}
TYPES = {"order.placed": 3, "order.shipped": 1}


def blocks(language: str, data: Path, page: str = READING, *, about: str = "") -> Iterator[str]:
    """The blocks of a language, about this test's files. The project has a topic orders of its own."""
    for found in re.finditer(rf"^```{language}\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        if about in found[1]:
            yield found[1].replace("orders", "things").replace("/data/", f"{data}/")


@pytest.fixture
def data(log: Callable[..., Any], tmp_path: Path) -> Path:
    log(
        Draft(value={"customer": "Ada", "total": 10}, type="order.placed", key="1"),
        Draft(value={"customer": "Bob", "total": 12}, type="order.placed", key="2"),
        Draft(value={"customer": "Ada", "total": 20}, type="order.placed", key="3"),
        Draft(value={"customer": "Ada"}, type="order.shipped", key="1"),
    )
    local_exports.run("things", "--to", tmp_path / "events")
    for format in ("delta", "iceberg"):
        tables.run("things", "--to", tmp_path / format, format=format)
    return tmp_path


def test_python(data: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")  # or Polars warns that its own package is faster
    names: dict[str, Any] = {}
    placed = []
    for block in blocks("python", data):
        exec(block, names)
        placed += [names.pop(name) for name in ("placed", "of_delta", "of_iceberg") if name in names]

    assert names["totals"].item() == 42
    newest = names["newest"].sort("key")
    assert newest["type"].to_list() == ["order.shipped", "order.placed", "order.placed"]
    found = [sorted(rows["offset"]) for rows in placed if hasattr(rows, "columns")]
    assert found == [[1, 2, 3]] * 4  # by deltalake, PyIceberg, and both by Polars
    said = capsys.readouterr().out
    assert re.search(r"Ada +30\nBob +12\n", said)
    assert "('order.placed', 3)" in said


def test_python_of_the_page_of_tables(data: Path) -> None:
    by_polars, by_pyiceberg = blocks("python", data, TABLES, about="placed =")
    for block, format in ((by_polars, "delta"), (by_pyiceberg, "iceberg")):
        names: dict[str, Any] = {}
        exec(block.replace(f"{data}/lake", f"{data}/{format}"), names)
        rows = names["placed"].to_dicts() if format == "delta" else names["placed"].to_pylist()
        assert sorted(row["offset"] for row in rows) == [1, 2, 3]


def test_python_that_has_manifests_merged(data: Path) -> None:
    [block] = blocks("python", data, TABLES, about="manifest-merge")
    warehouse = data / "iceberg"
    with closing(SqlCatalog("django_events", uri=f"sqlite:///{warehouse}/catalog.db")) as catalog:
        with catalog.load_table(("events", "things")).transaction() as change:
            change.remove_properties("commit.manifest-merge.enabled")
        exec(block, {"catalog": catalog})
        assert catalog.load_table(("events", "things")).properties["commit.manifest-merge.enabled"] == "true"


def test_sql_of_duckdb(data: Path) -> None:
    sums, view = (next(blocks("sql", data, about=words)) for words in ("AS customer", "CREATE VIEW"))
    with duckdb.connect() as session:
        assert dict(session.sql(sums).fetchall()) == TOTALS
        session.sql(view)
        assert session.sql("SELECT key, type FROM things ORDER BY key").fetchall() == [
            ("1", "order.shipped"),
            ("2", "order.placed"),
            ("3", "order.placed"),
        ]


def test_each_block_is_run() -> None:
    run = {("python", READING): 6, ("sql", READING): 4, ("python", TABLES): 3, ("sql", TABLES): 3}
    assert {of: len(list(blocks(of[0], Path(), of[1]))) for of in run} == run


def test_sql_of_duckdb_on_delta(data: Path) -> None:
    asked = [
        *blocks("sql", data, about="delta_scan('/data/delta/orders')"),
        *blocks("sql", data, TABLES, about="delta_scan('/data/lake/orders')"),
    ]
    assert len(asked) == 2
    with duckdb.connect() as session:
        with_extension(session, "delta")
        for query in asked:
            assert dict(session.sql(query.replace(f"{data}/lake", f"{data}/delta")).fetchall()) == TYPES


@schema("order.placed")
class Bought(BaseModel):
    currency: str
    total: Decimal


def test_sql_of_duckdb_on_typed_columns(log: Callable[..., Any], tmp_path: Path) -> None:
    log(*(Draft(value=Bought(currency="EUR", total=Decimal(n))) for n in (1, 2)), schemas=[Bought])
    tables.run("things", "--to", tmp_path / "typed-lake", "--columns", "typed", format="delta")

    [query] = blocks("sql", tmp_path, TABLES, about="/data/typed-lake/")

    with duckdb.connect() as session:
        with_extension(session, "delta")
        assert session.sql(query).fetchall() == [("EUR", 3)]


def test_sql_of_duckdb_on_typed_states(log: Callable[..., Any], tmp_path: Path) -> None:
    """The table comes by delta-rs, so that no extension is needed."""
    bought = (("1", "5"), ("2", "7"), ("1", "6"))
    log(
        *(Draft(value=Bought(currency="EUR", total=Decimal(total)), key=key) for key, total in bought), schemas=[Bought]
    )
    tables.run("things", "--to", tmp_path / "silver", "--upsert", "--columns", "typed", format="delta")
    [query] = blocks("sql", tmp_path, TABLES, about="silver")
    states = DeltaTable(str(tmp_path / "silver/things")).to_pyarrow_table()
    with duckdb.connect() as session:
        session.register("states", states)
        found = session.sql(query.replace(f"delta_scan('{tmp_path}/silver/things')", "states")).fetchall()
    assert sorted(found) == [("1", Decimal(6)), ("2", Decimal(7))]


def test_the_model_of_dbt(data: Path) -> None:
    """Rendered as dbt renders it; dbt itself has the next test."""
    [model] = blocks("sql", data, about="is_incremental()")
    with duckdb.connect() as session:

        def rendered(*, again: bool) -> str:
            known = {"config": lambda **options: "", "is_incremental": lambda: again, "this": "model"}
            return str(jinja2.Template(model).render(**known))

        session.sql(f"CREATE TABLE model AS {rendered(again=False)}")
        assert session.sql("SELECT sum(total) FROM model").fetchall() == [(42,)]
        local_exports.run("things", "--to", data / "events")
        assert session.sql(rendered(again=True)).fetchall() == []
        session.sql("DELETE FROM model WHERE event_offset > 3")
        assert [row[0] for row in session.sql(rendered(again=True)).fetchall()] == [4]


def test_the_model_by_dbt_itself(data: Path, log: Callable[..., Any], make_topic: Any) -> None:
    if not (dbt := shutil.which("dbt") or shutil.which("dbt", path=Path(sys.prefix, "dbt/bin"))):
        pytest.skip("dbt is not there: pip install dbt-duckdb into an environment of its own, .venv/dbt or on the PATH")
    [model] = blocks("sql", data, about="is_incremental()")
    project = data / "project"
    (project / "models").mkdir(parents=True)
    (project / "models/things.sql").write_text(model)
    (project / "dbt_project.yml").write_text("name: shop\nprofile: shop\n")
    duck = f"{{type: duckdb, path: '{project}/shop.duckdb'}}"
    (project / "profiles.yml").write_text(f"shop: {{target: dev, outputs: {{dev: {duck}}}}}\n")

    def built() -> list[tuple[Any, ...]]:
        quiet = {**os.environ, "DBT_SEND_ANONYMOUS_USAGE_STATS": "false"}
        words = [dbt, "run", "--project-dir", str(project), "--profiles-dir", str(project)]
        done = subprocess.run(words, env=quiet, cwd=project, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        with duckdb.connect(str(project / "shop.duckdb"), read_only=True) as session:
            asked = "SELECT event_offset, order_id, customer, total FROM things ORDER BY event_offset"
            return session.sql(asked).fetchall()

    assert [row[0] for row in built()] == [1, 2, 3, 4]
    log(Draft(value={"customer": "Bob", "total": 5}, type="order.placed", key="9"), topic="things")
    local_exports.run("things", "--to", data / "events")
    assert built()[-2:] == [(4, "1", "Ada", None), (5, "9", "Bob", 5)]
