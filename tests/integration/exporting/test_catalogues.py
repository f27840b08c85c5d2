"""Iceberg tables of a catalogue in PostgreSQL, which several processes open at once."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from pyiceberg.catalog import load_catalog
from sqlalchemy import Engine, event

from django_events import Draft
from django_events.operations import erase
from tests.spark.test_batch import publish, stored
from tests.support.tables import files_in, read_files, run

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.slow]

Log = Callable[..., Any]


@contextmanager
def first_by_another(of: str) -> Iterator[list[str]]:
    """Just before PyIceberg does something in the catalogue's database for the first time, another one does it."""
    done: list[str] = []

    @event.listens_for(Engine, "before_cursor_execute")
    def be_faster(_: Any, cursor: Any, statement: str, parameters: Any, *__: Any) -> None:
        if statement.lstrip().startswith(of) and statement not in done:
            done.append(statement)
            with connection.cursor() as another:
                another.execute(statement.replace("::VARCHAR", ""), parameters or None)

    try:
        yield done
    finally:
        event.remove(Engine, "before_cursor_execute", be_faster)


@pytest.mark.requirement("X15")
def test_a_catalogue_in_the_same_postgresql(log: Log, catalogue: str) -> None:
    topic = log(*(Draft(value={"n": n}, key=str(n % 3)) for n in range(9)))
    words = ("--to", "analytics", "--catalog", catalogue)
    assert run(topic, *words, "--part", 3, format="iceberg").startswith("Exported 9 events")
    publish(topic, *range(5))
    assert run(topic, *words, "--compact", format="iceberg").startswith("Exported 5 events")

    with closing(load_catalog(catalogue)) as known:
        [file] = files_in(known, "analytics")
        assert read_files([file]) == stored(topic)

    erase(topic, key="1", reason="asked for")
    assert "by 1 erasure: 3." in run(topic, *words, "--erase", format="iceberg")
    out = StringIO()
    call_command("events", "verify", "--against", "analytics", "--catalog", catalogue, "--format", "json", stdout=out)
    said = json.loads(out.getvalue())
    assert (said["proved"], said["topics"][0]["events"], said["findings"]) == (True, 14, [])

    run(topic, "--to", "states", "--catalog", catalogue, "--upsert", format="iceberg")
    with closing(load_catalog(catalogue)) as known:
        states = known.load_table(("states", str(topic))).scan().to_arrow().to_pylist()
    assert {one["key"] for one in states} == {"0", "2"}


@pytest.mark.parametrize(
    ("of", "times"), [("CREATE TABLE", 2), ("INSERT INTO iceberg_namespace_properties", 1)], ids=["tables", "namespace"]
)
def test_what_another_one_makes_at_the_same_moment_is_no_error(log: Log, catalogue: str, of: str, times: int) -> None:
    topic = log(Draft(value=1))

    with first_by_another(of) as done:
        assert run(topic, "--to", "analytics", "--catalog", catalogue, format="iceberg").startswith("Exported 1 event")

    assert len(done) == times
    with closing(load_catalog(catalogue)) as known:
        assert read_files(files_in(known, "analytics")) == stored(topic)
