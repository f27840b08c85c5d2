"""System checks: each message appears when it should, and not otherwise."""

import os
import subprocess
import sys
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.core import checks
from django.core.checks import Error, run_checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connection, connections
from django.test import override_settings

from django_events import DeclaredTopic, declarations
from django_events.checks.declarations import TOLD
from django_events.models import BufferedEvent, Consumer, Position, Topic
from django_events.models import Event as EventRow
from tests.support.fix_database import alias

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.django_db


def ours(*, databases=("default",)):
    return [message for message in run_checks(databases=databases) if message.id.startswith("django_events.")]


def ids(**options):
    return [message.id for message in ours(**options)]


@pytest.fixture
def declare():
    """Put declarations beside those of the shop, right or wrong."""
    made = []

    def declare_one(*args, **options):
        made.append(DeclaredTopic(*args, **options))
        declarations.registry.add(made[-1])
        return made[-1]

    yield declare_one
    for topic in made:
        declarations.registry.discard(topic)


def test_a_site_that_is_right_has_no_messages():
    assert ours() == []


# E001 and E002: settings


@override_settings(DJANGO_EVENTS={"POLL_INTERVALL": timedelta(seconds=1), "zzz": 1, "TRANSFER_BATCH_SIZE": 10})
def test_a_key_that_does_not_exist_comes_with_a_suggestion():
    assert ours() == [
        Error(
            "DJANGO_EVENTS has no key 'POLL_INTERVALL'.",
            hint="Did you mean 'POLL_INTERVAL'?",
            id="django_events.E001",
        ),
        Error(
            "DJANGO_EVENTS has no key 'zzz'.",
            hint="Known are: BROKERS, DEDUP_WINDOW, EVENTS_MODULE, LIVE_CONNECTIONS, MASKED_FIELDS, MAX_BATCH_BYTES, "
            "MAX_PAYLOAD_BYTES, METRICS_TOKEN, NOTIFY, POLL_INTERVAL, REQUIRE_TRANSACTION, SAMPLES_KEPT, TELEMETRY, "
            "TRANSFER_BATCH_SIZE, VANISHED_AFTER, WAKE_UPS, WEBHOOK_ATTEMPTS_KEPT, WEBHOOK_DISABLED_AFTER, "
            "WEBHOOK_NETWORKS, WEBHOOK_TIMEOUT.",
            id="django_events.E001",
        ),
    ]


@pytest.mark.parametrize(("name", "told"), [("evnts", ["django_events.W011"]), ("events", []), ("apps", [])])
def test_a_module_that_no_app_has_is_told(name, told):
    with override_settings(DJANGO_EVENTS={"EVENTS_MODULE": name}):
        assert ids() == told


def test_a_hook_that_can_not_be_called_is_told_before_there_is_a_problem():
    hooks = ["mail_admins", "https://hooks.example.com/secret", "shop.nowhere.page", "os.sep", "os.getpid"]
    with override_settings(DJANGO_EVENTS={"NOTIFY": hooks}):
        told = [(message.id, message.msg) for message in ours()]

    assert [identity for identity, _ in told] == ["django_events.W002"] * 2
    assert "names 'shop.nowhere.page', which can't be called: ModuleNotFoundError" in told[0][1]
    assert told[1][1].endswith("names 'os.sep', which can't be called: It is '/', not a function.")
    with override_settings(DJANGO_EVENTS={"NOTIFY": ["nothing"]}):
        assert [message.id for message in ours()] == ["django_events.E002"]


@override_settings(DJANGO_EVENTS={7: 1})
def test_a_key_that_is_no_text_does_not_exist_either():
    assert [message.msg for message in ours()] == ["DJANGO_EVENTS has no key 7."]


@override_settings(DJANGO_EVENTS={"POLL_INTERVAL": 5, "WAKE_UPS": "yes"})
def test_every_value_that_can_not_be_used_is_found():
    assert ours() == [
        Error("DJANGO_EVENTS['POLL_INTERVAL'] is 5, expected timedelta.", id="django_events.E002"),
        Error("DJANGO_EVENTS['WAKE_UPS'] is 'yes', expected bool or None.", id="django_events.E002"),
    ]


@pytest.mark.parametrize("value", [None, [], "events"])
def test_settings_that_are_no_dict_are_found_once(value):
    with override_settings(DJANGO_EVENTS=value):
        assert ours() == [Error(f"DJANGO_EVENTS is {value!r}, expected a dict.", id="django_events.E002")]


@override_settings(
    DJANGO_EVENTS={
        "EVENTS_MODULE": "events",
        "POLL_INTERVAL": timedelta(seconds=1),
        "REQUIRE_TRANSACTION": True,
        "TRANSFER_BATCH_SIZE": 1,
        "WAKE_UPS": False,
    }
)
def test_settings_that_are_right_have_no_messages():
    assert ours() == []


# E003: topics


def test_a_wrong_declaration_is_found_with_its_place(declare):
    declare(name="Orders", declared_at="shop/events.py:7")
    [message] = ours()

    assert (message.id, message.hint) == ("django_events.E003", "It is declared at shop/events.py:7.")
    assert message.msg.startswith("Topic name 'Orders' is not valid")


@pytest.mark.requirement("E1")
def test_a_topic_that_is_declared_twice_is_found_with_both_places(declare):
    shop = declarations.registry.get("orders")
    declare(name="orders", declared_at="elsewhere/events.py:3")

    assert ours() == [
        Error(
            f"Topic 'orders' is declared twice: {shop.declared_at} and elsewhere/events.py:3.",
            hint="It is declared at elsewhere/events.py:3.",
            id="django_events.E003",
        )
    ]


@pytest.mark.requirement("E1")
def test_every_wrong_option_is_found(declare):
    declare(name="things", partitions=0, retention=timedelta(0), segment_size=1, timeline=None)

    assert ids() == ["django_events.E003"] * 4


def test_a_right_declaration_has_no_messages(declare):
    declare(name="things", partitions=1_000, retention=timedelta(days=1), segment_size=100, timeline=True)

    assert ours() == []


def test_a_wrong_declaration_stops_the_commands_that_would_use_it(declare):
    declare(name="Orders", declared_at="shop/events.py:7")
    with pytest.raises(SystemCheckError, match=r"django_events\.E003"):
        call_command("migrate", skip_checks=False, verbosity=0)


# E004: pgtrigger


def manage(tmp_path, settings, *args):
    """Run `manage.py` as a process of its own, with other settings: apps are loaded once in a process."""
    (tmp_path / "other_settings.py").write_text(f"from testproject.settings import *\n{settings}\n")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, ROOT / "testproject/manage.py", *args],
        env={**os.environ, "PYTHONPATH": path, "DJANGO_SETTINGS_MODULE": "other_settings"},
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_a_site_without_pgtrigger_is_told_to_install_it(tmp_path):
    done = manage(tmp_path, "INSTALLED_APPS = [app for app in INSTALLED_APPS if app != 'pgtrigger']", "check")

    assert done.returncode == 1
    assert "(django_events.E004) django_events needs the app 'pgtrigger' for its triggers." in done.stderr
    assert "HINT: Add 'pgtrigger' to INSTALLED_APPS." in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("{'POLL_INTERVAL': 5}", "DJANGO_EVENTS['POLL_INTERVAL'] is 5, expected timedelta."),
        ("{'EVENTS_MODULE': 7}", "DJANGO_EVENTS['EVENTS_MODULE'] is 7, expected str."),
        ("[]", "DJANGO_EVENTS is [], expected a dict."),
    ],
)
@pytest.mark.few(1)
def test_a_wrong_setting_is_found_by_the_check_command(tmp_path, settings, message):
    done = manage(tmp_path, f"DJANGO_EVENTS = {settings}", "check")

    assert done.returncode == 1
    assert f"(django_events.E002) {message}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_an_unknown_key_is_found_by_the_check_command(tmp_path):
    done = manage(tmp_path, "DJANGO_EVENTS = {'POLL_INTERVALL': 5}", "check")

    assert done.returncode == 1
    assert "(django_events.E001) DJANGO_EVENTS has no key 'POLL_INTERVALL'." in done.stderr
    assert "HINT: Did you mean 'POLL_INTERVAL'?" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_another_name_of_the_discovered_module_is_used(tmp_path):
    done = manage(
        tmp_path,
        "DJANGO_EVENTS = {'EVENTS_MODULE': 'no_such_module'}",
        "shell",
        "--verbosity=0",
        "-c",
        "from django_events.declarations import registry; print(list(registry))",
    )

    assert done.stdout.split() == ["[]"], done.stderr


# E005: the engine


class WritesTo:
    def __init__(self, using):
        self.using = using

    def db_for_write(self, model, **hints):
        return self.using if model is BufferedEvent else None


@pytest.fixture
def sqlite(tmp_path):
    """An alias of another engine. Some of Django's own checks connect to it."""
    from django.db.backends.sqlite3.base import DatabaseWrapper

    settings = {
        **connections["default"].settings_dict,
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": tmp_path / "lite",
    }
    connections["lite"] = DatabaseWrapper(settings, "lite")
    yield "lite"
    connections["lite"].close()
    del connections["lite"]


def test_events_that_would_be_written_to_another_engine_are_found(sqlite):
    with override_settings(DATABASE_ROUTERS=[WritesTo(sqlite)]):
        assert ours() == [
            Error(
                "Events are written to the database 'lite', which is sqlite, not PostgreSQL.",
                hint="Use PostgreSQL there, or route the app 'django_events' to a PostgreSQL with DATABASE_ROUTERS.",
                id="django_events.E005",
            )
        ]


def test_another_engine_beside_postgresql_is_fine(sqlite):
    assert ours(databases=["default", sqlite]) == []


@pytest.mark.slow
def test_a_site_on_another_engine_is_told_before_it_migrates(tmp_path):
    settings = "DATABASES = {'default': {'ENGINE': 'django.db.backends.sqlite3', 'NAME': ':memory:'}}"
    done = manage(tmp_path, settings, "check")

    assert done.returncode == 1
    assert "(django_events.E005) Events are written to the database 'default', which is sqlite" in done.stderr


# E006 and W001: the server


@pytest.mark.parametrize(("version", "told"), [(130_023, "13.23"), (140_000, "14.0"), (140_001, None), (180_006, None)])
def test_a_server_that_is_too_old_is_found(monkeypatch, version, told):
    """No server that old is to be had here, so the connection is made to say that it is one."""
    monkeypatch.setitem(vars(connections["default"]), "pg_version", version)
    messages = [message for message in ours() if message.id == "django_events.E006"]

    assert messages == (
        [
            Error(
                f"The database 'default' is PostgreSQL {told}; django_events needs 14.1 or newer.",
                hint="Upgrade the server.",
                id="django_events.E006",
            )
        ]
        if told
        else []
    )


def test_the_server_of_the_tests_is_asked_for_its_version():
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version_num")
        assert connection.pg_version == int(cursor.fetchone()[0])


def test_parameters_bound_by_the_server_are_warned_of(monkeypatch):
    options = {**connection.settings_dict.get("OPTIONS", {}), "server_side_binding": True}
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)

    assert ours() == [
        checks.Warning(
            "The database 'default' binds parameters on the server, which makes PostgreSQL plan django_events' "
            "statements without knowing which topic they are about.",
            hint="Leave 'server_side_binding' out of its OPTIONS, or give events a database alias without it.",
            id="django_events.W001",
        )
    ]
    options["server_side_binding"] = False
    assert ours() == []


def test_a_consumer_that_stopped_is_found(make_topic):
    topic = Topic.objects.get(name=str(make_topic("things", partitions=2)))
    for name, partition in (("reader", 1), ("queue", Position.ALL)):
        row = Consumer.objects.create(name=name, topic=topic)
        Position.objects.create(
            consumer=row, partition=partition, stopped_at=datetime(2025, 1, 2, 3, 4, tzinfo=UTC), error="Bad."
        )
    assert [(message.msg, message.hint) for message in ours() if message.id == "django_events.W003"] == [
        (
            "Consumer queue of things stopped, at 2025-01-02 03:04:00Z. Bad.",
            "Repair the cause, then: manage.py events resume queue",
        ),
        (
            "Consumer reader of things stopped in partition 1, at 2025-01-02 03:04:00Z. Bad.",
            "Repair the cause, then: manage.py events resume reader",
        ),
    ]


class NoEvents:
    def allow_migrate(self, db, app_label, **hints):
        return False if app_label == "django_events" else None


def test_servers_are_asked_only_where_events_may_be_and_only_by_commands_that_name_them(monkeypatch):
    monkeypatch.setitem(vars(connections["default"]), "pg_version", 130_000)

    assert ids(databases=None) == []
    assert ids(databases=[]) == []
    assert ids() == ["django_events.E006"]
    with override_settings(DATABASE_ROUTERS=[NoEvents()]):
        assert ids() == ["django_events.E016"]  # the shop's projection has its rows where no events are


# W004 to W007: what goes wrong in production


def pitfalls():
    """What `check --deploy` adds, without the one that the shop has: it keeps its events for ever."""
    return [
        message
        for message in run_checks(include_deployment_checks=True)
        if message.id.startswith("django_events.") and message.id != "django_events.W006"
    ]


class ReadsFrom:
    def __init__(self, alias):
        self.alias = alias

    def db_for_read(self, model, **hints):
        return self.alias if model is EventRow else None


def test_pitfalls_are_told_by_deploy_only():
    with override_settings(DJANGO_EVENTS={"POLL_INTERVAL": timedelta(milliseconds=1)}):
        assert ours() == []
        assert [message.id for message in pitfalls()] == ["django_events.W005"]
    assert pitfalls() == []


@pytest.mark.parametrize(
    "wrong", ["nonsense", {"POLL_INTERVAL": "soon"}, {"TELEMETRY": 5}, {"NOTIFY": 3}, {"BROKERS": 5}]
)
def test_a_wrong_value_is_told_by_one_check_and_ends_no_other(wrong):
    with override_settings(DJANGO_EVENTS=wrong):
        assert [message.id for message in pitfalls()] == ["django_events.E002"]


@pytest.mark.slow
def test_events_that_are_read_elsewhere_than_written(other_alias):
    with override_settings(DATABASE_ROUTERS=[ReadsFrom(other_alias)]):
        assert pitfalls() == [
            checks.Warning(
                "Events are written to the database 'default' and read from 'other': what is read may be late, and a "
                "handler that reads the log may not find the event that it was called for.",
                hint="Let the router answer for the app 'django_events' with one alias, and name the other with "
                "using().",
                id="django_events.W004",
            )
        ]


def test_polling_that_never_rests():
    with override_settings(DJANGO_EVENTS={"POLL_INTERVAL": timedelta(milliseconds=10)}):
        assert [message.msg for message in pitfalls()] == [
            "DJANGO_EVENTS['POLL_INTERVAL'] is 0.01 s: where no wake-up comes, every worker asks the database 100 "
            "times a second for nothing."
        ]
    with override_settings(DJANGO_EVENTS={"POLL_INTERVAL": timedelta(milliseconds=50)}):
        assert pitfalls() == []


def test_topics_that_grow_for_ever_are_told_once(declare):
    def told():
        return [message.msg for message in run_checks(include_deployment_checks=True) if message.id.endswith(".W006")]

    [before] = told()
    assert before.startswith("No retention is declared for orders, payments, stock")
    assert before.endswith(": their logs grow until the disk is full.")
    declare(name="by-age", retention=timedelta(days=1))
    declare(name="by-count", retention_events=1_000_000)
    declare(name="by-size", retention_bytes=1 << 40)
    assert told() == [before]
    for number in range(6):
        declare(name=f"kept-{number}")
    [after] = told()
    assert after.count(",") == TOLD - 1
    assert after.endswith(" more: their logs grow until the disk is full.")


@contextmanager
def events_at(**changes):
    """Events are written to, and read from, an alias with other settings."""
    with alias(**changes) as using, override_settings(DATABASE_ROUTERS=[WritesTo(using), ReadsFrom(using)]):
        yield


@pytest.mark.parametrize(
    ("host", "options", "found"),
    [
        ("db.example.org", {}, True),
        ("db.example.org", {"sslmode": "prefer"}, True),
        ("db.example.org", {"sslmode": "require"}, False),
        ("db.example.org", {"sslmode": "verify-full"}, False),
        ("127.0.0.1", {}, False),
        ("/var/run/postgresql", {}, False),
        ("", {}, False),
    ],
)
def test_a_way_over_the_network_without_encryption(monkeypatch, host, options, found):
    monkeypatch.delenv("PGSSLMODE", raising=False)
    with events_at(HOST=host, OPTIONS=options):
        assert [message.id for message in pitfalls()] == (["django_events.W007"] if found else [])


def test_the_environment_may_ask_for_encryption(monkeypatch):
    monkeypatch.setenv("PGSSLMODE", "verify-full")
    with events_at(HOST="db.example.org"):
        assert pitfalls() == []


# E013: models on a database without events


class KeepsEventsOn:
    """A router that has the tables of django_events on one alias, and all models on another one."""

    def __init__(self, events, rows):
        self.events, self.rows = events, rows

    def db_for_write(self, model, **hints):
        return self.events if model._meta.app_label == "django_events" else self.rows

    db_for_read = db_for_write

    def allow_migrate(self, db, app_label, **hints):
        return db == self.events if app_label == "django_events" else None


def found_by_e013():
    return {(message.msg, message.obj._meta.label) for message in ours() if message.id == "django_events.E013"}


@pytest.mark.slow
@pytest.mark.usefixtures("transactional_db")
def test_models_that_are_written_where_there_are_no_events_are_found(other_alias):
    with override_settings(DATABASE_ROUTERS=[KeepsEventsOn(other_alias, "default")]):
        found = found_by_e013()

    of = "in the database that its rows are written to, 'default', which has no tables of django_events by its router."
    assert (f"An @outbox publishes {of}", "publishing_app.Book") in found
    assert (f"A capture() publishes {of}", "publishing_app.Account") in found
    with override_settings(DATABASE_ROUTERS=[KeepsEventsOn(other_alias, other_alias)]):
        assert found_by_e013() == set()


def test_models_that_are_written_to_no_postgresql_are_found(sqlite):
    with override_settings(DATABASE_ROUTERS=[KeepsEventsOn("default", sqlite)]):
        found = found_by_e013()

    of = f"in the database that its rows are written to, {sqlite!r}, which is sqlite."
    assert (f"A capture() publishes {of}", "publishing_app.Account") in found
