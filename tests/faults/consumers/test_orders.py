"""A queue gets an order, loses it and gets it again under load, while workers die, or freeze and wake up late."""

import random
import re
import signal

import pytest

from tests.faults.consumers.fleet import Fleet
from tests.faults.consumers.ledger import Ledger
from tests.support.processes import Processes, check_log

TOPICS = ["orders", "payments", "stock"]
FROM = re.compile(r"Consumer queued of (\w+): .*in the order of keys from \w+/(\d+) on")


def change(processes: Processes, *, ordered: bool) -> dict[str, int]:
    """Declare the queue with an order or without, as a migration would; returns from which ids on it has one."""
    changed = processes.run(
        "shell",
        "-v0",
        "-c",
        "from django_events import declarations\n"
        "from django_events.consuming import registration\n"
        "[queued] = [one for one in declarations.consumers if one.name == 'queued']\n"
        f"object.__setattr__(queued, 'ordered', {ordered})\n"
        "print(*registration.register('default', queued), sep='\\n')",
    )
    assert changed.returncode == 0, changed.stderr
    return {topic: int(event_id) for topic, event_id in FROM.findall(changed.stdout)}


def check_keys(ledger: Ledger, begins: dict[str, int]) -> int:
    """From these ids on, each event was handled behind all that came before it with its key; returns how many were."""
    keys = {
        (topic, event_id): key
        for topic, event_id, key in ledger.ask(
            "SELECT t.name, e.id, e.key FROM django_events_event e JOIN django_events_topic t ON t.id = e.topic_id"
        )
    }
    pending: dict[tuple[str, str | None], list[int]] = {(topic, key): [] for (topic, _), key in keys.items()}
    for topic, event_id in sorted(keys):
        pending[topic, keys[topic, event_id]].append(event_id)
    checked = 0
    for done in ledger.done("queued"):
        of = (done.topic, keys[done.topic, done.id])
        if done.id >= begins[done.topic]:
            assert pending[of][0] == done.id, f"{done.address} was handled before {done.topic}/{pending[of][0]}"
            checked += 1
        pending[of].remove(done.id)
    return checked


@pytest.mark.requirement("S5", "X7")
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("transfer")
@pytest.mark.parametrize("fault", ["killed", "frozen"])
def test_a_queue_gets_an_order_under_load_while_workers_die(processes: Processes, ledger: Ledger, fault: str):
    dice = random.Random(f"orders {fault}")
    publishers = [processes.start_publisher(f"p{number}", "read committed", "0.1", "queued") for number in range(2)]
    fleet = Fleet(processes, ledger, "queued", threads=2)
    fleet.scale(3)
    begins: dict[str, int] = {}
    for ordered in (True, False, True):
        worker = dice.choice(fleet.workers)
        processes.wait_until(lambda worker=worker: ledger.spells(worker.pid), what="a worker at work")
        if fault == "killed":
            fleet.kill(worker)
        else:
            worker.send_signal(signal.SIGSTOP)
        begins = change(processes, ordered=ordered) or begins
        if fault == "killed":
            fleet.kill_at_work(dice)
        else:
            before = ledger.passed()
            processes.wait_until(lambda before=before: ledger.passed() > before + 50, what="others that go on")
            worker.send_signal(signal.SIGCONT)
    for publisher in publishers:
        publisher.stop()
    fleet.finish()

    published = check_log(processes.url, TOPICS, publishers)
    done = ledger.done("queued")
    assert len(done) == len({one.address for one in done}) == published
    assert set(begins) == set(TOPICS)
    assert check_keys(ledger, begins) > 30
    assert ledger.ask("SELECT count(*) FROM django_events_deadletter") == [(0,)]
    verified = processes.run("events", "verify")
    assert verified.returncode == 0, verified.stdout
