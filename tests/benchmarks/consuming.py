"""Stream consumers: a backlog through a pool of one thread, beside a plain loop, peers, and as things grow."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from time import perf_counter

from django.db import connection
from django.db.models import F
from psycopg import IsolationLevel

from django_events import ReceivedEvent, declarations, models
from django_events.consuming import registration
from django_events.declarations import DeclaredConsumer, DeclaredTopic
from django_events.workers.consuming import ConsumerPool
from django_events.workers.listening import Listener
from django_events.workers.stopping import Stop
from tests.benchmarks import peers
from tests.benchmarks.by_hand import DECODED, noop, read_log
from tests.benchmarks.database import connect, settle, truncate
from tests.benchmarks.harness import Effort, Goal, Row, at_least, figure, interleave
from tests.benchmarks.transfer import GROWN, LOG, backlog, declared

POSITIONS = "django_events_position"
EVENTS = 200_000


def read_each(events: list[ReceivedEvent]) -> None:
    """A handler that reads what each event says, which is decoded then."""
    for event in events:
        event.value  # noqa: B018


def a_consumer(
    *topics: DeclaredTopic, name: str, batch_size: int | None, handler: Callable[..., None] = noop
) -> DeclaredConsumer:
    return DeclaredConsumer(name=name, topics=tuple(map(str, topics)), handler=handler, batch_size=batch_size)


@contextmanager
def registered(*consumers: DeclaredConsumer) -> Iterator[None]:
    """Consumers for a while, with their positions; their topics are declared."""
    for consumer in consumers:
        declarations.consumers.add(consumer)
    try:
        registration.sync(connection.alias)
        yield
    finally:
        for consumer in consumers:
            declarations.consumers.discard(consumer)
        models.Consumer.objects.filter(name__in=[consumer.name for consumer in consumers]).delete()


def consume(consumers: Iterable[DeclaredConsumer], events: int) -> float:
    """Events per second of a pool of one thread, from its start to the last event that it settled."""
    finished = 0.0

    def settled(passed: int) -> None:
        nonlocal finished
        if passed:
            finished = perf_counter()

    using = connection.alias
    with (
        closing(Stop()) as stop,
        closing(Listener(using)) as listener,
        closing(ConsumerPool(using, list(consumers), threads=1, listener=listener)) as pool,
    ):
        started = perf_counter()
        passed = pool.run(stop, once=True, on_progress=settled)
    if passed != events:
        raise RuntimeError(f"{passed} of {events} events were consumed.")
    return events / (finished - started)


def again(*consumers: DeclaredConsumer, events: int, last: int | None = None) -> float:
    """Events per second through all that is in the log of the consumers' topics, or through its `last` events."""
    rewind(consumers, last=last)
    settle(POSITIONS)
    return consume(consumers, events)


def rewind(consumers: Iterable[DeclaredConsumer], *, last: int | None = None) -> None:
    """Put consumers back to where their logs begin, or to before the last events of a log without partitions."""
    positions = models.Position.objects.filter(consumer__name__in=[consumer.name for consumer in consumers])
    back = 0 if last is None else F("position") - last
    positions.update(position=back, number=back, served_at=None)


@figure("N6", "a stream consumer that does nothing, against a bare loop and against others from PyPI")
def through_a_log(effort: Effort) -> Iterator[Row]:
    events = effort.events(EVENTS)
    one, eight = DeclaredTopic(name="bench"), DeclaredTopic(name="bench.8", partitions=8)
    with declared(one, eight) as [one_id, eight_id]:
        fill([one_id, eight_id], events * 2)
        ways = {
            "batches of 1,000": {"batch_size": 1_000},
            "batches of 100": {"batch_size": 100},
            "one by one": {"batch_size": None},
            "batches of 1,000, each value read": {"batch_size": 1_000, "handler": read_each},
        }
        made = {
            (topic, way): a_consumer(topic, name=f"bench-{n}-{topic}", **options)
            for topic in (one, eight)
            for n, (way, options) in enumerate(ways.items())
        }
        loops = {
            "batches of 1,000": lambda: read_log(one_id, events, size=1_000),
            "batches of 100": lambda: read_log(one_id, events, size=100),
            "one by one": lambda: read_log(one_id, events, size=100, single=True),
            "batches of 1,000, each value read": lambda: read_log(one_id, events, size=1_000, columns=DECODED),
        }
        blocks: dict[str, Callable[[], float]] = {}
        for (topic, way), consumer in made.items():
            blocks[f"{way}, {topic.partitions}"] = lambda consumer=consumer: again(consumer, events=events)
        for way, loop in loops.items():
            blocks[f"a bare loop, {way}"] = loop
        others = peers.installed()
        for peer in others:
            blocks[peer] = lambda peer=peer: peers.rate(peer, effort.events(peers.JOBS[peer]))
        with registered(*made.values()):
            samples = interleave(blocks, rounds=effort.rounds(3))

    goals: dict[str, Goal | None] = {
        "batches of 1,000": at_least(75_000, "measured"),
        "batches of 100": at_least(57_000, "measured"),
        "one by one": at_least(10_000, "measured"),
    }
    for topic, way in made:
        where = "1 partition" if topic is one else "8 partitions"
        yield samples.row(
            f"{way}, {where}",
            f"{way}, {topic.partitions}",
            f"a bare loop, {way}",
            unit="events/s",
            goal=goals.get(way),
        )
    for way in ("batches of 1,000", "one by one"):
        for peer in others:
            yield samples.row(f"{way}, 1 partition", f"{way}, 1", peer, unit="events/s", goal=at_least(1))


def fill(topic_ids: list[int], events: int) -> None:
    """A log that the transfer made, and the first topic's as a plain table."""
    backlog(topic_ids, events)
    truncate("bench_log")
    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO bench_log SELECT * FROM {LOG} WHERE topic_id = %s", [topic_ids[0]])
        cursor.execute(f"ANALYZE {LOG}, bench_log")  # a plain loop reads by index only then
    settle(LOG, "bench_log")


BACKLOG = 500_000


@figure("N17", "a stream consumer at ten times the events, topics and consumers, and under an old snapshot")
def as_it_grows(effort: Effort) -> Iterator[Row]:
    yield from _more_events_and_an_old_snapshot(effort)
    yield _more_topics(effort)
    yield _more_consumers(effort)


def _more_events_and_an_old_snapshot(effort: Effort) -> Iterator[Row]:
    events = effort.events(BACKLOG)
    topic = DeclaredTopic(name="bench")
    thousands = a_consumer(topic, name="bench-1000", batch_size=1_000)
    hundreds = a_consumer(topic, name="bench-100", batch_size=100)

    def held() -> float:
        """The second time through the log, with a snapshot from before the first."""
        with connect(autocommit=False) as old:
            old.isolation_level = IsolationLevel.REPEATABLE_READ
            old.execute("SELECT count(*) FROM django_events_topic")
            again(hundreds, events=events)
            rate = again(hundreds, events=events)
            old.rollback()
        return rate

    with declared(topic) as ids, registered(thousands, hundreds):
        fill(ids, events)
        again(thousands, events=events)  # so that there is an end to go back from
        samples = interleave(
            {
                "a tenth": lambda: again(thousands, events=events // 10, last=events // 10),
                "all": lambda: again(thousands, events=events),
                "fresh": lambda: again(hundreds, events=events),
                "held": held,
            },
            rounds=effort.rounds(3),
        )
    yield samples.row(f"consuming {events:,}", "all", "a tenth", unit="events/s", goal=at_least(GROWN))
    yield samples.row(
        f"consuming {events:,} by hundreds under a snapshot, after {events:,}",
        "held",
        "fresh",
        unit="events/s",
        goal=at_least(0.9),
    )


def _more_topics(effort: Effort) -> Row:
    """Each topic has a consumer of its own and as many events."""
    each = effort.events(5_000)
    topics = [DeclaredTopic(name=f"bench.{n}") for n in range(100)]
    consumers = [a_consumer(topic, name=f"bench-{topic}", batch_size=1_000) for topic in topics]
    with declared(*topics) as ids, registered(*consumers):
        fill(ids, each * len(ids))
        samples = interleave(
            {
                "10 topics": lambda: again(*consumers[:10], events=each * 10),
                "100 topics": lambda: again(*consumers, events=each * 100),
            },
            rounds=effort.rounds(3),
        )
    return samples.row(
        f"consuming 100 topics of {each:,}, a consumer each",
        "100 topics",
        "10 topics",
        unit="events/s",
        goal=at_least(GROWN),
    )


def _more_consumers(effort: Effort) -> Row:
    """All of them read the same log."""
    each = effort.events(20_000)
    topic = DeclaredTopic(name="bench")
    consumers = [a_consumer(topic, name=f"bench-{n}", batch_size=1_000) for n in range(20)]
    with declared(topic) as ids, registered(*consumers):
        fill(ids, each)
        samples = interleave(
            {
                "2 consumers": lambda: again(*consumers[:2], events=each * 2),
                "20 consumers": lambda: again(*consumers, events=each * 20),
            },
            rounds=effort.rounds(3),
        )
    return samples.row(
        f"20 consumers of a topic of {each:,}",
        "20 consumers",
        "2 consumers",
        unit="events/s",
        goal=at_least(GROWN),
    )
