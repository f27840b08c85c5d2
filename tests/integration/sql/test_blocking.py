"""Whom a statement waits for, as a second session sees it."""

import pytest
from django.db import OperationalError, connection, connections

from django_events import sql
from django_events.sql import blocking
from django_events.sql.blocking import blocker_of, watched
from tests.support.fix_database import Connect, alias

pytestmark = pytest.mark.usefixtures("transactional_db")

LOCK = "SELECT pg_advisory_xact_lock(4711)"


def wait_for_the_lock(using: str) -> OperationalError:
    cursor = connections[using].cursor()
    with pytest.raises(OperationalError) as failed, sql.batch(using, lock_timeout="1s"), watched(using):
        cursor.execute(LOCK)
    return failed.value


@pytest.mark.slow
def test_the_session_in_the_way_is_named_with_what_it_does(connect: Connect):
    other = connect(application_name="psql")
    other.execute(LOCK)

    said = blocker_of(wait_for_the_lock("default"))

    assert said.startswith(f"session {other.info.backend_pid} of {other.info.user} (psql, ")
    assert said.endswith("Z, idle in transaction after SELECT PG")


@pytest.mark.slow
def test_a_role_that_may_not_see_statements_of_others_is_told_the_session(connect: Connect):
    other = connect(application_name="psql")
    other.execute(LOCK)
    with connection.cursor() as cursor:
        cursor.execute("DROP ROLE IF EXISTS blocked_stranger")
        cursor.execute("CREATE ROLE blocked_stranger LOGIN PASSWORD 'x'")
    try:
        with alias(USER="blocked_stranger", PASSWORD="x") as using:
            said = blocker_of(wait_for_the_lock(using))
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP ROLE blocked_stranger")

    assert said == f"session {other.info.backend_pid} of {other.info.user} (psql)"


@pytest.mark.slow
def test_without_a_second_connection_it_is_another_session(connect: Connect, monkeypatch: pytest.MonkeyPatch):
    def refuse(*arguments: object, **parameters: object) -> None:
        raise OperationalError("too many clients")

    connect().execute(LOCK)
    monkeypatch.setattr(blocking, "blockers", refuse)

    assert blocker_of(wait_for_the_lock("default")) == "another session"


def test_what_is_done_soon_opens_no_second_connection(monkeypatch: pytest.MonkeyPatch):
    asked = []
    monkeypatch.setattr(blocking, "blockers", lambda *arguments: asked.append(arguments) or [])
    with sql.batch("default"), watched("default"), connection.cursor() as cursor:
        cursor.execute(LOCK)

    assert asked == []
