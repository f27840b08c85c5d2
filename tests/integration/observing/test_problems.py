"""Problems that are about the database itself, or about retention; the others are told in test_events_command.py."""

from collections.abc import Iterator
from datetime import timedelta

import psycopg
import pytest
from django.db import connection

from django_events import declarations, publish
from django_events.log.inventory import waiting
from django_events.management.commands.events import Command
from django_events.models import BufferedEvent, Consumer, Position, Topic
from django_events.models.functions import ClockTimestamp
from django_events.observing import counted, dead_rows
from django_events.observing.dead_rows import SQL as DEAD_ROWS_SQL
from django_events.observing.dead_rows import Holder
from django_events.observing.findings import Finding, Subject
from django_events.observing.lag import standings
from django_events.observing.problems import (
    find_problems,
    retention,
    stopped,
    telling,
    transactions,
    transfers,
)
from django_events.operating.pausing import pause
from django_events.phrases import count
from django_events.statements import log_table
from testproject.private_postgres.server import Server
from tests.support.fix_queues import fill_topic
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("transactional_db")

NOW = timedelta(0)
DAY = timedelta(days=1)


@pytest.fixture
def uncleaned() -> Iterator[None]:
    """The table of deliveries without autovacuum, so that it doesn't come in the middle, and as if new."""
    run("ALTER TABLE django_events_delivery SET (autovacuum_enabled = off)")
    run("SELECT pg_stat_reset_single_table_counters('django_events_delivery'::regclass)")
    yield
    run("ALTER TABLE django_events_delivery RESET (autovacuum_enabled)")
    run("VACUUM django_events_delivery")


def run(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def found(kind: str) -> list[Finding]:
    return [one for one in find_problems("default", [], None, standings("default")) if one.kind == kind]


def delete_deliveries(number: int) -> None:
    """Leave so many dead rows, and have the statistics know of them."""
    run(
        "INSERT INTO django_events_delivery (consumer_id, event_id, received_at, attempts, delivered, error)"
        f" SELECT 0, event_id, now(), 0, 0, '' FROM generate_series(1, {number}) AS event_id"
    )
    run("DELETE FROM django_events_delivery WHERE consumer_id = 0")
    if connection.pg_version >= 150000:
        run("SELECT pg_stat_force_next_flush()")


def age_log(topic: declarations.DeclaredTopic, by: timedelta) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {log_table(Topic.objects.get(name=topic.name).pk)} SET logged_at = logged_at - %s", [by]
        )


# --- old snapshots


def test_a_transaction_that_is_open_for_long_is_named(connect, monkeypatch, capsys):
    other_session = connect(application_name="a report")
    other_session.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    other_session.execute("SELECT 1 FROM django_events_topic")
    pid = other_session.info.backend_pid
    assert found("snapshot") == []  # not for long yet

    monkeypatch.setattr(transactions, "OLD", NOW)
    [problem] = [one for one in found("snapshot") if f"Session {pid} " in one.what]
    assert (problem.subject.consumer, problem.subject.topic, problem.subject.partition) == (None, None, None)
    assert f"Session {pid} of {other_session.info.user} (a report) has a transaction open since 20" in problem.what
    assert problem.what.endswith("Z: dead rows pile up, and every look gets slower.")
    assert problem.remedy == f"End it, or its session: SELECT pg_terminate_backend({pid})"

    Command().run_from_argv(["manage.py", "events", "status"])
    assert f"  snapshot: Session {pid} of " in capsys.readouterr().out

    run(problem.remedy.partition(": ")[2])
    wait_until(lambda: not any(str(pid) in one.what for one in found("snapshot")), what="the end of the session")


def test_a_session_that_holds_nothing_back_is_not_named(connect, monkeypatch):
    monkeypatch.setattr(transactions, "OLD", NOW)
    idle = connect()
    idle.execute("SELECT 1")  # at READ COMMITTED it needs nothing between two statements

    assert not any(f"Session {idle.info.backend_pid} " in one.what for one in found("snapshot"))


def test_a_writer_holds_back_what_is_older_than_its_transaction(connect, monkeypatch):
    monkeypatch.setattr(transactions, "OLD", NOW)
    writer = connect()
    writer.execute("CREATE TEMPORARY TABLE mine (id int)")

    assert any(f"Session {writer.info.backend_pid} " in one.what for one in found("snapshot"))


def test_a_role_without_rights_sees_its_own_sessions_only(connect):
    """It must not fail either."""
    other_session = connect()
    other_session.execute("CREATE TEMPORARY TABLE mine (id int)")
    run("DROP ROLE IF EXISTS events_stranger")
    run("CREATE ROLE events_stranger")
    try:
        run("GRANT SELECT ON django_events_sample TO events_stranger")
        run("SET ROLE events_stranger")
        assert dead_rows.holders("default", age=NOW, most=10) == []
        dead_rows.piles("default")  # is allowed
        run("RESET ROLE")
        assert [one.name for one in dead_rows.holders("default", age=NOW, most=10)] == [
            str(other_session.info.backend_pid)
        ]
    finally:
        run("RESET ROLE")
        run("DROP OWNED BY events_stranger")
        run("DROP ROLE events_stranger")


@pytest.mark.parametrize(
    ("holder", "what", "remedy"),
    [
        (
            Holder("prepared", "it's", "shop", "", None, None),
            "Prepared transaction it's of shop is open since : dead rows pile up, and every look gets slower.",
            "COMMIT PREPARED 'it''s', or ROLLBACK PREPARED 'it''s'",
        ),
        (
            Holder("slot", "cdc", "", "", None, None),
            "Replication slot cdc needs rows that are dead for long: dead rows pile up, and every look gets slower.",
            "Let its reader go on, or if it is gone for good: SELECT pg_drop_replication_slot('cdc')",
        ),
    ],
)
def test_prepared_transactions_and_slots_are_told_with_their_end(monkeypatch, holder, what, remedy):
    monkeypatch.setattr(transactions, "holders", lambda *args, **options: [holder])

    [problem] = found("snapshot")
    assert (problem.what, problem.remedy) == (what, remedy)


@pytest.mark.slow
def test_prepared_transactions_and_slots_are_found():
    """On a server that allows them. A slot is there if it needs more than a sample that is old enough."""
    question = DEAD_ROWS_SQL.holding_back.text
    with (
        Server(options={"max_prepared_transactions": "2", "wal_level": "logical"}) as server,
        psycopg.connect(server.url, autocommit=True) as other,
    ):

        def asked(age: timedelta) -> list[tuple[str, str]]:
            return [row[:2] for row in other.execute(question, {"age": age, "limit": 10}).fetchall()]

        other.execute("CREATE TABLE django_events_sample (at timestamptz PRIMARY KEY)")
        other.execute("SELECT pg_create_logical_replication_slot('cdc', 'pgoutput')")
        assert asked(NOW) == []  # nothing tells how old it is
        other.execute("BEGIN")
        other.execute("INSERT INTO django_events_sample VALUES (now() - interval '1 minute')")
        other.execute("PREPARE TRANSACTION 'forgotten'")

        assert asked(timedelta(hours=1)) == []
        assert asked(NOW) == [("prepared", "forgotten")]
        other.execute("COMMIT PREPARED 'forgotten'")
        assert asked(NOW) == [("slot", "cdc")]
        assert asked(timedelta(hours=1)) == []
        other.execute("SELECT pg_drop_replication_slot('cdc')")
        assert asked(NOW) == []


# --- dead rows


def bloated():
    """The problem of the deliveries: other tests leave dead rows in other tables."""
    return [one for one in found("bloat") if one.what.startswith("django_events_delivery ")]


def test_a_table_that_was_never_vacuumed_is_named(uncleaned, monkeypatch):
    monkeypatch.setattr(dead_rows, "LEAST", 1_000)
    delete_deliveries(1_200)
    [problem] = wait_until(lambda: bloated(), what="the statistics")

    assert problem.what == "django_events_delivery has 1,200 dead rows, 0 live ones, and was never vacuumed."
    assert problem.remedy == ("VACUUM django_events_delivery. Is autovacuum on, and free to come? SHOW autovacuum")
    run("VACUUM django_events_delivery")
    assert bloated() == []


def test_a_table_that_vacuum_can_not_clean_is_named_with_who_keeps_it(uncleaned, monkeypatch, connect):
    monkeypatch.setattr(dead_rows, "LEAST", 1_000)
    other_session = connect()
    other_session.execute("CREATE TEMPORARY TABLE mine (id int)")
    delete_deliveries(1_200)
    wait_until(lambda: bloated(), what="the statistics")
    run("VACUUM django_events_delivery")
    assert bloated() == []  # it came just now, and no session holds it back for long

    monkeypatch.setattr(transactions, "UNCLEANED", timedelta(hours=-1))
    [problem] = bloated()
    assert ": no vacuum came since 20" in problem.what

    monkeypatch.setattr(transactions, "holders", lambda using, age, most: dead_rows.holders(using, age=NOW, most=most))
    monkeypatch.setattr(transactions, "UNCLEANED", timedelta(minutes=10))
    [problem] = bloated()
    pid = other_session.info.backend_pid
    assert problem.what.startswith(
        f"django_events_delivery has 1,200 dead rows, 0 live ones: no vacuum can help. Session {pid} of "
    )
    assert problem.remedy == f"End it, or its session: SELECT pg_terminate_backend({pid})"


def test_a_few_dead_rows_are_no_problem(uncleaned):
    delete_deliveries(1_200)

    assert bloated() == []


# --- retention


@pytest.mark.slow
def test_a_consumer_that_keeps_the_log_longer_than_its_topic_is_named(make_topic, make_consumer):
    short = make_topic("short", retention=30 * DAY)
    for_ever = make_topic("for-ever")
    behind = make_consumer(short, for_ever, handler=print, name="behind")
    make_consumer(short, handler=print, name="stopped")
    gone = make_consumer(short, handler=print, name="gone")
    fill_topic(short, 1, 2)
    fill_topic(for_ever, 1, 2)
    age_log(short, 29 * DAY)
    age_log(for_ever, 40 * DAY)
    assert found("behind retention") == []

    age_log(short, 2 * DAY)
    pause("stopped")
    declarations.consumers.discard(gone)
    told = {one.subject.consumer: one for one in found("behind retention")}
    assert set(told) == {"behind", "stopped", "gone"}
    assert {one.subject.topic for one in told.values()} == {"short"}
    assert told["behind"].what == "2 events behind, the oldest for 31 d: short keeps events for 30 d, these longer."
    assert told["behind"].remedy == (
        "Is it slow? More workers, or leave them out: manage.py events rewind behind --to end"
    )
    assert told["stopped"].remedy == (
        "Let it go on: manage.py events resume stopped, or leave them out: manage.py events rewind stopped --to end"
    )
    assert told["gone"].remedy == "If it is gone for good: manage.py events unregister gone --topic short"

    Position.objects.filter(consumer__name=behind.name).update(position=2, number=2)
    assert "behind" not in {one.subject.consumer for one in found("behind retention")}


def test_those_that_are_the_furthest_behind_are_looked_into(make_topic, make_consumer, monkeypatch):
    monkeypatch.setattr(retention, "LOOKED_INTO", 1)
    short = make_topic("short", retention=DAY)
    make_consumer(short, handler=print, name="a-little")
    make_consumer(short, handler=print, name="much")
    fill_topic(short, 1, 2, 3)
    Position.objects.filter(consumer__name="a-little").update(position=2, number=2)
    age_log(short, 2 * DAY)

    assert [one.subject.consumer for one in found("behind retention")] == ["much"]


def test_a_queue_that_keeps_the_log_is_named(make_topic, make_queue):
    short = make_topic("short", retention=DAY)
    queue = make_queue(short, name="letters", live=False)
    fill_topic(short, 1)
    Consumer.objects.filter(pk=queue.subscription.consumer_id).update(filled_until=0)
    age_log(short, 2 * DAY)

    assert [one.subject.consumer for one in found("behind retention")] == ["letters"]


# --- languages


@pytest.mark.parametrize("number", [0, 1, 2, 1_000, 12_345])
def test_what_is_counted_reads_in_english_as_in_tables(number):
    assert counted.events(number) == count(number, "event")
    assert counted.events(number, more=True) == count(number, "event", more=True)
    assert counted.dead_letters(number) == count(number, "dead letter")
    assert counted.attempts(number) == count(number, "attempt")
    assert counted.times(number) == count(number, "time")
    assert counted.others(number) == count(number, "other")


def test_what_is_wrong_and_what_to_do_are_translated_and_the_kind_is_not(things, make_consumer, monkeypatch):
    for module in (transfers, stopped, telling):
        monkeypatch.setattr(module, "gettext", lambda sentence: f"«{sentence}»")
    make_consumer(things, handler=print)
    fill_topic(things, 1)
    pause("reader")
    publish(things, 2)
    BufferedEvent.objects.update(published_at=ClockTimestamp() - timedelta(minutes=3))
    told = {one.kind: one for one in find_problems("default", waiting("default"), None, standings("default"))}

    assert told["transfer"].what == "«1 event in the buffer, the oldest for 3 min: no transfer moves them.»"
    assert told["transfer"].remedy == "«Is one running? manage.py run_transfer»"
    assert told["paused"].what.startswith("«paused since 20")
    assert told["paused"].remedy == "manage.py events resume reader"  # a command is the same in all languages


def test_a_transfer_that_is_dead_is_one_problem_of_however_many_topics(make_topic):
    for n in range(3):
        publish(make_topic(f"idle-{n}"), n)
    BufferedEvent.objects.update(published_at=ClockTimestamp() - timedelta(minutes=3))
    [told] = [one for one in find_problems("default", waiting("default"), None, []) if one.kind == "transfer"]

    assert told.what == "3 events of 3 topics in the buffer, the oldest for 3 min: no transfer moves them."
    assert (told.subject, told.severity) == (Subject(), "error")
    assert told.data == {"topics": ["idle-0", "idle-1", "idle-2"]}
