"""Consumers that are killed at any moment: nothing is lost, nothing is done twice, all is in order."""

import random

import pytest

from tests.faults.consumers.fleet import Fleet
from tests.faults.consumers.ledger import EVERY, Ledger, check_effects, check_holders
from tests.support.processes import Processes, check_log

TOPICS = ["orders", "payments", "stock"]


@pytest.mark.requirement("X8", "X2", "E7", "E8", "H3")
@pytest.mark.usefixtures("transfer")
@pytest.mark.timeout(900)  # twenty kills, each of a worker at work, take minutes on a busy machine
def test_twenty_kills_at_random_moments(processes: Processes, ledger: Ledger):
    dice = random.Random(20)
    publishers = [processes.start_publisher(f"p{i}", "read committed", "0.1", "whole") for i in range(2)]
    fleet = Fleet(processes, ledger, *EVERY, threads=2)
    fleet.scale(3)
    for _ in range(20):
        fleet.kill_at_work(dice)
    for publisher in publishers:
        publisher.stop()
    fleet.finish()

    published = check_log(processes.url, TOPICS, publishers)
    check_effects(ledger, EVERY)
    assert check_holders(ledger, fleet.killed_at) > 20
    assert len(ledger.done("single")) == published
    echoes = ledger.ask(
        "SELECT value #>> '{}' FROM django_events_event e JOIN django_events_topic t ON t.id = e.topic_id"
        " WHERE t.name = 'echoes'"
    )
    assert sorted(echo for (echo,) in echoes) == sorted(one.address for one in ledger.done("single"))
