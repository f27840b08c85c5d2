"""One Kafka broker, as a process: it has transactions, and what it acknowledged is still there after a kill.

    python -m tests.support.kafka_broker PORT INNER_PORT JOURNAL PARTITIONS CREATES PROXIED_AT

It listens at two ports, and says to who comes by one of them that it is there, as Kafka's listeners do. The inner one
is for a proxy: who comes by that is told the proxy's port, so that all connections of a client lead through it.

A journal has each request that changes something, with its time, ahead of its answer; a start repeats them all. A test
tells it by the same port what is to go wrong, in requests of its own (`CONTROL`): see `kafka_model`.
"""

import asyncio
import json
import struct
import sys
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any

from tests.support.kafka_wire import (
    API_VERSIONS,
    APIS,
    BATCH,
    NAMES,
    TRANSACTIONAL,
    BatchHeader,
    ErrorCode,
    WireReader,
    encode,
    marker,
)

CONTROL = 1_000  # the key of a request from a test: JSON in, JSON out
NODE = 1
LONGEST_TEXT = 4_096  # beside an offset
LONGEST_TIMEOUT = 900_000  # milliseconds, of a transaction
# Requests whose repetition gives the state: the others only ask.
CHANGING = {
    "Produce",
    "Metadata",
    "OffsetCommit",
    "InitProducerId",
    "AddPartitionsToTxn",
    "AddOffsetsToTxn",
    "EndTxn",
    "TxnOffsetCommit",
}
FEATURES = {"Produce": 3, "Fetch": 4}  # the oldest version of others is said to be 0: clients look for that


class RequestRefused(Exception):
    """A request, or its part about one partition, is answered by an error."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


@dataclass
class PartitionProducer:
    """What a partition knows of one producer: its epoch, and its last batches by their sequence numbers."""

    epoch: int
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=5))


@dataclass
class PartitionLog:
    """Record batches as they came, by their offsets."""

    batches: list[tuple[int, bytes]] = field(default_factory=list)  # with the offset behind each
    end: int = 0
    producers: dict[int, PartitionProducer] = field(default_factory=dict)
    begun: dict[int, int] = field(default_factory=dict)  # the first offset of each open transaction
    aborted: list[tuple[int, int, int]] = field(default_factory=list)  # producer, first offset, its marker's

    @property
    def stable_end(self) -> int:
        return min(self.begun.values(), default=self.end)

    def append(self, batch: bytes, count: int) -> int:
        first, self.end = self.end, self.end + count
        self.batches.append((self.end, struct.pack(">q", first) + batch[8:]))
        return first

    def take(self, batch: bytes, header: BatchHeader) -> int:
        """Append a producer's batch, unless it is there already; its first offset."""
        if header.producer_id < 0:
            return self.append(batch, header.last_offset_delta + 1)
        transactional = header.attributes & TRANSACTIONAL
        known = self.producers.get(header.producer_id)
        if known is not None and header.epoch < known.epoch:
            raise RequestRefused(ErrorCode.INVALID_PRODUCER_EPOCH)
        anywhere = known is None and not transactional  # as after a partition has forgotten a producer
        if known is None or header.epoch > known.epoch:
            known = PartitionProducer(header.epoch)
        for first_sequence, last_sequence, offset in known.batches:
            if (first_sequence, last_sequence) == (header.base_sequence, header.last_sequence):
                return offset
        newest = known.batches[-1][1] if known.batches else -1
        if not anywhere and header.base_sequence != (newest + 1) & 0x7FFFFFFF:
            raise RequestRefused(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
        offset = self.append(batch, header.last_offset_delta + 1)
        self.producers[header.producer_id] = known
        known.batches.append((header.base_sequence, header.last_sequence, offset))
        if transactional:
            self.begun.setdefault(header.producer_id, offset)
        return offset

    def end_transaction(self, producer_id: int, epoch: int, *, commit: bool, now: float) -> None:
        known = self.producers.setdefault(producer_id, PartitionProducer(epoch))
        if epoch > known.epoch:
            self.producers[producer_id] = PartitionProducer(epoch)
        batch = marker(producer_id=producer_id, epoch=epoch, commit=commit, milliseconds=int(now * 1000))
        at, first = self.append(batch, 1), self.begun.pop(producer_id, None)
        if first is not None and not commit:
            self.aborted.append((producer_id, first, at))

    def read(self, offset: int, end: int, most: int) -> bytes:
        """Batches from the one with this offset on, at least one."""
        found = b""
        for behind, batch in self.batches[bisect_right(self.batches, offset, key=itemgetter(0)) :]:
            if behind > end or (found and len(found) + len(batch) > most):
                break
            found += batch
        return found

    def find(self, milliseconds: int) -> tuple[int, int]:
        """The time and the offset of the first batch that has a message of this time or a later one."""
        for _, batch in self.batches:
            header = BatchHeader.of(batch)
            if header.newest_timestamp >= milliseconds:
                return header.newest_timestamp, header.base_offset
        return -1, -1


@dataclass
class ModelTopic:
    partitions: list[PartitionLog]
    max_bytes: int = 1_048_588


@dataclass
class KafkaTransaction:
    """What the coordinator knows of one transactional id.

    Its state is empty, open, committing, aborting, committed or aborted. At its time an open one is aborted, and
    markers are written of one whose end is decided.
    """

    producer_id: int
    epoch: int
    timeout: int
    state: str = "empty"
    time: float = 0.0
    before: int = -1  # the epoch that the producer itself had replaced
    partitions: dict[tuple[str, int], None] = field(default_factory=dict)  # in their order
    groups: list[str] = field(default_factory=list)
    offsets: dict[tuple[str, str, int], tuple[int, str]] = field(default_factory=dict)

    @property
    def unfinished(self) -> bool:
        return self.state in {"open", "committing", "aborting"}

    def check_undecided(self) -> None:
        if self.state in {"committing", "aborting"}:
            raise RequestRefused(ErrorCode.CONCURRENT_TRANSACTIONS)

    def open(self, now: float) -> None:
        self.check_undecided()
        if self.state != "open":
            self.state, self.time = "open", now + self.timeout / 1000


Judge = Callable[..., Iterable[Any]]
Refusal = Callable[[ErrorCode], Iterable[Any]]


class ModelBroker:
    """The state, and what each request does to it."""

    def __init__(self, *, port: int, partitions: int, creates: bool) -> None:
        self.port = port  # at which it says it is
        self.partitions = partitions
        self.creates = creates
        self.markers_after = 0.0  # seconds from the decision to the markers
        self.topics: dict[str, ModelTopic] = {}
        self.producers = 0
        self.transactions: dict[str, KafkaTransaction] = {}
        self.offsets: dict[tuple[str, str, int], tuple[int, str]] = {}

    def handle(self, name: str, values: list[Any], now: float, told: ErrorCode | None = None) -> Any:
        """What is answered to a request; `told` is the error that a test wants to be the answer."""
        self._let_pass(now)
        do, refuse = getattr(self, "_" + name), REFUSALS.get(name)
        if refuse is None:
            return do(now, told, *values)
        try:
            if told is not None:
                raise RequestRefused(told)
            return do(now, *values)
        except RequestRefused as refused:
            return refuse(refused.code)

    def handle_test(self, request: dict[str, Any], now: float) -> Any:
        self._let_pass(now)
        match request:
            case {"topic": name, "partitions": partitions, "max_bytes": max_bytes}:
                topic = self.topics.setdefault(name, ModelTopic([PartitionLog() for _ in range(partitions)]))
                topic.partitions += [PartitionLog() for _ in range(partitions - len(topic.partitions))]
                topic.max_bytes = max_bytes
            case {"markers_after": seconds}:
                self.markers_after = seconds
        return {
            "transactions": {name: [one.state, one.producer_id, one.epoch] for name, one in self.transactions.items()},
            "offsets": [[*where, *what] for where, what in self.offsets.items()],
        }

    def _let_pass(self, now: float) -> None:
        """End the transactions whose time has come, as they would have been ended by a clock."""
        due = [one for one in self.transactions.values() if one.unfinished and one.time <= now]
        for transaction in sorted(due, key=lambda one: one.time):
            if transaction.state == "open":
                self._fence(transaction, now)
            else:
                self._write_markers(transaction, now)

    def _fence(self, transaction: KafkaTransaction, now: float) -> None:
        """Abort an open transaction against its producer's will."""
        transaction.epoch, transaction.before = transaction.epoch + 1, -1
        self._decide(transaction, now, commit=False)

    def _decide(self, transaction: KafkaTransaction, now: float, *, commit: bool) -> None:
        transaction.state = "committing" if commit else "aborting"
        transaction.time = now + self.markers_after
        if not self.markers_after:
            self._write_markers(transaction, now)

    def _write_markers(self, transaction: KafkaTransaction, now: float) -> None:
        commit = transaction.state == "committing"
        for name, number in transaction.partitions:
            self._log(name, number).end_transaction(transaction.producer_id, transaction.epoch, commit=commit, now=now)
        if commit:
            self.offsets |= transaction.offsets
        transaction.state = "committed" if commit else "aborted"
        transaction.partitions, transaction.groups, transaction.offsets = {}, [], {}

    def _log(self, name: str, number: int) -> PartitionLog:
        topic = self.topics.get(name)
        if topic is None or not 0 <= number < len(topic.partitions):
            raise RequestRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return topic.partitions[number]

    def _transaction(
        self, name: str, producer_id: int, epoch: int, fenced: ErrorCode = ErrorCode.INVALID_PRODUCER_EPOCH
    ) -> KafkaTransaction:
        """The transaction of a producer, if it is the newest one of its id."""
        transaction = self.transactions.get(name)
        if transaction is None or transaction.producer_id != producer_id:
            raise RequestRefused(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        if transaction.epoch != epoch:
            raise RequestRefused(fenced)
        return transaction

    def _metadata(self, name: str) -> list[Any]:
        topic = self.topics.get(name)
        if topic is None:
            return [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name, False, []]
        return [0, name, False, [[0, n, NODE, [NODE], [NODE]] for n in range(len(topic.partitions))]]

    def _Metadata(self, now: float, told: ErrorCode | None, names: list[str] | None, create: bool) -> Any:
        for name in names or []:
            if create and self.creates and name not in self.topics:
                self.topics[name] = ModelTopic([PartitionLog() for _ in range(self.partitions)])
        wanted = self.topics if names is None else names
        topics = [self._metadata(name) if told is None else [told, name, False, []] for name in wanted]
        return 0, [[NODE, "127.0.0.1", self.port, None]], "model", NODE, topics

    def _FindCoordinator(self, now: float, key: str, kind: int) -> Any:
        return 0, 0, None, NODE, "127.0.0.1", self.port

    def _InitProducerId(self, now: float, name: str | None, timeout: int, producer_id: int, epoch: int) -> Any:
        if name is None:
            self.producers += 1
            return 0, 0, self.producers, 0
        if not 0 < timeout <= LONGEST_TIMEOUT:
            raise RequestRefused(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        known = self.transactions.get(name)
        if known is None:
            self.producers += 1
            self.transactions[name] = KafkaTransaction(self.producers, 0, timeout)
            return 0, 0, self.producers, 0
        # A producer that has an epoch asks for the next one, after an error; it may ask again for that.
        if producer_id >= 0:
            if (known.state, known.producer_id, known.before) == ("empty", producer_id, epoch):
                return 0, 0, known.producer_id, known.epoch
            if (known.producer_id, known.epoch) != (producer_id, epoch):
                raise RequestRefused(ErrorCode.PRODUCER_FENCED)
        if known.state == "open":
            self._fence(known, now)
        if known.unfinished:
            raise RequestRefused(ErrorCode.CONCURRENT_TRANSACTIONS)
        known.epoch, known.before = known.epoch + 1, epoch
        known.state, known.timeout = "empty", timeout
        return 0, 0, known.producer_id, known.epoch

    def _AddPartitionsToTxn(
        self, now: float, told: ErrorCode | None, name: str, producer_id: int, epoch: int, topics: list[Any]
    ) -> Any:
        def check(topic: str, number: int) -> Iterable[Any]:
            self._transaction(name, producer_id, epoch).check_undecided()
            self._log(topic, number)
            return [0]

        answers = _each(topics, check, told)
        errors = {error for _, partitions in answers for _, error in partitions} - {0}
        if not errors:
            transaction = self._transaction(name, producer_id, epoch)
            transaction.open(now)
            transaction.partitions |= dict.fromkeys((topic, number) for topic, numbers in topics for number in numbers)
        elif errors == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}:
            for _, partitions in answers:
                for one in partitions:
                    one[1] = one[1] or ErrorCode.OPERATION_NOT_ATTEMPTED
        return 0, answers

    def _AddOffsetsToTxn(self, now: float, name: str, producer_id: int, epoch: int, group: str) -> Any:
        transaction = self._transaction(name, producer_id, epoch)
        transaction.open(now)
        transaction.groups.append(group)
        return 0, 0

    def _TxnOffsetCommit(
        self,
        now: float,
        told: ErrorCode | None,
        name: str,
        group: str,
        producer_id: int,
        epoch: int,
        generation: int,
        member: str,
        instance: str | None,
        topics: list[Any],
    ) -> Any:
        def commit(topic: str, number: int, offset: int, leader_epoch: int, metadata: str | None) -> Iterable[Any]:
            transaction = self._transaction(name, producer_id, epoch)
            if transaction.state != "open" or group not in transaction.groups:
                raise RequestRefused(ErrorCode.INVALID_TXN_STATE)
            if member or generation >= 0:
                raise RequestRefused(ErrorCode.UNKNOWN_MEMBER_ID)
            transaction.offsets[group, topic, number] = (offset, _text_of_an_offset(metadata))
            return [0]

        return 0, _each(topics, commit, told)

    def _EndTxn(self, now: float, name: str, producer_id: int, epoch: int, commit: bool) -> Any:
        transaction = self._transaction(name, producer_id, epoch)
        if transaction.state == "open":
            self._decide(transaction, now, commit=commit)
        elif transaction.state == ("committing" if commit else "aborting"):
            raise RequestRefused(ErrorCode.CONCURRENT_TRANSACTIONS)
        elif transaction.state != ("committed" if commit else "aborted"):
            raise RequestRefused(ErrorCode.INVALID_TXN_STATE)
        return 0, 0

    def _Produce(
        self, now: float, told: ErrorCode | None, name: str | None, acks: int, timeout: int, topics: list[Any]
    ) -> Any:
        def produce(topic: str, number: int, batch: bytes) -> Iterable[Any]:
            log = self._log(topic, number)
            if len(batch) < BATCH.size or BatchHeader.of(batch).length + 12 != len(batch):
                raise RequestRefused(ErrorCode.CORRUPT_MESSAGE)
            header = BatchHeader.of(batch)
            if header.magic != 2:
                raise RequestRefused(ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT)
            if len(batch) > self.topics[topic].max_bytes:
                raise RequestRefused(ErrorCode.MESSAGE_TOO_LARGE)
            if header.attributes & TRANSACTIONAL:
                transaction = self._transaction(name or "", header.producer_id, header.epoch)
                if transaction.state != "open" or (topic, number) not in transaction.partitions:
                    raise RequestRefused(ErrorCode.INVALID_TXN_STATE)
            return 0, log.take(batch, header), -1, 0

        return _each(topics, produce, told, refusal=lambda answer: [answer, -1, -1, -1]), 0

    def _Fetch(
        self,
        now: float,
        told: ErrorCode | None,
        replica: int,
        wait: int,
        least: int,
        most: int,
        level: int,
        topics: Any,
    ) -> Any:
        def fetch(topic: str, number: int, offset: int, most_of_it: int) -> Iterable[Any]:
            log = self._log(topic, number)
            if not 0 <= offset <= log.end:
                raise RequestRefused(ErrorCode.OFFSET_OUT_OF_RANGE)
            end = log.stable_end if level else log.end
            aborted = [[producer, first] for producer, first, at in log.aborted if at >= offset and first < end]
            return 0, log.end, log.stable_end, aborted if level else None, log.read(offset, end, most_of_it)

        return 0, _each(topics, fetch, told, refusal=lambda answer: [answer, -1, -1, None, b""])

    def _ListOffsets(self, now: float, told: ErrorCode | None, replica: int, level: int, topics: list[Any]) -> Any:
        def find(topic: str, number: int, milliseconds: int) -> Iterable[Any]:
            log = self._log(topic, number)
            if milliseconds == -1:
                return 0, -1, log.stable_end if level else log.end
            return 0, *((-1, 0) if milliseconds == -2 else log.find(milliseconds))

        return 0, _each(topics, find, told, refusal=lambda answer: [answer, -1, -1])

    def _OffsetCommit(
        self,
        now: float,
        told: ErrorCode | None,
        group: str,
        generation: int,
        member: str,
        retention: int,
        topics: list[Any],
    ) -> Any:
        def commit(topic: str, number: int, offset: int, metadata: str | None) -> Iterable[Any]:
            self.offsets[group, topic, number] = (offset, _text_of_an_offset(metadata))
            return [0]

        return (_each(topics, commit, told),)

    def _OffsetFetch(
        self, now: float, told: ErrorCode | None, group: str, topics: list[Any] | None, stable: bool
    ) -> Any:
        def find(topic: str, number: int) -> Iterable[Any]:
            where = (group, topic, number)
            if stable and any(where in one.offsets for one in self.transactions.values()):
                raise RequestRefused(ErrorCode.UNSTABLE_OFFSET_COMMIT)
            offset, metadata = self.offsets.get(where, (-1, ""))
            return offset, -1, metadata, 0

        if topics is None:
            topics = [[topic, [number]] for owner, topic, number in self.offsets if owner == group]
        return 0, _each(topics, find, told, refusal=lambda answer: [-1, -1, "", answer]), 0


# The answers to requests that are refused as a whole.
REFUSALS: dict[str, Refusal] = {
    "FindCoordinator": lambda answer: (0, answer, None, -1, "", -1),
    "InitProducerId": lambda answer: (0, answer, -1, -1),
    "AddOffsetsToTxn": lambda answer: (0, answer),
    "EndTxn": lambda answer: (0, answer),
}


def _text_of_an_offset(metadata: str | None) -> str:
    if len(metadata or "") > LONGEST_TEXT:
        raise RequestRefused(ErrorCode.OFFSET_METADATA_TOO_LARGE)
    return metadata or ""


def _each(
    topics: list[Any], judge: Judge, told: ErrorCode | None = None, refusal: Refusal = lambda answer: [answer]
) -> list[Any]:
    """The same topics and partitions, with what is answered for each partition."""

    def answer(topic: str, number: int, *values: Any) -> list[Any]:
        try:
            if told is not None:
                raise RequestRefused(told)
            return [number, *judge(topic, number, *values)]
        except RequestRefused as refused:
            return [number, *refusal(refused.code)]

    return [
        [topic, [answer(topic, *(one if isinstance(one, list) else [one])) for one in partitions]]
        for topic, partitions in topics
    ]


class ModelJournal:
    """A file of requests, each with its time: written before they are done."""

    HEAD = struct.Struct(">dI")

    def __init__(self, path: Path) -> None:
        data, at = path.read_bytes() if path.exists() else b"", 0
        self.entries: list[tuple[float, bytes]] = []
        while at + self.HEAD.size <= len(data):
            now, length = self.HEAD.unpack_from(data, at)
            if at + self.HEAD.size + length > len(data):
                break
            at += self.HEAD.size
            self.entries.append((now, data[at : at + length]))
            at += length
        self._file = path.open("ab", buffering=0)
        self._file.truncate(at)  # an entry that a kill cut off was not answered

    def add(self, now: float, frame: bytes) -> None:
        self._file.write(self.HEAD.pack(now, len(frame)) + frame)


@dataclass
class Fault:
    """What happens to the next requests of one kind, or of all kinds."""

    api: str | None
    effect: str
    times: int  # -1 without end


class ModelServer:
    """The connections, the journal and the faults."""

    def __init__(self, broker: ModelBroker, path: Path, *, inner_port: int, proxied_at: int) -> None:
        self.broker = broker
        self.ports = {broker.port: broker.port, inner_port: proxied_at}  # at which it listens, and says that it is
        self.inner_port = inner_port
        self.journal = ModelJournal(path)
        self.faults: list[Fault] = []
        self.released = asyncio.Event()
        self.held = 0
        for now, frame in self.journal.entries:
            self.do(frame, now)

    async def run(self) -> None:
        servers = [await asyncio.start_server(self.converse, "127.0.0.1", port) for port in self.ports]
        print("listening", flush=True)
        await asyncio.gather(*(server.serve_forever() for server in servers))

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError), closing(writer):
            going_on, port = True, writer.get_extra_info("sockname")[1]
            while going_on:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
                going_on = await self.serve(frame, writer, port)

    async def serve(self, frame: bytes, writer: asyncio.StreamWriter, port: int) -> bool:
        """Do and answer a request that came by a port; false if the connection ends with it."""
        key, _, correlation = struct.unpack_from(">hhi", frame)
        effect = self.effect_on(NAMES[key]) if key in NAMES else ""
        if effect == "hold":
            self.held += 1
            await self.released.wait()
            self.held -= 1
        if effect in {"swallow", "cut"}:
            return effect == "swallow"
        told = ErrorCode[effect] if effect in ErrorCode.__members__ else None
        if told is None and changes(frame):
            self.journal.add(time.time(), frame)
        answer = await self.answer(frame, told, port)
        if effect == "lose":
            return False
        if effect != "mute" and answer is not None:
            message = struct.pack(">i", correlation) + answer
            writer.write(struct.pack(">i", len(message)) + message)
            await writer.drain()
        return True

    def effect_on(self, name: str) -> str:
        for fault in self.faults:
            if fault.api in {None, name}:
                fault.times -= 1
                if not fault.times:
                    self.faults.remove(fault)
                return fault.effect
        return ""

    async def answer(self, frame: bytes, told: ErrorCode | None, port: int) -> bytes | None:
        name, values = request_of(frame)
        deadline = time.monotonic() + (values[1] / 1000 if name == "Fetch" else 0)
        while True:
            self.broker.port = self.ports[port]
            answer = self.do(frame, time.time(), told)
            if name != "Fetch" or time.monotonic() > deadline or _has_news(answer):
                break
            await asyncio.sleep(0.005)
        if name == "ApiVersions":
            return versions(values)
        if name == "Test":
            return json.dumps(answer).encode()
        if name == "Produce" and not values[1]:
            return None
        api = APIS[name]
        return (b"\0" if api.flexible else b"") + encode(api.response, answer, flexible=api.flexible)

    def do(self, frame: bytes, now: float, told: ErrorCode | None = None) -> Any:
        name, values = request_of(frame)
        if name == "ApiVersions":
            return None
        if name == "Test":
            return self.handle_test(values[0], now)
        return self.broker.handle(name, values, now, told)

    def handle_test(self, request: dict[str, Any], now: float) -> Any:
        match request:
            case {"fault": effect, "api": api, "times": times}:
                self.faults.append(Fault(api, effect, times))
            case {"proxied_at": port}:
                self.ports[self.inner_port] = port
            case {"release": True}:
                self.faults.clear()
                self.released.set()
                self.released = asyncio.Event()
        answer = self.broker.handle_test(request, now)
        return answer | {"faults": len(self.faults), "held": self.held}


def _has_news(answer: Any) -> bool:
    return any(one[-1] or one[1] for _, partitions in answer[1] for one in partitions)


def request_of(frame: bytes) -> tuple[str, list[Any]]:
    """The name of a request and its values."""
    key, version = struct.unpack_from(">hh", frame)
    if key == CONTROL:
        return "Test", [json.loads(frame[8:])]
    if key == API_VERSIONS.key:
        return "ApiVersions", [version]
    name = NAMES[key]
    api = APIS[name]
    if version != api.version:
        raise ValueError(f"{name} {version} is not spoken, expected {api.version}")
    header = WireReader(frame[8:])
    header.value("s")  # what the client calls itself
    header.flexible = api.flexible
    if api.flexible:
        header.tags()
    return name, header.values(api.request)


def changes(frame: bytes) -> bool:
    name, values = request_of(frame)
    return name in CHANGING or (name == "Test" and bool({"topic", "markers_after"} & set(values[0])))


def versions(values: list[int]) -> bytes:
    """What is spoken, in the newest form or, if the client asks in one that is too new, in the oldest."""
    spoken = [[api.key, FEATURES.get(name, 0), api.version] for name, api in APIS.items()]
    spoken.append([API_VERSIONS.key, 0, API_VERSIONS.version])
    if values[0] == API_VERSIONS.version:
        return encode(API_VERSIONS.response, (0, spoken, 0), flexible=True)
    answer = ErrorCode.UNSUPPORTED_VERSION if values[0] > API_VERSIONS.version else 0
    return encode(API_VERSIONS.response[:2], (answer, spoken))


if __name__ == "__main__":
    port, inner_port, path, partitions, creates, proxied_at = sys.argv[1:]
    model = ModelBroker(port=int(port), partitions=int(partitions), creates=creates == "yes")
    server = ModelServer(model, Path(path), inner_port=int(inner_port), proxied_at=int(proxied_at))
    asyncio.run(server.run())
