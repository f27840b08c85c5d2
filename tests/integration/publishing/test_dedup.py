"""Dedup keys: within its window an event is published once, however many publish it at a time."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from django.db import OperationalError, connection, connections, transaction
from django.db.models import F
from django.test import override_settings

from django_events import Draft, publish, publish_many
from django_events.exceptions import InvalidEvent, NotReady
from django_events.maintaining.pruning import forget_dedup_keys
from django_events.models import BufferedEvent, DedupKey, ScheduledEvent
from tests.support.fix_topics import log_values, transfer_all
from tests.support.processes import wait_until

committing = pytest.mark.usefixtures("transactional_db")
rolled_back = pytest.mark.django_db
DAY = timedelta(days=1)


def buffered():
    return list(BufferedEvent.objects.order_by("id").values_list("value", flat=True))


def let_time_pass(by):
    """Tests move rows, not clocks."""
    DedupKey.objects.update(expires_at=F("expires_at") - by)


@rolled_back
def test_the_second_one_is_not_published_and_the_receipt_says_so(things, lanes):
    first = publish(things, 1, dedup_key="a")
    second = publish(things, 2, dedup_key="a")

    assert (first.new, second.new) == (True, False)
    assert (first.ticket is None, second.ticket) == (False, None)
    assert publish(things, 3, dedup_key="b").new
    assert publish(lanes, 4, dedup_key="a").new, "another topic"
    assert publish(things, 5).new, "without a key there is nothing to compare"
    assert buffered() == [1, 3, 4, 5]


@rolled_back
def test_it_makes_no_difference_what_became_of_the_first(things):
    publish(things, 1, dedup_key="a")
    transfer_all()

    assert not publish(things, 2, dedup_key="a").new
    assert transfer_all() == 0


@rolled_back
def test_after_its_window_a_key_is_free_and_taken_anew(things):
    assert publish(things, 1, dedup_key="a", dedup_window=timedelta(hours=2)).new
    let_time_pass(timedelta(hours=1))
    assert not publish(things, 2, dedup_key="a").new
    let_time_pass(timedelta(hours=1))
    assert publish(things, 3, dedup_key="a").new
    assert not publish(things, 4, dedup_key="a").new

    assert buffered() == [1, 3]


@rolled_back
def test_the_window_is_a_day_unless_the_settings_or_the_caller_say_otherwise(things):
    publish(things, 1, dedup_key="a")
    with override_settings(DJANGO_EVENTS={"DEDUP_WINDOW": timedelta(minutes=5)}):
        publish(things, 1, dedup_key="b")
        publish(things, 1, dedup_key="c", dedup_window=timedelta(days=3))

    lengths = {key.key: key.expires_at for key in DedupKey.objects.all()}
    assert timedelta(hours=23) < lengths["a"] - lengths["b"] < DAY
    assert DAY < lengths["c"] - lengths["a"] < 3 * DAY


@committing
def test_a_rollback_frees_the_key(things):
    with transaction.atomic():
        assert publish(things, 1, dedup_key="a").new
        assert publish_many(things, [Draft(value=2, dedup_key="b")]) == 1
        transaction.set_rollback(True)

    assert publish(things, 3, dedup_key="a").new
    assert publish(things, 4, dedup_key="b").new
    assert buffered() == [3, 4]


@rolled_back
def test_many_at_once_are_compared_with_each_other_too(things):
    publish(things, "before", dedup_key="x")
    drafts = [
        Draft(value="b", dedup_key="b"),
        Draft(value="no key"),
        Draft(value="x again", dedup_key="x"),
        Draft(value="b again", dedup_key="b"),
        Draft(value="a", dedup_key="a"),
    ]

    assert publish_many(things, drafts) == 3
    assert buffered() == ["before", "b", "no key", "a"]
    assert publish_many(things, drafts) == 1


@rolled_back
def test_a_scheduled_event_takes_its_key_when_it_is_scheduled(things):
    assert publish(things, 1, dedup_key="a", publish_at=connection_time() + DAY).new
    later = publish(things, 2, dedup_key="a", publish_at=connection_time() + DAY)

    assert (later.new, later.ticket) == (False, None)
    assert not publish(things, 3, dedup_key="a").new
    assert ScheduledEvent.objects.count() == 1


def connection_time():
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        return cursor.fetchone()[0]


@committing
def test_eight_at_once_publish_one(things):
    def publish_all(number):
        try:
            return sum(publish(things, [number, i], dedup_key=str(i)).new for i in range(40))
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as pool:
        new = list(pool.map(publish_all, range(8)))
    transfer_all()

    assert sum(new) == 40
    assert sorted(i for _, i in log_values(things)) == list(range(40))


@committing
def test_batches_at_once_do_not_wait_for_each_other_in_a_circle(things):
    def publish_all(number):
        keys = range(60) if number % 2 else reversed(range(60))
        try:
            return publish_many(things, [Draft(value=key, dedup_key=str(key)) for key in keys])
        finally:
            connections.close_all()

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(publish_all, range(6))) == 60
    transfer_all()
    assert sorted(log_values(things)) == list(range(60))


@pytest.mark.parametrize("ending", ["commit", "rollback"])
@committing
def test_who_publishes_the_same_waits_for_the_end_of_the_first(things, connect, in_thread, ending):
    session = connect()
    session.execute("SELECT django_events_is_new('things', 'a', interval '1 day')")
    second = in_thread(publish, things, 2, dedup_key="a")
    wait_for_a_session_that_waits(session)
    getattr(session, ending)()

    assert second.result(timeout=60).new is (ending == "rollback")


def wait_for_a_session_that_waits(session):
    def a_session_waits():
        with connection.cursor() as cursor:
            cursor.execute("SELECT %s = ANY(pg_blocking_pids(pid)) FROM pg_stat_activity", [session.info.backend_pid])
            return any(waits for (waits,) in cursor.fetchall())

    wait_until(a_session_waits, what="a publisher that waits")


@committing
def test_at_repeatable_read_a_key_that_was_taken_in_the_meantime_is_a_conflict(things, connect):
    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            cursor.execute("SELECT 1")
        session = connect()
        session.execute("SELECT django_events_is_new('things', 'a', interval '1 day')")
        session.commit()
        with pytest.raises(OperationalError, match="could not serialize"):
            publish(things, 1, dedup_key="a")
    assert buffered() == []


@rolled_back
def test_sql_asks_the_same(things):
    with connection.cursor() as cursor:
        for _ in range(2):
            cursor.execute(
                "SELECT django_events_publish('things', '1')"
                " WHERE django_events_is_new('things', 'a', interval '1 day')"
            )
    assert buffered() == [1]


# Refusals


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"dedup_key": 7}, "dedup_key is 7"),
        ({"dedup_key": "x" * 513}, "dedup_key has 513 characters"),
        ({"dedup_key": "a\0"}, "U+0000"),
        ({"dedup_window": DAY}, "dedup_window is given without a dedup_key"),
        ({"dedup_key": "a", "dedup_window": timedelta(0)}, "expected a timedelta above zero"),
        ({"dedup_key": "a", "dedup_window": 60}, "expected a timedelta above zero"),
        ({"dedup_key": "a", "dedup_window": timedelta.max}, "and at most 36,500 days"),
    ],
)
@rolled_back
def test_what_can_not_be_a_key_or_a_window_is_refused(things, fields, said):
    with pytest.raises(InvalidEvent) as caught:
        publish(things, 1, **fields)
    assert said in str(caught.value)
    assert buffered() == []


@committing
def test_a_topic_that_was_not_migrated_says_what_to_do(undiscovered):
    with pytest.raises(NotReady, match=r"manage\.py migrate"), transaction.atomic():
        publish(undiscovered, 1, dedup_key="a")
    with pytest.raises(NotReady, match=r"manage\.py migrate"):
        publish_many(undiscovered, [Draft(value=1, dedup_key="a")])


# Forgetting


@committing
def test_keys_are_forgotten_when_their_window_is_over_and_those_in_use_are_left(things, connect):
    for key in ("over", "in use", "going on"):
        publish(things, 1, dedup_key=key)
    DedupKey.objects.exclude(key="going on").update(expires_at=connection_time() - DAY)
    session = connect()
    session.execute("SELECT django_events_is_new('things', 'in use', interval '1 day')")
    assert forget_dedup_keys("default") == 1
    session.commit()

    assert sorted(DedupKey.objects.values_list("key", flat=True)) == ["going on", "in use"]


@rolled_back
def test_keys_are_forgotten_in_small_steps(things):
    publish_many(things, [Draft(value=n, dedup_key=str(n)) for n in range(5)])
    DedupKey.objects.update(expires_at=connection_time() - DAY)

    assert [forget_dedup_keys("default", most=2) for _ in range(3)] == [2, 2, 1]
    assert not DedupKey.objects.exists()
