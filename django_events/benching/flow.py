"""A whole flow, measured: publishers, a transfer and consumers of this process, on a scratch topic of its own.

with stop_on_signals() as stop:
    measured = run("default", Load(events=10_000, rate=500), stop)
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from django.db import connections

from django_events import declarations, sql
from django_events.benching.load import Load
from django_events.benching.moving import TransferOfOne
from django_events.benching.percentiles import SHARES, LatencySummary
from django_events.benching.publishers import Publishers
from django_events.benching.scratch_topic import ScratchTopic, scratch_topic
from django_events.benching.timings import Timings, clock
from django_events.log import inventory
from django_events.received import ReceivedEvent
from django_events.statements import log_table
from django_events.workers.background import in_background
from django_events.workers.consuming import ConsumerPool
from django_events.workers.listening import Listener
from django_events.workers.stopping import Stop

SQL = sql.beside(__name__)

LOOK_EVERY = 0.05  # seconds
LEAST_WAITING = 10.0  # seconds, for what is published to be handled


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """So many events in so many seconds."""

    events: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.events / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, kw_only=True)
class FlowResult:
    """What a flow was like.

    `complete`: all that was due at a rate was published, and all that was published was handled by every consumer.
    """

    topic: str
    complete: bool
    stopped: bool
    paced: bool
    planned: int
    published: Throughput
    calls: int
    logged: int
    handled: dict[str, Throughput]
    again: int
    moved: int
    batches: int
    moving_seconds: float
    bytes: int
    cpu: float
    latencies: dict[str, LatencySummary]

    @property
    def not_published(self) -> int:
        """What was due in its time and was not published: no latency tells of it. Without a rate nothing is due."""
        return self.planned - self.published.events if self.paced else 0

    @property
    def moved_by_others(self) -> int:
        """By the site's own transfers."""
        return max(self.logged - self.moved, 0)


def run(using: str, load: Load, stop: Stop, *, say: Callable[[str], None] = lambda text: None) -> FlowResult:
    """Make the scratch topic, put the load on it, wait until it is through, and drop the scratch topic again.

    Publishing ends after the load's seconds, and waiting for what is published after as many again. Whatever happens,
    the scratch topic is dropped, except by a process that is killed.
    """
    timings = Timings(load.planned, load.consumers)
    with scratch_topic(using, lambda topic: _consumers(topic, load, timings), partitions=load.partitions) as made:
        say(f"Publishing to {made.declared}. Ctrl-C stops, and drops it.")
        return Flow(using, made, load, timings).run(stop)


class Flow:
    """One run on a scratch topic that is made."""

    def __init__(self, using: str, made: ScratchTopic, load: Load, timings: Timings) -> None:
        self.using = using
        self._made = made
        self._load = load
        self._timings = timings

    def run(self, stop: Stop) -> FlowResult:
        using, consumers, threads = self.using, self._made.consumers, self._load.threads
        with (
            closing(Listener(using)) as listener,
            closing(Stop()) as ending,
            closing(ConsumerPool(using, consumers, threads=threads, listener=listener)) as pool,
            in_background(transfer := TransferOfOne(using, self._made.topic.pk, listener), on_error=ending.request),
            _together([lambda: pool.run(ending)] if consumers else [], ending) as consuming,
        ):
            self._timings.start()
            cpu = time.process_time()
            publishers = Publishers(self.using, self._made.declared, self._load, self._timings)
            shares = [lambda: publishers.work(ending)] * self._load.publishers
            try:
                with _together(shares, ending) as publishing:
                    self._watch(stop, ending, [*consuming, *publishing], publishing)
                    took = clock() - self._timings.started
                    cpu = (time.process_time() - cpu) / took
                    if stop.requested:
                        ending.request()
            finally:
                ending.request()
        return self._measured(stop, transfer, cpu)

    def _watch(
        self, stop: Stop, ending: Stop, threads: Sequence[threading.Thread], publishers: Sequence[threading.Thread]
    ) -> None:
        """Until all is through, or its time is over."""
        timings = self._timings
        latest = timings.started + self._load.seconds + max(self._load.seconds, LEAST_WAITING)
        while not stop.requested and not ending.requested and clock() < latest:
            [log] = inventory.logs(self.using, [self._made.topic])
            timings.logged = log.last_id
            if not any(thread.is_alive() for thread in publishers) and not timings.in_flight:
                return
            stop.wait(LOOK_EVERY)
        ending.request()

    def _measured(self, stop: Stop, transfer: TransferOfOne, cpu: float) -> FlowResult:
        timings, topic = self._timings, self._made.topic
        [log] = inventory.logs(self.using, [topic])
        [(_, average, shares)] = sql.fetch(
            self.using, SQL.log_latencies.on(log=log_table(topic.pk)), shares=list(SHARES)
        )
        latencies = {"due → committed": LatencySummary.of(timings.to_commit())}
        if shares:
            latencies["published → log"] = LatencySummary(
                log.last_id, 1_000 * average, *(1_000 * seconds for seconds in shares)
            )
        for index in range(len(self._made.consumers)):
            mark = f", consumer {index + 1}" if len(self._made.consumers) > 1 else ""
            latencies[f"committed → handler{mark}"] = LatencySummary.of(timings.to_handler(index, since_commit=True))
            latencies[f"due → handler{mark}"] = LatencySummary.of(timings.to_handler(index))
        handled = {
            consumer.name: Throughput(events=timings.handled[index], seconds=timings.seconds_of_handling(index))
            for index, consumer in enumerate(self._made.consumers)
        }
        return FlowResult(
            topic=topic.name,
            complete=not stop.requested
            and (self._load.rate is None or timings.published == self._load.planned)
            and timings.published == log.last_id
            and all(n == timings.published for n in timings.handled),
            stopped=stop.requested,
            paced=self._load.rate is not None,
            planned=self._load.planned,
            published=Throughput(events=timings.published, seconds=timings.seconds_of_publishing),
            calls=timings.calls,
            logged=log.last_id,
            handled=handled,
            again=timings.again,
            moved=transfer.moved,
            batches=transfer.batches,
            moving_seconds=transfer.seconds,
            bytes=inventory.sizes(self.using, [topic])[topic.name][1],
            cpu=cpu,
            latencies={name: summary for name, summary in latencies.items() if summary is not None},
        )


def _consumers(topic: declarations.DeclaredTopic, load: Load, timings: Timings) -> list[declarations.DeclaredConsumer]:
    return [_consumer(topic, load, timings, index) for index in range(load.consumers)]


def _consumer(
    topic: declarations.DeclaredTopic, load: Load, timings: Timings, index: int
) -> declarations.DeclaredConsumer:
    def note(event: ReceivedEvent) -> None:
        timings.note_handled(index, [event.value["n"]])

    def note_all(events: Sequence[ReceivedEvent]) -> None:
        timings.note_handled(index, [event.value["n"] for event in events])

    return declarations.DeclaredConsumer(
        name=f"{topic}.{index + 1}",
        topics=(topic.name,),
        handler=note if load.batch_size is None else note_all,
        batch_size=load.batch_size,
        mode=load.mode,
        partitioned=load.mode == "stream",
        declared_at=topic.declared_at,
    )


@contextmanager
def _together(functions: Sequence[Callable[[], object]], ending: Stop) -> Iterator[list[threading.Thread]]:
    """Run functions in threads beside the block, with connections of their own; the first error is raised at the end.

    An error ends everybody. The block's end waits for them, so it is for the block to see that they end.
    """
    errors: list[BaseException] = []

    def target(function: Callable[[], object]) -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)
            ending.request()
        finally:
            connections.close_all()

    threads = [threading.Thread(target=target, args=[function], daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    try:
        yield threads
    except BaseException:
        ending.request()
        raise
    finally:
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
