"""`order.placed` changes its version in the middle of the demo, and all that reads the orders goes on.

The demo, another worker and two followers are processes; what they write is read by other readers.
"""

import json
import signal
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from deltalake import DeltaTable

from tests.acceptance.test_demo import DEMO, check_table
from tests.integration.exporting.test_typed_exports import rows
from tests.support.processes import ROOT, Processes

SCHEMAS = str(ROOT / "testproject" / "event_schemas")
SHOWN = """
import json, sys
from django.contrib.auth.models import User
from django.test import Client

client = Client(SERVER_NAME="localhost")
client.force_login(User.objects.create_superuser("Ada"))
pages = [client.get(f"/admin/django_events/topic/go/orders/{id}/", follow=True) for id in %s]
print(json.dumps([page.content.decode() for page in pages]))
"""


def ask(url: str, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute(query.encode()).fetchall()


def offsets(kind: str, folder: Path) -> int:
    """How many events a table has; none before it is there."""
    if kind == "delta" and not DeltaTable.is_deltatable(f"{folder}/orders"):
        return 0
    if kind == "iceberg" and not (folder / "catalog.db").exists():
        return 0
    return len(rows(kind, folder, "orders"))


@pytest.mark.requirement("X9", "X15")
@pytest.mark.timeout(900)
def test_the_version_of_an_event_changes_in_the_middle(processes: Processes, tmp_path: Path):
    places = {kind: tmp_path / kind for kind in ("delta", "iceberg")}
    following = {
        kind: processes.start(
            *("export_events", "orders", "--to", str(place), "--format", kind),
            *("--columns", "typed", "--follow", "--every", "0.5"),
        )
        for kind, place in places.items()
    }
    worker = processes.start("run_consumer", "--all")

    demo = processes.run(*DEMO, "--keep", str(tmp_path / "files"), timeout=400)

    assert demo.returncode == 0, demo.stderr
    check_table(demo.stdout)
    log = {
        event_id: (kind, version, json.loads(value))
        for event_id, kind, version, value in ask(
            processes.url,
            "SELECT id, type, (metadata->>'schema_version')::int, value::text FROM django_events_event"
            " WHERE topic_id = (SELECT id FROM django_events_topic WHERE name = 'orders') ORDER BY id",
        )
    }
    versions = [(version, event_id) for event_id, (kind, version, _) in log.items() if kind == "order.placed"]
    counted = Counter(version for version, _ in versions)
    assert counted.keys() == {1, 2} and min(counted.values()) > 10
    for kind, place in places.items():
        processes.wait_until(
            lambda kind=kind, place=place: offsets(kind, place) == len(log), what=f"all events in {kind}"
        )
        following[kind].send_signal(signal.SIGTERM)
        assert following[kind].wait(60) == 0, processes.said(following[kind])
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(60) == 0, processes.said(worker)
    for kind, place in {"parquet": tmp_path / "files", **places}.items():
        check_rows(rows(kind, place, "orders"), log)
    billed = ask(processes.url, "SELECT event, amount FROM shop_invoice")
    wanted = {f"orders/{event_id}": Decimal(log[event_id][2]["total"]) for _, event_id in versions}
    assert len(billed) == len(wanted) and dict(billed) == wanted
    for place in ("files", *places):
        verified = processes.run("events", "verify", "--against", str(tmp_path / place))
        assert verified.returncode == 0, verified.stdout
        assert "not compared" not in verified.stdout
    check_schemas(processes)
    first = {version: min(one for of, one in versions if of == version) for version in counted}
    check_admin(processes, log, list(first.values()))


def check_rows(found: list[dict[str, Any]], log: dict[int, tuple[str, int, dict[str, Any]]]) -> None:
    """Each event is there once, told whole by columns of the newest version."""
    assert [row["offset"] for row in found] == list(log)
    for row in found:
        kind, version, value = log[row["offset"]]
        assert row["rescued"] is None
        if kind == "order.paid":
            assert (row["schema_version"], row["data"]["order_paid"]) == (1, {"order": value["order"]})
            continue
        lines = value["lines"] if version == 2 else [{"sku": value["sku"], "quantity": value["quantity"]}]
        told = row["data"]["order_placed"]
        assert row["schema_version"] == 2
        assert (told["order"], told["customer"], told["lines"]) == (value["order"], value["customer"], lines)
        assert told["total"] == Decimal(value["total"])


def check_schemas(processes: Processes) -> None:
    agreed = processes.run("events", "schemas", "check", "--folder", SCHEMAS)
    assert (agreed.returncode, agreed.stdout) == (0, f"3 schemas as in {SCHEMAS}.\n"), agreed.stderr
    fits = processes.run("events", "schemas", "check", "orders", "--against-log")
    assert fits.returncode == 0 and "all fit" in fits.stdout, fits.stdout


def check_admin(processes: Processes, log: dict[int, tuple[str, int, dict[str, Any]]], ids: list[int]) -> None:
    """The page of an event shows what is in the log, which is what was published, and its version."""
    shown = processes.run("shell", "-v0", "-c", SHOWN % ids)
    assert shown.returncode == 0, shown.stderr
    for event_id, page in zip(ids, json.loads(shown.stdout), strict=True):
        _, version, value = log[event_id]
        assert f"&quot;schema_version&quot;: {version}" in page
        assert ("&quot;lines&quot;" in page) is ("lines" in value)
