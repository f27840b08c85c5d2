"""A database of the server that may be killed, processes that use it, and a pooler in between."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from testproject.private_postgres.server import Server, choose_free_port
from tests.support.processes import Processes, answers, wait_until

PGBOUNCER = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/bin")


@pytest.fixture
def fault_database(fault_server: Server) -> Iterator[str]:
    """The address of a fresh database on the server that may be killed."""
    parts = urlsplit(fault_server.url)
    with psycopg.connect(fault_server.url, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS faults WITH (FORCE)")
        connection.execute("CREATE DATABASE faults")
    yield urlunsplit(parts._replace(path="/faults"))


@pytest.fixture
def settings_module() -> str:
    """The settings of the processes."""
    return "testproject.settings"


@pytest.fixture
def processes(fault_database: str, tmp_path: Path, settings_module: str) -> Iterator[Processes]:
    """Processes on a migrated database of the server that may be killed."""
    started = Processes(fault_database, tmp_path, settings=settings_module)
    migrated = started.run("migrate", "-v0")
    assert migrated.returncode == 0, migrated.stderr
    yield started
    started.end()


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
