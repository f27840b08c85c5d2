"""Leases: one holder of a partition at a time, whatever dies, freezes or takes too long."""

import logging
import threading
import time
from datetime import timedelta

import pytest
from django.db import OperationalError, connection, transaction
from django.db.models import F

from django_events import Backoff, Draft, publish, publish_many
from django_events.consuming import leases
from django_events.consuming.handlers import BoundHandler, HandlerFailed
from django_events.consuming.handling import Handling, log_failure
from django_events.consuming.leases import give_up
from django_events.consuming.queues.filling import fill_some
from django_events.consuming.queues.server import serve_deliveries
from django_events.consuming.streams import server as streams
from django_events.consuming.streams.redriving import next_redrive
from django_events.exceptions import LeaseLost
from django_events.models import Delivery
from django_events.models.functions import ClockTimestamp
from django_events.operating.dead_letters import redrive
from django_events.workers import lease_renewal
from django_events.workers.lease_renewal import LeaseRenewal
from testproject.shop.models import Product
from tests.support.fix_consumers import (
    dead_letters,
    due,
    end_pauses,
    exhaust,
    expire_leases,
    lease_of,
    position_of,
    positions,
    reached,
    run_once,
    serve_due,
    serve_lease,
    working,
    write_order,
    written,
)
from tests.support.fix_queues import queue_of
from tests.support.fix_topics import transfer_all
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("transactional_db", "shelf")

SOON = 30.0  # seconds, after which a test that waits has failed
ONE = Backoff(attempts=1)
THREE_AT_ONCE = Backoff(attempts=3, base=timedelta(0))
BOTH_MODES = pytest.mark.parametrize("transactional", [True, False], ids=["transactional", "not transactional"])


@pytest.fixture
def renewal(request, monkeypatch):
    """A renewal that says how it would have ended the process; its parameter is how long others may finish."""
    monkeypatch.setattr(logging, "shutdown", lambda: None)
    ended = []
    options = {"others_finish": request.param} if hasattr(request, "param") else {}
    renewal = LeaseRenewal("default", stop=lambda: ended.append("stop"), end=ended.append, **options)
    renewal.ended = ended
    yield renewal
    renewal.close()


def fill(topic, *values, **fields):
    publish_many(topic, [Draft(value=value, **fields) for value in values])
    transfer_all()


def write_down(given):
    for event in given if isinstance(given, list) else [given]:
        write_order(event.value)


def row_of(consumer):
    """All that is stored of the position, and where."""
    [row] = positions(consumer).values()
    return row


class Killer:
    """A handler that ends its worker on some values, as a signal would: nothing is settled, the lease stays."""

    def __init__(self, *deadly, times=None):
        self.deadly = deadly
        self.times = times
        self.calls = []

    def __call__(self, given):
        events = given if isinstance(given, list) else [given]
        self.calls.append([(event.value, event.attempt) for event in events])
        for event in events:
            write_order(event.value)
            if event.value in self.deadly and self.times != 0:
                self.times = self.times and self.times - 1
                self.strike()

    def strike(self):
        raise KeyboardInterrupt

    @property
    def handled(self):
        return [one for call in self.calls for one in call]


def die(consumer, partition=None):
    """Serve a lease until the handler ends the worker, and let the lease's time go by."""
    lease = lease_of(consumer, partition)
    with pytest.raises(KeyboardInterrupt):
        serve_lease(lease)
    expire_leases(consumer)


def take_over(consumer):
    """As another worker does that finds a lease whose time is over."""
    expire_leases(consumer)
    return lease_of(consumer)


# Claiming


@pytest.mark.slow
@pytest.mark.requirement("E7")
@pytest.mark.parametrize("expired", [False, True])
def test_of_many_claims_at_once_one_gets_the_lease(things, make_consumer, in_thread, expired):
    reader = make_consumer(things, handler=print)
    fill(things, 1)
    for _ in range(10):
        if expired:
            lease_of(reader)
            expire_leases(reader)
        together = threading.Barrier(8)

        def claim_together():
            connection.ensure_connection()
            together.wait(timeout=SOON)
            return lease_of(reader)

        answers = [future.result(SOON) for future in [in_thread(claim_together) for _ in range(8)]]
        [lease] = [answer for answer in answers if answer is not None]
        assert position_of(reader).token == lease.token
        assert (lease.lost_token is not None) is expired
        lease.release()


def test_a_leased_partition_can_not_be_claimed_and_says_who_has_it(things, make_consumer):
    reader = make_consumer(things, handler=print, lease=timedelta(minutes=7))
    fill(things, 1)
    lease = lease_of(reader, holder="host:7/1")

    assert lease_of(reader) is None
    assert due(reader) == []
    assert position_of(reader).holder == "host:7/1"
    window = (ClockTimestamp() + timedelta(minutes=6), ClockTimestamp() + timedelta(minutes=7))
    assert positions(reader).filter(leased_until__range=window).exists()
    lease.release()
    position = position_of(reader)
    assert (position.token, position.leased_until, position.holder) == (None, None, "")
    assert len(due(reader)) == 1


def test_a_claim_waits_for_no_lock(things, make_consumer, connect):
    """A session that changes the row keeps workers from it, but never keeps them waiting."""
    reader = make_consumer(things, handler=print)
    fill(things, 1)
    other = connect()
    other.execute("SELECT FROM django_events_position WHERE id = %s FOR UPDATE", [position_of(reader).pk])

    assert lease_of(reader) is None
    other.rollback()
    lease_of(reader).release()


def test_a_long_name_of_a_holder_is_no_reason_to_fail(things, make_consumer):
    reader = make_consumer(things, handler=print)
    fill(things, 1)
    lease = lease_of(reader, holder="h" * 1_000)

    assert len(position_of(reader).holder) == 200
    lease.release()


def test_an_expired_lease_is_taken_over_under_another_token(things, make_consumer):
    reader = make_consumer(things, handler=write_down)
    fill(things, 1)
    lost = lease_of(reader)
    expire_leases(reader)
    lease = lease_of(reader)

    assert lost.lost_token is None
    assert lease.lost_token == lost.token != lease.token
    assert serve_lease(lease) == 1
    assert written() == ["1"]


def test_a_lease_that_is_given_up_need_not_run_out(things, make_consumer):
    reader = make_consumer(things, handler=write_down)
    fill(things, 1)
    lost = lease_of(reader)
    give_up("default", [lost.token])

    assert serve_due(reader) == 1
    give_up("default", [lost.token])  # too late: that lease is not there any more
    assert position_of(reader).token is None


# What a lost lease can do


LATE = {
    "settle": lambda lease, events: lease.settle(events),
    "settle nothing": lambda lease, events: lease.settle([], careful_until=3),
    "count an attempt": lambda lease, events: lease.count_attempt(events[0]),
    "release": lambda lease, events: lease.release(),
    "stop": lambda lease, events: lease.stop("no reason"),
    "wait for more": lambda lease, events: lease.wait_for_more(lease.batch),
}


@pytest.mark.parametrize("taken", ["taken over", "released by the next", "unregistered"])
@pytest.mark.parametrize("late", LATE)
def test_who_lost_a_lease_changes_nothing_and_is_told(things, make_consumer, late, taken):
    reader = make_consumer(things, handler=print)
    fill(things, 1, 2, 3)
    lost = lease_of(reader)
    events = lost.read().events
    expire_leases(reader)
    if taken == "unregistered":
        positions(reader).delete()
    else:
        lease = lease_of(reader)
        if taken == "released by the next":
            serve_lease(lease)
    before = list(positions(reader).values())

    with pytest.raises(LeaseLost) as caught:
        LATE[late](lost, events)
    assert list(positions(reader).values()) == before
    assert lost.lost
    assert str(caught.value) == (
        "Consumer 'reader' of 'things' lost its lease of partition 0: it was taken over or rewound. "
        "What was handled meanwhile is not settled."
    )
    if taken == "taken over":
        lease.release()


def test_who_lost_a_lease_does_not_count_at_a_dead_letter_either(things, make_consumer):
    def fail(event):
        raise ValueError

    reader = make_consumer(things, handler=fail, retry=Backoff(attempts=1))
    fill(things, 1)
    serve_due(reader)
    redrive(dead_letters(reader))
    lost = lease_of(reader)
    again = next_redrive(lost)
    expire_leases(reader)
    lease = lease_of(reader)

    with pytest.raises(LeaseLost):
        again.count_attempt(again.event)
    with pytest.raises(LeaseLost), transaction.atomic():
        again.settle([again.event])
    assert [(letter.event_id, letter.attempts) for letter in dead_letters(reader)] == [(1, 0)]
    lease.release()


@BOTH_MODES
def test_a_handler_that_comes_back_after_its_lease_was_taken_settles_nothing(
    things, make_consumer, in_thread, transactional
):
    """Another worker claimed the partition meanwhile, and did not get to end this worker's connection yet."""
    taken = []

    def handler(event):
        write_order(event.value)
        taken.append(in_thread(take_over, reader).result(SOON))

    reader = make_consumer(things, handler=handler, transactional=transactional)
    fill(things, 1, 2)
    with pytest.raises(LeaseLost):
        serve_lease(lease_of(reader))

    assert written() == ([] if transactional else ["1"])
    position = position_of(reader)
    assert (position.position, position.handled, position.token) == (0, 0, taken[-1].token)
    taken[-1].release()


@BOTH_MODES
def test_a_worker_goes_on_with_its_other_work_after_it_lost_a_lease(
    lanes, make_consumer, in_thread, transactional, caplog
):
    """Partition 1 is taken out of its worker's hands, once."""

    def handler(event):
        write_order(event.value)
        if event.value == "lost" and not taken:
            taken.append(in_thread(positions(reader).filter(partition=1).update, token=None).result(SOON))

    taken = []
    reader = make_consumer(lanes, handler=handler, transactional=transactional)
    publish_many(lanes, [Draft(value="lost", partition=1), Draft(value="kept", partition=2)])
    transfer_all()
    run_once(reader)

    assert sorted(written()) == (["kept", "lost"] if transactional else ["kept", "lost", "lost"])
    assert "lost its lease of partition 1" in caplog.text
    assert [position.handled for position in positions(reader)] == [0, 1, 1, 0]


# Renewal


@pytest.mark.slow
@pytest.mark.requirement("S8")
def test_the_lease_of_a_handler_that_takes_long_is_renewed(things, make_consumer, in_thread, renewal):
    go_on = threading.Event()

    def handler(event):
        assert go_on.wait(SOON)
        write_order(event.value)

    reader = make_consumer(things, handler=handler, lease=timedelta(seconds=1))
    fill(things, 1)
    lease = lease_of(reader)
    first_end = position_of(reader).leased_until

    def serve_and_keep():
        with renewal.renewing(lease):
            return serve_lease(lease)

    served = in_thread(serve_and_keep)
    try:
        over = positions(reader).annotate(now=ClockTimestamp()).filter(now__gt=first_end)
        wait_until(over.filter(leased_until__gt=F("now")).exists, seconds=SOON, what="a lease longer than it was")
    finally:
        go_on.set()
    assert served.result(SOON) == 1
    assert written() == ["1"]
    assert renewal.ended == []


def test_a_renewed_lease_settles_although_its_row_is_elsewhere(things, make_consumer, renewal):
    """Settling looks where the row was: a renewal has moved it, and more than once."""
    reader = make_consumer(things, handler=write_down)
    fill(things, 1)
    lease = lease_of(reader)
    for _ in range(3):
        renewal._renewed_at[lease.token] = 0.0
        renewal._renew([lease], time.monotonic())

    assert not lease.lost
    assert serve_lease(lease) == 1
    assert reached(reader) == [1]


def test_a_lease_that_is_being_settled_is_not_lost_to_who_renews_it(things, make_consumer, renewal, connect):
    reader = make_consumer(things, handler=write_down)
    fill(things, 1)
    lease = lease_of(reader)
    other = connect()
    other.execute("UPDATE django_events_position SET position = 1 WHERE id = %s", [lease.position_id])

    with renewal.renewing(lease):
        renewal._renew([lease], time.monotonic())  # neither waits
        assert not lease.lost
    other.rollback()
    lease.release()


@pytest.mark.requirement("S8")
@BOTH_MODES
def test_a_handler_whose_lease_is_lost_meanwhile_is_told_when_it_comes_back(
    things, make_consumer, in_thread, renewal, transactional
):
    """The renewal finds out, before anything is settled."""
    taken = []

    def handler(event):
        write_order(event.value)
        taken.append(in_thread(take_over, reader).result(SOON))
        wait_until(lambda: lease.lost, seconds=SOON)

    reader = make_consumer(things, handler=handler, lease=timedelta(seconds=1), transactional=transactional)
    fill(things, 1)
    lease = lease_of(reader)
    with pytest.raises(LeaseLost, match="meanwhile"), renewal.renewing(lease):
        serve_lease(lease)

    assert written() == ([] if transactional else ["1"])
    assert position_of(reader).token == taken[0].token
    taken[0].release()


@pytest.mark.slow
def test_a_process_without_leases_keeps_no_connection(things, make_consumer, renewal):
    reader = make_consumer(things, handler=print, lease=timedelta(seconds=1))
    fill(things, 1)
    before = others_connected()  # of what ran before it, and may take its time to end
    for _ in range(2):
        lease = lease_of(reader)
        with renewal.renewing(lease):
            renewed = position_of(reader).leased_until
            wait_until(lambda: position_of(reader).leased_until > renewed, seconds=SOON)
        lease.release()
        wait_until(lambda: others_connected() <= before, seconds=SOON, what="a connection that is closed")


def others_connected():
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity"
            " WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        return {pid for (pid,) in cursor.fetchall()}


# Frozen workers


def take_one(given):
    """An effect that needs a row which the frozen worker has locked."""
    for event in given if isinstance(given, list) else [given]:
        assert Product.objects.filter(sku="tea").update(on_shelf=F("on_shelf") - 1) == 1
        write_order(event.value)


def on_shelf():
    return Product.objects.get(sku="tea").on_shelf


class Freezing:
    """A handler that takes from the shelf, and whose first call stands still until it is told to go on."""

    def __init__(self):
        self.frozen = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, given):
        first = not self.frozen.is_set()
        take_one(given)
        if first:
            self.frozen.set()
            assert self.go_on.wait(SOON)


@pytest.mark.requirement("S8")
@pytest.mark.requirement("X2")
@pytest.mark.parametrize("batch_size", [None, 5])
def test_a_frozen_worker_is_taken_over_with_its_locks_and_changes_nothing_when_it_wakes(
    things, make_consumer, in_thread, caplog, batch_size
):
    handler = Freezing()
    reader = make_consumer(things, handler=handler, batch_size=batch_size)
    fill(things, 1, 2, 3)
    lost = lease_of(reader)
    frozen = in_thread(serve_lease, lost)
    try:
        assert handler.frozen.wait(SOON)
        expire_leases(reader)
        lease = lease_of(reader)
        assert in_thread(serve_lease, lease).result(SOON) == 3
        assert (written(), on_shelf()) == (["1", "2", "3"], 997)
    finally:
        handler.go_on.set()

    with pytest.raises(OperationalError):
        frozen.result(SOON)
    assert (written(), on_shelf(), reached(reader)) == (["1", "2", "3"], 997, [3])
    assert position_of(reader).failed == 0, "nothing failed: a worker froze"
    assert "its worker died, or froze for longer than its lease" in caplog.text
    assert "is ended" in caplog.text


@pytest.mark.requirement("S8")
def test_a_frozen_worker_that_is_not_in_a_transaction_is_fenced_off(things, make_consumer, in_thread):
    handler = Freezing()
    reader = make_consumer(things, handler=handler, transactional=False)
    fill(things, 1, 2, 3)
    lost = lease_of(reader)
    frozen = in_thread(serve_lease, lost)
    try:
        assert handler.frozen.wait(SOON)
        expire_leases(reader)
        assert serve_due(reader) == 3
    finally:
        handler.go_on.set()

    with pytest.raises(LeaseLost):
        frozen.result(SOON)
    assert (written(), reached(reader)) == (["1", "1", "2", "3"], [3])


@pytest.mark.requirement("S8")
def test_who_may_not_end_the_frozen_connection_goes_on_all_the_same(
    things, make_consumer, in_thread, caplog, weak_role
):
    """As soon as no session holds its locks any more. The token keeps the frozen one from settling."""
    frozen_handler = Freezing()
    reader = make_consumer(things, handler=lambda event: handlers[0](event))
    handlers = [frozen_handler]
    fill(things, 1)
    lost = lease_of(reader)
    frozen = in_thread(serve_lease, lost)
    try:
        assert frozen_handler.frozen.wait(SOON)
        handlers[0] = write_down
        expire_leases(reader)

        def serve_weakly():
            with connection.cursor() as cursor:
                cursor.execute(f"SET ROLE {weak_role}")
            return serve_lease(lease_of(reader))

        assert in_thread(serve_weakly).result(SOON) == 1
    finally:
        frozen_handler.go_on.set()

    with pytest.raises(LeaseLost):
        frozen.result(SOON)
    assert (written(), on_shelf(), reached(reader)) == (["1"], 1_000, [1])
    assert "The frozen worker's connection can't be ended." in caplog.text


@pytest.fixture
def weak_role(transactional_db):
    """A role that may use the tables, and nothing else."""
    name = "weak_in_tests"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE ROLE {name}")
        cursor.execute(f"GRANT USAGE ON SCHEMA public TO {name}")
        cursor.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {name}")
        cursor.execute(f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {name}")
        cursor.execute(f"ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO {name}")
    yield name
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER DEFAULT PRIVILEGES REVOKE ALL ON TABLES FROM {name}")
        cursor.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.mark.requirement("X2")
@BOTH_MODES
def test_a_worker_whose_connection_is_cut_goes_on_with_a_new_one(things, make_consumer, connect, transactional):
    other, cut = connect(autocommit=True), []

    def handler(event):
        write_order(event.value)
        if event.value == 2 and not cut:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                cut.extend(cursor.fetchone())
            other.execute("SELECT pg_terminate_backend(%s, 10000)", cut)

    reader = make_consumer(things, handler=handler, transactional=transactional, retry=Backoff(attempts=1))
    fill(things, 1, 2, 3)
    with working(reader):
        wait_until(lambda: reached(reader) == [3], seconds=SOON)

    assert cut
    assert written() == (["1", "2", "3"] if transactional else ["1", "2", "2", "3"])
    assert dead_letters(reader) == [], "the loss of a connection is no attempt"


# Dead workers


@pytest.mark.requirement("E10")
@BOTH_MODES
@pytest.mark.parametrize("batch_size", [None, 5], ids=["single", "batch"])
def test_attempts_of_a_dead_worker_are_charged_to_the_event_that_killed_it(
    things, make_consumer, caplog, batch_size, transactional
):
    handler = Killer(3)
    reader = make_consumer(
        things, handler=handler, batch_size=batch_size, transactional=transactional, retry=THREE_AT_ONCE
    )
    fill(things, *range(1, 21))
    for _ in range(4):  # once in a batch, when the event is not known yet, and three times by itself
        die(reader)
    exhaust(reader)

    assert [one for one in handler.handled if one[0] == 3] == [(3, 1), (3, 1), (3, 2), (3, 3)]
    assert {attempt for value, attempt in handler.handled if value != 3} == {1}
    [letter] = dead_letters(reader)
    assert (letter.event_id, letter.attempts) == (3, 3)
    assert letter.error.startswith("WorkerEnded: No attempt is left. 3 are counted, and the last one never came back")
    position = position_of(reader)
    assert (position.position, position.handled, position.failed, position.dead_lettered) == (20, 19, 1, 1)
    if transactional:
        assert written() == [str(n) for n in range(1, 21) if n != 3]
    assert "is taken over behind event" in caplog.text
    if batch_size:
        assert len(handler.calls[-2]) == 5, "behind what was in hand they are together again"


@pytest.mark.requirement("E10")
def test_two_events_that_kill_are_each_charged_with_their_own_attempts(things, make_consumer):
    handler = Killer(2, 4)
    reader = make_consumer(things, handler=handler, retry=THREE_AT_ONCE)
    fill(things, *range(1, 6))
    for _ in range(1 + 3 + 3):
        die(reader)
    exhaust(reader)

    assert [(letter.event_id, letter.attempts) for letter in dead_letters(reader)] == [(2, 3), (4, 3)]
    assert written() == ["1", "3", "5"]


@pytest.mark.requirement("E10")
def test_attempts_at_an_event_that_is_filtered_out_now_are_of_no_other(things, make_consumer):
    handler = Killer(2)
    reader = make_consumer(things, handler=handler, retry=THREE_AT_ONCE)
    fill(things, 1, 2, 3)
    for _ in range(3):
        die(reader)
    positions(reader).update(stopped_at=ClockTimestamp())  # so the filter is for what it is at, too
    reader = make_consumer(things, handler=handler, retry=THREE_AT_ONCE, where="$ != 2")
    positions(reader).update(stopped_at=None)
    serve_due(reader)

    assert handler.calls[-2:] == [[(2, 2)], [(3, 1)]]
    assert written() == ["1", "3"]


@pytest.mark.requirement("E10")
def test_a_worker_that_dies_for_another_reason_costs_no_event_its_last_attempt(things, make_consumer):
    """With one attempt only: what was in hand when the worker died is tried once more, and not dead."""
    handler = Killer(2, times=1)
    reader = make_consumer(things, handler=handler, retry=Backoff(attempts=1))
    fill(things, 1, 2, 3)
    die(reader)
    exhaust(reader)

    assert written() == ["1", "2", "3"]
    assert dead_letters(reader) == []


@pytest.mark.requirement("E10")
def test_errors_and_deaths_count_together(things, make_consumer):
    attempts = []

    def handler(event):
        attempts.append(event.attempt)
        if len(attempts) in (1, 3):
            raise ValueError("no")
        raise KeyboardInterrupt

    reader = make_consumer(things, handler=handler, retry=Backoff(attempts=4))
    fill(things, 1)
    serve_due(reader)
    end_pauses(reader)
    die(reader)
    serve_due(reader)
    end_pauses(reader)
    die(reader)
    exhaust(reader)

    assert attempts == [1, 2, 3, 4]
    [letter] = dead_letters(reader)
    assert (letter.attempts, letter.error.partition(":")[0]) == (4, "WorkerEnded")


@pytest.mark.requirement("E10")
def test_an_attempt_is_counted_before_it_starts(things, make_consumer):
    """The process may end between the two: claimed, counted, and never seen again."""
    reader = make_consumer(things, handler=write_down, retry=THREE_AT_ONCE)
    fill(things, 1, 2)
    for attempt in (1, 2, 3):
        lost = lease_of(reader)
        event = lost.read().events[0]
        assert lost.count_attempt(event).attempt == attempt
        assert (position_of(reader).attempted, position_of(reader).attempts) == (1, attempt)
        expire_leases(reader)
    exhaust(reader)

    assert [(letter.event_id, letter.attempts) for letter in dead_letters(reader)] == [(1, 3)]
    assert written() == ["2"]


@pytest.mark.requirement("E10")
def test_a_partition_may_stop_at_the_event_that_kills(things, make_consumer):
    handler = Killer(1)
    reader = make_consumer(things, handler=handler, retry=THREE_AT_ONCE, on_exhausted="stop")
    fill(things, 1, 2)
    for _ in range(4):
        die(reader)
    exhaust(reader)

    position = position_of(reader)
    assert position.stopped_at is not None
    assert position.error.startswith("WorkerEnded: ")
    assert (written(), dead_letters(reader), due(reader)) == ([], [], [])


@pytest.mark.requirement("E10")
def test_no_event_is_charged_for_a_worker_that_died_between_two_batches(things, make_consumer):
    handler = Killer()
    reader = make_consumer(things, handler=handler, batch_size=2, retry=Backoff(attempts=1))
    fill(things, 1, 2, 3, 4)
    lost = lease_of(reader)
    batch = lost.read()
    with transaction.atomic():
        write_down(batch.events)
        lost.settle(batch.events)
    expire_leases(reader)
    serve_due(reader)

    assert handler.calls == [[(3, 1)], [(4, 1)]]
    assert written() == ["1", "2", "3", "4"]
    assert dead_letters(reader) == []


@pytest.mark.requirement("E10")
def test_what_was_in_hand_of_a_dead_worker_is_not_forgotten_by_one_that_had_no_time_to_look(things, make_consumer):
    """It took over, was told to stop, and let go: the next one must still be careful."""
    handler = Killer(2)
    reader = make_consumer(things, handler=handler, retry=THREE_AT_ONCE)
    fill(things, 1, 2, 3)
    die(reader)
    for _ in range(3):
        assert serve_lease(lease_of(reader), stopping=lambda: True) == 0
    handler.calls = []
    die(reader)

    assert handler.calls == [[(1, 1)], [(2, 1)]]
    assert position_of(reader).attempts == 1
    for _ in range(2):
        die(reader)
    exhaust(reader)
    assert written() == ["1", "3"]


@pytest.mark.requirement("E10")
def test_redrives_that_take_a_whole_turn_do_not_make_it_forgotten_either(things, make_consumer, monkeypatch):
    def handler(event):
        calls.append((event.value, event.attempt))
        write_order(event.value)
        if event.value == "bad" and len(calls) < 2:
            raise ValueError
        if event.value == "deadly":
            raise KeyboardInterrupt

    calls = []
    reader = make_consumer(things, handler=handler, retry=ONE)
    fill(things, "bad")
    serve_due(reader)
    fill(things, "before", "deadly", "behind")
    die(reader)
    redrive(dead_letters(reader))
    with monkeypatch.context() as patched:
        patched.setattr(streams._Turn, "_over", lambda turn: len(calls) > 3)
        serve_lease(lease_of(reader))
    assert calls[3:] == [("bad", 1), ("before", 1)]
    die(reader)
    exhaust(reader)

    assert written() == ["bad", "before", "behind"]
    assert [(letter.event_id, letter.attempts) for letter in dead_letters(reader)] == [(3, 1)]


@pytest.mark.requirement("E10")
def test_nothing_is_left_of_a_dead_worker_that_had_nothing_in_hand(make_topic, make_consumer):
    topic = make_topic("sparse", partitions=2)
    reader = make_consumer(topic, handler=write_down)
    publish(topic, 1, partition=1)
    transfer_all()
    lease_of(reader, 0)
    expire_leases(reader)
    assert serve_lease(lease_of(reader, 0)) == 0

    position = positions(reader).get(partition=0)
    assert (position.token, position.leased_until, position.careful_until) == (None, None, 0)


def test_where_the_log_has_nothing_to_read_nothing_is_claimed(things, make_consumer):
    reader = make_consumer(things, handler=write_down)
    assert lease_of(reader) is None
    fill(things, 1)
    assert run_once(reader) == 1
    before = position_of(reader)

    assert lease_of(reader) is None
    assert position_of(reader).served_at == before.served_at


@pytest.mark.requirement("E10")
@pytest.mark.requirement("S9")
def test_a_dead_letter_that_kills_its_worker_runs_out_of_attempts_too(things, make_consumer):
    def handler(event):
        calls.append((event.value, event.attempt))
        if event.value == "bad":
            raise ValueError if len(calls) <= 3 else KeyboardInterrupt
        write_order(event.value)

    calls = []
    reader = make_consumer(things, handler=handler, retry=THREE_AT_ONCE)
    fill(things, "bad")
    exhaust(reader)
    redrive(dead_letters(reader))
    fill(things, "good")
    for _ in range(3):
        die(reader)
    exhaust(reader)

    assert calls == [("bad", n) for n in (1, 2, 3)] + [("bad", n) for n in (1, 2, 3)] + [("good", 1)]
    [letter] = dead_letters(reader)
    assert (letter.attempts, letter.redrive_at, letter.error.partition(":")[0]) == (3, None, "WorkerEnded")
    assert written() == ["good"]


@pytest.mark.requirement("E10")
def test_a_filter_does_not_hide_the_event_that_kills(lanes, make_consumer, monkeypatch):
    """Ranges without a match come first: the batch that was in hand is still the next that is read."""
    monkeypatch.setattr("django_events.consuming.streams.batches.RANGE", 8)
    handler = Killer("deadly")
    reader = make_consumer(lanes, handler=handler, types=["a"], retry=Backoff(attempts=2))
    fill(lanes, *range(30), partition=1)
    fill(lanes, "before", "deadly", "behind", type="a", partition=1)
    for _ in range(3):
        die(reader, partition=1)
    serve_due(reader)

    assert written() == ["before", "behind"]
    assert [(letter.event_id, letter.attempts) for letter in dead_letters(reader)] == [(32, 2)]


# Timeouts


def serve_with(renewal, consumer):
    lease = lease_of(consumer)
    with renewal.renewing(lease):
        return serve_lease(lease)


class Late(Killer):
    """A handler that comes back after the renewal has noticed, for some values."""

    def __init__(self, *late, error=None, times=None):
        super().__init__(*late, times=times)
        self.error = error

    def strike(self):
        [lease] = self.renewal._leases.values()
        lease.handling_since -= 7_200.0  # as if it had begun two hours ago
        wait_until(lambda: lease.timed_out is lease.handling, seconds=SOON)
        if self.error:
            raise self.error


@pytest.mark.requirement("P9")
@pytest.mark.parametrize("error", [None, ValueError("too late anyway")])
@BOTH_MODES
def test_a_handler_that_comes_back_late_has_failed(things, make_consumer, renewal, error, transactional, caplog):
    handler = Late(2, error=error)
    handler.renewal = renewal
    reader = make_consumer(
        things,
        handler=handler,
        timeout=timedelta(hours=1),
        transactional=transactional,
        retry=Backoff(base=timedelta(hours=1), cap=timedelta(hours=1)),
    )
    fill(things, 1, 2, 3)
    assert serve_with(renewal, reader) == 1

    position = position_of(reader)
    assert (position.position, position.attempted, position.attempts) == (1, 2, 1)
    assert position.error == "HandlerTimeout: It took longer than 1:00:00."
    assert position.retry_at is not None
    if transactional:
        assert written() == ["1"]
    assert "the handler of event things/2, attempt 1 takes longer than 1:00:00" in caplog.text
    assert renewal.ended == []


@pytest.mark.requirement("P9")
@pytest.mark.parametrize("batch_size", [None, 5], ids=["single", "batch"])
@BOTH_MODES
def test_a_late_event_is_charged_alone_and_the_others_go_on_in_the_same_turn(
    things, make_consumer, renewal, batch_size, transactional
):
    handler = Late(2)
    handler.renewal = renewal
    reader = make_consumer(
        things,
        handler=handler,
        timeout=timedelta(hours=1),
        retry=ONE,
        batch_size=batch_size,
        transactional=transactional,
    )
    fill(things, 1, 2, 3, 4)
    assert serve_with(renewal, reader) == 4

    assert [(letter.event_id, letter.attempts, letter.error) for letter in dead_letters(reader)] == [
        (2, 1, "HandlerTimeout: It took longer than 1:00:00.")
    ]
    position = position_of(reader)
    assert (position.position, position.handled, position.failed) == (4, 3, 1)
    if transactional:
        assert written() == ["1", "3", "4"]


@pytest.mark.requirement("P9")
def test_a_late_error_is_told_with_the_timeout(things, make_consumer, renewal):
    handler = Late(1, error=ValueError("the bank hung up"))
    handler.renewal = renewal
    reader = make_consumer(things, handler=handler, timeout=timedelta(hours=1), retry=ONE)
    fill(things, 1)
    serve_with(renewal, reader)

    [letter] = dead_letters(reader)
    assert "ValueError: the bank hung up" in letter.traceback


@pytest.mark.slow
@pytest.mark.requirement("P9")
@BOTH_MODES
def test_a_handler_that_does_not_come_back_ends_its_process_and_others_go_on(
    things, make_consumer, renewal, in_thread, transactional, caplog
):
    handler = Freezing()
    reader = make_consumer(
        things,
        handler=handler,
        timeout=timedelta(milliseconds=20),
        lease=timedelta(seconds=1),
        transactional=transactional,
    )
    fill(things, 1, 2)
    lost = lease_of(reader)

    def serve_and_keep():
        with renewal.renewing(lost):
            serve_lease(lost)

    stuck = in_thread(serve_and_keep)
    try:
        wait_until(lambda: 70 in renewal.ended, seconds=SOON)
        assert renewal.ended == ["stop", 70]
        assert "the handler doesn't come back, so this process ends with exit code 70" in caplog.text
        assert len(due(reader)) == 1, "its lease was given up: no worker waits"
        assert in_thread(serve_due, reader).result(SOON) == 2
    finally:
        handler.go_on.set()

    with pytest.raises((LeaseLost, OperationalError)):
        stuck.result(SOON)
    assert reached(reader) == [2]
    if transactional:
        assert (written(), on_shelf()) == (["1", "2"], 998)


@pytest.mark.slow
@pytest.mark.requirement("P9")
@pytest.mark.parametrize("renewal", [SOON], indirect=True)
def test_the_others_of_the_process_finish_what_they_have_in_hand_before_it_ends(
    lanes, make_consumer, renewal, in_thread
):
    stuck, busy = threading.Event(), threading.Event()

    def handler(event):
        write_order(event.value)
        assert (stuck if event.value == "stuck" else busy).wait(SOON)

    slow = make_consumer(
        lanes, handler=handler, name="slow", timeout=timedelta(milliseconds=20), lease=timedelta(seconds=1), types=["s"]
    )
    other = make_consumer(lanes, handler=handler, name="other", types=["o"])
    publish_many(lanes, [Draft(value="stuck", type="s", partition=0), Draft(value="busy", type="o", partition=0)])
    transfer_all()

    def serve_and_keep(consumer):
        lease = lease_of(consumer, 0)
        with renewal.renewing(lease):
            return serve_lease(lease)

    serving = [in_thread(serve_and_keep, slow), in_thread(serve_and_keep, other)]
    try:
        wait_until(lambda: "stop" in renewal.ended, seconds=SOON)
        assert 70 not in renewal.ended
        busy.set()
        assert serving[1].result(SOON) == 1
        wait_until(lambda: 70 in renewal.ended, seconds=SOON)
    finally:
        stuck.set()
        busy.set()
    assert serving[0].result(SOON) == 0, "it came back after all, too late"
    assert written() == ["busy"]


@pytest.mark.slow
@pytest.mark.requirement("P9")
@pytest.mark.parametrize("renewal", [0.05], indirect=True)
def test_others_that_do_not_finish_either_are_not_waited_for_and_their_events_go_to_others(
    lanes, make_consumer, renewal, in_thread
):
    go_on = threading.Event()

    def handler(event):
        assert go_on.wait(SOON)

    options = {"handler": handler, "retry": Backoff(attempts=1)}
    slow = make_consumer(
        lanes, name="slow", timeout=timedelta(milliseconds=20), lease=timedelta(seconds=1), types=["s"], **options
    )
    other = make_consumer(lanes, name="other", types=["o"], lease=timedelta(hours=1), **options)
    publish_many(lanes, [Draft(value="stuck", type="s", partition=0), Draft(value="busy", type="o", partition=0)])
    transfer_all()

    def serve_and_keep(consumer):
        lease = lease_of(consumer, 0)
        with renewal.renewing(lease):
            return serve_lease(lease)

    serving = [in_thread(serve_and_keep, consumer) for consumer in (other, slow)]
    try:
        wait_until(lambda: 70 in renewal.ended, seconds=SOON)
        assert len(due(other)) == 1, "its lease had an hour left, and is given up"
    finally:
        go_on.set()
    for future in serving:
        future.result(SOON)


@pytest.mark.slow
@pytest.mark.requirement("P9")
def test_without_a_timeout_a_handler_may_take_as_long_as_it_wants(things, make_consumer, renewal, in_thread):
    go_on = threading.Event()
    reader = make_consumer(things, handler=lambda event: go_on.wait(SOON), lease=timedelta(seconds=1))
    fill(things, 1)
    lease = lease_of(reader)

    def serve_and_keep():
        with renewal.renewing(lease):
            return serve_lease(lease)

    served = in_thread(serve_and_keep)
    first_end = position_of(reader).leased_until
    wait_until(lambda: position_of(reader).leased_until > first_end + timedelta(seconds=1), seconds=SOON)
    go_on.set()

    assert served.result(SOON) == 1
    assert renewal.ended == []
    assert position_of(reader).failed == 0


# The lock by which others find a worker that froze before its COMMIT


def in_a_transaction_of_others(session):
    return session.execute(
        "SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        " AND xact_start IS NOT NULL AND query LIKE '%pg_locks%'"
    ).fetchall()


def test_a_session_that_is_about_to_end_is_waited_for(things, make_consumer, connect, in_thread):
    """After a handler closed its connection, the server has yet to notice: that is no other worker's lease."""
    reader = make_consumer(things, handler=write_down)
    fill(things, 1, 2)
    lease = lease_of(reader)
    closed = connect(autocommit=True)
    closed.execute("SELECT pg_advisory_lock(%s)", [lease.token])
    served = in_thread(serve_lease, lease)
    wait_until(lambda: in_a_transaction_of_others(closed), seconds=SOON)
    closed.close()
    assert served.result(SOON) == 2
    assert written() == ["1", "2"]


def test_a_session_that_does_not_end_is_named(things, make_consumer, connect, monkeypatch):
    monkeypatch.setattr(leases, "PATIENCE", 0.05)
    reader = make_consumer(things, handler=write_down)
    fill(things, 1)
    lease = lease_of(reader)
    frozen = connect(autocommit=True)
    frozen.execute("SELECT pg_advisory_lock(%s)", [lease.token])
    with pytest.raises(LeaseLost, match=f"lost its lease of partition 0: session {frozen.info.backend_pid}, whose"):
        serve_lease(lease)
    assert reached(reader) == [0]
    frozen.close()
    assert take_over(reader) is not None


@pytest.mark.slow
def test_a_handler_that_closes_its_connection_is_no_lost_lease(things, make_consumer, caplog):
    calls = []

    def close_once(event):
        calls.append((event.value, event.attempt))
        write_order(event.value)
        if event.attempt == 1:
            connection.close()

    reader = make_consumer(things, handler=close_once, retry=THREE_AT_ONCE)
    fill(things, *range(20))
    exhaust(reader)
    assert [value for value, attempt in calls if attempt == 2] == [*range(20)]
    assert written() == [str(n) for n in range(20)]
    assert "lost its lease" not in caplog.text
    assert caplog.text.count("The handler closed its connection") >= 20


def test_who_can_not_be_found_settles_nothing(things, make_consumer, connect):
    """A worker that takes over has the lock of a lease, to wait for its holder: to settle now could freeze unseen."""
    reader = make_consumer(things, handler=write_down, transactional=False, mode="queue")
    while fill_some(queue_of(reader).subscription):
        pass
    fill(things, 1)

    def serve(lease):
        return serve_deliveries(lease, BoundHandler(reader), on_failure=log_failure(lease))

    lease, other = queue_of(reader).claim(1), connect()
    other.execute("SELECT pg_advisory_xact_lock_shared(%s)", [lease.token])
    with pytest.raises(LeaseLost, match="taken over"):
        serve(lease)
    assert positions(reader).get().handled == 0
    assert Delivery.objects.filter(consumer__name=reader.name).exists()
    other.rollback()
    give_up("default", [lease.token])
    assert serve(queue_of(reader).claim(1)) == 1
    assert written() == ["1", "1"], "a handler beside the transaction may come twice"


def test_one_statement_that_settles_needs_no_lock(things, make_consumer, connect):
    """Its COMMIT is in the same message, so a worker can't freeze in front of it. The token decides."""
    reader = make_consumer(things, handler=write_down, transactional=False)
    fill(things, 1)
    lease, other = lease_of(reader), connect()
    other.execute("SELECT pg_advisory_xact_lock_shared(%s)", [lease.token])
    assert serve_lease(lease) == 1
    assert reached(reader) == [1]
    fill(things, 2)
    lease = lease_of(reader)
    positions(reader).update(token=7)
    with pytest.raises(LeaseLost, match="taken over"):
        serve_lease(lease)
    assert reached(reader) == [1]


def test_a_failed_batch_is_not_settled_beside_a_takeover(things, make_consumer, connect):
    """The lock of the lease ended with the transaction that was rolled back: the next one must not rely on it."""

    def handler(events):
        raise ValueError("one of them")

    reader = make_consumer(things, handler=handler, batch_size=2)
    fill(things, 1, 2)
    lease = lease_of(reader)
    handling = Handling(lease, BoundHandler(reader), enough=lambda: False, on_failure=log_failure(lease))
    with pytest.raises(HandlerFailed):
        handling._handle_and_settle(lease, lease.read().events, None, None)
    connect().execute("SELECT pg_advisory_lock(%s)", [lease.token])  # as a worker does that takes over
    with pytest.raises(LeaseLost), transaction.atomic():
        lease.settle([], careful_until=2)
    assert position_of(reader).careful_until == 0


# --- a process with several databases has a renewal for each


@pytest.fixture
def elsewhere():
    """The renewal of the same process for another database."""
    stopped = []
    renewal = LeaseRenewal("default", stop=lambda: stopped.append("stop"), end=stopped.append)
    renewal.stopped = stopped
    yield renewal
    renewal.close()


@pytest.mark.slow
@pytest.mark.requirement("E11")
@pytest.mark.parametrize(
    ("renewal", "finishes"), [(SOON, True), (0.05, False)], indirect=["renewal"], ids=["finishes", "doesn't finish"]
)
def test_a_process_that_ends_gives_what_it_has_of_other_databases_time_and_then_back(
    lanes, make_consumer, renewal, elsewhere, in_thread, finishes
):
    stuck, busy = threading.Event(), threading.Event()

    def handler(event):
        assert (stuck if event.value == "stuck" else busy).wait(SOON)

    slow = make_consumer(
        lanes, handler=handler, name="slow", timeout=timedelta(milliseconds=20), lease=timedelta(seconds=1), types=["s"]
    )
    other = make_consumer(lanes, handler=handler, name="other", types=["o"], lease=timedelta(hours=1))
    publish_many(lanes, [Draft(value="stuck", type="s", partition=0), Draft(value="busy", type="o", partition=0)])
    transfer_all()

    def serve_and_keep(consumer, renewal):
        lease = lease_of(consumer, 0)
        with renewal.renewing(lease):
            return serve_lease(lease)

    serving = [in_thread(serve_and_keep, other, elsewhere)]
    wait_until(lambda: elsewhere.leases, seconds=SOON)
    serving.append(in_thread(serve_and_keep, slow, renewal))
    try:
        wait_until(lambda: elsewhere.stopped == ["stop"], seconds=SOON)
        if finishes:
            assert 70 not in renewal.ended
            busy.set()
            assert serving[0].result(SOON) == 1
        wait_until(lambda: 70 in renewal.ended, seconds=SOON)
        assert elsewhere.stopped == ["stop"], "one of them ends the process"
        assert finishes or len(due(other)) == 1, "its lease had an hour left, and is given up"
    finally:
        stuck.set()
        busy.set()


@pytest.mark.requirement("E11")
def test_python_s_watchdog_waits_for_the_longest_handler_of_all_databases(monkeypatch):
    class OfOneDatabase:
        def __init__(self, seconds):
            self.seconds = seconds

        def stuck_after(self):
            return self.seconds

    said = []
    monkeypatch.setattr(lease_renewal.faulthandler, "dump_traceback_later", lambda after, **options: said.append(after))
    monkeypatch.setattr(lease_renewal.faulthandler, "cancel_dump_traceback_later", lambda: said.append("canceled"))
    first, second = OfOneDatabase(10.0), OfOneDatabase(900.0)
    monkeypatch.setattr(lease_renewal, "_running", {first, second, OfOneDatabase(None)})
    lease_renewal._watch_for_a_stuck_interpreter()
    second.seconds = None
    lease_renewal._watch_for_a_stuck_interpreter()
    first.seconds = None
    lease_renewal._watch_for_a_stuck_interpreter()
    lease_renewal._watch_for_a_stuck_interpreter()

    assert said == [900.0, 10.0, "canceled"]
