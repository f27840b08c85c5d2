"""A Redis of the test's own, which keeps what it accepted over a kill."""

import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from testproject.private_postgres.server import choose_free_port
from tests.support.processes import wait_until

REDIS = shutil.which("redis-server", path="/usr/bin:/usr/local/bin:/opt/homebrew/bin")


class Redis:
    """A server in a folder, on a port of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = choose_free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        assert REDIS is not None
        options = {
            "port": self.port,
            "bind": "127.0.0.1",
            "dir": self.folder,
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
        }
        command = [REDIS, *(word for name, value in options.items() for word in (f"--{name}", str(value)))]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self.answers, what="Redis")

    def answers(self) -> bool:
        from redis.exceptions import RedisError

        try:
            with self.client() as client:
                return bool(client.ping())
        except RedisError:  # also while it reads its file
            return False

    def client(self) -> Any:
        from redis import Redis as Client

        return Client.from_url(self.url, decode_responses=True)

    def wait_until_unacknowledged_for(self, *, seconds: float) -> None:
        """Until Celery's tasks that no worker acknowledged have been out for so long."""

        def long_enough() -> bool:
            with self.client() as client:
                out = client.zrange("unacked_index", 0, -1, withscores=True)
            return bool(out) and all(since + seconds < time.time() for _, since in out)

        wait_until(long_enough, what="tasks that come back")

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
