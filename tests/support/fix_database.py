"""The database that tests commit to, and other sessions and aliases of it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest
from django.db import connection, connections

from django_events import declarations, sql
from django_events.consuming import streams
from django_events.models import (
    BufferedEvent,
    Consumer,
    DedupKey,
    Intervention,
    MaintenanceStep,
    Sample,
    ScheduledEvent,
)
from django_events.observing import dead_rows
from django_events.workers import lease_renewal
from testproject.shop.models import Order, Product, SearchEntry

Connect = Callable[..., "Session"]


LEFT_BEHIND = (
    Order,
    Product,
    SearchEntry,
    Intervention,
    BufferedEvent,
    ScheduledEvent,
    DedupKey,
    Sample,
    MaintenanceStep,
)


@pytest.fixture
def transactional_db(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The database without a transaction around the test.

    It takes the place of pytest-django's fixture, which flushes all tables after each test and needs a second for it.
    Fixtures remove the topics and consumers that a test makes; a consumer or a thread that stays fails the test. A test
    that leaves anything else behind is marked `django_db(transaction=True)`: its tables are flushed.
    """
    if request.node.get_closest_marker("django_db"):
        request.getfixturevalue("_django_db_helper")
        yield
        return
    request.getfixturevalue("django_db_setup")
    monkeypatch.setattr(lease_renewal, "TICK", 0.01)  # what a worker waits for when it ends
    for time_that_may_be_up in ("TURN", "TRANSACTION"):  # not because a test runs on a busy machine
        monkeypatch.setattr(streams, time_that_may_be_up, 3_600.0)
    with request.getfixturevalue("django_db_blocker").unblock():
        known = set(Consumer.objects.values_list("pk", flat=True))
        clean_up_dead_rows()
        yield
        left = [thread.name for thread in threading.enumerate() if thread.name.startswith(("consumer ", "django_ev"))]
        try:
            assert not left, f"threads go on: {left}"
            assert not connection.in_atomic_block
            assert not Consumer.objects.exclude(pk__in=known).exists()
        finally:
            for model in LEFT_BEHIND:
                model.objects.all().delete()
            connections.close_all()


def clean_up_dead_rows() -> None:
    """Tests with many events leave many dead rows: `status` would tell of them, in whichever test comes next."""
    half = {"least": dead_rows.LEAST // 2, "times": dead_rows.TIMES_LIVE}  # the test adds its own
    with connection.cursor() as cursor:
        for table, *_ in sql.fetch("default", dead_rows.SQL.dead_rows, **half):
            cursor.execute(f"VACUUM {table}")


class Session(psycopg.Connection[Any]):
    """Another session on the test's database, in a transaction until it commits."""

    def publish(self, topic: declarations.DeclaredTopic, value: str, **fields: Any) -> int:
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
