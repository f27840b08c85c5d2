"""`manage.py run_transfer` as its supervisor sees it."""

import json
import signal

import psycopg
import pytest

from tests.support.processes import Processes, wait_until

FILL = (
    "INSERT INTO django_events_bufferedevent (topic_id, value)"
    " SELECT t.id, to_jsonb(n) FROM django_events_topic t, generate_series(1, %s) n WHERE t.name = 'stock'"
)


def ask(url: str, query: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute(query).fetchone()
    assert row is not None
    return int(row[0])


def logged(url: str) -> int:
    return ask(url, "SELECT count(*) FROM django_events_event")


def fill(url: str, events: int) -> None:
    with psycopg.connect(url) as connection:
        connection.execute(FILL, [events])


@pytest.mark.slow
def test_once_moves_what_is_there_and_says_so(processes: Processes):
    fill(processes.url, 12_000)
    first = processes.run("run_transfer", "--once")
    second = processes.run("run_transfer", "--once")

    assert (first.returncode, first.stdout) == (0, "Events moved into the log: 12000.\n")
    assert (second.returncode, second.stdout) == (0, "Events moved into the log: 0.\n")
    assert logged(processes.url) == 12_000


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGINT])
def test_the_first_signal_finishes_the_batch(processes: Processes, number: signal.Signals):
    fill(processes.url, 300_000)
    transfer = processes.start("run_transfer")
    wait_until(lambda: logged(processes.url) > 0, what="the first batch")
    transfer.send_signal(number)

    assert transfer.wait(60) == 0
    moved = logged(processes.url)
    assert moved % 5_000 == 0
    assert moved < 300_000
    assert f"Events moved into the log: {moved}." in processes.log_of("run_transfer")
    assert ask(processes.url, "SELECT count(*) FROM django_events_bufferedevent") == 300_000 - moved


def test_a_resting_transfer_leaves_at_once(processes: Processes):
    transfer = processes.start("run_transfer")
    wait_until(lambda: "Ctrl-C stops" in processes.log_of("run_transfer"), what="the transfer")
    transfer.send_signal(signal.SIGTERM)

    assert transfer.wait(60) == 0


def test_an_unknown_database_is_wrong_usage(processes: Processes):
    result = processes.run("run_transfer", "--database", "elsewhere")

    assert result.returncode == 2
    assert "There is no database 'elsewhere'. Known are: default." in result.stderr


def test_a_server_out_of_reach_is_told_from_a_failure(processes: Processes):
    processes.url = "postgresql://stranger:secret@127.0.0.1:1/nothing"
    result = processes.run("run_transfer")

    assert result.returncode == 75
    assert "The database 'default' can't be reached." in result.stderr
    assert "secret" not in result.stderr + result.stdout


def test_missing_tables_name_the_way_out(processes: Processes):
    assert processes.run("migrate", "django_events", "zero", "-v0").returncode == 0
    result = processes.run("run_transfer")

    assert result.returncode == 1
    assert "manage.py migrate --database default" in result.stderr


@pytest.mark.slow
def test_the_second_signal_ends_it_and_loses_nothing(processes: Processes):
    """A second signal ends the process at once; the batch in hand rolls back and is whole in the buffer."""
    fill(processes.url, 200_000)
    transfer = processes.start("run_transfer")
    wait_until(lambda: logged(processes.url) > 0, what="the first batch")
    transfer.send_signal(signal.SIGTERM)
    transfer.send_signal(signal.SIGTERM)
    transfer.wait(60)
    rest = ask(processes.url, "SELECT count(*) FROM django_events_bufferedevent")

    assert logged(processes.url) + rest == 200_000


def test_where_publishers_wake_no_transfer_the_transfer_and_the_bench_say_so(processes: Processes):
    """The server of these tests allows prepared transactions, so an event waits for the transfer's next look."""
    polling = "(max_prepared_transactions is 20), so publishers wake no transfer: it looks after milliseconds while"
    transfer = processes.start("run_transfer")
    processes.wait_until(lambda: polling in processes.said(transfer), what="why it polls")
    transfer.send_signal(signal.SIGTERM)
    assert transfer.wait(60) == 0

    bench = processes.run("events", "bench", "--events", "20", "--consumers", "0", "--execute", "--format", "json")
    assert polling in json.loads(bench.stdout)["polling"]
    assert "The latencies contain the wait for that." in bench.stderr
