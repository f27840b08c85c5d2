"""Three NATS servers, each of which has a copy of each stream. What is killed, or freezes, is the one that leads."""

import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from testproject.private_postgres.server import choose_free_port
from tests.support.brokers import NATS, Nats
from tests.support.processes import wait_until

COPIES = 3
CONFIGURATION = """
server_name: "{name}"
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{folder}" }}
cluster {{ name: "tests", listen: "127.0.0.1:{route}", routes: [{routes}] }}
"""


class NatsCluster(Nats):
    """Servers that go on while one of them is away."""

    def __init__(self, folder: Path) -> None:
        self._ports = [choose_free_port() for _ in range(COPIES)]
        self._routes = [choose_free_port() for _ in range(COPIES)]
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        super().__init__(folder)
        self.port = self._ports[0]

    def start(self) -> None:
        """Start those that are not there."""
        assert NATS is not None
        routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in self._routes)
        for index, (port, route) in enumerate(zip(self._ports, self._routes, strict=True)):
            name = f"n{index}"
            if name in self._servers and self._servers[name].poll() is None:
                continue
            file, own = self.folder / f"{name}.conf", self.folder / name
            file.write_text(CONFIGURATION.format(name=name, port=port, folder=own, route=route, routes=routes))
            words = [NATS, "-c", str(file)]
            self._servers[name] = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self.answers, what="a cluster of NATS")

    def answers(self) -> bool:
        """Whether each stream has a leader, and all copies are up to date."""

        async def are_current(context: Any) -> bool:
            await context.account_info()
            told = [one.cluster for one in await context.streams_info()]
            return all(one.leader and all(copy.current for copy in one.replicas or ()) for one in told)

        for port in self._ports:
            self.port = port
            with suppress(Exception):
                return bool(self.ask(are_current))
        return False

    @property
    def options(self) -> dict[str, Any]:
        return {**self.at(self._ports[0]), "timeout": 3.0}

    def at(self, port: int) -> dict[str, Any]:
        """The first of them at another port."""
        return {"servers": [f"nats://127.0.0.1:{one}" for one in (port, *self._ports[1:])]}

    def add_stream(self, name: str, *subjects: str, **options: Any) -> None:
        super().add_stream(name, *subjects, num_replicas=COPIES, **options)
        wait_until(self.answers, what="copies of a stream")

    def kill(self) -> None:
        """Kill the server that leads a stream: another one leads it then."""
        leader = self._leader()
        leader.kill()
        leader.wait()

    def freeze(self) -> None:
        """Freeze the server that leads a stream, until `thaw`."""
        self._frozen = self._leader()
        self._frozen.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._frozen.send_signal(signal.SIGCONT)
        wait_until(self.answers, what="copies that are up to date")

    def _leader(self) -> "subprocess.Popen[bytes]":
        return self._servers[wait_until(self._leads, what="a server that leads a stream")]

    def _leads(self) -> str | None:
        """The name of the server that leads a stream; None while the others elect one."""

        async def find(context: Any) -> Any:
            return next((one.cluster.leader for one in await context.streams_info()), None)

        with suppress(Exception):
            return self.ask(find)
        return None

    def close(self) -> None:
        for server in self._servers.values():
            server.kill()
            server.wait()
