"""Inboxes and mirrors: what a broker or another log has, beside a loop by hand that reads and copies in batches."""

import asyncio
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from django.db import connection
from django.test import override_settings

from django_events import declarations, jetstream_source, kafka_source, log_source, models, redis_source
from django_events.bridges.inboxes.serving import worker_of
from django_events.declarations import DeclaredInbox, DeclaredTopic
from django_events.operating import inboxes
from django_events.workers.loop import run
from django_events.workers.stopping import Stop
from tests.benchmarks.bridged import BATCH
from tests.benchmarks.by_hand import PROGRESS
from tests.benchmarks.consuming import fill
from tests.benchmarks.database import connect, count, settle, truncate, url
from tests.benchmarks.harness import Effort, Row, at_least, figure, interleave, timed
from tests.benchmarks.samples import PLAIN_COLUMNS, TYPE, key, value
from tests.benchmarks.transfer import BUFFER, LOG, declared
from tests.support.brokers import NATS, REDIS, MockKafka, Nats, Redis

EVENTS = 50_000
TOPIC = "bench.taken-in"
COPY_IN = f"COPY bench_buffer ({PLAIN_COLUMNS}) FROM STDIN"
# Whole rows as they are stored, from one log into a table like it.
SOME = f"FROM {LOG} WHERE topic_id = %s AND id > %s ORDER BY id LIMIT {BATCH}"
COPY_OUT = f"COPY (SELECT * {SOME}) TO STDOUT (FORMAT binary)"
ROWS = f"SELECT id, type, key, value::text, metadata::text {SOME}"
COPY_WHOLE = "COPY bench_log FROM STDIN (FORMAT binary)"

Plain = tuple[str, str, str, str]  # type, key, value and metadata
Read = Callable[[int], Iterator[list[Plain]]]
Message = tuple[str, str, str, dict[str, str]]  # its id, its key, its value and its attributes
Messages = Callable[[int], Iterator[list[Message]]]


def an_inbox(source: Any, *, keep_ids: bool = False) -> DeclaredInbox:
    return DeclaredInbox(name="bench", topic=TOPIC, source=source, batch_size=BATCH, keep_ids=keep_ids)


@contextmanager
def registered(inbox: DeclaredInbox) -> Iterator[None]:
    """An inbox for a while, at the beginning of its source; its topic is declared."""
    declarations.inboxes.add(inbox)
    try:
        inboxes.sync(connection.alias)
        yield
    finally:
        declarations.inboxes.discard(inbox)
        models.Inbox.objects.filter(name=inbox.name).delete()


def take_in(inbox: DeclaredInbox, events: int) -> float:
    """Events per second of a worker, from its start, when it connects, to the last event that it took in."""
    taken, finished = 0, 0.0

    def progress(done: int) -> None:
        nonlocal taken, finished
        if done:
            taken, finished = taken + done, perf_counter()

    truncate(BUFFER)
    settle(BUFFER)
    with (
        declared(DeclaredTopic(name=TOPIC)),
        registered(inbox),
        closing(Stop()) as stop,
        closing(worker_of(connection.alias, inbox, once=True)) as worker,
    ):
        started = perf_counter()
        run(worker, stop, once=True, on_progress=progress)
    if taken != events:
        raise RuntimeError(f"{taken} of {events} events were taken in. {worker.failure}")
    return events / (finished - started)


def by_hand(events: int, read: Read) -> float:
    """Events per second of a bare loop: read a batch, copy it in, note progress, commit."""
    truncate("bench_buffer")
    settle("bench_buffer")
    taken = 0
    with connect(autocommit=False) as plain, plain.cursor() as cursor:

        def repeat() -> None:
            nonlocal taken
            for batch in read(events):
                with cursor.copy(COPY_IN) as copying:
                    for kind, of, text, metadata in batch:
                        copying.write_row((1, None, kind, of, text, None, metadata))
                taken += len(batch)
                cursor.execute(PROGRESS, (taken,))
                plain.commit()

        seconds = timed(repeat)
    if taken != events or count("bench_buffer") != events:
        raise RuntimeError(f"By hand, {taken} of {events} events were taken in.")
    return events / seconds


def attributes(n: int) -> dict[str, str]:
    """The n-th event as a CloudEvent, but for its value."""
    return {
        "specversion": "1.0",
        "id": f"orders/{n}",
        "source": "/orders",
        "type": TYPE,
        "subject": key(n),
        "time": "2026-01-31T12:34:56.789Z",
    }


def without(prefix: str, headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The attributes of a CloudEvent, among the headers of a message."""
    return {name.removeprefix(prefix): text for name, text in headers if name.startswith(prefix)}


def bare(message: Message) -> Plain:
    """As little as keeps what a message says: its attributes in the metadata, and its value as it came."""
    _, of, text, named = message
    return named["type"], of, text, json.dumps({"ce": named})


def a_cloudevent(message: Message) -> Plain:
    """What an inbox makes of it: the value is read as JSON, so that one that is none is noticed, and written again."""
    number, of, text, named = message
    kind, value = named.pop("type"), json.loads(text)
    if "id" not in named or "\0" in kind or "\0" in of:
        raise ValueError(f"Message {number} is no CloudEvent.")
    metadata = {"ce": named, "inbox": "bench", "message": f"bench/{number}"}
    return kind, of, json.dumps(value, sort_keys=True, allow_nan=False), json.dumps(metadata, sort_keys=True)


def made(read: Messages, make: Callable[[Message], Plain]) -> Read:
    """How a broker is read by hand, and what is made of each of its messages."""
    return lambda events: ([make(one) for one in batch] for batch in read(events))


# --- what the brokers have, and how it is read by hand


def in_redis(server: Redis, events: int) -> Messages:
    client = server.client()
    with client.pipeline(transaction=False) as pipeline:
        for n in range(events):
            named = {f"ce_{name}": text for name, text in attributes(n).items()}
            pipeline.xadd("bench", {**named, "key": key(n), "data": json.dumps(value(n))})
            if n % BATCH == BATCH - 1:
                pipeline.execute()
        pipeline.execute()

    def read(events: int) -> Iterator[list[Plain]]:
        last = "0"
        while answer := client.xread({"bench": last}, count=BATCH):
            [[_, entries]] = answer
            last = entries[-1][0]
            yield [
                (entry_id, fields["key"], fields["data"], without("ce_", fields.items()))
                for entry_id, fields in entries
            ]

    return read


def in_nats(server: Nats, loop: asyncio.AbstractEventLoop, context: Any, events: int) -> Messages:
    from nats.js.api import AckPolicy, ConsumerConfig

    server.clear()
    server.add_stream("BENCH", "bench")

    async def publish(numbers: range) -> None:
        sent = []
        for n in numbers:
            headers = {f"ce-{name}": text for name, text in attributes(n).items()}
            sent.append(await context.publish_async("bench", json.dumps(value(n)).encode(), headers=headers))
        await asyncio.gather(*sent)

    for n in range(0, events, BATCH):
        loop.run_until_complete(publish(range(n, min(n + BATCH, events))))

    def read(events: int) -> Iterator[list[Plain]]:
        config = ConsumerConfig(ack_policy=AckPolicy.NONE)
        consumer = loop.run_until_complete(context.pull_subscribe("bench", stream="BENCH", config=config))
        while events:
            batch = loop.run_until_complete(consumer.fetch(min(BATCH, events), timeout=10))
            events -= len(batch)
            yield [
                (one.reply, one.headers["ce-subject"], one.data.decode(), without("ce-", one.headers.items()))
                for one in batch
            ]
        loop.run_until_complete(consumer.unsubscribe())

    return read


def in_kafka(server: MockKafka, events: int) -> Messages:
    from confluent_kafka import Consumer, Producer, TopicPartition

    producer = Producer({"bootstrap.servers": server.servers, "enable.idempotence": True, "linger.ms": 5})
    for n in range(events):
        headers = [(f"ce_{name}", text.encode()) for name, text in attributes(n).items()]
        producer.produce("bench", value=json.dumps(value(n)), key=key(n), headers=headers)
        if n % BATCH == 0:
            producer.poll(0)
    producer.flush()

    def read(events: int) -> Iterator[list[Plain]]:
        with closing(
            Consumer({"bootstrap.servers": server.servers, "group.id": "by-hand", "log_level": 0})
        ) as consumer:
            partitions = consumer.list_topics("bench", timeout=10).topics["bench"].partitions
            consumer.assign([TopicPartition("bench", partition, 0) for partition in partitions])
            while events:
                batch = consumer.consume(min(BATCH, events), 10)
                events -= len(batch)
                yield [message(one) for one in batch]

    def message(one: Any) -> Message:
        named = without("ce_", [(name, text.decode()) for name, text in one.headers()])
        return str(one.offset()), one.key().decode(), one.value().decode(), named

    return read


@figure(
    "N32", "an inbox from Redis streams, JetStream and a mocked Kafka, against a loop by hand that reads and copies"
)
def from_a_broker(effort: Effort) -> Iterator[Row]:
    events = effort.events(EVENTS)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        brokers: dict[str, dict[str, Any]] = {}
        blocks: dict[str, Callable[[], float]] = {}
        names: list[str] = []

        def add(name: str, broker: Any, source: Any, read: Messages) -> None:
            names.append(name)
            brokers[broker.name] = broker.options
            blocks[name] = partial(take_in, an_inbox(source), events)
            blocks[f"by hand, {name}"] = partial(by_hand, events, made(read, bare))
            blocks[f"the same CloudEvents by hand, {name}"] = partial(by_hand, events, made(read, a_cloudevent))

        if REDIS is not None:
            redis = stack.enter_context(closing(Redis(folder)))
            add("Redis streams", redis, redis_source("bench"), in_redis(redis, events))
        if NATS is not None:
            import nats as client

            nats = stack.enter_context(closing(Nats(folder)))
            loop = asyncio.new_event_loop()
            stack.callback(loop.close)
            connected = loop.run_until_complete(client.connect(nats.options["servers"][0]))
            stack.callback(lambda: loop.run_until_complete(connected.close()))
            read = in_nats(nats, loop, connected.jetstream(), events)
            add("JetStream", nats, jetstream_source("BENCH"), read)
        mocked = stack.enter_context(closing(MockKafka(folder)))
        add("a mocked Kafka", mocked, kafka_source("bench"), in_kafka(mocked, events))
        stack.enter_context(override_settings(DJANGO_EVENTS={"BROKERS": brokers}))
        samples = interleave(blocks, rounds=effort.rounds(5))
    for name in names:
        what = f"an inbox from {name}, batches of {BATCH}"
        yield samples.row(what, name, f"by hand, {name}", unit="events/s", goal=at_least(0.6))
        yield samples.row(what, name, f"the same CloudEvents by hand, {name}", unit="events/s")


# --- another site's log


def copied_by_hand(topic_id: int, events: int) -> float:
    """Events per second of a bare loop: COPY a batch out, COPY it in as it came, note progress, commit."""
    truncate("bench_log")
    settle("bench_log")
    with connect() as there, connect(autocommit=False) as here, here.cursor() as cursor:

        def repeat() -> None:
            for position in range(0, events, BATCH):
                with there.cursor() as reading, reading.copy(COPY_OUT, (topic_id, position)) as out:
                    batch = b"".join(out)
                with cursor.copy(COPY_WHOLE) as copying:
                    copying.write(batch)
                cursor.execute(PROGRESS, (position + BATCH,))
                here.commit()

        seconds = timed(repeat)
    if count("bench_log") != events:
        raise RuntimeError(f"By hand, {count('bench_log')} of {events} events were copied.")
    return events / seconds


def rows_of(topic_id: int) -> Read:
    """How another log is read by hand, for new events."""

    def read(events: int) -> Iterator[list[Plain]]:
        position = 0
        with connect() as there:
            while rows := there.execute(ROWS, (topic_id, position)).fetchall():
                position = rows[-1][0]
                yield [row[1:] for row in rows]

    return read


@figure("N33", "a mirror of a log, and an inbox of it, against a loop by hand that copies its batches out and in")
def from_a_log(effort: Effort) -> Iterator[Row]:
    """Both logs are in one database, so neither side has to wait for a network."""
    events = effort.events(4 * EVENTS)
    with declared(DeclaredTopic(name="bench")) as [topic_id]:
        fill([topic_id], events)
        source = log_source("bench", broker="shop")
        with override_settings(DJANGO_EVENTS={"BROKERS": {"shop": {"dsn": url()}}}):
            samples = interleave(
                {
                    "a mirror": partial(take_in, an_inbox(source, keep_ids=True), events),
                    "COPY out, COPY in": partial(copied_by_hand, topic_id, events),
                    "an inbox": partial(take_in, an_inbox(source), events),
                    "rows read, COPY in": partial(by_hand, events, rows_of(topic_id)),
                },
                rounds=effort.rounds(5),
            )
    for name, reference in (("a mirror", "COPY out, COPY in"), ("an inbox", "rows read, COPY in")):
        yield samples.row(f"{name} of a log, batches of {BATCH}", name, reference, unit="events/s")
