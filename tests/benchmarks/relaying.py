"""Relays: a backlog beside a loop by hand, how long an event takes, and what they take from the transfer."""

import asyncio
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from django.test import override_settings

from django_events import publish
from django_events.declarations import DeclaredRelay, DeclaredTopic
from tests.benchmarks.bridged import BATCH, STREAM_OF_NATS, SUBJECT_OF_NATS, a_relay
from tests.benchmarks.by_hand import noop
from tests.benchmarks.consuming import a_consumer, consume, fill, registered, rewind
from tests.benchmarks.database import CONSUMED, connect, settle, truncate
from tests.benchmarks.end_to_end import ENDING, RATE, by_shares, cast, is_passed, joined, latencies, one
from tests.benchmarks.harness import Effort, Row, Samples, at_least, figure, interleave, timed
from tests.benchmarks.transfer import BACKLOG, BUFFER, backlog, declared
from tests.support.brokers import NATS, REDIS, MockKafka, Nats, Redis

EVENTS = 200_000
READ = """
SELECT id, key, type, value::text, to_char(published_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
FROM bench_log WHERE topic_id = %s AND id > %s ORDER BY id LIMIT %s
"""
PROGRESS = "UPDATE bench_position SET position = %s WHERE id = 1"
Send = Callable[[list[tuple[Any, ...]]], None]
Named = Callable[..., dict[str, str]]  # what is sent beside the value


def bare(event_id: int, key: str | None, kind: str, at: str) -> dict[str, str]:
    """As little as a reader needs."""
    return {"id": str(event_id), "type": kind}


def a_cloudevent(event_id: int, key: str | None, kind: str, at: str) -> dict[str, str]:
    """What a relay says of an event."""
    return {
        "ce_specversion": "1.0",
        "ce_id": f"bench/{event_id}",
        "ce_source": "/bench",
        "ce_type": kind,
        "ce_time": at,
        "ce_subject": key or "",
        "ce_relay": "bench",
        "content-type": "application/json",
    }


def by_hand(topic_id: int, events: int, send: Send) -> float:
    """Events per second of a bare loop: read a batch, send it pipelined, note progress, commit."""
    passed = 0
    with connect(autocommit=False) as plain, plain.cursor() as cursor:

        def repeat() -> None:
            nonlocal passed
            position = 0
            while batch := cursor.execute(READ, (topic_id, position, BATCH)).fetchall():
                send(batch)
                position = batch[-1][0]
                cursor.execute(PROGRESS, (position,))
                plain.commit()
                passed += len(batch)

        seconds = timed(repeat)
    if passed != events:
        raise RuntimeError(f"By hand, {passed} of {events} events were sent.")
    return events / seconds


def to_redis(client: Any, named: Named) -> Send:
    def send(batch: list[tuple[Any, ...]]) -> None:
        with client.pipeline(transaction=False) as pipeline:
            for event_id, key, kind, value, at in batch:
                pipeline.xadd("by-hand", {**named(event_id, key, kind, at), "key": key or "", "data": value})
            pipeline.execute()

    return send


def to_nats(loop: asyncio.AbstractEventLoop, context: Any, named: Named) -> Send:
    async def publish(batch: list[tuple[Any, ...]]) -> None:
        sent = [
            await context.publish_async("by-hand", value.encode(), headers=named(event_id, key, kind, at))
            for event_id, key, kind, value, at in batch
        ]
        await asyncio.gather(*sent)

    return lambda batch: loop.run_until_complete(publish(batch))


def to_kafka(producer: Any, named: Named) -> Send:
    def send(batch: list[tuple[Any, ...]]) -> None:
        for event_id, key, kind, value, at in batch:
            producer.produce("by-hand", value=value, key=key, headers=list(named(event_id, key, kind, at).items()))
        producer.flush()

    return send


@figure("N29", "a relay to Redis streams, JetStream and a mocked Kafka, against a loop by hand that sends in batches")
def into_a_broker(effort: Effort) -> Iterator[Row]:
    events, topic = effort.events(EVENTS), DeclaredTopic(name="bench")
    with ExitStack() as stack:
        [topic_id] = stack.enter_context(declared(topic))
        fill([topic_id], events)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        brokers: dict[str, dict[str, Any]] = {}
        relays: dict[str, DeclaredRelay] = {}
        clears: dict[str, Callable[[], None]] = {}
        hands: dict[str, Callable[[Named], Send]] = {}

        def add(name: str, broker: Any, clear: Callable[[], None], sends: Callable[[Named], Send]) -> None:
            brokers[broker.name] = broker.options
            clears[name], hands[name] = clear, sends
            relays[name] = a_relay(broker.name, name=f"bench-{broker.name}")

        if REDIS is not None:
            redis = stack.enter_context(closing(Redis(folder)))
            add("Redis streams", redis, redis.clear, partial(to_redis, redis.client()))
        if NATS is not None:
            import nats as client

            nats = stack.enter_context(closing(Nats(folder)))
            loop = asyncio.new_event_loop()
            stack.callback(loop.close)
            connection = loop.run_until_complete(client.connect(nats.options["servers"][0]))
            stack.callback(lambda: loop.run_until_complete(connection.close()))

            def clear() -> None:
                nats.clear()
                nats.add_stream(STREAM_OF_NATS, SUBJECT_OF_NATS)
                nats.add_stream("BY-HAND", "by-hand")

            add("JetStream", nats, clear, partial(to_nats, loop, connection.jetstream()))
        from confluent_kafka import Producer

        mocked = stack.enter_context(closing(MockKafka(folder)))
        producer = Producer({"bootstrap.servers": mocked.servers, "enable.idempotence": True, "linger.ms": 5})
        add("a mocked Kafka", mocked, lambda: None, partial(to_kafka, producer))

        def relayed(name: str) -> float:
            clears[name]()
            rewind([relays[name]])
            settle("django_events_position")
            return consume([relays[name]], events)

        def sent(name: str, named: Named) -> float:
            clears[name]()
            return by_hand(topic_id, events, hands[name](named))

        blocks: dict[str, Callable[[], float]] = {}
        for name in relays:
            blocks[name] = lambda name=name: relayed(name)
            blocks[f"by hand, {name}"] = lambda name=name: sent(name, bare)
            blocks[f"the same CloudEvents by hand, {name}"] = lambda name=name: sent(name, a_cloudevent)
        stack.enter_context(override_settings(DJANGO_EVENTS={"BROKERS": brokers}))
        with registered(*relays.values()):
            samples = interleave(blocks, rounds=effort.rounds(5))
    for name in relays:
        what = f"a relay to {name}, batches of {BATCH}"
        yield samples.row(what, name, f"by hand, {name}", unit="events/s", goal=at_least(0.7))
        yield samples.row(what, name, f"the same CloudEvents by hand, {name}", unit="events/s")


SERVERS: dict[str, tuple[str, str | None, Callable[[Path], Any]]] = {
    "redis": ("Redis streams", REDIS, Redis),
    "nats": ("JetStream", NATS, Nats),
}


@contextmanager
def a_server(broker: str) -> Iterator[Any]:
    """A broker of its own, with nothing in it and what a relay needs."""
    with tempfile.TemporaryDirectory() as folder, closing(SERVERS[broker][2](Path(folder))) as server:
        if broker == "nats":
            server.clear()
            server.add_stream(STREAM_OF_NATS, SUBJECT_OF_NATS)
        yield server


@figure("N30", "from publish() to a reader of the broker behind a relay, at 100 events a second, against N8's handler")
def until_it_is_read(effort: Effort) -> Iterator[Row]:
    """Events come at random times. The relay and the reader are processes of their own, as the handler of N8 is.

    A mocked Kafka is left out: it lets a reader that waits wait on, whatever comes.
    """
    seconds = max(effort.events(30), 10)
    ways: dict[str, Callable[[], dict[str, list[float]]]] = {"the handler": partial(latencies, "stream", seconds)}
    for broker, (name, binary, _) in SERVERS.items():
        if binary is not None:
            ways[name] = partial(_latencies_of_relay, broker, seconds)
    values: dict[str, list[float]] = {}
    for turn in range(effort.rounds(5)):
        names = list(ways)
        for who in names[turn % len(names) :] + names[: turn % len(names)]:
            for what, milliseconds in by_shares(ways[who]()).items():
                values.setdefault(f"{who}, {what}", []).append(milliseconds)
    samples = Samples(values)
    for since in ("since publish()", "since the commit"):
        for share in ("p50", "p99"):
            of = f", {since}, {share}"
            for name in list(ways)[1:]:
                yield samples.row(f"a reader behind {name} at {RATE}/s{of}", name + of, f"the handler{of}", unit="ms")


def _latencies_of_relay(broker: str, seconds: int) -> dict[str, list[float]]:
    truncate(BUFFER)
    relay = a_relay(broker)
    with declared(DeclaredTopic(name="bench")), registered(relay), a_server(broker) as server, cast() as processes:
        processes.transfer()
        processes.play("relay", broker, json.dumps(server.options))
        reader = processes.play("note_arrivals", broker, json.dumps(server.options))
        publish("bench", {"sent": 0})
        processes.wait_until(lambda: is_passed(relay, 1), what="the first event")
        publisher = processes.play("publish_at_a_rate", RATE, seconds)
        sent = processes.result("publish_at_a_rate", publisher, seconds=seconds + ENDING)
        processes.wait_until(lambda: is_passed(relay, 1 + len(sent)), what="the last event")
        return joined(sent, processes.stop("note_arrivals", reader))


@figure("N31", "the transfer of a backlog of 500,000 while a relay sends it on, against alone, as N4")
def beside_the_transfer(effort: Effort) -> Iterator[Row]:
    """On two cores the relay, its broker and the server share them with the transfer, and so does any consumer."""
    if REDIS is None:
        return
    events = effort.events(BACKLOG)

    def beside(consumer: Any, role: str, *arguments: str) -> float:
        with declared(DeclaredTopic(name="bench")) as ids, registered(consumer), cast() as processes:
            process = processes.play(role, *arguments)
            processes.wait_until(lambda: "at work" in processes.said(process), what="a consumer at work")
            rate = backlog(ids, events)
            processes.wait_until(lambda: one(CONSUMED) > 0, what="events that passed")
            processes.stop(role, process)
        return rate

    def with_a_relay() -> float:
        with a_server("redis") as server:
            return beside(a_relay("redis"), "relay", "redis", json.dumps(server.options))

    def with_a_consumer() -> float:
        consumer = a_consumer(DeclaredTopic(name="bench"), name="bench", batch_size=BATCH, handler=noop)
        return beside(consumer, "consume", str(BATCH), "bench@bench")

    def alone() -> float:
        with declared(DeclaredTopic(name="bench")) as ids:
            return backlog(ids, events)

    samples = interleave(
        {"alone": alone, "with a relay": with_a_relay, "with a consumer": with_a_consumer}, rounds=effort.rounds(3)
    )
    what = f"transfer of {events:,} while"
    yield samples.row(f"{what} a relay sends it to Redis streams", "with a relay", "alone", unit="events/s")
    yield samples.row(f"{what} a relay sends it on", "with a relay", "with a consumer", unit="events/s")
    yield samples.row(f"{what} a consumer that does nothing reads it", "with a consumer", "alone", unit="events/s")
