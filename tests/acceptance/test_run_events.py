"""`manage.py run_events`: the transfer and the consumers in one process, which starts again when code changes."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.conftest import Office, wait_until_told
from tests.acceptance.test_run_consumer import needs_proc
from tests.support.processes import ROOT, Processes


@pytest.fixture
def settings_module() -> str:
    return "tests.support.consuming_settings"


def wait_for_effects(office: Office, consumer: str, number: int) -> None:
    office.processes.wait_until(
        lambda: len(office.effects(consumer)) >= number, what=f"{number} events of consumer {consumer}"
    )


# --- until nothing is due, or until stopped


@pytest.mark.slow
def test_once_goes_on_until_what_handlers_publish_is_handled_too(processes: Processes, office: Office):
    office.post(*[{"silent": False}] * 6)
    first = processes.run("run_events", "--once", "--threads", "2")
    second = processes.run("run_events", "--once")

    assert (first.returncode, first.stdout) == (0, "Events moved into the log: 12. Events handled: 12.\n")
    assert (second.returncode, second.stdout) == (0, "Events moved into the log: 0. Events handled: 0.\n")
    assert sorted(office.notes("reading")) == [f"letters/{id}" for id in range(1, 7)]


def test_named_consumers_only(processes: Processes, office: Office):
    office.post({"silent": False}, {"silent": False})
    result = processes.run("run_events", "answering", "--once")

    assert (result.returncode, result.stdout) == (0, "Events moved into the log: 4. Events handled: 2.\n")
    assert office.effects("reading") == []


@pytest.mark.slow
@pytest.mark.requirement("X6")
def test_transfer_and_consumers_share_one_listen_connection(processes: Processes, office: Office):
    worker = processes.start("run_events", "--threads", "2", "--webhooks")
    office.post({"silent": False})
    wait_for_effects(office, "reading", 1)
    processes.wait_until(lambda: len(connections(office)) == 5, what="transfer, threads, sender and listener")
    worker.send_signal(signal.SIGTERM)

    assert worker.wait(60) == 0
    assert connections(office) == []
    assert "Events moved into the log: 2. Events handled: 2." in processes.said(worker)


def connections(office: Office) -> list[tuple[object, ...]]:
    return office.ask(
        "SELECT pid, query FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND backend_type = 'client backend'"
    )


@pytest.mark.requirement("E13")
@needs_proc
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_finishes_what_is_in_hand(processes: Processes, office: Office, number: signal.Signals):
    office.post({"gate": 1}, *[{}] * 30, key="a")
    with office.gate(1) as gate:
        worker = processes.start("run_events")
        gate.wait_for_a_waiting_session()
        worker.send_signal(number)
        wait_until_told(worker)

    assert worker.wait(60) == 0
    assert office.effects("answering") == ["letters/1"]
    assert "Events moved into the log: 31. Events handled: 1." in processes.said(worker)
    assert office.leases() == 0


@needs_proc
def test_the_second_sigint_ends_it_at_once_and_hands_back_what_is_in_hand(processes: Processes, office: Office):
    office.post({"gate": 1}, key="a")
    with office.gate(1) as gate:
        worker = processes.start("run_events")
        gate.wait_for_a_waiting_session()
        worker.send_signal(signal.SIGINT)
        wait_until_told(worker)
        worker.send_signal(signal.SIGINT)

        assert worker.wait(60) == 1
        assert office.leases() == 0
    assert office.effects("answering") == []


# --- what goes wrong


def test_a_part_that_fails_stops_the_others_and_says_why(processes: Processes, office: Office):
    office.post({"gate": 1}, key="a")
    with office.gate(1) as gate:
        worker = processes.start("run_events")
        gate.wait_for_a_waiting_session()
        office.change("ALTER TABLE django_events_topic RENAME COLUMN failure TO notes")  # not one topic's problem
        processes.wait_until(lambda: len(connections_of_workers(office)) == 0, what="the end of the transfer")

    assert worker.wait(60) == 1
    assert "Working on 'default' failed." in processes.said(worker)
    assert "failure" in processes.said(worker)
    assert "Traceback" not in processes.said(worker)
    assert office.effects("answering") == ["letters/1"], "what was in hand is finished"
    assert office.leases() == 0


def connections_of_workers(office: Office) -> list[tuple[object, ...]]:
    """Those of the transfer, by its last statement."""
    return [row for row in connections(office) if "django_events_bufferedevent" in str(row[1])]


def test_a_handler_that_cannot_be_imported_stops_its_own_consumer_only(processes: Processes, office: Office):
    processes.variables["LATER_HANDLER"] = "no_such_module.handle"
    assert processes.run("migrate", "-v0").returncode == 0
    office.post({}, {})
    beside = processes.run("run_events", "--once")
    office.post({})
    alone = processes.run("run_events", "later", "--once")

    assert (beside.returncode, beside.stdout) == (1, "Events moved into the log: 2. Events handled: 2.\n")
    assert (alone.returncode, alone.stdout) == (1, "Events moved into the log: 1. Events handled: 0.\n")
    for result in (beside, alone):
        assert "Consumer 'later' is not served. The handler 'no_such_module.handle'" in result.stderr


def test_a_server_out_of_reach_is_told_from_a_failure(processes: Processes):
    processes.url = "postgresql://stranger:secret@127.0.0.1:1/nothing"
    for arguments in (["--once"], ["--threads", "2"], ["--reload"]):
        result = processes.run("run_events", *arguments)

        assert result.returncode == 75
        assert "The database 'default' can't be reached." in result.stderr
        assert "secret" not in result.stderr + result.stdout
        assert "Traceback" not in result.stderr


def test_missing_tables_name_the_way_out(processes: Processes):
    assert processes.run("migrate", "django_events", "zero", "-v0").returncode == 0
    for arguments in ([], ["--once"], ["--reload"]):
        result = processes.run("run_events", *arguments)

        assert result.returncode == 1
        assert "manage.py migrate --database default" in result.stderr
        assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["answerign"], "No installed app declares a consumer 'answerign'. Did you mean 'answering'?"),
        (["--threads", "0"], "--threads is 0, expected at least 1."),
        (["--once", "--reload"], "--once ends by itself, so there is nothing to reload."),
        (["--database", "elsewhere"], "There is no database 'elsewhere'. Known are: default."),
    ],
)
def test_wrong_usage(processes: Processes, arguments: list[str], said: str):
    result = processes.run("run_events", *arguments)

    assert (result.returncode, result.stdout) == (2, "")
    assert said in result.stderr
    assert "Traceback" not in result.stderr


# --- code that changes


HANDLER = """
from tests.support.consuming_app.handlers import write

def handle(event):
    write(event, note={note!r})
"""


SETTINGS = """
from tests.support.consuming_settings import *

INSTALLED_APPS = [*INSTALLED_APPS, "later"]
"""


@pytest.fixture
def module(processes: Processes, tmp_path: Path) -> Path:
    """A module with a handler, in an app of its own, that a test may change."""
    app = tmp_path / "code" / "later"
    app.mkdir(parents=True)
    (app / "__init__.py").touch()
    path = app / "handlers.py"
    path.write_text(HANDLER.format(note="first"))
    settings = app.with_name("later_settings.py")
    settings.write_text(SETTINGS)
    processes.variables |= {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(app.parent)]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "DJANGO_SETTINGS_MODULE": "later_settings",
        "LATER_HANDLER": "later.handlers.handle",
    }
    assert processes.run("migrate", "-v0").returncode == 0
    return path


def test_changed_code_is_loaded_again(processes: Processes, office: Office, module: Path):
    worker = processes.start("run_events", "later", "--reload")
    office.post({})
    wait_for_effects(office, "later", 1)
    module.write_text(HANDLER.format(note="second"))
    processes.wait_until(lambda: processes.said(worker).count("Ctrl-C stops") == 2, what="another process")
    office.post({})
    wait_for_effects(office, "later", 2)
    worker.send_signal(signal.SIGTERM)

    assert worker.wait(60) == 0
    assert office.notes("later") == ["first", "second"]
    assert office.leases() == 0


def test_what_is_in_hand_is_finished_before_the_process_is_replaced(processes: Processes, office: Office, module: Path):
    with office.gate(1) as gate:
        worker = processes.start("run_events", "later", "--reload")
        office.post({"gate": 1}, {}, key="a")
        gate.wait_for_a_waiting_session()
        module.write_text(HANDLER.format(note="second"))
        processes.wait_until(lambda: "The code changed." in processes.said(worker), what="the change to be seen")
    wait_for_effects(office, "later", 2)
    worker.send_signal(signal.SIGTERM)

    assert worker.wait(60) == 0
    assert office.notes("later") == ["first", "second"]
    assert "is taken over" not in processes.said(worker)


def test_what_is_not_finished_in_time_is_handed_back(processes: Processes, office: Office, module: Path):
    """The handler never comes back, and its lease is an hour long: the next process has its event all the same."""
    with office.gate(1) as gate:
        worker = processes.start("run_events", "later", "--reload")
        office.post({"gate": 1}, {}, key="a")
        gate.wait_for_a_waiting_session()
        module.write_text(HANDLER.format(note="second").replace("write(event,", "event.value.clear(); write(event,"))
        wait_for_effects(office, "later", 2)
    worker.send_signal(signal.SIGTERM)

    assert worker.wait(60) == 0
    assert office.effects("later") == ["letters/1", "letters/2"]
    assert office.notes("later") == ["second", "second"]
    assert office.leases() == 0


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@needs_proc
def test_it_can_be_stopped_while_it_starts(processes: Processes, module: Path):
    worker = processes.start("run_events", "later", "--reload")
    processes.wait_until(lambda: children(worker.pid), what="the process that works")
    worker.send_signal(signal.SIGTERM)

    assert worker.wait(60) == 0


@pytest.fixture
def terminal() -> Iterator[None]:
    """Processes take a closed terminal seriously, also where the tests themselves run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@needs_proc
@pytest.mark.usefixtures("terminal")
def test_a_closed_terminal_leaves_no_lease(processes: Processes, office: Office, module: Path):
    """All of its processes are told, the one that watches over the other ends at once."""
    with office.gate(1) as gate:
        worker = processes.start("run_events", "later", "--reload")
        office.post({"gate": 1})
        gate.wait_for_a_waiting_session()
        for pid in (worker.pid, *children(worker.pid)):
            os.kill(pid, signal.SIGHUP)
        assert worker.wait(60) == -signal.SIGHUP
        processes.wait_until(lambda: not office.leases(), what="what is in hand to be handed back")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_handler_that_never_comes_back_leaves_no_lease_when_it_is_stopped(
    processes: Processes, office: Office, module: Path, number: signal.Signals
):
    with office.gate(1) as gate:
        worker = processes.start("run_events", "later", "--reload")
        office.post({"gate": 1})
        gate.wait_for_a_waiting_session()
        worker.send_signal(number)

        assert worker.wait(60) == 0
        assert office.leases() == 0
    assert processes.run("run_consumer", "later", "--once").stdout == "Events handled: 1.\n"
    assert office.effects("later") == ["letters/1"]


def test_code_that_cannot_be_run_is_waited_for(processes: Processes, office: Office, module: Path):
    worker = processes.start("run_events", "later", "--reload")
    office.post({})
    wait_for_effects(office, "later", 1)
    module.write_text("def handle(event) -> it is not finished yet")
    processes.wait_until(lambda: "is not served" in processes.said(worker), what="a handler that can't be loaded")
    office.post({})
    module.write_text(HANDLER.format(note="second"))
    wait_for_effects(office, "later", 2)
    worker.send_signal(signal.SIGTERM)

    assert worker.wait(60) == 0
    assert office.notes("later") == ["first", "second"]


def test_a_site_that_cannot_be_started_is_waited_for(processes: Processes, office: Office, module: Path):
    """As after a mistake in an app's events.py: then the new process ends before the command begins."""
    settings = module.parents[1] / "later_settings.py"
    worker = processes.start("run_events", "later", "--reload")
    office.post({})
    wait_for_effects(office, "later", 1)
    settings.write_text("from tests.support.consuming_settings import nothing_of_that_name\n")
    processes.wait_until(
        lambda: "Waiting for the next change" in processes.said(worker), what="a site that can't start"
    )
    office.post({})
    settings.write_text(SETTINGS)
    wait_for_effects(office, "later", 2)
    worker.send_signal(signal.SIGTERM)

    assert worker.wait(60) == 0


def test_a_consumer_that_is_not_registered_yet_is_waited_for(processes: Processes, office: Office, module: Path):
    """As after declaring one while it runs."""
    office.change("DELETE FROM django_events_position")
    office.change("DELETE FROM django_events_consumer WHERE name = 'later'")
    worker = processes.start("run_events", "later", "--reload")
    processes.wait_until(lambda: "Waiting for it." in processes.said(worker), what="a process that migrates")
    assert processes.run("migrate", "-v0").returncode == 0
    office.post({})
    wait_for_effects(office, "later", 1)
    worker.send_signal(signal.SIGTERM)

    assert worker.wait(60) == 0
    assert processes.said(worker).count("Waiting for it.") == 1


def test_where_debug_is_on_it_reloads_unless_told_not_to(processes: Processes, office: Office, module: Path):
    (module.parents[1] / "later_settings.py").write_text(f"{SETTINGS}\nDEBUG = True\n")
    reloading = processes.start("run_events", "later")
    processes.wait_until(lambda: "Code that changes is loaded again." in processes.said(reloading), what="a reloader")
    once = processes.run("run_events", "later", "--once")
    reloading.send_signal(signal.SIGTERM)
    assert reloading.wait(60) == 0
    plain = processes.start("run_events", "later", "--no-reload")
    processes.wait_until(lambda: "Ctrl-C stops." in processes.said(plain), what="a process of its own")
    plain.send_signal(signal.SIGTERM)

    assert plain.wait(60) == 0
    assert "loaded again" not in processes.said(plain)
    assert once.returncode == 0
