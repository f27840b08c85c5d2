"""The private server that all processes of one OS user and checkout share.

    facts = shared_server.join()        # starts it if needed; we are a user until we end

Its folder holds, besides the server's own:

    users    every user holds a shared lock on it for its life, so the kernel keeps the count,
             SIGKILL included; forked children share the lock and count too
    watcher  the watcher holds an exclusive lock on it for its life; only who holds that lock
             changes the folder
    facts    how to connect, or why the server could not start; written by the watcher
    log      what the watcher had to say

A lock counts only while its file is still the one at its path: an ending watcher renames the
folder away.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from testproject.private_postgres.errors import ServerError
from testproject.private_postgres.folder import (
    ensure_private_folder,
    last_lines,
    open_private_file,
)
from testproject.private_postgres.server import FOLDER_PREFIX

CHECKOUT = Path(__file__).resolve().parents[2]
JOIN_SECONDS = 60.0
POLL_SECONDS = 0.02
WATCHER = "testproject.private_postgres.watch"
WAY_OUT = "Fix what it says, or set DATABASE_URL to use a PostgreSQL server of your own."


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What the watcher tells its users."""

    watcher: int
    error: str = ""
    host: str = ""
    port: int = 0
    user: str = ""
    password: str = ""
    postmaster: int = 0

    @property
    def url(self) -> str:
        return f"postgresql://{self.user}:{self.password}@{self.host}:{self.port}/postgres"

    def write(self, folder: Path) -> None:
        """Publish these facts at once, never half of them."""
        draft = folder / "facts.draft"
        with open(open_private_file(draft, os.O_WRONLY | os.O_TRUNC), "w") as file:
            json.dump(dataclasses.asdict(self), file)
        draft.rename(folder / "facts")

    @staticmethod
    def retract(folder: Path) -> None:
        """Let no process join any more; before the server goes, so that none joins a dead one."""
        (folder / "facts").unlink(missing_ok=True)

    @classmethod
    def read(cls, folder: Path) -> "Facts | None":
        """The facts of a watcher that lives; None while there are none."""
        try:
            facts = cls(**json.loads((folder / "facts").read_text()))
            os.kill(facts.watcher, 0)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return None
        return facts


class SharedServer:
    """This process's part in the server of `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._users: int | None = None
        # Held while joining, and taken around a fork: no child starts life in half a join.
        self._joining = threading.Lock()
        os.register_at_fork(
            before=self._joining.acquire,
            after_in_parent=self._joining.release,
            after_in_child=self._joining.release,
        )

    def join(self) -> Facts:
        """Become a user of the server until this process ends, and learn how to connect to it.

        Starts the server if there is none. Repeat it before every new connection: it is cheap,
        and finds a new server when the old one crashed.
        """
        with self._joining:
            try:
                facts = self._wait_for_facts()
            except BaseException:
                self._leave()
                raise
            if facts.error:
                self._leave()
                raise ServerError(f"{facts.error}\n{WAY_OUT}")
            return facts

    def _wait_for_facts(self) -> Facts:
        deadline = time.monotonic() + JOIN_SECONDS
        launched = False
        while time.monotonic() < deadline:
            # The folder goes away between two steps when its watcher ends: begin again.
            with contextlib.suppress(FileNotFoundError):
                ensure_private_folder(self.folder)
                if self._is_counted():
                    watcher = take_lock(self.folder / "watcher", fcntl.LOCK_EX)
                    if watcher is None:
                        if facts := Facts.read(self.folder):
                            return facts
                    elif launched:
                        os.close(watcher)
                        raise self._failure("ended before it was ready")
                    else:
                        launched = True
                        self._launch_watcher(watcher)
            time.sleep(POLL_SECONDS)
        raise self._failure(f"was not ready within {JOIN_SECONDS:.0f} seconds")

    def _is_counted(self) -> bool:
        """Whether we are a user of the current server, which we try to become."""
        users = self.folder / "users"
        if self._users is None or not is_current(self._users, users):
            self._leave()
            self._users = take_lock(users, fcntl.LOCK_SH)
        return self._users is not None

    def _leave(self) -> None:
        if self._users is not None:
            os.close(self._users)
            self._users = None

    def _launch_watcher(self, lock: int) -> None:
        """Start a watcher, which inherits its lock from us, on a folder without leftovers."""
        try:
            clear(self.folder)
            search_path = os.pathsep.join(filter(None, [str(CHECKOUT), os.environ.get("PYTHONPATH")]))
            with open(open_private_file(self.folder / "log", os.O_WRONLY), "wb") as log:
                launched = subprocess.run(
                    [sys.executable, "-m", WATCHER, self.folder],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    env={**os.environ, "PYTHONPATH": search_path},
                    start_new_session=True,
                    check=False,
                    pass_fds=(lock,),
                )
        finally:
            os.close(lock)
        if launched.returncode:
            raise self._failure(f"could not be launched (exit status {launched.returncode})")

    def _failure(self, what: str) -> ServerError:
        logs = [self.folder / "log", *self.folder.glob("*/log")]
        lines = "\n".join(filter(None, map(last_lines, logs)))
        return ServerError(
            f"The private PostgreSQL in {self.folder} {what}. The last lines of its log:\n{lines}\n{WAY_OUT}"
        )


def take_lock(path: Path, kind: int) -> int | None:
    """Lock the file at `path`: the descriptor that holds the lock, None when others do."""
    descriptor = open_private_file(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    if is_current(descriptor, path):
        return descriptor
    os.close(descriptor)
    return None


def is_current(descriptor: int, path: Path) -> bool:
    """Whether the open file is still the one at `path`."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def clear(folder: Path) -> None:
    """Remove what a killed watcher left."""
    Facts.retract(folder)
    for name in ("facts.draft", "log"):
        (folder / name).unlink(missing_ok=True)
    for leftover in folder.glob(f"{FOLDER_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def shared_folder() -> Path:
    """One per OS user and checkout, in the folder for temporary files (TMPDIR)."""
    checkout = hashlib.sha256(os.fsencode(CHECKOUT)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"django-events-{os.geteuid()}-{checkout}"


shared_server = SharedServer(shared_folder())
