"""More and fewer workers: they share the partitions, and no partition is ever in two hands."""

import pytest

from tests.faults.consumers.fleet import Fleet
from tests.faults.consumers.ledger import AT_LEAST_ONCE, EVERY, Ledger, check_effects, check_holders
from tests.faults.consumers.test_kills import TOPICS
from tests.support.processes import Processes, check_log


@pytest.mark.requirement("X8", "E7", "E8")
@pytest.mark.usefixtures("transfer")
def test_one_eight_three_none_and_five_workers(processes: Processes, ledger: Ledger):
    publisher = processes.start_publisher("p", "read committed", "0.1", "whole")
    fleet = Fleet(processes, ledger, *EVERY)
    pids = set()
    for size in (1, 8, 3, 0, 5):
        fleet.scale(size)
        pids |= {worker.pid for worker in fleet.workers}
        processes.wait_until(
            lambda: all(ledger.spells(worker.pid) > 10 for worker in fleet.workers), what=f"{size} workers at work"
        )
    publisher.stop()
    fleet.finish()

    check_log(processes.url, TOPICS, [publisher])
    check_effects(ledger, EVERY)
    assert check_holders(ledger) > 20
    assert ledger.ask("SELECT count(DISTINCT pid) FROM fault_app_spell") == [(len(pids),)]
    for consumer in AT_LEAST_ONCE:
        addresses = [one.address for one in ledger.done(consumer)]
        assert len(addresses) == len(set(addresses)), f"{consumer} repeated something, though no worker died"


@pytest.mark.requirement("X8", "E8")
@pytest.mark.usefixtures("transfer")
@pytest.mark.parametrize("consumer", ["single", "outside"])
def test_a_handler_that_takes_longer_than_its_lease_keeps_its_partition(
    processes: Processes, ledger: Ledger, consumer: str
):
    ledger.publish("stock", 1, {"gate": "slow"}, *range(10))
    fleet, others = Fleet(processes, ledger, consumer), Fleet(processes, ledger, consumer)
    slow, gate = fleet.start(), ledger.gate(consumer, "slow")
    processes.wait_until(lambda: gate.pid, what="a slow handler")
    [(lease,)] = ledger.ask("SELECT leased_until FROM django_events_position WHERE token IS NOT NULL")
    others.start()
    others.start()
    processes.wait_until(lambda: ledger.ask("SELECT clock_timestamp() > %s", lease) == [(True,)], what="a longer time")
    ledger.publish("payments", *range(20), key="others look for something to do")
    processes.wait_until(lambda: any(one.topic == "payments" for one in ledger.done(consumer)), what="others at work")
    gate.open()
    fleet.finish()
    others.stop()

    check_effects(ledger, [consumer])
    check_holders(ledger)
    handled = [(one.id, one.pid) for one in ledger.done(consumer) if one.topic == "stock"]
    assert handled[:2] == [(1, slow.pid), (2, slow.pid)]
    assert len(handled) == 12
    assert "taken over" not in processes.log_of("run_consumer")
