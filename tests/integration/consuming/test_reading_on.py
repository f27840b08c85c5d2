"""Reading on: while a relay sends a batch, the server reads the next one on the connection of the worker."""

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from django.db import OperationalError, ProgrammingError, connection
from psycopg.pq import TransactionStatus

from django_events.consuming.failures import Failure, Verdict
from django_events.consuming.leases import end_holder
from django_events.exceptions import LeaseLost
from django_events.models import Position
from tests.integration.consuming.test_prepared_claims import fill, prepared_claim, serve, server_of
from tests.support.fix_consumers import position_of
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("transactional_db")


@pytest.fixture
def warm(things, make_consumer):
    """A server whose next claim is a prepared one, of a consumer that gets two events at a time."""
    yield warmed(things, make_consumer, batch_size=2)
    connection.close()


def warmed(things, make_consumer, **options):
    server = server_of(make_consumer(things, handler=lambda events: None, transactional=False, **options))
    fill(things, "first")
    assert serve(server) == 1
    return server


def values(batch):
    return [event.value for event in batch.events]


def state():
    return connection.connection.info.transaction_status


def settle(lease, batch):
    lease.settled(lease.settle_handled(batch.events))


def cut():
    """End the session of the worker, as another one."""
    with psycopg.connect(**{**connection.get_connection_params(), "autocommit": True}) as other:
        pid = connection.connection.info.backend_pid
        other.execute("SELECT pg_terminate_backend(%s)", [pid])
        gone = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = %s)"
        wait_until(lambda: other.execute(gone, [pid]).fetchone()[0], seconds=30, what="a session that has ended")


@pytest.mark.requirement("X20")
def test_what_comes_next_is_read_meanwhile(warm, things, django_assert_num_queries):
    fill(things, *range(6))
    lease = prepared_claim(warm)
    found = []
    for expected in ([0, 1], [2, 3], [4, 5]):
        batch = lease.read()
        assert values(batch) == expected
        with lease.reading_on():
            found.append(state())
        assert state() == TransactionStatus.IDLE
        with django_assert_num_queries(1):  # which settles
            settle(lease, batch)

    assert found == [TransactionStatus.ACTIVE, TransactionStatus.ACTIVE, TransactionStatus.IDLE]
    assert lease.released
    position = position_of(warm.subscription.consumer)
    assert (position.position, position.number, position.handled, position.token) == (7, 7, 7, None)


def test_nothing_else_can_be_asked_meanwhile(warm, things):
    """So a bridge has to promise that it doesn't. An error of it is its own, and the answer is there all the same."""
    fill(things, *range(4))
    lease = prepared_claim(warm)
    batch = lease.read()
    with pytest.raises((OperationalError, ProgrammingError), match=r"another command|ACTIVE"), lease.reading_on():
        connection.cursor().execute("SELECT 1")

    settle(lease, batch)
    assert values(lease.read()) == [2, 3]
    lease.release()


@pytest.mark.parametrize("verdict", [Verdict.IGNORE, Verdict.RETRY])
def test_what_was_read_for_another_position_is_left(warm, things, verdict):
    """The first of two events fails, and what comes behind the second was read meanwhile."""
    fill(things, *range(6))
    lease = prepared_claim(warm)
    batch = lease.read()
    with lease.reading_on():
        pass
    assert lease.read_ahead is not None
    lease.settled(lease.settle([], Failure(batch.events[0], ValueError("not now"), verdict)))
    if verdict is Verdict.RETRY:
        assert lease.released
        Position.objects.filter(pk=warm.position_id).update(retry_at=None)
        lease = warm.claim()
    assert values(lease.read())[0] == (1 if verdict is Verdict.IGNORE else 0)
    lease.release()


@pytest.mark.parametrize("when", ["before", "meanwhile", "behind"])
def test_a_connection_that_is_lost_settles_nothing(warm, things, when):
    fill(things, *range(4))
    lease = prepared_claim(warm)
    batch = lease.read()
    if when == "before":
        cut()
    with lease.reading_on():
        if when == "meanwhile":
            cut()
    if when == "behind":
        cut()
    with pytest.raises(OperationalError):
        lease.settle_handled(batch.events)
    connection.close()
    position = position_of(warm.subscription.consumer)
    assert (position.position, position.handled, position.token) == (1, 1, lease.token)


def test_a_connection_that_is_closed_meanwhile_settles_by_the_next_one(warm, things):
    """As by code of a site that closes all connections: what was asked on the former one is left."""
    fill(things, *range(4))
    lease = prepared_claim(warm)
    batch = lease.read()
    with lease.reading_on():
        connection.close()
        connection.ensure_connection()
    assert lease.read_ahead is None
    settle(lease, batch)
    assert values(lease.read()) == [2, 3]
    lease.release()


def test_what_can_not_be_read_meanwhile_is_read_as_ever(warm, things):
    fill(things, 0, 1, "x" * 5_000, 3, 4)
    lease = prepared_claim(warm)
    batch = lease.read()
    with lease.reading_on():
        pass
    assert lease.read_ahead is None
    settle(lease, batch)
    assert values(lease.read()) == ["x" * 5_000, 3]
    lease.release()


def test_a_session_that_was_told_to_forget_reads_as_ever(warm, things):
    fill(things, *range(8))
    lease = prepared_claim(warm)
    seen = []
    for forget in (False, True, False, False):
        batch = lease.read()
        seen += values(batch)
        if forget:
            connection.connection.pgconn.exec_(b"DEALLOCATE ALL")
        with lease.reading_on():
            pass
        settle(lease, batch)
    assert seen == [*range(8)]
    assert position_of(warm.subscription.consumer).handled == 9


def test_a_lock_that_keeps_the_server_from_reading_keeps_nothing_from_being_settled(warm, things):
    fill(things, *range(4))
    lease = prepared_claim(warm)
    batch = lease.read()
    with psycopg.connect(**connection.get_connection_params()) as other:
        other.execute(f"LOCK TABLE {warm._prepared.segment.table} IN ACCESS EXCLUSIVE MODE")
        connection.cursor().execute("SET statement_timeout = '300ms'")
        with lease.reading_on():
            pass
        connection.cursor().execute("RESET statement_timeout")
    assert lease.read_ahead is None
    settle(lease, batch)
    assert values(lease.read()) == [2, 3]
    lease.release()


def test_a_lease_that_was_lost_meanwhile_settles_nothing(warm, things):
    fill(things, *range(4))
    lease = prepared_claim(warm)
    batch = lease.read()
    with lease.reading_on(), psycopg.connect(**connection.get_connection_params()) as other:
        other.execute("UPDATE django_events_position SET token = 7 WHERE id = %s", [warm.position_id])
    with pytest.raises(LeaseLost):
        lease.settle_handled(batch.events)
    position = position_of(warm.subscription.consumer)
    assert (position.position, position.handled, position.token) == (1, 1, 7)


@pytest.mark.requirement("X20")
def test_a_worker_that_takes_over_ends_one_that_froze_while_events_are_sent_to_it(things, make_consumer):
    """The server sends more than fits between the two: until its client takes it, its snapshot stays open."""
    server = warmed(things, make_consumer, batch_size=10_000)
    fill(things, *["x" * 1_500] * 20_000)
    lease = prepared_claim(server)
    batch = lease.read()
    pid = connection.connection.info.backend_pid
    waits = "SELECT wait_event FROM pg_stat_activity WHERE pid = %s"

    def take_over():
        """As another process, while this one is frozen."""
        try:
            with connection.cursor() as cursor:
                wait_until(
                    lambda: cursor.execute(waits, [pid]).fetchone()[0] == "ClientWrite", seconds=30, what="a full line"
                )
                end_holder("default", lease.token)
                wait_until(lambda: cursor.execute(waits, [pid]).fetchone() is None, seconds=30, what="its end")
        finally:
            connection.close()

    with lease.reading_on(), ThreadPoolExecutor(1) as pool:
        pool.submit(take_over).result()
    with pytest.raises(OperationalError):
        lease.settle_handled(batch.events)
    connection.close()
    assert position_of(server.subscription.consumer).handled == 1
