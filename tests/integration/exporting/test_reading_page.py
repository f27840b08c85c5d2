"""The page for those who read what is exported: each of its blocks, on real files and tables."""

import importlib.util
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from django_events import Draft
from tests.support import local_exports, tables

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.slow]

PAGE = Path("docs/how-to/read-exports.md").read_text()
TOTALS = {"Ada": 30, "Bob": 12}


def blocks(language: str, data: Path) -> Iterator[str]:
    """The blocks of a language, about this test's files. The project has a topic orders of its own."""
    for found in re.finditer(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE):
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


def test_python(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    for block in blocks("python", data):
        needed = re.findall(r"^(?:import|from) (\w+)", block, re.MULTILINE)
        if any(importlib.util.find_spec(name) is None for name in needed):
            continue
        exec(block, names)
        if "totals" in names:
            assert names.pop("totals").item() == 42
            newest = names.pop("newest").sort("key")
            assert newest["type"].to_list() == ["order.shipped", "order.placed", "order.placed"]
        if "placed" in names:
            assert sorted(names.pop("placed")["offset"]) == [1, 2, 3]

    said = capsys.readouterr().out
    assert re.search(r"Ada +30\nBob +12\n", said)
    assert "('order.placed', 3)" in said


def test_sql_of_duckdb_and_dbt(data: Path) -> None:
    jinja2 = pytest.importorskip("jinja2")
    sums, view, model = blocks("sql", data)
    with duckdb.connect() as session:
        assert dict(session.sql(sums).fetchall()) == TOTALS
        session.sql(view)
        assert session.sql("SELECT key, type FROM things ORDER BY key").fetchall() == [
            ("1", "order.shipped"),
            ("2", "order.placed"),
            ("3", "order.placed"),
        ]

        def rendered(*, again: bool) -> str:
            known = {"config": lambda **options: "", "is_incremental": lambda: again, "this": "model"}
            return str(jinja2.Template(model).render(**known))

        session.sql(f"CREATE TABLE model AS {rendered(again=False)}")
        assert session.sql("SELECT sum(total) FROM model").fetchall() == [(42,)]
        local_exports.run("things", "--to", data / "events")
        assert session.sql(rendered(again=True)).fetchall() == []
        session.sql("DELETE FROM model WHERE event_offset > 3")
        assert [row[0] for row in session.sql(rendered(again=True)).fetchall()] == [4]
