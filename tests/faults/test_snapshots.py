"""Snapshots whose process is killed, frozen or doubled: each row is published once, and the fold is the table."""

import signal

import psycopg
import pytest

from tests.support.processes import Processes, wait_until

pytestmark = pytest.mark.requirement("X18")

ROWS = 20_000


@pytest.fixture
def settings_module() -> str:
    return "testproject.settings"


def ask(url: str, query: str) -> list[tuple]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(query)
        return cursor.fetchall() if cursor.description else []


@pytest.fixture
def shelves(processes: Processes) -> Processes:
    ask(
        processes.url,
        "INSERT INTO shop_product (sku, price, on_shelf)"
        f" SELECT 'sku-' || n, 1, n FROM generate_series(1, {ROWS}) AS n",
    )
    return processes


def rows(url: str) -> int:
    """How far the snapshot is."""
    found = ask(url, "SELECT (details ->> 'rows')::int FROM django_events_intervention WHERE action = 'snapshot'")
    return found[0][0] if found else 0


def expire(url: str) -> None:
    ask(
        url,
        "UPDATE django_events_intervention SET details = details || jsonb_build_object('leased_until', now())"
        " WHERE action = 'snapshot'",
    )


def change(url: str, n: int) -> None:
    ask(url, f"UPDATE shop_product SET on_shelf = on_shelf + 1 WHERE id % 97 = {n % 97}")


def assert_each_row_once(url: str, processes: Processes) -> None:
    assert processes.run("run_transfer", "--once").returncode == 0
    snapshots = (
        "FROM django_events_event AS e JOIN django_events_topic AS t ON t.id = e.topic_id"
        " WHERE t.name = 'stock' AND e.type = 'product.snapshot'"
    )
    assert ask(url, f"SELECT count(*), count(DISTINCT e.key) {snapshots}") == [(ROWS, ROWS)]
    wrong = ask(
        url,
        "SELECT p.sku FROM shop_product AS p LEFT JOIN LATERAL ("
        "  SELECT e.value FROM django_events_event AS e JOIN django_events_topic AS t ON t.id = e.topic_id"
        "  WHERE t.name = 'stock' AND e.key = p.sku ORDER BY e.id DESC LIMIT 1"
        ") AS last ON true WHERE (last.value ->> 'on_shelf')::int IS DISTINCT FROM p.on_shelf",
    )
    assert wrong == []


TAKE = ("events", "snapshot", "shop.Product", "--execute")


def test_one_that_is_killed_again_and_again_publishes_each_row_once(shelves: Processes):
    for kill in range(1, 6):
        process = shelves.start(*TAKE, "--rows-per-second", "20000")
        wait_until(lambda kill=kill: rows(shelves.url) >= kill * 2_000)
        change(shelves.url, kill)
        process.send_signal(signal.SIGKILL)
        process.wait()
        expire(shelves.url)
    done = shelves.run(*TAKE)
    assert done.returncode == 0, done.stderr
    assert f"{ROWS:,}" in done.stdout
    assert_each_row_once(shelves.url, shelves)


def test_one_that_is_stopped_is_gone_on_with_at_once(shelves: Processes):
    process = shelves.start(*TAKE, "--rows-per-second", "5000")
    wait_until(lambda: rows(shelves.url) >= 2_000)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 1
    assert 2_000 <= rows(shelves.url) < ROWS
    assert shelves.run(*TAKE).returncode == 0
    assert_each_row_once(shelves.url, shelves)


def test_one_that_is_frozen_and_wakes_up_too_late_publishes_nothing_more(shelves: Processes):
    process = shelves.start(*TAKE, "--rows-per-second", "5000")
    wait_until(lambda: rows(shelves.url) >= 2_000)
    process.send_signal(signal.SIGSTOP)
    refused = shelves.run(*TAKE)
    assert (refused.returncode, "takes the snapshot" in refused.stderr) == (1, True)
    expire(shelves.url)
    change(shelves.url, 1)
    assert shelves.run(*TAKE).returncode == 0
    process.send_signal(signal.SIGCONT)
    assert process.wait(60) == 1
    assert_each_row_once(shelves.url, shelves)


def test_of_two_at_once_one_is_refused(shelves: Processes):
    first, second = (shelves.start(*TAKE, "--rows-per-second", "20000") for _ in range(2))
    assert sorted([first.wait(90), second.wait(90)]) == [0, 1]
    assert_each_row_once(shelves.url, shelves)
