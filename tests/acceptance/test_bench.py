"""`manage.py events bench` as a process: stopped, killed, and beside the workers of a site."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.integration.benching.test_benching import CATALOG, TABLES
from tests.support.processes import Processes

LONG = ["events", "bench", "--execute", "--rate", "200", "--for", "600", "--mode", "queue"]
LOGGED = (
    "SELECT coalesce(max(e.id), 0) FROM django_events_event e JOIN django_events_topic t ON t.id = e.topic_id"
    " WHERE t.name LIKE 'events-bench.%'"
)


def ask(processes: Processes, query: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(processes.url) as connection:
        return connection.execute(query).fetchall()


def everything(processes: Processes) -> tuple[Any, ...]:
    """The catalog, and the rows of all tables."""
    rows = [ask(processes, f"SELECT t::text FROM django_events_{table} AS t ORDER BY 1") for table in TABLES]
    return sorted(ask(processes, CATALOG)), rows


def start(processes: Processes, *arguments: str) -> "subprocess.Popen[str]":
    """Start a run, and wait until events go through."""
    process = processes.start(*(arguments or LONG))
    processes.wait_until(lambda: ask(processes, LOGGED)[0][0] > 50, what="events in the log")
    return process


@pytest.mark.requirement("E14")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_what_it_has_and_nothing_stays(processes: Processes, number: signal.Signals):
    before = everything(processes)
    process = start(processes)
    process.send_signal(number)

    assert process.wait(60) == 1
    assert "It was stopped: these are the events until then." in processes.said(process)
    assert "due → committed" in processes.said(process)
    assert everything(processes) == before


@pytest.mark.requirement("E14")
def test_what_a_killed_run_left_is_dropped_by_the_next_one(processes: Processes):
    before = everything(processes)
    killed = start(processes)
    killed.kill()
    killed.wait()
    assert everything(processes) != before
    processes.wait_until(lambda: not sessions(processes), what="a server that noticed it")

    result = processes.run("events", "bench", "--events", "50", "--execute")
    assert result.returncode == 0, result.stderr
    assert "which an earlier run had left." in result.stderr
    assert everything(processes) == before


def sessions(processes: Processes) -> list[tuple[Any, ...]]:
    query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    return ask(processes, f"{query} AND backend_type = 'client backend'")


@pytest.mark.long
def test_two_runs_at_once_leave_each_other_alone(processes: Processes):
    before = everything(processes)
    first = start(processes)
    second = processes.run("events", "bench", "--events", "50", "--execute", "--format", "json")
    assert second.returncode == 0, second.stderr
    assert "stays: it is in use" in second.stderr
    assert first.poll() is None

    first.send_signal(signal.SIGINT)
    first.wait(60)
    assert everything(processes) == before


@pytest.mark.long
@pytest.mark.requirement("E14")
def test_beside_a_running_transfer_and_migrate(processes: Processes):
    """A site's transfer moves the events too, goes on when they are dropped, and its own events go through."""
    before = everything(processes)
    transfer = processes.start("run_transfer")
    process = start(processes, *LONG)
    migrated = processes.run("migrate", "-v0")
    assert migrated.returncode == 0, migrated.stderr
    process.send_signal(signal.SIGINT)
    process.wait(60)
    assert everything(processes) == before

    result = processes.run("events", "bench", "--events", "300", "--execute", "--format", "json")
    data = json.loads(result.stdout)
    assert result.returncode == 0, result.stderr
    assert data["moved"] + data["moved_by_others"] == data["logged"] == 300
    assert everything(processes) == before

    published = processes.run("events", "publish", "orders", "1")
    assert published.returncode == 0, published.stderr
    orders = "SELECT max(e.id) FROM django_events_event e JOIN django_events_topic t ON t.id = e.topic_id"
    processes.wait_until(lambda: ask(processes, f"{orders} WHERE t.name = 'orders'") == [(1,)], what="an order")
    transfer.send_signal(signal.SIGTERM)
    assert transfer.wait(60) == 0


def test_a_database_that_was_not_migrated_is_told(processes: Processes):
    assert processes.run("migrate", "django_events", "zero", "-v0").returncode == 0
    result = processes.run("events", "bench", "--execute")

    assert result.returncode == 1
    assert "manage.py migrate" in result.stderr


@pytest.mark.long
def test_through_a_pooler_that_hands_sessions_around(processes: Processes, pooler: str, tmp_path: Path):
    before = everything(processes)
    result = Processes(pooler, tmp_path).run("events", "bench", "--events", "200", "--execute", "--format", "json")

    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["complete"]
    assert everything(processes) == before
