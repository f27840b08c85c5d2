"""Transactions that are prepared: by publishers, which is allowed, and by handlers, whose event fails."""

import json

import psycopg
import pytest

from django_events.log import channel
from tests.faults.consumers.fleet import Fleet
from tests.faults.consumers.ledger import Ledger
from tests.support.processes import Processes

ASLEEP = (
    "SELECT FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted"
    " AND (classid::bigint << 32) + objid::bigint = %s"
)


@pytest.mark.requirement("E4", "X6")
@pytest.mark.slow
def test_a_transaction_that_published_is_prepared_while_the_transfer_sleeps(processes: Processes, ledger: Ledger):
    """Its events are handled after COMMIT PREPARED, although the poll interval is an hour.

    No publisher wakes this transfer: it looks after longer and longer pauses since it found events. It wakes the
    consumer by a NOTIFY of its own.
    """
    processes.variables["POLL_INTERVAL"] = "3600"
    transfer = processes.start("run_transfer")
    fleet = Fleet(processes, ledger, "once_only")
    fleet.start()
    ledger.publish("stock", "before")
    processes.wait_until(lambda: handled(ledger) == ["before"], what="the event before")
    processes.wait_until(lambda: ledger.ask(ASLEEP, channel.ASLEEP), what="a transfer that sleeps")
    with psycopg.connect(processes.url) as publisher:
        publisher.execute("SELECT django_events_publish('stock', '\"prepared\"')")
        publisher.execute("PREPARE TRANSACTION 'published'")
    try:
        ledger.publish("stock", "meanwhile")
        processes.wait_until(lambda: handled(ledger) == ["before", "meanwhile"], what="the event of another")
    finally:
        ledger.tell("COMMIT PREPARED 'published'")

    processes.wait_until(lambda: handled(ledger) == ["before", "meanwhile", "prepared"], what="the prepared event")
    fleet.stop()
    transfer.terminate()
    assert transfer.wait(60) == 0, processes.said(transfer)


def handled(ledger: Ledger) -> list[object]:
    rows = ledger.ask("SELECT value FROM fault_app_effect WHERE consumer = 'once_only' ORDER BY event_id")
    return [value for (value,) in rows]


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
    with psycopg.connect(processes.url) as other_session:
        other_session.execute("UPDATE django_events_position SET served_at = now() - interval '1 hour'")
        other_session.execute("PREPARE TRANSACTION 'forgotten'")
    try:
        said = processes.run("events", "doctor", "--format", "json").stdout
        processes.wait_until(
            lambda: "The prepared transaction 'forgotten'" in processes.run("events", "doctor").stdout,
            what="a doctor that names it",
        )
        assert said
    finally:
        ledger.tell("ROLLBACK PREPARED 'forgotten'")


@pytest.mark.requirement("E6")
@pytest.mark.parametrize("holds", ["position", "deliverylease", "topichead"])
def test_status_names_a_prepared_transaction_that_is_in_the_way(processes: Processes, ledger: Ledger, holds: str):
    """With its remedy, and the consumer that waits for it; before it had only a name in the doctor's report."""
    with psycopg.connect(processes.url) as other_session:
        [[consumer_id]] = other_session.execute(
            "SELECT c.id FROM django_events_consumer c JOIN django_events_topic t ON t.id = c.topic_id"
            " WHERE c.name = 'queued' AND t.name = 'stock'"
        ).fetchall()
        if holds == "position":
            other_session.execute("SELECT FROM django_events_position WHERE consumer_id = %s FOR UPDATE", [consumer_id])
        elif holds == "deliverylease":
            other_session.execute(
                "INSERT INTO django_events_deliverylease (token, consumer_id, leased_until, holder, event_ids)"
                " VALUES (7, %s, now(), 'x', '[]')",
                [consumer_id],
            )
            other_session.commit()
            other_session.execute("SELECT FROM django_events_deliverylease WHERE token = 7 FOR UPDATE")
        else:
            other_session.execute("SELECT FROM django_events_topichead FOR UPDATE")
        other_session.execute("PREPARE TRANSACTION 'it''s forgotten'")
    try:

        def told() -> list[dict[str, str]]:
            report = json.loads(processes.run("events", "status", "--format", "json").stdout)
            return [one for one in report["findings"] if one["kind"] == "prepared"]

        processes.wait_until(told, what="a problem that names it")
        [problem] = told()
        of = ("queued", "stock") if holds != "topichead" else (None, None)
        assert (problem["consumer"], problem["topic"]) == of
        assert problem["what"].startswith('The prepared transaction "it\'s forgotten" of ')
        assert f"has held rows of django_events_{holds} for " in problem["what"]
        assert problem["remedy"] == (
            "If a handler prepared it, undo it: ROLLBACK PREPARED 'it''s forgotten'. "
            "Otherwise as its owner wants: COMMIT PREPARED 'it''s forgotten'"
        )
    finally:
        ledger.tell("ROLLBACK PREPARED 'it''s forgotten'")
