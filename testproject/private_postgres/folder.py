"""Folders and files that no other user can read, in a place where all can write."""

import os
import stat
from pathlib import Path

from testproject.private_postgres.account import server_account
from testproject.private_postgres.errors import ServerError

# What account.let_traverse() gives: everything for the owner, passage for one group.
ALLOWED_MODE = 0o710


def ensure_private_folder(path: Path) -> None:
    """Create `path`, or check that what is there is a folder that only we could have filled."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        refuse_foreign_folder(path)
    server_account().let_traverse(path)


def refuse_foreign_folder(path: Path) -> None:
    """Raise ServerError unless `path` itself is a folder of ours that no other user can enter."""
    facts = path.lstat()
    if stat.S_ISLNK(facts.st_mode):
        found = "a symbolic link"
    elif not stat.S_ISDIR(facts.st_mode):
        found = "not a folder"
    elif facts.st_uid != os.geteuid():
        found = f"a folder of user {facts.st_uid}"
    elif stat.S_IMODE(facts.st_mode) & ~ALLOWED_MODE:
        found = f"open to other users (mode {stat.S_IMODE(facts.st_mode):o})"
    else:
        return
    raise ServerError(
        f"{path} is {found}; expected a folder of user {os.geteuid()} with mode 700. "
        "Remove it, or set TMPDIR to a folder of your own."
    )


def open_private_file(path: Path, flags: int) -> int:
    """Open a file that only we can read; the descriptor is not inherited by other programs."""
    return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def last_lines(path: Path, count: int = 20) -> str:
    """The end of a log file; empty when it cannot be read."""
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-count:])
    except OSError:
        return ""
