"""Connections that are ended, answers that are lost, and a server that crashes: workers come back by themselves."""

import random
from contextlib import closing
from urllib.parse import unquote, urlsplit

import pytest

from testproject.private_postgres.server import Server
from tests.faults.consumers.fleet import Fleet
from tests.faults.consumers.ledger import EVERY, Ledger, check_effects
from tests.faults.consumers.test_kills import TOPICS
from tests.support.processes import Processes, check_log
from tests.support.proxies import CuttingProxy

pytestmark = pytest.mark.usefixtures("transfer")

OF_WORKERS = "FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'worker'"


@pytest.mark.requirement("X8", "X2")
def test_connections_that_are_ended_at_random(processes: Processes, ledger: Ledger):
    """Those of handlers, of what renews the leases, and of what listens, in the middle of anything."""
    dice = random.Random(4)
    publisher = processes.start_publisher("p", "read committed", "0.1", "whole")
    fleet = Fleet(processes, ledger, *EVERY, threads=2)
    fleet.scale(2)
    fleet.wait_until_ready()
    for _ in range(30):
        enough = ledger.spells() + dice.randint(1, 30)
        processes.wait_until(lambda: ledger.spells() >= enough, what="handlers at work")
        pids = [pid for (pid,) in ledger.ask(f"SELECT pid {OF_WORKERS} ORDER BY pid")]
        ledger.ask("SELECT pg_terminate_backend(%s)", dice.choice(pids))
    publisher.stop()
    fleet.wait_until_handled()
    assert [worker.poll() for worker in fleet.workers] == [None, None]
    fleet.stop()

    check_log(processes.url, TOPICS, [publisher])
    check_effects(ledger, EVERY)


@pytest.mark.requirement("X8", "X2")
def test_a_server_that_crashes_and_comes_back(processes: Processes, ledger: Ledger, fault_server: Server):
    publisher = processes.start_publisher("p", "read committed", "0.1", "whole")
    fleet = Fleet(processes, ledger, *EVERY, threads=2)
    fleet.scale(2)
    processes.wait_until(lambda: all(ledger.spells(one.pid) for one in fleet.workers), what="workers at work")
    for _ in range(2):
        enough = ledger.spells() + 100
        processes.wait_until(lambda: ledger.spells() >= enough, what="handlers at work")
        fault_server.restart("immediate")
    enough = ledger.spells() + 100
    processes.wait_until(lambda: ledger.spells() >= enough, what="handlers at work again")
    publisher.stop()
    fleet.wait_until_handled()
    assert [worker.poll() for worker in fleet.workers] == [None, None]
    fleet.stop()

    check_log(processes.url, TOPICS, [publisher])
    check_effects(ledger, EVERY)
    assert "next try in" in processes.log_of("run_consumer")
    assert "works again" in processes.log_of("run_consumer")


@pytest.mark.requirement("X8", "E10")
def test_the_loss_of_a_connection_is_no_attempt(processes: Processes, ledger: Ledger):
    """The consumer has a single one: what counted as an attempt would make the event a dead letter."""
    ledger.publish("stock", 1, 2, {"gate": "half-way"}, 4, 5)
    fleet = Fleet(processes, ledger, "once_only")
    worker, gate = fleet.start(), ledger.gate("once_only", "half-way")
    processes.wait_until(lambda: gate.pid, what="a handler half-way")
    # The handler's is in its transaction all the time; what renews the lease may be in one for a moment.
    end_the_only_one = f"SELECT pg_terminate_backend(max(pid)) {OF_WORKERS} AND state = 'idle in transaction'"
    processes.wait_until(
        lambda: ledger.ask(f"{end_the_only_one} HAVING count(*) = 1") == [(True,)], what="the handler's connection"
    )
    gate.open()
    fleet.wait_until_handled()
    assert worker.poll() is None
    fleet.stop()

    check_effects(ledger, ["once_only"])
    assert ledger.ask("SELECT sum(failed) FROM django_events_position") == [(0,)]


@pytest.mark.requirement("X8", "X2")
@pytest.mark.parametrize("consumer", ["single", "batched", "outside", "outside_batched", "queued", "in_order_batched"])
def test_a_commit_whose_answer_is_lost_is_no_failure(processes: Processes, ledger: Ledger, consumer: str):
    """What was committed is settled: to write down a failed attempt then would undo that."""
    direct = urlsplit(processes.url)
    processes.variables |= {"ASIDE_PORT": str(direct.port), "ASIDE_PASSWORD": unquote(direct.password or "")}
    with closing(CuttingProxy(processes.url)) as proxy:
        processes.url = proxy.url
        fleet = Fleet(processes, ledger, consumer)
        fleet.start()
        ledger.publish("stock", {"gate": "first of many"}, *range(150))
        gate = ledger.gate(consumer, "first of many")
        processes.wait_until(lambda: gate.pid, what="a handler half-way")
        proxy.lose_next_answer()
        gate.open()
        fleet.wait_until_handled()
        assert proxy.lost.is_set()
        fleet.stop()

    check_effects(ledger, [consumer])
    assert ledger.ask("SELECT sum(failed) FROM django_events_position") == [(0,)]
    assert len(ledger.done(consumer)) == 151, "what was settled was handled again"
