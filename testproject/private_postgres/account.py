"""The OS user that a server runs as: PostgreSQL refuses to run as root."""

import os
import pwd
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testproject.private_postgres.errors import ServerError

STAND_INS_FOR_ROOT = ("postgres", "nobody")


@dataclass(frozen=True, kw_only=True)
class Account:
    """A user, and whether programs must be switched to it."""

    name: str
    uid: int
    gid: int
    switch: bool

    def popen_arguments(self) -> dict[str, Any]:
        """Arguments for subprocess that run a program as this user, with its groups only."""
        if not self.switch:
            return {}
        groups = os.getgrouplist(self.name, self.gid)
        return {"user": self.uid, "group": self.gid, "extra_groups": groups}

    def let_traverse(self, folder: Path) -> None:
        """Let this user, through its group, reach what it owns in `folder`; not list or read it."""
        if self.switch:
            os.chown(folder, -1, self.gid)
            folder.chmod(0o710)

    def give(self, path: Path) -> None:
        """Make this user the owner of `path` and of everything below it."""
        if not self.switch:
            return
        for parent, folders, files in os.walk(path, topdown=False):
            for name in (*folders, *files):
                os.lchown(Path(parent, name), self.uid, self.gid)
        os.lchown(path, self.uid, self.gid)


def server_account() -> Account:
    """Who servers of this process run as: this process's own user, or a stand-in for root."""
    uid = os.geteuid()
    if uid != 0:
        return Account(name=str(uid), uid=uid, gid=os.getegid(), switch=False)
    for name in STAND_INS_FOR_ROOT:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name=name, uid=entry.pw_uid, gid=entry.pw_gid, switch=True)
    raise ServerError(
        "PostgreSQL refuses to run as root, and there is no user "
        f"{' or '.join(STAND_INS_FOR_ROOT)} to run it as. Work as an ordinary user."
    )
