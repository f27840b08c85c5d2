"""Events that end the process of their handler: a dead letter each, and nobody else is harmed."""

import signal

import pytest

from tests.faults.consumers.fleet import Fleet
from tests.faults.consumers.ledger import Ledger, check_effects
from tests.processes import Processes

KILLERS = ["exit", "segfault", "kill", "loop", "end backend"]
ABANDONED = 70


@pytest.mark.requirement("X8", "P9", "E10")
@pytest.mark.usefixtures("transfer")
@pytest.mark.parametrize("consumer", ["doomed", "doomed_batched", "doomed_outside"])
def test_a_killer_ends_as_a_dead_letter_and_its_neighbours_are_handled(
    processes: Processes, ledger: Ledger, consumer: str
):
    for partition, deed in enumerate(KILLERS):
        ledger.publish("orders", *range(8), {"do": deed}, *range(8), key=deed, partition=partition)
    ledger.publish("orders", *range(17), key="peace", partition=len(KILLERS))
    fleet = Fleet(processes, ledger, consumer)
    fleet.scale(3)
    fleet.wait_until(lambda: ledger.all_handled([consumer]), what="partitions that go on")
    fleet.stop()

    killers = dict(
        ledger.ask("SELECT value ->> 'do', 'orders/' || id FROM django_events_event WHERE value ? 'do' ORDER BY id")
    )
    assert list(killers) == KILLERS
    check_effects(ledger, [consumer], dead=killers.values())
    assert set(fleet.exits) == {3, -signal.SIGSEGV, -signal.SIGKILL, ABANDONED}, "who lost its connection stays"
    assert "doesn't come back" in processes.log_of("run_consumer")
    letters = ledger.ask("SELECT value ->> 'do', attempts, error FROM django_events_deadletter ORDER BY event_id")
    assert [(deed, attempts) for deed, attempts, _ in letters] == [(deed, 2) for deed in KILLERS]
    assert all(error.startswith("WorkerEnded: ") for _, _, error in letters)
    assert ledger.ask("SELECT sum(dead_lettered) FROM django_events_position") == [(len(KILLERS),)]
