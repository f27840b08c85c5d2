"""`claim()`: deliveries for code that is no handler."""

from contextlib import suppress
from datetime import timedelta

import pytest
from django.db import connection, transaction

from django_events import Backoff, Draft, Ignore, claim, models, publish_many, sql
from django_events.consuming.programs.claiming import SQL as CLAIMING_SQL
from django_events.exceptions import LeaseLost, Refused, UnknownName
from django_events.log.transfer import Transfer
from django_events.models.functions import ClockTimestamp
from tests.support.fix_consumers import dead_letters, run_once, write_order, written
from tests.support.fix_queues import deliveries, fill_topic, pending, queue_of
from tests.support.fix_topics import transfer_all

pytestmark = pytest.mark.usefixtures("transactional_db", "shelf")


@pytest.fixture
def queue(things, make_queue):
    made = make_queue(things)
    fill_topic(things, *"abcde")
    return made


def values_of(claimed):
    return [event.value for event in claimed]


@pytest.mark.requirement("S1", "S2", "S3")
def test_what_is_acked_is_done_and_the_rest_comes_again(queue):
    with claim("queue", 3) as claimed:
        assert values_of(claimed) == ["a", "b", "c"]
        assert len(claimed) == 3
        claimed.ack(*claimed.events[:2])
        claimed.ack(claimed.events[0])  # twice is harmless
        with claim("queue", 10) as others:
            assert values_of(others) == ["d", "e"]
        assert pending(queue) == [3, 4, 5]
    with claim("queue", 10) as claimed:
        assert values_of(claimed) == ["c", "d", "e"]
        assert [event.attempt for event in claimed] == [1, 1, 1]
        claimed.ack(*claimed)
    with claim("queue") as claimed:
        assert not claimed
        assert list(claimed) == []
    assert not models.DeliveryLease.objects.exists()
    assert models.Position.objects.get(consumer__name="queue").handled == 5


@pytest.mark.requirement("S4")
def test_what_is_nacked_comes_again_at_once_or_after_a_while(queue):
    with claim("queue", 2) as claimed:
        first, second = claimed
        claimed.nack(first)
        claimed.nack(second, after=timedelta(hours=1))
        with claim("queue") as again:
            assert [(event.value, event.attempt) for event in again] == [("a", 2)]
            again.ack(*again)
    row = deliveries(queue).get(event_id=2)
    assert (row.attempts, row.error) == (1, "RetryLater: to be tried again after 1:00:00")
    assert timedelta(minutes=59) < row.visible_at - row.last_at < timedelta(minutes=61)


def test_to_ack_nothing_changes_nothing(things, make_queue):
    make_queue(things)
    with claim("queue") as claimed:
        claimed.ack(*claimed)
        with pytest.raises(Refused, match="Nothing was claimed here"):
            claimed.extend()


@pytest.mark.requirement("S4", "S5")
def test_behind_one_that_failed_those_of_its_key_are_given_back(things, make_queue):
    make_queue(things, ordered=True)
    publish_many(things, [Draft(value=value, key=value[0]) for value in ("k1", "l1", "k2")])
    transfer_all()
    with claim("queue", 3) as claimed:
        k1, l1, k2 = claimed
        claimed.nack(k1, after=timedelta(hours=1), error=ValueError("bad"))
        assert list(claimed) == [k1, l1]
        with pytest.raises(Refused, match="was given back, because an earlier event of its key failed"):
            claimed.ack(k2)
        claimed.ack(l1)
    row = models.Delivery.objects.get(event_id=1)
    assert row.error == "ValueError: bad"
    assert row.visible_at - row.last_at > timedelta(minutes=59)


def test_one_that_failed_before_comes_by_itself_and_holds_up_no_others(queue):
    with claim("queue") as claimed:
        claimed.nack(*claimed)
    with claim("queue", 5) as claimed:
        assert [(event.value, event.attempt) for event in claimed] == [("a", 2)]
        with claim("queue", 5) as others:
            assert values_of(others) == ["b", "c", "d", "e"]


def test_a_stopped_consumer_gives_nothing_away(queue):
    models.Position.objects.filter(consumer__name="queue").update(stopped_at=ClockTimestamp())
    with claim("queue") as claimed:
        assert not claimed


def test_a_claim_in_a_transaction_that_goes_on_stops_no_worker(queue, in_thread):
    consumer = queue.subscription.consumer
    with claim("queue") as claimed:
        claimed.nack(*claimed, error=Ignore("x"))
    row = models.Consumer.objects.get(name="queue")
    event = models.Event.objects.at("things", 1)
    models.DeadLetter.objects.create(
        consumer=row,
        event_id=1,
        partition=0,
        number=1,
        type="",
        value="a",
        metadata={},
        attempts=1,
        error="x",
        published_at=event.published_at,
        logged_at=event.logged_at,
        redrive_at=ClockTimestamp(),
    )
    with transaction.atomic(), claim("queue") as claimed:
        assert in_thread(run_once, consumer).result(60) == 3
        claimed.ack(*claimed)
    assert run_once(consumer) == 1


@pytest.mark.requirement("S6")
def test_an_error_follows_the_schedule_up_to_a_dead_letter(things, make_queue):
    queue = make_queue(things, retry=Backoff(attempts=2, base=timedelta(0)))
    fill_topic(things, "a")
    for _ in range(2):
        with claim("queue") as claimed:
            claimed.nack(*claimed, error=ValueError("bad"))
    assert pending(queue) == []
    [letter] = dead_letters(queue.subscription.consumer)
    assert (letter.attempts, letter.error) == (2, "ValueError: bad")


def test_what_is_ignored_is_settled(queue):
    with claim("queue", 5) as claimed:
        claimed.ignore(claimed.events[0], "not for us")
        claimed.ack(*claimed.events[1:])
    assert pending(queue) == []
    assert models.Position.objects.get(consumer__name="queue").ignored == 1


@pytest.mark.requirement("X2", "S3")
def test_an_ack_is_part_of_the_transaction_it_is_in(queue):
    with claim("queue", 2) as claimed:
        with transaction.atomic():
            write_order("a")
            claimed.ack(claimed.events[0])
        with pytest.raises(RuntimeError), transaction.atomic():
            write_order("b")
            claimed.ack(claimed.events[1])
            raise RuntimeError
    assert written() == ["a"]
    assert pending(queue) == [2, 3, 4, 5]
    with claim("queue", 5) as claimed:  # it comes by itself: it is not known what went wrong
        assert [(event.value, event.attempt) for event in claimed] == [("b", 1)]
        claimed.ack(*claimed)
    with claim("queue", 5) as claimed:
        assert values_of(claimed) == ["c", "d", "e"]


@pytest.mark.requirement("X2")
def test_all_of_it_can_be_one_transaction(queue):
    with transaction.atomic():
        with claim("queue", 2) as claimed:
            claimed.ack(*claimed)
        transaction.set_rollback(True)
    assert len(pending(queue)) == 5
    with transaction.atomic(), claim("queue", 2) as claimed:
        claimed.ack(*claimed)
    assert pending(queue) == [3, 4, 5]


@pytest.mark.requirement("E10", "X8")
def test_after_an_error_events_come_one_by_one_each_attempt_counted(things, make_queue):
    queue = make_queue(things, retry=Backoff(attempts=2, base=timedelta(0)))
    fill_topic(things, *"ab")
    with pytest.raises(RuntimeError), claim("queue", 2):
        raise RuntimeError
    seen = []
    for _ in range(10):
        with pytest.raises(RuntimeError), claim("queue", 2) as claimed:
            if not claimed:
                raise RuntimeError
            seen += [(event.value, event.attempt) for event in claimed]
            raise RuntimeError
    assert seen == [("a", 1), ("a", 2), ("b", 1), ("b", 2)]
    assert [letter.error.split(":")[0] for letter in dead_letters(queue.subscription.consumer)] == ["WorkerEnded"] * 2
    assert pending(queue) == []


@pytest.mark.requirement("S1", "S3")
def test_who_lost_the_lease_settles_nothing(queue):
    with claim("queue", 2) as claimed:
        models.DeliveryLease.objects.update(leased_until=ClockTimestamp())
        with claim("queue", 2) as other:
            assert values_of(other) == ["a"]
            with pytest.raises(LeaseLost):
                claimed.ack(claimed.events[0])
            with pytest.raises(LeaseLost):
                claimed.extend()
            other.ack(*other)
    assert pending(queue) == [2, 3, 4, 5]


@pytest.mark.requirement("S4")
def test_a_lease_is_as_long_as_one_says(queue):
    def left():
        return models.DeliveryLease.objects.get().leased_until - models.Delivery.objects.get(event_id=1).last_at

    with claim("queue", lease=timedelta(minutes=10)) as claimed:
        assert timedelta(minutes=9) < left() < timedelta(minutes=11)
        claimed.extend(timedelta(hours=2))
        assert timedelta(minutes=119) < left() < timedelta(minutes=121)
        claimed.extend()
        assert timedelta(minutes=9) < left() < timedelta(minutes=11)


DAY, SECOND = timedelta(days=1), timedelta(seconds=1)


@pytest.mark.parametrize("lease", [timedelta(0), SECOND * 0.999, DAY + SECOND, timedelta.max, -DAY])
def test_a_lease_that_is_too_short_or_too_long_is_refused(queue, lease):
    """Before, the server refused it by a constraint of a table, or it was over when it began."""
    expected = "has lease=.*, expected a timedelta from 1 second to 1 day"
    with pytest.raises(ValueError, match=rf"^claim\(\) {expected}"), claim("queue", lease=lease):
        pass
    with claim("queue", lease=DAY) as claimed:
        with pytest.raises(ValueError, match=rf"^extend\(\) {expected}"):
            claimed.extend(lease)
        claimed.ack(*claimed)


@pytest.mark.requirement("D4")
@pytest.mark.parametrize("ordered", [False, True])
def test_only_what_was_received_in_a_window(things, make_queue, ordered):
    queue = make_queue(things, ordered=ordered)
    publish_many(things, [Draft(value=n, key=str(n)) for n in range(3)])
    transfer_all()
    between = deliveries(queue)[0].received_at + timedelta(hours=1)
    deliveries(queue).filter(event_id=3).update(received_at=between + timedelta(hours=1))
    with claim("queue", 9, received_until=between) as claimed:
        assert values_of(claimed) == [0, 1]
        with claim("queue", 9, received_until=between) as others:
            assert not others
    with claim("queue", 9, received_since=between) as claimed:
        assert values_of(claimed) == [2]


@pytest.mark.requirement("S5")
def test_in_order_the_window_does_not_let_a_key_overtake_itself(things, make_queue):
    queue = make_queue(things, ordered=True)
    publish_many(things, [Draft(value=n, key="k") for n in range(3)])
    transfer_all()
    now = deliveries(queue)[0].received_at
    deliveries(queue).exclude(event_id=1).update(received_at=now + timedelta(hours=1))
    with claim("queue", 9, received_since=now + timedelta(minutes=1)) as claimed:
        assert not claimed


def test_what_was_claimed_elsewhere_is_refused(queue, make_queue, things):
    with claim("queue") as one, claim("queue") as other, pytest.raises(Refused, match="was not claimed here"):
        one.ack(*other)


def test_a_stream_has_nothing_to_claim(things, make_consumer):
    make_consumer(things, name="reader", handler=print)
    with pytest.raises(Refused, match="Consumer 'reader' is a stream"), claim("reader"):
        pass
    with pytest.raises(UnknownName), claim("rader"):
        pass


def test_a_topic_that_it_does_not_read_is_refused(queue):
    with (
        pytest.raises(Refused, match="Consumer 'queue' doesn't read topic 'others'"),
        claim("queue", topic="others"),
    ):
        pass
    with pytest.raises(ValueError, match="most=0"), claim("queue", 0):
        pass


@pytest.mark.requirement("D5")
def test_what_is_not_there_yet_is_made_from_the_log(things, make_queue):
    fill_topic(things, *"ab")
    queue = make_queue(things, live=False)
    with claim(queue.subscription.consumer, 5) as claimed:
        assert values_of(claimed) == ["a", "b"]
    assert queue_of(queue.subscription.consumer).claim(5) is not None


@pytest.mark.requirement("X2", "S5")
@pytest.mark.parametrize("ordered", [False, True])
def test_an_ack_that_was_rolled_back_can_be_done_again(things, make_queue, ordered):
    queue = make_queue(things, ordered=ordered)
    fill_topic(things, *"abc", key="k")
    with claim("queue", 2) as claimed:
        first, second = claimed
        for attempt in (1, 2):
            with suppress(RuntimeError), transaction.atomic():
                write_order(first.value)
                claimed.ack(first)
                if attempt == 1:
                    raise RuntimeError
        with suppress(RuntimeError), transaction.atomic():
            claimed.ack(second)
            raise RuntimeError
    assert pending(queue) == [2, 3]
    run_once(queue.subscription.consumer)
    assert written() == ["a"]
    assert pending(queue) == []
    assert not models.DeliveryLease.objects.exists()


@pytest.mark.requirement("X2", "S3")
def test_who_lost_the_lease_after_a_rollback_is_told(queue):
    with claim("queue") as claimed:
        [event] = claimed
        with suppress(RuntimeError), transaction.atomic():
            claimed.ack(event)
            raise RuntimeError
        models.DeliveryLease.objects.update(leased_until=ClockTimestamp())
        assert run_once(queue.subscription.consumer) == 5
        with pytest.raises(LeaseLost), transaction.atomic():
            write_order("twice")
            claimed.ack(event)
    assert written() == []


def test_an_ack_is_harmless_twice_in_one_transaction_too(queue):
    with claim("queue") as claimed, transaction.atomic():
        claimed.ack(*claimed)
        claimed.ack(*claimed)
    assert pending(queue) == [2, 3, 4, 5]


@pytest.mark.parametrize("how", ["paused", "a window"])
def test_nothing_is_made_from_the_log_in_vain(things, make_queue, how):
    fill_topic(things, *"abc")
    queue = make_queue(things, live=False)
    window = {}
    if how == "paused":
        models.Consumer.objects.filter(name="queue").update(paused_at=ClockTimestamp())
    else:
        window = {"received_until": models.Event.objects.at(things, 1).logged_at}
    with claim("queue", **window) as claimed:
        assert not claimed
    assert pending(queue) == []


@pytest.mark.requirement("X2")
@pytest.mark.parametrize("how", ["another ack", "nothing more"])
def test_what_was_rolled_back_is_not_left_behind(queue, how):
    with claim("queue", 2) as claimed:
        first, second = claimed
        with suppress(RuntimeError), transaction.atomic():
            claimed.ack(first)
            raise RuntimeError
        if how == "another ack":
            claimed.ack(second)
    assert run_once(queue.subscription.consumer) == (4 if how == "another ack" else 5)
    assert pending(queue) == []


@pytest.mark.requirement("S5")
def test_a_loop_that_nacks_goes_on_with_other_keys(things, make_queue):
    make_queue(things, ordered=True)
    publish_many(things, [Draft(value=value, key=value[0]) for value in ("k1", "l1", "k2", "k3")])
    transfer_all()
    seen = []
    for _ in range(2):
        with claim("queue", 4) as claimed:
            for event in claimed:
                seen.append((event.value, event.attempt))
                if event.value == "k1" and event.attempt == 1:
                    claimed.nack(event)
                else:
                    claimed.ack(event)
    with claim("queue", 4) as claimed:
        seen += [(event.value, event.attempt) for event in claimed]
    assert seen == [("k1", 1), ("l1", 1), ("k1", 2), ("k2", 1), ("k3", 1)]


def test_in_a_transaction_only_what_is_there_is_claimed(things, make_queue, in_thread):
    """To make more from the log, it would have to keep the transfer from its topic until it commits."""
    fill_topic(things, *"ab")
    make_queue(things, live=False)
    with transaction.atomic(), claim("queue", 5) as claimed:
        assert not claimed
        publish_many(things, [Draft(value="c")])
        assert in_thread(publish_and_move, things).result(60) == 1
    transfer_all()


def publish_and_move(topic):
    publish_many(topic, [Draft(value="d")])
    return Transfer("default").move()


def test_claims_see_what_is_committed_whatever_the_default_is(queue):
    with connection.cursor() as cursor:
        cursor.execute("SET default_transaction_isolation = 'repeatable read'")
    try:
        question = (CLAIMING_SQL.isolation, {})
        assert sql.fetch_each("default", question, question) == [[("read committed",)], [("read committed",)]]
        with claim("queue") as claimed:
            assert values_of(claimed) == ["a"]
        with (
            transaction.atomic(),
            pytest.raises(Refused, match="a transaction at REPEATABLE READ, which doesn't see"),
            claim("queue"),
        ):
            pass
    finally:
        connection.close()


@pytest.mark.requirement("S5")
@pytest.mark.parametrize("ordered", [False, True])
def test_claims_where_the_server_binds_parameters(things, make_queue, ordered):
    queue = make_queue(things, ordered=ordered)
    fill_topic(things, *"ab", key="k")
    options = connection.settings_dict["OPTIONS"]
    connection.close()
    connection.settings_dict["OPTIONS"] = {**options, "server_side_binding": True}
    try:
        with claim("queue") as claimed:
            assert values_of(claimed) == ["a"]
            claimed.ack(*claimed)
        assert run_once(queue.subscription.consumer) == 1
    finally:
        connection.close()
        connection.settings_dict["OPTIONS"] = options
