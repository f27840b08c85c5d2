"""The private PostgreSQL, with real processes that come, go and are killed."""

import dataclasses
import fcntl
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from testproject.private_postgres import server as server_module
from testproject.private_postgres.account import server_account
from testproject.private_postgres.binaries import available_binaries, default_binaries
from testproject.private_postgres.errors import ServerError
from testproject.private_postgres.server import Server
from testproject.private_postgres.shared import CHECKOUT, Facts, shared_folder

pytestmark = pytest.mark.long

SECONDS = 30.0

only_as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as two users")

# A user of the shared server: joins from several threads at once, then once per line it reads,
# and tells each time how to connect. It leaves when its standard input ends.
USER = """
import dataclasses, json, os, subprocess, sys
from concurrent.futures import ThreadPoolExecutor
from testproject.private_postgres.shared import shared_server

def tell(facts):
    print(json.dumps(dataclasses.asdict(facts)), flush=True)

with ThreadPoolExecutor(4) as pool:
    first, *others = pool.map(lambda _: shared_server.join(), range(4))
assert all(facts == first for facts in others)
tell(first)
for line in sys.stdin:
    match line.strip():
        case "join":
            tell(shared_server.join())
        case "fork":
            if os.fork():
                os._exit(0)
        case "spawn":
            child = subprocess.Popen(
                ["/bin/sleep", "600"], close_fds=False,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )
            print(child.pid, flush=True)
"""


def environment_for(scratch: Path, **variables: str) -> dict[str, str]:
    """Ours, with `scratch` for temporary files, and able to import this checkout."""
    environment = {**os.environ, **variables, "TMPDIR": str(scratch)}
    search_path = filter(None, [str(CHECKOUT), environment.get("PYTHONPATH")])
    return {**environment, "PYTHONPATH": os.pathsep.join(search_path)}


class User:
    """A process that uses the shared server of one folder for temporary files."""

    def __init__(self, scratch: Path, *, python: list[str] | None = None, **popen: Any) -> None:
        environment = environment_for(scratch, **popen.pop("env", {}))
        self.process = subprocess.Popen(
            [*(python or [sys.executable]), "-c", USER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd="/",
            env=environment,
            **popen,
        )
        assert self.process.stdin and self.process.stdout
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def facts(self) -> Facts:
        line = self.stdout.readline()
        assert line, f"the user ended: {self.process.communicate()[1]}"
        return Facts(**json.loads(line))

    def tell(self, command: str) -> None:
        self.stdin.write(f"{command}\n")
        self.stdin.flush()

    def join(self) -> Facts:
        self.tell("join")
        return self.facts()

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def leave(self) -> str:
        """End in an orderly way; what it said on its standard error."""
        _, complaint = self.process.communicate(timeout=SECONDS)
        return str(complaint)


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder for temporary files; the server's own user must be able to pass, so no tmp_path."""
    folder = Path(tempfile.mkdtemp(prefix="private-postgres-"))
    folder.chmod(0o711)
    yield folder
    # A user that was killed a moment ago may have a watcher that is clearing up, too.
    wait_for(lambda: removed(folder), f"{folder} can be removed")


@pytest.fixture
def new_user(scratch: Path) -> Iterator[Callable[..., User]]:
    users: list[User] = []

    def start(**arguments: Any) -> User:
        users.append(User(scratch, **arguments))
        return users[-1]

    yield start
    for user in users:
        if user.process.returncode is None:
            user.kill()


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"waited {SECONDS} s in vain: {what}"
        time.sleep(0.01)


def removed(folder: Path) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def is_alive(pid: int) -> bool:
    """Whether the process runs; one that waits to be reaped does not."""
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not Path("/proc/self").exists()
    return state not in "ZX"


def folder_in(scratch: Path) -> Path:
    return scratch / shared_folder().name


def has_users(scratch: Path) -> bool:
    with open(folder_in(scratch) / "users", "rb+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def wait_until_all_gone(facts: Facts, scratch: Path) -> None:
    wait_for(lambda: not is_alive(facts.postmaster), "the postmaster ends")
    wait_for(lambda: not is_alive(facts.watcher), "the watcher ends")
    wait_for(lambda: not list(scratch.iterdir()), f"nothing is left in {scratch}")


def readable_for_others(folder: Path) -> list[str]:
    # As root, the server's user must be able to pass through, and no more than that.
    forbidden = 0o067 if server_account().switch else 0o077
    found = []
    for path in (folder, *folder.rglob("*")):
        with suppress(FileNotFoundError):
            mode = path.lstat().st_mode
            if mode & forbidden and not stat.S_ISLNK(mode):
                found.append(f"{stat.filemode(mode)} {path}")
    return found


def can_connect(facts: Facts) -> bool:
    with psycopg.connect(facts.url) as connection:
        row = connection.execute("SELECT current_database()").fetchone()
    return row == ("postgres",)


def as_ordinary_user(scratch: Path) -> dict[str, Any]:
    """Arguments of `User` for a process of user `nobody`; skips where it cannot run Python."""
    unprivileged: dict[str, Any] = {"user": "nobody", "group": "nogroup", "extra_groups": []}
    packages = Path(psycopg.__file__).parents[1]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    # The interpreter of a virtual environment is often below root's home; a system one will do.
    for python in (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        environment = environment_for(scratch, PYTHONPATH=str(packages))
        try:
            subprocess.run(
                [python, "-c", "import psycopg, testproject.private_postgres.shared"],
                check=True,
                capture_output=True,
                cwd="/",
                env=environment,
                **unprivileged,
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        return {"python": [python], "env": {"PYTHONPATH": str(packages)}, **unprivileged}
    pytest.skip(f"user `nobody` cannot run {version} with {packages}")


def test_processes_started_at_once_share_one_server(new_user: Callable[..., User], scratch: Path) -> None:
    users = [new_user() for _ in range(5)]
    first, *others = [user.facts() for user in users]

    assert all(facts == first for facts in others)
    assert can_connect(first)

    for user in users:
        user.leave()
    wait_until_all_gone(first, scratch)


def test_a_user_that_leaves_takes_nothing_from_the_others(new_user: Callable[..., User], scratch: Path) -> None:
    early, late = new_user(), new_user()
    facts = early.facts()
    late.facts()
    early.leave()

    assert has_users(scratch)
    assert late.join() == facts
    assert can_connect(facts)


def test_all_is_gone_when_every_user_was_killed(new_user: Callable[..., User], scratch: Path) -> None:
    users = [new_user() for _ in range(3)]
    facts = users[0].facts()
    assert all(user.facts() == facts for user in users[1:])
    for user in users:
        user.kill()

    wait_until_all_gone(facts, scratch)


def test_users_can_come_while_the_last_one_goes(new_user: Callable[..., User], scratch: Path) -> None:
    user = new_user()
    facts = user.facts()
    for _ in range(8):
        newcomer = new_user()
        user.leave()
        facts = newcomer.facts()
        assert can_connect(facts)
        user = newcomer
    user.leave()

    wait_until_all_gone(facts, scratch)


def test_a_forked_child_counts_as_a_user(new_user: Callable[..., User], scratch: Path) -> None:
    user = new_user()
    facts = user.facts()
    user.tell("fork")
    assert user.process.wait(SECONDS) == 0

    assert has_users(scratch)
    assert user.join() == facts
    assert can_connect(facts)

    user.leave()
    wait_until_all_gone(facts, scratch)


def test_a_program_that_a_user_started_does_not_count(new_user: Callable[..., User], scratch: Path) -> None:
    user = new_user()
    facts = user.facts()
    user.tell("spawn")
    program = int(user.stdout.readline())
    user.kill()
    try:
        wait_until_all_gone(facts, scratch)
        assert is_alive(program)
    finally:
        os.kill(program, signal.SIGKILL)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_after_the_watcher_was_killed_a_new_server_starts(
    new_user: Callable[..., User], scratch: Path, how: signal.Signals
) -> None:
    old_user = new_user()
    old = old_user.facts()
    (old_folder,) = folder_in(scratch).glob("*-server-*")
    os.kill(old.watcher, how)
    wait_for(lambda: not is_alive(old.postmaster), "the old server ends")

    newcomer = new_user()
    new = newcomer.facts()

    assert new.postmaster != old.postmaster
    assert can_connect(new)
    assert old_user.join() == new
    wait_for(lambda: not old_folder.exists(), "the old server's folder is removed")

    old_user.leave()
    newcomer.leave()
    wait_until_all_gone(new, scratch)


def test_leftovers_of_another_day_are_removed(new_user: Callable[..., User], scratch: Path) -> None:
    user = new_user()
    facts = user.facts()
    leftover = folder_in(scratch) / "django-events-server-0-leftover"
    user.leave()
    wait_until_all_gone(facts, scratch)
    folder_in(scratch).mkdir(mode=0o700)
    leftover.mkdir()
    (leftover / "data").write_text("old")
    facts.write(folder_in(scratch))

    user = new_user()
    facts = user.facts()

    assert not leftover.exists()
    assert can_connect(facts)
    user.leave()
    wait_until_all_gone(facts, scratch)


def test_after_a_crash_the_next_join_starts_a_new_server(new_user: Callable[..., User], scratch: Path) -> None:
    user = new_user()
    old = user.facts()
    os.kill(old.postmaster, signal.SIGKILL)
    wait_for(lambda: not is_alive(old.watcher), "the watcher ends")
    assert not list(scratch.iterdir())

    new = user.join()

    assert new.postmaster != old.postmaster
    assert can_connect(new)
    user.leave()
    wait_until_all_gone(new, scratch)


def test_a_symbolic_link_in_the_folders_place_is_refused(new_user: Callable[..., User], scratch: Path) -> None:
    (scratch / "elsewhere").mkdir(mode=0o700)
    folder_in(scratch).symlink_to(scratch / "elsewhere")

    complaint = new_user().leave()

    assert f"{folder_in(scratch)} is a symbolic link; expected a folder of user" in complaint
    assert not list((scratch / "elsewhere").iterdir())


def test_a_folder_that_others_can_enter_is_refused(new_user: Callable[..., User], scratch: Path) -> None:
    folder_in(scratch).mkdir()
    folder_in(scratch).chmod(0o755)

    assert "is open to other users (mode 755); expected" in new_user().leave()
    assert not list(folder_in(scratch).iterdir())


@only_as_root
def test_a_folder_of_another_user_is_refused(new_user: Callable[..., User], scratch: Path) -> None:
    folder_in(scratch).mkdir(mode=0o700)
    os.chown(folder_in(scratch), 65534, 65534)

    assert "is a folder of user 65534; expected a folder of user 0" in new_user().leave()
    assert not list(folder_in(scratch).iterdir())


@only_as_root
def test_a_server_that_cannot_start_says_why(new_user: Callable[..., User], scratch: Path) -> None:
    scratch.chmod(0o700)

    complaints = [new_user(), new_user()]

    for user in complaints:
        complaint = user.leave()
        assert f"The user {server_account().name}, whom PostgreSQL runs as, cannot reach" in complaint
        assert "Set TMPDIR to a folder that all users may enter" in complaint
        assert "or set DATABASE_URL" in complaint
    wait_for(lambda: not list(scratch.iterdir()), f"nothing is left in {scratch}")


def test_no_other_user_can_read_anything(new_user: Callable[..., User], scratch: Path) -> None:
    new_user().facts()

    assert len(list(folder_in(scratch).rglob("*"))) > 100
    assert readable_for_others(folder_in(scratch)) == []


def test_the_password_is_required(new_user: Callable[..., User]) -> None:
    facts = new_user().facts()

    for wrong in ("", "wrong"):
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(dataclasses.replace(facts, password=wrong).url)


def test_the_server_listens_on_one_address_only(new_user: Callable[..., User]) -> None:
    with psycopg.connect(new_user().facts().url) as connection:
        row = connection.execute(
            "SELECT current_setting('listen_addresses'), current_setting('fsync'),"
            " current_setting('unix_socket_directories'), current_setting('server_encoding')"
        ).fetchone()

    assert row == ("127.0.0.1", "on", "", "UTF8")


@only_as_root
def test_an_ordinary_user_gets_a_server_of_its_own(new_user: Callable[..., User], scratch: Path) -> None:
    scratch.chmod(0o1777)
    user = new_user(**as_ordinary_user(scratch))
    facts = user.facts()

    assert can_connect(facts)
    owners = {path.lstat().st_uid for path in scratch.rglob("*")}
    assert owners == {65534}

    user.leave()
    wait_until_all_gone(facts, scratch)


@pytest.mark.parametrize("binaries", available_binaries(), ids=str)
def test_committed_rows_survive_an_immediate_stop(binaries: Path) -> None:
    with Server(binaries=binaries, options={"max_prepared_transactions": "10"}) as server:
        url = server.url
        with psycopg.connect(url) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 'é' AS letter")
            assert connection.execute("SHOW max_prepared_transactions").fetchone() == ("10",)
        server.stop("immediate")
        assert not server.running
        server.start()

        assert server.url == url
        with psycopg.connect(url) as connection:
            assert connection.execute("SELECT letter FROM kept").fetchone() == ("é",)
        server.restart()
        assert server.running
    assert not server.running
    assert not server.folder.exists()


def test_a_server_starts_again_after_its_postmaster_was_killed() -> None:
    with Server() as server, psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1")
        assert server.pid
        os.kill(server.pid, signal.SIGKILL)
        wait_for(lambda: not server.running, "the postmaster ends")
        server.start()

        with psycopg.connect(server.url) as again:
            assert again.execute("SELECT * FROM kept").fetchone() == (1,)


def test_a_server_takes_another_port_when_another_process_was_faster(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    free = server_module.choose_free_port()
    with socket.create_server(("127.0.0.1", 0)) as other:
        ports = iter([other.getsockname()[1], free])
        monkeypatch.setattr(server_module, "choose_free_port", lambda: next(ports))
        with Server() as server:
            assert server.port == free


def test_a_server_runs_from_a_copy_of_programs_that_it_cannot_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not (default_binaries().parent / "share" / "postgresql").is_dir():
        pytest.skip("there is no wheel with PostgreSQL's programs to copy")
    monkeypatch.setattr(server_module, "can_run", lambda *_: False)

    with Server() as server, psycopg.connect(server.url) as connection:
        row = connection.execute("SELECT setting FROM pg_config WHERE name = 'BINDIR'").fetchone()

        assert row
        assert row[0].startswith(str(server.folder))
        assert readable_for_others(server.folder) == []


def test_a_server_that_refuses_its_options_shows_its_log() -> None:
    server = Server(options={"shared_buffers": "plenty"})

    with pytest.raises(ServerError, match='invalid value for parameter "shared_buffers"'):
        server.__enter__()
    assert not server.folder.exists()


def test_a_server_ends_when_its_owner_is_killed(scratch: Path) -> None:
    owner = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from testproject.private_postgres.server import Server\n"
            "server = Server()\nserver.start()\nprint(server.pid, flush=True)\ninput()",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment_for(scratch),
    )
    with owner:
        assert owner.stdout
        postmaster = int(owner.stdout.readline())
        owner.kill()

    wait_for(lambda: not is_alive(postmaster), "the postmaster ends")
    wait_for(lambda: not list(scratch.iterdir()), f"nothing is left in {scratch}")


DJANGO_SETTINGS = """
SECRET_KEY = "for tests"
USE_TZ = True
INSTALLED_APPS = []
DATABASES = {"default": {"ENGINE": "testproject.private_postgres", "NAME": "postgres"}}
"""


def run_with_django(tmp_path: Path, scratch: Path, *arguments: str) -> str:
    (tmp_path / "tiny_settings.py").write_text(DJANGO_SETTINGS)
    search_path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    environment = environment_for(scratch, DJANGO_SETTINGS_MODULE="tiny_settings", PYTHONPATH=search_path)
    finished = subprocess.run(
        [sys.executable, *arguments],
        cwd=tmp_path,
        env={name: value for name, value in environment.items() if not name.startswith("PYTEST_")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=2 * SECONDS,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout
    return finished.stdout


def test_django_starts_the_server_at_the_first_connection(tmp_path: Path, scratch: Path) -> None:
    pytest.importorskip("django")
    code = f"""
import os, django
from django.db import connection
django.setup()
assert os.listdir({str(scratch)!r}) == []
with connection.cursor() as cursor:
    cursor.execute("SELECT current_database()")
    assert cursor.fetchone() == ("postgres",)
with connection._nodb_cursor() as cursor:
    cursor.execute("SELECT current_database()")
    assert cursor.fetchone() == ("postgres",)
assert os.listdir({str(scratch)!r}) == [{folder_in(scratch).name!r}]
print("connected")
"""

    assert "connected" in run_with_django(tmp_path, scratch, "-c", code)
    wait_for(lambda: not list(scratch.iterdir()), f"nothing is left in {scratch}")


def test_pytest_django_creates_its_databases(tmp_path: Path, scratch: Path) -> None:
    pytest.importorskip("pytest_django")
    pytest.importorskip("xdist")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_names.py").write_text(
        """
import pytest
from django.db import connection

@pytest.mark.django_db
@pytest.mark.parametrize("number", range(4))
def test_name(number, worker_id):
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_database()")
        assert cursor.fetchone() == (f"test_postgres_{worker_id}",)
"""
    )

    output = run_with_django(tmp_path, scratch, "-m", "pytest", "-n", "2")

    assert "4 passed" in output
    wait_for(lambda: not folder_in(scratch).exists(), "the server's folder is removed")
