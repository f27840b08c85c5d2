"""Processes with a BufferedWriter that end in every way: what was taken in is in the log, all but a known window."""

import signal

import psycopg
import pytest

from testproject.private_postgres.server import Server
from tests.support.processes import Processes, Publisher
from tests.support.writing import MANY

WINDOW = 2 * 2 * 20  # of tests/support/writing.py: in each of two lanes a batch in flight and one that fills


def taken(writer: Publisher) -> set[str]:
    return writer.values("taken")


def transferred(processes: Processes) -> set[str]:
    """What is in the log, once all of it is: nothing twice, and in order by key."""
    assert processes.run("run_transfer", "--once").returncode == 0
    with psycopg.connect(processes.url) as connection:
        rows = connection.execute(
            "SELECT key, value #>> '{}' FROM django_events_event ORDER BY topic_id, id"
        ).fetchall()
    values = [value for _, value in rows]
    assert len(values) == len(set(values)), "something is in the log twice"
    newest: dict[str, int] = {}
    for key, value in rows:
        sequence = int(value.rsplit("/", 1)[1])
        assert sequence > newest.get(key, -1), f"{value} comes after {newest[key]} of the same key"
        newest[key] = sequence
    return {value for value in values if value.startswith(("p/", "child/"))}


@pytest.mark.requirement("H2", "X8")
def test_sigterm_writes_what_was_taken_in(processes: Processes):
    writer = processes.start_writer("forever")
    processes.wait_until(lambda: len(taken(writer)) > 300, what="300 events")
    writer.process.send_signal(signal.SIGTERM)

    assert writer.process.wait(60) == 128 + signal.SIGTERM
    in_log = transferred(processes)
    assert taken(writer) <= in_log
    assert len(in_log - taken(writer)) <= 1, "only the one that SIGTERM kept from being noted"


@pytest.mark.requirement("H2")
def test_sigterm_is_the_business_of_the_process_which_loses_its_batches_without_a_handler(processes: Processes):
    writer = processes.start_writer("unhandled")
    processes.wait_until(lambda: len(writer.values("written")) > 300, what="300 events")
    writer.process.send_signal(signal.SIGTERM)

    assert writer.process.wait(60) == -signal.SIGTERM
    in_log = transferred(processes)
    assert writer.values("written") <= in_log
    assert len(taken(writer) - in_log) <= WINDOW


@pytest.mark.slow
@pytest.mark.requirement("H2")
def test_close_writers_writes_everything_where_nothing_runs_at_exit(processes: Processes):
    writer = processes.start_writer("hook")

    assert writer.process.wait(60) == 5
    assert len(taken(writer)) == MANY
    assert taken(writer) == transferred(processes)


@pytest.mark.requirement("H2")
def test_sigterm_ends_the_process_also_where_the_database_is_away(processes: Processes, fault_server: Server):
    fault_server.stop("fast")
    try:
        writer = processes.start_writer("waiting")
        processes.wait_until(lambda: writer.entries() and writer.entries()[-1]["outcome"] == "waits", what="30 events")
        writer.process.send_signal(signal.SIGTERM)
        assert writer.process.wait(60) == 128 + signal.SIGTERM
    finally:
        fault_server.start()

    said = processes.said(writer.process)
    assert (
        "30 of 30 events for topic 'orders' were not written. The reason: none was settled by the database 'default'"
        in said
    )
    assert transferred(processes) == set()


@pytest.mark.requirement("H2")
def test_ctrl_c_writes_what_was_taken_in(processes: Processes):
    writer = processes.start_writer("forever")
    processes.wait_until(lambda: len(taken(writer)) > 300, what="300 events")
    writer.process.send_signal(signal.SIGINT)

    assert writer.process.wait(60) != 0
    assert taken(writer) <= transferred(processes)


@pytest.mark.requirement("H2")
def test_a_handler_of_sigterm_of_the_sites_own_is_left_alone(processes: Processes):
    writer = processes.start_writer("own")
    processes.wait_until(lambda: len(taken(writer)) > 100, what="100 events")
    writer.process.send_signal(signal.SIGTERM)

    assert writer.process.wait(60) == 3
    assert writer.entries()[-1]["outcome"] == "left by itself"
    assert taken(writer) == transferred(processes)


@pytest.mark.requirement("H2")
def test_a_writer_that_is_not_closed_is_closed_at_exit(processes: Processes):
    writer = processes.start_writer("left")

    assert writer.process.wait(60) == 0
    assert len(taken(writer)) == MANY
    assert taken(writer) == transferred(processes)


@pytest.mark.requirement("H2", "X8")
def test_a_fork_writes_its_own_events_only(processes: Processes):
    writer = processes.start_writer("fork")

    assert writer.process.wait(60) == 0
    assert writer.values("the child ended") == {"0"}
    assert len(taken(writer)) == 3 * MANY
    assert taken(writer) == transferred(processes)


@pytest.mark.quick
@pytest.mark.requirement("H2", "X8")
def test_a_process_that_is_killed_loses_at_most_its_batches_and_doubles_nothing(processes: Processes):
    writer = processes.start_writer("killed")
    processes.wait_until(lambda: len(writer.values("written")) > 300, what="300 events")
    writer.process.send_signal(signal.SIGKILL)
    writer.process.wait()

    in_log = transferred(processes)
    assert writer.values("written") <= in_log, "a future that is done is a promise"
    assert len(taken(writer) - in_log) <= WINDOW


@pytest.mark.requirement("H2", "P13", "X8")
def test_a_server_that_crashes_costs_no_event(processes: Processes, fault_server: Server):
    """Other publishers are at work, and get the transaction ids of what the crash took back."""
    publishers = [processes.start_publisher(f"p{i}") for i in range(2)]
    writer = processes.start_writer("killed")
    for _ in range(4):
        enough = len(writer.values("written")) + 200
        processes.wait_until(lambda: len(writer.values("written")) > enough, what="200 more events")
        fault_server.stop("immediate")
        fault_server.start()
    for publisher in publishers:
        publisher.stop()
    writer.process.send_signal(signal.SIGTERM)
    assert writer.process.wait(60) == 128 + signal.SIGTERM

    in_log = transferred(processes)
    assert taken(writer) <= in_log
    assert len(in_log - taken(writer)) <= 1
