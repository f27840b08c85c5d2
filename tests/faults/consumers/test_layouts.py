"""A topic gets other partitions under load, while workers and the transfer are killed, frozen, and wake up too late."""

import random
import signal

import pytest

from tests.faults.consumers.fleet import Fleet
from tests.faults.consumers.ledger import Ledger, check_effects, check_holders
from tests.support.processes import Processes, check_log

TOPICS = ["orders", "payments", "stock"]
STREAMS = ["single", "batched", "whole", "outside"]
CONSUMERS = [*STREAMS, "in_order"]


def change(processes: Processes, partitions: int, *, partitioned: bool) -> None:
    """Give the topics another number of partitions, and let `batched` turn, as migrations would."""
    changed = processes.run(
        "shell",
        "-c",
        "from django_events import declarations\n"
        "from django_events.consuming import registration\n"
        "from django_events.operations import repartition\n"
        f"for topic in {TOPICS!r}:\n"
        f"    repartition(topic, {partitions})\n"
        "[batched] = [one for one in declarations.consumers if one.name == 'batched']\n"
        f"object.__setattr__(batched, 'partitioned', {partitioned})\n"
        "registration.register('default', batched)",
    )
    assert changed.returncode == 0, changed.stderr


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
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("transfer")
@pytest.mark.parametrize("fault", ["killed", "frozen"])
def test_partitions_change_under_load_while_workers_die(processes: Processes, ledger: Ledger, fault: str):
    dice = random.Random(f"layouts {fault}")
    publishers = [processes.start_publisher(f"p{i}", "read committed", "0.1", "in_order") for i in range(2)]
    fleet = Fleet(processes, ledger, *CONSUMERS, threads=2)
    fleet.scale(3)
    frozen = []
    for step, partitions in enumerate((2, 8, 3, 5)):
        change(processes, partitions, partitioned=step % 2 == 1)
        for _ in range(2):
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
    check_effects(ledger, CONSUMERS)
    for consumer in STREAMS:
        check_keys(ledger, consumer)
    if fault == "killed":  # which partition of which layout an event was in is in the same column
        assert check_holders(ledger, fleet.killed_at) > 8
    assert len(ledger.done("single")) == published
    layouts = ledger.ask(
        "SELECT jsonb_array_length(layouts), partitions FROM django_events_topic WHERE name = ANY(%s)", TOPICS
    )
    assert layouts == [(5, 5)] * 3
    standing = ledger.ask(
        "SELECT DISTINCT c.name FROM django_events_position p JOIN django_events_consumer c ON c.id = p.consumer_id"
        " WHERE p.barrier IS NOT NULL AND c.name = ANY(%s)",
        CONSUMERS,
    )
    assert standing == []
    verified = processes.run("events", "verify")
    assert verified.returncode == 0, verified.stdout
