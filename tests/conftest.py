"""Fixtures that tests of several folders use."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest
from django.db import connection, connections

from django_events import declarations
from django_events.log.topics import sync
from django_events.log.transfer import Transfer
from django_events.models import Event, TopicRow
from django_events.statements import log_table

pytest_plugins = [
    "django_events.pytest_plugin",
    "tests.support.fix_consumers",
    "tests.support.fix_processes",
    "tests.support.fix_queues",
    "tests.support.fix_restores",
    "tests.support.fix_servers",
    "tests.support.fix_sites",
]

# A Spark that lives for seconds spends most of them on compiling itself: Java's quick compiler alone takes half.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

TopicFactory = Callable[..., declarations.Topic]
Connect = Callable[..., "Session"]


class Session(psycopg.Connection[Any]):
    """A session of somebody else on the test's database, in a transaction until it commits."""

    def publish(self, topic: declarations.Topic, value: str, **fields: Any) -> int:
        names = "".join(f", {name} => %({name})s" for name in fields)
        row = self.execute(
            f"SELECT django_events_publish(%(topic)s, to_jsonb(%(value)s::text){names})",
            {"topic": topic.name, "value": value, **fields},
        ).fetchone()
        assert row is not None
        return int(row[0])


@pytest.fixture
def connect(transactional_db: None) -> Iterator[Connect]:
    """Open sessions on the test's database; they are closed when the test ends."""
    sessions: list[Session] = []

    def connect_one(**options: Any) -> Session:
        parameters = connection.get_connection_params()
        for django_only in ("cursor_factory", "context"):
            parameters.pop(django_only, None)
        session = Session.connect(**{**parameters, "prepare_threshold": None, **options})
        sessions.append(session)
        return session

    yield connect_one
    for session in sessions:
        with suppress(psycopg.Error):
            session.close()


@pytest.fixture
def two_sessions(connect: Connect) -> tuple[Session, Session]:
    return connect(), connect()


@pytest.fixture
def other_alias(transactional_db: None) -> Iterator[str]:
    """A second alias of the test's database, with a connection of its own."""
    connections["other"] = connections["default"].copy("other")
    yield "other"
    connections["other"].close()
    del connections["other"]


@pytest.fixture
def make_topic(request: pytest.FixtureRequest) -> Iterator[TopicFactory]:
    """Declare topics for one test, with their rows and tables; they are dropped when it ends."""
    if "transactional_db" not in request.fixturenames:
        request.getfixturevalue("db")
    made: list[declarations.Topic] = []

    def make(name: str = "things", **options: Any) -> declarations.Topic:
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
    rows = TopicRow.objects.filter(name__in=names)
    with connection.cursor() as cursor:
        for topic in rows:
            cursor.execute(f"DROP TABLE IF EXISTS {log_table(topic.pk)} CASCADE")
    rows.delete()


@pytest.fixture
def undiscovered() -> Iterator[declarations.Topic]:
    """Declared, but `migrate` has not run since."""
    topic = declarations.topic("undiscovered")
    yield topic
    declarations.registry.discard(topic)


@pytest.fixture
def things(make_topic: TopicFactory) -> declarations.Topic:
    """A topic of one partition."""
    return make_topic("things")


@pytest.fixture
def lanes(make_topic: TopicFactory) -> declarations.Topic:
    """A topic of four partitions."""
    return make_topic("lanes", partitions=4)


def login(**changed: Any) -> dict[str, Any]:
    """Settings that reach the test's database otherwise: the private server's engine knows one place and login only."""
    known, parameters = connection.settings_dict, connection.get_connection_params()
    names = {"HOST": "host", "PORT": "port", "USER": "user", "PASSWORD": "password", "NAME": "dbname"}
    usual = {setting: str(parameters.get(name, "")) for setting, name in names.items()}
    return {**known, "ENGINE": "django.db.backends.postgresql", **usual, **changed}


@contextmanager
def alias(**changes: Any) -> Iterator[str]:
    """Another alias of the test's database, or of another one."""
    connections.settings["other"] = login(**changes)
    try:
        yield "other"
    finally:
        connections["other"].close()
        del connections["other"], connections.settings["other"]


def transfer_all(*, batch_size: int = 5_000) -> int:
    """Move everything that is in the buffer, as a worker that has just started."""
    worker = Transfer("default", batch_size=batch_size)
    total = 0
    while (moved := worker.move()) or worker.left:
        total += moved
    worker.setbacks.raise_first()
    return total


def log_values(topic: declarations.Topic) -> list[Any]:
    """The values in the log of a topic, in order."""
    return list(Event.objects.since(topic).values_list("value", flat=True))


def assert_dense(topic: declarations.Topic) -> None:
    """Ids are 1..n, numbers are 1..n in each partition, times never go back."""
    rows = list(Event.objects.since(topic).values_list("id", "partition", "number", "logged_at"))
    assert [id for id, *_ in rows] == list(range(1, len(rows) + 1))
    seen: dict[int, int] = {}
    for _, partition, number, _ in rows:
        seen[partition] = seen.get(partition, 0) + 1
        assert number == seen[partition]
    times = [logged_at for *_, logged_at in rows]
    assert times == sorted(times)
