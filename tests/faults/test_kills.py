"""Processes and servers that die: what was committed is in the log, once, in order."""

import signal

import psycopg
import pytest

from testproject.private_postgres.server import Server
from tests.support.processes import Processes, check_log

TOPICS = ["orders", "payments", "stock"]


def committed(publishers) -> int:
    return sum(len(publisher.values("committed")) for publisher in publishers)


@pytest.mark.requirement("X8", "E6")
def test_a_transfer_killed_in_a_loop_loses_and_doubles_nothing(processes: Processes):
    publishers = [
        processes.start_publisher(f"p{i}", isolation)
        for i, isolation in enumerate(["read committed", "read committed", "repeatable read", "serializable"])
    ]
    processes.wait_until(lambda: all(p.entries() for p in publishers), what="every publisher at work")
    for kill in range(6):
        seen = in_log(processes.url)
        transfer = processes.start("run_transfer")
        processes.wait_until(lambda: in_log(processes.url) > seen, what=f"progress before kill {kill}")
        transfer.send_signal(signal.SIGKILL)
        transfer.wait()
    for publisher in publishers:
        publisher.stop()
    assert processes.run("run_transfer", "--once").returncode == 0

    assert check_log(processes.url, TOPICS, publishers) == committed(publishers)
    assert any(p.values("rolled back") for p in publishers)


@pytest.mark.quick
@pytest.mark.requirement("P13", "X8")
def test_a_server_that_crashes_keeps_every_committed_event(processes: Processes, fault_server: Server):
    publishers = [processes.start_publisher(f"p{i}") for i in range(4)]
    transfer = processes.start("run_transfer")
    # Before it has reached the server once it gives up at once, for its supervisor to see.
    processes.wait_until(lambda: in_log(processes.url) > 0, what="a transfer at work")
    for _ in range(2):
        before = committed(publishers)
        processes.wait_until(lambda: committed(publishers) > before + 200, what="200 more events")
        fault_server.stop("immediate")
        fault_server.start()
    before = committed(publishers)
    processes.wait_until(lambda: committed(publishers) > before + 50, what="publishers that go on")
    for publisher in publishers:
        publisher.stop()
    processes.wait_until(lambda: buffered(processes.url) == 0, what="a transfer that came back by itself")
    assert transfer.poll() is None
    transfer.send_signal(signal.SIGTERM)
    assert transfer.wait(60) == 0

    assert check_log(processes.url, TOPICS, publishers) >= committed(publishers)
    assert "next try in" in processes.log_of("run_transfer")
    assert "works again" in processes.log_of("run_transfer")


@pytest.mark.requirement("E5")
def test_eight_transfer_processes_at_once(processes: Processes):
    publishers = [processes.start_publisher(f"p{i}") for i in range(3)]
    transfers = [processes.start("run_transfer") for _ in range(8)]
    processes.wait_until(lambda: committed(publishers) > 1_500, what="1,500 events")
    for publisher in publishers:
        publisher.stop()
    processes.wait_until(lambda: buffered(processes.url) == 0, what="an empty buffer")
    for transfer in transfers:
        transfer.send_signal(signal.SIGTERM)
    assert [transfer.wait(60) for transfer in transfers] == [0] * 8

    assert check_log(processes.url, TOPICS, publishers) == committed(publishers)


@pytest.mark.requirement("P2", "X8")
def test_scheduled_events_survive_killed_transfers_and_a_crash_of_the_server(
    processes: Processes, fault_server: Server
):
    """4,000 of them, due while they are being published by two transfers at a time, which are killed."""
    with psycopg.connect(processes.url) as connection:
        connection.execute(
            "SELECT django_events_schedule('stock', clock_timestamp() + n * interval '1 millisecond',"
            " to_jsonb(n), key => (n % 7)::text) FROM generate_series(1, 4000) AS n"
        )
    for kill in range(4):
        seen = in_log(processes.url)
        transfers = [processes.start("run_transfer") for _ in range(2)]
        processes.wait_until(
            lambda: in_log(processes.url) > seen or in_log(processes.url) == 4_000,  # on a slow machine all at once
            what=f"progress before kill {kill}",
        )
        for transfer in transfers:
            transfer.send_signal(signal.SIGKILL)
            transfer.wait()
        if kill == 2:
            fault_server.stop("immediate")
            fault_server.start()
    with psycopg.connect(processes.url) as connection:
        connection.execute(
            "SELECT django_events_schedule('stock', clock_timestamp() - interval '1 hour', to_jsonb(4001), key => '0')"
        )
    assert processes.run("run_transfer", "--once").returncode == 0
    processes.wait_until(lambda: nothing_is_scheduled(processes), what="the last of them")

    with psycopg.connect(processes.url) as connection:
        rows = connection.execute("SELECT id, key, value FROM django_events_event ORDER BY id").fetchall()
    assert [id for id, _, _ in rows] == [*range(1, 4002)]
    assert sorted(value for _, _, value in rows) == [*range(1, 4002)]
    for key in map(str, range(7)):
        values = [value for _, k, value in rows if k == key and value != 4001]
        assert values == sorted(values)


def nothing_is_scheduled(processes: Processes) -> bool:
    processes.run("run_transfer", "--once")
    with psycopg.connect(processes.url) as connection:
        [left] = connection.execute("SELECT count(*) FROM django_events_scheduledevent").fetchone()
    return left + buffered(processes.url) == 0


def in_log(url: str) -> int:
    with psycopg.connect(url) as connection:
        [count] = connection.execute("SELECT count(*) FROM django_events_event").fetchone()
    return count


def buffered(url: str) -> int:
    with psycopg.connect(url) as connection:
        [count] = connection.execute("SELECT count(*) FROM django_events_bufferedevent").fetchone()
    return count
