"""Tables in an object store: Delta by its address, Iceberg by a catalogue in PostgreSQL; all that is done to others."""

import json
from collections.abc import Callable
from contextlib import closing
from io import StringIO
from typing import Any

import pytest
from deltalake import DeltaTable
from django.core.management import call_command
from pyiceberg.catalog import load_catalog

from django_events import Draft
from django_events.exporting.writing import SCHEMA
from django_events.operations import erase
from tests.integration.exporting.test_erasing import without_times_of_erasures
from tests.integration.exporting.test_upserts import publish, states
from tests.spark.test_batch import stored
from tests.support.tables import run

pytestmark = [
    pytest.mark.usefixtures("transactional_db"),
    pytest.mark.slow,
    pytest.mark.requirement("X15"),
]

Log = Callable[..., Any]
SECRET = "Sesame"


class Store:
    """Tables of one format in the store."""

    def __init__(self, format: str, place: str, words: tuple[str, ...] = ()) -> None:
        self.format, self.place, self.words = format, place, words

    def run(self, topic: Any, *words: Any, to: str = "events") -> str:
        return run(topic, "--to", self._named(to), *self.words, *words, format=self.format)

    def rows(self, topic: Any, to: str = "events") -> list[dict[str, Any]]:
        if self.format == "delta":
            found = DeltaTable(f"{self._named(to)}/{topic}").to_pyarrow_table(columns=SCHEMA.names)
        else:
            with closing(load_catalog(self.words[1])) as catalog:
                table = catalog.load_table((self._named(to), str(topic)))
                assert table.location().startswith("s3://lake/warehouse/")
                found = table.scan().to_arrow()
        rows = [{"topic": str(topic), **row} for row in found.to_pylist()]
        return without_times_of_erasures(sorted(rows, key=lambda row: row["offset"]))

    def verified(self, topic: Any) -> tuple[dict[str, Any], int]:
        out, code = StringIO(), 0
        words = ("--against", self._named("events"), "--topic", str(topic), *self.words)
        try:
            call_command("events", "verify", *words, "--format", "json", stdout=out)
        except SystemExit as ended:
            code = int(ended.code or 0)
        return json.loads(out.getvalue()), code

    def _named(self, to: str) -> str:
        return f"{self.place}{to}"


@pytest.fixture(params=["delta", "iceberg"])
def store(request: pytest.FixtureRequest, bucket: str) -> Store:
    if request.param == "delta":
        return Store("delta", f"{bucket}/")
    return Store("iceberg", "", ("--catalog", request.getfixturevalue("catalogue_of_store")))


def drafts(count: int) -> list[Draft]:
    return [Draft(value={"of": f"{SECRET}{n % 5}"}, key=f"k{n % 5}", metadata={"m": SECRET}) for n in range(count)]


def test_events_are_added_merged_and_compared(log: Log, store: Store) -> None:
    topic = log(*drafts(30))
    assert store.run(topic, "--part", 10).startswith("Exported 30 events")
    publish(topic, *drafts(5))
    assert "Files that were merged: 3." in store.run(topic, "--compact")

    assert store.rows(topic) == stored(topic)
    said, code = store.verified(topic)
    assert (said["proved"], said["topics"][0]["events"], said["findings"], code) == (True, 35, [], 0)
    publish(topic, *drafts(2))
    said, code = store.verified(topic)
    assert (said["topics"][0]["not_compared"], code) == (2, 0)
    assert store.run(topic, "--until", 37).startswith("Exported 1 events")


def test_erasures_reach_a_store(log: Log, store: Store) -> None:
    topic = log(*drafts(20))
    store.run(topic, "--part", 10)
    erase(topic, key="k0", reason="asked for")
    erase(topic, key="k1", reason="asked for", forget_key=True)

    assert "by 2 erasures: 8." in store.run(topic, "--erase")

    assert store.rows(topic) == without_times_of_erasures(stored(topic))
    assert f"{SECRET}0" not in str(store.rows(topic))
    said, code = store.verified(topic)
    assert (said["proved"], code, said["notes"]) == (True, 0, [])
    assert "blanked" not in store.run(topic, "--erase")


def test_states_of_a_store_follow(log: Log, store: Store) -> None:
    topic = log(*drafts(20))
    words = ("--upsert", "--deletes", "gone")
    assert store.run(topic, *words, "--part", 8, to="states").startswith("Exported 20 events")
    assert store.rows(topic, to="states") == states(topic, "gone")
    publish(topic, Draft(value="new", key="k1"), Draft(value=1, key="k2", type="gone"), Draft(value=None, key="k3"))
    store.run(topic, *words, to="states")
    assert [row["key"] for row in store.rows(topic, to="states")] == ["k0", "k4", "k1"]
    erase(topic, key="k4", reason="asked for")
    store.run(topic, *words, "--erase", to="states")

    assert [row["key"] for row in store.rows(topic, to="states")] == ["k0", "k1"]
