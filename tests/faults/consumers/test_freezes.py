"""Workers that freeze for longer than their lease: others go on, and who wakes up changes nothing."""

import signal

import pytest

from tests.faults.consumers.fleet import Fleet
from tests.faults.consumers.ledger import Ledger, check_effects
from tests.support.processes import Processes, freeze

pytestmark = pytest.mark.usefixtures("transfer")

POSITIONS = (
    "SELECT id, position, number, handled, failed, ignored, dead_lettered, attempted, attempts"
    " FROM django_events_position ORDER BY id"
)
LOST = "lost its lease of "

# A handler can't be stopped: what it does in the world after it woke up, it does.
DONE_AFTERWARDS = {"outside": [3], "outside_batched": [*range(3, 11)]}


@pytest.mark.requirement("X8", "S8", "X2")
@pytest.mark.parametrize("consumer", ["single", "batched", "outside", "outside_batched", "queued", "in_order_batched"])
def test_who_was_frozen_for_longer_than_its_lease_changes_nothing(processes: Processes, ledger: Ledger, consumer: str):
    fleet, others = Fleet(processes, ledger, consumer), Fleet(processes, ledger, consumer)
    ledger.publish("stock", 1, 2, {"gate": "half-way"}, *range(7), key="one")
    frozen, gate = fleet.start(), ledger.gate(consumer, "half-way")
    processes.wait_until(lambda: gate.pid, what="a handler half-way")
    freeze(frozen)
    other = others.start()
    others.finish()
    before, positions = ledger.done(consumer), ledger.ask(POSITIONS)
    assert [one.pid for one in before if one.id >= 3] == [other.pid] * 8
    gate.open()
    frozen.send_signal(signal.SIGCONT)
    processes.wait_until(lambda: LOST in processes.said(frozen), what="the loss in the log")

    assert ledger.ask(POSITIONS) == positions
    assert [one.id for one in ledger.done(consumer)[len(before) :]] == DONE_AFTERWARDS.get(consumer, [])
    ledger.publish("stock", *range(10), key="one")
    fleet.finish()
    assert {one.pid for one in ledger.done(consumer) if one.id > 10} == {frozen.pid}
    check_effects(ledger, [consumer])


@pytest.mark.requirement("X8", "S8")
@pytest.mark.parametrize("threads", [pytest.param(1, marks=pytest.mark.quick), 3])
def test_the_locks_of_a_frozen_handler_are_gone_with_its_lease(processes: Processes, ledger: Ledger, threads: int):
    """Also where all the others wait for such a lock, so that no worker is free to take the partition over."""
    fleet, others = Fleet(processes, ledger, "single"), Fleet(processes, ledger, "single", threads=threads)
    ledger.tell("INSERT INTO fault_app_shelf (id, taken) VALUES (1, 0)")
    ledger.publish("payments", {"shelf": 1, "gate": "locked"}, partition=0)
    frozen, gate = fleet.start(), ledger.gate("single", "locked")
    processes.wait_until(lambda: gate.pid, what="a handler that holds the lock")
    freeze(frozen)
    for partition in (1, 2, 3):
        ledger.publish("payments", {"shelf": 1}, partition=partition)
    others.start()
    others.finish()
    gate.open()
    frozen.send_signal(signal.SIGCONT)
    processes.wait_until(lambda: LOST in processes.said(frozen), what="the loss in the log")
    fleet.stop()

    check_effects(ledger, ["single"])
    assert ledger.ask("SELECT taken FROM fault_app_shelf") == [(4,)]
