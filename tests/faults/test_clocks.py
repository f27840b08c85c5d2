"""Transfers that are killed, freeze or lose an answer in the transaction of a tick: there is one event of it."""

import os
import random
import signal
import subprocess
from collections.abc import Iterator

import psycopg
import pytest

from tests.support.processes import Processes, freeze
from tests.support.proxies import CuttingProxy

pytestmark = pytest.mark.requirement("X14")

# Who moves the clock on waits in the middle of its transaction, behind the insert, for as long as a test has the lock.
GATE = """
CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    WHILE EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711) LOOP
        PERFORM pg_sleep(0.01);
    END LOOP;
    RETURN NEW;
END $$;
CREATE TRIGGER gate BEFORE UPDATE ON django_events_clock FOR EACH ROW
    WHEN (OLD.next_at < now()) EXECUTE FUNCTION gate();
"""
AT_THE_GATE = (
    "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND query LIKE '%django_events_clock%'"
)
DUE = "SELECT count(*) FROM django_events_clock WHERE next_at <= clock_timestamp() AND paused_at IS NULL"
TICK = """
UPDATE django_events_clock SET next_at = date_trunc('second', clock_timestamp()) WHERE paused_at IS NULL
"""
EVENTS = "SELECT count(*) FROM django_events_event WHERE metadata ->> 'clock' = 'echoes.tick'"


class Clockwork:
    """The clock's row as a test moves it, and the events of its ticks."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        self.connection.execute(GATE)
        self.connection.execute("UPDATE django_events_clock SET paused_at = now() WHERE name <> 'echoes.tick'")
        self.rounds = 0

    def ask(self, question: str) -> int:
        [[answer]] = self.connection.execute(question).fetchall()
        return answer

    def shut(self) -> None:
        self.connection.execute("SELECT pg_advisory_lock(4711)")

    def open(self) -> None:
        self.connection.execute("SELECT pg_advisory_unlock(4711)")

    def let_tick(self) -> None:
        self.rounds += 1
        self.connection.execute(TICK)

    def at_the_gate(self) -> int:
        return self.ask(AT_THE_GATE)

    def has_ticked(self) -> bool:
        """Whether the event of each round is in the log, and the next tick is to come."""
        due = self.ask(DUE)
        return not due and self.ask("SELECT count(*) FROM django_events_bufferedevent") == 0

    def check(self) -> None:
        assert self.ask(EVENTS) == self.rounds


@pytest.fixture
def settings_module() -> str:
    return "tests.support.fault_settings"


@pytest.fixture
def clockwork(processes: Processes) -> Iterator[Clockwork]:
    processes.variables |= {"FAULT_FOLDER": str(processes.folder), "VANISHED_AFTER": "2", "POLL_INTERVAL": "0.1"}
    clockwork = Clockwork(processes.url)
    yield clockwork
    clockwork.connection.close()


def start_in_the_middle(processes: Processes, clockwork: Clockwork) -> subprocess.Popen[str]:
    """A transfer that has put the event into the buffer, and has not committed."""
    clockwork.shut()
    clockwork.let_tick()
    process = processes.start("run_transfer")
    processes.wait_until(clockwork.at_the_gate, what="a transfer in the transaction of the tick")
    return process


def stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    assert process.wait(60) == 0


@pytest.mark.quick
def test_killed_in_the_transaction_of_the_tick(processes: Processes, clockwork: Clockwork):
    killed = start_in_the_middle(processes, clockwork)
    other = processes.start("run_transfer")
    killed.kill()
    killed.wait()
    clockwork.open()
    processes.wait_until(clockwork.has_ticked, what="the tick of the other transfer")
    stop(other)
    clockwork.check()


def test_frozen_in_the_transaction_of_the_tick_and_awake_afterwards(processes: Processes, clockwork: Clockwork):
    frozen = start_in_the_middle(processes, clockwork)
    freeze(frozen)
    other = processes.start("run_transfer")
    clockwork.open()
    processes.wait_until(clockwork.has_ticked, what="the tick of the other transfer")
    clockwork.check()

    frozen.send_signal(signal.SIGCONT)
    stop(other)
    clockwork.let_tick()
    processes.wait_until(clockwork.has_ticked, what="the next tick, of the one that was frozen")
    stop(frozen)
    clockwork.check()


@pytest.mark.parametrize("lose", ["lose_next_answer", "lose_next_commit"])
def test_the_commit_of_the_tick_or_its_answer_is_lost(processes: Processes, clockwork: Clockwork, lose: str):
    near, proxy = processes.url, CuttingProxy(processes.url)
    try:
        processes.url = proxy.url
        transfer = start_in_the_middle(processes, clockwork)
        getattr(proxy, lose)()
        clockwork.open()
        processes.wait_until(proxy.lost.is_set, what="the loss")
        processes.wait_until(clockwork.has_ticked, what="the tick")
        stop(transfer)
    finally:
        processes.url = near
        proxy.close()
    clockwork.check()


def test_two_transfers_of_which_one_is_killed_again_and_again(processes: Processes, clockwork: Clockwork):
    dice = random.Random(4)
    transfers = [processes.start("run_transfer") for _ in range(2)]
    for _ in range(12):
        for _ in range(dice.randint(1, 20)):
            clockwork.let_tick()
            processes.wait_until(clockwork.has_ticked, what="a tick")
        victim = dice.randrange(2)
        clockwork.let_tick()
        transfers[victim].kill()
        transfers[victim].wait()
        transfers[victim] = processes.start("run_transfer")
        processes.wait_until(clockwork.has_ticked, what="a tick while a transfer is killed")
    clockwork.check()


# Of the clock that skips, the consumer is a row without a worker.
OPENED = "SELECT count(*) FROM django_events_event WHERE metadata ->> 'clock' = 'echoes.alone'"
READER = """
INSERT INTO django_events_consumer (name, topic_id, partitioned, mode, ordered, live, filled_until)
SELECT 'reader_of_alone', id, false, 'stream', false, false, 0 FROM django_events_topic WHERE name = 'echoes';
INSERT INTO django_events_position (
    consumer_id, partition, position, number, handled, failed, ignored, dead_lettered, attempts, careful_until, error,
    holder
)
SELECT id, -1, 0, 0, 0, 0, 0, 0, 0, 0, '', '' FROM django_events_consumer WHERE name = 'reader_of_alone'
"""
PASS = """
UPDATE django_events_position SET position = 1000000
WHERE consumer_id = (SELECT id FROM django_events_consumer WHERE name = 'reader_of_alone')
"""


@pytest.fixture
def alone(clockwork: Clockwork) -> Iterator[Clockwork]:
    clockwork.connection.execute(
        "UPDATE django_events_clock SET paused_at = CASE WHEN name = 'echoes.alone' THEN NULL ELSE now() END"
    )
    clockwork.connection.execute(READER)
    yield clockwork


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "frozen"])
def test_of_a_clock_that_skips_no_two_ticks_are_open_whatever_becomes_of_a_transfer(
    processes: Processes, alone: Clockwork, how: signal.Signals
):
    """It ends, or stands, with the tick in the buffer and not committed; another one publishes it and no next one."""
    struck = start_in_the_middle(processes, alone)
    struck.send_signal(how)
    if how is signal.SIGSTOP:
        os.waitpid(struck.pid, os.WUNTRACED)
    else:
        struck.wait()
    other = processes.start("run_transfer")
    alone.open()
    processes.wait_until(alone.has_ticked, what="the tick of the other transfer")
    for _ in range(3):
        alone.let_tick()
        processes.wait_until(alone.has_ticked, what="a tick that is left out")
    assert alone.ask(OPENED) == 1
    if how is signal.SIGSTOP:
        struck.send_signal(signal.SIGCONT)
        alone.let_tick()
        processes.wait_until(alone.has_ticked, what="a tick with both")
        assert alone.ask(OPENED) == 1
        stop(struck)
    alone.connection.execute(PASS)
    alone.let_tick()
    processes.wait_until(alone.has_ticked, what="the tick when all is handled")
    assert alone.ask(OPENED) == 2
    assert alone.ask("SELECT overlapped FROM django_events_clock WHERE name = 'echoes.alone'") >= 3
    stop(other)
