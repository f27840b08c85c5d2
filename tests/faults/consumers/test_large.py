"""Workers that are killed or frozen while they load an event of tens of megabytes: nothing is lost, others go on."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest

from django_events.consuming.reading import ALL
from tests.faults.consumers.fleet import Fleet
from tests.faults.consumers.ledger import Ledger, check_effects
from tests.faults.consumers.test_freezes import LOST
from tests.support.processes import Processes, freeze

pytestmark = pytest.mark.usefixtures("transfer")

LOADING = f"%{ALL}%"  # in the statement by which a worker reads one event, however large it is
LARGE = 40_000_000  # characters: more than a read takes with others
GATE = 4711
# An attempt is counted before the payload is loaded: there it waits, in the table that it is counted in.
STOP_BEFORE_LOADING = f"""
CREATE FUNCTION stop_before_loading() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared({GATE});
    RETURN NEW;
END
$$;
CREATE TRIGGER stop_before_loading BEFORE UPDATE ON django_events_position
FOR EACH ROW WHEN (NEW.attempts > OLD.attempts) EXECUTE FUNCTION stop_before_loading();
CREATE TRIGGER stop_before_loading BEFORE UPDATE ON django_events_delivery
FOR EACH ROW WHEN (NEW.attempts > OLD.attempts) EXECUTE FUNCTION stop_before_loading()
"""
WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = %s "
    "AND wait_event = %s AND query LIKE %s"
)


@contextmanager
def stopped_before_loading(processes: Processes, url: str, log: str) -> Iterator[Callable[[], None]]:
    """A worker that loads a large event waits for the log's lock, which is taken when its attempt is to be counted."""
    with psycopg.connect(url, autocommit=True) as gate, psycopg.connect(url) as lock:
        gate.execute(STOP_BEFORE_LOADING)
        gate.execute("SELECT pg_advisory_lock(%s)", [GATE])

        def until_it_loads() -> None:
            def waits(kind: str, event: str, query: str) -> bool:
                return gate.execute(WAITING, [kind, event, query]).fetchone() == (1,)

            processes.wait_until(lambda: waits("Lock", "advisory", "%"), what="an attempt that is to be counted")
            lock.execute(f"LOCK TABLE {log} IN ACCESS EXCLUSIVE MODE")
            gate.execute("SELECT pg_advisory_unlock(%s)", [GATE])
            processes.wait_until(lambda: waits("Lock", "relation", LOADING), what="a worker that loads")

        yield until_it_loads
        lock.rollback()


@pytest.mark.requirement("X8", "D4")
@pytest.mark.parametrize(
    ("consumer", "how"),
    [("single", "killed"), ("queued", "killed"), ("batched", "frozen"), ("outside", "frozen"), ("queued", "frozen")],
)
def test_a_worker_that_ends_while_it_loads_a_large_event(processes: Processes, ledger: Ledger, consumer: str, how: str):
    [(topic_id,)] = ledger.ask("SELECT id FROM django_events_topic WHERE name = 'stock'")
    log = f"django_events_event_{topic_id}"
    fleet, others = Fleet(processes, ledger, consumer), Fleet(processes, ledger, consumer)
    worker = fleet.start()
    with stopped_before_loading(processes, processes.url, log) as until_it_loads:
        with psycopg.connect(processes.url) as publisher:
            for n in range(1, 6):
                value = f"jsonb_build_object('n', {n}, 'large', repeat('x', {LARGE if n == 3 else 3}))"
                publisher.execute(f"SELECT django_events_publish('stock', {value}, key => 'one')")
        until_it_loads()
        freeze(worker)
    sending = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'ClientWrite' AND query LIKE %s"
    processes.wait_until(lambda: ledger.ask(sending, LOADING) == [(1,)], what="an answer that is not taken")
    if how == "killed":
        fleet.kill(worker)
        fleet.stop()
    others.start()
    others.finish()
    done = ledger.done(consumer)
    assert [one.id for one in done] == [1, 2, 3, 4, 5]
    assert [one.attempt for one in done if one.id == 3] == [2]
    if how == "frozen":
        worker.send_signal(signal.SIGCONT)
        processes.wait_until(lambda: LOST in processes.said(worker), what="the loss in the log")
        # A handler can't be stopped: what it does in the world after the worker woke up, it does.
        assert [one.id for one in ledger.done(consumer)[5:]] == ([3] if consumer == "outside" else [])
        fleet.stop()
    check_effects(ledger, [consumer])
    assert ledger.ask("SELECT count(*) FROM django_events_deadletter") == [(0,)]
