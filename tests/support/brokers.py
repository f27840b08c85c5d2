"""Brokers of the test's own, which keep what they accepted over a kill."""

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from testproject.private_postgres.server import choose_free_port
from tests.support.processes import wait_until

REDIS = shutil.which("redis-server", path="/usr/bin:/usr/local/bin:/opt/homebrew/bin")
NATS = shutil.which("nats-server", path="/usr/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/bin")
CONSUMER = {"group.id": "tests", "log_level": 0, "fetch.wait.max.ms": 10}  # of Kafka, for a short look
T = TypeVar("T")


class Entry(NamedTuple):
    """A message as a reader of the broker finds it."""

    log: str  # the stream, or the topic and its partition
    address: str
    attributes: dict[str, str]
    data: str | None
    id: str

    @property
    def event_id(self) -> int:
        return int(self.address.rpartition("/")[2])


class Redis:
    """A server in a folder, on a port of its own."""

    name = "redis"
    WORDS = "EXEC"  # the last of a batch on the wire
    may_double = False

    def __init__(self, folder: Path, **more: Any) -> None:
        self.folder = folder
        self.more = more  # options of the server
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
            **self.more,
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

    @property
    def options(self) -> dict[str, Any]:
        """As the settings have them."""
        return {"host": "127.0.0.1", "port": self.port, "socket_timeout": 3.0}

    def at(self, port: int) -> dict[str, Any]:
        """Which of the options say that it is at another port."""
        return {"port": port}

    def client(self) -> Any:
        from redis import Redis as Client

        return Client.from_url(self.url, decode_responses=True, encoding_errors="replace")

    def entries(self, pattern: str = "*") -> list["Entry"]:
        """All that is in streams whose names match, stream by stream."""
        with self.client() as client:
            return [
                Entry(stream, fields["ce_id"], fields, fields["data"], entry_id)
                for stream in sorted(client.scan_iter(pattern, _type="stream"))
                for entry_id, fields in client.xrange(stream)
            ]

    def clear(self) -> None:
        with self.client() as client:
            client.flushall()

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.thaw()
            self.kill()

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


class Nats:
    """A server with JetStream in a folder, on a port of its own."""

    name = "nats"
    WORDS = "Nats-Msg-Id"
    may_double = False

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.login: dict[str, Any] = {}  # as the client takes it
        self.port = choose_free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()
        for partition in (0, 1):
            self.add_stream(f"PARCELS-{partition}", f"parcels.{partition}")

    def start(self) -> None:
        self.launch()
        wait_until(self.answers, what="NATS")

    def launch(self, *words: str) -> None:
        """Start it with more words on its command line; it may not answer yet."""
        assert NATS is not None
        command = [NATS, "-a", "127.0.0.1", "-p", str(self.port), "-js", "-sd", str(self.folder / "jetstream"), *words]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def answers(self) -> bool:
        try:
            self.ask(lambda context: context.account_info())
        except Exception:
            return False
        return True

    @property
    def options(self) -> dict[str, Any]:
        """As the settings have them."""
        return {"servers": [f"nats://127.0.0.1:{self.port}"], "timeout": 3.0}

    def at(self, port: int) -> dict[str, Any]:
        """Which of the options say that it is at another port."""
        return {"servers": [f"nats://127.0.0.1:{port}"]}

    def ask(self, question: Callable[[Any], Awaitable[T]]) -> T:
        """What JetStream answers on a connection for this question."""
        import nats

        async def ignore(error: Exception) -> None:
            pass

        async def answer() -> T:
            connection = await nats.connect(
                f"nats://127.0.0.1:{self.port}",
                **{"allow_reconnect": False, "error_cb": ignore, "connect_timeout": 2, **self.login},
            )
            try:
                return await question(connection.jetstream())
            finally:
                await connection.close()

        return asyncio.run(answer())

    def add_stream(self, name: str, *subjects: str, **options: Any) -> None:
        self.ask(lambda context: context.add_stream(name=name, subjects=list(subjects), **options))

    def publish(self, subject: str, body: bytes = b"", **headers: str) -> None:
        self.ask(lambda context: context.publish(subject, body, headers=headers or None))

    def entries(self, prefix: str = "") -> list[Entry]:
        """All that is in streams whose names begin so, stream by stream."""

        async def read(context: Any) -> list[Entry]:
            found = []
            for info in sorted(await context.streams_info(), key=lambda one: one.config.name):
                if info.config.name.startswith(prefix):
                    for sequence in range(info.state.first_seq, info.state.last_seq + 1):
                        message = await context.get_msg(info.config.name, seq=sequence)
                        headers, data = message.headers, (message.data or b"").decode(errors="replace")
                        found.append(Entry(info.config.name, headers["ce-id"], headers, data, message.subject))
            return found

        return self.ask(read)

    def clear(self) -> None:
        async def delete(context: Any) -> None:
            for info in await context.streams_info():
                await context.delete_stream(info.config.name)

        self.ask(delete)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self.kill()


class MockKafka:
    """librdkafka's own cluster, in a process: it can be frozen, but forgets all when it ends."""

    name = "kafka"
    WORDS: str | None = None  # its brokers say their own ports, so no proxy can be in between
    may_double = True
    port = 0

    def __init__(self, folder: Path) -> None:
        program = [sys.executable, "-m", "tests.support.mock_kafka"]
        self._process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.servers = self._process.stdout.readline().strip()
        self._producer: Any = None

    @property
    def options(self) -> dict[str, Any]:
        """As the settings have them."""
        return {"bootstrap.servers": self.servers, "timeout": 3.0}

    def at(self, port: int) -> dict[str, Any]:
        """There is no other port."""
        return {}

    def entries(self, topic: str = "parcels") -> list[Entry]:
        """All that is in a topic, partition by partition."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({**CONSUMER, "bootstrap.servers": self.servers})
        try:
            found = []
            for partition in sorted(consumer.list_topics(topic, timeout=10).topics[topic].partitions):
                _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
                consumer.assign([TopicPartition(topic, partition, 0)])
                read = 0
                while read < end:
                    message = consumer.poll(10)
                    assert message is not None and message.error() is None
                    read = message.offset() + 1
                    headers = {name: value.decode() for name, value in message.headers()}
                    data = None if message.value() is None else message.value().decode(errors="replace")
                    key = (message.key() or b"").decode()
                    found.append(Entry(f"{topic}/{partition}", headers["ce_id"], {**headers, "key": key}, data, key))
            return found
        finally:
            consumer.close()

    def publish(
        self,
        topic: str,
        bodies: Sequence[bytes | None],
        *,
        key: str | bytes | None = None,
        partition: int | None = None,
        headers: Sequence[tuple[str, bytes]] = (),
        time: int = 0,
    ) -> None:
        """Messages in this order, by milliseconds of a time or now."""
        from confluent_kafka import Producer

        refused: list[Any] = []
        if self._producer is None:
            self._producer = Producer({"bootstrap.servers": self.servers, "log_level": 0, "enable.idempotence": True})
        for body in bodies:
            self._producer.produce(
                topic,
                body,
                key=key,
                headers=[*headers],
                timestamp=time,
                partition=-1 if partition is None else partition,
                on_delivery=lambda error, _: refused.append(error) if error else None,
            )
        assert self._producer.flush(20) == 0
        assert refused == []

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has."""
        from confluent_kafka.admin import AdminClient

        client = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        return len(client.list_topics(topic, timeout=10).topics[topic].partitions)

    def watermarks(self, topic: str, partition: int) -> tuple[int, int]:
        """The offset of the first message of a partition, and the one behind the last."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({**CONSUMER, "bootstrap.servers": self.servers})
        try:
            first, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=10)
            return first, end
        finally:
            consumer.close()

    def kill(self) -> None:
        """Freeze it."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)

    def start(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
