"""Probes: views and a command that answer soon, with a word, whatever the database does."""

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError, connection, connections
from django.http import HttpResponse
from django.test import Client, RequestFactory, override_settings
from django.urls import path

from django_events import health, publish
from django_events.consuming.queues.filling import fill_some
from django_events.management.commands.events import Command
from django_events.models import BufferedEvent, Topic
from django_events.models.functions import ClockTimestamp
from django_events.operating.pausing import pause
from django_events.sql.limited import limited
from django_events.statements import log_table
from testproject.private_postgres.server import Server
from tests.support.fix_database import alias
from tests.support.fix_database import login as reaching
from tests.support.fix_queues import fill_topic

pytestmark = pytest.mark.usefixtures("transactional_db")

MINUTE = timedelta(minutes=1)
Events = Callable[..., tuple[int, str, str]]


def fail(*args: Any) -> HttpResponse:
    raise AssertionError("a probe is asked for no login")


urlpatterns = [
    path("livez", health.liveness),
    path("readyz", health.readiness),
    path("transferz", health.readiness, {"max_age": MINUTE}),
    path("otherz", health.readiness, {"using": "other"}),
    path("accounts/login/", fail),
]


@pytest.fixture(autouse=True)
def urls() -> Iterator[None]:
    middleware = [
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.auth.middleware.LoginRequiredMiddleware",
    ]
    with override_settings(ROOT_URLCONF=__name__, MIDDLEWARE=middleware):
        yield


@pytest.fixture
def events(capsys: pytest.CaptureFixture[str]) -> Events:
    """Run `manage.py events health` as from a shell."""

    def run(*arguments: str) -> tuple[int, str, str]:
        code: Any = 0
        try:
            Command().run_from_argv(["manage.py", "events", "health", *arguments])
        except SystemExit as ending:
            code = ending.code
        return int(code or 0), *capsys.readouterr()

    return run


def run(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


@contextmanager
def deaf() -> Iterator[int]:
    """The port of a server that takes connections and never says a word."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


@dataclass
class Freezing:
    """A server that says all until `word` is asked for, and then no word more, to any client."""

    word: bytes
    drop_by_drop: bool = False  # it is not frozen then, but its answers take for ever
    port: int = 0
    came: int = 0  # who asked for a connection
    frozen: threading.Event = field(default_factory=threading.Event)

    def serve(self, server: socket.socket) -> None:
        waiting = []
        with suppress(OSError):
            while True:
                asking, _ = server.accept()
                self.came += 1
                if self.frozen.is_set():
                    waiting.append(asking)
                else:
                    threading.Thread(target=self.between, args=[asking], daemon=True).start()
        for asking in waiting:
            asking.close()

    def between(self, asking: socket.socket) -> None:
        usual = reaching()
        with asking, socket.create_connection((usual["HOST"], int(usual["PORT"]))) as there:
            answers = threading.Thread(target=self.answer, args=[there, asking], daemon=True)
            answers.start()
            self.ask(asking, there)
            answers.join()

    def ask(self, asking: socket.socket, there: socket.socket) -> None:
        with suppress(OSError):
            while data := asking.recv(65_536):
                if self.word in data:
                    self.frozen.set()
                if self.frozen.is_set() and not self.drop_by_drop:
                    asking.recv(1)  # until who asked gives up
                    break
                there.sendall(data)
        with suppress(OSError):
            there.shutdown(socket.SHUT_RDWR)

    def answer(self, there: socket.socket, asking: socket.socket) -> None:
        with suppress(OSError):
            while data := there.recv(65_536):
                if self.frozen.is_set():
                    for drop in data:
                        asking.sendall(bytes([drop]))
                        time.sleep(0.05)
                else:
                    asking.sendall(data)
        with suppress(OSError):
            asking.shutdown(socket.SHUT_RDWR)


@contextmanager
def freezing(word: bytes = b"django_events_", *, drop_by_drop: bool = False) -> Iterator[Freezing]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        one = Freezing(word, drop_by_drop, port=server.getsockname()[1])
        serving = threading.Thread(target=one.serve, args=[server], daemon=True)
        serving.start()
        yield one
        server.shutdown(socket.SHUT_RDWR)
        serving.join()


def of(response: HttpResponse) -> tuple[int, dict[str, str]]:
    return response.status_code, json.loads(response.content)


def reason(address: str = "/readyz") -> tuple[int, str | None]:
    status, told = of(Client().get(address))
    assert set(told) <= {"status", "reason"}
    return status, told.get("reason")


# --- the views


def test_a_site_that_is_well_answers_200_without_a_login():
    for address in ("/livez", "/readyz", "/transferz"):
        response = Client().get(address)
        assert of(response) == (200, {"status": "ok"})
        assert "no-store" in response["Cache-Control"]
        assert Client().head(address).status_code == 200
    assert Client().post("/readyz").status_code == 405


def test_liveness_asks_no_database(django_db_blocker):
    with django_db_blocker.block():
        assert of(Client().get("/livez"))[0] == 200


def test_a_database_that_is_away_gives_a_word_and_no_secrets(caplog):
    with alias(PORT="1", PASSWORD="secret"), caplog.at_level(logging.WARNING, "django_events.health"):
        response = Client().get("/otherz")

    assert of(response) == (503, {"status": "unavailable", "reason": "database"})
    [record] = [record for record in caplog.records if record.name == "django_events.health"]
    assert "Not ready to publish to 'other' (database): connection failed: " in record.getMessage()
    assert "secret" not in record.getMessage()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:", "OPTIONS": {}}, "'other' is no PostgreSQL."),
        ({"NAME": ""}, "'other' can't be used. settings.DATABASES is improperly configured."),
    ],
)
def test_settings_that_lead_to_no_postgresql(caplog, changed, told):
    with alias(**changed):
        assert reason("/otherz") == (503, "database")
    assert told in caplog.text


@pytest.mark.slow
def test_a_database_that_takes_connections_and_never_answers(monkeypatch):
    monkeypatch.setattr(health, "SECONDS", 1)
    began = time.monotonic()
    with deaf() as port, alias(HOST="127.0.0.1", PORT=str(port)):
        assert reason("/otherz") == (503, "database")
    assert time.monotonic() - began < 10


@pytest.mark.slow
@pytest.mark.parametrize("word", [b"to_regclass", b"COMMIT"])
def test_a_server_that_is_frozen_after_the_connection_was_made(caplog, word):
    """It is asked nothing more then, not even for another connection, which would be waited for as well."""
    with freezing(word) as server, alias(HOST="127.0.0.1", PORT=str(server.port)):
        usual = connections["other"]
        assert reason("/otherz") == (503, "database")
        assert connections["other"] is usual
    assert server.frozen.is_set()
    assert server.came == 1
    assert "The database did not answer within 2 s." in caplog.text


@pytest.mark.slow
def test_an_answer_that_comes_drop_by_drop(monkeypatch, caplog):
    monkeypatch.setattr(health, "SECONDS", 1)
    with freezing(drop_by_drop=True) as server, alias(HOST="127.0.0.1", PORT=str(server.port)):
        assert reason("/otherz") == (503, "database")
    assert "The database did not answer within 1 s." in caplog.text


@pytest.mark.slow
def test_a_table_that_is_locked_for_longer(caplog, connect):
    other_session = connect()
    other_session.execute("LOCK TABLE django_events_topic")
    began = time.monotonic()

    assert reason() == (503, "database")
    assert time.monotonic() - began < 10
    assert "lock timeout" in caplog.text


@pytest.mark.slow
def test_a_table_that_is_locked_for_a_moment_is_waited_for(monkeypatch, connect):
    """A migration may have it: no pod is unready for that."""
    monkeypatch.setattr(health, "SECONDS", 10)
    other_session = connect()
    other_session.execute("LOCK TABLE django_events_topic")
    done = threading.Timer(1, other_session.rollback)
    done.start()
    try:
        assert reason() == (200, None)
    finally:
        done.join()


def test_a_request_does_not_wait_for_the_transaction_of_atomic_requests(monkeypatch):
    """Django opens it before a view is called, and a database that is away would be waited for there."""
    connections["default"].close()
    with monkeypatch.context() as patch:
        patch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", True)
        patch.setattr(connections["default"], "connect", _refuse)
        for address in ("/livez", "/readyz"):
            assert of(Client().get(address))[0] == 200


def _refuse() -> None:
    raise OperationalError("away")


@pytest.mark.slow
def test_a_database_that_is_not_migrated():
    with Server() as own:
        _, _, rest = own.url.partition("//")
        account, _, place = rest.partition("@")
        user, _, password = account.partition(":")
        host, _, port = place.partition("/")[0].partition(":")
        with alias(NAME="postgres", HOST=host, PORT=port, USER=user, PASSWORD=password, OPTIONS={}):
            assert reason("/otherz") == (503, "migrations")


def test_a_database_that_is_read_only():
    options = {**connection.settings_dict["OPTIONS"], "options": "-c default_transaction_read_only=on"}
    with alias(OPTIONS=options):
        assert reason("/otherz") == (503, "read-only")


@pytest.fixture
def login() -> Iterator[dict[str, Any]]:
    """The settings of an alias whose account may do nothing but take the role that may."""
    name = f"health_login_{os.getpid()}"
    options = {**connection.settings_dict["OPTIONS"], "assume_role": reaching()["USER"]}
    run(f"CREATE ROLE {name} LOGIN NOINHERIT PASSWORD '{name}' IN ROLE {options['assume_role']}")
    yield {"USER": name, "PASSWORD": name, "OPTIONS": options}
    run(f"DROP ROLE {name}")


def test_the_role_that_django_assumes_is_asked_for_too(events, things, login):
    publish(things, 1)
    with alias(**login):
        assert reason("/otherz") == (200, None)
        assert events("--database", "other", "--max-lag", "5")[0] == 0

        def current_user():
            with connections["other"].cursor() as cursor:
                cursor.execute("SELECT current_user")
                return cursor.fetchall()

        assert limited("other", current_user, seconds=2) == [(login["OPTIONS"]["assume_role"],)]


def test_a_topic_that_is_declared_and_not_there(undiscovered):
    assert reason() == (503, "topics")


def test_an_event_that_waits_for_long_is_told_only_if_it_is_asked_for(things):
    publish(things, "waits")
    assert reason("/transferz") == (200, None)

    BufferedEvent.objects.update(published_at=ClockTimestamp() - 2 * MINUTE)
    assert reason("/transferz") == (503, "transfer")
    assert reason("/readyz") == (200, None)


def test_a_probe_leaves_no_session_behind():
    for _ in range(3):
        health.readiness(RequestFactory().get("/readyz"))
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE query LIKE '%FROM django_events_topic' AND pid <> pg_backend_pid() AND datname = current_database()"
        )
        assert cursor.fetchone()[0] <= 1  # the server may need a moment for the last one


# --- the command


@pytest.mark.slow
def test_health_of_the_buffer(events, things):
    """Ages are of hours, so what a slow machine adds isn't shown."""
    assert events() == (0, "ok: 0 events in the buffer.\n", "")
    publish(things, 1)
    publish(things, 2)
    BufferedEvent.objects.update(published_at=ClockTimestamp() - 120 * MINUTE)

    assert events()[:2] == (0, "ok: 2 events in the buffer, the oldest for 2 h.\n")
    told = "unhealthy: 2 events in the buffer, the oldest for 2 h. That is more than "
    assert events("--max-age", "60")[:2] == (1, f"{told}60 s.\n")
    assert events("--max-age", "60", "--max-lag", "1")[:2] == (1, f"{told}1 event and 60 s.\n")
    assert events("--max-age", "10000")[0] == 0
    assert events("--max-lag", "1")[0] == 1
    assert events("--max-lag", "2")[0] == 0
    told = json.loads(events("--max-lag", "1", "--format", "json")[1])
    assert (told["healthy"], told["reason"], told["lag"]) == (False, "transfer", 2)


@pytest.mark.slow
def test_health_of_a_consumer(events, things, make_consumer):
    make_consumer(things, handler=print)
    fill_topic(things, 1, 2)
    run(f"UPDATE {log_table(Topic.objects.get(name='things').pk)} SET logged_at = logged_at - interval '5 hours'")

    assert events("--consumer", "reader")[:2] == (0, "ok: reader is 2 events behind, the oldest for 5 h.\n")
    assert events("--consumer", "reader", "--max-lag", "1")[0] == 1
    assert events("--consumer", "reader", "--max-age", "60")[0] == 1
    pause("reader")  # nothing that a new process would change
    assert events("--consumer", "reader", "--max-age", "60")[:2] == (
        0,
        "ok: reader is paused on things, 2 events behind: not counted.\n",
    )


def test_health_of_a_consumer_that_is_paused_on_one_of_its_topics(events, things, lanes, make_consumer):
    make_consumer(things, lanes, handler=print)
    fill_topic(things, 1, 2)
    fill_topic(lanes, 3)
    run(f"UPDATE {log_table(Topic.objects.get(name='things').pk)} SET logged_at = logged_at - interval '5 hours'")
    pause("reader", topic="lanes")

    told = "reader is 2 events behind, the oldest for 5 h. reader is paused on lanes, 1 event behind: not counted."
    assert events("--consumer", "reader", "--max-lag", "2")[:2] == (0, f"ok: {told}\n")


def test_health_says_what_it_can_not_look_at(events, undiscovered):
    code, out, _ = events()
    assert (code, out) == (
        1,
        "unhealthy: The database 'default' has no topic undiscovered. Run: manage.py migrate --database default\n",
    )


def test_health_of_an_unknown_consumer_and_of_nowhere(events):
    code, _, err = events("--consumer", "stranger")
    assert (code, "stranger" in err) == (2, True)
    with alias(PORT="1"):
        code, _, err = events("--database", "other")
    assert code == 75
    assert err.startswith("CommandError: The database 'other' can't be reached. connection failed: ")
    assert len(err.splitlines()) == 1
    assert events("--max-age", "soon")[0] == 2
    code, _, err = events("--max-age", "-1")
    assert (code, "-1 is less than nothing" in err) == (2, True)


@pytest.mark.slow
def test_a_limit_is_seen_to_be_exceeded_however_far_is_counted_otherwise(events, make_topic, make_queue, monkeypatch):
    """A backlog of a million was healthy: no more than thousands were ever counted."""
    monkeypatch.setattr("django_events.observing.lag.COUNTED", 3)
    monkeypatch.setattr("django_events.log.inventory.COUNTED", 3)
    busy, quiet = make_topic("busy"), make_topic("quiet")
    queue = make_queue(busy)
    fill_topic(busy, *range(9))
    while fill_some(queue.subscription):
        pass
    assert events("--consumer", "queue")[1].startswith("ok: queue is at least 3 events behind")
    for limit, code, more in ((3, 1, "at least 4"), (6, 1, "at least 7"), (8, 1, "9"), (9, 0, "9")):
        assert events("--consumer", "queue", "--max-lag", str(limit))[0] == code
        assert f"queue is {more} events behind" in events("--consumer", "queue", "--max-lag", str(limit))[1]

    publish(quiet, "one")
    for n in range(8):
        publish(busy, n)
    assert events()[1].startswith("ok: at least 3 events in the buffer")
    for limit, code in ((3, 1), (6, 1), (8, 1), (9, 0), (10**30, 0)):
        assert events("--max-lag", str(limit))[0] == code
    assert json.loads(events("--max-lag", "5", "--format", "json")[1])["more_lag"] is True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "arguments"),
    [("django_events_consumer", ("--consumer", "reader")), ("django_events_bufferedevent", ("--max-lag", "1"))],
)
def test_a_lock_that_is_held_is_no_reason_to_end_a_worker(events, things, make_consumer, connect, table, arguments):
    make_consumer(things, handler=print)
    other_session = connect()
    other_session.execute(f"LOCK TABLE {table}")
    code, out, err = events(*arguments)

    assert (code, out) == (75, "")
    assert "lock timeout" in err


@pytest.mark.slow
def test_a_server_that_freezes_after_the_first_answers(events, things, make_consumer, monkeypatch):
    """It takes the connection and the question, and is never heard of again."""
    make_consumer(things, handler=print)
    monkeypatch.setattr(health, "SECONDS", 1)
    monkeypatch.setattr(health, "problem", lambda using: None)
    began = time.monotonic()
    for arguments in (("--consumer", "reader"), ()):
        with freezing() as server, alias(HOST="127.0.0.1", PORT=str(server.port)):
            code, out, err = events(*arguments, "--database", "other")
            assert (code, out) == (75, "")
            assert "The database did not answer within 1 s." in err
    assert time.monotonic() - began < 10


def test_a_look_in_time_leaves_the_connection_as_it_was(events, things):
    mine = connections["default"]
    assert events("--max-lag", "1")[0] == 0
    assert connections["default"] is mine
