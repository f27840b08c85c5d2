"""Consumers through a pooler that gives each transaction another connection."""

import random
from urllib.parse import unquote, urlsplit

import pytest

from tests.faults.consumers.fleet import Fleet
from tests.faults.consumers.ledger import EVERY, Ledger, check_effects, check_holders
from tests.faults.consumers.test_kills import TOPICS
from tests.support.processes import Processes, check_log


@pytest.mark.requirement("X8", "X2")
def test_workers_share_few_connections_and_some_are_killed(processes: Processes, ledger: Ledger, pooler: str):
    dice = random.Random(3)
    direct = urlsplit(processes.url)
    processes.variables |= {"ASIDE_PORT": str(direct.port), "ASIDE_PASSWORD": unquote(direct.password or "")}
    processes.url = pooler
    transfer = processes.start("run_transfer")
    publisher = processes.start_publisher("p", "read committed", "0.1", "whole")
    fleet = Fleet(processes, ledger, *EVERY, threads=4)
    fleet.scale(3)
    for _ in range(4):
        fleet.kill_at_work(dice)
    publisher.stop()
    fleet.finish()
    transfer.terminate()
    assert transfer.wait(60) == 0

    check_log(direct.geturl(), TOPICS, [publisher])
    check_effects(ledger, EVERY)
    check_holders(ledger, fleet.killed_at)
    assert "through a pooler" in processes.log_of("run_consumer")
    assert ledger.ask("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == [(0,)]
