"""A database of the server that may be killed, processes that use it, and a pooler in between."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from testproject.private_postgres.server import Server, choose_free_port
from tests.support.fix_servers import database_of
from tests.support.processes import Processes, answers, wait_until

PGBOUNCER = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/bin")


NameTemplate = Callable[[str], str]


@pytest.fixture(scope="session")
def migrated(fault_server: Server, tmp_path_factory: pytest.TempPathFactory) -> NameTemplate:
    """Name a database that `migrate` has run in with some settings: it runs once for each, and tests take copies."""
    made: dict[str, str] = {}

    def name_template(settings: str) -> str:
        if settings not in made:
            name = f"migrated_{len(made)}"
            processes = Processes(database_of(fault_server, name), tmp_path_factory.mktemp(name), settings=settings)
            ended = processes.run("migrate", "-v0")
            assert ended.returncode == 0, ended.stderr
            made[settings] = name
        return made[settings]

    return name_template


@pytest.fixture
def settings_module() -> str:
    """The settings of the processes."""
    return "testproject.settings"


@pytest.fixture
def processes(
    fault_server: Server, migrated: NameTemplate, tmp_path: Path, settings_module: str
) -> Iterator[Processes]:
    """Processes on a fresh, migrated database of the server that may be killed."""
    template = migrated(settings_module)
    with psycopg.connect(fault_server.url, autocommit=True) as connection:
        connection.execute("DROP DATABASE IF EXISTS faults WITH (FORCE)")
    started = Processes(database_of(fault_server, "faults", template), tmp_path, settings=settings_module)
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
        wait_until(lambda: answers(url), what="pgbouncer")
        yield url
    finally:
        process.terminate()
        process.wait()
