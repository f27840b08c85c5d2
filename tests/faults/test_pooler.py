"""Everything works through a pooler that gives each transaction another connection."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from testproject.private_postgres.server import choose_free_port
from tests.faults.test_kills import TOPICS, buffered, committed
from tests.processes import Processes, check_log, wait_until

PGBOUNCER = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/bin")


@pytest.fixture
def pooler(processes: Processes, tmp_path: Path) -> Iterator[str]:
    """The address of a pgbouncer in transaction mode, with fewer connections than clients."""
    if PGBOUNCER is None:
        pytest.skip("pgbouncer is not installed: apt-get install pgbouncer")
    server, port = urlsplit(processes.url), choose_free_port()
    settings = tmp_path / "pgbouncer.ini"
    settings.write_text(
        f"[databases]\nfaults = host={server.hostname} port={server.port} dbname=faults"
        f" user={server.username} password={server.password}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        "auth_type = any\npool_mode = transaction\ndefault_pool_size = 3\nmax_client_conn = 50\n"
        + ("user = nobody\n" if os.geteuid() == 0 else "")
    )
    process = subprocess.Popen([PGBOUNCER, "-q", str(settings)], stderr=subprocess.DEVNULL)
    url = urlunsplit(server._replace(netloc=f"{server.username}@127.0.0.1:{port}"))
    try:
        wait_until(lambda: answers(url), seconds=20, what="pgbouncer")
        yield url
    finally:
        process.terminate()
        process.wait()


def answers(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


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
    assert [transfer.wait(30) for transfer in transfers] == [0, 0]

    assert check_log(direct, TOPICS, publishers) == committed(publishers)
    assert "through a pooler" in processes.log_of("run_transfer")
    with psycopg.connect(direct) as connection:
        assert connection.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone() == (0,)
