"""`manage.py events doctor`: each examination finds what is really wrong, and nothing where all is well."""

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from django.core.checks.registry import registry
from django.db import OperationalError, connection, connections
from django.test import override_settings

from django_events import Draft, declarations, publish, publish_many
from django_events.checks import OF_SITE
from django_events.checks.databases import check_servers, check_trust
from django_events.log import channel
from django_events.management.commands.events import Command
from django_events.models import BufferedEvent, Event, MaintenanceStep, Sample, Topic
from django_events.models.functions import ClockTimestamp
from django_events.observing import dead_rows
from django_events.observing.doctoring import cleaning, logs, reach, schema, server, site
from django_events.observing.doctoring import processes as keepers
from django_events.observing.doctoring.database import Database
from django_events.observing.doctoring.examining import ALL, examine
from django_events.observing.findings import Finding
from django_events.observing.problems import transactions
from django_events.operating.pausing import pause
from django_events.operations import lag
from django_events.statements import log_table
from django_events.workers.maintaining import run_steps
from testproject.private_postgres.server import Server
from tests.support.fix_consumers import working
from tests.support.fix_database import alias
from tests.support.fix_queues import fill_topic
from tests.support.fix_topics import transfer_all
from tests.support.processes import Processes, wait_until

pytestmark = pytest.mark.usefixtures("transactional_db")

HOUR = timedelta(hours=1)
Events = Callable[..., tuple[int, str]]


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Events:
    """Run `manage.py events doctor` as from a shell."""

    def run(*arguments: str) -> tuple[int, str]:
        code: Any = 0
        try:
            Command().run_from_argv(["manage.py", "events", "doctor", *arguments])
        except SystemExit as ending:
            code = ending.code
        captured = capsys.readouterr()
        return int(code or 0), captured.out or captured.err

    return run


def run(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def found(name: str, using: str = "default") -> list[Finding]:
    return [one for one in examine(using) if one.kind == name]


def one(answers: Iterator[Finding]) -> tuple[str, str, str]:
    [answer] = answers
    return answer.severity, answer.what, answer.remedy


@contextmanager
def undone(statement: str, by: str) -> Iterator[None]:
    """Break something, and repair it."""
    run(statement)
    try:
        yield
    finally:
        run(by)


def begun_with(**settings: str) -> Any:
    """An alias whose sessions begin with settings."""
    options = " ".join(f"-c {name}={value}" for name, value in settings.items())
    return alias(OPTIONS={**connection.settings_dict["OPTIONS"], "options": options})


@pytest.fixture
def well(connect: Any) -> None:
    """As a transfer that sleeps leaves it, without the dead rows of tests that rolled back."""
    run("SELECT pg_stat_force_next_flush()")
    cleaner = connect(autocommit=True)
    for (table,) in cleaner.execute("SELECT relname FROM pg_stat_user_tables WHERE n_dead_tup > 0").fetchall():
        cleaner.execute(f"VACUUM {table}")
    sleeper = connect(autocommit=True, application_name="the transfer")
    sleeper.execute("SELECT pg_advisory_lock(%s)", [channel.ASLEEP])
    step("segments", finished=timedelta(minutes=5))


def step(name: str, *, finished: timedelta | None, **fields: Any) -> None:
    now = ClockTimestamp()
    at = None if finished is None else now - finished
    MaintenanceStep.objects.create(name=name, started_at=now - HOUR, finished_at=at, holder="here", **fields)


def sample(age: timedelta) -> None:
    moment = ClockTimestamp() - age
    Sample.objects.create(at=moment, taken_at=moment, published=0, handled=0, lag=0, buffered=0)


# --- all of it


def test_a_database_that_is_well_has_no_problem(well, doctor, things, make_consumer):
    make_consumer(things, handler=print)
    code, text = doctor()
    severities = {finding.kind: finding.severity for finding in examine("default")}

    assert (code, text.splitlines()[0]) == (0, f"No error, 1 warning, {len(ALL) - 1} ok.")
    assert {name for name, severity in severities.items() if severity != "ok"} == {
        "settings"
    }  # the shop keeps all events
    assert set(severities) == set(ALL)
    assert max(map(len, text.splitlines())) <= 125


def test_a_problem_comes_first_and_ends_with_1(well, doctor, things):
    off, on = "SET (autovacuum_enabled = off)", "RESET (autovacuum_enabled)"
    with undone(f"ALTER TABLE django_events_delivery {off}", f"ALTER TABLE django_events_delivery {on}"):
        code, text = doctor()
        failed, data = doctor("--format", "json")

    assert (code, failed) == (1, 1)
    assert text.startswith("1 ERROR, 1 warning, ")
    assert "\nerror    autovacuum: It is off for django_events_delivery.\n" in text
    assert "         → ALTER TABLE django_events_delivery RESET (autovacuum_enabled)\n" in text
    told = json.loads(data)
    assert list(told) == ["database", "severities", "findings"]
    assert told["severities"]["error"] == 1
    assert told["findings"][0] == {
        "kind": "autovacuum",
        "severity": "error",
        "consumer": None,
        "topic": None,
        "partition": None,
        "id": None,
        "what": "It is off for django_events_delivery.",
        "remedy": "ALTER TABLE django_events_delivery RESET (autovacuum_enabled)",
        "data": {"table": "django_events_delivery"},
    }


def test_an_examination_that_fails_is_unknown_and_the_others_go_on(well, monkeypatch):
    def fail(database: Database) -> Iterator[Finding]:
        database.waiting  # noqa: B018  # a statement that works, before
        raise ValueError("no such thing")
        yield

    monkeypatch.setitem(ALL, "topics", fail)
    [finding] = found("topics")

    assert (finding.severity, finding.what) == ("unknown", "It failed: ValueError: no such thing")
    assert {finding.severity for finding in examine("default")} == {"warning", "unknown", "ok"}


@pytest.mark.slow
def test_an_examination_that_takes_too_long_is_cut_off(well, monkeypatch, connect):
    limits = {"statement_timeout": "5s", "lock_timeout": "500ms"}  # time to ask who has the lock
    monkeypatch.setattr("django_events.observing.doctoring.examining.LIMITS", limits)
    other_session = connect()
    other_session.execute("LOCK TABLE django_events_maintenancestep")
    findings = {one.kind: one for one in examine("default")}
    finding = findings["maintenance"]

    assert finding.severity == "unknown"
    pid = other_session.info.backend_pid
    assert finding.what.startswith(f"What it looks at is locked, by session {pid} of {other_session.info.user} (")
    assert finding.what.endswith(", idle in transaction after LOCK TABLE: see locks.")
    assert findings["topics"].severity == "ok"


def test_a_database_that_is_away_is_said_in_one_line(doctor):
    with alias(PORT="1"):
        code, text = doctor("--database", "other")

    assert code == 75
    assert "The database 'other' can't be reached." in text
    assert "Traceback" not in text


def test_a_database_that_was_never_migrated_has_one_remedy():
    """To restore functions from a backup, or to install triggers, would be the wrong advice for each of them."""
    with begun_with(search_path="pg_catalog") as using:
        findings = [*schema.functions(Database(using)), *schema.triggers(Database(using))]

    assert [one.severity for one in findings] == ["unknown", "unknown"]
    assert all("run: manage.py migrate --database other" in one.what for one in findings)


def test_a_role_without_rights_gets_what_it_may_see(well):
    run("DROP ROLE IF EXISTS doctor_stranger")
    run("CREATE ROLE doctor_stranger LOGIN PASSWORD 'x'")
    try:
        with alias(USER="doctor_stranger", PASSWORD="x"):
            findings = {finding.kind: finding for finding in examine("other")}
    finally:
        run("DROP ROLE doctor_stranger")

    assert findings["tables"].severity == findings["clock"].severity == "ok"
    assert findings["workers"].severity == "unknown"
    assert findings["workers"].what.startswith("This role may not look: permission denied for table ")
    assert "events grants --role reader" in findings["workers"].remedy
    assert findings["disk"].severity == "unknown"
    assert findings["rights"].what.startswith("doctor_stranger can't ")


# --- processes


def test_a_transfer_that_sleeps_is_seen_by_its_lock(well):
    severity, what, _ = one(keepers.transfer(Database("default")))

    assert severity == "ok"
    assert what.startswith("One sleeps until something comes: session ")
    assert ", the transfer)" in what


def test_a_sample_is_no_sign_of_a_transfer_because_cron_takes_it_too():
    told = ("unknown", "None sleeps, and nothing waits in the buffer for long that would show whether one runs.")
    assert one(keepers.transfer(Database("default")))[:2] == told
    run_steps("default")
    assert one(keepers.transfer(Database("default")))[:2] == told


def test_no_sign_of_a_transfer_for_long_is_a_problem():
    sample(HOUR)

    assert one(keepers.transfer(Database("default"))) == (
        "error",
        "No sign of one: none sleeps, and the last sample is from 1 h ago.",
        "Start one: manage.py run_transfer",
    )
    with override_settings(DJANGO_EVENTS={"SAMPLES_KEPT": None}):  # then an old one says nothing
        assert one(keepers.transfer(Database("default")))[0] == "unknown"


def test_events_that_wait_in_the_buffer_are_a_problem_though_a_transfer_sleeps(well, things):
    publish(things, "waits")
    BufferedEvent.objects.update(published_at=ClockTimestamp() - HOUR)

    severity, what, remedy = one(keepers.transfer(Database("default")))
    assert (severity, remedy) == ("error", "Is one running? manage.py run_transfer")
    assert what == "1 event in the buffer, the oldest for 1 h: no transfer moves them."


def test_a_consumer_that_no_worker_serves_is_a_problem(things, make_consumer):
    make_consumer(things, handler=print)
    fill_topic(things, 1, 2)
    assert one(keepers.workers(Database("default")))[0] == "ok"

    run(f"UPDATE {log_table(Topic.objects.get(name='things').pk)} SET logged_at = logged_at - interval '1 hour'")
    run("UPDATE django_events_consumer SET registered_at = registered_at - interval '1 hour'")
    severity, what, remedy = one(keepers.workers(Database("default")))
    assert severity == "error"
    assert remedy.startswith("Is one running? manage.py run_consumer reader, or restart those that run")
    assert what == "2 events behind, the oldest for 1 h: no worker handles them."


def test_maintenance_that_never_ran_fails_or_is_late():
    assert one(keepers.maintenance(Database("default")))[0] == "unknown"
    step("history", finished=timedelta(minutes=1))
    assert one(keepers.maintenance(Database("default")))[:2] == ("ok", "1 step, none longer ago than 1 min.")

    step("retention", finished=timedelta(minutes=1), error="disk full", failing_since=ClockTimestamp() - 3 * HOUR)
    step("segments", finished=5 * HOUR)
    step("samples", finished=None)
    answers = {
        answer.data["step"]: (answer.severity, answer.what) for answer in keepers.maintenance(Database("default"))
    }
    assert answers == {
        "retention": ("error", "retention fails for 3 h: disk full"),
        "segments": ("error", "segments ran 5 h ago the last time."),
        "samples": ("warning", "samples has begun and never ended."),
    }


# --- dead rows


def test_an_old_snapshot_is_a_problem_with_its_end(connect, monkeypatch):
    monkeypatch.setattr(transactions, "OLD", timedelta(0))
    other_session = connect(application_name="a report")
    other_session.execute("CREATE TEMPORARY TABLE mine (id int)")
    pid = other_session.info.backend_pid
    [answer] = [a for a in cleaning.snapshots(Database("default")) if f"Session {pid} " in a.what]

    assert answer.severity == "error"
    assert answer.remedy == f"End it, or its session: SELECT pg_terminate_backend({pid})"


def test_a_table_full_of_dead_rows_is_a_problem(monkeypatch):
    monkeypatch.setattr(dead_rows, "LEAST", 0)
    monkeypatch.setattr(dead_rows, "TIMES_LIVE", 0)
    monkeypatch.setattr(transactions, "UNCLEANED", timedelta(hours=-1))
    answers = [*cleaning.bloat(Database("default"))]

    assert {answer.severity for answer in answers} == {"error"}
    assert any("django_events_bufferedevent has " in answer.what for answer in answers)


def test_a_table_that_is_tuned_otherwise_is_a_warning():
    broken = "ALTER TABLE django_events_bufferedevent RESET (vacuum_truncate)"
    with undone(broken, "ALTER TABLE django_events_bufferedevent SET (vacuum_truncate = off)"):
        severity, what, remedy = one(cleaning.autovacuum(Database("default")))

    assert severity == "warning"
    assert what == "django_events_bufferedevent is not tuned as it was made: vacuum_truncate is unset instead of off."
    assert remedy == "ALTER TABLE django_events_bufferedevent SET (vacuum_truncate = off)"


def test_autovacuum_is_off_for_a_segment(things):
    run(f"ALTER TABLE {log_table(Topic.objects.get(name='things').pk)}_1 SET (autovacuum_enabled = false)")
    severity, what, _ = one(cleaning.autovacuum(Database("default")))

    assert severity == "error"
    assert what.startswith("It is off for django_events_event_")


def test_the_migration_tunes_what_the_examination_expects():
    assert one(cleaning.autovacuum(Database("default")))[0] == "ok"


def test_transaction_ids_that_are_far_are_a_problem(monkeypatch):
    monkeypatch.setattr(cleaning, "FAR", 1)
    severity, what, remedy = one(cleaning.wraparound(Database("default")))

    assert (severity, remedy) == ("error", "End what is old (snapshots above), then: VACUUM FREEZE")
    assert "transaction ids since the oldest that is kept; the server stops at 2,100 million." in what


# --- logs


def test_a_topic_without_reserve_and_one_without_room(make_topic):
    small = make_topic("small", segment_size=100)
    table = log_table(Topic.objects.get(name="small").pk)
    fill_topic(small, *range(60))
    run(f"DROP TABLE {table}_101")
    [last] = [answer for answer in logs.room(Database("default")) if answer.data.get("topic") == "small"]
    assert (last.severity, last.what) == (
        "warning",
        "small is in its last segment, with room for 40 more: the next one is not there.",
    )

    run(f"DROP TABLE {table}_1")
    [none] = [answer for answer in logs.room(Database("default")) if answer.data.get("topic") == "small"]
    assert (none.severity, none.what) == (
        "error",
        "small has no segment for small/1: the transfer has to make it first.",
    )


def test_a_segment_that_is_unlogged_or_has_an_invalid_index(make_topic):
    make_topic("small")
    table = f"{log_table(Topic.objects.get(name='small').pk)}_1"
    run(f"ALTER TABLE {table} SET UNLOGGED")
    run(f"CREATE INDEX django_events_broken ON {table} (logged_at)")
    run("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'django_events_broken'::regclass")

    assert {(answer.severity, answer.what, answer.remedy) for answer in logs.tables(Database("default"))} == {
        (
            "error",
            f"Index django_events_broken of {table} is invalid, so it is not used.",
            "REINDEX INDEX CONCURRENTLY django_events_broken",
        ),
        ("error", f"{table} is UNLOGGED: a crash empties it.", f"ALTER TABLE {table} SET LOGGED"),
    }


@pytest.mark.parametrize("table", ["django_events_event", "django_events_bufferedevent"])
def test_a_table_that_has_lost_its_primary_key(make_topic, table):
    """Everything goes on, and is slow."""
    things = make_topic("things")
    run(f"ALTER TABLE {table} DROP CONSTRAINT {table}_pkey")
    try:
        publish_many(things, [Draft(value=n) for n in range(10)])
        transfer_all()
        assert Event.objects.of("things").count() == 10
        severity, what, remedy = one(logs.tables(Database("default")))
        assert (severity, what.partition(":")[0]) == ("error", f"{table} has lost its primary key")
    finally:
        run(f"ALTER TABLE {table} ADD PRIMARY KEY (topic_id, id)")
    assert remedy == f"ALTER TABLE {table} ADD PRIMARY KEY (topic_id, id)"
    assert one(logs.tables(Database("default")))[0] == "ok"


def test_a_segment_that_was_detached_halfway(make_topic, connect):
    make_topic("small")
    log = log_table(Topic.objects.get(name="small").pk)
    reader = connect()
    reader.execute(f"SELECT * FROM {log}")
    run("SET lock_timeout = '100ms'")
    try:
        with pytest.raises(OperationalError):  # as DESIGN says: it leaves the segment out of sight
            run(f"ALTER TABLE {log} DETACH PARTITION {log}_1 CONCURRENTLY")
    finally:
        run("RESET lock_timeout")
        reader.rollback()
    severity, what, remedy = one(logs.tables(Database("default")))

    assert (severity, what) == ("error", f"Segment {log}_1 was detached from {log} halfway: its events can't be read.")
    assert remedy.startswith(f"ALTER TABLE {log} DETACH PARTITION {log}_1 FINALIZE")
    run(remedy.partition(",")[0])
    run(f"DROP TABLE {log}_1")


def test_a_session_that_has_locked_a_log_is_named_with_its_end(make_topic, connect, monkeypatch):
    monkeypatch.setattr(logs, "LOCKED_FOR", timedelta(0))
    make_topic("small")
    log = log_table(Topic.objects.get(name="small").pk)
    other_session = connect(application_name="alter table")
    other_session.execute(f"LOCK TABLE {log}_1 IN ACCESS EXCLUSIVE MODE")
    pid = other_session.info.backend_pid
    severity, what, remedy = one(logs.locks(Database("default")))

    assert (severity, remedy) == ("error", f"Let it end, or end it: SELECT pg_terminate_backend({pid})")
    assert what.startswith(
        f"Session {pid} of {other_session.info.user} (alter table) has held AccessExclusiveLock on {log}_1"
    )
    run(remedy.partition(": ")[2])
    monkeypatch.undo()
    assert one(logs.locks(Database("default")))[0] == "ok"


@pytest.mark.parametrize("mode", ["stream", "queue"])
def test_a_handler_that_waits_for_a_lock_on_a_table_of_the_site_is_told_with_its_end(
    mode, make_topic, make_consumer, connect, monkeypatch
):
    monkeypatch.setattr(logs, "LOCKED_FOR", timedelta(0))
    topic = make_topic("waits")
    billing = make_consumer(topic, handler=lock_products, name="invoicing", mode=mode)
    other_session = connect(application_name="psql")
    other_session.execute("LOCK TABLE shop_product IN SHARE ROW EXCLUSIVE MODE")
    pid = other_session.info.backend_pid
    fill_topic(topic, 1)
    with working(billing):
        [found] = wait_until(lambda: [one for one in logs.locks(Database("default")) if one.severity == "warning"])
        assert str(found.subject) == "invoicing of waits"
        assert re.match(
            rf"Its handler, of \S+:{os.getpid()}/1 in session \d+, has waited for 0 s for session {pid} of ", found.what
        )
        assert found.what.endswith(", idle in transaction after LOCK TABLE.")
        assert found.remedy == f"Let it end, or end it: SELECT pg_terminate_backend({pid})"
        other_session.rollback()
        wait_until(lambda: lag("invoicing") == 0)
        wait_until(lambda: one(logs.locks(Database("default")))[0] == "ok")


def lock_products(event):
    with connection.cursor() as cursor:
        cursor.execute("LOCK TABLE shop_product IN SHARE ROW EXCLUSIVE MODE")


# --- what the migrations made


def test_a_trigger_that_is_disabled_or_gone_is_a_problem():
    with undone(
        "ALTER TABLE django_events_event DISABLE TRIGGER pgtrigger_deliver_6a530",
        "ALTER TABLE django_events_event ENABLE TRIGGER pgtrigger_deliver_6a530",
    ):
        severity, what, remedy = one(schema.triggers(Database("default")))
    assert (severity, remedy) == ("error", "manage.py pgtrigger enable django_events.Event:deliver")
    assert what == (
        "Trigger deliver of django_events_event is disabled: queues get no deliveries, or the log can be changed."
    )

    definition = "SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgname = 'pgtrigger_insert_only_b3b0a'"
    with connection.cursor() as cursor:
        cursor.execute(definition)
        [made] = cursor.fetchone()
        cursor.execute("SELECT obj_description(oid) FROM pg_trigger WHERE tgname = 'pgtrigger_insert_only_b3b0a'")
        [comment] = cursor.fetchone()
    with undone(
        "DROP TRIGGER pgtrigger_insert_only_b3b0a ON django_events_event",
        f"{made}; COMMENT ON TRIGGER pgtrigger_insert_only_b3b0a ON django_events_event IS '{comment}'",
    ):
        severity, what, remedy = one(schema.triggers(Database("default")))
    assert (severity, remedy) == ("error", "manage.py pgtrigger install django_events.Event:insert_only")
    assert what.startswith("Trigger insert_only of django_events_event is not there: ")
    assert one(schema.triggers(Database("default")))[0] == "ok"


def test_a_function_that_is_gone_is_a_problem():
    signature = "django_events_is_new(text, text, interval)"
    with undone(f"ALTER FUNCTION {signature} RENAME TO gone", "ALTER FUNCTION gone RENAME TO django_events_is_new"):
        assert one(schema.functions(Database("default")))[:2] == (
            "error",
            f"The function {signature} is not there.",
        )


def test_a_function_of_another_version_is_told():
    signature = "django_events_is_new(text, text, interval)"
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_get_functiondef(%s::regprocedure)", [signature])
        [made] = cursor.fetchone()
    with undone(made.replace("RETURN FOUND", "RETURN true"), made):
        assert one(schema.functions(Database("default"))) == (
            "warning",
            f"The function {signature} is not the one of this version.",
            "manage.py migrate --database default; if that changes nothing, it was replaced by hand.",
        )
    assert one(schema.functions(Database("default")))[0] == "ok"


def test_every_function_of_the_schema_is_examined():
    with connection.cursor() as cursor:
        cursor.execute("SELECT proname FROM pg_proc WHERE starts_with(proname, 'django_events_')")
        assert {name for (name,) in cursor.fetchall()} == {one.partition("(")[0] for one in schema.EXPECTED}


def test_a_role_that_only_publishes_is_told_what_it_can_not_do(well):
    run("DROP ROLE IF EXISTS doctor_publisher")
    run("CREATE ROLE doctor_publisher LOGIN PASSWORD 'x'")
    try:
        run("GRANT SELECT ON django_events_topic TO doctor_publisher")
        with alias(USER="doctor_publisher", PASSWORD="x"):
            before = [*schema.rights(Database("other"))]
            run("GRANT INSERT (value) ON django_events_bufferedevent TO doctor_publisher")
            after = [*schema.rights(Database("other"))]
    finally:
        run("DROP OWNED BY doctor_publisher")
        run("DROP ROLE doctor_publisher")

    assert (before[0].severity, before[0].what) == (
        "error",
        "doctor_publisher can't publish: it lacks INSERT of django_events_bufferedevent.",
    )
    assert {(answer.severity, answer.remedy) for answer in after} == {
        ("warning", "Fine, unless processes of this role are to do that: it can publish.")
    }
    assert [answer.what.partition(":")[0] for answer in after] == [
        "doctor_publisher can't transfer",
        "doctor_publisher can't read",
        "doctor_publisher can't handle",
        "doctor_publisher can't make segments",
    ]


# --- this process


def test_topics_and_consumers_that_one_side_does_not_know(make_topic, make_consumer, request):
    gone = make_topic("gone")
    declarations.registry.discard(gone)
    forgotten = make_consumer(make_topic("things"), handler=print, name="forgotten")
    declarations.consumers.discard(forgotten)
    request.getfixturevalue("undiscovered")  # behind what registers all that is declared
    topics = {answer.data["topic"]: (answer.severity, answer.what) for answer in site.topics(Database("default"))}

    assert topics == {
        "undiscovered": ("error", "undiscovered is declared and not in the database: publishing to it fails."),
        "gone": (
            "warning",
            "gone is in the database, and no installed app declares it: nothing is published to it from here.",
        ),
    }
    [consumer] = site.consumers(Database("default"))
    assert (consumer.severity, consumer.subject.consumer) == ("warning", "forgotten")
    assert consumer.remedy == "If it is gone for good: manage.py events unregister forgotten --topic things"


def test_wrong_settings_are_told_as_by_the_checks():
    with override_settings(DJANGO_EVENTS={"POLL_INTERVALL": 1}):
        answers = {answer.data["id"]: answer for answer in site.settings(Database("default"))}

    assert one(iter([answers["django_events.E001"]])) == (
        "error",
        "(django_events.E001) DJANGO_EVENTS has no key 'POLL_INTERVALL'.",
        "Did you mean 'POLL_INTERVAL'?",
    )
    assert answers["django_events.W006"].severity == "warning"


def test_the_doctor_asks_all_checks_of_ours():
    """Those of a database are asked of the one that is examined: its server here, its rights by an examination."""
    registered = registry.get_checks(include_deployment_checks=True)
    of_ours = {check for check in registered if check.__module__.startswith("django_events.")}

    assert of_ours - {check_servers, check_trust} == set(OF_SITE)


def test_other_problems_of_status_are_told_too(well, things, make_consumer):
    make_consumer(things, handler=print)
    pause("reader")
    [finding] = found("status")

    assert finding.severity == "warning"
    assert (finding.data, str(finding.subject)) == ({"problem": "paused"}, "reader of things")
    assert finding.what.startswith("paused since 20")
    assert finding.remedy == "manage.py events resume reader"


# --- the server


def test_settings_of_a_session_that_hurt():
    with begun_with(synchronous_commit="off", statement_timeout="300", default_transaction_read_only="on") as using:
        patient = Database(using)
        assert one(server.durability(patient))[:2] == (
            "warning",
            "synchronous_commit is off: a crash takes back events whose publishers were told that they are there.",
        )
        assert one(server.limits(patient))[:2] == (
            "warning",
            "statement_timeout is 300 ms, which cuts off migrations and what handlers ask for.",
        )
        assert one(server.writable(patient))[:2] == (
            "error",
            "Transactions are read-only by default: nothing can be published or moved.",
        )
        assert {f.severity for f in found("durability", using)} == {"warning"}  # also inside of an examination


def test_a_forgotten_transaction_without_a_limit(connect, monkeypatch):
    monkeypatch.setattr(server, "FORGOTTEN", timedelta(0))
    other_session = connect()
    other_session.execute("SELECT 1")

    severity, what, remedy = one(server.limits(Database("default")))
    assert severity == "warning"
    assert what.endswith("idle in a transaction for more than 10 min, and no limit ends them.")
    assert remedy == "ALTER ROLE … SET idle_in_transaction_session_timeout = '5min'"
    with begun_with(idle_in_transaction_session_timeout="60000") as using:
        assert one(server.limits(Database(using)))[0] == "ok"


@pytest.mark.slow
def test_a_server_of_its_own_that_is_set_wrong_in_all_ways():
    wrong = {
        "autovacuum": "off",
        "fsync": "off",
        "full_page_writes": "off",
        "max_connections": "4",
        "superuser_reserved_connections": "3",
        "max_prepared_transactions": "5",
        "max_wal_senders": "0",
    }
    with Server(options=wrong) as own:
        with psycopg.connect(own.url, autocommit=True) as other:
            other.execute("CREATE DATABASE ascii ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
        with address(own.url, "ascii") as using:
            findings: dict[str, list[Finding]] = {}
            for finding in examine(using):
                findings.setdefault(finding.kind, []).append(finding)
        whats = {(f.severity, f.what) for several in findings.values() for f in several}

        assert ("error", "fsync is off: a crash of the machine can destroy the database.") in whats
        assert ("error", "full_page_writes is off: a crash of the machine can destroy the database.") in whats
        assert ("error", "autovacuum is off, so no dead row is ever removed.") in whats
        assert ("error", "The database is encoded in SQL_ASCII, which lacks characters that JSON has.") in whats
        no_wake_ups = (
            "Transactions can be prepared, so publishers wake no transfer: it looks milliseconds after it found events,"
            " and every 0.5 s while none come."
        )
        assert ("warning", no_wake_ups) in whats
        assert findings["migrations"][0].what == "Not applied: 0001_initial, 0002_drop_logs."
        assert findings["migrations"][0].remedy == "manage.py migrate --database other"
        assert {f.severity for f in findings["functions"]} == {"unknown"}
        for name in ("transfer", "workers", "maintenance", "segments", "topics"):
            assert findings[name][0].severity == "unknown"
            assert "manage.py migrate --database other" in findings[name][0].what
        assert findings["capacity"][0].what.endswith(" of 1 connections are taken.")

        own.stop()
        (own.data / "standby.signal").touch()
        own.start()
        with address(own.url, "postgres") as using:
            assert ("error", "The server is a standby: nothing can be published or moved here.") in {
                (answer.severity, answer.what) for answer in server.writable(Database(using))
            }


@contextmanager
def address(url: str, name: str) -> Iterator[str]:
    parts = urlsplit(url)
    where = {"HOST": parts.hostname, "PORT": str(parts.port), "USER": parts.username, "PASSWORD": parts.password}
    with alias(NAME=name, OPTIONS={}, **where) as using:
        yield using


def test_more_tables_than_locks(monkeypatch):
    real = server._load
    monkeypatch.setattr(server, "_load", lambda patient: (*real(patient)[:3], 1_000_000, *real(patient)[4:]))
    severity, what, _ = one(server.capacity(Database("default")))

    assert severity == "warning"
    assert what.startswith("The logs have 1,000,000 tables and indexes, the server's lock table has room for about ")


@pytest.mark.slow
def test_a_disk_that_is_nearly_full(monkeypatch):
    """The disk of this machine has what it has, so it is said to be another one."""
    with Server() as own, address(own.url, "postgres") as using:
        monkeypatch.setattr(server, "sizes", lambda using, topics: {})
        for free, severity in ((20 << 30, "ok"), (5 << 30, "warning"), (100 << 20, "error")):
            usage = shutil._ntuple_diskusage(100 << 30, 0, free)
            monkeypatch.setattr(server, "disk_usage", lambda folder, usage=usage: usage)
            patient = Database(using)
            patient.logs = []
            assert one(server.disk(patient))[0] == severity


def test_a_folder_of_another_machine_is_not_taken_for_the_servers(tmp_path):
    (tmp_path / "postmaster.pid").write_text("1\n/data\n1000\n")

    assert server._is_here(tmp_path, 1_000)
    assert not server._is_here(tmp_path, 2_000)
    assert not server._is_here(tmp_path / "nowhere", 1_000)


# --- the way there


@pytest.mark.parametrize(("off", "severity"), [(0.0, "ok"), (-30.0, "warning"), (3_600.0, "error")])
def test_a_clock_that_is_off(monkeypatch, off, severity):
    monkeypatch.setattr(reach, "time", SimpleNamespace(time=lambda: time.time() + off, monotonic=time.monotonic))
    told = one(reach.clock(Database("default")))

    assert told[0] == severity
    if off:
        assert abs(float(told[1].split()[3]) - abs(off)) < 1
        assert ("ahead of" if off > 0 else "behind") in told[1]


def test_the_way_without_a_pooler():
    assert one(reach.pooler(Database("default")))[:2] == (
        "ok",
        "Connections lead to the server itself, so workers are woken.",
    )


def test_a_connection_that_is_lost_on_the_way_is_told_as_lost():
    with alias() as using:
        mine = connections[using]
        mine.ensure_connection()
        run(f"SELECT pg_terminate_backend({mine.connection.info.backend_pid}, 10000)")

        with pytest.raises(OperationalError):
            one(reach.pooler(Database(using)))


@pytest.mark.long
def test_a_pooler_is_found(processes: Processes, pooler: str):
    processes.url = pooler
    told = processes.run("events", "doctor", "--format", "json")
    [finding] = [one for one in json.loads(told.stdout)["findings"] if one["kind"] == "pooler"]

    assert finding["severity"] == "warning"
    assert finding["what"] == (
        "A pooler is in the way. All works, and workers poll every 0.5 s instead of being woken."
    )
