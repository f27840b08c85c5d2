"""One folder of two engines: what Spark began goes on without it, and the other way round."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_events import Draft
from tests.spark.test_batch import HOSTILE, publish, stored
from tests.spark.test_export import exported, incarnation, part_of, plan, run
from tests.support.local_exports import left_over, read_back

pytestmark = pytest.mark.usefixtures("transactional_db", "spark")


@pytest.mark.slow
@pytest.mark.requirement("X1")
@pytest.mark.parametrize("engines", [("local", "spark"), ("spark", "local")])
@pytest.mark.parametrize("by", ["day", "month,hour,type"])
def test_an_engine_goes_on_with_the_folder_of_the_other(
    spark: Any, log: Callable[..., Any], tmp_path: Path, engines: tuple[str, str], by: str
) -> None:
    types = ("order.placed", "", "2026", "with space/and=more%", "\N{SNOWMAN}", "x" * 100)
    topic = log(*(Draft(value=value, type=types[n % 6], key=str(n)) for n, value in enumerate(HOSTILE)))
    log(Draft(body=b"\0\xff"), topic=topic)
    first, second = engines

    run(topic, "--to", tmp_path, "--by", by, "--part", 7, engine=first)
    publish(topic, *HOSTILE)
    begun = part_of(topic, len(HOSTILE) + 2, len(HOSTILE) + 5)
    assert begun.incarnation == incarnation(topic)
    plan(tmp_path, begun, by=tuple(by.split(",")))
    left = tmp_path / "_django_events/attempts/000000000001-of-a-run-that-was-killed"
    left.mkdir()
    run(topic, "--to", tmp_path, "--by", by, "--part", 7, engine=second)

    assert run(topic, "--to", tmp_path, "--by", by, engine=first).startswith("Nothing to export: all of that is there.")
    assert exported(spark, tmp_path) == read_back(tmp_path) == stored(topic)
    assert left_over(tmp_path) == []
    assert {path.name for path in tmp_path.glob("topic=*/ids=*/[!_.]*")} == {
        path.name for part in tmp_path.glob("topic=*/ids=*") for path in part.iterdir() if path.is_dir()
    }


def test_folders_of_both_are_called_the_same(spark: Any, log: Callable[..., Any], tmp_path: Path) -> None:
    characters = [one for one in map(chr, range(1, 130)) if not one.isalnum()]
    topic = log(
        *(Draft(value=1, type=f"a{one}b") for one in characters), Draft(value=1, type="__HIVE_DEFAULT_PARTITION__")
    )
    for engine in ("spark", "local"):
        run(topic, "--to", tmp_path / engine, "--by", "day,hour,month,type", engine=engine)

    found = [
        sorted(str(path.parent.relative_to(tmp_path / engine)) for path in (tmp_path / engine).rglob("*.parquet"))
        for engine in ("spark", "local")
    ]

    assert found[0] == found[1]
