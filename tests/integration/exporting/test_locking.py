"""The lock on a folder whose session is ended: while it is taken, and when all is done."""

from typing import Any

import psycopg
import pytest

from django_events.exceptions import InUse, Refused
from django_events.exporting import locking
from django_events.exporting.locking import alone
from django_events.reading.dsn import Dsn
from tests.spark.rivals import end_locks

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X1")]


@pytest.fixture
def database(dsn: str) -> Dsn:
    return Dsn(dsn)


def test_only_one_has_the_lock(database: Dsn) -> None:
    with alone(database, "/exports"):
        with pytest.raises(InUse, match="Another export_events"), alone(database, "/exports"):
            pass
        with alone(database, "/others"):
            pass
    with alone(database, "/exports"):
        pass


def test_a_session_that_ends_when_all_is_done_is_no_error(database: Dsn) -> None:
    with alone(database, "/exports") as lock:
        lock.check()
        end_locks()


def test_a_session_that_ends_while_it_works_is_told(database: Dsn) -> None:
    with (
        pytest.raises(Refused, match="and with it the lock on /exports"),
        alone(database, "/exports") as lock,
        lock.watched(lambda: None),
    ):
        end_locks()


def test_a_session_that_ends_while_it_takes_the_lock_is_told(database: Dsn, monkeypatch: pytest.MonkeyPatch) -> None:
    fetch = locking.fetch

    def ended(connection: "psycopg.Connection[Any]", statement: Any, **parameters: Any) -> Any:
        if parameters:
            with database.connected() as other:
                other.execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])
        return fetch(connection, statement, **parameters)

    monkeypatch.setattr(locking, "fetch", ended)
    with pytest.raises(Refused, match="and with it the lock on /exports"), alone(database, "/exports"):
        pass
