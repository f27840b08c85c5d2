"""Deliveries of queue consumers: where they come from, and whose they are."""

import random
import threading
from dataclasses import replace
from datetime import timedelta

import psycopg
import pytest
from django.db import transaction

from django_events import Backoff, Draft, Ignore, declarations, models, publish, publish_many
from django_events.consuming import registration
from django_events.consuming.failures import judge
from django_events.consuming.queues.filling import fill_some
from django_events.exceptions import LeaseLost
from django_events.log.transfer import Transfer
from django_events.models.functions import ClockTimestamp
from tests.support.fix_queues import (
    another,
    deliveries,
    expire,
    fail,
    fill_topic,
    finish,
    pending,
    settle,
    values,
)
from tests.support.fix_topics import transfer_all
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("transactional_db")


# Where they come from


@pytest.mark.requirement("D2", "D3")
def test_a_live_consumer_gets_a_delivery_with_each_event(things, make_queue):
    one, two, dormant = (make_queue(things, name=name, live=name != "dormant") for name in ("one", "two", "dormant"))
    fill_topic(things, *range(3))

    assert pending(one) == pending(two) == [1, 2, 3]
    assert pending(dormant) == []
    first = deliveries(one)[0]
    assert (first.token, first.visible_at, first.attempts, first.delivered, first.key) == (None, None, 0, 0, None)
    assert first.received_at >= models.Event.objects.at(things, 1).logged_at


@pytest.mark.requirement("D3")
def test_a_batch_that_rolls_back_leaves_no_delivery(things, make_queue):
    queue = make_queue(things)
    publish(things, 1)
    with pytest.raises(RuntimeError), transaction.atomic():
        assert Transfer("default").move() == 1
        assert pending(queue) == [1]
        raise RuntimeError
    assert pending(queue) == []
    transfer_all()
    assert pending(queue) == [1]


@pytest.mark.slow
@pytest.mark.requirement("S12", "P4")
@pytest.mark.parametrize(
    ("filters", "wanted"),
    [
        ({}, [1, 2, 3, 4, 5, 6]),
        ({"types": ["order.placed"]}, [1, 2, 6]),
        ({"types": ["order.*"]}, [1, 2, 3, 6]),
        ({"types": ["order.>", "user"]}, [1, 2, 3, 4, 6]),
        ({"keys": ["eu.1"]}, [1, 3]),
        ({"keys": ["eu.*", "us.>"]}, [1, 2, 3, 4]),
        ({"where": "$.total > 10"}, [2, 4]),
        ({"types": ["order.placed"], "keys": ["eu.>"], "where": "$.total > 1"}, [1, 2]),
        ({"types": ["nothing"]}, []),
    ],
)
def test_filters_decide_the_same_in_the_trigger_and_from_the_log(things, make_queue, filters, wanted):
    live = make_queue(things, name="live", **filters)
    twin = make_queue(things, name="twin", **filters)
    publish_many(
        things,
        [
            Draft(value={"total": 5}, type="order.placed", key="eu.1"),
            Draft(value={"total": 50}, type="order.placed", key="eu.2"),
            Draft(value={}, type="order.changed", key="eu.1"),
            Draft(
                value={"total": 11}, type="order.x.y" if "order.>" in filters.get("types", []) else "user", key="us.1.2"
            ),
            Draft(value=[1], type="", key=None),
            Draft(body=b"\0", type="order.placed", key=None),
        ],
    )
    transfer_all()
    late = make_queue(things, name="late", **filters)

    assert pending(live) == pending(twin) == pending(late) == wanted


def test_several_topics_in_one_batch_reach_their_own_consumers(make_topic, make_queue):
    one, two, other = (make_topic(name) for name in ("one", "two", "other"))
    queues = [make_queue(topic, name=f"of_{topic.name}", types=["t.*"]) for topic in (one, two)]
    for topic in (two, one, other, two):
        publish(topic, 1, type="t.x")
    transfer_all()

    assert [pending(queue) for queue in queues] == [[1], [1, 2]]


@pytest.mark.requirement("D5")
def test_a_consumer_is_filled_under_load_without_a_gap_and_without_a_double(things, make_queue, in_thread, monkeypatch):
    monkeypatch.setattr("django_events.consuming.queues.filling.AT_ONCE", 50)
    fill_topic(things, *range(500))
    queue = make_queue(things, live=False)
    stop = threading.Event()

    def publish_and_move():
        worker = Transfer("default")
        while not stop.is_set():
            publish_many(things, [Draft(value=i) for i in range(20)])
            worker.move()
        worker.move()

    def fill_it():
        while fill_some(queue.subscription):
            pass

    busy = in_thread(publish_and_move)
    for future in [in_thread(fill_it) for _ in range(3)]:
        future.result(60)
    wait_until(lambda: models.Consumer.objects.get(name="queue").live, what="a live consumer")
    enough = models.Event.objects.of(things).count() + 100
    wait_until(lambda: models.Event.objects.of(things).count() > enough, what="events behind that")
    stop.set()
    busy.result(60)
    transfer_all()

    assert pending(queue) == list(range(1, models.Event.objects.of(things).count() + 1))


# Whose they are


@pytest.mark.slow
@pytest.mark.requirement("S1", "S2", "D4")
def test_each_delivery_is_in_one_hand(things, make_queue, in_thread):
    queue = make_queue(things)
    fill_topic(things, *range(20_000))
    together = threading.Barrier(20)
    dice = random.Random(3)
    sizes = [dice.randint(1, 200) for _ in range(20)]

    def work(most):
        own, got = another(queue, f"worker {most}"), []
        together.wait(60)
        while hand := own.claim(most):
            got += values(hand)
            finish(hand)
        return got

    got = [value for future in [in_thread(work, most) for most in sizes] for value in future.result(60)]
    assert sorted(got) == list(range(20_000))
    assert pending(queue) == []
    assert not models.DeliveryLease.objects.exists()


def test_a_claim_says_who_has_what_and_how_often_it_was_delivered(things, make_queue):
    queue = make_queue(things)
    fill_topic(things, "a", "b", "c")
    hand = queue.claim(2)
    assert values(hand) == ["a", "b"]
    assert [event.attempt for event in hand.events] == [1, 1]
    [lease] = models.DeliveryLease.objects.all()
    assert (lease.token, lease.holder, lease.event_ids) == (hand.token, "a test", [1, 2])
    hand.release()
    assert values(another(queue).claim(1)) == ["a"]

    first = deliveries(queue)[0]
    assert first.delivered == 2
    assert first.first_at < first.last_at
    assert first.attempts == 0


@pytest.mark.requirement("S1", "S3")
def test_a_lost_lease_settles_nothing(things, make_queue):
    queue, other = make_queue(things), None
    fill_topic(things, "a", "b")
    hand = queue.claim(2)
    expire(hand)
    other = another(queue)
    taken = other.claim(1)
    assert values(taken) == ["a", "b"]  # all of it: one of them may have ended the worker
    assert taken.lost_token == hand.token
    assert all(taken.is_careful(event) for event in taken.events)

    with pytest.raises(LeaseLost, match="Consumer 'queue' of 'things' lost its lease of 2 deliveries"):
        finish(hand)
    with pytest.raises(LeaseLost):
        hand.release()
    with pytest.raises(LeaseLost):
        hand.count_attempt(hand.events[0])
    assert pending(queue) == [1, 2]
    finish(taken)
    assert pending(queue) == []
    with pytest.raises(LeaseLost):  # twice is harmless
        settle(taken, *hand.events)


@pytest.mark.requirement("E10", "S4")
def test_what_fails_comes_again_after_its_pause_and_holds_up_no_other(things, make_queue):
    queue = make_queue(things, retry=Backoff(attempts=3, base=timedelta(hours=1)))
    fill_topic(things, *"abc")
    hand = queue.claim(3)
    fail(hand, hand.events[0])
    assert values(hand) == ["b", "c"]
    finish(hand)

    assert queue.claim(3) is None
    [row] = deliveries(queue)
    assert (row.event_id, row.token, row.attempts, row.error) == (1, None, 1, "ValueError: bad")
    assert row.visible_at - row.last_at > timedelta(minutes=5)
    deliveries(queue).update(visible_at=ClockTimestamp())
    hand = queue.claim(3)
    assert [event.attempt for event in hand.events] == [2]
    assert hand.is_careful(hand.events[0])
    assert hand.count_attempt(hand.events[0]).attempt == 2


@pytest.mark.requirement("S6")
def test_what_fails_for_the_last_time_is_a_dead_letter_and_an_ignored_one_is_nothing(things, make_queue):
    queue = make_queue(things, retry=Backoff(attempts=1))
    fill_topic(things, *"abc")
    hand = queue.claim(3)
    fail(hand, hand.events[0])
    fail(hand, hand.events[0], Ignore("not for us"))
    finish(hand)

    assert pending(queue) == []
    [letter] = models.DeadLetter.objects.all()
    assert (letter.event_id, letter.value, letter.attempts, letter.error) == (1, "a", 1, "ValueError: bad")


def test_a_paused_consumer_gives_nothing_away(things, make_queue):
    queue = make_queue(things)
    fill_topic(things, "a")
    models.Consumer.objects.update(paused_at=ClockTimestamp())
    assert queue.claim(1) is None
    models.Consumer.objects.update(paused_at=None)
    assert values(queue.claim(1)) == ["a"]


def test_a_worker_goes_on_behind_what_it_had_and_comes_back_for_what_was_left(things, make_queue):
    queue, other = make_queue(things), None
    fill_topic(things, *range(10))
    other = another(queue)
    first, second = queue.claim(3), other.claim(3)
    assert values(second) == [3, 4, 5]
    first.release()
    finish(second)
    assert values(other.claim(4)) == [6, 7, 8, 9]
    assert values(other.claim(4)) == [0, 1, 2]


def test_the_position_moves_up_to_the_oldest_delivery(things, make_queue, monkeypatch):
    monkeypatch.setattr("django_events.consuming.queues.deliveries.ROUND", 0)
    queue = make_queue(things)
    fill_topic(things, *range(5))
    hand = queue.claim(3)
    settle(hand, hand.events[0], hand.events[2])
    queue.claim(1)
    assert models.Position.objects.get(consumer__name="queue").position == 1
    finish(hand)
    queue.claim(1)
    assert models.Position.objects.get(consumer__name="queue").position == 3


def test_under_a_backlog_that_stays_what_was_given_back_is_not_left_behind(things, make_queue, monkeypatch):
    monkeypatch.setattr("django_events.consuming.queues.deliveries.ROUND", 0)
    queue = make_queue(things)
    fill_topic(things, *range(10))
    hand = queue.claim(2)
    behind = queue.claim(2)
    hand.release()
    finish(behind)
    fill_topic(things, *range(10, 20))
    assert values(queue.claim(2)) == [0, 1]


def test_what_waited_does_not_lead_a_worker_past_what_did_not(things, make_queue):
    queue = make_queue(things, retry=Backoff(attempts=3, base=timedelta(0)))
    fill_topic(things, *range(10))
    deliveries(queue).filter(event_id=9).update(visible_at=ClockTimestamp())
    assert values(queue.claim(2)) == [0, 8]
    assert values(queue.claim(2)) == [1, 2]


@pytest.mark.requirement("X8")
def test_a_hand_that_was_taken_over_stays_suspicious_when_it_is_given_back(things, make_queue):
    queue = make_queue(things)
    fill_topic(things, *range(3))
    expire(queue.claim(3))
    again = queue.claim(3)
    settle(again, *again.next(2))
    again.release()

    third = queue.claim(3)
    assert values(third) == [1, 2]
    assert all(third.is_careful(event) for event in third.events)


@pytest.mark.requirement("S8", "X8")
@pytest.mark.parametrize("settled", [False, True])
def test_a_worker_that_froze_with_deliveries_is_ended_and_keeps_no_other_waiting(things, make_queue, connect, settled):
    """Between its last statement and COMMIT too, when it has locked its lease."""
    queue = make_queue(things)
    fill_topic(things, *range(3))
    hand = queue.claim(3)
    expire(hand)
    frozen = connect()
    frozen.execute("SELECT pg_advisory_xact_lock(%s)", [hand.token])
    if settled:
        frozen.execute("SELECT FROM django_events_deliverylease WHERE token = %s FOR UPDATE", [hand.token])
    taken = another(queue).claim(3)

    assert values(taken) == [0, 1, 2]
    with pytest.raises(psycopg.errors.AdminShutdown):
        frozen.execute("SELECT 1")


def test_leases_of_which_nothing_is_left_are_no_reason_to_give_up(things, make_queue):
    queue = make_queue(things)
    fill_topic(things, *range(3))
    for event_id in (1, 2):
        hand = queue.claim(1)
        deliveries(queue).filter(event_id=event_id).delete()
        expire(hand)

    assert values(queue.claim(1)) == [2]
    assert models.DeliveryLease.objects.count() == 1


@pytest.mark.requirement("D5")
def test_a_change_of_the_declaration_leaves_what_workers_wrote(things, make_queue, monkeypatch):
    queue = make_queue(things, live=False)
    fill_topic(things, *range(3))
    save = models.Consumer.save

    def save_late(row, **options):
        monkeypatch.setattr(models.Consumer, "save", save)
        models.Consumer.objects.filter(pk=row.pk).update(filled_until=3)
        save(row, **options)

    monkeypatch.setattr(models.Consumer, "save", save_late)
    declared = replace(queue.subscription.consumer, types=("another",))
    declarations.consumers.add(declared)
    try:
        registration.sync("default")
    finally:
        declarations.consumers.discard(declared)
    row = models.Consumer.objects.get(name="queue")
    assert (row.types, row.filled_until) == (["another"], 3)


# In order of their keys


@pytest.fixture
def ordered(things, make_queue):
    return make_queue(things, ordered=True)


def draft(key, value):
    return Draft(value=value, key=key)


@pytest.mark.requirement("S5")
def test_a_key_is_in_one_hand_and_others_go_on(things, ordered):
    publish_many(things, [draft("k", 1), draft("l", 2), draft("k", 3), draft(None, 4), draft("m", 5), draft("k", 6)])
    transfer_all()
    hand = ordered.claim(1)
    assert values(hand) == [1]
    other = ordered.claim(10)
    assert values(other) == [2, 4, 5]
    assert ordered.claim(10) is None
    finish(hand)
    assert values(ordered.claim(10)) == [3, 6]


@pytest.mark.requirement("S5")
def test_what_fails_gives_back_those_of_its_key_behind_it_and_keeps_them_waiting(things, make_queue):
    queue = make_queue(things, ordered=True, retry=Backoff(attempts=3, base=timedelta(hours=1)))
    publish_many(things, [draft("k", 1), draft("l", 2), draft("k", 3), draft(None, 4), draft("k", 5)])
    transfer_all()
    hand = queue.claim(10)
    assert values(hand) == [1, 2, 3, 4, 5]
    failure = judge(hand.subscription.consumer, hand.events[2], ValueError("bad"), may_stop=False)
    settle(hand, *hand.events[:2], failure=failure)
    assert values(hand) == [4]
    finish(hand)

    assert queue.claim(10) is None
    deliveries(queue).filter(visible_at__isnull=False).update(visible_at=ClockTimestamp())
    again = queue.claim(10)
    assert values(again) in ([3], [3, 5])
    finish(again)
    assert [values(hand) for hand in iter(lambda: queue.claim(10), None)] in ([], [[5]])


@pytest.mark.requirement("S5")
def test_far_behind_a_key_that_waits_others_are_found(things, ordered, monkeypatch):
    monkeypatch.setattr("django_events.consuming.queues.deliveries.SMALLEST_WINDOW", 5)
    publish_many(things, [draft("busy", i) for i in range(300)] + [draft("late", "late")])
    transfer_all()
    hand = ordered.claim(1)
    assert values(hand) == [0]
    assert values(ordered.claim(1)) == ["late"]
    assert ordered.claim(1) is None


@pytest.mark.slow
@pytest.mark.requirement("S5", "X8")
def test_the_order_of_keys_survives_failures_crashes_and_many_hands(things, make_queue, in_thread):
    """Three workers, five hot keys: they settle, fail, give back, and die with something in hand."""
    queue = make_queue(things, ordered=True, retry=Backoff(attempts=1_000, base=timedelta(0)))
    total, done, lock = 2_400, [], threading.Lock()

    def produce(number):
        dice = random.Random(number)
        worker = Transfer("default")
        for start in range(0, total // 3, 20):
            publish_many(things, [draft(f"k{dice.randint(0, 4)}", [number, start + i]) for i in range(20)])
            worker.move()
        while worker.move() or worker.left:  # another one may have held the topic's head just then
            pass

    def consume(number):
        dice = random.Random(number)
        own = another(queue, f"worker {number}")
        while len(done) < total:
            if (hand := own.claim(dice.choice([1, 5, 50]))) is None:
                continue
            while hand.next(50):
                fate = dice.random()
                if fate < 0.05:
                    expire(hand)
                    break
                if fate < 0.1:
                    hand.release()
                    break
                if fate < 0.2:
                    fail(hand, hand.events[0])
                    continue
                some = hand.events[: dice.randint(1, 10)]
                with transaction.atomic():
                    hand.take_lock()
                    settlement = hand.settle(some)
                    with lock:
                        done.extend((event.key, event.id) for event in some)
                hand.settled(settlement)

    futures = [in_thread(consume, n) for n in range(3)] + [in_thread(produce, n) for n in range(3)]
    for future in futures:
        future.result(120)
    assert len(set(done)) == len(done) == total
    for key in {key for key, _ in done}:
        ids = [id for k, id in done if k == key]
        assert ids == sorted(ids)
    assert pending(queue) == []
