"""`manage.py run_webhooks` as its supervisor sees it."""

import pytest

from tests.support.processes import Processes, wait_until
from tests.support.receivers import Receiver, events_of

pytestmark = pytest.mark.requirement("P10")

ADD = "from django_events.operations import add_webhook; add_webhook('partner', 'stock', {url!r}, start='beginning')"
PUBLISH = "from testproject.shop.events import stock; [stock.publish(n) for n in range(5)]"


@pytest.fixture
def settings_module() -> str:
    return "tests.support.fault_settings"


def shell(processes: Processes, code: str) -> None:
    ended = processes.run("shell", "-c", code)
    assert ended.returncode == 0, ended.stderr


@pytest.mark.slow
def test_once_sends_what_is_due_and_says_how_much(processes: Processes):
    processes.variables |= {"WEBHOOK_NETWORKS": "127.0.0.0/8", "FAULT_FOLDER": str(processes.folder)}
    with Receiver() as receiver:
        shell(processes, ADD.format(url=receiver.url("/ok")))
        nothing = processes.run("run_webhooks", "--once")
        shell(processes, PUBLISH)
        assert processes.run("run_transfer", "--once").returncode == 0
        first = processes.run("run_webhooks", "--once", "--concurrency", "2")
        again = processes.run("run_webhooks", "--once", "--verbosity", "0")

    assert (nothing.returncode, nothing.stdout) == (0, "Attempts settled: 0.\n")
    assert (first.returncode, first.stdout) == (0, "Attempts settled: 5.\n")
    assert (again.returncode, again.stdout) == (0, "")
    assert sorted(events_of(receiver)) == [1, 2, 3, 4, 5]


def test_a_wrong_option_is_refused(processes: Processes):
    refused = processes.run("run_webhooks", "--concurrency", "0")

    assert (refused.returncode, refused.stderr) == (2, "CommandError: --concurrency is 0, expected at least 1.\n")


def test_it_waits_for_endpoints_and_stops_on_a_signal(processes: Processes):
    processes.variables |= {"WEBHOOK_NETWORKS": "127.0.0.0/8", "FAULT_FOLDER": str(processes.folder)}
    sender = processes.start("run_webhooks")
    transfer = processes.start("run_transfer")
    with Receiver() as receiver:
        shell(processes, ADD.format(url=receiver.url("/ok")))
        shell(processes, PUBLISH)
        wait_until(lambda: len(events_of(receiver)) == 5, what="all events")
        for process in (sender, transfer):
            process.terminate()
            assert process.wait(60) == 0, processes.said(process)

    assert "Attempts settled: 5." in processes.said(sender)


@pytest.mark.slow
def test_run_events_sends_too_unless_it_is_told_not_to(processes: Processes):
    processes.variables |= {"WEBHOOK_NETWORKS": "127.0.0.0/8", "FAULT_FOLDER": str(processes.folder)}
    with Receiver() as receiver:
        shell(processes, ADD.format(url=receiver.url("/ok")))
        shell(processes, PUBLISH)
        without = processes.run("run_events", "--once", "--no-webhooks")
        assert (without.returncode, receiver.requests) == (0, [])
        first = processes.run("run_events", "--once")
        again = processes.run("run_events", "--once")

    assert first.returncode == again.returncode == 0, first.stderr
    assert first.stdout.endswith(" Webhook attempts settled: 5.\n")
    assert "Webhook" not in again.stdout
    assert sorted(events_of(receiver)) == [1, 2, 3, 4, 5]


def test_run_events_sends_until_it_is_stopped(processes: Processes):
    processes.variables |= {"WEBHOOK_NETWORKS": "127.0.0.0/8", "FAULT_FOLDER": str(processes.folder)}
    worker = processes.start("run_events", "--no-reload")
    with Receiver() as receiver:
        shell(processes, ADD.format(url=receiver.url("/ok")))
        shell(processes, PUBLISH)
        wait_until(lambda: len(events_of(receiver)) == 5, what="all events")
        worker.terminate()
        assert worker.wait(60) == 0, processes.said(worker)

    assert "Webhooks are sent." in processes.said(worker)
    assert "Webhook attempts settled: 5." in processes.said(worker)
