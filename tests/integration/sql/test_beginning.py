"""BEGIN travels with the first statement of a transaction, and everything else is as Django and psycopg have it."""

import pytest
from django.db import DatabaseError, OperationalError, connection, transaction
from psycopg import IsolationLevel
from psycopg.errors import LockNotAvailable
from psycopg.pq import TransactionStatus

from django_events import sql
from django_events.consuming import leases
from django_events.models import Topic
from django_events.sql.beginning import begin_with

pytestmark = pytest.mark.usefixtures("transactional_db")


def isolation() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW transaction_isolation")
        return str(cursor.fetchone()[0])


def setting() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT coalesce(current_setting('django_events.token', true), '')")
        return str(cursor.fetchone()[0])


@pytest.fixture
def as_a_worker(transactional_db):
    connection.ensure_connection()
    before = connection.connection.isolation_level
    connection.connection.isolation_level = IsolationLevel.READ_COMMITTED
    yield
    if connection.connection is not None and not connection.connection.closed:
        connection.connection.isolation_level = before


@pytest.mark.usefixtures("as_a_worker")
@pytest.mark.parametrize("level", [IsolationLevel.READ_COMMITTED, IsolationLevel.REPEATABLE_READ, None])
def test_the_transaction_is_of_the_kind_that_was_asked_for(level):
    connection.connection.isolation_level = level
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_isolation = 'serializable'")
    with transaction.atomic():
        assert begin_with("default", leases.SQL.take_lock, token=7) is True
        assert setting() == "7"
        assert isolation() == ("serializable" if level is None else level.name.lower().replace("_", " "))
    assert setting() == ""
    with connection.cursor() as cursor:
        cursor.execute("RESET default_transaction_isolation")


@pytest.mark.usefixtures("as_a_worker")
@pytest.mark.parametrize("ends", ["committed", "rolled back"])
def test_what_follows_is_in_the_same_transaction(make_topic, ends):
    topic = make_topic("things")
    with transaction.atomic():
        assert begin_with("default", leases.SQL.take_lock, token=7)
        assert connection.connection.info.transaction_status == TransactionStatus.INTRANS
        Topic.objects.filter(name=topic.name).update(retention="1 day")
        transaction.set_rollback(ends == "rolled back")
    assert connection.connection.info.transaction_status == TransactionStatus.IDLE
    assert (Topic.objects.get(name=topic.name).retention is None) == (ends == "rolled back")


@pytest.mark.usefixtures("as_a_worker")
def test_in_an_open_transaction_it_is_a_statement_like_others(connect):
    other = connect(autocommit=True)
    other.execute("SELECT pg_advisory_lock(7)")
    with transaction.atomic():
        assert setting() == ""
        assert begin_with("default", leases.SQL.take_lock, token=7) is False
        assert begin_with("default", leases.SQL.take_lock, token=8) is True


@pytest.mark.usefixtures("as_a_worker")
def test_an_error_is_one_of_django_with_its_cause(connect):
    other = connect(autocommit=True)
    other.execute("SELECT pg_advisory_lock(7)")
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '10ms'")
    with pytest.raises(OperationalError) as raised, transaction.atomic():
        begin_with("default", leases.SQL.wait_for_holder, token=7)
    assert isinstance(raised.value.__cause__, LockNotAvailable)
    assert connection.connection.info.transaction_status == TransactionStatus.IDLE
    connection.close()


@pytest.mark.usefixtures("as_a_worker")
def test_a_lost_connection_is_an_operational_error(connect):
    other = connect(autocommit=True)
    with pytest.raises(DatabaseError) as raised, transaction.atomic():
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [connection.connection.info.backend_pid])
        begin_with("default", leases.SQL.take_lock, token=7)
    assert sql.kind_of(raised.value) is sql.ErrorKind.LOST
    connection.close()
