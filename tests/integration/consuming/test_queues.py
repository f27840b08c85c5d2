"""Handlers of queue consumers: exactly once with the ORM, each event by itself where something goes wrong."""

from datetime import timedelta

import pytest
from django.db import connection

from django_events import Backoff, Draft, Ignore, RetryLater, models, publish_many
from django_events.consuming.handlers import BoundHandler
from django_events.consuming.handling import log_failure
from django_events.consuming.queues.server import serve_deliveries
from django_events.exceptions import LeaseLost
from tests.support.fix_consumers import write_order, written
from tests.support.fix_queues import deliveries, end_pauses, expire, pending
from tests.support.fix_topics import transfer_all

pytestmark = pytest.mark.usefixtures("transactional_db", "shelf")

THREE_AT_ONCE = Backoff(attempts=3, base=timedelta(0))


def fill(topic, *values, keys=None):
    publish_many(topic, [Draft(value=value, key=key) for value, key in zip(values, keys or values, strict=True)])
    transfer_all()


def serve(queue, most=100, **options):
    """Claim and serve until nothing can be had; returns how many events were passed."""
    handler, passed = BoundHandler(queue.subscription.consumer), 0
    while hand := queue.claim(most):
        passed += serve_deliveries(hand, handler, on_failure=log_failure(hand), **options)
    return passed


@pytest.fixture(params=[None, 4], ids=["single", "batches"])
def make(request, things, make_queue):
    """A queue consumer whose handler gets one event or a list, made of a function of one event."""

    def make_one(function, **options):
        def handler(given):
            for event in given if isinstance(given, list) else [given]:
                function(event)

        return make_queue(things, batch_size=request.param, **{"handler": handler, "retry": THREE_AT_ONCE, **options})

    return make_one


@pytest.mark.requirement("X2", "S1")
def test_each_event_is_handled_once(things, make):
    queue = make(lambda event: write_order(event.value))
    fill(things, *"abcdefghij")

    assert serve(queue) == 10
    assert sorted(written()) == list("abcdefghij")
    assert pending(queue) == []
    assert not models.DeliveryLease.objects.exists()


@pytest.mark.requirement("E10", "S6", "X2")
def test_an_event_that_fails_is_tried_by_itself_until_it_is_a_dead_letter(things, make):
    def function(event):
        write_order(event.value)
        calls.append((event.value, event.attempt))
        if event.value == "bad":
            raise ValueError("bad")

    calls = []
    queue = make(function)
    fill(things, "a", "b", "bad", "c", "d")

    assert serve(queue) == 5
    assert sorted(written()) == ["a", "b", "c", "d"]
    assert {attempt for value, attempt in calls if value == "bad"} == {1, 2, 3}
    [letter] = models.DeadLetter.objects.all()
    assert (letter.value, letter.attempts, letter.error) == ("bad", 3, "ValueError: bad")
    assert "in function" in letter.traceback
    assert pending(queue) == []


def test_a_handler_can_decide_by_itself(things, make):
    def function(event):
        if event.value == "later":
            raise RetryLater(after=timedelta(hours=1))
        if event.value == "never":
            raise Ignore("not for us")
        write_order(event.value)

    queue = make(function)
    fill(things, "a", "later", "never", "b")

    assert serve(queue) == 3
    assert sorted(written()) == ["a", "b"]
    [row] = deliveries(queue)
    assert (row.event_id, row.attempts, row.token) == (2, 1, None)
    assert not models.DeadLetter.objects.exists()


@pytest.mark.requirement("S5")
def test_a_key_waits_for_its_event_that_fails_and_others_go_on(things, make):
    def function(event):
        if event.value == "k2" and not cured:
            raise ValueError
        write_order(event.value)

    cured = []
    queue = make(function, ordered=True, retry=Backoff(attempts=9, base=timedelta(hours=1), cap=timedelta(hours=1)))
    fill(things, "k1", "l1", "k2", "l2", "k3", "l3", keys="klklkl")
    serve(queue)
    assert written() == ["k1", "l1", "l2", "l3"] or sorted(written()) == ["k1", "l1", "l2", "l3"]
    assert pending(queue) == [3, 5]

    cured.append(True)
    end_pauses(queue)
    serve(queue)
    assert [value for value in written() if value.startswith("k")] == ["k1", "k2", "k3"]
    assert pending(queue) == []


@pytest.mark.requirement("S3", "X2")
def test_a_handler_whose_lease_was_taken_over_leaves_nothing(things, make):
    def function(event):
        write_order(event.value)
        if not taken:
            expire(hand)
            taken.append(models.DeliveryLease.objects.update(token=7))

    taken = []
    queue = make(function)
    fill(things, "a", "b")
    hand = queue.claim(2)
    with pytest.raises(LeaseLost):
        serve_deliveries(hand, BoundHandler(queue.subscription.consumer), on_failure=log_failure(hand))
    assert written() == []


@pytest.mark.requirement("E10", "X8")
def test_what_ended_its_worker_runs_out_of_attempts_and_its_neighbours_do_not(things, make):
    def function(event):
        if event.value == "bad":
            raise KeyboardInterrupt  # as good as the end of the process: nothing is settled
        write_order(event.value)

    queue = make(function)
    fill(things, "a", "b", "bad", "c", "d")
    handler = BoundHandler(queue.subscription.consumer)
    for _ in range(10):
        if (hand := queue.claim(100)) is None:
            break
        try:
            serve_deliveries(hand, handler, on_failure=log_failure(hand))
        except KeyboardInterrupt:
            expire(hand)

    assert sorted(written()) == ["a", "b", "c", "d"]
    [letter] = models.DeadLetter.objects.all()
    assert (letter.value, letter.attempts) == ("bad", 3)
    assert letter.error.startswith("WorkerEnded: ")
    assert pending(queue) == []


@pytest.mark.requirement("E13")
def test_a_worker_that_stops_gives_back_what_it_has_not_begun(things, make_queue):
    def handler(event):
        write_order(event.value)
        stopping.append(True)

    stopping = []
    queue = make_queue(things, handler=handler)
    fill(things, "a", "b", "c")
    hand = queue.claim(3)
    handler = BoundHandler(queue.subscription.consumer)
    assert serve_deliveries(hand, handler, on_failure=log_failure(hand), stopping=lambda: bool(stopping)) == 1

    assert written() == ["a"]
    assert list(deliveries(queue).values_list("event_id", "token", "attempts")) == [(2, None, 0), (3, None, 0)]


@pytest.mark.requirement("S1")
def test_without_a_transaction_what_was_done_stays_and_is_settled_call_by_call(things, make):
    def function(event):
        assert not connection.in_atomic_block
        write_order(event.value)
        if event.value == "bad" and event.attempt == 1:
            raise ValueError

    queue = make(function, transactional=False)
    fill(things, "a", "bad", "c")

    assert serve(queue) == 3
    assert written().count("bad") == (3 if queue.subscription.consumer.batch_size else 2)  # once more with its list
    assert set(written()) == {"a", "bad", "c"}
    assert pending(queue) == []


def in_pairs(things, make_queue, function, **options):
    """A queue consumer that gets two events in each call, and the list of its calls."""
    calls = []

    def handler(events):
        calls.append([event.value for event in events])
        for event in events:
            write_order(event.value)
        function(events)

    options = {"retry": THREE_AT_ONCE, "history": timedelta(days=1), **options}
    return make_queue(things, batch_size=2, handler=handler, **options), calls


def test_several_lists_are_settled_together(things, make_queue):
    queue, calls = in_pairs(things, make_queue, lambda events: None)
    fill(things, *"abcde")
    assert serve(queue) == 5
    assert calls == [["a", "b"], ["c", "d"], ["e"]]
    assert sorted(written()) == list("abcde")
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(DISTINCT xmin::text) FROM django_events_pastdelivery")
        assert cursor.fetchone() == (1,), "one transaction"


@pytest.mark.requirement("X2", "S3")
def test_a_list_that_fails_undoes_those_before_it_and_only_its_own_events_come_one_by_one(things, make_queue):
    def function(events):
        if "bad" in [event.value for event in events]:
            raise ValueError("bad")

    queue, calls = in_pairs(things, make_queue, function)
    fill(things, "a", "b", "c", "bad", "d", "e")
    assert serve(queue) == 6
    assert calls[:5] == [["a", "b"], ["c", "bad"], ["a", "b"], ["c"], ["bad"]]
    assert ["d", "e"] in calls
    assert sorted(written()) == ["a", "b", "c", "d", "e"]
    assert [letter.attempts for letter in models.DeadLetter.objects.all()] == [3]


def test_a_second_list_that_fails_while_those_before_a_first_are_repeated(things, make_queue):
    def function(events):
        values = [event.value for event in events]
        if "bad" in values or (len(calls) > 3 and "worse" in values):
            raise ValueError("bad")

    queue, calls = in_pairs(things, make_queue, function)
    fill(things, "a", "b", "worse", "c", "d", "bad", "e")
    assert serve(queue) == 7
    assert calls[:5] == [["a", "b"], ["worse", "c"], ["d", "bad"], ["a", "b"], ["worse", "c"]]
    assert calls[5] == ["a", "b"]
    assert sorted(written()) == list("abcde")
    assert sorted(letter.value for letter in models.DeadLetter.objects.all()) == ["bad", "worse"]


def test_lists_are_settled_after_a_while_and_the_next_ones_go_on(things, make_queue, monkeypatch):
    monkeypatch.setattr("django_events.consuming.handling.TRANSACTION", 0.0)
    queue, calls = in_pairs(things, make_queue, lambda events: None)
    fill(things, *"abcde")
    assert serve(queue) == 5
    assert calls == [["a", "b"], ["c", "d"], ["e"]]
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(DISTINCT xmin::text) FROM django_events_pastdelivery")
        assert cursor.fetchone() == (3,)


def test_without_a_transaction_each_list_is_settled_by_itself(things, make_queue):
    left = []
    queue, calls = in_pairs(things, make_queue, lambda events: left.append(len(pending(queue))), transactional=False)
    fill(things, *"abcde")
    assert serve(queue) == 5
    assert calls == [["a", "b"], ["c", "d"], ["e"]]
    assert left == [5, 3, 1]


def test_without_a_transaction_a_list_that_fails_leaves_those_before_it_settled(things, make_queue):
    def function(events):
        if "bad" in [event.value for event in events]:
            raise ValueError("bad")

    queue, calls = in_pairs(things, make_queue, function, transactional=False)
    fill(things, "a", "b", "c", "bad", "d", "e")
    assert serve(queue) == 6
    assert calls[:4] == [["a", "b"], ["c", "bad"], ["c"], ["bad"]]
    assert calls.count(["a", "b"]) == 1
    assert [letter.value for letter in models.DeadLetter.objects.all()] == ["bad"]
