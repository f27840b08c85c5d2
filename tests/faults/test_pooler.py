"""Everything works through a pooler that gives each transaction another connection."""

import os
import signal
from collections import Counter
from pathlib import Path

import psycopg
import pytest

from tests.faults.test_kills import TOPICS, buffered, committed
from tests.support.processes import Processes, answers, check_log, wait_until


@pytest.mark.slow
def test_publishers_and_transfers_share_few_connections(processes: Processes, pooler: str, tmp_path: Path):
    direct = processes.url
    processes.url = pooler
    publishers = [processes.start_publisher(f"p{i}") for i in range(4)]
    transfers = [processes.start("run_transfer") for _ in range(2)]
    wait_until(lambda: committed(publishers) > 500, what="500 events")
    for publisher in publishers:
        publisher.stop()
    wait_until(lambda: buffered(direct) == 0, what="an empty buffer")
    for transfer in transfers:
        transfer.send_signal(signal.SIGTERM)
    assert [transfer.wait(60) for transfer in transfers] == [0, 0]

    assert check_log(direct, TOPICS, publishers) == committed(publishers)
    assert "through a pooler" in processes.log_of("run_transfer")
    with psycopg.connect(direct) as connection:
        assert connection.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone() == (0,)


@pytest.mark.requirement("E4")
def test_a_prepared_transaction_is_waited_for_through_a_crash_that_the_transfer_does_not_see(
    processes: Processes, pooler: str
):
    """The server recovers under the same postmaster, and lists what is prepared under another name."""
    direct, processes.url = processes.url, pooler
    transfer = processes.start("run_transfer")

    def move_a_thousand(name: str) -> None:
        """So many that it is asked at once who may still commit."""
        with psycopg.connect(direct) as connection:
            connection.execute(
                "SELECT count(django_events_publish('stock', to_jsonb(%s || n))) FROM generate_series(1, 1000) AS n",
                [name],
            )
        processes.wait_until(lambda: buffered(direct) == 0, what=f"{name} moved")

    with psycopg.connect(direct) as prepared:
        prepared.execute("SELECT django_events_publish('stock', '\"prepared\"')")
        prepared.execute("PREPARE TRANSACTION 'through a crash'")
    for n in range(2):
        move_a_thousand(f"before {n}/")
    with psycopg.connect(direct) as victim:
        os.kill(victim.info.backend_pid, signal.SIGKILL)
        with pytest.raises(psycopg.OperationalError):
            wait_until(lambda: victim.execute("SELECT false").fetchone() is None, what="the crash")
    processes.wait_until(lambda: answers(direct), what="the server after its recovery")
    for n in range(4):
        move_a_thousand(f"afterwards {n}/")
    with psycopg.connect(direct, autocommit=True) as connection:
        connection.execute("COMMIT PREPARED 'through a crash'")

    processes.wait_until(lambda: buffered(direct) == 0, seconds=30, what="the prepared event moved")
    transfer.send_signal(signal.SIGTERM)
    assert transfer.wait(60) == 0
    with psycopg.connect(direct) as connection:
        last = connection.execute("SELECT value FROM django_events_event ORDER BY id DESC LIMIT 1").fetchone()
    assert last == ("prepared",)


WRITES = """
from concurrent.futures import ThreadPoolExecutor
from django.db import connections, transaction
from django_events import event_context, suppress
from tests.support.publishing_app.models import Account, Book

def write(number):
    for n in range(25):
        with event_context(writer=number, n=n):
            account = Account.objects.create(note=f"{number}/{n}")
            with transaction.atomic():
                Account.objects.filter(pk=account.pk).update(balance=n + 1)
                Book.objects.create(title=f"{number}/{n}")
        Account.objects.filter(pk=account.pk).update(balance=-1)
        with suppress():
            account.delete()
    connections.close_all()

with ThreadPoolExecutor(12) as pool:
    list(pool.map(write, range(12)))
"""


@pytest.mark.requirement("P11")
def test_the_context_of_triggers_is_of_its_block_though_sessions_are_shared(processes: Processes, pooler: str):
    """12 threads on three sessions of the server: a setting that outlived its transaction would be found in theirs."""
    processes.settings = "tests.support.settings"
    assert processes.run("migrate", "-v0").returncode == 0
    direct, processes.url = processes.url, pooler
    written = processes.run("shell", "-c", WRITES)
    assert written.returncode == 0, written.stderr

    with psycopg.connect(direct) as connection:
        rows = connection.execute(
            "SELECT type, value, metadata FROM django_events_bufferedevent ORDER BY id"
        ).fetchall()
    counted: Counter[str] = Counter()
    for type, value, metadata in rows:
        name = value.get("note") or value["title"]
        number, n = map(int, name.split("/"))
        counted[type] += 1
        within = type != "account.updated" or value["balance"] != "-1.00"
        assert metadata == ({"writer": number, "n": n} if within else {}), (type, value, metadata)
    assert counted == {"account.created": 300, "account.updated": 600, "book.created": 300}
