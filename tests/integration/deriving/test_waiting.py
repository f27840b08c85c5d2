"""Read your writes: what was published has been passed when wait_for() returns, and it never says so too early."""

import asyncio
import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, connections, transaction

from django_events import Backoff, Ignore, await_for, declarations, models, publish, publish_many, wait_for
from django_events.deriving import lookout, passed
from django_events.deriving.waiting import _begun as begun
from django_events.drafts import Draft
from django_events.exceptions import Invalid, NotReady, NotSeen, Refused, UnknownName
from django_events.operations import pause, redrive, remove_topic, repartition, resume, rewind, unregister
from django_events.sql.prepared import MOST_PREPARED
from tests.support.fix_consumers import (
    expire_leases,
    lease_of,
    position_of,
    positions,
    reached,
    run_once,
    serve_due,
    serve_lease,
    working,
)
from tests.support.fix_topics import transfer_all
from tests.support.processes import wait_until

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X12")]

NOW = timedelta(0)
HOUR, LONG = timedelta(hours=1), timedelta(seconds=30)
PATIENT = Backoff(attempts=5, base=HOUR, cap=HOUR)


def ignore(event):
    """A handler that does nothing."""


def failing(*bad):
    def handler(event):
        if event.value in bad:
            raise ValueError(f"no {event.value}")

    return handler


def is_seen(published, *consumers, **options):
    """Whether it is seen at once."""
    try:
        wait_for(published, *consumers, timeout=NOW, **options)
    except NotSeen:
        return False
    return True


# Where an event is


def test_an_event_is_seen_when_its_consumer_has_passed_it(things, make_consumer):
    reader = make_consumer(things, handler=ignore)
    receipt = publish(things, 1)
    with pytest.raises(NotSeen, match="published to 'things' is still in the buffer of 'default'"):
        wait_for(receipt, reader, timeout=NOW)
    transfer_all()
    assert is_seen(receipt)
    with pytest.raises(NotSeen, match="consumer 'reader' has not passed things/1: it is behind event 0") as raised:
        wait_for(receipt, "reader", timeout=NOW)
    assert (raised.value.consumer, raised.value.dead_letter) == ("reader", False)
    run_once(reader)
    wait_for(receipt, reader)


def test_one_that_waits_is_told_when_it_is_passed(things, make_consumer, in_thread):
    reader = make_consumer(things, handler=ignore)
    receipt = publish(things, 1)
    waiting = in_thread(wait_for, receipt, reader)
    transfer_all()
    assert not waiting.done()
    run_once(reader)
    waiting.result(60)


def test_a_late_commit_is_waited_for_though_its_ticket_is_passed(things, make_consumer, in_thread):
    """Its ticket is lower than that of an event that was passed long ago: no position says anything about it."""
    reader = make_consumer(things, handler=ignore)
    published, may_commit = threading.Event(), threading.Event()
    receipts = []

    def late():
        with transaction.atomic():
            receipts.append(publish(things, "late"))
            published.set()
            assert may_commit.wait(60)

    committing = in_thread(late)
    assert published.wait(60)
    early = publish(things, "early")
    assert early.ticket > receipts[0].ticket
    transfer_all()
    run_once(reader)
    wait_for(early, reader)
    may_commit.set()
    committing.result(60)
    assert not is_seen(receipts[0], reader)
    transfer_all()
    assert not is_seen(receipts[0], reader)
    run_once(reader)
    wait_for([early, *receipts], reader)


def test_what_was_rolled_back_is_not_waited_for(things, make_consumer):
    reader = make_consumer(things, handler=ignore)
    with transaction.atomic():
        receipt = publish(things, 1)
        transaction.set_rollback(True)
    wait_for(receipt, reader, timeout=NOW)


def test_an_event_that_is_not_found_by_its_moment_stands_for_all_up_to_the_last(things, make_consumer, monkeypatch):
    monkeypatch.setattr(passed, "NEWEST", 2)
    reader = make_consumer(things, handler=ignore)
    receipt = publish(things, 0)
    publish_many(things, [Draft(value=n) for n in range(3)])
    transfer_all()
    run_once(reader)
    publish(things, "later")
    transfer_all()
    with pytest.raises(NotSeen, match="has not passed all up to things/5"):
        wait_for(receipt, reader, timeout=NOW)
    run_once(reader)
    wait_for(receipt, reader)


def test_another_event_of_its_moment_is_not_taken_for_it(lanes, make_consumer, monkeypatch):
    """One that was logged later, while its own is beyond those that are looked at."""
    monkeypatch.setattr(passed, "NEWEST", 2)
    reader = make_consumer(lanes, handler=ignore)
    receipt = publish(lanes, "ours", partition=0)
    publish(lanes, "between", partition=1)
    publish(lanes, "of the moment", partition=1)
    transfer_all()
    log = models.Event.objects.of(lanes).values_list("value", "published_at")
    moment = dict(log)["ours"].timestamp()
    receipt = dataclasses.replace(receipt, moment=(moment - 1, moment + 1))
    serve_lease(lease_of(reader, 1))
    assert not is_seen(receipt, reader)
    serve_lease(lease_of(reader, 0))
    assert is_seen(receipt, reader)


def test_an_event_is_known_among_others_of_its_topic(things, make_consumer):
    """What comes behind it need not be passed."""
    reader = make_consumer(things, handler=failing("bad"), retry=PATIENT)
    receipt = publish(things, "good")
    publish(things, "bad")
    transfer_all()
    serve_due(reader)
    wait_for(receipt, reader)
    assert position_of(reader).position == 1


def test_a_topic_stands_for_all_that_was_committed_to_it_before(things, make_consumer):
    """Bulk, SQL and triggers give no receipts."""
    reader = make_consumer(things, handler=ignore)
    wait_for(things, reader)
    publish_many(things, [Draft(value=n) for n in range(3)])
    assert not is_seen("things", reader)
    transfer_all()
    assert not is_seen(things, reader)
    run_once(reader)
    wait_for([things], reader)


def test_a_receipt_of_a_dedup_key_that_was_taken_waits_for_the_first(things, make_consumer):
    reader = make_consumer(things, handler=ignore)
    publish(things, 1, dedup_key="one")
    again = publish(things, 1, dedup_key="one")
    assert (again.new, again.ticket) == (False, None)
    assert not is_seen(again, reader)
    transfer_all()
    assert not is_seen(again, reader)
    run_once(reader)
    wait_for(again, reader)


def test_a_scheduled_event_is_refused(things, make_consumer):
    reader = make_consumer(things, handler=ignore)
    receipt = publish(things, 1, publish_at=datetime.now(UTC) + HOUR)
    with pytest.raises(Refused, match="is scheduled: it is published when its time has come"):
        wait_for(receipt, reader)


# What is refused


def test_it_is_refused_in_a_transaction(things, make_consumer):
    reader = make_consumer(things, handler=ignore)
    with transaction.atomic():
        receipt = publish(things, 1)
        with pytest.raises(Refused, match="A transaction is open on 'default'"):
            wait_for(receipt, reader)


def test_unknown_names_are_said(things, make_topic, make_consumer):
    make_consumer(things, handler=ignore)
    other = make_topic("others")
    receipt = publish(things, 1)
    with pytest.raises(UnknownName, match=r"No consumer 'raeder' is registered.*Did you mean 'reader'"):
        wait_for(receipt, "raeder")
    with pytest.raises(UnknownName, match="Consumer 'reader' reads things, and none of others"):
        wait_for(other, "reader")
    with pytest.raises(UnknownName, match="There is no topic 'thinks'"):
        wait_for("thinks", "reader")
    with pytest.raises(Invalid, match="nothing to wait for"):
        wait_for([], "reader")


def test_several_topics_and_consumers_are_waited_for_at_once(things, make_topic, make_consumer):
    others = make_topic("others")
    one = make_consumer(things, handler=ignore, name="one")
    two = make_consumer(others, things, handler=ignore, name="two")
    receipts = [publish(things, 1), publish(others, 1)]
    transfer_all()
    run_once(one)
    assert is_seen(receipts, one)
    assert not is_seen(receipts, one, two)
    run_once(two)
    wait_for(receipts, one, two)


# What a consumer may do with it


def test_what_is_filtered_out_or_ignored_is_passed(things, make_consumer):
    def ignoring(event):
        raise Ignore("not mine")

    reader = make_consumer(things, handler=ignore, types=["paid"])
    other = make_consumer(things, handler=ignoring, name="other")
    receipt = publish(things, 1, type="placed")
    transfer_all()
    assert not is_seen(receipt, reader)
    run_once(reader, other)
    wait_for(receipt, reader, other)


def test_an_event_that_is_tried_again_is_not_seen(things, make_consumer):
    bad = ["bad"]
    reader = make_consumer(things, handler=failing(*bad), retry=PATIENT)
    receipt, behind = publish(things, "bad"), publish(things, "good")
    transfer_all()
    serve_due(reader)
    for one in (receipt, behind):
        with pytest.raises(NotSeen, match="behind event 0, and tries event 1 again"):
            wait_for(one, reader, timeout=NOW)


def test_a_dead_letter_is_not_seen_until_it_is_handled_again(things, make_consumer):
    bad = {"bad"}

    def handler(event):
        if event.value in bad:
            raise ValueError

    reader = make_consumer(things, handler=handler, retry=Backoff(attempts=1))
    receipt, behind = publish(things, "bad"), publish(things, "good")
    transfer_all()
    run_once(reader)
    with pytest.raises(NotSeen, match="things/1 is a dead letter of consumer 'reader'") as raised:
        wait_for(receipt, reader, timeout=LONG)
    assert raised.value.dead_letter
    wait_for(behind, reader)
    redrive(models.DeadLetter.objects.of(reader))
    with pytest.raises(NotSeen, match="a dead letter that waits to be handled again"):
        wait_for(receipt, reader, timeout=NOW)
    bad.clear()
    run_once(reader)
    wait_for(receipt, reader)


def test_an_event_in_hand_is_not_seen_and_one_after_a_crash_neither(things, make_consumer):
    reader = make_consumer(things, handler=ignore)
    receipt = publish(things, 1)
    transfer_all()
    assert lease_of(reader) is not None
    assert not is_seen(receipt, reader)
    expire_leases(reader)
    assert not is_seen(receipt, reader)
    run_once(reader)
    wait_for(receipt, reader)


def test_a_handler_that_was_rolled_back_is_not_seen(things, make_consumer, in_thread):
    """Its position moves with its commit, and not before."""
    handled, may_end = threading.Event(), threading.Event()

    def handler(event):
        handled.set()
        assert may_end.wait(60)

    reader = make_consumer(things, handler=handler)
    receipt = publish(things, 1)
    transfer_all()
    serving = in_thread(run_once, reader)
    assert handled.wait(60)
    assert not is_seen(receipt, reader)
    may_end.set()
    serving.result(60)
    wait_for(receipt, reader)


def test_a_paused_and_a_stopped_consumer_are_not_waited_for(things, make_consumer):
    reader = make_consumer(things, handler=failing("bad"), retry=Backoff(attempts=1), on_exhausted="stop")
    receipt = publish(things, "bad")
    transfer_all()
    pause(reader)
    with pytest.raises(NotSeen, match="the consumer is paused"):
        wait_for(receipt, reader, timeout=LONG)
    resume(reader)
    run_once(reader)
    with pytest.raises(NotSeen, match="the consumer is stopped"):
        wait_for(receipt, reader, timeout=LONG)


def test_a_consumer_that_is_unregistered_or_registered_anew_ends_the_wait(things, make_consumer, in_thread):
    reader = make_consumer(things, handler=ignore)
    receipt = publish(things, 1)
    transfer_all()
    waiting = in_thread(wait_for, receipt, reader, timeout=LONG)
    wait_until(lambda: lookout.lookout_of("default")._waits)
    declarations.consumers.discard(reader)
    unregister(reader)
    make_consumer(things, handler=ignore)
    with pytest.raises(NotSeen, match="was unregistered while it was waited for"):
        waiting.result(60)


def test_a_rewind_is_waited_for_again(things, make_consumer):
    reader = make_consumer(things, handler=ignore)
    receipt = publish(things, 1)
    transfer_all()
    run_once(reader)
    wait_for(receipt, reader)
    rewind(reader, to="beginning")
    assert not is_seen(receipt, reader)
    assert not is_seen(things, reader)
    run_once(reader)
    wait_for(receipt, reader)


# Partitions


def test_only_the_partition_of_the_event_has_to_come_so_far(lanes, make_consumer):
    reader = make_consumer(lanes, handler=failing("bad"), retry=PATIENT)
    publish(lanes, "bad", partition=0)
    receipt = publish(lanes, "good", partition=3)
    transfer_all()
    serve_due(reader)
    wait_for(receipt, reader)
    with pytest.raises(NotSeen, match="all up to lanes/2"):
        wait_for(lanes, reader, timeout=NOW)


def test_partitions_without_events_are_not_waited_for(lanes, make_consumer):
    """Their positions move when there is something to read, and there is nothing."""
    reader = make_consumer(lanes, handler=ignore)
    receipt = publish(lanes, "one", partition=2)
    transfer_all()
    lease = lease_of(reader, 2)
    serve_lease(lease)
    assert sorted(reached(reader)) == [0, 0, 0, 1]
    wait_for(receipt, reader)
    wait_for(lanes, reader, timeout=NOW)


@pytest.mark.slow
@pytest.mark.parametrize("partitioned", [True, False])
@pytest.mark.parametrize(("before", "after"), [(2, 5), (5, 2)])
def test_another_number_of_partitions_lets_nothing_pass_too_early(
    make_topic, make_consumer, before, after, partitioned
):
    moving = make_topic("moving", partitions=before)
    seen = set()
    reader = make_consumer(moving, handler=lambda event: seen.add(event.id), partitioned=partitioned)
    receipts = [publish(moving, n, key=str(n)) for n in range(6)]
    transfer_all()
    repartition(moving, after)
    receipts += [publish(moving, n, key=str(n)) for n in range(6)]
    transfer_all()
    handled = set()
    for _ in range(100):
        for number, receipt in enumerate(receipts, start=1):
            assert is_seen(receipt, reader) is (number in handled)
        assert is_seen(moving, reader) is (len(handled) == len(receipts))
        partitions = list(positions(reader).values_list("partition", flat=True))
        lease = next(filter(None, (lease_of(reader, partition) for partition in partitions)), None)
        if lease is None:
            break
        serve_lease(lease)
        handled |= seen
    assert handled == set(range(1, len(receipts) + 1))


# Queues


@pytest.mark.parametrize("ordered", [False, True])
def test_a_queue_has_passed_an_event_when_its_delivery_is_settled(things, make_consumer, ordered):
    reader = make_consumer(things, handler=failing("bad"), mode="queue", ordered=ordered, retry=PATIENT)
    bad, good = publish(things, "bad", key="a"), publish(things, "good", key="b")
    assert not is_seen(good, reader)
    transfer_all()
    with pytest.raises(NotSeen, match="has not passed things/2: event 2 waits, or is in hand"):
        wait_for(good, reader, timeout=NOW)
    run_once(reader)
    wait_for(good, reader)
    assert not is_seen(bad, reader)
    assert not is_seen(things, reader)


def test_a_queue_that_is_filled_from_the_log_has_not_passed_what_it_has_no_delivery_of(things, make_consumer):
    receipt = publish(things, 1)
    transfer_all()
    reader = make_consumer(things, handler=ignore, mode="queue", start="beginning")
    assert not models.Delivery.objects.exists()
    assert not is_seen(receipt, reader)
    assert not is_seen(things, reader)
    run_once(reader)
    wait_for(receipt, reader)
    wait_for(things, reader)


def test_a_dead_letter_of_a_queue_is_not_seen(things, make_consumer):
    reader = make_consumer(things, handler=failing("bad"), mode="queue", retry=Backoff(attempts=1))
    receipt = publish(things, "bad")
    transfer_all()
    run_once(reader)
    with pytest.raises(NotSeen, match="dead letter"):
        wait_for(receipt, reader, timeout=LONG)
    wait_for(things, reader)


def test_a_role_that_may_not_know_the_last_ticket_is_told_so(things, make_consumer):
    """Newer servers would answer with nothing, which must not be taken for nothing to wait for."""
    reader = make_consumer(things, handler=ignore)
    publish(things, 1)
    with connection.cursor() as cursor:
        cursor.execute("CREATE ROLE waits_without_rights")
        try:
            cursor.execute("GRANT USAGE ON SCHEMA public TO waits_without_rights")
            cursor.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO waits_without_rights")
            cursor.execute("SET ROLE waits_without_rights")
            with pytest.raises(NotReady, match="events grants --role publisher"):
                wait_for(things, reader, timeout=NOW)
        finally:
            cursor.execute("RESET ROLE")
            cursor.execute("DROP OWNED BY waits_without_rights")
            cursor.execute("DROP ROLE waits_without_rights")


# Many who wait


@pytest.mark.slow
def test_a_hundred_threads_wait_by_one_connection(things, make_consumer):
    reader = make_consumer(things, handler=ignore)
    receipts = [publish(things, n) for n in range(100)]
    started = threading.Barrier(101)

    def waiting(receipt):
        try:
            [wait] = passed_waits(receipt, reader)
            connections.close_all()
            started.wait(60)
            finish(wait)
        finally:
            connections.close_all()

    from django_events.deriving import waiting as module

    def passed_waits(receipt, consumer):
        return module._begun(receipt, [consumer], None)

    def finish(wait):
        module.finish(wait, LONG)

    with ThreadPoolExecutor(100) as threads:
        futures = [threads.submit(waiting, receipt) for receipt in receipts]
        started.wait(60)
        wait_until(lambda: len(lookout.lookout_of("default")._waits) == 100)
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
            assert cursor.fetchone()[0] <= 3
        transfer_all()
        run_once(reader)
        for future in futures:
            future.result(60)
    wait_until(lambda: lookout.lookout_of("default")._thread is None)


def test_async_code_waits_without_a_thread(things, make_consumer):
    reader = make_consumer(things, handler=ignore)
    receipts = [publish(things, n) for n in range(20)]
    too_late = publish(things, "late")

    async def all_of_them():
        waits = [asyncio.create_task(await_for(receipt, reader, timeout=LONG)) for receipt in receipts]
        with pytest.raises(NotSeen):
            await await_for(too_late, reader, timeout=timedelta(milliseconds=50))
        working_thread = threading.Thread(target=work)
        working_thread.start()
        await asyncio.gather(*waits)
        await sync_to_async(connections.close_all)()
        working_thread.join()

    def work():
        try:
            transfer_all()
            run_once(reader)
        finally:
            connections.close_all()

    asyncio.run(all_of_them())


def test_a_topic_that_is_removed_ends_the_waits_for_it_only(make_topic, make_consumer, in_thread):
    things, others = make_topic("things"), make_topic("others")
    reader = make_consumer(things, handler=ignore)
    other = make_consumer(others, handler=ignore, name="other")
    receipts = [publish(topic, 1) for topic in (things, others)]
    waiting = [
        in_thread(wait_for, receipt, one, timeout=LONG) for receipt, one in zip(receipts, (reader, other), strict=True)
    ]
    wait_until(lambda: len(lookout.lookout_of("default")._waits) == 2)
    declarations.consumers.discard(other)
    declarations.registry.discard(others)
    remove_topic("others", force=True, reason="a test")
    with pytest.raises(UnknownName, match="Topic 'others' was removed while it was waited for"):
        waiting[1].result(60)
    transfer_all()
    run_once(reader)
    waiting[0].result(60)


def test_a_lost_connection_is_made_anew(things, make_consumer, in_thread):
    reader = make_consumer(things, handler=ignore)
    receipt = publish(things, 1)
    transfer_all()
    waiting = in_thread(wait_for, receipt, reader, timeout=LONG)
    wait_until(lambda: lookout.lookout_of("default")._waits)

    def ended():
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%unnest%'"
            )
            return cursor.fetchone()[0]

    wait_until(ended)
    run_once(reader)
    waiting.result(60)


def test_an_error_reaches_the_one_that_waits(things, make_consumer, in_thread):
    reader = make_consumer(things, handler=ignore)
    receipt = publish(things, 1)
    waiting = in_thread(wait_for, receipt, reader, timeout=LONG)
    wait_until(lambda: lookout.lookout_of("default")._waits)
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE django_events_position RENAME TO django_events_gone")
    try:
        transfer_all()
        with pytest.raises(Exception, match="django_events_position"):
            waiting.result(60)
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE django_events_gone RENAME TO django_events_position")


@pytest.mark.slow
def test_workers_that_run_are_waited_for(things, make_consumer):
    """Nothing is arranged here: a worker, a transfer, and one that reads what it has just written."""
    seen = set()
    reader = make_consumer(things, handler=lambda event: seen.add(event.value))
    with working(reader):
        for n in range(50):
            receipt = publish(things, n)
            transfer_all()
            wait_for(receipt, reader, timeout=LONG)
            assert n in seen


# Found by looking for a way to be told too early


@pytest.mark.parametrize("ordered", [False, True])
def test_another_event_of_its_moment_is_not_taken_for_one_that_is_too_far_back(
    things, make_consumer, monkeypatch, ordered
):
    """A transaction that was open for long has an event of the same moment far behind it in the log."""
    monkeypatch.setattr(passed, "NEWEST", 2)
    reader = make_consumer(things, handler=failing("bad"), mode="queue", ordered=ordered, retry=PATIENT)
    receipt = publish(things, "bad", key="a")
    publish_many(things, [Draft(value=n, key="b") for n in range(3)])
    late = publish(things, "good", key="b")
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE django_events_bufferedevent AS b SET published_at = of.published_at"
            " FROM django_events_bufferedevent AS of WHERE of.id = %s AND b.id = %s",
            [receipt.ticket, late.ticket],
        )
    transfer_all()
    run_once(reader)
    assert not is_seen(receipt, reader)


def test_an_event_is_found_far_from_the_end_if_it_was_seen_in_the_buffer(things, make_consumer, monkeypatch, in_thread):
    """What is in the log by then is not it, so it need not be looked through."""
    monkeypatch.setattr(passed, "NEWEST", 3)
    reader = make_consumer(things, handler=failing("bad"), retry=PATIENT)
    publish_many(things, [Draft(value=n) for n in range(5)])
    transfer_all()
    receipt = publish(things, "good")
    publish(things, "bad")
    waiting = in_thread(wait_for, receipt, reader, timeout=LONG)
    wait_until(lambda: lookout.lookout_of("default")._waits)
    transfer_all()
    serve_due(reader)
    waiting.result(60)
    assert position_of(reader).position == 6


@pytest.mark.parametrize("mode", ["stream", "queue"])
def test_a_dead_letter_is_not_seen_though_it_is_too_far_back_to_be_found(things, make_consumer, monkeypatch, mode):
    monkeypatch.setattr(passed, "NEWEST", 2)
    bad = {"bad"}

    def handler(event):
        if event.value in bad:
            raise ValueError

    reader = make_consumer(things, handler=handler, mode=mode, retry=Backoff(attempts=1))
    receipt = publish(things, "bad")
    publish_many(things, [Draft(value=n) for n in range(3)])
    transfer_all()
    run_once(reader)
    with pytest.raises(NotSeen, match="things/1 is a dead letter of consumer 'reader'") as raised:
        wait_for(receipt, reader, timeout=LONG)
    assert raised.value.dead_letter
    redrive(models.DeadLetter.objects.of(reader))
    assert not is_seen(receipt, reader)
    bad.clear()
    run_once(reader)
    wait_for(receipt, reader)


def test_it_is_refused_where_a_transaction_is_open_without_atomic(things, make_consumer):
    """Without autocommit, as with a BEGIN of one's own: what isn't committed looks like what was passed."""
    reader = make_consumer(things, handler=ignore)
    transaction.set_autocommit(False)
    try:
        receipt = publish(things, 1)
        with pytest.raises(Refused, match="A transaction is open on 'default'"):
            wait_for(receipt, reader)
        transaction.rollback()
    finally:
        transaction.set_autocommit(True)
    with connection.cursor() as cursor:
        cursor.execute("BEGIN")
        receipt = publish(things, 1)
        with pytest.raises(Refused, match="A transaction is open on 'default'"):
            wait_for(receipt, reader)
        cursor.execute("ROLLBACK")


@pytest.mark.long
def test_more_topics_than_statements_are_prepared(make_topic, in_thread):
    receipts = [publish(make_topic(f"one-of-many-{n}"), n) for n in range(MOST_PREPARED + 5)]
    waiting = in_thread(wait_for, receipts, timeout=LONG)
    wait_until(lambda: lookout.lookout_of("default")._waits or waiting.done())
    transfer_all()
    waiting.result(60)


def test_a_lookout_outlives_a_caller_that_cannot_be_told(things, in_thread):
    """An event loop may be closed in the moment between the look whether it is, and the call."""

    def tell():
        raise RuntimeError("Event loop is closed")

    [wait] = begun(publish(things, 1), [], None)
    wait.tell = tell
    lookout.lookout_of("default").add(wait)
    transfer_all()
    wait_until(lambda: wait.over)
    waiting = in_thread(wait_for, publish(things, 2), timeout=LONG)
    transfer_all()
    waiting.result(60)


def test_a_wait_is_about_the_tables_that_its_caller_sees(things):
    """A site may have a schema for each tenant, and the lookout's own connection leads to another one."""
    receipt = publish(things, 1)
    with connection.cursor() as cursor:
        cursor.execute("CREATE SCHEMA tenant")
        try:
            cursor.execute("CREATE TABLE tenant.django_events_bufferedevent (LIKE django_events_bufferedevent)")
            cursor.execute("INSERT INTO tenant.django_events_bufferedevent SELECT * FROM django_events_bufferedevent")
            transfer_all()
            cursor.execute("SET search_path = tenant, public")
            with pytest.raises(NotSeen, match="is still in the buffer"):
                wait_for(receipt, timeout=timedelta(milliseconds=100))
        finally:
            cursor.execute("RESET search_path")
            cursor.execute("DROP SCHEMA tenant CASCADE")
    wait_for(receipt)


def test_a_number_is_no_time_to_wait(things):
    with pytest.raises(Invalid, match=r"timeout=1, expected a timedelta, like timedelta\(seconds=5\)"):
        wait_for(things, timeout=1)
    with pytest.raises(Invalid, match="timeout=1, expected a timedelta"):
        asyncio.run(await_for(things, timeout=1))
