"""Maintenance that dies, twice at once, and with consumers far behind: nothing is lost, and publishing goes on."""

import os
import signal
import subprocess
import sys

import psycopg
import pytest

from tests.support.fix_restores import newest, program
from tests.support.processes import ROOT, Processes

DUMPS = int(os.environ.get("DUMPS", "3"))
# Segments go several times a second.
RETENTION_WITHOUT_END = """
import django
django.setup()
from django_events import Draft, publish_many
from django_events.log.transfer import Transfer
from django_events.workers.maintaining import run_steps
from django_events.maintaining.steps import STEPS
transfer, steps = Transfer("default"), [step for step in STEPS if step.name in ("segments", "retention")]
while True:
    publish_many("stock", [Draft(value=n) for n in range(100)])
    while transfer.move():
        pass
    run_steps("default", steps)
"""


@pytest.fixture
def settings_module() -> str:
    return "tests.support.fault_settings"


def ask(url: str, query: str) -> list[tuple]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(query).fetchall()


def tell(url: str, query: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(query)


LIMITED = "UPDATE django_events_topic SET retention_events = 100, segment_size = 100 WHERE name = 'orders'"
COMPACTED = "UPDATE django_events_topic SET compact = true, timeline = true, segment_size = 100 WHERE name = 'payments'"
# All consumers of the topic but the queue that keeps a history, which is told to be at the end.
ONLY_READERS = """
    DELETE FROM django_events_delivery;
    DELETE FROM django_events_position;
    DELETE FROM django_events_consumer WHERE name <> 'in_order_batched';
    UPDATE django_events_consumer SET live = false, filled_until = 1000000000;
"""


@pytest.mark.requirement("P1")
def test_maintenance_killed_at_each_of_its_statements_leaves_nothing_half_done(processes: Processes):
    tell(processes.url, LIMITED)
    tell(processes.url, COMPACTED)
    tell(processes.url, ONLY_READERS)
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.killed_maintenance"],
        env=processes.environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    kills = int(done.stdout.splitlines()[-1])
    assert kills > 40, "it did next to nothing"

    [(floor, first, last, events)] = ask(
        processes.url,
        "SELECT h.id_floor, min(e.id), max(e.id), count(*) FROM django_events_topic t"
        " JOIN django_events_topichead h ON h.topic_id = t.id JOIN django_events_event e ON e.topic_id = t.id"
        " WHERE t.name = 'orders' GROUP BY 1",
    )
    assert last == 60 * (kills + 1), "an event is missing, or one came twice"
    assert (first, events) == (floor + 1, last - floor)
    assert floor > 0
    assert ask(processes.url, "SELECT count(*) FROM django_events_dedupkey") == [(0,)]
    assert ask(processes.url, "SELECT count(*) FROM django_events_pastdelivery") == [(0,)]
    assert ask(processes.url, "SELECT count(*) FROM django_events_delivery WHERE consumer_id = 999999") == [(0,)]
    detached = "relkind = 'r' AND NOT relispartition AND relname ~ '^django_events_event_'"
    assert ask(processes.url, f"SELECT FROM pg_class WHERE {detached}") == [], "a segment that belongs to no log"
    newest = ask(
        processes.url,
        "SELECT DISTINCT ON (e.key) e.value #>> '{}' FROM django_events_event e JOIN django_events_topic t"
        " ON t.id = e.topic_id WHERE t.name = 'payments' AND e.key IS NOT NULL ORDER BY e.key, e.id DESC",
    )
    assert newest == [(str(kills),)] * 7
    [(compacted, rest)] = ask(
        processes.url,
        "SELECT h.compacted_until, count(*) FILTER (WHERE e.id > h.compacted_until) FROM django_events_event e"
        " JOIN django_events_topic t ON t.id = e.topic_id JOIN django_events_topichead h ON h.topic_id = t.id"
        " WHERE t.name = 'payments' GROUP BY 1",
    )
    assert compacted > 0
    assert compacted + rest == 121 * (kills + 1), "an event is missing, or one came twice"
    tell(processes.url, "DELETE FROM django_events_consumer")
    for topic in ("orders", "payments"):
        assert processes.run("events", "verify", "--topic", topic).returncode == 0


@pytest.mark.requirement("S10")
def test_two_processes_share_the_maintenance_while_consumers_lag_and_publishing_never_fails(processes: Processes):
    tell(processes.url, LIMITED)
    tell(processes.url, "UPDATE django_events_topic SET retention_events = 100, segment_size = 100")
    transfers = [processes.start("run_transfer") for _ in range(2)]
    publishers = [processes.start_publisher(f"p{i}") for i in range(3)]
    crons = [processes.start("events", "maintain") for _ in range(3)]
    last_id = "SELECT coalesce(max(id), 0) FROM django_events_event"
    processes.wait_until(lambda: ask(processes.url, last_id)[0][0] > 400, what="400 events")
    crons += [processes.start("events", "maintain") for _ in range(3)]
    processes.wait_until(lambda: all(cron.poll() is not None for cron in crons), what="all who maintain at their end")
    for publisher in publishers:
        publisher.stop()
    processes.wait_until(
        lambda: not ask(processes.url, "SELECT FROM django_events_bufferedevent LIMIT 1"), what="an empty buffer"
    )
    for transfer in transfers:
        transfer.send_signal(signal.SIGTERM)
    assert [transfer.wait(60) for transfer in transfers] == [0, 0]

    assert [cron.returncode for cron in crons] == [0] * 6
    committed = {value for publisher in publishers for value in publisher.values("committed")}
    in_log = {value for (value,) in ask(processes.url, "SELECT value #>> '{}' FROM django_events_event")}
    assert committed == in_log, "no consumer has handled anything, so everything is there"
    assert not any(publisher.values("unknown") for publisher in publishers)
    assert processes.run("events", "verify").returncode == 0


@pytest.mark.requirement("P1")
def test_a_dump_beside_retention_that_is_paused(processes: Processes, tmp_path):
    """DUMPS=30 for more of them. What no operator resumes goes on by itself."""

    def floor() -> int:
        [(floor,)] = ask(processes.url, "SELECT max(id_floor) FROM django_events_topichead")
        return floor

    tell(processes.url, "DELETE FROM django_events_position")
    tell(processes.url, "DELETE FROM django_events_consumer")
    tell(
        processes.url, "UPDATE django_events_topic SET retention_events = 300, segment_size = 100 WHERE name = 'stock'"
    )
    dropping = processes._start([sys.executable, "-c", RETENTION_WITHOUT_END], name="dropping")
    for number in range(DUMPS):
        before = floor()
        processes.wait_until(lambda before=before: floor() > before + 500, what="segments that go")
        paused = processes.run("events", "maintain", "--pause", "10m")
        assert paused.returncode == 0, paused.stderr
        assert "Retention drops nothing until " in paused.stdout
        at_first = floor()
        program(newest(), "pg_dump", "--format=custom", f"--file={tmp_path / str(number)}", f"--dbname={processes.url}")
        assert floor() == at_first
        assert dropping.poll() is None, processes.said(dropping)
        if number % 2:
            assert processes.run("events", "maintain", "--resume").stdout.strip() == "Retention goes on."
        else:  # as if the time were over
            tell(processes.url, "UPDATE django_events_maintenancestep SET paused_until = clock_timestamp()")
    before = floor()
    processes.wait_until(lambda: floor() > before, what="retention that goes on")
