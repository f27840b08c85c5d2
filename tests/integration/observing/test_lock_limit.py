"""Looks at a database whose log another session has locked: no page and no command waits, each says who has it."""

import json

import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from django_events.management.commands.events import Command
from django_events.models import Topic
from django_events.observing.lock_limit import within_lock_limit
from django_events.statements import log_table
from tests.support.fix_database import Connect, Session
from tests.support.fix_topics import transfer_all

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("S13")]


@pytest.fixture
def locker(things, make_consumer, connect: Connect) -> Session:
    """A session that has locked a log so that nothing can be read from it, like an ALTER TABLE."""
    make_consumer(things, handler=print)
    things.publish(1)
    transfer_all()
    session = connect(application_name="alter table")
    session.execute(f"LOCK TABLE {log_table(Topic.objects.get(name='things').pk)} IN ACCESS EXCLUSIVE MODE")
    return session


def told(locker: Session) -> tuple[str, str]:
    """How the message begins, and how it ends."""
    pid, user = locker.info.backend_pid, locker.info.user
    begins = f"session {pid} of {user} (alter table"
    return begins, f"nothing can be read from it. End it, or its session: SELECT pg_terminate_backend({pid})"


@pytest.mark.parametrize("subcommand", ["status", "consumers", "topics"])
def test_a_command_that_looks_names_the_session(subcommand: str, locker: Session) -> None:
    begins, ends = told(locker)
    with pytest.raises(CommandError) as refused:
        call_command("events", subcommand)

    assert str(refused.value).startswith(begins)
    assert " holds AccessExclusiveLock on django_events_event_" in str(refused.value)
    assert str(refused.value).endswith(ends)
    assert refused.value.returncode == 1


def test_when_the_lock_is_over_all_is_told_again(locker: Session, capsys) -> None:
    with pytest.raises(CommandError):
        call_command("events", "status")
    locker.rollback()
    call_command("events", "status", "--format", "json")

    assert [row["last_id"] for row in json.loads(capsys.readouterr().out)["topics"] if row["topic"] == "things"] == [1]


def test_another_table_that_is_locked_leads_to_the_doctor(things, connect: Connect) -> None:
    connect().execute("LOCK TABLE django_events_topic")
    with pytest.raises(CommandError, match=r"has locked a table of events in the database 'default'\. .* doctor$"):
        call_command("events", "status")


def test_several_databases_have_a_section_each(locker: Session, capsys) -> None:
    with pytest.raises(SystemExit):
        Command().run_from_argv(["manage.py", "events", "status", "--all-databases"])

    assert told(locker)[0] in capsys.readouterr().out


def test_a_look_within_a_transaction_leaves_it_usable(locker: Session) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SET LOCAL lock_timeout = '7s'")
        with within_lock_limit("default"):
            Topic.objects.count()
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("7s",)


def test_the_overview_says_it_in_place_of_its_figures(locker: Session, admin_client) -> None:
    answer = admin_client.get("/admin/django_events/overview/")

    assert answer.status_code == 503
    assert told(locker)[0] in answer.content.decode()


def test_other_pages_of_the_admin_are_not_kept_waiting(locker: Session, admin_client) -> None:
    assert admin_client.get("/admin/django_events/").status_code == 200
