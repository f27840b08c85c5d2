"""Relays: a backlog into a real broker, beside a loop by hand that reads and sends in batches."""

import asyncio
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from django.test import override_settings

from django_events import jetstream, kafka, redis_stream
from django_events.declarations import DeclaredRelay, DeclaredTopic
from tests.benchmarks.consuming import consume, fill, registered, rewind
from tests.benchmarks.database import connect, settle
from tests.benchmarks.harness import Effort, Row, figure, interleave, timed
from tests.benchmarks.transfer import declared
from tests.support.brokers import NATS, REDIS, MockKafka, Nats, Redis

EVENTS, BATCH = 50_000, 500
READ = "SELECT id, key, type, value::text FROM bench_log WHERE topic_id = %s AND id > %s ORDER BY id LIMIT %s"
PROGRESS = "UPDATE bench_position SET position = %s WHERE id = 1"
Send = Callable[[list[tuple[Any, ...]]], None]


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


def to_redis(client: Any) -> Send:
    def send(batch: list[tuple[Any, ...]]) -> None:
        with client.pipeline(transaction=False) as pipeline:
            for event_id, key, kind, value in batch:
                pipeline.xadd("by-hand", {"id": event_id, "key": key or "", "type": kind, "data": value})
            pipeline.execute()

    return send


def to_nats(loop: asyncio.AbstractEventLoop, context: Any) -> Send:
    async def publish(batch: list[tuple[Any, ...]]) -> None:
        sent = [
            await context.publish_async("by-hand", value.encode(), headers={"id": str(event_id), "type": kind})
            for event_id, _, kind, value in batch
        ]
        await asyncio.gather(*sent)

    return lambda batch: loop.run_until_complete(publish(batch))


def to_kafka(producer: Any) -> Send:
    def send(batch: list[tuple[Any, ...]]) -> None:
        for event_id, key, kind, value in batch:
            headers = [("id", str(event_id).encode()), ("type", kind.encode())]
            producer.produce("by-hand", value=value, key=key, headers=headers)
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
        hands: dict[str, Send] = {}

        def add(name: str, broker: Any, to: Any, clear: Callable[[], None], send: Send) -> None:
            brokers[broker.name] = broker.options
            clears[name], hands[name] = clear, send
            relays[name] = DeclaredRelay(
                name=f"bench-{broker.name}",
                topics=(str(topic),),
                handler="django_events.bridges.relays.relaying.Relaying",
                to=to,
                transactional=False,
                batch_size=BATCH,
            )

        if REDIS is not None:
            redis = stack.enter_context(closing(Redis(folder)))
            add("Redis streams", redis, redis_stream("bench"), redis.clear, to_redis(redis.client()))
        if NATS is not None:
            import nats as client

            nats = stack.enter_context(closing(Nats(folder)))
            loop = asyncio.new_event_loop()
            stack.callback(loop.close)
            connection = loop.run_until_complete(client.connect(nats.options["servers"][0]))
            stack.callback(lambda: loop.run_until_complete(connection.close()))

            def clear() -> None:
                nats.clear()
                nats.add_stream("BENCH-0", "bench.0")
                nats.add_stream("BY-HAND", "by-hand")

            add("JetStream", nats, jetstream("bench", stream="BENCH"), clear, to_nats(loop, connection.jetstream()))
        from confluent_kafka import Producer

        mocked = stack.enter_context(closing(MockKafka(folder)))
        producer = Producer({"bootstrap.servers": mocked.servers, "enable.idempotence": True, "linger.ms": 5})
        add("a mocked Kafka", mocked, kafka("bench"), lambda: None, to_kafka(producer))

        def relayed(name: str) -> float:
            clears[name]()
            rewind([relays[name]])
            settle("django_events_position")
            return consume([relays[name]], events)

        def sent(name: str) -> float:
            clears[name]()
            return by_hand(topic_id, events, hands[name])

        blocks: dict[str, Callable[[], float]] = {}
        for name in relays:
            blocks[name] = lambda name=name: relayed(name)
            blocks[f"by hand, {name}"] = lambda name=name: sent(name)
        stack.enter_context(override_settings(DJANGO_EVENTS={"BROKERS": brokers}))
        with registered(*relays.values()):
            samples = interleave(blocks, rounds=effort.rounds(5))
    for name in relays:
        yield samples.row(f"a relay to {name}, batches of {BATCH}", name, f"by hand, {name}", unit="events/s")
