"""A projection is rebuilt while it is served: processes are killed and frozen, and each event counts once."""

import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest

from tests.support.processes import Processes

KEYS = 200
THERE = 12_000  # events before a rebuild begins
TABLE = "projecting_app_customertotal"
REBUILD = ("events", "rebuild", "deed_totals", "--execute", "--wait", "60")

ROWS = f"SELECT customer, orders, seen FROM {TABLE} ORDER BY customer"
FOLDED = """
    SELECT e.key, count(*)::int, jsonb_agg(e.id ORDER BY e.id)
    FROM django_events_event AS e JOIN django_events_topic AS t ON t.id = e.topic_id
    WHERE t.name = 'deeds' GROUP BY e.key ORDER BY e.key
"""
LEFT = """
    SELECT (SELECT count(*) FROM django_events_bufferedevent) + (
        SELECT sum((SELECT count(*) FROM django_events_event AS e
            WHERE e.topic_id = c.topic_id AND e.partition = p.partition AND e.id > p.position))
        FROM django_events_position AS p JOIN django_events_consumer AS c ON c.id = p.consumer_id
        WHERE c.name = 'deed_totals'
    )
"""


@pytest.fixture
def settings_module() -> str:
    return "tests.support.projecting_settings"


@pytest.fixture
def connection(processes: Processes) -> Iterator["psycopg.Connection[Any]"]:
    with psycopg.connect(processes.url, autocommit=True) as connection:
        yield connection


def publish(connection: "psycopg.Connection[Any]", first: int, events: int) -> None:
    connection.execute(
        "SELECT django_events_publish('deeds', to_jsonb(n), key => 'c' || n %% %s)"
        " FROM generate_series(%s::int, %s::int) AS n",
        (KEYS, first, first + events - 1),
    )


@contextmanager
def published(url: str) -> Iterator[None]:
    """Events come all the while."""
    over = threading.Event()

    def target() -> None:
        with psycopg.connect(url, autocommit=True, prepare_threshold=None) as own:
            number = THERE
            while not over.wait(0.05):
                publish(own, number, 20)
                number += 20

    thread = threading.Thread(target=target)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@contextmanager
def served(processes: Processes, connection: "psycopg.Connection[Any]") -> Iterator[list[subprocess.Popen[str]]]:
    """A transfer and two workers, which have folded what is there, while more comes."""
    processes.variables["VANISHED_AFTER"] = "2"
    publish(connection, 0, THERE)
    transfer = processes.start("run_transfer")
    workers = [processes.start("run_consumer", "deed_totals", "--skip-checks") for _ in range(2)]
    processes.wait_until(lambda: connection.execute(LEFT).fetchone() == (0,), what="a projection that is kept")
    with published(processes.url):
        yield workers
    for process in [transfer, *workers]:
        process.send_signal(signal.SIGCONT)
    processes.wait_until(lambda: connection.execute(LEFT).fetchone() == (0,), what="workers that are through")
    for process in [transfer, *workers]:
        process.send_signal(signal.SIGTERM)
    for process in [transfer, *workers]:
        assert process.wait(60) == 0, processes.said(process)


def reached(connection: "psycopg.Connection[Any]") -> int:
    row = connection.execute("SELECT reached ->> 'deeds' FROM django_events_rebuild").fetchone()
    return 0 if row is None else int(row[0])


def rebuilt(processes: Processes) -> None:
    """Say it again and again, as an operator who is told to."""

    def run() -> bool:
        done = processes.run(*REBUILD, timeout=180)
        assert done.returncode == 0 or "under way" in done.stderr or "is locked" in done.stderr, done.stderr
        return done.returncode == 0

    processes.wait_until(run, what="a rebuild")


def check(connection: "psycopg.Connection[Any]") -> None:
    assert connection.execute(ROWS).fetchall() == connection.execute(FOLDED).fetchall()
    assert connection.execute("SELECT count(*) FROM django_events_rebuild").fetchone() == (0,)
    left = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'django_events_rebuild%'"
    assert connection.execute(left).fetchone() == (0,)
    assert connection.execute("SELECT count(*) FROM django_events_deadletter").fetchone() == (0,)


def spoil(connection: "psycopg.Connection[Any]") -> None:
    """So that the rows are right only if they were made anew."""
    connection.execute(f"UPDATE {TABLE} SET orders = orders + 1000 WHERE customer IN ('c1', 'c2')")


@pytest.mark.timeout(600)
@pytest.mark.requirement("X13")
def test_a_rebuild_that_is_killed_goes_on_while_workers_are_killed(
    processes: Processes, connection: "psycopg.Connection[Any]"
) -> None:
    with served(processes, connection) as workers:
        spoil(connection)
        for least in (1, THERE // 3, 2 * THERE // 3):
            rebuild = processes.start(*REBUILD)
            processes.wait_until(
                lambda least=least, rebuild=rebuild: reached(connection) >= least or rebuild.poll() is not None,
                what="a rebuild at work",
            )
            rebuild.kill()
            rebuild.wait()
            connection.execute("UPDATE django_events_rebuild SET leased_until = clock_timestamp()")
            workers.pop(0).kill()
            workers.append(processes.start("run_consumer", "deed_totals", "--skip-checks"))
        rebuilt(processes)
        rebuilt(processes)
    check(connection)


@pytest.mark.timeout(600)
@pytest.mark.requirement("X13")
def test_a_rebuild_that_froze_wakes_up_too_late(processes: Processes, connection: "psycopg.Connection[Any]") -> None:
    with served(processes, connection) as workers:
        spoil(connection)
        frozen = processes.start(*REBUILD)
        processes.wait_until(lambda: reached(connection) >= 1_000, what="a rebuild at work")
        frozen.send_signal(signal.SIGSTOP)
        workers[0].send_signal(signal.SIGSTOP)
        connection.execute("SET lock_timeout = '1s'")

        def given_up() -> bool:
            with suppress(psycopg.errors.LockNotAvailable):  # the server ends its transaction soon
                connection.execute("UPDATE django_events_rebuild SET leased_until = clock_timestamp()")
                return True
            return False

        processes.wait_until(given_up, what="a lease that is over")
        rebuilt(processes)
        frozen.send_signal(signal.SIGCONT)
        assert frozen.wait(60) != 0, processes.said(frozen)
    check(connection)


@pytest.mark.timeout(600)
@pytest.mark.requirement("X13")
def test_of_two_rebuilds_at_once_one_is_refused(processes: Processes, connection: "psycopg.Connection[Any]") -> None:
    with served(processes, connection):
        spoil(connection)
        both = [processes.start(*REBUILD) for _ in range(2)]
        codes = [one.wait(180) for one in both]
        said = "".join(map(processes.said, both))
        assert 0 in codes, said
        assert codes == [0, 0] or "under way" in said or "begun by another process" in said or "is locked" in said
    check(connection)


@pytest.mark.timeout(600)
@pytest.mark.requirement("X13")
def test_a_rebuild_through_a_pooler(processes: Processes, pooler: str, connection: "psycopg.Connection[Any]") -> None:
    """Each transaction may have another session, in which nothing must stay of the one before."""
    processes.url = pooler
    with served(processes, connection):
        spoil(connection)
        rebuilt(processes)
    check(connection)
