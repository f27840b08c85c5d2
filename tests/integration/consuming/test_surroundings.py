"""What is around a handler: connections that break, transactions left open, a site's limits, other people's hands."""

import threading
import time
from datetime import timedelta

import pytest
from django.db import OperationalError, connection, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from django_events import Backoff, Draft, publish_many
from django_events.consuming import handling
from django_events.consuming.streams.partitions import claim
from django_events.consuming.subscriptions import subscriptions
from django_events.exceptions import LeaseLost
from django_events.models import DeadLetter
from django_events.operations import discard, redrive
from django_events.workers.due_partitions import DuePartitions
from tests.support.fix_consumers import (
    dead_letters,
    exhaust,
    expire_leases,
    lease_of,
    position_of,
    run_once,
    serve_due,
    serve_lease,
    working,
    write_order,
    written,
)
from tests.support.fix_topics import transfer_all
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("transactional_db", "shelf")

ONE_ATTEMPT = Backoff(attempts=1)
AT_ONCE = Backoff(attempts=3, base=timedelta(0))


def fill(topic, *values):
    publish_many(topic, [Draft(value=value, key="k") for value in values])
    transfer_all()


@pytest.mark.slow
@pytest.mark.requirement("X2", "X8")
def test_a_connection_that_is_lost_while_it_commits_doubles_nothing(things, make_consumer, monkeypatch, connect):
    """The server commits, and the answer never comes: the worker can't know, so the position is read again."""
    commit = BaseDatabaseWrapper._commit
    lost = []

    def lose(wrapper):
        commit(wrapper)
        if threading.current_thread().name.startswith("consumer") and not lost:
            lost.append(wrapper)
            wrapper.connection.close()
            raise OperationalError("the connection was lost")

    def handler(events):
        for event in events:
            write_order(event.value)

    reader = make_consumer(things, handler=handler, batch_size=10)
    fill(things, *range(25))
    monkeypatch.setattr(BaseDatabaseWrapper, "_commit", lose)
    with working(reader):
        wait_until(lambda: position_of(reader).position == 25, what="all events passed")

    assert lost
    assert written() == [str(n) for n in range(25)]
    assert position_of(reader).failed == 0


@pytest.mark.requirement("S8", "X8")
@pytest.mark.parametrize("transactional", [True, False])
def test_who_freezes_just_before_its_commit_keeps_a_partition_no_longer_than_its_lease(
    things, make_consumer, connect, transactional
):
    reader = make_consumer(things, handler=lambda event: write_order(event.value), transactional=transactional)
    fill(things, 1, 2)
    lease = lease_of(reader)
    events = lease.read().events
    expire_leases(reader)
    with pytest.raises(OperationalError), transaction.atomic():
        lease.settle(events[:1])
        frozen = connection.connection.info.backend_pid

        def take_over():
            try:
                taken.append(lease_of(reader, holder="another") is not None)
            finally:
                connections.close_all()

        taken = []
        thread = threading.Thread(target=take_over)
        thread.start()
        thread.join()
        assert taken == [True]
        assert not alive(connect, frozen)
        connection.cursor().execute("SELECT 1")
    connection.close()
    with pytest.raises(LeaseLost):
        lease.settle(events[:1])


def alive(connect, pid):
    session = connect()
    return session.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = %s", [pid]).fetchone() != (0,)


@pytest.mark.requirement("E10")
def test_an_event_is_attempted_no_more_often_than_it_is_counted(things, make_consumer, monkeypatch):
    """Those before it are handled again, and the time for a transaction may be over: it counts all the same."""
    monkeypatch.setattr(handling, "TRANSACTION", 0.0)

    def handler(event):
        calls.append(event.value)
        if event.value == 3:
            monkeypatch.setattr(handling, "TRANSACTION", -1.0)
            raise ValueError
        write_order(event.value)

    calls = []
    reader = make_consumer(things, handler=handler, retry=ONE_ATTEMPT)
    fill(things, 1, 2, 3, 4)
    exhaust(reader)

    assert calls.count(3) == 1
    assert written() == ["1", "2", "4"]
    assert [letter.attempts for letter in dead_letters(reader)] == [1]


async def _generate(event):
    yield event


@pytest.mark.parametrize(
    "handler", [lambda event: _generate(event), lambda event: _Awaitable()], ids=["async generator", "awaitable"]
)
def test_a_handler_that_has_done_nothing_yet_has_failed(things, make_consumer, handler):
    reader = make_consumer(things, handler=handler, retry=ONE_ATTEMPT)
    fill(things, 1)
    exhaust(reader)

    [letter] = dead_letters(reader)
    assert "has done nothing yet" in letter.error


class _Awaitable:
    def __await__(self):
        yield


def switch_autocommit_off():
    connection.set_autocommit(False)


def begin_by_hand():
    connection.cursor().execute("BEGIN")


@pytest.mark.parametrize("leave_open", [switch_autocommit_off, begin_by_hand])
@pytest.mark.parametrize("fail", [False, True])
def test_a_transaction_that_a_handler_leaves_open_is_rolled_back(things, make_consumer, connect, leave_open, fail):
    """What came after it would look settled, and never be committed."""

    def handler(event):
        if event.value == 2:
            leave_open()
            write_order("never")
            if fail:
                raise ValueError
        else:
            write_order(event.value)

    reader = make_consumer(things, handler=handler, transactional=False, retry=ONE_ATTEMPT)
    fill(things, 1, 2, 3)
    exhaust(reader)

    committed = "SELECT position FROM django_events_position WHERE consumer_id = %s"
    assert connect().execute(committed, [position_of(reader).consumer_id]).fetchone() == (3,)
    assert written() == ["1", "3"]
    [letter] = dead_letters(reader)
    assert letter.event_id == 2
    assert fail or "left it open" in letter.error


@pytest.mark.requirement("E10")
def test_a_sites_limit_for_idle_transactions_is_not_for_handlers(things, make_consumer):
    def handler(event):
        [[limit]] = list(connection.cursor().execute("SHOW idle_in_transaction_session_timeout"))
        limits.append(limit)

    limits = []
    reader = make_consumer(things, handler=handler)
    fill(things, 1)
    with connection.cursor() as cursor:
        cursor.execute("SET idle_in_transaction_session_timeout = '1s'")
        serve_due(reader)
        cursor.execute("SHOW idle_in_transaction_session_timeout")
        after = cursor.fetchone()

    assert limits == ["0"]
    assert after == ("1s",)


@pytest.mark.slow
@pytest.mark.requirement("S8")
def test_the_renewal_goes_on_after_an_unexpected_error(things, make_consumer):
    """As when a site's way to connect asks a service for a password, and the service is down for a moment."""

    def refuse_once(connection, **kwargs):
        if threading.current_thread().name == "django_events lease renewal" and not refused:
            refused.append(True)
            raise RuntimeError("no password today")

    def handler(event):
        before = position_of(reader).leased_until
        wait_until(lambda: position_of(reader).leased_until > before, what="a lease that is renewed")
        write_order(event.value)

    refused = []
    reader = make_consumer(things, handler=handler, lease=timedelta(seconds=1), transactional=False)
    fill(things, 1)
    connection_created.connect(refuse_once)
    try:
        assert run_once(reader) == 1
    finally:
        connection_created.disconnect(refuse_once)

    assert refused
    assert written() == ["1"]


@pytest.mark.requirement("S6")
def test_a_dead_letter_has_the_payload_of_the_event_that_died(things, make_consumer):
    """The same id again, after its topic was made anew."""
    reader = make_consumer(things, handler=lambda event: 1 / 0, retry=ONE_ATTEMPT)
    fill(things, "new")
    DeadLetter.objects.create(
        consumer_id=position_of(reader).consumer_id,
        event_id=1,
        partition=0,
        number=1,
        value="old",
        metadata={},
        published_at="2020-01-01T00:00:00Z",
        logged_at="2020-01-01T00:00:00Z",
        attempts=1,
        error="",
    )
    serve_due(reader)

    [letter] = dead_letters(reader)
    assert (letter.value, letter.key) == ("new", "k")
    assert letter.published_at.year > 2020


@pytest.mark.requirement("S6")
@pytest.mark.parametrize("failing", [False, True])
def test_what_is_discarded_while_it_is_handled_again_has_no_effect(things, make_consumer, failing):
    def handler(event):
        if first:
            first.clear()
            raise ValueError
        write_order("must not be")
        thread = threading.Thread(target=discard_all)
        thread.start()
        thread.join()
        if failing:
            raise ValueError

    def discard_all():
        try:
            discard(DeadLetter.objects.of(reader), reason="not this one")
        finally:
            connections.close_all()

    first = [True]
    reader = make_consumer(things, handler=handler, retry=ONE_ATTEMPT)
    fill(things, 1)
    serve_due(reader)
    redrive(DeadLetter.objects.of(reader))
    with pytest.raises(LeaseLost, match="was discarded"):
        serve_lease(lease_of(reader))

    assert written() == []
    assert dead_letters(reader) == []


@pytest.mark.requirement("N17")
def test_a_consumer_that_caught_up_opens_only_the_newest_segments(make_topic, make_consumer):
    topic = make_topic("long", segment_size=100)
    reader = make_consumer(topic, handler=lambda event: None)
    for _ in range(5):
        fill(topic, *range(200))
    serve_due(reader)
    [subscription] = subscriptions("default", [reader])
    due_partitions = DuePartitions("default", [subscription])
    assert not due_partitions.look(period=60)

    statement = due_partitions._statement(subscription).text
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {statement}", {})
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert f"{subscription.log}_1001" in plan
    assert f"{subscription.log}_801" not in plan


def test_a_partition_that_can_not_be_claimed_is_left_alone_for_longer_each_time(things, make_consumer, connect):
    reader = make_consumer(things, handler=print)
    fill(things, 1)
    due_partitions = DuePartitions("default", subscriptions("default", [reader]))
    other = connect()
    other.execute("SELECT FROM django_events_position WHERE id = %s FOR UPDATE", [position_of(reader).pk])
    pauses = []
    for _ in range(4):
        wait_until(lambda: due_partitions.look(period=0), what="a partition that is due")
        due = due_partitions.take()
        assert claim(*due, holder="a test") is None
        before = time.monotonic()
        due_partitions.refused(due.position_id)
        pauses.append(due_partitions._states[due.position_id].refused_until - before)
        assert not due_partitions.look(period=0)
        assert 0 < due_partitions.seconds_to_next(period=60) <= pauses[-1]
    assert pauses == sorted(pauses)
    assert pauses[-1] > 4 * pauses[0]
    other.rollback()
    wait_until(lambda: due_partitions.look(period=0), what="a partition that is due")
    lease = claim(*due_partitions.take(), holder="a test")
    assert lease is not None
    lease.release()


def test_a_lease_that_ran_out_is_not_taken_over_by_its_own_process(things, make_consumer):
    def handler(event):
        calls.append(event.attempt)
        expire_leases(reader)
        pool.due_partitions.look_everywhere()
        pool.wakeup.set()
        wait_until(
            lambda: any(one.refusal for one in pool.due_partitions._states.values()), what="a thread that was refused"
        )
        write_order(event.value)

    calls = []
    reader = make_consumer(things, handler=handler, transactional=False)
    fill(things, 1)
    with working(reader, threads=2) as pool:
        wait_until(lambda: position_of(reader).position == 1, what="the event passed")

    assert calls == [1]
    assert written() == ["1"]
