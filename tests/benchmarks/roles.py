"""What the processes of a figure do: python -m tests.benchmarks.roles publish_at_a_rate 100 20

They use the database of DATABASE_URL, where the figure has declared its topics and consumers, and end by
themselves or at SIGTERM. What they found out is the last line of their output, as JSON.
"""

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
django.setup()

import psycopg  # noqa: E402
from django.conf import settings  # noqa: E402
from django.db import connection, transaction  # noqa: E402
from django.test import override_settings  # noqa: E402

from django_events import ReceivedEvent, declarations, publish, publish_many, wait_for  # noqa: E402
from django_events.declarations import DeclaredConsumer, DeclaredTopic  # noqa: E402
from django_events.maintaining import steps  # noqa: E402
from django_events.workers.all_in_one import AllInOne  # noqa: E402
from django_events.workers.consuming import ConsumerPool  # noqa: E402
from django_events.workers.listening import Listener  # noqa: E402
from django_events.workers.loop import run  # noqa: E402
from django_events.workers.stopping import Stop, stop_on_signals  # noqa: E402
from django_events.workers.transferring import TransferWorker  # noqa: E402
from tests.benchmarks import peers  # noqa: E402
from tests.benchmarks.bridged import STREAM_OF_NATS, STREAM_OF_REDIS, SUBJECT_OF_NATS, a_relay  # noqa: E402
from tests.benchmarks.by_hand import LAZY, PROGRESS, READ, noop  # noqa: E402
from tests.benchmarks.database import CONSUMED, PUBLISHED, connect  # noqa: E402
from tests.benchmarks.samples import KEYS, PLAIN_COLUMNS, TYPE, draft, key, value  # noqa: E402
from tests.benchmarks.trace import Trace  # noqa: E402
from tests.benchmarks.transfer import PROTOTYPE  # noqa: E402

TOPIC = DeclaredTopic(name="bench")
MANY = 1_000
PAUSE = 0.01  # seconds


def noted(what: str) -> None:
    """Nothing, unless the role is traced."""


def publish_at_a_rate(rate: str, seconds: str, keys: str = str(KEYS)) -> Any:
    """Publish one event per transaction, at random times; returns when each was begun and committed."""

    def one(n: int, sent: float) -> None:
        with transaction.atomic():
            publish(TOPIC, {**value(n), "sent": sent}, type=TYPE, key=str(n % int(keys)))

    return _at_a_rate(one, float(rate), float(seconds))


def publish_and_wait(rate: str, seconds: str) -> Any:
    """The same, and each time wait for the consumer; returns when that was over, and a second wait for the same."""
    seen: list[tuple[float, float, float]] = []

    def one(n: int, sent: float) -> None:
        with transaction.atomic():
            receipt = publish(TOPIC, {**value(n), "sent": sent}, type=TYPE, key=key(n))
        committed = time.time()
        wait_for(receipt, "bench")
        once = time.time()
        wait_for(receipt, "bench")
        seen.append((committed, once, time.time()))

    done = _at_a_rate(one, float(rate), float(seconds))
    return [(sent, *times) for (sent, _), times in zip(done, seen, strict=True)]


def insert_at_a_rate(rate: str, seconds: str) -> Any:
    """The same by hand: an INSERT and a NOTIFY."""
    with connect(autocommit=False) as plain:

        def one(n: int, sent: float) -> None:
            plain.execute(
                f"INSERT INTO bench_buffer ({PLAIN_COLUMNS}) VALUES (1, NULL, %s, %s, %s, NULL, '{{}}')",
                [TYPE, key(n), json.dumps({**value(n), "sent": sent})],
            )
            plain.execute("NOTIFY bench_buffer")
            plain.commit()

        return _at_a_rate(one, float(rate), float(seconds))


def publish_to_peer(peer: str, rate: str, seconds: str) -> Any:
    """The same by a function of a peer."""
    with peers.publisher(peer) as one:
        return _at_a_rate(one, float(rate), float(seconds))


def note_latency_of_peer(peer: str) -> Any:
    """Work as a peer does; returns when each job was sent and when its function got it."""
    with stop_on_signals() as stop:
        return peers.note_arrivals(peer, stop)


def _at_a_rate(one: Callable[[int, float], None], rate: float, seconds: float) -> list[tuple[float, float]]:
    dice = random.Random(7)
    moment, done = time.perf_counter(), []
    for n in range(int(rate * seconds)):
        moment += dice.expovariate(rate)
        time.sleep(max(moment - time.perf_counter(), 0))
        sent = time.time()
        one(n, sent)
        done.append((sent, time.time()))
    return done


def publish_without_end(most: str) -> Any:
    """Publish a thousand at a time, and wait while the consumer is `most` events behind; returns how much of the time.

    A publisher looks after every batch: that is part of what it costs.
    """
    drafts = [draft(n) for n in range(MANY)]
    waited = 0.0
    with stop_on_signals() as stop:
        began, none = time.perf_counter(), _lag()
        while not stop.requested:
            publish_many(TOPIC, drafts)
            while _lag() - none >= int(most) and not stop.requested:
                time.sleep(PAUSE)
                waited += PAUSE
        return {"waited": waited / (time.perf_counter() - began)}


def _lag() -> int:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT ({PUBLISHED}) - ({CONSUMED})")
        [[lag]] = cursor.fetchall()
    return int(lag)


def note_latency(way: str) -> Any:
    """Consume one by one; returns when each event was sent and when its handler got it."""
    arrived: list[tuple[float, float]] = []

    def handler(event: ReceivedEvent) -> None:
        noted("handles")
        arrived.append((event.value["sent"], time.time()))

    mode = "queue" if way == "queue" else "stream"
    consumer = DeclaredConsumer(
        name="bench", topics=(TOPIC.name,), handler=handler, mode=mode, partitioned=mode == "stream"
    )
    if way == "all_in_one":
        with stop_on_signals() as stop, closing(AllInOne(connection.alias, [consumer])) as crew:
            crew.run(stop)
    else:
        _consume([consumer])
    return arrived


def consume(batch_size: str, *names: str) -> Any:
    """Run consumers that do nothing; a name is the consumer's and its topic's: `audit@orders`."""
    pairs = [name.split("@") for name in names]
    _consume(
        [
            DeclaredConsumer(name=name, topics=(topic,), handler=noop, batch_size=int(batch_size) or None)
            for name, topic in pairs
        ]
    )


def relay(broker: str, options: str) -> None:
    """Run a relay to a broker, whose client has these options."""
    with override_settings(DJANGO_EVENTS={"BROKERS": {broker: json.loads(options)}}):
        _consume([a_relay(broker)])


def note_arrivals(broker: str, options: str) -> Any:
    """Read what a relay sends to a broker; returns when each event was published and when it arrived."""
    return {"redis": _read_redis, "nats": _read_nats}[broker](json.loads(options))


def _read_redis(options: dict[str, Any]) -> list[tuple[float, float]]:
    from redis import Redis

    arrived, last = [], b"0"
    with stop_on_signals() as stop, Redis(**options) as client:
        while not stop.requested:
            for _, entries in client.xread({STREAM_OF_REDIS: last}, block=100):
                last = entries[-1][0]
                arrived += [(json.loads(fields[b"data"])["sent"], time.time()) for _, fields in entries]
    return arrived


def _read_nats(options: dict[str, Any]) -> list[tuple[float, float]]:
    import nats

    arrived: list[tuple[float, float]] = []

    async def note(message: Any) -> None:
        arrived.append((json.loads(message.data)["sent"], time.time()))

    async def read() -> None:
        ended = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
        connection = await nats.connect(options["servers"][0])
        context = connection.jetstream()
        await context.subscribe(SUBJECT_OF_NATS, stream=STREAM_OF_NATS, ordered_consumer=True, cb=note)
        await ended.wait()
        await connection.close()

    asyncio.run(read())
    return arrived


def _consume(consumers: list[DeclaredConsumer]) -> None:
    using = connection.alias
    with (
        stop_on_signals() as stop,
        closing(Listener(using)) as listener,
        closing(ConsumerPool(using, consumers, threads=1, listener=listener)) as pool,
    ):
        print("at work", flush=True)
        pool.run(stop)


def maintain_without_end() -> Any:
    """End segments early and drop them, again and again, as no maintenance does; returns how many, in what time."""
    dropped, using = 0, connection.alias
    with stop_on_signals() as stop:
        began = time.perf_counter()
        while not stop.requested:
            steps.make_segments(using, lambda: stop.requested)
            dropped += steps.apply_retention(using, lambda: stop.requested)["segments"]
        return {"segments": dropped, "seconds": time.perf_counter() - began}


def follow(how: str, port: str, count: str) -> Any:
    """So many browsers with a stream each, or that poll; returns when each event was sent and when it arrived."""
    return asyncio.run(_follow(how, int(port), int(count)))


async def _follow(how: str, port: int, count: int) -> list[tuple[float, float]]:
    arrived: list[tuple[float, float]] = []
    there = asyncio.Semaphore(0)

    async def stream(user: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET /live/?user={user} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        status = await reader.readline()
        if b" 200 " not in status:
            raise RuntimeError(f"The server says {status!r}.")
        while not (await reader.readline()).startswith(b"id: "):
            pass
        there.release()
        while line := await reader.readline():
            if line.startswith(b"data: "):
                arrived.append((json.loads(line[6:])["value"]["sent"], time.time()))

    async def poll(user: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        after = 0
        while True:
            writer.write(f"GET /poll/?user={user}&after={after} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            [length] = [
                line.split(b":")[1] for line in head.lower().splitlines() if line.startswith(b"content-length:")
            ]
            for event in json.loads(await reader.readexactly(int(length))):
                arrived.append((event["value"]["sent"], time.time()))
                after = event["id"]
            if after == 0:
                there.release()
            await asyncio.sleep(1)

    one = stream if how == "live" else poll
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)

    async def all_are_there() -> None:
        for _ in range(count):
            await there.acquire()
        print("all are there", flush=True)
        await ended.wait()
        raise asyncio.CancelledError

    with suppress(asyncio.CancelledError):
        await asyncio.gather(all_are_there(), *map(one, range(count)))
    return arrived


def transfer() -> None:
    """What `run_transfer` does, without maintenance."""
    using = connection.alias
    with (
        stop_on_signals() as stop,
        closing(Listener(using)) as listener,
        closing(TransferWorker(using, listener)) as worker,
    ):
        run(worker, stop)


def move_by_hand() -> Any:
    """The least that a transfer does: told of rows, it moves them, and tells."""
    position, mark = 0, 0

    def move(plain: psycopg.Connection[Any]) -> None:
        nonlocal position, mark
        while True:
            moved = plain.execute(PROTOTYPE, {"mark": mark, "batch": 5_000, "last": position}).fetchone()
            if moved is None or not moved[0]:
                plain.commit()
                return
            position, mark = position + moved[0], moved[1]
            plain.execute("NOTIFY bench_log")
            plain.commit()

    _on_notify("bench_buffer", move)


def read_by_hand() -> Any:
    """The least that a consumer does: told of rows, it reads them, and notes how far it is."""
    arrived: list[tuple[float, float]] = []
    position = 0

    def read(plain: psycopg.Connection[Any]) -> None:
        nonlocal position
        while rows := plain.execute(READ.format(columns=LAZY), (1, position, 100)).fetchall():
            arrived.extend((json.loads(row[5])["sent"], time.time()) for row in rows)
            position = rows[-1][0]
            plain.execute(PROGRESS, (position,))
            plain.commit()
        plain.commit()

    _on_notify("bench_log", read)
    return arrived


def _on_notify(channel: str, react: Callable[[psycopg.Connection[Any]], None]) -> None:
    with stop_on_signals() as stop, connect() as listening, connect(autocommit=False) as plain:
        listening.execute(f"LISTEN {channel}")
        while not stop.requested:
            react(plain)
            _wait(stop, listening)


def _wait(stop: Stop, listening: psycopg.Connection[Any]) -> None:
    stop.wait(1.0, listening.pgconn.socket)
    listening.pgconn.consume_input()
    while listening.pgconn.notifies():
        pass


ROLES = {
    role.__name__: role
    for role in (
        publish_at_a_rate,
        publish_and_wait,
        insert_at_a_rate,
        publish_to_peer,
        note_latency_of_peer,
        publish_without_end,
        note_latency,
        transfer,
        consume,
        relay,
        note_arrivals,
        maintain_without_end,
        follow,
        move_by_hand,
        read_by_hand,
    )
}


def traced(role: str, *arguments: str) -> Any:
    """The same as a role, and what it did when."""
    trace = Trace(role)
    trace.begin()
    global noted
    noted = trace.note
    return {"result": ROLES[role](*arguments), "marks": trace.marks}


if __name__ == "__main__":
    settings.DEBUG = False
    declarations.registry.add(TOPIC)
    role, *arguments = sys.argv[1:]
    print(json.dumps(traced(*arguments) if role == "traced" else ROLES[role](*arguments)))
