"""More and fewer workers: they share the partitions, and no partition is ever in two hands."""

import pytest

from tests.faults.consumers.fleet import Fleet
from tests.faults.consumers.ledger import AT_LEAST_ONCE, EVERY, Ledger, check_effects, check_holders
from tests.faults.consumers.test_kills import TOPICS
from tests.processes import Processes, check_log


@pytest.mark.requirement("X8", "E7", "E8")
@pytest.mark.usefixtures("transfer")
def test_one_eight_three_none_and_five_workers(processes: Processes, ledger: Ledger):
    publisher = processes.start_publisher("p", "read committed", "0.1")
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
