"""Handlers that prepare the transaction that they run in: a failed event, and nobody waits for it."""

import psycopg
import pytest

from tests.faults.consumers.fleet import Fleet
from tests.faults.consumers.ledger import Ledger
from tests.processes import Processes


@pytest.mark.requirement("X8", "P9")
@pytest.mark.usefixtures("transfer")
@pytest.mark.parametrize("consumer", ["doomed", "doomed_queued"])
def test_a_handler_that_prepares_its_transaction(processes: Processes, ledger: Ledger, consumer: str):
    ledger.publish("orders", 1, {"at last": "prepare"}, 2, key="k")
    fleet = Fleet(processes, ledger, consumer)
    try:
        fleet.start()
        fleet.wait_until(lambda: ledger.all_handled([consumer]), what="a partition that goes on")
        fleet.stop()
        said = processes.log_of("run_consumer")
        assert "The handler ended the transaction that it runs in" in said
        assert ledger.ask("SELECT event_id FROM django_events_deadletter") == [(2,)]
        assert ledger.ask("SELECT count(*) FROM django_events_position WHERE token IS NOT NULL") == [(0,)]
    finally:
        if ledger.ask("SELECT FROM pg_prepared_xacts"):
            ledger.tell("ROLLBACK PREPARED 'by a handler'")
    assert sorted(done.id for done in ledger.done(consumer)) == [1, 3]


@pytest.mark.requirement("X8")
def test_the_doctor_names_a_prepared_transaction_that_holds_a_position(processes: Processes, ledger: Ledger):
    with psycopg.connect(processes.url) as somebody:
        somebody.execute("UPDATE django_events_position SET served_at = now() - interval '1 hour'")
        somebody.execute("PREPARE TRANSACTION 'forgotten'")
    try:
        said = processes.run("events", "doctor", "--format", "json").stdout
        processes.wait_until(
            lambda: "The prepared transaction 'forgotten'" in processes.run("events", "doctor").stdout,
            what="a doctor that names it",
        )
        assert said
    finally:
        ledger.tell("ROLLBACK PREPARED 'forgotten'")
