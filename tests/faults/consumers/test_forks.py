"""Handlers that fork: the child ends where the handler ends, and never becomes a second worker."""

from pathlib import Path

import pytest

from tests.faults.consumers.fleet import Fleet
from tests.faults.consumers.ledger import Ledger, check_effects
from tests.support.processes import Processes

FORKS = {"fork": 0, "fork and exit": 7, "fork and fail": 1, "fork and really exit": 5}


@pytest.mark.requirement("X8", "E10")
@pytest.mark.usefixtures("transfer")
@pytest.mark.parametrize(
    ("consumer", "threads"),
    [
        ("single", 3),
        ("batched", 1),
        ("outside", 1),
        ("outside_batched", 3),
        ("queued", 3),
        ("in_order_batched", 1),
    ],
)
def test_a_child_never_comes_back_into_the_worker(processes: Processes, ledger: Ledger, consumer: str, threads: int):
    later = [] if consumer.startswith(("outside", "queued_outside")) else ["fork after the commit"]
    deeds = [*FORKS, "multiprocessing", *later]
    for partition, deed in enumerate(deeds):
        ledger.publish("orders", 1, {"at last": deed}, 2, partition=partition % 3)
    fleet = Fleet(processes, ledger, consumer, threads=threads)
    worker = fleet.start()
    fleet.wait_until_handled()
    assert worker.poll() is None
    fleet.stop()

    codes = sorted((processes.folder / "codes").read_text().split())
    assert codes == sorted(str(code) for code in [*FORKS.values(), *(0 for _ in later)])
    pids = [int(pid) for pid in (processes.folder / "children").read_text().split()]
    assert len(pids) == len(codes)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()], "children that go on"
    check_effects(ledger, [consumer])
    assert len(ledger.done(consumer)) == 3 * len(deeds), "something was handled twice"
    if consumer in ("single", "batched", "outside", "outside_batched"):
        assert ledger.ask("SELECT sum(failed) FROM django_events_position") == [(0,)]
    assert "ValueError: in a child" in processes.log_of("run_consumer")
    assert ledger.ask("SELECT count(*) FROM django_events_position WHERE token IS NOT NULL") == [(0,)]


@pytest.mark.requirement("X8", "E10")
@pytest.mark.usefixtures("transfer")
@pytest.mark.parametrize("where", ["at last", "deed"], ids=["in the loop's thread", "in the ORM's thread"])
def test_a_child_of_an_async_handler(processes: Processes, ledger: Ledger, where: str):
    for partition, deed in enumerate(FORKS):
        ledger.publish("orders", 1, {where: deed}, 2, partition=partition % 3)
    fleet = Fleet(processes, ledger, "in_a_loop")
    worker = fleet.start()
    fleet.wait_until_handled()
    assert worker.poll() is None
    fleet.stop()

    assert sorted((processes.folder / "codes").read_text().split()) == sorted(map(str, FORKS.values()))
    pids = [int(pid) for pid in (processes.folder / "children").read_text().split()]
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()], "children that go on"
    check_effects(ledger, ["in_a_loop"])
    assert ledger.ask("SELECT sum(failed) FROM django_events_position") == [(0,)]
