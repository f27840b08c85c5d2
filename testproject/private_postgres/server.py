"""One PostgreSQL server in a folder of its own.

with Server(options={"max_prepared_transactions": "10"}) as server:
    psycopg.connect(server.url)
    server.stop("immediate")
    server.start()              # same data, same port, same password
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

from testproject.private_postgres.account import server_account
from testproject.private_postgres.binaries import (
    can_run,
    copy_binaries,
    default_binaries,
    major_version,
)
from testproject.private_postgres.errors import ServerError
from testproject.private_postgres.folder import (
    ensure_private_folder,
    last_lines,
    open_private_file,
)

FOLDER_PREFIX = "django-events-server-"
HOST = "127.0.0.1"
USER = "postgres"

# Below the ports that Linux and macOS give to outgoing connections: none of those can take the
# port while the server is down, not even a client that tries to reach it (a TCP self-connect).
PORTS = range(15_000, 32_000)

START_SECONDS = 60.0
STOP_SECONDS = 60.0
REMOVE_SECONDS = 5.0
POLL_SECONDS = 0.01

SETTINGS: Mapping[str, str] = {
    "listen_addresses": HOST,
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "128MB",
    "max_wal_size": "2GB",
    "log_timezone": "UTC",
    "timezone": "UTC",
    # Files in the data folder: a killed server leaves nothing in /dev/shm, which is small in
    # containers anyway.
    "dynamic_shared_memory_type": "mmap",
}

StopMode = Literal["fast", "immediate"]
STOP_SIGNALS: Mapping[StopMode, signal.Signals] = {
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}

# A process that ends postgres and removes its folder when the process that owns the server is
# gone, SIGKILL included: the pipe on its standard input ends then. Each line is the id of the
# program that runs now, empty for none; "end" is an orderly goodbye, because a forked child of
# the owner may keep the pipe open.
KEEPER = """
while read -r line; do
    [ "$line" = end ] && break
    pid=$line
done
if [ -n "$pid" ]; then
    kill -QUIT "$pid"
    tries=0
    while kill -0 "$pid" && [ $tries -lt 100 ]; do sleep 0.05; tries=$((tries + 1)); done
    kill -KILL "$pid"
fi
tries=0
while [ -e "$1" ] && [ $tries -lt 100 ]; do rm -rf -- "$1" || sleep 0.05; tries=$((tries + 1)); done
"""


class Server:
    """A PostgreSQL server on a free port of 127.0.0.1, in a folder that only we can read.

    `binaries` is the folder of its programs (see available_binaries), `options` its settings,
    `parent` where its folder goes: by default the system's folder for temporary files.
    """

    def __init__(
        self,
        *,
        binaries: Path | None = None,
        options: Mapping[str, str] | None = None,
        parent: Path | None = None,
    ) -> None:
        self.password = secrets.token_urlsafe(24)
        self.folder = (parent or Path(tempfile.gettempdir())) / (
            f"{FOLDER_PREFIX}{os.geteuid()}-{secrets.token_hex(8)}"
        )
        self._binaries = binaries or default_binaries()
        self._programs = self._binaries
        self._settings = {**SETTINGS, **(options or {})}
        self._account = server_account()
        self._port: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._keeper: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.remove()

    @property
    def port(self) -> int:
        if self._port is None:
            raise ServerError(f"The server in {self.folder} has no port yet: start() it first.")
        return self._port

    @property
    def url(self) -> str:
        return f"postgresql://{USER}:{self.password}@{HOST}:{self.port}/postgres"

    @property
    def pid(self) -> int | None:
        """The postmaster's process id; None while the server is down."""
        return self._process.pid if self._process and self._process.poll() is None else None

    @property
    def running(self) -> bool:
        return self.pid is not None

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def start(self) -> None:
        """Start the server and wait until it accepts connections; create it the first time.

        Does nothing when it runs. Data, port and password stay the same from start to start.
        """
        if self.running:
            return
        if not self._keeper:
            try:
                self._create()
            except BaseException:
                self.remove()
                raise
        deadline = time.monotonic() + START_SECONDS
        while True:
            port = self._port or choose_free_port()
            log_start = self.log.stat().st_size
            if self._launch(port, deadline):
                self._port = port
                return
            messages = self.log.read_bytes()[log_start:]
            if time.monotonic() < deadline:
                if b"could not bind" in messages and self._port is None:
                    continue
                # Backends of a postmaster that was killed need a moment to notice.
                if b"is still in use" in messages:
                    time.sleep(0.1)
                    continue
            raise self._failure(f"PostgreSQL did not start on port {port}")

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server and wait for its end; "immediate" is a crash, to be recovered from.

        Does nothing when it is down.
        """
        if not self._process:
            return
        if self.running:
            self._process.send_signal(STOP_SIGNALS[mode])
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            raise self._failure(f"PostgreSQL did not stop ({mode})") from None
        self._process = None
        self._tell_keeper("")

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start the server."""
        self.stop(mode)
        self.start()

    def remove(self) -> None:
        """End the server, however it is doing, and remove its folder."""
        if self._process:
            if self.running:
                self._process.send_signal(signal.SIGQUIT)
            try:
                self._process.wait(REMOVE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
            self._tell_keeper("")
        if self._keeper:
            self._free_shared_memory()
            self._tell_keeper("end")
            self._keeper.communicate()
            self._keeper = None
            shutil.rmtree(self.folder, ignore_errors=True)

    def _free_shared_memory(self) -> None:
        """Remove the segment that marks the data folder as in use; a killed postmaster leaves it."""
        with contextlib.suppress(FileNotFoundError, IndexError):
            segment = (self.data / "postmaster.pid").read_text().splitlines()[6].split()[1]
            subprocess.run(
                ["ipcrm", "-m", segment], stderr=subprocess.DEVNULL, check=False, **self._account.popen_arguments()
            )

    def _create(self) -> None:
        ensure_private_folder(self.folder)
        self._keeper = subprocess.Popen(
            ["/bin/sh", "-c", KEEPER, "keeper", self.folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
        os.close(open_private_file(self.log, os.O_WRONLY))
        self.data.mkdir(mode=0o700)
        self._account.give(self.data)
        self._refuse_unreachable_folder()
        self._programs = self._binaries
        if not can_run(self._binaries, self._account):
            self._programs = copy_binaries(self._binaries, self.folder / "binaries", self._account)
        self._initdb()

    def _refuse_unreachable_folder(self) -> None:
        reached = subprocess.run(
            ["/bin/sh", "-c", 'cd "$1"', "sh", self.data],
            stderr=subprocess.DEVNULL,
            cwd="/",
            check=False,
            **self._account.popen_arguments(),
        )
        if reached.returncode:
            raise ServerError(
                f"The user {self._account.name}, whom PostgreSQL runs as, cannot reach "
                f"{self.data}. Set TMPDIR to a folder that all users may enter, like /tmp."
            )

    def _initdb(self) -> None:
        password_file = self.folder / "password"
        with open(open_private_file(password_file, os.O_WRONLY), "w") as file:
            file.write(self.password)
        self._account.give(password_file)
        if major_version(self._programs) >= 17:
            locale = ["--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"]
        else:
            locale = ["--locale=C"]
        initdb = self._spawn(
            "initdb",
            f"--pgdata={self.data}",
            f"--username={USER}",
            f"--pwfile={password_file}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            *locale,
            "--no-sync",
            "--no-instructions",
        )
        if initdb.wait():
            raise self._failure("PostgreSQL's initdb failed")
        self._tell_keeper("")
        password_file.unlink()

    def _launch(self, port: int, deadline: float) -> bool:
        """Start the postmaster; whether it accepts connections, False when it ended instead."""
        settings = [f"--{name}={value}" for name, value in self._settings.items()]
        self._process = self._spawn("postgres", "-D", self.data, "-p", str(port), *settings)
        while self._process.poll() is None:
            if self._is_ready(self._process.pid):
                return True
            if time.monotonic() > deadline:
                self._process.kill()
            time.sleep(POLL_SECONDS)
        self._process = None
        self._tell_keeper("")
        return False

    def _is_ready(self, pid: int) -> bool:
        """Whether the postmaster says so in its pid file, where pg_ctl looks too."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) >= 8 and lines[0] == str(pid) and lines[7].strip() == "ready"

    def _spawn(self, program: str, *arguments: str | Path) -> subprocess.Popen[bytes]:
        with open(open_private_file(self.log, os.O_WRONLY | os.O_APPEND), "wb") as log:
            process = subprocess.Popen(
                [self._programs / program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=program_environment(),
                # Ctrl-C in the terminal is for the owner, who then decides about the server.
                start_new_session=True,
                umask=0o077,
                **self._account.popen_arguments(),
            )
        self._tell_keeper(str(process.pid))
        return process

    def _tell_keeper(self, line: str) -> None:
        if self._keeper and self._keeper.stdin:
            with contextlib.suppress(BrokenPipeError):
                self._keeper.stdin.write(f"{line}\n".encode())
                self._keeper.stdin.flush()

    def _failure(self, what: str) -> ServerError:
        return ServerError(
            f"{what} (programs in {self._programs}, data in {self.data}). "
            f"The last lines of its log:\n{last_lines(self.log)}"
        )


def choose_free_port() -> int:
    """A port that is free now; another process may take it before the server does."""
    for _ in range(100):
        port = secrets.choice(PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise ServerError(f"No free port found on {HOST} in 100 tries between {PORTS.start} and {PORTS.stop}.")


def program_environment() -> dict[str, str]:
    """Without the caller's PG* variables and locale; TZ spares initdb a search for the zone."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return {**kept, "LC_ALL": "C", "TZ": "UTC"}
