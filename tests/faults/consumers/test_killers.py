"""Events that end the process of their handler: a dead letter each, and no other event is harmed."""

import signal
from contextlib import suppress

import psycopg
import pytest

from tests.faults.consumers.fleet import Fleet
from tests.faults.consumers.ledger import Ledger, check_effects
from tests.support.processes import Processes

KILLERS = ["exit", "segfault", "kill", "loop", "end backend"]
ABANDONED = 70


@pytest.mark.requirement("X8", "P9", "E10")
@pytest.mark.usefixtures("transfer")
@pytest.mark.parametrize(
    "consumer",
    [
        "doomed",
        pytest.param("doomed_batched", marks=pytest.mark.long),
        pytest.param("doomed_outside", marks=pytest.mark.long),
        "doomed_queued",
    ],
)
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
    if consumer != "doomed_queued":  # what a worker counted in its last second ends with it
        assert ledger.ask("SELECT sum(dead_lettered) FROM django_events_position") == [(len(KILLERS),)]


@pytest.mark.requirement("X8", "E10")
@pytest.mark.usefixtures("transfer")
@pytest.mark.parametrize("deed", ["crash the server", "crash the server and exit"])
def test_an_event_that_crashes_the_server_is_a_dead_letter_before_long(processes: Processes, ledger: Ledger, deed: str):
    """The crash takes back what was not on disk yet: a claim is, where a process has not served the position well."""

    def handled() -> bool:
        with suppress(psycopg.OperationalError):  # the server is not back yet
            return ledger.all_handled(["doomed_bare"])
        return False

    fleet = Fleet(processes, ledger, "doomed_bare")
    worker = fleet.start()
    ledger.publish("stock", 1, 2, {"do": deed}, 3, 4, key="k")
    fleet.wait_until(handled, what="a partition that goes on")
    if deed == "crash the server":
        assert worker.poll() is None, "who lost its connection stays, also when that was in its first work"
    else:
        assert fleet.exits == {3: 3}, "once before any event is known, and for each of two attempts"
    fleet.stop()

    [address] = ledger.ask("SELECT 'stock/' || id FROM django_events_event WHERE value ? 'do'")
    check_effects(ledger, ["doomed_bare"], dead=address)
    assert ledger.ask("SELECT attempts, split_part(error, ':', 1) FROM django_events_deadletter") == [
        (2, "WorkerEnded")
    ]
