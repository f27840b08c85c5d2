"""Two operators at work beside kills: nothing is lost, doubled or reordered but what they asked for."""

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from typing import Any

import pytest

from tests.faults.consumers.fleet import Fleet
from tests.faults.consumers.ledger import ONCE, Ledger, lanes_of
from tests.support.processes import Processes, check_log

TOPICS = ["orders", "payments", "stock"]
KILLS = 12
SEEDS = int(os.environ.get("OPERATOR_SEEDS", "1"))


class Operator:
    """A process of tests/support/operators.py, and the journal of what it did."""

    def __init__(self, processes: Processes, name: str, *consumers: str) -> None:
        self.journal = processes.folder / f"{name}.journal"
        words = [sys.executable, "-m", "tests.support.operators", "meddle", name, str(self.journal), *consumers]
        self.process = processes._start(words, name=name)

    def entries(self) -> list[dict[str, Any]]:
        if not self.journal.exists():
            return []
        return [json.loads(line) for line in self.journal.read_text().splitlines(keepends=True) if line.endswith("\n")]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.requirement("X8", "X17", "S9")
@pytest.mark.usefixtures("transfer")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_two_operators_beside_kills_while_consumers_are_redefined(processes: Processes, ledger: Ledger, seed: int):
    """One of them is frozen again and again, and wakes up when the server has taken its transaction away."""
    processes.variables["VANISHED_AFTER"] = "1"
    dice = random.Random(seed)
    publishers = [processes.start_publisher(f"p{i}", "read committed", "0.1") for i in range(2)]
    fleet = Fleet(processes, ledger, *ONCE, threads=2)
    fleet.scale(3)
    operators = [Operator(processes, name, *ONCE) for name in (f"olga{seed}", f"otto{seed}")]
    processes.wait_until(lambda: all(len(one.entries()) > 5 for one in operators), what="operators at work")
    for _ in range(KILLS):
        operators[0].process.send_signal(signal.SIGSTOP)
        fleet.kill(dice.choice(fleet.workers))
        fleet.wait_until_ready()
        operators[0].process.send_signal(signal.SIGCONT)
        enough = [len(one.entries()) + 10 for one in operators]
        processes.wait_until(
            lambda enough=enough: all(len(o.entries()) >= e for o, e in zip(operators, enough, strict=True)),
            what="operators that go on",
        )
    assert [one.stop() for one in operators] == [0, 0]
    for publisher in publishers:
        publisher.stop()
    tidy(processes)
    fleet.wait_until_handled()
    processes.wait_until(
        lambda: ledger.ask("SELECT count(*) FROM django_events_deadletter") == [(0,)], what="no dead letters"
    )
    fleet.stop()

    check_log(processes.url, TOPICS, publishers)
    done = [entry for one in operators for entry in one.entries()]
    check(ledger, done)
    verbs = Counter((entry["verb"], entry["outcome"]) for entry in done)
    for verb in ("pauses", "resumes", "skips", "replays", "handles_dead_letters_again", "redefines"):
        assert verbs[verb, "done"] > 3, verbs
    assert sum(entry.get("again", 0) for entry in done) > 3, "hardly anything was replayed"


def tidy(processes: Processes) -> None:
    words = [sys.executable, "-m", "tests.support.operators", "tidy", *ONCE]
    subprocess.run(words, env=processes.environment(), check=True, timeout=60)


def check(ledger: Ledger, verbs: list[dict[str, Any]]) -> None:
    for consumer in ONCE:
        of = [entry for entry in verbs if entry["consumer"] == consumer]
        again = Counter({entry["replayed"]: 0 for entry in of if "replayed" in entry})
        unclear = Counter(entry["replayed"] for entry in of if "replayed" in entry and entry["outcome"] == "unknown")
        skips = Counter(entry["skipped"] for entry in of if "skipped" in entry)
        for entry in of:
            again[entry.get("replayed", "")] += entry.get("again", 0)
        moved = {entry[what] for entry in of for what in ("skipped", "replayed") if what in entry}
        handled = ledger.done(consumer)
        times = Counter(one.address for one in handled)
        lanes = lanes_of(ledger, consumer)
        assert not lanes.keys() - times.keys(), f"{consumer} lost {sorted(lanes.keys() - times.keys())[:5]}"
        assert not times.keys() - lanes.keys(), f"{consumer} was not to get {sorted(times.keys() - lanes.keys())[:5]}"
        for address, count in times.items():
            # A replay of what was skipped has it handled for the first time, not once more.
            least = max(1, 1 + again[address] - skips[address])
            most = 1 + again[address] + unclear[address]
            assert least <= count <= most, f"{consumer} handled {address} {count} times, not {least} to {most}"
        newest: dict[str, int] = {}
        for address in dict.fromkeys(one.address for one in handled):
            id, lane = int(address.rpartition("/")[2]), lanes[address]
            if lane is None or address in moved:
                continue
            assert id > newest.get(lane, 0), f"{consumer} handled {address} after {newest[lane]} of {lane}"
            newest[lane] = id
