"""Queue consumers with whole workers: claimed, handled and settled by threads, drained by tests, moved by people."""

from datetime import timedelta

import psycopg
import pytest
from django.db import connection, transaction
from django.db.models import F, Sum

from django_events import Backoff, Draft, Ignore, RetryLater, declarations, models, publish, publish_many, testing
from django_events.consuming.queues.filling import fill_some
from django_events.consuming.queues.server import QueueServer
from django_events.exceptions import InUse, Refused
from django_events.log.transfer import Transfer
from django_events.maintaining.pruning import prune_histories
from django_events.models import Consumer, DeadLetter, Delivery, DeliveryLease, PastDelivery
from django_events.observing.lag import standings
from django_events.observing.problems import find_problems
from django_events.operations import discard, lag, pause, redrive, resume, rewind, unregister
from tests.support.fix_consumers import dead_letters, position_of, run_once, working, write_order, written
from tests.support.fix_queues import (
    another,
    deliveries,
    end_pauses,
    expire,
    fail,
    fill_topic,
    finish,
    pending,
    queue_of,
    values,
)
from tests.support.fix_topics import transfer_all
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("transactional_db", "shelf")

ONCE = Backoff(attempts=1)


def write_value(event):
    write_order(event.value)


def standing_of(consumer):
    [standing] = [one for one in standings("default") if one.consumer == consumer.name]
    return standing


@pytest.fixture
def make(things, make_queue):
    """A queue consumer of `things` that writes an order for each event; its declaration."""

    def make_one(handler=write_value, **options):
        return make_queue(things, handler=handler, **options).subscription.consumer

    return make_one


# Workers


@pytest.mark.slow
@pytest.mark.requirement("D3", "D4", "X2")
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("ordered", [False, True])
def test_workers_handle_each_event_once(things, make, threads, ordered):
    consumer = make(ordered=ordered)
    publish_many(things, [Draft(value=i, key=str(i % 7)) for i in range(300)])
    transfer_all()

    assert run_once(consumer, threads=threads) == 300
    assert sorted(map(int, written())) == list(range(300))
    assert lag(consumer) == 0
    assert position_of(consumer).handled == 300
    assert not Delivery.objects.exists()
    assert not DeliveryLease.objects.exists()


@pytest.mark.requirement("S13")
def test_a_worker_that_has_nothing_to_do_writes_its_counts(things, make):
    consumer = make()
    with working(consumer, threads=2):
        fill_topic(things, 1, 2, 3)
        wait_until(lambda: len(written()) == 3)

        wait_until(lambda: position_of(consumer).handled == 3)
        wait_until(lambda: position_of(consumer).number >= 0 and not Delivery.objects.exists())


@pytest.mark.requirement("S13")
def test_counts_that_wait_for_a_lock_are_written_when_it_is_over(things, make, connect):
    consumer = make()
    other_session = connect()
    other_session.execute("SELECT 1 FROM django_events_position FOR UPDATE")
    with working(consumer):
        fill_topic(things, 1)
        wait_until(lambda: len(written()) == 1)
        assert position_of(consumer).handled == 0
        other_session.rollback()

        wait_until(lambda: position_of(consumer).handled == 1)


@pytest.mark.slow
@pytest.mark.requirement("S5")
def test_workers_keep_the_order_of_each_key(things, make):
    consumer = make(ordered=True)
    publish_many(things, [Draft(value=i, key=str(i % 3)) for i in range(150)])
    transfer_all()
    run_once(consumer, threads=4)

    for key in range(3):
        of_key = [int(value) for value in written() if int(value) % 3 == key]
        assert of_key == list(range(key, 150, 3))


def test_a_worker_that_waits_is_told_of_events(things, make):
    consumer = make()
    with working(consumer, threads=2):
        fill_topic(things, "a")
        wait_until(lambda: written() == ["a"], what="its order")
        fill_topic(things, "b", "c")
        wait_until(lambda: sorted(written()) == ["a", "b", "c"], what="their orders")


@pytest.mark.requirement("E10", "S6")
def test_an_event_that_fails_becomes_a_dead_letter_and_others_do_not_wait(things, make):
    def handler(event):
        if event.value == "bad":
            raise ValueError("bad")
        if event.value == "never":
            raise Ignore("not for us")
        write_value(event)

    consumer = make(handler, retry=Backoff(attempts=2, base=timedelta(hours=1), cap=timedelta(hours=1)))
    fill_topic(things, "a", "bad", "never", "b")
    assert run_once(consumer) == 3
    assert sorted(written()) == ["a", "b"]
    standing = standing_of(consumer)
    assert (standing.state, standing.attempted, standing.attempts, standing.lag) == ("retrying", 2, 1, 1)
    assert standing.error == "ValueError: bad"

    end_pauses(queue_of(consumer))
    assert run_once(consumer) == 1
    [letter] = dead_letters(consumer)
    assert (letter.event_id, letter.attempts, letter.error) == (2, 2, "ValueError: bad")
    position = position_of(consumer)
    assert (position.handled, position.failed, position.ignored, position.dead_lettered) == (2, 2, 1, 1)


def test_drain_serves_queues_in_the_transaction_of_a_test(things, make):
    def handler(event):
        write_value(event)
        if event.value == "first":
            publish(things, "second")

    consumer = make(handler)
    with transaction.atomic():
        publish(things, "first")
        assert testing.drain(consumer) == 2
        assert written() == ["first", "second"]
        transaction.set_rollback(True)
    assert written() == []
    assert not Delivery.objects.exists()


def test_drain_raises_what_a_handler_raises(things, make):
    def handler(event):
        raise ValueError("bad")

    consumer = make(handler)
    publish(things, 1)
    with pytest.raises(ValueError, match="bad") as caught:
        testing.drain(consumer)
    assert caught.value.__notes__ == ["Consumer 'queue', event things/1, attempt 1. Nothing of it is settled."]
    assert testing.drain(consumer, raise_errors=False) == 1
    assert [letter.attempts for letter in dead_letters(consumer)] == [3]


@pytest.mark.requirement("S5")
def test_drain_leaves_what_waits_for_others_of_its_key(things, make):
    def handler(event):
        if event.value == 1:
            raise RetryLater(after=timedelta(hours=1))
        write_value(event)

    consumer = make(handler, ordered=True)
    publish_many(things, [Draft(value=value, key="k") for value in (1, 2)] + [Draft(value=3, key="l")])
    assert testing.drain(consumer) == 1
    assert written() == ["3"]
    assert lag(consumer) == 2


@pytest.mark.requirement("S5")
def test_what_another_is_about_to_claim_is_passed_over(things, make_queue, connect):
    """Many heads at once are locked by a claim that is not committed yet: those behind them can be had."""
    queue = make_queue(things, ordered=True)
    publish_many(things, [Draft(value=value, key=str(value)) for value in range(150)])
    transfer_all()
    session = connect()
    session.execute("SELECT FROM django_events_delivery WHERE event_id <= 100 FOR UPDATE")
    assert values(queue.claim(30)) == list(range(100, 120))  # as many of the next that it looked at
    assert values(queue.claim(30)) == list(range(120, 150))


def test_waiting_writes_nothing(things, make, in_thread):
    def handler(event):
        raise RetryLater(after=timedelta(hours=1))

    consumer = make(handler, ordered=True)
    publish_many(things, [Draft(value=value, key="k") for value in (1, 2)])
    transfer_all()
    run_once(consumer)
    queue = queue_of(consumer)
    queue.claim(1)
    before = place_of_position()
    queue.flush()
    assert queue.claim(1) is None
    assert place_of_position() == before


def place_of_position():
    with connection.cursor() as cursor:
        cursor.execute("SELECT ctid, xmin FROM django_events_position WHERE partition = -1")
        return cursor.fetchall()


@pytest.mark.requirement("E10")
def test_each_further_attempt_is_counted_before_it_starts_also_behind_others(things, make):
    def handler(event):
        if event.value == "bad":
            seen.append((event.attempt, Delivery.objects.get(event_id=event.id).attempts))
            raise ValueError

    seen = []
    consumer = make(handler, retry=Backoff(attempts=3, base=timedelta(0)))
    fill_topic(things, "a", "bad", "b")
    queue = queue_of(consumer)
    hand = queue.claim(3)
    fail(hand, hand.events[1])
    hand.release()
    run_once(consumer)
    assert seen == [(2, 2), (3, 3)]


@pytest.mark.slow
def test_work_that_is_slow_is_not_taken_from_others(things, make, monkeypatch):
    """What a worker can't handle in its turn it gives back, and takes less the next time."""
    monkeypatch.setattr("django_events.consuming.handling.TURN", 0)
    monkeypatch.setattr("django_events.consuming.handling.TRANSACTION", 0)
    consumer = make(history=timedelta(days=1))
    fill_topic(things, *range(50))
    run_once(consumer)

    assert sorted(map(int, written())) == list(range(50))
    delivered = PastDelivery.objects.of(consumer).aggregate(Sum("delivered"))["delivered__sum"]
    assert delivered < 110  # all were in hand at first, and then one at a time


# From the log


@pytest.mark.requirement("D5", "S11")
@pytest.mark.parametrize(("start", "first"), [("beginning", 1), ("end", 8), (4, 4), ("a time", 4)])
def test_a_consumer_that_comes_later_begins_where_it_says(things, make, start, first):
    fill_topic(things, 1, 2, 3)
    fill_topic(things, *range(4, 8))
    begins = models.Event.objects.at(things, 4).logged_at if start == "a time" else start
    consumer = make(start=begins)
    fill_topic(things, 8, 9)
    run_once(consumer)

    assert sorted(map(int, written())) == list(range(first, 10))


@pytest.mark.slow
@pytest.mark.requirement("S11")
def test_a_dormant_consumer_has_no_more_than_it_may_and_catches_up_with_nothing_lost(things, make):
    consumer = make(max_pending=10)
    for start in range(0, 100, 5):
        fill_topic(things, *range(start, start + 5))
    row = Consumer.objects.get(name="queue")
    assert (row.live, row.filled_until) == (False, 10)
    assert Delivery.objects.count() == 10
    assert lag(consumer) == 100

    assert run_once(consumer) == 100
    assert sorted(map(int, written())) == list(range(100))
    row.refresh_from_db()
    assert row.live
    fill_topic(things, 100)
    assert run_once(consumer) == 1


def test_where_room_is_for_less_than_half_nothing_is_filled(things, make):
    consumer = make(max_pending=10, retry=Backoff(attempts=2, base=timedelta(hours=1)))
    fill_topic(things, *range(30))
    assert Delivery.objects.count() == 30  # they came in one batch
    queue = queue_of(consumer)
    finish(queue.claim(24))
    fill_topic(things, 31)
    assert fill_some(queue.subscription) is None
    finish(queue.claim(1))
    assert fill_some(queue.subscription).made == 1


@pytest.mark.requirement("P4")
def test_a_filter_that_fails_stops_its_consumer_and_no_other(things, make_queue, caplog):
    bad = make_queue(things, name="bad", where="$.at.datetime() > $.since.datetime()")
    good = [make_queue(things, name=f"good{n}", where="$.n > 1") for n in range(3)]
    fill_topic(things, {"n": 1}, {"n": 2})
    fill_topic(things, {"n": 3, "at": "2025-01-01", "since": "2025-01-01T00:00:00+00"}, {"n": 4})

    assert [pending(queue) for queue in good] == [[2, 3, 4]] * 3
    assert models.Event.objects.of(things).count() == 4
    row = Consumer.objects.get(name="bad")
    assert (row.live, row.filled_until) == (False, 2)
    standing = standing_of(bad.subscription.consumer)
    assert standing.state == "stopped"
    assert standing.error.startswith("Its filter fails on an event that comes behind things/2. cannot convert value")
    assert standing.position == 2
    [problem] = [one for one in find_problems("default", [], None, standings("default")) if one.kind == "stopped"]
    assert problem.remedy == "Repair the cause, then: manage.py events resume bad"
    assert "Consumer 'bad' stops, because its filter fails on an event that comes behind things/2." in caplog.text

    fill_topic(things, {"n": 5})
    assert resume("bad")
    run_once(bad.subscription.consumer)  # it comes to the same event again, and now one knows which
    assert position_of(bad.subscription.consumer).stopped_at is not None
    assert standing_of(bad.subscription.consumer).error.startswith("Its filter fails on things/3. cannot convert")
    assert [pending(queue) for queue in good] == [[2, 3, 4, 5]] * 3


def test_a_delivery_that_is_there_already_stops_its_consumer_and_not_the_transfer(things, make_queue):
    queue = make_queue(things)
    Delivery.objects.create(consumer_id=queue.subscription.consumer_id, event_id=1, received_at="2025-01-01T00:00Z")
    fill_topic(things, 1, 2)
    assert models.Event.objects.of(things).count() == 2
    assert not Consumer.objects.get(name="queue").live


@pytest.mark.requirement("P4")
def test_a_filter_that_is_too_deep_for_a_value_stops_no_other_consumer(things, make_topic, make_queue, connect):
    """PostgreSQL has another kind of error for it than for a value that doesn't fit."""
    make_queue(things, where="$.** > 5")
    session = connect()
    session.execute(
        "INSERT INTO django_events_bufferedevent (topic_id, value)"
        " SELECT django_events_open('things'), (repeat('{\"a\":', %(n)s) || '1' || repeat('}', %(n)s))::jsonb",
        {"n": deepest(session)},
    )
    session.commit()
    fill_topic(make_topic("others"), 1)
    assert models.Event.objects.of(things).count() == 1
    assert not Consumer.objects.get(name="queue").live


def deepest(session):
    """How deep a value may be, nearly: the server's stack is the limit, and filters need more of it."""
    for depth in range(20_000, 0, -500):
        try:
            session.execute("SELECT (repeat('{\"a\":', %(n)s) || '1' || repeat('}', %(n)s))::jsonb", {"n": depth})
        except psycopg.OperationalError:
            session.rollback()
        else:
            return depth
    raise AssertionError


@pytest.mark.requirement("S11")
def test_a_rewind_of_a_bounded_consumer_finds_room(things, make):
    consumer = make(max_pending=10)
    fill_topic(things, *range(1, 9))
    finish(queue_of(consumer).claim(2))
    rewind(consumer, to=1)
    assert lag(consumer) == 8
    assert run_once(consumer) == 8
    assert sorted(map(int, written())) == list(range(1, 9))


# Moved by people


@pytest.mark.requirement("S9", "S11")
@pytest.mark.parametrize("ordered", [False, True])
def test_a_rewind_delivers_again_what_was_handled_and_once_what_was_not(things, make, ordered):
    consumer = make(ordered=ordered)
    fill_topic(things, *range(1, 11))
    queue = queue_of(consumer)
    finish(queue.claim(6))
    [move] = rewind(consumer, to=4)
    assert (move.before, move.after, move.events) == (7, 4, 3)
    assert not Consumer.objects.get(name="queue").live
    fill_topic(things, 11)
    run_once(consumer)

    assert sorted(map(int, written())) == list(range(4, 12))
    assert Consumer.objects.get(name="queue").live


@pytest.mark.requirement("S9")
def test_a_rewind_to_the_end_leaves_out_what_waits(things, make):
    consumer = make()
    fill_topic(things, *range(1, 6))
    [move] = rewind(consumer, to="end")
    assert (move.before, move.after, move.events) == (1, 6, -5)
    fill_topic(things, 6)
    run_once(consumer)
    assert written() == ["6"]


@pytest.mark.slow
@pytest.mark.requirement("S9")
def test_a_second_rewind_knows_what_the_first_has_not_delivered_yet(things, make):
    consumer = make()
    fill_topic(things, *range(1, 11))
    run_once(consumer)
    fill_topic(things, 11, 12)
    rewind(consumer, to=1)
    rewind(consumer, to=5)
    rewind(consumer, to=3)
    run_once(consumer)
    assert sorted(map(int, written()[10:])) == list(range(3, 13))


@pytest.mark.requirement("S9", "S5")
def test_after_a_rewind_no_key_overtakes_itself(things, make, monkeypatch):
    monkeypatch.setattr("django_events.consuming.queues.filling.AT_ONCE", 10)
    consumer = make(ordered=True)
    publish_many(things, [Draft(value=i, key="k") for i in range(1, 41)])
    transfer_all()
    queue = queue_of(consumer)
    finish(queue.claim(30))
    rewind(consumer, to=1)
    run_once(consumer, threads=3)
    assert list(map(int, written())) == list(range(1, 41))


@pytest.mark.requirement("S9")
def test_a_rewind_waits_for_what_is_in_hand(things, make, in_thread):
    consumer = make()
    fill_topic(things, 1, 2)
    hand = queue_of(consumer).claim(1)
    with pytest.raises(InUse, match="still handling events after 0 s, by a test"):
        rewind(consumer, to=1, wait=timedelta(0))
    waiting = in_thread(rewind, consumer, to=1)
    wait_until(lambda: Consumer.objects.get(name="queue").held_until is not None, what="a hold")
    finish(hand)
    assert [move.after for move in waiting.result(60)] == [1]
    run_once(consumer)
    assert sorted(written()) == ["1", "2"]


@pytest.mark.slow
@pytest.mark.requirement("S9", "S11")
@pytest.mark.parametrize("serve", [run_once, testing.drain])
@pytest.mark.parametrize("bounded", [False, True])
def test_after_a_rewind_all_is_handled_also_what_is_there_still(things, make, monkeypatch, serve, bounded):
    if not bounded:
        monkeypatch.setattr("django_events.consuming.queues.filling.AT_ONCE", 3)
    consumer = make(max_pending=4 if bounded else None)
    fill_topic(things, *range(1, 9))
    finish(queue_of(consumer).claim(2))
    rewind(consumer, to=1)
    serve(consumer)
    assert list(map(int, written())) == list(range(1, 9))


@pytest.mark.slow
@pytest.mark.parametrize("serve", [run_once, testing.drain])
def test_a_filter_that_leaves_out_much_is_no_end(things, make, monkeypatch, serve):
    monkeypatch.setattr("django_events.consuming.queues.filling.AT_ONCE", 1)
    monkeypatch.setattr("django_events.consuming.queues.filling.LONGEST", 0)
    fill_topic(things, *range(20))
    fill_topic(things, "wanted", type="wanted")
    consumer = make(types=["wanted"], live=False)
    serve(consumer)
    assert written() == ["wanted"]


def test_a_rewind_frees_what_a_dead_worker_had(things, make):
    consumer = make(ordered=True)
    publish_many(things, [Draft(value=i, key="k") for i in range(1, 5)])
    transfer_all()
    queue = queue_of(consumer)
    finish(queue.claim(2))
    expire(queue.claim(2))
    rewind(consumer, to=1)
    run_once(consumer)
    assert list(map(int, written())) == [1, 2, 3, 4]


def test_a_paused_consumer_gathers_and_goes_on(things, make):
    consumer = make()
    pause(consumer)
    fill_topic(things, 1, 2)
    assert run_once(consumer) == 0
    standing = standing_of(consumer)
    assert (standing.state, standing.lag) == ("paused", 2)
    resume(consumer)
    assert run_once(consumer) == 2


def test_resume_tries_again_what_waits(things, make):
    cured = []

    def handler(event):
        if not cured:
            raise ValueError

    consumer = make(handler, retry=Backoff(attempts=2, base=timedelta(hours=1)))
    fill_topic(things, 1)
    run_once(consumer)
    cured.append(True)
    assert run_once(consumer) == 0
    assert resume(consumer)
    assert resume(consumer) == []
    assert run_once(consumer) == 1


@pytest.mark.requirement("E12")
def test_unregistering_leaves_nothing_behind(things, make_queue, monkeypatch):
    monkeypatch.setattr("django_events.operating.orphans.AT_ONCE", 4)
    queue, other = make_queue(things), make_queue(things, name="other", history=timedelta(days=1))
    fill_topic(things, *range(10))
    hand = queue.claim(1)
    declarations.consumers.discard(queue.subscription.consumer)
    with pytest.raises(InUse, match="Consumer queue of things is handling events now, by a test"):
        unregister("queue")
    hand.release()
    assert unregister("queue", dry_run=True)
    assert len(pending(queue)) == 10
    unregister("queue")
    assert pending(queue) == []
    assert len(pending(other)) == 10
    fill_topic(things, 11)
    assert len(pending(other)) == 11


# Dead letters, again


def failing(cured):
    def handler(event):
        if event.value in ("bad", "worse") and not cured:
            raise ValueError("bad")
        write_value(event)

    return handler


@pytest.mark.slow
@pytest.mark.requirement("S6")
@pytest.mark.parametrize("ordered", [False, True])
def test_a_dead_letter_is_handled_again(things, make, ordered):
    cured = []
    consumer = make(failing(cured), retry=ONCE, ordered=ordered)
    publish_many(things, [Draft(value=value, key="k") for value in ("a", "bad", "b")])
    transfer_all()
    assert run_once(consumer) == 3
    assert redrive(DeadLetter.objects.of(consumer)) == 1
    assert run_once(consumer) == 1
    assert [(letter.redrive_at, letter.attempts) for letter in dead_letters(consumer)] == [(None, 1)]  # failed again

    cured.append(True)
    redrive(DeadLetter.objects.of(consumer))
    assert run_once(consumer) == 1
    assert dead_letters(consumer) == []
    assert sorted(written()) == ["a", "b", "bad"]
    assert lag(consumer) == 0


@pytest.mark.requirement("S6", "S5")
def test_a_dead_letter_waits_while_its_key_is_in_hand(things, make):
    cured = []
    consumer = make(failing(cured), retry=ONCE, ordered=True)
    publish_many(things, [Draft(value=value, key="k") for value in ("bad", "b", "c")])
    transfer_all()
    queue = queue_of(consumer)
    hand = queue.claim(1)
    fail(hand, hand.events[0])
    held = queue.claim(1)
    assert values(held) == ["b"]
    cured.append(True)
    redrive(DeadLetter.objects.of(consumer))
    assert run_once(consumer) == 0
    finish(held)
    run_once(consumer)
    assert sorted(written()) == ["bad", "c"]


@pytest.mark.requirement("S6")
def test_of_a_key_in_order_the_oldest_dead_letter_comes_first(things, make):
    cured = []
    consumer = make(failing(cured), retry=ONCE, ordered=True)
    publish_many(things, [Draft(value=value, key="k") for value in ("bad", "worse")])
    transfer_all()
    run_once(consumer)
    with pytest.raises(Refused):
        redrive(DeadLetter.objects.get(event_id=2))
    cured.append(True)
    redrive(DeadLetter.objects.of(consumer))
    run_once(consumer, threads=3)
    assert written() == ["bad", "worse"]


def test_without_order_any_dead_letter_can_be_first(things, make):
    cured = []
    consumer = make(failing(cured), retry=ONCE)
    publish_many(things, [Draft(value=value, key="k") for value in ("bad", "worse")])
    transfer_all()
    run_once(consumer)
    cured.append(True)
    redrive(DeadLetter.objects.get(event_id=2))
    run_once(consumer)
    assert written() == ["worse"]
    assert [letter.event_id for letter in dead_letters(consumer)] == [1]


def test_a_dead_letter_whose_event_the_log_dropped_is_handled_from_its_copy(things, make):
    cured = [True]
    consumer = make(failing(cured), retry=ONCE)
    fill_topic(things, "a")
    run_once(consumer)
    row = Consumer.objects.get(name="queue")
    now = models.Event.objects.at(things, 1).logged_at
    DeadLetter.objects.create(
        consumer=row,
        event_id=77,
        partition=0,
        number=77,
        type="t",
        key=None,
        value="gone",
        metadata={},
        published_at=now,
        logged_at=now,
        attempts=1,
        error="x",
    )
    redrive(DeadLetter.objects.of(consumer))
    assert run_once(consumer) == 1
    assert written() == ["a", "gone"]


def test_a_dead_letter_that_is_on_its_way_again_can_be_discarded(things, make):
    consumer = make(failing([]), retry=Backoff(attempts=1))
    fill_topic(things, "bad")
    run_once(consumer)
    redrive(DeadLetter.objects.of(consumer))
    hand = QueueServer(queue_of(consumer)).claim()
    assert values(hand) == ["bad"]
    with pytest.raises(InUse, match="The dead letter of event 1 is being handled again in this moment"):
        discard(DeadLetter.objects.of(consumer), reason="a test")
    hand.release()
    discard(DeadLetter.objects.of(consumer), reason="a test")
    assert not Delivery.objects.exists()
    assert run_once(consumer) == 0


# What they keep


@pytest.mark.requirement("D3", "S3")
def test_the_history_tells_who_handled_what_and_how_long_it_took(things, make):
    cured = []
    consumer = make(failing(cured), retry=Backoff(attempts=2, base=timedelta(0)), history=timedelta(days=7))
    fill_topic(things, "a", "bad")
    assert list(Delivery.objects.of(consumer).values_list("event_id", flat=True)) == [1, 2]
    run_once(consumer)

    handled, dead = PastDelivery.objects.of(consumer, topic=things).timed()
    assert (handled.event_id, handled.outcome, handled.attempts, handled.delivered) == (1, "handled", 1, 1)
    assert (dead.event_id, dead.outcome, dead.attempts) == (2, "dead", 2)
    assert handled.received_at <= handled.first_at <= handled.last_at <= handled.processed_at
    assert timedelta(0) <= handled.waited <= handled.took
    assert handled.worker.endswith("/1")
    assert PastDelivery.objects.at(things, 2).get() == dead
    assert not Delivery.objects.of(consumer).exists()


def test_what_is_older_than_the_history_is_deleted(things, make):
    consumer = make(history=timedelta(days=7))
    fill_topic(things, *range(6))
    run_once(consumer)
    past = PastDelivery.objects.of(consumer)
    past.filter(event_id__lte=5).order_by().update(processed_at=F("processed_at") - timedelta(days=8))
    fill_topic(things, 7)
    run_once(consumer)
    assert prune_histories("default", seconds=60, at_once=2) == 5
    assert list(past.values_list("event_id", flat=True)) == [6, 7]


def test_without_a_history_nothing_is_kept(things, make):
    consumer = make()
    fill_topic(things, 1)
    run_once(consumer)
    assert not PastDelivery.objects.exists()


@pytest.mark.requirement("S4")
def test_a_delay_keeps_events_back_for_a_while(things, make):
    consumer = make(delay=timedelta(hours=1))
    fill_topic(things, 1)
    assert run_once(consumer) == 0
    [delivery] = Delivery.objects.of(consumer)
    assert delivery.visible_at == models.Event.objects.at(things, 1).logged_at + timedelta(hours=1)
    end_pauses(queue_of(consumer))
    assert run_once(consumer) == 1


@pytest.mark.requirement("D6")
@pytest.mark.parametrize("zone", ["UTC", "America/Chicago", "Asia/Kolkata"])
def test_times_are_the_same_in_every_zone(things, make, zone):
    with connection.cursor() as cursor:
        cursor.execute("SET TIME ZONE %s", [zone])
    try:
        consumer = make(delay=timedelta(seconds=0.001), retry=Backoff(attempts=2, base=timedelta(hours=1)))
        fill_topic(things, 1)
        wait_until(lambda: run_once(consumer) == 1, what="the delay to be over")
    finally:
        connection.close()


# Declared otherwise


def test_a_consumer_does_not_change_its_mode(things, make, make_consumer):
    make()
    expected = r"is declared with mode='stream', at .*, and was registered with mode='queue'"
    with pytest.raises(Refused, match=expected) as refused:
        make_consumer(things, name="queue", handler=print)
    way_out = "Declare mode='queue' again, or give it another name, with start=1 to go on where this one is."
    assert way_out in str(refused.value)


@pytest.mark.requirement("S5")
def test_a_consumer_that_gets_an_order_knows_the_keys_of_what_it_has(things, make):
    make()
    publish_many(things, [Draft(value=i, key=str(i % 2)) for i in range(10)])
    transfer_all()
    one, other = queue_of(declarations.consumers.get("queue")).claim(1), queue_of(declarations.consumers.get("queue"))
    former = other.claim(2)
    consumer = make(ordered=True)  # while workers have some of both keys in hand
    assert queue_of(consumer).claim(10) is None, "each key waits for what is in hand"
    expire(former)
    expire(one)  # dead: what they had is for any worker
    assert {delivery.key for delivery in Delivery.objects.of(consumer)} == {"0", "1"}
    run_once(consumer, threads=3)
    for key in range(2):
        done = [int(value) for value in written() if int(value) % 2 == key]
        in_hand = [value for value in (0, 1, 2) if value % 2 == key]  # of two workers that knew of no order
        assert sorted(done[: len(in_hand)]) == in_hand
        assert done[len(in_hand) :] == [value for value in range(3, 10) if value % 2 == key]
    make()


def test_workers_with_another_idea_of_the_order_get_nothing(things, make):
    old = queue_of(make())
    fill_topic(things, 1)
    make(ordered=True)
    assert old.claim(1) is None
    assert another(old).claim(1) is None


@pytest.mark.requirement("D2")
def test_another_filter_is_for_what_comes_from_then_on(things, make):
    make(types=["a"])
    fill_topic(things, 1, type="a")
    fill_topic(things, 2, type="b")
    consumer = make(types=["b.*", "b"])
    fill_topic(things, 3, type="b.x")
    fill_topic(things, 4, type="a")
    assert list(Delivery.objects.of(consumer).values_list("event_id", flat=True)) == [1, 3]
    assert Transfer("default").move() == 0
    assert deliveries(queue_of(consumer)).count() == 2
