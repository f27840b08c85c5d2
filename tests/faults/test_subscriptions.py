"""Programs that serve a subscription and are killed, or freeze until it is gone: none is lost, nothing comes back."""

import signal
import subprocess
from collections.abc import Callable

import psycopg
import pytest

from tests.support.processes import Processes, freeze

pytestmark = pytest.mark.requirement("P5")

Ask = Callable[[str], int]
IN_HAND = "SELECT count(*) FROM django_events_deliverylease WHERE leased_until > clock_timestamp()"
LEFT = """
SELECT
    (SELECT count(*) FROM django_events_delivery) + (SELECT count(*) FROM django_events_deliverylease)
    + (SELECT count(*) FROM django_events_pastdelivery)
    + (SELECT count(*) FROM django_events_consumer WHERE name = 'acme')
"""
BE_IDLE = """
UPDATE django_events_position AS p SET served_at = clock_timestamp() - interval '1 hour'
FROM django_events_consumer AS c WHERE c.id = p.consumer_id AND c.name = 'acme'
"""


@pytest.fixture
def ask(processes: Processes) -> Ask:
    """A subscription that wants an event of the log."""
    made = ["--key", "acme", "--expires-after", "60s", "--execute"]
    command("subscribe", "acme", "orders", *made, by=processes)
    command("publish", "orders", "1", "--key", "acme", by=processes)
    assert processes.run("run_transfer", "--once").returncode == 0
    with psycopg.connect(processes.url, autocommit=True) as connection:
        yield lambda question: connection.execute(question).fetchone()[0]


def command(*arguments: str, by: Processes) -> str:
    ended = by.run("events", *arguments)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def start(processes: Processes, number: int = 0) -> subprocess.Popen[str]:
    """A program with the event in hand."""
    process = processes.start_module("tests.support.subscriber", "acme", str(processes.folder / f"go {number}"))
    processes.wait_until(lambda: "claimed 1" in processes.said(process), what="the claim")
    return process


def let_settle(processes: Processes, process: subprocess.Popen[str], number: int = 0) -> str:
    (processes.folder / f"go {number}").touch()
    assert process.wait(60) == 0, processes.said(process)
    return processes.said(process).split()[-1]


def test_killed_with_an_event_in_hand_which_the_next_program_gets(processes: Processes, ask: Ask):
    killed = start(processes)
    killed.kill()
    killed.wait()

    assert let_settle(processes, start(processes, 1), 1) == "settled"
    assert ask("SELECT count(*) FROM django_events_delivery") == 0


@pytest.mark.slow
def test_frozen_until_the_subscription_is_gone_and_awake_afterwards(processes: Processes, ask: Ask):
    frozen = start(processes)
    freeze(frozen)
    with psycopg.connect(processes.url, autocommit=True) as connection:
        connection.execute(BE_IDLE)
    processes.wait_until(lambda: ask(IN_HAND) == 0, what="the end of the lease")
    command("maintain", "subscriptions", "orphans", by=processes)
    assert ask(LEFT) == 0

    frozen.send_signal(signal.SIGCONT)

    assert let_settle(processes, frozen) == "lost"
    assert ask(LEFT) == 0
