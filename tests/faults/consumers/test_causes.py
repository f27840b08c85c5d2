"""A handler that published and is killed, or frozen for longer than its lease: what it published is there once."""

import signal

import pytest

from tests.faults.consumers.fleet import Fleet
from tests.faults.consumers.ledger import Ledger
from tests.faults.consumers.test_freezes import LOST
from tests.support.processes import Processes, freeze

pytestmark = [pytest.mark.usefixtures("transfer"), pytest.mark.requirement("X16", "X8")]

BECAUSE = "SELECT value #>> '{}', metadata ->> 'caused_by' FROM django_events_event JOIN django_events_topic AS t" \
    " ON t.id = topic_id WHERE t.name = 'echoes' ORDER BY django_events_event.id"  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [False, True], ids=["killed", "frozen"])
@pytest.mark.few(1)
def test_what_an_attempt_published_that_came_to_nothing_is_not_there(
    processes: Processes, ledger: Ledger, frozen: bool
):
    fleet, others = Fleet(processes, ledger, "single"), Fleet(processes, ledger, "single")
    ledger.publish("stock", 1, 2, {"gate": "half-way"}, 4)
    worker, gate = fleet.start(), ledger.gate("single", "half-way")
    processes.wait_until(lambda: gate.pid, what="a handler that has published for the events before")
    if frozen:
        freeze(worker)
    else:
        worker.kill()
        worker.wait()
    others.start()
    others.finish()
    gate.open()
    if frozen:
        worker.send_signal(signal.SIGCONT)
        processes.wait_until(lambda: LOST in processes.said(worker), what="the loss in the log")
        fleet.stop()
    rows = ledger.ask(BECAUSE)

    assert rows == [(f"stock/{id}", f"stock/{id}") for id in range(1, 5)]
