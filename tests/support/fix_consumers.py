"""Consumers for tests, on a database that keeps what is committed: declared, registered, served, and then gone."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import Any

import pytest
from django.db import connection, connections
from django.db.models import QuerySet

from django_events import declarations
from django_events.consuming import registration
from django_events.consuming.handlers import BoundHandler
from django_events.consuming.handling import log_failure
from django_events.consuming.streams.leased_partitions import LeasedPartition
from django_events.consuming.streams.partitions import claim
from django_events.consuming.streams.server import StreamServer
from django_events.consuming.subscriptions import subscriptions
from django_events.log import channel
from django_events.models import (
    Consumer,
    DeadLetter,
    Delivery,
    DeliveryLease,
    PastDelivery,
    Position,
)
from django_events.models.functions import ClockTimestamp
from django_events.workers.consuming import ConsumerPool
from django_events.workers.due_partitions import Due, DuePartitions
from django_events.workers.listening import Listener
from django_events.workers.stopping import Stop
from testproject.shop.models import Order, Product

ConsumerFactory = Callable[..., declarations.DeclaredConsumer]
MOST_TURNS = 500  # of one test: more is a spin


@pytest.fixture
def in_thread() -> Iterator[Callable[..., "Future[Any]"]]:
    """Run functions beside the test, each with connections of its own, which are closed afterwards."""
    with ThreadPoolExecutor(24) as executor:

        def submit(function: Callable[..., Any], *args: Any, **kwargs: Any) -> "Future[Any]":
            def target() -> Any:
                try:
                    return function(*args, **kwargs)
                finally:
                    connections.close_all()

            return executor.submit(target)

        yield submit


@pytest.fixture
def make_consumer(make_topic: Any) -> Iterator[ConsumerFactory]:
    """Declare consumers for one test and register them; their rows are gone when it ends."""
    made: list[declarations.DeclaredConsumer] = []

    def make(
        *topics: declarations.DeclaredTopic | str, handler: Any, name: str = "reader", **options: Any
    ) -> declarations.DeclaredConsumer:
        for earlier in [one for one in made if one.name == name]:
            declarations.consumers.discard(earlier)
        declared = declarations.consumer(*topics, name=name, **options)(handler)
        made.append(declared)
        declarations.consumers.check()
        registration.register("default", declared)
        return declared

    yield make
    forget_consumers(made)


@pytest.fixture
def make_projection(make_topic: Any) -> Iterator[ConsumerFactory]:
    """Declare projections for one test and register them; their rows are gone when it ends."""
    made: list[declarations.DeclaredConsumer] = []

    def make(
        *topics: declarations.DeclaredTopic | str, fold: Any, name: str = "totals", **options: Any
    ) -> declarations.DeclaredConsumer:
        for earlier in [one for one in made if one.name == name]:
            declarations.consumers.discard(earlier)
        declared = declarations.projection(*topics, name=name, **options)(fold)
        made.append(declared)
        registration.sync("default")
        return declared

    yield make
    forget_consumers(made)


def forget_consumers(made: Sequence[declarations.DeclaredConsumer]) -> None:
    for consumer in made:
        declarations.consumers.discard(consumer)
    if not connection.in_atomic_block:
        rows = Consumer.objects.filter(name__in={consumer.name for consumer in made})
        ids = list(rows.values_list("pk", flat=True))
        for model in (Delivery, DeliveryLease, PastDelivery):
            model.objects.filter(consumer_id__in=ids).delete()
        rows.delete()


@pytest.fixture
def shelf(transactional_db: None) -> Product:
    """A product that handlers can write orders of: an effect that may be there twice, and nothing forbids it."""
    return Product.objects.create(sku="tea", price=1, on_shelf=1_000)


def write_order(note: object) -> None:
    """The effect of a handler: an order whose customer is a note."""
    Order.objects.create(customer=str(note), product=Product.objects.get(sku="tea"), quantity=1, total=1)


def written() -> list[str]:
    """The notes of the effects that are committed, in the order in which they were written."""
    return list(Order.objects.order_by("pk").values_list("customer", flat=True))


def due(consumer: declarations.DeclaredConsumer, *, patient: bool = True) -> list[Due]:
    """What a worker that looks now would claim, in that order."""
    due_partitions = DuePartitions("default", subscriptions("default", [consumer]), patient=patient)
    due_partitions.look(period=0)
    return list(iter(due_partitions.take, None))


def lease_of(
    consumer: declarations.DeclaredConsumer, partition: int | None = None, *, holder: str = "a test"
) -> LeasedPartition | None:
    """Claim a partition, by default the only one."""
    [subscription] = subscriptions("default", [consumer])
    lanes = {lane: position_id for position_id, lane in subscription.positions}
    if partition is None:
        [partition] = lanes
    return claim(subscription, lanes[partition], partition, holder=holder)


def serve_lease(lease: LeasedPartition, *, patient: bool = True, **options: Any) -> int:
    server = StreamServer(lease.subscription, lease.position_id, lease.partition, holder="a test", patient=patient)
    with closing(BoundHandler(lease.subscription.consumer)) as handler:
        return server.serve(lease, handler, on_failure=log_failure(lease), **options)


def serve_due(consumer: declarations.DeclaredConsumer, *, patient: bool = True) -> int:
    """Serve what is due, in this thread, until nothing is; returns how many events were passed."""
    due_partitions = DuePartitions("default", subscriptions("default", [consumer]), patient=patient)
    passed = 0
    for _ in range(MOST_TURNS):
        is_seen_now = not due_partitions.more
        if not due_partitions.look(period=0) or (next_due := due_partitions.take()) is None:
            return passed
        lease = claim(*next_due, holder="a test")
        if lease is None:  # a turn since that look may have passed a barrier, or handled what was due there
            assert not is_seen_now, "it is due and can't be claimed"
            continue
        passed += serve_lease(lease, patient=patient)
    raise AssertionError(f"something is still due after {MOST_TURNS} turns")


def positions(consumer: declarations.DeclaredConsumer) -> QuerySet[Position]:
    return Position.objects.filter(consumer__name=consumer.name).order_by("consumer__topic__name", "partition")


def position_of(consumer: declarations.DeclaredConsumer, partition: int | None = None) -> Position:
    """Where a consumer is in a partition, by default the only one."""
    found = positions(consumer)
    return found.get() if partition is None else found.get(partition=partition)


def reached(consumer: declarations.DeclaredConsumer) -> list[int]:
    """The positions of a consumer, by partition."""
    return list(positions(consumer).values_list("position", flat=True))


def dead_letters(consumer: declarations.DeclaredConsumer) -> list[DeadLetter]:
    return list(DeadLetter.objects.filter(consumer__name=consumer.name).order_by("event_id"))


def end_pauses(consumer: declarations.DeclaredConsumer) -> None:
    """As if the time until the next attempt were over."""
    assert positions(consumer).filter(retry_at__isnull=False).update(retry_at=ClockTimestamp())


def expire_leases(consumer: declarations.DeclaredConsumer) -> None:
    """As if the time of the leases were over."""
    assert positions(consumer).filter(token__isnull=False).update(leased_until=ClockTimestamp())


def exhaust(consumer: declarations.DeclaredConsumer) -> None:
    """Serve a consumer, without its pauses, until nothing waits any more."""
    serve_due(consumer)
    for _ in range(MOST_TURNS):
        if not positions(consumer).filter(retry_at__isnull=False).exists():
            return
        end_pauses(consumer)
        serve_due(consumer)
    raise AssertionError("it is tried again and again")


def run_once(*consumers: declarations.DeclaredConsumer, threads: int = 1) -> int:
    """A whole worker that runs until nothing is due; returns how many events were passed."""
    with pool_of(consumers, threads) as pool, closing(Stop()) as stop:
        return pool.run(stop, once=True)


@contextmanager
def working(
    *consumers: declarations.DeclaredConsumer, threads: int = 1, using: str = "default"
) -> Iterator[ConsumerPool]:
    """A whole worker in the background until the block ends; its error is raised then."""
    with pool_of(consumers, threads, using) as pool, closing(Stop()) as stop:
        errors: list[BaseException] = []

        def target() -> None:
            try:
                pool.run(stop)
            except BaseException as error:
                errors.append(error)
            finally:
                connections.close_all()

        thread = threading.Thread(target=target)
        thread.start()
        try:
            yield pool
        finally:
            stop.request()
            thread.join()
        if errors:
            raise errors[0]


@contextmanager
def pool_of(
    consumers: Sequence[declarations.DeclaredConsumer], threads: int = 1, using: str = "default"
) -> Iterator[ConsumerPool]:
    """A whole worker that does nothing yet."""
    with (
        closing(Listener(using)) as listener,
        closing(ConsumerPool(using, consumers, threads=threads, listener=listener)) as pool,
    ):
        yield pool


def tell_workers() -> None:
    """Let workers look everywhere: something was changed by hand."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_notify(%s, '')", [channel.LOG])
