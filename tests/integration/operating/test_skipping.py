"""At an operator's word, a consumer gives up on one event or tries again now, beside workers that work."""

import threading
from datetime import timedelta

import pytest
from django.db import connection, transaction

from django_events import Backoff, Draft, declarations, models, publish_many
from django_events.consuming.queues.filling import fill_some
from django_events.exceptions import InUse, Invalid, LeaseLost, Refused, UnknownName
from django_events.operating import retrying, skipping
from django_events.operations import lag, pause, redrive, resume, retry_now, rewind, skip, unregister
from django_events.statements import log_table
from tests.support.fix_consumers import (
    dead_letters,
    expire_leases,
    lease_of,
    position_of,
    positions,
    run_once,
    serve_lease,
    tell_workers,
    working,
    write_order,
    written,
)
from tests.support.fix_database import WAITS_FOR_A_LOCK
from tests.support.fix_queues import (
    another,
    deliveries,
    expire,
    fail,
    fill_topic,
    finish,
    pending,
    queue_of,
    row_of,
    settle,
    values,
)
from tests.support.fix_topics import transfer_all
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("transactional_db", "shelf")

HOUR = timedelta(hours=1)
PATIENT = Backoff(attempts=5, base=HOUR, cap=HOUR)
BUSY = Backoff(attempts=1_000_000, base=timedelta(0))


def failing(*bad):
    """A handler that writes what it gets, and then fails on some of it."""

    def handler(event):
        write_order(event.value)
        if event.value in bad:
            raise ValueError(f"no {event.value}")

    return handler


def interventions(action):
    return list(models.Intervention.objects.filter(action=action).order_by("pk"))


# Streams


def test_a_stream_gives_up_on_the_event_that_fails_and_goes_on(things, make_consumer):
    reader = make_consumer(things, handler=failing("bad"), retry=PATIENT)
    fill_topic(things, "a", "bad", "c", key="k", type="made", metadata={"by": "test"})
    run_once(reader)
    assert skip(reader, 2, reason="ticket 77", by="ada") == ("things", 2, 0, 1, "ValueError: no bad")

    position = position_of(reader)
    assert (position.position, position.number, position.dead_lettered, position.failed) == (2, 2, 1, 1)
    assert (position.attempted, position.attempts, position.retry_at, position.error) == (None, 0, None, "")
    [letter] = dead_letters(reader)
    assert (letter.event_id, letter.value, letter.key, letter.type) == (2, "bad", "k", "made")
    assert (letter.metadata, letter.number, letter.attempts) == ({"by": "test"}, 2, 1)
    assert (letter.error, letter.traceback) == ("Skipped by ada: ticket 77", "ValueError: no bad")
    assert letter.fingerprint == "Skipped by ada: ticket #"
    [done] = interventions("skip")
    assert (done.by, done.consumer, done.topic) == ("ada", "reader", "things")
    assert (done.details["event"], done.details["reason"]) == (2, "ticket 77")
    assert run_once(reader) == 1
    assert written() == ["a", "c"]


def test_what_was_skipped_can_be_redriven(things, make_consumer):
    bad = ["bad"]
    reader = make_consumer(things, handler=lambda event: failing(*bad)(event), retry=PATIENT)
    fill_topic(things, "bad", "b")
    run_once(reader)
    skip(reader, 1, reason="later")
    run_once(reader)
    bad.clear()
    redrive(models.DeadLetter.objects.of(reader))
    run_once(reader)
    assert written() == ["b", "bad"]
    assert dead_letters(reader) == []


def test_a_partition_that_stopped_goes_on_behind_the_event(things, make_consumer):
    reader = make_consumer(things, handler=failing("bad"), retry=Backoff(attempts=1), on_exhausted="stop")
    fill_topic(things, "bad", "b")
    run_once(reader)
    assert position_of(reader).stopped_at is not None
    skip(reader, 1, reason="a test")
    assert position_of(reader).stopped_at is None
    run_once(reader)
    assert written() == ["b"]


def test_the_number_is_that_of_the_partition(lanes, make_consumer):
    reader = make_consumer(lanes, handler=failing(), partitioned=True)
    publish_many(lanes, [Draft(value=i, key=str(i % 7)) for i in range(30)])
    transfer_all()
    event = models.Event.objects.since(lanes).filter(partition=2)[0]
    skip(reader, event.id, reason="a test")
    position = position_of(reader, 2)
    assert (position.position, position.number) == (event.id, event.number)
    assert lag(reader) == 29
    run_once(reader)
    assert lag(reader) == 0
    assert len(written()) == 29


def test_a_consumer_of_all_partitions_together(lanes, make_consumer):
    reader = make_consumer(lanes, handler=failing(), partitioned=False)
    publish_many(lanes, [Draft(value=i, key=str(i)) for i in range(8)])
    transfer_all()
    skip(reader, 1, reason="a test")
    assert (position_of(reader).position, position_of(reader).number) == (1, 1)
    assert run_once(reader) == 7


def test_what_the_filter_leaves_out_is_passed_with_it(things, make_consumer):
    reader = make_consumer(things, handler=failing(), types=["wanted"])
    fill_topic(things, "no", "no")
    fill_topic(things, "x", "y", type="wanted")
    with pytest.raises(Refused, match="its filter leaves it out"):
        skip(reader, 2, reason="a test")
    skip(reader, 3, reason="a test")
    assert position_of(reader).position == 3
    run_once(reader)
    assert written() == ["y"]


def test_an_event_on_which_the_filter_fails_is_one_to_skip(things, make_consumer):
    """A time without a zone can't be compared with one that has it."""
    reader = make_consumer(things, handler=failing(), where='$.at.datetime() >= "2025-01-01T00:00:00+00".datetime()')
    fill_topic(things, {"at": "2025-01-01T00:00:00+00"}, {"at": "2025-01-01"}, {"at": "2025-01-02T00:00:00+00"})
    run_once(reader)
    assert position_of(reader).stopped_at is not None
    assert position_of(reader).position == 0
    with pytest.raises(Refused, match="is at things/1, which comes before"):
        skip(reader, 2, reason="no zone")
    skip(reader, 1, reason="to get there")
    skip(reader, 2, reason="no zone")
    run_once(reader)
    assert written() == ["{'at': '2025-01-02T00:00:00+00'}"]


def test_what_comes_behind_an_event_on_which_the_filter_fails_is_not_next(things, make_consumer):
    reader = make_consumer(things, handler=failing(), where='$.at.datetime() >= "2025-01-01T00:00:00+00".datetime()')
    left_out, odd = {"at": "2024-01-01T00:00:00+00"}, {"at": "2025-01-01"}
    fill_topic(things, *[left_out] * 5, odd, odd, left_out, {"at": "2025-01-02T00:00:00+00"})
    for event_id in (7, 8, 9):
        with pytest.raises(Refused, match=f"is at things/6, which comes before things/{event_id}"):
            skip(reader, event_id, reason="a test")
    for event_id in (6, 7, 9):
        skip(reader, event_id, reason="no zone")
    assert position_of(reader).position == 9


def test_a_stream_is_refused_any_other_event(things, make_consumer):
    reader = make_consumer(things, handler=failing("b"), retry=PATIENT)
    fill_topic(things, "a", "b", "c")
    run_once(reader)
    before = positions(reader).values().get()
    for event_id, said in [
        (1, r"passed things/1 already.*events rewind reader --to 1"),
        (3, r"is at things/2, which comes before things/3.*events rewind reader --to ID"),
        (4, r"no event things/4 in the log"),
    ]:
        for dry_run in (True, False):
            with pytest.raises(Refused, match=said):
                skip(reader, event_id, reason="a test", dry_run=dry_run)
    with pytest.raises(ValueError, match="reason is empty"):
        skip(reader, 2, reason=" ")
    assert positions(reader).values().get() == before
    assert dead_letters(reader) == interventions("skip") == []


def test_a_dead_letter_that_waits_for_redrive_is_to_be_discarded(things, make_consumer):
    reader = make_consumer(things, handler=failing("a"), retry=Backoff(attempts=1))
    fill_topic(things, "a")
    run_once(reader)
    with pytest.raises(Refused, match="is a dead letter of consumer"):
        skip(reader, 1, reason="a test")
    redrive(models.DeadLetter.objects.of(reader))
    with pytest.raises(Refused, match=r"waits to be handled again.*events discard reader things/1"):
        skip(reader, 1, reason="a test")


def test_of_several_topics_one_has_to_be_named(things, lanes, make_consumer):
    reader = make_consumer(things, lanes, handler=failing(), retry=PATIENT)
    fill_topic(things, "a")
    with pytest.raises(Refused, match="Say which topic is meant"):
        skip(reader, 1, reason="a test")
    with pytest.raises(Refused, match="Say which topic is meant"):
        retry_now(reader, event_id=1)
    assert skip(reader, 1, topic=things, reason="a test").topic == "things"


def test_a_streaming_query_is_refused(things):
    topic = models.Topic.objects.get(name="things")
    query = models.Consumer.objects.create(name="query", topic=topic, mode="spark")
    try:
        for verb in (lambda: skip("query", 1, reason="a test"), lambda: retry_now("query")):
            with pytest.raises(Refused, match="streaming query of Spark"):
                verb()
    finally:
        query.delete()


def test_a_dry_run_changes_nothing(things, make_consumer):
    reader = make_consumer(things, handler=failing("a"), retry=PATIENT)
    fill_topic(things, "a")
    run_once(reader)
    before = positions(reader).values().get()
    assert skip(reader, 1, reason="a test", dry_run=True).attempts == 1
    assert positions(reader).values().get() == before
    assert dead_letters(reader) == interventions("skip") == []


def test_a_value_that_python_would_change_is_kept_to_the_byte(things, make_consumer):
    reader = make_consumer(things, handler=failing())
    value = '{"big": 1e400, "exact": 0.10000000000000000000000000001, "deep": ' + "[" * 3_000 + "]" * 3_000 + "}"
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT django_events_publish('things', %s::jsonb)", [value])
    transfer_all()
    skip(reader, 1, reason="a test")
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT d.value::text = e.value::text FROM django_events_deadletter AS d, django_events_event AS e"
            " WHERE e.id = 1 AND e.topic_id = %s",
            [models.Topic.objects.get(name="things").pk],
        )
        assert cursor.fetchone() == (True,)


def test_skip_waits_for_a_leased_partition_and_then_refuses(things, make_consumer, in_thread):
    reader = make_consumer(things, handler=failing())
    fill_topic(things, "a", "b")
    lease = lease_of(reader)
    with pytest.raises(InUse, match="still handling events after 0 s, by a test"):
        skip(reader, 1, reason="a test", wait=timedelta(0))
    with transaction.atomic(), pytest.raises(InUse, match="Outside of a transaction, skip waits"):
        skip(reader, 1, reason="a test")
    waiting = in_thread(skip, reader, 1, reason="a test")
    wait_until(lambda: models.Consumer.objects.get(name="reader").held_until is not None, what="a hold")
    lease.release()
    assert waiting.result(60)[1] == 1
    assert models.Consumer.objects.get(name="reader").held_until is None
    run_once(reader)
    assert written() == ["b"]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "dry_run"), [("stream", True), ("stream", False), ("queue", False)])
def test_a_log_that_a_session_has_locked_is_said(things, make_consumer, connect, monkeypatch, mode, dry_run):
    """As retention does for a moment, when it drops a segment."""
    reader = make_consumer(things, handler=failing(), mode=mode, start="beginning")
    fill_topic(things, "a")
    other_session, partition_of = connect(), skipping._partition
    topic_id = models.Topic.objects.get(name="things").pk

    def then_lock(*arguments):
        partition = partition_of(*arguments)
        other_session.execute(f"LOCK TABLE {log_table(topic_id)} IN ACCESS EXCLUSIVE MODE")
        return partition

    if mode == "queue":
        fill_some(queue_of(reader).subscription)
    monkeypatch.setattr(skipping, "_partition", then_lock)
    pid, role = other_session.info.backend_pid, other_session.info.user
    with pytest.raises(InUse, match=rf"locked.*, by session {pid} of {role} .*idle in transaction after LOCK T"):
        skip(reader, 1, reason="a test", dry_run=dry_run, wait=timedelta(seconds=2))
    other_session.rollback()


@pytest.mark.parametrize("mode", ["stream", "queue"])
@pytest.mark.parametrize("verb", [skip, retry_now])
def test_a_consumer_that_is_unregistered_in_this_moment(things, make_consumer, monkeypatch, mode, verb):
    reader = make_consumer(things, handler=failing(), mode=mode, start="beginning")
    fill_topic(things, "a")
    if mode == "queue":
        fill_some(queue_of(reader).subscription)
    declarations.consumers.discard(reader)
    module = skipping if verb is skip else retrying
    monkeypatch.setattr(module, "refuse_queries", lambda rows: unregister("reader"))
    if verb is retry_now and mode == "stream":
        assert retry_now("reader") == []
        return
    with pytest.raises(UnknownName, match="was unregistered or registered anew in this moment"):
        verb("reader", **({"event_id": 1, "reason": "a test"} if verb is skip else {}))


@pytest.mark.slow
def test_skip_beside_a_worker_that_fails_in_a_loop(things, make_consumer):
    reader = make_consumer(things, handler=failing("bad"), retry=BUSY)
    with working(reader, threads=2):
        fill_topic(things, *["a", "bad", "c", "bad", "e"])
        for event_id in (2, 4):
            wait_until(lambda: position_of(reader).attempted == event_id, what="an attempt")
            skip(reader, event_id, reason="a loop")
        wait_until(lambda: position_of(reader).position == 5, what="the end")
    assert written() == ["a", "c", "e"]
    assert [letter.event_id for letter in dead_letters(reader)] == [2, 4]
    position = position_of(reader)
    assert (position.handled, position.dead_lettered, position.number) == (3, 2, 5)


@pytest.mark.slow
def test_of_several_skips_at_once_one_does_it(things, make_consumer, in_thread):
    reader = make_consumer(things, handler=failing("a"), retry=PATIENT)
    fill_topic(things, "a", "b")
    run_once(reader)
    assert_one_of(in_thread, reader)
    assert position_of(reader).dead_lettered == 1
    run_once(reader)
    assert written() == ["b"]


def assert_one_of(in_thread, reader, many=6):
    barrier = threading.Barrier(many)

    def one():
        barrier.wait()
        try:
            return skip(reader, 1, reason="a test")
        except Refused:
            return None

    done = [future.result(60) for future in [in_thread(one) for _ in range(many)]]
    assert sum(one is not None for one in done) == 1
    assert len(dead_letters(reader)) == len(interventions("skip")) == 1


def test_who_froze_with_the_event_settles_nothing_and_its_neighbours_are_handled_one_by_one(things, make_consumer):
    attempts = []

    def handler(event):
        attempts.append((event.value, position_of(reader).attempted))

    reader = make_consumer(things, handler=handler, batch_size=None, transactional=False)
    fill_topic(things, *"abcd")
    frozen = lease_of(reader)
    batch = frozen.read()
    expire_leases(reader)
    skip(reader, 1, reason="it kills workers")
    with pytest.raises(LeaseLost), transaction.atomic():
        frozen.settle(batch.events)
    again = lease_of(reader)
    assert again.lost_token not in (None, frozen.token)
    serve_lease(again)
    assert attempts == [("b", 2), ("c", 3), ("d", 4)]  # each was counted before it began
    assert (position_of(reader).position, position_of(reader).handled) == (4, 3)


@pytest.mark.slow
def test_careful_until_stays(things, make_consumer):
    reader = make_consumer(things, handler=failing("a"), retry=PATIENT)
    fill_topic(things, *"abc")
    run_once(reader)
    positions(reader).update(careful_until=3)
    skip(reader, 1, reason="a test")
    assert position_of(reader).careful_until == 3


# Queues


@pytest.fixture
def make(things, make_queue):
    def make_one(**options):
        return make_queue(things, **{"handler": failing("bad"), "retry": PATIENT, **options})

    return make_one


@pytest.mark.parametrize("history", [None, timedelta(days=1)])
def test_a_queue_gives_up_on_what_failed(things, make, history):
    queue = make(history=history)
    fill_topic(things, "a", "bad", "c")
    hand = queue.claim(3)
    fail(hand, hand.events[1])
    finish(hand)
    consumer = queue.subscription.consumer
    assert skip(consumer, 2, reason="ticket 77", by="ada") == ("things", 2, 0, 1, "ValueError: bad")
    assert pending(queue) == []
    [letter] = dead_letters(consumer)
    assert (letter.value, letter.attempts, letter.error) == ("bad", 1, "Skipped by ada: ticket 77")
    assert position_of(consumer).dead_lettered == 1
    past = models.PastDelivery.objects.of(consumer).filter(event_id=2)
    assert [(o.outcome, o.attempts, o.worker) for o in past] == ([] if history is None else [("dead", 1, "ada")])


def test_a_queue_gives_up_on_what_no_worker_had_yet(things, make):
    queue = make(history=timedelta(days=1))
    fill_topic(things, "a", "b", "c")
    skip(queue.subscription.consumer, 2, reason="a test")
    assert pending(queue) == [1, 3]
    [past] = models.PastDelivery.objects.of("queue").filter(event_id=2)
    assert (past.outcome, past.attempts, past.delivered) == ("dead", 0, 0)
    assert past.first_at == past.processed_at
    run_once(queue.subscription.consumer)
    assert written() == ["a", "c"]


@pytest.mark.slow
def test_the_rest_of_the_key_goes_on(things, make):
    queue = make(ordered=True)
    fill_topic(things, "bad", "b", "c", key="k")
    run_once(queue.subscription.consumer)
    assert written() == []
    assert queue.claim(10) is None
    skip(queue.subscription.consumer, 1, reason="a test")
    run_once(queue.subscription.consumer)
    assert written() == ["b", "c"]


def test_one_in_the_middle_of_a_key_keeps_the_order(things, make):
    queue = make(ordered=True)
    fill_topic(things, "a", "b", "c", key="k")
    hand = queue.claim(1)
    skip(queue.subscription.consumer, 2, reason="a test")
    assert another(queue).claim(10) is None
    finish(hand)
    assert values(another(queue).claim(10)) == ["c"]


def test_a_delivery_that_waits_is_skipped_while_others_are_in_hand(things, make):
    queue = make()
    fill_topic(things, "a", "b")
    hand = queue.claim(1)
    skip(queue.subscription.consumer, 2, reason="a test", wait=timedelta(0))
    assert row_of(queue).held_until is None
    finish(hand)
    assert pending(queue) == []


def test_a_delivery_in_hand_is_waited_for(things, make, in_thread):
    queue = make()
    fill_topic(things, "bad", "b")
    consumer, hand = queue.subscription.consumer, queue.claim(1)
    with pytest.raises(InUse, match="still handling events after 0 s, by a test"):
        skip(consumer, 1, reason="a test", wait=timedelta(0))
    waiting = in_thread(skip, consumer, 1, reason="a test")
    wait_until(lambda: row_of(queue).held_until is not None, what="a hold")
    fail(hand, hand.events[0])
    assert waiting.result(60).attempts == 1
    assert row_of(queue).held_until is None


def test_a_skip_that_is_refused_in_a_transaction_keeps_no_lock(things, make, connect):
    """It would be in the way of the consumer's workers until the caller's transaction ends."""
    queue, other_session = make(), connect()
    fill_topic(things, "a")
    hand = queue.claim(1)
    with transaction.atomic():
        with pytest.raises(InUse, match="Outside of a transaction, skip waits"):
            skip(queue.subscription.consumer, 1, reason="a test")
        other_session.execute("SELECT FROM django_events_consumer WHERE name = 'queue' FOR UPDATE NOWAIT")
        other_session.execute("SELECT FROM django_events_position FOR UPDATE NOWAIT")
        other_session.execute("SELECT FROM django_events_deliverylease FOR UPDATE NOWAIT")
        other_session.rollback()
    finish(hand)


def test_a_delivery_that_was_handled_meanwhile_is_none_to_skip(things, make, in_thread):
    queue = make()
    fill_topic(things, "a")
    hand = queue.claim(1)
    waiting = in_thread(skip, queue.subscription.consumer, 1, reason="a test")
    wait_until(lambda: row_of(queue).held_until is not None, what="a hold")
    finish(hand)
    with pytest.raises(Refused, match="No delivery of things/1 waits"):
        waiting.result(60)
    assert dead_letters(queue.subscription.consumer) == []


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [False, True])
def test_skip_beside_workers_of_a_queue_that_fail_in_a_loop(things, make, ordered):
    queue = make(ordered=ordered, retry=BUSY)
    consumer = queue.subscription.consumer
    with working(consumer, threads=3):
        fill_topic(things, *["a", "bad", "c", "bad", "e"], key="k")
        for event_id in (2, 4):
            wait_until(
                lambda: deliveries(queue).filter(event_id=event_id, attempts__gt=0).exists(),
                what="an attempt",
            )
            skip(consumer, event_id, reason="a loop")
        wait_until(lambda: pending(queue) == [], what="the end")
    assert sorted(written()) == ["a", "c", "e"]
    assert [letter.event_id for letter in dead_letters(consumer)] == [2, 4]
    assert (position_of(consumer).handled, position_of(consumer).dead_lettered) == (3, 2)


def test_of_several_skips_of_a_delivery_one_does_it(things, make, in_thread):
    queue = make()
    fill_topic(things, "a", "b")
    assert_one_of(in_thread, queue.subscription.consumer)
    assert position_of(queue.subscription.consumer).dead_lettered == 1
    assert pending(queue) == [2]


def test_what_a_dead_worker_had_is_skipped_and_the_rest_of_its_hand_stays_careful(things, make):
    queue = make()
    fill_topic(things, "a", "b", "c")
    frozen = queue.claim(3)
    expire(frozen)
    skip(queue.subscription.consumer, 2, reason="it kills workers")
    with pytest.raises(LeaseLost):
        settle(frozen, *frozen.events)
    taken = another(queue).claim(10)
    assert taken.lost_token == frozen.token
    assert sorted(taken.attempts) == [1, 3]
    assert values(taken) == ["a", "c"]
    assert all(taken.is_careful(event) for event in taken.events)


@pytest.mark.slow
def test_what_is_to_be_filled_again_is_not_skipped(things, make):
    """It has a delivery still, and after a skip it would be made another."""
    queue = make()
    fill_topic(things, *"abcd")
    hand = queue.claim(2)
    finish(hand)
    rewind(queue.subscription.consumer, to=1)
    assert 3 in pending(queue)
    with pytest.raises(Refused, match="is not at things/3 yet: it catches up"):
        skip(queue.subscription.consumer, 3, reason="a test")
    run_once(queue.subscription.consumer)
    assert sorted(written()) == list("abcd")


def test_a_queue_that_stopped_before_an_event_is_not_waited_for(things, make):
    queue = make(where='$.at.datetime() >= "2025-01-01T00:00:00+00".datetime()')
    fill_topic(things, {"at": "2025-01-01"})
    assert position_of(queue.subscription.consumer).stopped_at is not None
    with pytest.raises(Refused, match=r"and stopped there\. Its filter fails on .*events rewind queue --to 2"):
        skip(queue.subscription.consumer, 1, reason="a test")


@pytest.mark.slow
def test_a_redriven_delivery_is_to_be_discarded(things, make):
    queue = make(retry=Backoff(attempts=1))
    fill_topic(things, "bad")
    consumer = queue.subscription.consumer
    run_once(consumer)
    redrive(models.DeadLetter.objects.of(consumer))
    with pytest.raises(Refused, match="events discard queue things/1"):
        skip(consumer, 1, reason="a test")
    assert len(dead_letters(consumer)) == 1


# Trying again


@pytest.mark.slow
def test_retry_tries_at_once_and_counts_anew(lanes, make_consumer):
    reader = make_consumer(lanes, handler=failing("bad"), retry=PATIENT)
    for lane in range(4):
        fill_topic(lanes, "bad", partition=lane)
    run_once(reader)
    assert retry_now(reader, event_id=2) == [("lanes", 1, 0)]
    assert position_of(reader, 1).attempts == 0
    assert position_of(reader, 0).attempts == 1
    assert retry_now(reader, by="ada") == [("lanes", 3, 0)]
    assert retry_now(reader) == []
    assert [(o.by, o.details) for o in interventions("retry_now")][1] == ("ada", {"partitions": 3})
    run_once(reader)
    assert set(positions(reader).values_list("attempts", flat=True)) == {1}


@pytest.mark.slow
def test_retry_locks_in_the_order_that_all_share(lanes, make_consumer, make_queue, in_thread, connect):
    """Else two who lock the same could wait for each other."""
    reader = make_consumer(lanes, handler=failing("bad"), retry=PATIENT)
    queue = make_queue(lanes, handler=failing("bad"), retry=PATIENT)
    for lane in range(3):
        fill_topic(lanes, "bad", partition=lane)
    run_once(reader, queue.subscription.consumer)
    for row in (positions(reader).filter(partition=0), deliveries(queue).filter(event_id=1)):
        row.update(error="its row moves behind the others")
    row = "visible_at = visible_at + interval '1 day'"  # nor is it the first by any index
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE django_events_delivery SET {row} WHERE event_id = 1")
    for consumer, first, others in [
        ("reader", positions(reader).filter(partition=0), positions(reader).filter(partition__in=[1, 2])),
        ("queue", deliveries(queue).filter(event_id=1), deliveries(queue).filter(event_id__gt=1)),
    ]:
        with transaction.atomic():
            list(first.select_for_update())
            retrying_beside = in_thread(retry_without_indexes, consumer)
            wait_until(lambda: waiting_for_a_lock(connect), what="a wait for the first")
            assert len(others.select_for_update(nowait=True)) == 2
        assert len(retrying_beside.result(60)) == 1


def retry_without_indexes(consumer):
    with connection.cursor() as cursor:
        cursor.execute("SET enable_indexscan = off; SET enable_bitmapscan = off")
    return retry_now(consumer)


def waiting_for_a_lock(connect):
    return connect().execute(WAITS_FOR_A_LOCK).fetchall()


def test_retry_lets_a_stopped_partition_try_again(things, make_consumer):
    reader = make_consumer(things, handler=failing("bad"), retry=Backoff(attempts=1), on_exhausted="stop")
    fill_topic(things, "bad")
    run_once(reader)
    assert retry_now(reader) == [("things", 1, 0)]
    assert position_of(reader).stopped_at is None


@pytest.mark.slow
def test_retry_of_deliveries(things, make):
    queue = make()
    fill_topic(things, *["bad"] * 3)
    consumer = queue.subscription.consumer
    run_once(consumer)
    assert retry_now(consumer, event_id=2) == [("things", 0, 1)]
    assert retry_now(consumer, event_id=2) == []
    assert retry_now(consumer) == [("things", 0, 2)]
    run_once(consumer)
    assert list(deliveries(queue).values_list("attempts", flat=True)) == [1, 1, 1]


@pytest.mark.slow
def test_a_paused_consumer_is_resumed_and_not_retried(things, make_consumer):
    reader = make_consumer(things, handler=failing("bad"), retry=PATIENT)
    fill_topic(things, "bad")
    run_once(reader)
    pause(reader)
    with pytest.raises(Refused, match="events resume reader"):
        retry_now(reader)
    assert position_of(reader).attempts == 1
    assert resume(reader)
    assert interventions("retry_now") == []


def test_a_worker_hears_of_a_retry(things, make_consumer):
    bad = ["bad"]
    reader = make_consumer(things, handler=lambda event: failing(*bad)(event), retry=PATIENT)
    with working(reader):
        fill_topic(things, "bad")
        tell_workers()
        wait_until(lambda: position_of(reader).attempts == 1, what="an attempt")
        bad.clear()
        retry_now(reader)
        wait_until(lambda: written() == ["bad"], what="another")


# All together


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stream", "queue", "ordered"])
@pytest.mark.few(1)
def test_nothing_is_doubled_or_lost_when_many_skip_beside_workers(things, make, make_consumer, in_thread, kind):
    events, skippers = 15, 3
    if kind == "stream":
        consumer = make_consumer(things, handler=failing(*range(0, events, 5)), retry=BUSY)
    else:
        queue = make(handler=failing(*range(0, events, 5)), retry=BUSY, ordered=kind == "ordered")
        consumer = queue.subscription.consumer
    over = threading.Event()

    def skip_all():
        done = []
        while not over.is_set():
            for event_id in range(1, events + 1, 5):  # those that fail, and would for ever
                try:
                    done.append(skip(consumer, event_id, reason="a race").event_id)
                except Refused:
                    continue
        return done

    publish_many(things, [Draft(value=value, key=str(value % 4)) for value in range(events)])
    transfer_all()
    with working(consumer, threads=3):
        futures = [in_thread(skip_all) for _ in range(skippers)]
        try:
            wait_until(lambda: len(written()) + len(dead_letters(consumer)) >= events, what="the end")
        finally:
            over.set()
        done = sorted(event_id for future in futures for event_id in future.result(60))

    assert done == [letter.event_id for letter in dead_letters(consumer)] == list(range(1, events + 1, 5))
    assert sorted(map(int, written())) == [value for value in range(events) if value % 5]
    assert len(interventions("skip")) == position_of(consumer).dead_lettered == len(done)
    assert position_of(consumer).handled == events - len(done)
    assert lag(consumer) == 0


def test_an_id_of_digits_is_one(things, make_consumer):
    reader = make_consumer(things, handler=failing("bad"), retry=PATIENT)
    fill_topic(things, "bad")
    run_once(reader)
    skipped = skip(reader, "1", reason="from a form")
    assert (skipped.event_id, skipped.attempts) == (1, 1)
    assert [(one.event_id, one.attempts) for one in dead_letters(reader)] == [(1, 1)]


def test_an_address_is_no_id_to_skip(things, make_consumer):
    make_consumer(things, handler=print)

    with pytest.raises(Invalid, match=r"event_id='things/7', expected the id of an event, like 1042 of orders/1042"):
        skip("reader", "things/7", reason="by its address")


@pytest.mark.parametrize("given", ["things/7", ["things/7"]])
def test_what_is_no_dead_letter_is_not_redriven(given):
    with pytest.raises(Invalid, match=r"^'things/7' is no dead letter\. Expected rows of DeadLetter"):
        redrive(given)
