"""Roll-ups whose workers are killed, frozen and cut off: each event counts exactly once."""

import random
import signal
import subprocess

import psycopg
import pytest

from testproject.private_postgres.server import Server
from tests.faults.consumers.fleet import READY
from tests.faults.consumers.ledger import Ledger
from tests.support.processes import Processes, check_log, freeze

pytestmark = pytest.mark.requirement("H3", "X8")

TOPICS = ["orders", "payments", "stock"]
COMMAND = ["run_consumer", "takings", "--skip-checks"]
POSITIONS = (
    "SELECT coalesce(sum(p.position), 0)::bigint FROM django_events_position AS p"
    " JOIN django_events_consumer AS c ON c.id = p.consumer_id WHERE c.name = 'takings'"
)
LOGGED = (
    "SELECT count(*) FROM django_events_event AS e JOIN django_events_topic AS t ON t.id = e.topic_id"
    " WHERE t.name IN ('orders', 'payments', 'stock')"
)
TABLE = "SELECT 'django_events_rollup_' || id FROM django_events_rollup WHERE name = 'takings'"
EXPECTED = """
SELECT
    date_bin('1 hour', e.published_at, '1900-01-01 00:00:00+00'), coalesce(e.key, ''), e.type, count(*),
    count(*) FILTER (WHERE jsonb_typeof(e.value -> 'total') IS DISTINCT FROM 'number'),
    sum((e.value ->> 'total')::numeric), max((e.value ->> 'total')::numeric)
FROM django_events_event AS e
JOIN django_events_topic AS t ON t.id = e.topic_id
WHERE t.name IN ('orders', 'payments', 'stock')
GROUP BY 1, 2, 3
ORDER BY 1, 2, 3
"""


def table(ledger: Ledger) -> str:
    [[name]] = ledger.ask(TABLE)
    return str(name)


def counted(ledger: Ledger) -> list[tuple[object, ...]]:
    return ledger.ask(
        f"SELECT bucket, of, kind, count, skipped, total, most FROM {table(ledger)} WHERE bucket > '-infinity'"
        " ORDER BY bucket, of, kind"
    )


def position(ledger: Ledger) -> int:
    [[passed]] = ledger.ask(POSITIONS)
    return int(passed)


def is_through(ledger: Ledger) -> bool:
    return ledger.ask(POSITIONS) == ledger.ask(LOGGED)


@pytest.mark.usefixtures("transfer")
@pytest.mark.parametrize("seed", [1, 2])
def test_workers_that_are_killed_and_frozen_at_random_count_each_event_once(
    processes: Processes, ledger: Ledger, seed: int
):
    """Two at a time, beside publishers. Those that were frozen wake up when others have gone on."""
    dice = random.Random(seed)
    publishers = [processes.start_publisher(f"p{i}", "read committed", "0.01") for i in range(2)]
    workers = [processes.start(*COMMAND) for _ in range(2)]
    frozen: list[subprocess.Popen[str]] = []
    for _ in range(12):
        enough = position(ledger) + dice.randint(1, 60)
        processes.wait_until(lambda enough=enough: position(ledger) >= enough, what="more that is counted")
        victim = workers.pop(dice.randrange(2))
        if dice.random() < 0.5:
            victim.kill()
            victim.wait()
        else:
            freeze(victim)
            frozen.append(victim)
        if len(frozen) > 2:
            frozen.pop(0).send_signal(signal.SIGCONT)
        workers.append(processes.start(*COMMAND))
    for publisher in publishers:
        publisher.stop()
    for process in frozen:
        process.send_signal(signal.SIGCONT)
    processes.wait_until(lambda: is_through(ledger), what="all that is counted")

    published = check_log(processes.url, TOPICS, publishers)
    assert sum(row[3] for row in counted(ledger)) == published
    assert counted(ledger) == ledger.ask(EXPECTED)


@pytest.mark.usefixtures("transfer")
@pytest.mark.parametrize("wakes_up", [pytest.param("before the others", marks=pytest.mark.slow), "after the others"])
def test_a_worker_that_freezes_between_folding_and_settling_counts_nothing(
    processes: Processes, ledger: Ledger, wakes_up: str
):
    """Its statement has run, and its lease is over, when it would write the position and commit."""
    ledger.publish("stock", *({"total": n} for n in range(50)), key="one")
    with psycopg.connect(processes.url) as locking:
        locking.execute(f"LOCK TABLE {table(ledger)} IN SHARE MODE")
        frozen = processes.start(*COMMAND)
        processes.wait_until(lambda: waits_for_a_lock(ledger), what="a worker that waits to write")
        freeze(frozen)
    if wakes_up == "before the others":
        processes.wait_until(lambda: lease_is_over(ledger), what="a lease that is over")
        frozen.send_signal(signal.SIGCONT)
    other = processes.start(*COMMAND)
    processes.wait_until(lambda: position(ledger) == 50, what="all that is counted")
    if wakes_up == "after the others":
        frozen.send_signal(signal.SIGCONT)
        processes.wait_until(lambda: "lost its lease of" in processes.said(frozen), what="the loss in the log")
    ledger.publish("stock", {"total": 1_000}, key="one")
    processes.wait_until(lambda: position(ledger) == 51, what="all that is counted")
    for process in (frozen, other):
        processes.wait_until(lambda process=process: READY in processes.said(process), what="a worker that is ready")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, processes.said(process)

    assert [row[3:] for row in counted(ledger)] == [(51, 0, 2225, 1_000)]
    assert counted(ledger) == ledger.ask(EXPECTED)


@pytest.mark.usefixtures("transfer")
def test_a_server_that_crashes_counts_each_event_once(processes: Processes, ledger: Ledger, fault_server: Server):
    publishers = [processes.start_publisher(f"p{i}", "read committed", "0.01") for i in range(2)]
    for _ in range(2):
        processes.start(*COMMAND)
    for _ in range(3):
        enough = position(ledger) + 100
        processes.wait_until(lambda enough=enough: position(ledger) >= enough, what="more that is counted")
        fault_server.stop("immediate")
        fault_server.start()
    for publisher in publishers:
        publisher.stop()
    processes.wait_until(lambda: is_through(ledger), what="all that is counted")

    check_log(processes.url, TOPICS, publishers)
    assert counted(ledger) == ledger.ask(EXPECTED)


def waits_for_a_lock(ledger: Ledger) -> bool:
    [[waiting]] = ledger.ask(
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = %s::regclass", table(ledger)
    )
    return waiting > 0


def lease_is_over(ledger: Ledger) -> bool:
    return bool(
        ledger.ask("SELECT FROM django_events_position WHERE token IS NOT NULL AND leased_until < clock_timestamp()")
    )
