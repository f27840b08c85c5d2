"""The database that tests commit to, and other sessions and aliases of it."""

import json
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, NamedTuple

import psycopg
import pytest
from django.db import connection, connections

from django_events import declarations, sql
from django_events.consuming import handling
from django_events.deriving.rollups import drop_stranded
from django_events.models import Consumer, RollUp
from django_events.observing import dead_rows
from django_events.syncing import sync
from django_events.testing import isolate_declarations
from django_events.workers import lease_renewal
from tests.support.fix_topics import drop_topics

Connect = Callable[..., "Session"]

# Who waits for a lock of this database. Tests beside this one have databases of their own on the same server, and in
# pg_locks the lock for which a locked row is waited for has none.
WAITS_FOR_A_LOCK = (
    "SELECT pid FROM pg_stat_activity"
    " WHERE datname = current_database() AND wait_event_type = 'Lock' AND backend_type = 'client backend'"
)


# What `migrate` writes: these rows stay, and what is declared is made anew where a test removed or used it.
WRITTEN_BY_MIGRATE = {
    "auth_permission",
    "django_content_type",
    "django_events_clock",
    "django_events_consumer",
    "django_events_event",
    "django_events_filterterm",
    "django_events_inbox",
    "django_events_position",
    "django_events_rollup",
    "django_events_topic",
    "django_events_topichead",
}


@pytest.fixture
def transactional_db(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The database without a transaction around the test.

    It takes the place of pytest-django's fixture, which flushes all tables after each test and sends post_migrate, and
    needs a third of a second for it. Here the tables that a test wrote to are emptied. Fixtures remove the topics and
    consumers that a test makes; a consumer or a thread that stays fails the test. Tests of several databases, marked
    `django_db(transaction=True, databases=…)`, and those with a fixture of pytest-django's that asks for `db`, like
    `admin_client`, are flushed.
    """
    if request.node.get_closest_marker("django_db") or "db" in request.fixturenames:
        request.getfixturevalue("_django_db_helper")
        KNOWN.clear()  # it flushes, and then the site is made anew
        yield
        return
    request.getfixturevalue("django_db_setup")
    monkeypatch.setattr(lease_renewal, "TICK", 0.01)  # what a worker waits for when it ends
    for time_that_may_be_up in ("TURN", "TRANSACTION"):  # not because a test runs on a busy machine
        monkeypatch.setattr(handling, time_that_may_be_up, 3_600.0)
    with request.getfixturevalue("django_db_blocker").unblock():
        before = KNOWN.get("site") or of_the_site()
        clean_up_dead_rows()
        yield
        left = [thread.name for thread in threading.enumerate() if thread.name.startswith(("consumer ", "django_ev"))]
        try:
            assert not left, f"threads go on: {left}"
            assert not connection.in_atomic_block
            assert set(Consumer.objects.values_list("name", flat=True)) <= before.names
        finally:
            start_session_over()
            empty_what_was_written_to()
            make_anew(before)


def start_session_over() -> None:
    """The next test has no settings, locks and prepared statements of this one. The server's process stays.

    A new one would read the catalog again, which takes as long as many a test.
    """
    for other in connections.all(initialized_only=True):
        if other.alias != connection.alias or other.in_atomic_block or not other.is_usable():
            other.close()
    with connection.cursor() as cursor:
        cursor.execute("DISCARD ALL")


@cache
def tables() -> tuple[str, ...]:
    return tuple(set(connection.introspection.django_table_names(only_existing=True)) - WRITTEN_BY_MIGRATE)


def empty_what_was_written_to() -> None:
    looks = " UNION ALL ".join(f"SELECT '{table}' WHERE EXISTS (SELECT FROM {table})" for table in tables())
    with connection.cursor() as cursor:
        cursor.execute(looks)
        if written := [table for [table] in cursor.fetchall()]:  # of few rows each, so a TRUNCATE would take longer
            deletes = "; ".join(f"DELETE FROM {table}" for table in written)
            cursor.execute(f"SET session_replication_role = replica; {deletes}; RESET session_replication_role")


class OfTheSite(NamedTuple):
    """What `migrate` has made of the declarations: topics, and whether they have events; rows of consumers."""

    topics: dict[str, bool]
    consumers: list[dict[str, Any]]
    positions: list[dict[str, Any]]
    rollups: dict[str, int]

    @property
    def names(self) -> set[str]:
        return {row["name"] for row in self.consumers}


KNOWN: dict[str, OfTheSite] = {}  # as the last test left it
SITE = """
SELECT
    (SELECT jsonb_object_agg(t.name, EXISTS (SELECT FROM django_events_event AS e WHERE e.topic_id = t.id))
     FROM django_events_topic AS t),
    (SELECT jsonb_agg(c ORDER BY c.id) FROM django_events_consumer AS c),
    (SELECT jsonb_agg(p ORDER BY p.id) FROM django_events_position AS p),
    (SELECT jsonb_object_agg(r.name, r.id) FROM django_events_rollup AS r)
"""


def of_the_site() -> OfTheSite:
    with connection.cursor() as cursor:
        cursor.execute(SITE)
        topics, consumers, positions, rollups = [json.loads(answer or "null") for answer in cursor.fetchone()]
    return OfTheSite(topics or {}, consumers or [], positions or [], rollups or {})


def make_anew(before: OfTheSite) -> None:
    """What a test did to topics and consumers is undone: logs are empty again, nothing is gone, and nothing is new."""
    now = of_the_site()
    if now == before:
        KNOWN["site"] = now
        return
    KNOWN.clear()
    touched = {row["id"] for row in now.consumers if row not in before.consumers}
    touched |= {row["consumer_id"] for row in now.positions if row not in before.positions}
    touched |= {row["id"] for row in now.consumers if before.rollups.get(row["name"]) != now.rollups.get(row["name"])}
    forget_rollups({row["name"] for row in now.consumers if row["id"] in touched})
    Consumer.objects.filter(pk__in=touched).delete()
    names = before.topics.keys() | now.topics.keys()
    drop_topics([name for name in names if before.topics.get(name) != now.topics.get(name)])
    with isolate_declarations():
        for one in list(declarations.consumers):
            if one.name not in before.names:  # a test declared it, of a topic that may be gone
                declarations.consumers.discard(one)
        sync("default")


def forget_rollups(names: Collection[str]) -> None:
    """Roll-ups whose consumer begins anew count anew."""
    deleted, _ = RollUp.objects.filter(name__in=names).delete()
    if deleted:
        drop_stranded("default")


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
