"""A RabbitMQ of the test's own, with an epmd of its own, so that nothing is left when it ends."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import trustme

from testproject.private_postgres.server import choose_free_port
from tests.support.brokers import Entry
from tests.support.processes import wait_until

# Debian's wrapper in /usr/sbin would become another user.
SERVER = shutil.which("rabbitmq-server", path="/usr/lib/rabbitmq/bin:/opt/homebrew/sbin")
EPMD = shutil.which("epmd", path="/usr/bin:/usr/lib/erlang/bin:/opt/homebrew/bin")
RABBITMQ = SERVER if EPMD else None
KEPT = "parcels"  # a queue for all tests: a server that is killed may lose one that it just made


class RabbitMQ:
    """A server in a folder, on ports of its own."""

    name = "rabbitmq"
    WORDS = "cloudEvents:id"
    may_double = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "rabbitmq"
        self.folder.mkdir()
        self.port, self.tls_port, self._distribution, self._names = (choose_free_port() for _ in range(4))
        self._process: subprocess.Popen[bytes] | None = None
        assert EPMD is not None
        self._epmd = subprocess.Popen(
            [EPMD, "-port", str(self._names), "-address", "127.0.0.1"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._read: list[Entry] = []
        self._queues: set[str] = set()  # and exchanges, that were declared since it forgot them
        self._exchanges: set[str] = set()
        self.authority = self.folder / "authority.pem"
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(self.authority))
        authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(self.folder / "server.pem"))
        self.start()
        self.declare(KEPT)

    def start(self) -> None:
        assert SERVER is not None
        folder = self.folder
        (folder / "plugins").write_text("[].")
        (folder / "rabbitmq.conf").write_text(
            f"listeners.tcp.default = 127.0.0.1:{self.port}\n"
            f"listeners.ssl.default = 127.0.0.1:{self.tls_port}\n"
            f"ssl_options.certfile = {folder / 'server.pem'}\n"
            f"ssl_options.keyfile = {folder / 'server.pem'}\n"
            "disk_free_limit.absolute = 1MB\n"
            "max_message_size = 200000\n"
            "log.file.level = warning\n"
        )
        variables = {
            "HOME": folder,  # where the cookie is
            "ERL_EPMD_PORT": self._names,
            "RABBITMQ_NODENAME": f"rabbit{self.port}@localhost",
            "RABBITMQ_DIST_PORT": self._distribution,
            "RABBITMQ_MNESIA_BASE": folder / "data",
            "RABBITMQ_LOG_BASE": folder / "log",
            "RABBITMQ_CONFIG_FILE": folder / "rabbitmq",
            "RABBITMQ_ENABLED_PLUGINS_FILE": folder / "plugins",
            "RABBITMQ_PID_FILE": folder / "pid",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1 +sbwt none",
            "RABBITMQ_ALLOW_INPUT": "",
            "RUNNING_UNDER_SYSTEMD": "1",  # the process is Erlang's, and no shell in front of it
        }
        self._process = subprocess.Popen(
            [SERVER],
            env={**os.environ, **{name: str(value) for name, value in variables.items()}},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        wait_until(self.answers, what="RabbitMQ")

    def answers(self) -> bool:
        import amqp

        try:
            self.connection().close()
        except (OSError, amqp.AMQPError):
            return False
        return True

    @property
    def options(self) -> dict[str, Any]:
        """As the settings have them."""
        return {"host": f"127.0.0.1:{self.port}", "timeout": 3.0}

    def at(self, port: int) -> dict[str, Any]:
        """Which of the options say that it is at another port."""
        return {"host": f"127.0.0.1:{port}"}

    def connection(self) -> Any:
        import amqp

        connection = amqp.Connection(host=f"127.0.0.1:{self.port}", connect_timeout=3)
        connection.connect()
        return connection

    def declare(self, queue: str, *, kind: str = "quorum", exchange: str = "", key: str = "", **arguments: Any) -> None:
        """A queue, and an exchange that sends to it."""
        self._queues |= {queue} - {KEPT}
        self._exchanges |= {exchange} - {""}
        with closing(self.connection()) as connection:
            channel = connection.channel()
            channel.queue_declare(queue, durable=True, auto_delete=False, arguments={"x-queue-type": kind, **arguments})
            if exchange:
                channel.exchange_declare(exchange, "topic", durable=True, auto_delete=False)
                channel.queue_bind(queue, exchange, key)

    def bind(self, queue: str, exchange: str, key: str) -> None:
        with closing(self.connection()) as connection:
            connection.channel().queue_bind(queue, exchange, key)

    def unbind(self, queue: str, exchange: str, key: str) -> None:
        with closing(self.connection()) as connection:
            connection.channel().queue_unbind(queue, exchange, key)

    def remove(self, queue: str) -> None:
        with closing(self.connection()) as connection:
            connection.channel().queue_delete(queue)

    def control(self, *words: str) -> str:
        """What an operator tells it, by the protocol of Erlang's nodes."""
        assert SERVER is not None
        program = Path(SERVER).with_name("rabbitmqctl")
        done = subprocess.run(
            [program, "--node", f"rabbit{self.port}@localhost", *words],
            env={**os.environ, "HOME": str(self.folder), "ERL_EPMD_PORT": str(self._names)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def publish(self, queue: str, *bodies: bytes, **properties: Any) -> None:
        import amqp

        with closing(self.connection()) as connection:
            channel = connection.channel()
            for body in bodies:
                channel.basic_publish(amqp.Message(body, delivery_mode=2, **properties), "", queue)

    def put(self, queue: str, bodies: Iterable[bytes], *, name: str = "letter") -> None:
        """Messages with these bodies, each of which is confirmed and has a name of its own."""
        import amqp

        with closing(amqp.Connection(host=f"127.0.0.1:{self.port}", confirm_publish=True)) as connection:
            connection.connect()
            channel = connection.channel()
            for body in bodies:
                named = f"{name} {body.decode('latin-1')}"
                channel.basic_publish(amqp.Message(body, delivery_mode=2, message_id=named), "", queue)

    def send_letters(self, numbers: Iterable[int]) -> None:
        """Messages with these numbers."""
        self.put("letters", [str(number).encode() for number in numbers])

    def entries(self, queue: str = KEPT) -> list[Entry]:
        """All that was ever found in a queue. It is empty then."""
        wait_until(lambda: self._empty(queue), what="a queue that has found its messages again")
        return self._read

    def _empty(self, queue: str) -> bool:
        import amqp

        try:
            with closing(self.connection()) as connection:
                channel = connection.channel()
                channel.auto_decode = False
                while (found := channel.basic_get(queue, no_ack=True)) is not None:
                    self._read.append(_entry(queue, found))
        except amqp.InternalError:  # the queue has no process yet
            return False
        return True

    def stream(self, queue: str, count: int) -> list[str]:
        """The addresses of the first messages in a stream, which keeps them."""
        found: list[str] = []
        with closing(self.connection()) as connection:
            channel = connection.channel()
            channel.basic_qos(0, count, False)
            channel.basic_consume(
                queue,
                callback=lambda message: found.append(message.properties["message_id"]),
                arguments={"x-stream-offset": "first"},
            )
            while len(found) < count:
                connection.drain_events(timeout=30)
        return found

    def clear(self) -> None:
        """What was found in queues is not found any more."""
        self._read = []

    def forget(self) -> None:
        """One empty queue is there: what another test has left under a name may be of another kind, and not empty."""
        import amqp

        try:
            self.declare(KEPT)
            wait_until(lambda: self._empty(KEPT), seconds=30, what="the queue that is kept")
            with closing(self.connection()) as connection:
                channel = connection.channel()
                for queue in self._queues:
                    channel.queue_delete(queue)
                for exchange in self._exchanges:
                    channel.exchange_delete(exchange)
        except (AssertionError, OSError, amqp.AMQPError):  # one that was killed has not found all of its queues again
            self.kill()
            shutil.rmtree(self.folder / "data")
            self.start()
            self.declare(KEPT)
        self._queues, self._exchanges = set(), set()

    def kill(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def freeze(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()
        self._epmd.kill()
        self._epmd.wait()


def _entry(queue: str, found: Any) -> Entry:
    headers = dict(found.properties["application_headers"])
    headers |= {"content-type": found.properties["content_type"], "delivery_mode": found.properties["delivery_mode"]}
    return Entry(queue, found.properties["message_id"], headers, bytes(found.body).decode(), str(found.delivery_info))
