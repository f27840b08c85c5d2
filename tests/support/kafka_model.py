"""A Kafka of the tests' own, with transactions: `kafka_broker` in a process that a test kills, freezes and disturbs."""

import json
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from testproject.private_postgres.server import choose_free_port
from tests.support.brokers import CONSUMER, Entry, MockKafka
from tests.support.kafka_broker import CONTROL
from tests.support.processes import ROOT, freeze, wait_until


class Committed(NamedTuple):
    """A message as a consumer reads it that sees committed ones only."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


class ModelKafka(MockKafka):
    """One broker with a journal in a folder, on a port of its own: it keeps what it acknowledged over a kill.

    What it does wrong, or late, it is told while it runs; a start forgets that, but not how long markers take.
    """

    name = "kafka-transactions"
    WORDS = "ce_relay"  # of a batch on the wire
    may_double = False

    def __init__(self, folder: Path, *, partitions: int = 2, creates: bool = True) -> None:
        self.folder = folder
        self.port = choose_free_port()
        self.inner_port = choose_free_port()  # for a proxy, see `proxied_at`
        self.servers = f"127.0.0.1:{self.port}"
        self._proxy_port: int | None = None
        self._words = [
            str(self.port),
            str(self.inner_port),
            str(folder / "kafka.journal"),
            str(partitions),
            "yes" if creates else "no",
        ]
        self._producer: Any = None
        self.start()

    def start(self) -> None:
        """Start it, with all that its journal has."""
        told = str(self._proxy_port or self.inner_port)
        program = [sys.executable, "-m", "tests.support.kafka_broker", *self._words, told]
        self._process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "listening\n"

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def freeze(self) -> None:
        freeze(self._process)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        if self._process.poll() is None:
            self.kill()

    def at(self, port: int) -> dict[str, Any]:
        """Which of the options say that it is at another port."""
        return {"bootstrap.servers": f"127.0.0.1:{port}"}

    def proxied_at(self, port: int) -> None:
        """A proxy to the inner port is here: from now on those who come by that are told so."""
        self._proxy_port = port
        self._ask(proxied_at=port)

    def topic(self, name: str, *, partitions: int = 2, max_bytes: int = 1_048_588) -> None:
        """Make a topic, or change one: it may have more partitions, and take larger or smaller record batches."""
        self._ask(topic=name, partitions=partitions, max_bytes=max_bytes)

    def fault(self, effect: str, api: str | None = None, *, times: int = 1) -> None:
        """What happens to the next requests of a kind, like "EndTxn", or of any kind; to all of them by `times=-1`.

        - "lose": it is done, and the connection is closed without an answer.
        - "mute": it is done and not answered; "swallow": neither of both.
        - "cut": the connection is closed, and it isn't done.
        - "hold": it waits for `release()`, and is done then.
        - the name of an error, like "NOT_COORDINATOR": that is the answer, and it isn't done.

        Of several that fit, the first one that was told goes first.
        """
        self._ask(fault=effect, api=api, times=times)

    def release(self) -> None:
        """No faults from now on, and what is held is done."""
        self._ask(release=True)

    def delay_markers(self, seconds: float) -> None:
        """From now on a transaction whose end is decided, and answered, is complete so much later."""
        self._ask(markers_after=seconds)

    def wait_until_struck(self) -> None:
        """Until no fault is left for another request."""
        wait_until(lambda: not self._ask()["faults"], what="faults that struck")

    def wait_until_held(self, requests: int = 1) -> None:
        wait_until(lambda: self._ask()["held"] >= requests, what="requests that are held")

    def transaction(self, name: str) -> tuple[str, int] | None:
        """The state of a transactional id, like "open" or "committed", and its epoch."""
        known = self._ask()["transactions"].get(name)
        return (known[0], known[2]) if known else None

    def offsets(self, group: str) -> dict[tuple[str, int], tuple[int, str]]:
        """What a group has committed, with the text of each: by topic and partition.

        confluent-kafka sends the text with the zero byte behind it, and doesn't give that back.
        """
        return {(one[1], one[2]): (one[3], one[4].rstrip("\0")) for one in self._ask()["offsets"] if one[0] == group}

    def messages(self, *topics: str, committed: bool = True) -> list[Committed]:
        """All that is in these topics, or in all, partition by partition: without those of open and aborted ones."""
        from confluent_kafka import Consumer, KafkaError, TopicPartition

        level = "read_committed" if committed else "read_uncommitted"
        options = {"isolation.level": level, "enable.partition.eof": True, "check.crcs": True}
        consumer = Consumer({**CONSUMER, **options, "bootstrap.servers": self.servers})
        try:
            found: list[Committed] = []
            message: Any
            for name, topic in sorted(consumer.list_topics(timeout=10).topics.items()):
                for partition in sorted(topic.partitions if name in topics or not topics else ()):
                    consumer.assign([TopicPartition(name, partition, 0)])
                    while (message := consumer.poll(10)) is not None and message.error() is None:
                        read: Any = (message.offset(), message.key(), message.value(), message.headers() or [])
                        found.append(Committed(name, partition, *read))
                    assert message is not None
                    assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
            return found
        finally:
            consumer.close()

    def entries(self, topic: str = "parcels") -> list[Entry]:
        """What is committed in a topic, partition by partition."""
        found = []
        for message in self.messages(topic):
            headers = {name: value.decode() for name, value in message.headers}
            data = None if message.value is None else message.value.decode(errors="replace")
            key = (message.key or b"").decode()
            log = f"{topic}/{message.partition}"
            found.append(Entry(log, headers["ce_id"], {**headers, "key": key}, data, key))
        return found

    def _ask(self, **request: Any) -> Any:
        frame = struct.pack(">hhi", CONTROL, 0, 0) + json.dumps(request).encode()
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            connection.sendall(struct.pack(">i", len(frame)) + frame)
            with connection.makefile("rb") as answers:
                return json.loads(answers.read(int.from_bytes(answers.read(4)))[4:])
