"""A post office: the processes of `tests.support.consuming_app`, and what a test sees of them in the database."""

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.types.json import Jsonb

from tests.support.processes import Processes, wait_until


class Office:
    """Publishes letters to the database of some processes, holds their handlers up, and looks at what they did."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self._connection = psycopg.connect(processes.url, autocommit=True)

    def ask(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        return self._connection.execute(query, parameters).fetchall()

    def change(self, statement: str) -> None:
        self._connection.execute(statement)

    def post(self, *letters: dict[str, Any], key: str | None = None) -> None:
        """Publish letters. Those without an answer are handled by one consumer alone."""
        for letter in letters:
            value = Jsonb({"silent": True, **letter})
            self.ask("SELECT django_events_publish('letters', %s, key => %s)", value, key)

    def transfer(self) -> None:
        """Move what was posted into the log."""
        result = self.processes.run("run_transfer", "--once", "-v0")
        assert result.returncode == 0, result.stderr

    def effects(self, consumer: str) -> list[str]:
        """The events that a consumer handled, in the order in which that was committed."""
        rows = self.ask("SELECT event FROM consuming_app_effect WHERE consumer = %s ORDER BY id", consumer)
        return [event for (event,) in rows]

    def notes(self, consumer: str) -> list[str]:
        rows = self.ask("SELECT note FROM consuming_app_effect WHERE consumer = %s ORDER BY id", consumer)
        return [note for (note,) in rows]

    def leases(self) -> int:
        """How many partitions a worker has for itself, by what the database says."""
        [[leases]] = self.ask("SELECT count(*) FROM django_events_position WHERE leased_until > clock_timestamp()")
        return int(leases)

    @contextmanager
    def gate(self, number: int) -> Iterator["Gate"]:
        """A gate that is closed, until the block ends."""
        with psycopg.connect(self.processes.url, autocommit=True) as session:
            session.execute("SELECT pg_advisory_lock(%s)", [number])
            yield Gate(self, number)

    def close(self) -> None:
        self._connection.close()


class Gate:
    """Where handlers wait, and whether one does."""

    def __init__(self, office: Office, number: int) -> None:
        self._office = office
        self._number = number

    def wait_for_a_waiting_session(self) -> None:
        self._office.processes.wait_until(lambda: self.waiting, what=f"a handler at gate {self._number}")

    @property
    def waiting(self) -> int:
        [[waiting]] = self._office.ask(
            "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database AND d.datname = current_database()"
            " WHERE locktype = 'advisory' AND objid = %s AND NOT granted",
            self._number,
        )
        return int(waiting)


@pytest.fixture
def office(processes: Processes) -> Iterator[Office]:
    office = Office(processes)
    yield office
    office.close()


def catches(process: "subprocess.Popen[str]", number: signal.Signals) -> bool:
    """Whether a process still has a handler of its own for a signal, by what the kernel says."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    [mask] = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")]
    return bool(int(mask, 16) >> (number - 1) & 1)


def wait_until_told(process: "subprocess.Popen[str]") -> None:
    """Wait until a process took note of its first signal: the second SIGTERM would end it."""
    wait_until(lambda: not catches(process, signal.SIGTERM), what="a process that was told to stop")
