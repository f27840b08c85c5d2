"""`manage.py events workers` sees real processes, which write nothing to be seen."""

import json
import signal
from typing import Any

import pytest

from tests.acceptance.conftest import Office
from tests.support.processes import Processes


def look(processes: Processes) -> dict[str, Any]:
    answer = processes.run("events", "workers", "--format", "json")
    assert answer.returncode == 0, answer.stderr
    told: dict[str, Any] = json.loads(answer.stdout)
    return told


@pytest.fixture
def settings_module() -> str:
    return "tests.support.consuming_settings"


@pytest.mark.requirement("S13")
def test_a_worker_is_seen_at_work_and_waiting(processes: Processes, office: Office) -> None:
    transfer = processes.start("run_transfer")
    worker = processes.start("run_consumer", "answering", "--threads", "1")
    processes.wait_until(
        lambda: {one["what"] for one in look(processes)["sessions"]} == {"transfer", "listens"},
        what="a transfer that sleeps, and a worker that listens",
    )
    assert look(processes)["workers"] == []
    with office.gate(7) as gate:
        office.post({"gate": 7})
        gate.wait_for_a_waiting_session()
        [seen] = look(processes)["workers"]
        assert (seen["pid"], seen["threads"], seen["lost"]) == (str(worker.pid), ["1"], False)
        assert (seen["in_hand"][0]["topic"], seen["in_hand"][0]["event"]) == ("letters", 1)
        assert seen["seen_at"] is not None
    for process in (worker, transfer):
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
