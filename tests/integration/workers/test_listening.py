"""The one LISTEN connection: every notification reaches its callback, and a lost connection comes back."""

import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from django.db import connection, connections
from psycopg_pool import ConnectionPool

from django_events.sql import direct
from django_events.sql.direct import connected_as_a_worker, parameters
from django_events.statements import _made
from django_events.workers.listening import Listener, ListenSession
from django_events.workers.stopping import Stop
from tests.support.fix_database import Connect
from tests.support.fix_database import Session as Other
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("transactional_db")

LOCK = 42
SOON = 30.0  # seconds, after which a test that waits has failed


@pytest.fixture
def listener() -> Iterator[Listener]:
    with closing(Listener("default")) as listener:
        yield listener


@pytest.fixture
def other(connect: Connect) -> Other:
    """Another session on the same database."""
    return connect(autocommit=True)


@pytest.fixture
def hear(listener: Listener) -> Callable[[str], list[str]]:
    """Listen to a channel; what is heard there is appended to the list."""

    def hear_one(channel: str) -> list[str]:
        heard: list[str] = []
        listener.on(channel, heard.append)
        listener.start()
        wait_until(lambda: heard == [""], what=f"LISTEN {channel}")
        heard.clear()
        return heard

    return hear_one


KEEPALIVES = [socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT]
SERVERS = ["keepalives_idle", "keepalives_interval", "keepalives_count", "user_timeout"]


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if "listener" in thread.name}


def pid_of(session: ListenSession | None) -> int:
    assert session is not None
    return int(session.ask(_made("asked", "SELECT pg_backend_pid()")))


def backend_is_gone(other: Other, pid: int) -> bool:
    return other.execute("SELECT FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone() is None


def terminate(listener: Listener, other: Other) -> ListenSession:
    """End the connection at the server; returns the session that is lost."""
    session = listener.session
    other.execute("SELECT pg_terminate_backend(%s)", [pid_of(session)])
    wait_until(lambda: listener.session is not session, what="the loss of the connection")
    assert session is not None
    return session


def messages(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name == "django_events.wakeups" and r.levelno == level]


def test_a_notification_reaches_the_callbacks_of_its_channel(hear, other):
    one, two = hear("one"), hear("Two; with a strange name")
    other.execute("SELECT pg_notify('one', 'first')")
    other.execute("SELECT pg_notify('Two; with a strange name', 'second')")
    other.execute("SELECT pg_notify('three', 'third')")
    other.execute("SELECT pg_notify('one', 'last')")
    wait_until(lambda: "last" in one, what="the last notification")

    assert one == ["first", "last"]
    assert two == ["second"]


def test_several_callbacks_share_a_channel(hear, other):
    one, again = hear("one"), hear("one")
    other.execute("SELECT pg_notify('one', 'both')")
    wait_until(lambda: one and again, what="both")

    assert one == again == ["both"]


def test_nothing_is_opened_before_it_is_started(other):
    before = threads()
    with closing(Listener("default")) as listener:
        listener.on("one", print)

        assert not listener.listening
        assert threads() == before


def test_starting_it_again_changes_nothing(listener, hear):
    hear("one")
    session = listener.session
    listener.start()

    assert listener.session is session
    assert len(threads()) == 1


def test_all_channels_are_told_once_when_it_begins(listener):
    heard: list[str] = []
    for channel in ("one", "two"):
        listener.on(channel, lambda payload, channel=channel: heard.append(channel + payload))
    listener.start()
    wait_until(lambda: len(heard) == 2, what="the beginning")

    assert heard == ["one", "two"]


def test_when_it_is_closed_nothing_is_left(listener, hear, other):
    hear("one")
    pid = pid_of(listener.session)
    listener.close()

    assert not listener.listening
    assert threads() == set()
    wait_until(lambda: backend_is_gone(other, pid), what="the end of the backend")
    listener.close()
    listener.start()
    listener.on("two", print)
    assert threads() == set()


def test_a_lost_connection_comes_back(listener, hear, other, caplog):
    one, two = hear("one"), hear("two")
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            one.clear(), two.clear()
            terminate(listener, other)
            wait_until(lambda: listener.listening, what="the connection")
            wait_until(lambda: len(one) == len(two) == 2, what="the callbacks")
            assert one == two == ["", ""]  # at the loss, and when it is back
            other.execute("SELECT pg_notify('one', '1'), pg_notify('two', '2')")
            wait_until(lambda: one[2:] == ["1"] and two[2:] == ["2"], what="both notifications")

    warnings, infos = messages(caplog, logging.WARNING), messages(caplog, logging.INFO)
    assert len(warnings) == 2
    assert warnings[0].startswith("The LISTEN connection to 'default' is lost: polling every 0.5 s until it is back. ")
    assert infos == ["The LISTEN connection to 'default' is back."] * 2


@pytest.mark.slow
def test_a_database_out_of_reach_is_told_once_and_tried_again(listener, hear, other, caplog, monkeypatch):
    one = hear("one")
    tries = []

    def connect(**parameters):
        tries.append(1)
        return psycopg.connect(**parameters)

    monkeypatch.setattr(direct, "psycopg", SimpleNamespace(connect=connect))
    with caplog.at_level(logging.INFO):
        with out_of_reach():
            terminate(listener, other)
            wait_until(lambda: len(tries) >= 3, what="three tries")
            assert not listener.listening
            assert one == [""]
        wait_until(lambda: listener.listening, what="the connection")

    assert len(messages(caplog, logging.WARNING)) == 1
    assert len(messages(caplog, logging.INFO)) == 1


@contextmanager
def out_of_reach() -> Iterator[None]:
    """The test's database takes no new connections; those that there are go on."""
    parameters = connection.get_connection_params()
    for django_only in ("cursor_factory", "context"):
        parameters.pop(django_only, None)
    name = parameters.pop("dbname")
    with psycopg.connect(**{**parameters, "dbname": "postgres", "autocommit": True}) as server:
        server.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
        try:
            yield
        finally:
            server.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS true')


def test_it_is_closed_while_it_waits_for_the_database(listener, hear, other):
    hear("one")
    with out_of_reach():
        terminate(listener, other)
        listener.close()

    assert threads() == set()


@pytest.mark.slow
def test_no_notification_is_lost_while_others_ask(listener, hear, other):
    """They come with the answers to statements of several threads, and in between."""
    one, two = hear("one"), hear("two")
    session, stop, asked, wrong = listener.session, Stop(), [], []

    def ask(number: int) -> None:
        while not stop.requested:
            answer = session.ask(_made("asked", "SELECT %(given)s::int"), given=number)
            asked.append(answer)
            if answer != number:
                wrong.append(answer)

    askers = [threading.Thread(target=ask, args=[number]) for number in range(2)]
    for asker in askers:
        asker.start()
    try:
        for i in range(3_000):
            other.execute("SELECT pg_notify('one', %s), pg_notify('two', %s)", [f"a{i}", f"b{i}"])
        wait_until(lambda: len(one) >= 3_000 and len(two) >= 3_000, what="all notifications")
        wait_until(lambda: len(asked) >= 3_000, what="many answers")
    finally:
        stop.request()
        for asker in askers:
            asker.join()
        stop.close()

    assert one == [f"a{i}" for i in range(3_000)]
    assert two == [f"b{i}" for i in range(3_000)]
    assert wrong == []
    assert listener.session is session


def test_large_notifications_arrive_whole(hear, other):
    """They come in pieces."""
    one = hear("one")
    for i in range(500):
        other.execute("SELECT pg_notify('one', %s)", [f"{i}:" + "x" * 7_900])
    wait_until(lambda: len(one) >= 500, what="all notifications")

    assert one == [f"{i}:" + "x" * 7_900 for i in range(500)]


def test_what_the_server_keeps_for_a_session_ends_with_it(listener, hear, other):
    hear("one")
    assert listener.session.ask(_made("asked", "SELECT pg_try_advisory_lock(%(given)s)"), given=LOCK) is True
    session = terminate(listener, other)
    wait_until(lambda: listener.listening, what="another session")

    assert other.execute("SELECT pg_try_advisory_lock(%s)", [LOCK]).fetchone() == (True,)
    with pytest.raises(psycopg.OperationalError):
        session.ask(_made("asked", "SELECT 1"))
    assert listener.session.ask(_made("asked", "SELECT 1")) == 1  # an old session's error doesn't touch it


def test_a_statement_that_fails_ends_the_session(listener, hear, other, caplog):
    """The session that asked can't know what came of it: a lock may be held or not."""
    one = hear("one")
    session = listener.session
    session.ask(_made("asked", "SELECT pg_advisory_lock(%(given)s)"), given=LOCK)
    with pytest.raises(psycopg.errors.DivisionByZero):
        session.ask(_made("asked", "SELECT 1 / 0"))
    wait_until(lambda: listener.listening and listener.session is not session, what="another session")
    wait_until(lambda: other.execute("SELECT pg_try_advisory_lock(%s)", [LOCK]).fetchone() == (True,), what="the lock")

    other.execute("NOTIFY one, 'still'")
    wait_until(lambda: "still" in one, what="the notification")
    assert "division by zero" in caplog.text


def test_a_callback_that_fails_harms_no_publisher(listener, hear, other, caplog):
    def fail(payload: str) -> None:
        raise ValueError(payload)

    listener.on("one", fail)
    one = hear("one")
    session = listener.session
    other.execute("NOTIFY one, 'nonsense'")
    wait_until(lambda: "nonsense" in one, what="the notification")

    assert listener.session is session
    assert "A callback failed on the notification 'nonsense'." in caplog.text


def test_through_a_pooler_it_never_listens(listener, other, caplog, monkeypatch):
    pids = []

    class Pooled(psycopg.Connection):
        """The backend that answers is not the one that said hello."""

        @property
        def info(self):
            pids.append(super().info.backend_pid)
            return SimpleNamespace(backend_pid=0)

    heard: list[str] = []
    listener.on("one", heard.append)
    monkeypatch.setattr(direct, "psycopg", SimpleNamespace(connect=Pooled.connect))
    with caplog.at_level(logging.INFO):
        listener.start()
        wait_until(lambda: listener.pooled and not threads(), what="the end of the thread")

    [pid] = pids
    wait_until(lambda: backend_is_gone(other, pid), what="the end of the backend")
    assert not listener.listening
    assert heard == []
    assert messages(caplog, logging.INFO) == [
        "The database 'default' is reached through a pooler, which keeps no LISTEN: polling every 0.5 s."
    ]


def test_both_ends_notice_that_the_other_has_vanished(settings, monkeypatch, listener, hear):
    """A wire that is cut can't be had here without cutting everybody's: what the ends were told is looked at."""
    settings.DJANGO_EVENTS = {"VANISHED_AFTER": timedelta(seconds=12)}
    monkeypatch.setitem(connections.settings["default"]["OPTIONS"], "keepalives_interval", 4)
    with connected_as_a_worker("default"):
        hear("things")
        with psycopg.connect(**parameters("default")) as other:
            with socket.socket(fileno=os.dup(other.pgconn.socket)) as wire:
                told = [wire.getsockopt(socket.IPPROTO_TCP, name) for name in KEEPALIVES]
            assert told == [6, 4, 3, 12_000], "what the site has set stays"
    assert "tcp_user_timeout" not in connections.settings["default"]["OPTIONS"]
    assert listener.session is not None
    asked = [
        listener.session.ask(_made("asked", "SELECT current_setting(%(given)s)"), given=f"tcp_{name}")
        for name in SERVERS
    ]
    assert asked == ["6", "2", "3", "12000"]


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[ConnectionPool[Any]]:
    """The site has a pool of one connection."""
    known = connections.settings["default"]
    connection.close()
    options = {**known["OPTIONS"], "pool": {"min_size": 1, "max_size": 1, "timeout": 1}}
    with monkeypatch.context() as site:
        site.setitem(known, "OPTIONS", options)
        site.setitem(known, "CONN_MAX_AGE", 0)
        pool = connections["default"].pool
        pool.open()
        pool.wait(SOON)
        yield pool
        connection.close()
        connections["default"].close_pool()


def test_threads_of_a_worker_are_not_kept_waiting_by_a_pool_of_the_site(pool: ConnectionPool[Any]) -> None:
    connection.ensure_connection()
    met = threading.Barrier(4)

    def connect() -> None:
        connection.ensure_connection()
        met.wait(SOON)
        connections.close_all()

    with connected_as_a_worker("default"), ThreadPoolExecutor(3) as threads:
        done = [threads.submit(connect) for _ in range(3)]
        connection.ensure_connection()
        met.wait(SOON)
        assert [one.result() for one in done] == [None] * 3
    assert pool.get_stats()["pool_available"] == 1, "what the site took is the pool's again"
    connection.ensure_connection()
    assert pool.get_stats()["pool_available"] == 0, "and the site takes from it"
