"""Sessions of processes that are frozen while an inbox sends rows: they are ended, and no others."""

import itertools
from datetime import timedelta
from types import SimpleNamespace

import psycopg
import pytest
from django.db import connection
from django.test import override_settings

from django_events import sql
from django_events.bridges.inboxes import frozen_twins
from django_events.bridges.inboxes.frozen_twins import APPLICATION, FrozenTwins
from tests.support.processes import wait_until

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X21", "X22", "S8")]

COPY = "COPY django_events_bufferedevent (topic_id, value) FROM STDIN"


@pytest.fixture(autouse=True)
def soon():
    with override_settings(DJANGO_EVENTS={"VANISHED_AFTER": timedelta(seconds=1)}):
        yield


@pytest.fixture
def session(connect):
    return connect()


def called(session: psycopg.Connection, application: str) -> None:
    session.execute("SELECT set_config('application_name', %s, true)", [application])


def is_there(pid: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT FROM pg_stat_activity WHERE pid = %s", [pid])
        return bool(cursor.fetchall())


def came(session: psycopg.Connection) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT bytes_processed FROM pg_stat_progress_copy WHERE pid = %s", [session.info.backend_pid])
        return cursor.fetchone()[0]


def test_a_session_of_which_nothing_comes_is_ended(session, caplog):
    called(session, APPLICATION)
    twins, pid = FrozenTwins("default"), session.info.backend_pid
    with pytest.raises(psycopg.OperationalError), session.cursor().copy(COPY):
        twins.end()
        assert is_there(pid)  # it was seen once

        def is_ended():
            twins.end()
            return not is_there(pid)

        wait_until(is_ended, what="its end")
    assert f"pid {pid}" in caplog.text


def test_one_that_sends_rows_is_left(session, monkeypatch):
    """What came is compared, and not how long it takes."""
    called(session, APPLICATION)
    hours = itertools.count(0, 3_600)
    monkeypatch.setattr(frozen_twins, "time", SimpleNamespace(monotonic=lambda: next(hours)))
    twins = FrozenTwins("default")
    with session.cursor().copy(COPY) as copying:
        for _ in range(3):
            before = came(session)
            twins.end()
            copying.write("1\t1\n" * 100_000)
            wait_until(lambda before=before: came(session) > before, what="rows that came")
    session.rollback()
    assert is_there(session.info.backend_pid)


def test_one_of_another_program_is_left(session):
    def copying_as(application):
        return sql.fetch("default", frozen_twins.SQL.copying, application=application)

    called(session, "a site's own")
    with session.cursor().copy(COPY):
        # The server says which command it is after it has asked for rows.
        wait_until(lambda: copying_as("a site's own") != [], what="a COPY that is shown")
        assert copying_as(APPLICATION) == []
    session.rollback()
