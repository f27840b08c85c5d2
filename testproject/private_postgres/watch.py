"""The process that owns the shared server: `python -m testproject.private_postgres.watch <folder>`.

It inherits the watcher's lock from the user that launched it (see shared) and keeps it. It ends
when the last user is gone or the server has crashed, and removes everything then. When it is
killed itself, the server's keeper ends the server, and the next start removes the rest.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from testproject.private_postgres.folder import open_private_file
from testproject.private_postgres.server import HOST, USER, Server
from testproject.private_postgres.shared import Facts

POLL_SECONDS = 0.05


def watch(folder: Path) -> None:
    """Run the server of `folder` for as long as it has users."""
    users = open_private_file(folder / "users", os.O_RDWR)
    with contextlib.ExitStack() as leaving:
        leaving.callback(remove, folder)
        try:
            server = leaving.enter_context(Server(parent=folder))
        except Exception as error:
            # Users that read it leave; the last one gone, another try starts from nothing.
            Facts(watcher=os.getpid(), error=str(error)).write(folder)
            wait_until(lambda: is_unused(users))
        else:
            leaving.callback(Facts.retract, folder)
            facts_of(server).write(folder)
            wait_until(lambda: is_unused(users) or not server.running)


def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(POLL_SECONDS)


def facts_of(server: Server) -> Facts:
    return Facts(
        watcher=os.getpid(),
        host=HOST,
        port=server.port,
        user=USER,
        password=server.password,
        postmaster=server.pid or 0,
    )


def is_unused(users: int) -> bool:
    """Whether no user holds its lock any more; then ours keeps newcomers out."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def remove(folder: Path) -> None:
    """Remove the folder; renamed first, so that no newcomer moves into it meanwhile."""
    doomed = folder.with_name(f"{folder.name}-{secrets.token_hex(4)}")
    with contextlib.suppress(FileNotFoundError):
        folder.rename(doomed)
        shutil.rmtree(doomed)


def main(folder: str) -> None:
    # No child of the process that started us: it need not wait for us, and leaves no zombie.
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    watch(Path(folder))


if __name__ == "__main__":
    main(sys.argv[1])
