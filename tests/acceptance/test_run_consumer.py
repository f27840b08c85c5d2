"""`manage.py run_consumer` as its supervisor sees it."""

import signal
from pathlib import Path

import pytest

from tests.acceptance.conftest import Office, wait_until_told
from tests.support.processes import Processes

needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="signals are looked up in /proc")


@pytest.fixture
def settings_module() -> str:
    return "tests.support.consuming_settings"


def test_once_handles_what_is_due_and_says_so(processes: Processes, office: Office):
    office.post(*[{}] * 20)
    office.transfer()
    first = processes.run("run_consumer", "answering", "--once")
    second = processes.run("run_consumer", "answering", "--once", "--threads", "3")

    assert (first.returncode, first.stdout) == (0, "Events handled: 20.\n")
    assert (second.returncode, second.stdout) == (0, "Events handled: 0.\n")
    assert len(office.effects("answering")) == 20


def test_threads_handle_partitions_at_the_same_time(processes: Processes, office: Office):
    for key in map(str, range(40)):
        office.post({"gate": 1}, key=key)
    office.transfer()
    with office.gate(1) as gate:
        worker = processes.start("run_consumer", "answering", "--once", "--threads", "4")
        processes.wait_until(lambda: gate.waiting == 4, what="a handler in each of four partitions")

    assert worker.wait(60) == 0
    assert sorted(office.effects("answering")) == sorted(f"letters/{id}" for id in range(1, 41))


def test_all_serves_every_consumer(processes: Processes, office: Office):
    office.post({"silent": False}, {})
    office.transfer()
    first = processes.run("run_consumer", "--all", "--once", "--threads", "2")
    office.transfer()
    second = processes.run("run_consumer", "--all", "--once")

    assert (first.returncode, second.returncode) == (0, 0)
    assert office.effects("reading") == ["answers/1"]


@pytest.mark.requirement("E13")
@needs_proc
@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.quick), signal.SIGINT])
def test_the_first_signal_finishes_what_is_in_hand(processes: Processes, office: Office, number: signal.Signals):
    office.post({}, {"gate": 1}, *[{}] * 30, key="a")
    office.transfer()
    with office.gate(1) as gate:
        worker = processes.start("run_consumer", "answering")
        gate.wait_for_a_waiting_session()
        worker.send_signal(number)
        wait_until_told(worker)

    assert worker.wait(60) == 0
    assert office.effects("answering") == ["letters/1", "letters/2"]
    assert "Events handled: 2." in processes.said(worker)
    assert office.leases() == 0
    assert processes.run("run_consumer", "answering", "--once").stdout == "Events handled: 30.\n"
    assert office.effects("answering") == [f"letters/{id}" for id in range(1, 33)]


def test_a_resting_consumer_leaves_at_once(processes: Processes, office: Office):
    worker = processes.start("run_consumer", "answering", "reading", "--threads", "2")
    processes.wait_until(lambda: "Ctrl-C stops" in processes.said(worker), what="the consumer")
    worker.send_signal(signal.SIGTERM)

    assert worker.wait(60) == 0
    assert "Handing events of 'default' to answering, reading. Ctrl-C stops." in processes.said(worker)


@needs_proc
def test_the_second_sigint_ends_it_at_once_and_hands_back_what_is_in_hand(processes: Processes, office: Office):
    office.post({"gate": 1}, {}, key="a")
    office.transfer()
    with office.gate(1) as gate:
        worker = processes.start("run_consumer", "answering")
        gate.wait_for_a_waiting_session()
        worker.send_signal(signal.SIGINT)
        wait_until_told(worker)
        worker.send_signal(signal.SIGINT)

        assert worker.wait(60) == 1
        assert office.effects("answering") == []
        assert office.leases() == 0
    assert "Traceback" not in processes.said(worker)
    assert processes.run("run_consumer", "answering", "--once").stdout == "Events handled: 2.\n"


@pytest.mark.slow
@needs_proc
def test_the_second_sigterm_ends_it_at_once_and_undoes_what_is_in_hand(processes: Processes, office: Office):
    """Like a kill: others go on when the lease is over."""
    office.post({"gate": 1}, {}, key="a")
    office.transfer()
    with office.gate(1) as gate:
        worker = processes.start("run_consumer", "answering")
        gate.wait_for_a_waiting_session()
        worker.send_signal(signal.SIGTERM)
        wait_until_told(worker)
        worker.send_signal(signal.SIGTERM)

        assert worker.wait(60) == -signal.SIGTERM
        assert office.leases() == 1
    assert office.effects("answering") == []
    office.change("UPDATE django_events_position SET leased_until = clock_timestamp() WHERE token IS NOT NULL")
    assert processes.run("run_consumer", "answering", "--once").stdout == "Events handled: 2.\n"
    assert office.effects("answering") == ["letters/1", "letters/2"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["answerign"], "No installed app declares a consumer 'answerign'. Did you mean 'answering'?"),
        (
            [],
            "Name a consumer, or say --all. Known are: answering, billing, by-type, earnings, reading, receipts, "
            "search, status.",
        ),
        (["--all", "answering"], "Name consumers, or say --all, not both."),
        (["answering", "--threads", "0"], "--threads is 0, expected at least 1."),
        (["answering", "--database", "elsewhere"], "There is no database 'elsewhere'. Known are: default."),
        (["answering", "--twice"], "--twice"),
    ],
)
def test_wrong_usage(processes: Processes, arguments: list[str], said: str):
    result = processes.run("run_consumer", *arguments)

    assert (result.returncode, result.stdout) == (2, "")
    assert said in result.stderr
    assert "Traceback" not in result.stderr


def test_a_server_out_of_reach_is_told_from_a_failure(processes: Processes):
    processes.url = "postgresql://stranger:secret@127.0.0.1:1/nothing"
    for arguments in (["--once"], ["--threads", "2"]):
        result = processes.run("run_consumer", "answering", *arguments)

        assert result.returncode == 75
        assert "The database 'default' can't be reached." in result.stderr
        assert "secret" not in result.stderr + result.stdout
        assert "Traceback" not in result.stderr


def test_missing_tables_and_a_consumer_that_is_not_registered_name_the_way_out(processes: Processes, office: Office):
    office.change("DELETE FROM django_events_position")
    office.change("DELETE FROM django_events_consumer WHERE name = 'reading'")
    unregistered = processes.run("run_consumer", "reading")
    assert processes.run("migrate", "django_events", "zero", "-v0").returncode == 0
    no_tables = processes.run("run_consumer", "reading")

    for result in (unregistered, no_tables):
        assert result.returncode == 1
        assert "manage.py migrate --database default" in result.stderr
        assert "Traceback" not in result.stderr


def test_a_handler_that_cannot_be_imported_stops_its_own_consumer_only(processes: Processes, office: Office):
    processes.variables["LATER_HANDLER"] = "no_such_module.handle"
    assert processes.run("migrate", "-v0").returncode == 0
    office.post({}, {})
    office.transfer()
    alone = processes.run("run_consumer", "later")
    beside = processes.run("run_consumer", "later", "answering", "--once")

    assert (alone.returncode, beside.returncode) == (1, 1)
    for result in (alone, beside):
        assert "The handler 'no_such_module.handle' of consumer 'later'" in result.stderr
        assert "No module named 'no_such_module'" in result.stderr
    assert beside.stdout == "Events handled: 2.\n"
    assert len(office.effects("answering")) == 2
