"""A topic gets other partitions under load, while workers and the transfer are killed, frozen, and wake up too late."""

import random
import signal

import pytest

from tests.faults.consumers.fleet import Fleet
from tests.faults.consumers.ledger import EVERY, Ledger, check_effects, check_holders
from tests.support.processes import Processes, check_log

TOPICS = ["orders", "payments", "stock"]
STREAMS = ["single", "batched", "whole", "kept", "outside", "outside_batched"]


def repartition(processes: Processes, topic: str, partitions: int) -> None:
    processes.run("events", "repartition", topic, str(partitions), "--by", "a test", "--execute")


def turn(processes: Processes, consumer: str, *, partitioned: bool) -> None:
    """As a migration does whose declaration says so."""
    code = (
        "from django_events import declarations as d; from django_events.consuming import registration;"
        f" one = next(c for c in d.consumers if c.name == {consumer!r});"
        f" object.__setattr__(one, 'partitioned', {partitioned});"
        " registration.register('default', one)"
    )
    processes.run("shell", "--no-imports", "-c", code)


def check_keys(ledger: Ledger, consumer: str) -> None:
    """Whatever partitions its events went through, each key was handled in order for the first time."""
    keys = {
        f"{topic}/{event_id}": (topic, key)
        for topic, event_id, key in ledger.ask(
            "SELECT t.name, e.id, e.key FROM django_events_event e JOIN django_events_topic t ON t.id = e.topic_id"
            " WHERE e.key IS NOT NULL"
        )
    }
    newest: dict[tuple[str, str], int] = {}
    for address in dict.fromkeys(one.address for one in ledger.done(consumer)):
        if of := keys.get(address):
            event_id = int(address.rpartition("/")[2])
            assert event_id > newest.get(of, 0), f"{consumer} handled {address} after {newest[of]} of {of}"
            newest[of] = event_id


@pytest.mark.requirement("E15", "X7", "X8")
@pytest.mark.usefixtures("transfer")
@pytest.mark.parametrize("fault", ["killed", "frozen"])
def test_partitions_change_under_load_while_workers_die(processes: Processes, ledger: Ledger, fault: str):
    dice = random.Random(f"layouts {fault}")
    publishers = [processes.start_publisher(f"p{i}", "read committed", "0.1") for i in range(2)]
    fleet = Fleet(processes, ledger, *EVERY, threads=2)
    fleet.scale(3)
    frozen = []
    for step, partitions in enumerate((2, 8, 3, 5)):
        for topic in TOPICS:
            repartition(processes, topic, partitions)
        turn(processes, "batched", partitioned=step % 2 == 1)
        for _ in range(3):
            if fault == "killed":
                fleet.kill_at_work(dice)
            else:
                worker = dice.choice(fleet.workers)
                processes.wait_until(lambda worker=worker: ledger.spells(worker.pid), what="a worker at work")
                worker.send_signal(signal.SIGSTOP)
                frozen.append(worker)
                fleet.workers.remove(worker)
                fleet.scale(3)
                fleet.wait_until_ready()
        for worker in frozen:
            worker.send_signal(signal.SIGCONT)
        fleet.workers += frozen
        fleet.scale(3)
        frozen = []
    for publisher in publishers:
        publisher.stop()
    fleet.finish()

    published = check_log(processes.url, TOPICS, publishers, keys_move=True)
    check_effects(ledger, EVERY)
    for consumer in STREAMS:
        check_keys(ledger, consumer)
    if fault == "killed":
        check_holders(ledger, fleet.killed_at)
    assert len(ledger.done("single")) == published
    layouts = ledger.ask(
        "SELECT jsonb_array_length(layouts), partitions FROM django_events_topic WHERE name = ANY(%s)", TOPICS
    )
    assert layouts == [(5, 5)] * 3
    standing = ledger.ask(
        "SELECT DISTINCT c.name FROM django_events_position p JOIN django_events_consumer c ON c.id = p.consumer_id"
        " WHERE p.barrier IS NOT NULL AND c.name = ANY(%s)",
        EVERY,
    )
    assert standing == []
    verified = processes.run("events", "verify")
    assert verified.returncode == 0, verified.stdout
