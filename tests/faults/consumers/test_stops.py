"""SIGTERM: what is in hand is finished, nothing is repeated, and others go on at once."""

import signal

import pytest

from tests.faults.consumers.fleet import Fleet
from tests.faults.consumers.ledger import Ledger, check_effects, check_holders
from tests.support.processes import Processes

CONSUMERS = ["single", "batched", "whole", "outside", "outside_batched"]
LONG = 600  # seconds: longer than a test may take


@pytest.mark.slow
@pytest.mark.requirement("X8", "E13")
@pytest.mark.usefixtures("transfer")
def test_a_worker_that_is_stopped_with_a_batch_in_hand_finishes_it(processes: Processes, ledger: Ledger):
    """No worker has to wait for the end of a lease, neither for its partition nor for another one."""
    processes.variables["FAULT_LEASE"] = str(LONG)
    ledger.publish("stock", *range(4), {"gate": "half-way"}, *range(50))
    leaving = Fleet(processes, ledger, *CONSUMERS, threads=len(CONSUMERS))
    stopped = leaving.start()
    gates = [ledger.gate(consumer, "half-way") for consumer in CONSUMERS]
    processes.wait_until(lambda: all(gate.pid for gate in gates), what="a handler of each consumer half-way")
    staying = Fleet(processes, ledger, *CONSUMERS, threads=2)
    other = staying.start()
    stopped.send_signal(signal.SIGTERM)
    ledger.publish("payments", *range(20), key="they are waited for")
    processes.wait_until(
        lambda: all(handled_in(ledger, consumer, "payments") == [*range(1, 21)] for consumer in CONSUMERS),
        what="the events of other partitions",
    )
    assert stopped.poll() is None
    for gate in gates:
        gate.open()

    assert stopped.wait(60) == 0
    staying.finish()
    check_effects(ledger, CONSUMERS)
    check_holders(ledger)
    for consumer in CONSUMERS:
        assert handled_in(ledger, consumer, "stock") == [*range(1, 56)], f"{consumer} repeated something"
        done = [one for one in ledger.done(consumer) if one.topic == "stock"]
        assert {one.attempt for one in done} == {1}
        assert {one.pid for one in done[:5]} == {stopped.pid}
        assert done[-1].pid == other.pid


def handled_in(ledger: Ledger, consumer: str, topic: str) -> list[int]:
    return [one.id for one in ledger.done(consumer) if one.topic == topic]


@pytest.mark.requirement("X8", "E13")
@pytest.mark.usefixtures("transfer")
def test_workers_that_are_stopped_one_after_the_other_repeat_nothing(processes: Processes, ledger: Ledger):
    """Also those whose handlers can't take anything back handle each event once."""
    publisher = processes.start_publisher("p", "read committed", "0.1")
    consumers = [*CONSUMERS, "queued", "in_order_batched", "queued_outside"]
    fleet = Fleet(processes, ledger, *consumers, threads=2)
    fleet.scale(2)
    for _ in range(5):
        oldest = fleet.workers[0]
        processes.wait_until(lambda: ledger.spells(oldest.pid) >= 20, what="a worker at work")
        fleet.scale(1)
        fleet.scale(2)
    publisher.stop()
    fleet.finish()

    check_effects(ledger, consumers)
    assert check_holders(ledger) > 5
    for consumer in consumers:
        done = ledger.done(consumer)
        assert len(done) == len({one.address for one in done}), f"{consumer} repeated something"
        assert {one.attempt for one in done} == {1}
