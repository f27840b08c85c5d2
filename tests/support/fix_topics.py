"""Topics for tests: declared, made, filled and compared, and then gone."""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection

from django_events import declarations
from django_events.log import compaction
from django_events.log.topics import sync
from django_events.log.transfer import Transfer
from django_events.models import Event, Topic
from django_events.statements import log_table
from tests.support.processes import wait_until

TopicFactory = Callable[..., declarations.DeclaredTopic]


@pytest.fixture
def make_topic(request: pytest.FixtureRequest) -> Iterator[TopicFactory]:
    """Declare topics for one test, with their rows and tables; they are dropped when it ends."""
    if "transactional_db" not in request.fixturenames:
        request.getfixturevalue("db")
    made: list[declarations.DeclaredTopic] = []

    def make(name: str = "things", **options: Any) -> declarations.DeclaredTopic:
        topic = declarations.topic(name, **options)
        made.append(topic)
        sync("default")
        return topic

    yield make
    for topic in made:
        declarations.registry.discard(topic)
    if not connection.in_atomic_block:
        drop_topics([topic.name for topic in made])


def drop_topics(names: list[str]) -> None:
    rows = Topic.objects.filter(name__in=names)
    for topic in rows:
        _drop(log_table(topic.pk))
    rows.delete()


def _drop(table: str) -> None:
    """Drop a log. A reader that plans now has a part of the locks that this takes: one of both has to give way."""
    for left in reversed(range(5)):
        try:
            with connection.cursor() as cursor:
                cursor.execute(f"DROP TABLE IF EXISTS {table} CASCADE")
        except OperationalError as error:
            if not left or not isinstance(error.__cause__, psycopg.errors.DeadlockDetected):
                raise
        else:
            return


@pytest.fixture
def undiscovered() -> Iterator[declarations.DeclaredTopic]:
    """Declared, but `migrate` has not run since."""
    topic = declarations.topic("undiscovered")
    yield topic
    declarations.registry.discard(topic)


@pytest.fixture
def things(make_topic: TopicFactory) -> declarations.DeclaredTopic:
    """A topic of one partition."""
    return make_topic("things")


@pytest.fixture
def lanes(make_topic: TopicFactory) -> declarations.DeclaredTopic:
    """A topic of four partitions."""
    return make_topic("lanes", partitions=4)


def transfer_all(*, batch_size: int = 5_000) -> int:
    """Move everything that is in the buffer, as a worker that has just started."""
    worker = Transfer("default", batch_size=batch_size)
    total = 0
    while (moved := worker.move()) or worker.left:
        total += moved
    worker.setbacks.raise_first()
    return total


def wait_for_older_transactions() -> None:
    """Wait until each snapshot has what is committed now: one transaction of another database keeps them all old."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_current_xact_id()::text::bigint")
        [[newest]] = cursor.fetchall()

        def ended() -> bool:
            cursor.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint > %s", [newest])
            return cursor.fetchall() == [(True,)]

        wait_until(ended, what="the end of older transactions, of other databases too")


def compact_topic(topic: declarations.DeclaredTopic | str) -> compaction.Compacted:
    """Compact a topic when nothing holds that up."""
    wait_for_older_transactions()
    return compaction.compact("default", Topic.objects.select_related("head").get(name=str(topic)))


def log_values(topic: declarations.DeclaredTopic) -> list[Any]:
    """The values in the log of a topic, in order."""
    return list(Event.objects.since(topic).values_list("value", flat=True))


def assert_dense(topic: declarations.DeclaredTopic) -> None:
    """Ids are 1..n, numbers are 1..n in each partition, times never go back."""
    rows = list(Event.objects.since(topic).values_list("id", "partition", "number", "logged_at"))
    assert [id for id, *_ in rows] == list(range(1, len(rows) + 1))
    seen: dict[int, int] = {}
    for _, partition, number, _ in rows:
        seen[partition] = seen.get(partition, 0) + 1
        assert number == seen[partition]
    times = [logged_at for *_, logged_at in rows]
    assert times == sorted(times)


@pytest.fixture(scope="session", autouse=True)
def shop_describes_nothing() -> None:
    """A type has one model in a site, and the shop has one of `order.placed`: tests describe it in other ways."""
    orders = declarations.registry.get("orders")
    object.__setattr__(orders, "schemas", ())
    vars(orders).pop("contract", None)
    for one in list(declarations.upcasters):
        if one.function.__module__ == "testproject.shop.upcasters":
            declarations.upcasters.discard(one)
