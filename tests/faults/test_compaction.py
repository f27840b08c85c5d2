"""Compaction under load, killed and frozen at its work, beside readers: the state is what was published."""

import json
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.processes import Processes

TOPIC = "echoes"  # it has no consumers
# Not as a step of maintenance: of that there is one at a time, until its time is over.
COMPACTION_WITHOUT_END = """
import time
import django
django.setup()
from django.db import DatabaseError, InterfaceError, connection
from django_events.log.compaction import compact
from django_events.models import Topic
while True:
    try:
        print(compact("default", Topic.objects.get(name="echoes")), flush=True)
    except (DatabaseError, InterfaceError) as error:
        print(repr(error), flush=True)
        connection.close()
    time.sleep(0.05)  # several do this at once, and others are to go on beside
"""
AT_WORK = "SELECT FROM pg_locks WHERE mode = 'ShareRowExclusiveLock' AND granted AND relation IS NOT NULL"
DETACHED = "relkind = 'r' AND NOT relispartition AND relname ~ '^django_events_event_'"


@pytest.fixture
def settings_module() -> str:
    return "tests.support.fault_settings"


class Log:
    """The log of the topic, read with the driver alone."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.session = psycopg.connect(url, autocommit=True)  # threads share it
        [(self.id,)] = self.ask(f"SELECT id FROM django_events_topic WHERE name = '{TOPIC}'")

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        return self.session.execute(query).fetchall()

    @property
    def compacted_until(self) -> int:
        [(until,)] = self.ask(f"SELECT compacted_until FROM django_events_topichead WHERE topic_id = {self.id}")
        return int(until)

    def behind(self, connection: psycopg.Connection, position: int = 0) -> list[tuple[int, str, int | None]]:
        rows = connection.execute(
            "SELECT id, key, value #>> '{}' FROM django_events_event WHERE topic_id = %s AND id > %s ORDER BY id",
            [self.id, position],
        ).fetchall()
        return [(id, key, None if value is None else int(value)) for id, key, value in rows]


def state(told: list[tuple[Any, str, int | None]]) -> dict[str, int]:
    """What the newest of each key says, without deleted ones."""
    newest = {key: value for _, key, value in told}
    return {key: value for key, value in newest.items() if value is not None}


class Reader(threading.Thread):
    """Reads beside it until it is told to stop; what goes wrong is raised when it is joined."""

    def __init__(self, log: Log) -> None:
        super().__init__(daemon=True)
        self.log, self.stopping, self.error, self.looks = log, threading.Event(), None, 0

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.look()
                self.looks += 1
        except BaseException as error:
            self.error = error

    def look(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        self.stopping.set()
        self.join(120)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error


class Follower(Reader):
    """Reads on behind its position, and puts together what it saw."""

    def __init__(self, log: Log) -> None:
        super().__init__(log)
        self.seen: list[tuple[int, str, int | None]] = []

    def look(self) -> None:
        position = self.seen[-1][0] if self.seen else 0
        found = self.log.behind(self.log.session, position)
        compacted = max(self.log.compacted_until, position)
        above = [id for id, _, _ in found if id > compacted]
        assert above == list(range(compacted + 1, compacted + 1 + len(above)))
        self.seen += found


class OldSnapshot(Reader):
    """Sees the same before and after a swap that is made while its snapshot has no lock on the log."""

    def look(self) -> None:
        with psycopg.connect(self.log.url) as first, psycopg.connect(self.log.url) as second:
            for one in (first, second):
                one.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            [(snapshot,)] = first.execute("SELECT pg_export_snapshot()").fetchall()
            before = self.log.behind(first)
            second.execute(f"SET TRANSACTION SNAPSHOT '{snapshot}'")
            second.execute("SELECT 1")
            until = self.log.compacted_until
            first.commit()
            deadline = time.monotonic() + 2
            while self.log.compacted_until == until and not self.stopping.is_set() and time.monotonic() < deadline:
                time.sleep(0.02)
            after = self.log.behind(second)
        assert state(after) == state(before)
        assert set(after) <= set(before)


@pytest.mark.requirement("S14")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", ["killed", "frozen"])
def test_the_state_is_what_was_published_whatever_compaction_dies_of(processes: Processes, fault: str):
    dice = random.Random(f"compaction {fault}")
    log = Log(processes.url)
    kept = "0" if fault == "killed" else "1 day"
    processes.variables["VANISHED_AFTER"] = "3"  # a process that is frozen with the log locked is ended then
    with psycopg.connect(processes.url) as connection:
        connection.execute(
            "UPDATE django_events_topic SET compact = true, timeline = true, segment_size = 400, tombstones_kept = %s"
            " WHERE id = %s",
            [kept, log.id],
        )
        connection.execute(f"CREATE INDEX ON django_events_event_{log.id} (key, id)")
    transfer = processes.start("run_transfer")
    publishers = []
    for name in ("p0", "p1"):
        journal = processes.folder / f"{name}.prices"
        script = [sys.executable, "-m", "tests.support.pricing", name, str(journal), TOPIC]
        publishers.append((processes._start(script, name=name), journal))
    readers: list[Reader] = [Follower(log), OldSnapshot(log)]
    for reader in readers:
        reader.start()

    def start() -> Any:
        return processes._start([sys.executable, "-c", COMPACTION_WITHOUT_END], name="compaction")

    at_work, frozen = start(), []
    for _ in range(6):
        until = log.compacted_until
        processes.wait_until(lambda until=until: log.compacted_until > until, what="compaction that goes on")
        processes.wait_until(lambda: log.ask(AT_WORK), what="compaction at its work")
        time.sleep(dice.random() * 0.05)
        if fault == "killed":
            at_work.kill()
        else:
            at_work.send_signal(signal.SIGSTOP)
            frozen.append(at_work)
        at_work = start()
        for one in frozen[:-1]:
            one.send_signal(signal.SIGCONT)
    for one in frozen:
        one.send_signal(signal.SIGCONT)
    for process, _ in publishers:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0, processes.said(process)
    processes.wait_until(lambda: not log.ask("SELECT FROM django_events_bufferedevent LIMIT 1"), what="an empty buffer")
    until = log.compacted_until
    for reader in readers:
        reader.finish()
    at_work.kill()
    for one in frozen:
        one.kill()
    transfer.terminate()
    assert transfer.wait(60) == 0

    lines = [line for _, journal in publishers for line in Path(journal).read_text().splitlines()]
    told = [(0, *one) for line in lines for one in json.loads(line)]
    truth = state(told)
    there = log.behind(log.session)
    assert state(there) == truth
    assert len(there) < len(told), "nothing was compacted"
    follower = readers[0]
    assert isinstance(follower, Follower)
    follower.look()
    if fault == "frozen":
        assert state(follower.seen) == truth
    assert min(reader.looks for reader in readers) > 1
    values = [value for _, _, value in there if value is not None]
    assert len(values) == len({(key, value) for _, key, value in there if value is not None})
    assert max(id for id, _, _ in there) == len(told)
    verified = processes.run("events", "verify", "--topic", TOPIC)
    assert verified.returncode == 0, verified.stdout
    assert log.ask(f"SELECT FROM pg_class WHERE {DETACHED}") == [], "a table that belongs to no log"
    log.session.close()
