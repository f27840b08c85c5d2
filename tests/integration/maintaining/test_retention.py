"""Retention: what a topic need not keep is dropped by whole segments, and no consumer is left behind unless told."""

import logging
import random
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import connection, transaction

from django_events import Backoff, Draft, models, publish_many
from django_events.consuming import log_positions
from django_events.consuming.registered import registered
from django_events.exceptions import EventExpired, LeaseLost, Refused
from django_events.log import retention, segments
from django_events.log.inventory import sizes
from django_events.log.topics import sync
from django_events.log.transfer import Transfer
from django_events.maintaining import drop_unread
from django_events.maintaining.expiring import expire
from django_events.models import Event, Intervention, Topic, TopicHead
from django_events.models.functions import ClockTimestamp
from django_events.operations import lag, pause, publish_again, redrive, rewind, unregister
from django_events.signals import events_expired
from django_events.statements import log_table
from tests.support.fix_consumers import (
    dead_letters,
    expire_leases,
    lease_of,
    position_of,
    positions,
    run_once,
    serve_lease,
)
from tests.support.fix_database import WAITS_FOR_A_LOCK
from tests.support.fix_queues import deliveries, fill_topic, finish, pending, row_of, values
from tests.support.fix_queues import expire as expire_lease
from tests.support.fix_topics import transfer_all
from tests.support.processes import wait_until

pytestmark = pytest.mark.usefixtures("transactional_db")

DAY = timedelta(days=1)


@pytest.fixture
def told():
    """What the signal said."""
    heard = []

    def receiver(sender, consumer, topic, partition, first, last, events, using, **kwargs):
        heard.append((consumer, topic, partition, first, last, events, using))

    events_expired.connect(receiver, weak=False)
    yield heard
    events_expired.disconnect(receiver)


def row_of_topic(topic):
    return Topic.objects.select_related("head").get(name=topic.name)


def expire_topic(topic):
    done = expire("default", row_of_topic(topic))
    return done.segments, done.events, done.kept_for, done.waits_for


def log_of(topic):
    return list(Event.objects.since(topic).values_list("id", flat=True))


def numbers_of(topic):
    """By partition, in the order of their ids."""
    found = {}
    for partition, number in Event.objects.since(topic).values_list("partition", "number"):
        found.setdefault(partition, []).append(number)
    return found


def age(topic, upto, by=2 * DAY):
    """As if the events up to an id had been logged before."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {log_table(row_of_topic(topic).pk)} SET logged_at = logged_at - %s WHERE id <= %s", [by, upto]
        )


def publish_range(topic, count, **fields):
    """So many events, whose values are their ids in a topic of its own."""
    first = Event.objects.peek(topic, limit=1).values_list("id", flat=True).first() or 0
    floor = row_of_topic(topic).head.id_floor
    first = max(first, floor)
    publish_many(topic, [Draft(value=n, **fields) for n in range(first + 1, first + count + 1)])
    transfer_all()


@contextmanager
def a_session_reads(connect, topic):
    """A long transaction that has read the log."""
    session = connect()
    session.execute(f"SELECT count(*) FROM {log_table(row_of_topic(topic).pk)}")
    yield session
    session.rollback()


def assert_named(waits_for, session):
    """Retention says which session has the lock, and what it does."""
    assert waits_for.startswith(f"a lock of session {session.info.backend_pid} of {session.info.user}")
    assert waits_for.endswith("idle in transaction after SELECT COUNT")


# What goes


def test_what_is_older_than_its_retention_goes_by_whole_segments(make_topic):
    topic = make_topic(segment_size=100, retention=DAY)
    publish_range(topic, 250)
    assert expire_topic(topic) == (0, 0, None, None)
    age(topic, 150)

    assert expire_topic(topic) == (1, 100, None, None)
    assert log_of(topic) == list(range(101, 251))
    assert expire_topic(topic) == (0, 0, None, None)
    head = TopicHead.objects.get(topic__name=topic.name)
    assert (head.id_floor, head.number_floors) == (100, [100])


def test_a_quiet_topic_loses_its_last_segment_too_and_goes_on_behind_it(make_topic):
    topic = make_topic(segment_size=100, retention=DAY)
    publish_range(topic, 130)
    age(topic, 130)
    assert expire_topic(topic) == (2, 130, None, None)
    assert log_of(topic) == []

    publish_range(topic, 3)
    assert log_of(topic) == [131, 132, 133]
    assert numbers_of(topic) == {0: [131, 132, 133]}


def test_numbers_go_on_in_each_partition_also_for_a_transfer_that_did_not_see_the_events(make_topic):
    topic = make_topic(segment_size=100, retention=DAY, partitions=4)
    old = Transfer("default")
    for n in range(40):
        publish_many(topic, [Draft(value=n, partition=n % 3)])
    while old.move():
        pass
    publish_many(topic, [Draft(value=n, partition=n % 3) for n in range(90)])
    transfer_all()  # another one
    age(topic, 130)
    assert expire_topic(topic) == (2, 130, None, None)
    head = TopicHead.objects.get(topic__name=topic.name)
    assert (head.id_floor, head.number_floors) == (130, [44, 43, 43, 0])

    publish_many(topic, [Draft(value=n, partition=n) for n in range(4)])
    while old.move() or old.left:
        pass
    assert log_of(topic) == [131, 132, 133, 134]
    assert numbers_of(topic) == {0: [45], 1: [44], 2: [44], 3: [1]}


def test_a_partition_whose_events_are_gone_keeps_its_number_while_others_go_on(make_topic):
    topic = make_topic(segment_size=100, retention=DAY, partitions=2)
    publish_many(topic, [Draft(value=n, partition=0) for n in range(100)])
    publish_many(topic, [Draft(value=n, partition=1) for n in range(150)])
    transfer_all()
    age(topic, 200)
    assert expire_topic(topic) == (2, 200, None, None)
    publish_many(topic, [Draft(value=n, partition=0) for n in range(2)])
    transfer_all()

    assert numbers_of(topic) == {0: [101, 102], 1: list(range(101, 151))}
    assert TopicHead.objects.get(topic__name=topic.name).number_floors == [100, 100]


def test_no_more_than_so_many_events_are_kept_but_for_a_segment(make_topic):
    topic = make_topic(segment_size=100, retention_events=150)
    publish_range(topic, 249)
    assert expire_topic(topic) == (0, 0, None, None)
    publish_range(topic, 1)

    assert expire_topic(topic) == (1, 100, None, None)
    assert log_of(topic)[0] == 101


def test_a_log_that_is_larger_than_its_retention_loses_its_oldest_events(make_topic):
    topic = make_topic(segment_size=100, retention_bytes=500_000)
    chance = random.Random(7)
    publish_many(topic, [Draft(value=chance.randbytes(1_500).hex()) for _ in range(350)])
    transfer_all()
    done = expire("default", row_of_topic(topic))

    assert 1 <= done.segments <= 2
    assert done.bytes > 100_000
    assert log_of(topic) == list(range(100 * done.segments + 1, 351))
    assert sizes("default", [row_of_topic(topic)])[topic.name][1] >= 500_000


def test_what_is_not_limited_stays(make_topic):
    topic = make_topic(segment_size=100)
    publish_range(topic, 250)
    age(topic, 250, by=10_000 * DAY)

    assert expire_topic(topic) == (0, 0, None, None)


def test_retention_can_be_changed_while_live(make_topic):
    topic = make_topic(segment_size=100)
    publish_range(topic, 250)
    Topic.objects.filter(name=topic.name).update(retention_events=100)

    assert expire_topic(topic) == (1, 100, None, None)


# For whom it stays


def test_a_stream_keeps_what_it_has_not_handled_paused_or_not(make_topic, make_consumer):
    topic = make_topic(segment_size=100, retention_events=1)
    reader = make_consumer(topic, handler=print, batch_size=500)
    publish_range(topic, 250)
    assert expire_topic(topic) == (0, 0, "reader", None)
    pause(reader)
    assert expire_topic(topic) == (0, 0, "reader", None)
    models.Consumer.objects.update(paused_at=None)
    positions(reader).update(position=199, number=199)
    assert expire_topic(topic) == (1, 100, "reader", None)
    run_once(reader)

    assert expire_topic(topic) == (1, 100, None, None)
    assert position_of(reader).position == 250
    assert lag(reader) == 0


def test_a_consumer_that_is_gone_keeps_nothing(make_topic, make_consumer):
    from django_events import declarations

    topic = make_topic(segment_size=100, retention_events=1)
    reader = make_consumer(topic, handler=print)
    publish_range(topic, 250)
    declarations.consumers.discard(reader)
    unregister("reader")

    assert expire_topic(topic) == (2, 200, None, None)


@pytest.mark.slow
def test_a_quiet_partition_keeps_nothing(make_topic, make_consumer):
    topic = make_topic(segment_size=100, retention_events=1, partitions=2)
    reader = make_consumer(topic, handler=print)
    publish_many(topic, [Draft(value=1, partition=1)])
    publish_many(topic, [Draft(value=n, partition=0) for n in range(250)])
    transfer_all()
    run_once(reader)
    positions(reader).filter(partition=1).update(position=1)  # it handled the event, and did not look again

    assert expire_topic(topic) == (2, 200, None, None)
    assert lag(reader) == 0
    publish_many(topic, [Draft(value="new", partition=1)])
    transfer_all()
    assert lag(reader) == 1
    assert run_once(reader) == 1
    assert lag(reader) == 0


def test_a_partition_with_an_unread_event_keeps_it(make_topic, make_consumer):
    topic = make_topic(segment_size=100, retention_events=1, partitions=2)
    reader = make_consumer(topic, handler=print)
    publish_many(topic, [Draft(value=n, partition=0) for n in range(150)])
    publish_many(topic, [Draft(value=1, partition=1)])
    publish_many(topic, [Draft(value=n, partition=0) for n in range(150)])
    transfer_all()
    positions(reader).filter(partition=0).update(position=301, number=300)

    assert expire_topic(topic) == (1, 100, "reader", None)


def test_a_queue_keeps_its_oldest_delivery_also_in_hand(make_topic, make_queue):
    topic = make_topic(segment_size=100, retention_events=1)
    queue = make_queue(topic, name="queue")
    publish_range(topic, 250)
    deliveries(queue).filter(event_id__lt=150).delete()
    assert expire_topic(topic) == (1, 100, "queue", None)
    hand = queue.claim(200)
    assert expire_topic(topic) == (0, 0, "queue", None)
    finish(hand)

    assert expire_topic(topic) == (1, 100, None, None)


def test_a_queue_that_is_being_filled_keeps_what_it_is_to_get(make_topic, make_queue):
    topic = make_topic(segment_size=100, retention_events=1)
    queue = make_queue(topic, live=False)
    publish_range(topic, 350)
    models.Consumer.objects.filter(pk=row_of(queue).pk).update(filled_until=120)

    assert expire_topic(topic) == (1, 100, "queue", None)


def test_a_query_of_spark_keeps_what_it_has_not_read(make_topic):
    topic = make_topic(segment_size=100, retention_events=1)
    publish_range(topic, 250)
    query = models.Consumer.objects.create(name="query", topic=row_of_topic(topic), mode="spark", partitioned=False)
    at = models.Position.objects.create(consumer=query, partition=-1, position=150, number=150)
    assert expire_topic(topic) == (1, 100, "query", None)
    at.position = 200
    at.save()

    assert expire_topic(topic) == (1, 100, None, None)
    query.delete()


@pytest.mark.slow
def test_dead_letters_have_copies_and_are_handled_again_when_the_log_is_gone(make_topic, make_consumer, make_queue):
    topic = make_topic(segment_size=100, retention=DAY)
    bad, seen = {"on": True}, []

    def handler(event):
        if bad["on"] and event.value == 5:
            raise ValueError("no")
        seen.append(event.value)

    reader = make_consumer(topic, name="reader", handler=handler, retry=Backoff(attempts=1))
    queue = make_queue(topic, name="queue", handler=handler, retry=Backoff(attempts=1))
    publish_range(topic, 120)
    run_once(reader, queue.subscription.consumer)
    assert [letter.event_id for letter in dead_letters(reader)] == [5]
    age(topic, 120)
    assert expire_topic(topic) == (2, 120, None, None)
    bad["on"] = False
    seen.clear()
    redrive(models.DeadLetter.objects.all())
    run_once(reader, queue.subscription.consumer)

    assert seen == [5, 5]
    assert not models.DeadLetter.objects.exists()


# Told to drop what is unread


@pytest.mark.slow
def test_a_stream_that_is_left_behind_goes_on_behind_what_expired_and_is_told(make_topic, make_consumer, told, caplog):
    topic = make_topic(segment_size=100, retention_events=1, keep_unread=False)
    seen = []
    reader = make_consumer(topic, handler=lambda event: seen.append(event.value))
    publish_range(topic, 250)
    positions(reader).update(position=30, number=30, attempted=31, attempts=2)
    with caplog.at_level(logging.WARNING, "django_events"):
        assert expire_topic(topic) == (2, 200, None, None)

    at = position_of(reader)
    assert (at.position, at.number, at.attempted, at.attempts) == (200, 200, None, 0)
    assert lag(reader) == 50
    assert told == [
        ("reader", "things", 0, 31, 100, 70, "default"),
        ("reader", "things", 0, 101, 200, 100, "default"),
    ]
    assert [(one.by, one.consumer, one.details["events"]) for one in Intervention.objects.order_by("pk")] == [
        ("retention", "reader", 70),
        ("retention", "reader", 100),
    ]
    assert "70 events, up to things/100, expired before they were handled" in caplog.text
    run_once(reader)
    assert seen == list(range(201, 251))


def test_only_the_partitions_that_are_behind_are_moved_on(make_topic, make_consumer, told):
    topic = make_topic(segment_size=100, retention_events=1, keep_unread=False, partitions=2)
    reader = make_consumer(topic, handler=print)
    publish_many(topic, [Draft(value=n, partition=n % 2) for n in range(250)])
    transfer_all()
    positions(reader).filter(partition=0).update(position=249, number=125)
    positions(reader).filter(partition=1).update(position=90, number=45)
    assert expire_topic(topic) == (2, 200, None, None)

    assert [(p.position, p.number) for p in positions(reader)] == [(249, 125), (200, 100)]
    assert [(partition, events) for _, _, partition, _, _, events, _ in told] == [(1, 5), (1, 50)]
    assert lag(reader) == 25


def test_a_queue_that_is_left_behind_loses_its_deliveries_and_is_told(make_topic, make_queue, told):
    topic = make_topic(segment_size=100, retention_events=1, keep_unread=False)
    queue = make_queue(topic)
    publish_range(topic, 250)
    assert expire_topic(topic) == (2, 200, None, None)

    assert pending(queue) == list(range(201, 251))
    assert [said[3:6] for said in told] == [(1, 100, 100), (101, 200, 100)]
    assert values(queue.claim(500)) == list(range(201, 251))


def test_what_a_queue_was_not_filled_with_is_left_out_and_told(make_topic, make_queue, told):
    topic = make_topic(segment_size=100, retention_events=1, keep_unread=False)
    queue = make_queue(topic, live=False)
    publish_range(topic, 250)
    assert expire_topic(topic) == (2, 200, None, None)

    assert row_of(queue).filled_until == 200
    assert [said[3:6] for said in told] == [(1, 100, 100), (101, 200, 100)]


def test_what_is_in_hand_is_waited_for(make_topic, make_consumer, monkeypatch, told):
    monkeypatch.setattr("django_events.maintaining.drop_unread.PATIENCE", timedelta(0))
    topic = make_topic(segment_size=100, retention_events=1, keep_unread=False)
    seen = []
    reader = make_consumer(topic, handler=lambda event: seen.append(event.value), batch_size=None)
    publish_range(topic, 250)
    lease = lease_of(reader)
    segments_gone, _, _, waits_for = expire_topic(topic)
    assert segments_gone == 0
    assert waits_for.startswith("consumer reader of things, which is still handling events after 0 s, by a test")
    assert told == []
    serve_lease(lease)

    assert seen == list(range(1, 251))
    assert expire_topic(topic) == (2, 200, None, None)
    assert told == []


def test_a_worker_that_wakes_up_too_late_moves_nothing_back(make_topic, make_consumer, told):
    topic = make_topic(segment_size=100, retention_events=1, keep_unread=False)
    seen = []
    reader = make_consumer(topic, handler=lambda event: seen.append(event.value), batch_size=None, transactional=False)
    publish_range(topic, 250)
    frozen = lease_of(reader)
    events = frozen.read().events
    expire_leases(reader)
    assert expire_topic(topic) == (2, 200, None, None)
    with pytest.raises(LeaseLost):
        frozen.settle_handled(events[:50])

    at = position_of(reader)
    assert (at.position, at.number, at.handled) == (200, 200, 0)
    run_once(reader)
    assert seen == list(range(201, 251))
    assert [said[3:6] for said in told] == [(1, 100, 100), (101, 200, 100)]


def test_spark_is_told_and_its_position_left_alone(make_topic, told):
    topic = make_topic(segment_size=100, retention_events=1, keep_unread=False)
    publish_range(topic, 150)
    query = models.Consumer.objects.create(name="query", topic=row_of_topic(topic), mode="spark", partitioned=False)
    at = models.Position.objects.create(consumer=query, partition=-1, position=20, number=20)
    assert expire_topic(topic) == (1, 100, None, None)

    at.refresh_from_db()
    assert at.position == 20
    assert [said[0] for said in told] == ["query"]
    query.delete()


# Expired is not missing


def test_an_event_that_expired_is_told_from_one_that_never_was(make_topic):
    topic = make_topic(segment_size=100, retention_events=1)
    publish_range(topic, 150)
    expire_topic(topic)
    with pytest.raises(Event.DoesNotExist, match="things/7 has expired: the log begins behind things/100") as raised:
        Event.objects.at(topic, 7)
    assert isinstance(raised.value, EventExpired)
    with pytest.raises(Event.DoesNotExist, match="There is no event things/999") as raised:
        Event.objects.at(topic, 999)
    assert not isinstance(raised.value, EventExpired)
    with pytest.raises(EventExpired):
        publish_again(topic, 7)
    assert Event.objects.at(topic, 101).value == 101


def test_rewinding_to_what_expired_is_refused_and_to_the_beginning_is_not(make_topic, make_consumer):
    topic = make_topic(segment_size=100, retention_events=1)
    reader = make_consumer(topic, handler=print)
    publish_range(topic, 150)
    run_once(reader)
    expire_topic(topic)
    with pytest.raises(Refused, match="begins at 101: what was before it has expired"):
        rewind(reader, to=7)
    rewind(reader, to="beginning")

    assert (position_of(reader).position, lag(reader)) == (100, 50)


def test_a_consumer_that_was_found_before_the_log_expired_is_put_behind_it(make_topic, make_consumer):
    """As rewind does, which may wait for its locks in between."""
    topic = make_topic(segment_size=100, retention=DAY, keep_unread=False, partitions=4)
    reader = make_consumer(topic, handler=print)
    publish_many(topic, [Draft(value=n, partition=n % 3) for n in range(150)])
    transfer_all()
    [row] = registered("default", reader)
    age(topic, 150)
    assert expire_topic(topic)[:2] == (2, 150)

    assert log_positions.find("default", row.topic, "beginning") == 151
    assert [log_positions.number_at("default", row.topic, one, 150) for one in range(4)] == [50, 50, 50, 0]


def test_a_consumer_that_begins_at_the_beginning_begins_behind_what_expired(make_topic, make_consumer):
    topic = make_topic(segment_size=100, retention_events=1)
    publish_range(topic, 150)
    expire_topic(topic)
    seen = []
    late = make_consumer(topic, name="late", handler=lambda event: seen.append(event.value), start="beginning")
    run_once(late)

    assert seen == list(range(101, 151))


# Segments that end early


def test_a_segment_that_has_its_part_ends_there_and_events_go_on_behind_it(make_topic):
    topic = make_topic(segment_size=1_000, retention_events=2_000)
    publish_range(topic, 150)
    assert not divided(topic)
    publish_range(topic, 50)
    running = Transfer("default")
    publish_many(topic, [Draft(value=201)])
    while running.move():
        pass
    assert divided(topic)
    assert bounds(topic)[:2] == [(1, 202), (202, 1202)]
    publish_many(topic, [Draft(value=n) for n in range(202, 402)])
    while running.move():
        pass

    assert log_of(topic) == list(range(1, 402))
    assert numbers_of(topic) == {0: list(range(1, 402))}


def divided(topic):
    row = row_of_topic(topic)
    with retention.writing("default", row.pk) as now:
        return retention.divide("default", now)


def bounds(topic):
    return [(one.first, one.end) for one in segments.segments("default", row_of_topic(topic).pk)]


def test_a_segment_that_is_old_enough_ends_there(make_topic):
    topic = make_topic(segment_size=1_000, retention=10 * DAY)
    publish_range(topic, 5)
    assert not divided(topic)
    age(topic, 5, by=1.1 * DAY)

    assert divided(topic)
    assert not divided(topic)
    assert bounds(topic)[0] == (1, 6)


def test_a_smaller_size_holds_from_the_next_event_on(make_topic):
    topic = make_topic(segment_size=1_000_000)
    publish_range(topic, 120)
    running = Transfer("default")
    running.move()
    Topic.objects.filter(name=topic.name).update(segment_size=100)
    assert divided(topic)
    publish_many(topic, [Draft(value=n) for n in range(121, 501)])
    while running.move() or running.left:
        pass

    assert bounds(topic)[:3] == [(1, 121), (121, 221), (221, 321)]
    assert log_of(topic) == list(range(1, 501))


# Beside others


@pytest.mark.slow
def test_a_long_reader_of_the_log_is_left_alone_and_nothing_is_half_done(make_topic, connect):
    topic = make_topic(segment_size=100, retention_events=1)
    publish_range(topic, 250)
    with a_session_reads(connect, topic) as reader:
        segments_gone, _, kept_for, waits_for = expire_topic(topic)
        assert (segments_gone, kept_for) == (0, None)
        assert_named(waits_for, reader)
        publish_range(topic, 10)  # no publisher waits for it
    assert log_of(topic) == list(range(1, 261))

    assert expire_topic(topic) == (2, 200, None, None)


def test_a_transaction_that_is_rolled_back_loses_nothing(make_topic):
    topic = make_topic(segment_size=100, retention_events=1)
    publish_range(topic, 250)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        assert expire_topic(topic) == (2, 200, None, None)
        raise ZeroDivisionError

    assert log_of(topic) == list(range(1, 251))
    assert TopicHead.objects.get(topic__name=topic.name).id_floor == 0


def test_the_declaration_says_what_is_kept(make_topic):
    topic = make_topic(retention=DAY, retention_events=7, retention_bytes=8, keep_unread=False)
    row = row_of_topic(topic)
    assert (row.retention, row.retention_events, row.retention_bytes, row.keep_unread) == (DAY, 7, 8, False)
    assert sync("default") == []


@pytest.mark.slow
def test_filling_goes_on_behind_what_expired(make_topic, make_queue):
    topic = make_topic(segment_size=100, retention_events=1, keep_unread=False)
    queue = make_queue(topic, live=False)
    fill_topic(topic, *range(1, 251))
    expire_topic(topic)
    seen = []
    object.__setattr__(queue.subscription.consumer, "handler", lambda event: seen.append(event.value))
    run_once(queue.subscription.consumer)

    assert sorted(seen) == list(range(201, 251))
    assert row_of(queue).live


def test_a_log_that_lost_its_row_keeps_its_floors(make_topic):
    topic = make_topic(segment_size=100, retention_events=1, partitions=2)
    publish_many(topic, [Draft(value=n, partition=n % 2) for n in range(250)])
    transfer_all()
    expire_topic(topic)
    before = TopicHead.objects.get(topic__name=topic.name)
    Topic.objects.filter(name=topic.name).delete()
    assert sync("default") == ["Topic things: its row was missing, made again for the log that is there."]

    after = TopicHead.objects.get(topic__name=topic.name)
    assert (after.id_floor, after.number_floors) == (before.id_floor, before.number_floors) == (200, [100, 100])
    publish_many(topic, [Draft(value=1, partition=1)])
    transfer_all()
    assert numbers_of(topic)[1][-1] == 126


def test_a_queue_loses_nothing_while_some_of_it_is_in_hand(make_topic, make_queue, told):
    topic = make_topic(segment_size=100, retention_events=1, keep_unread=False)
    queue = make_queue(topic)
    publish_range(topic, 150)
    hand = queue.claim(1)
    gone, _, _, waits_for = expire_topic(topic)
    assert (gone, told) == (0, [])
    assert "has some of these events in hand, by a test" in waits_for
    assert len(pending(queue)) == 150
    hand.release()

    assert expire_topic(topic)[0] == 1
    assert [said[5] for said in told] == [100]


def test_deliveries_of_a_worker_that_died_go_too(make_topic, make_queue, told):
    topic = make_topic(segment_size=100, retention_events=1, keep_unread=False)
    queue = make_queue(topic)
    publish_range(topic, 150)
    hand = queue.claim(3)
    expire_lease(hand)

    assert expire_topic(topic)[0] == 1
    assert pending(queue) == list(range(101, 151))
    assert sum(said[5] for said in told) == 100


def test_spark_is_told_of_each_loss_once(make_topic, told):
    topic = make_topic(segment_size=100, retention_events=1, keep_unread=False)
    publish_range(topic, 350)
    query = models.Consumer.objects.create(name="query", topic=row_of_topic(topic), mode="spark", partitioned=False)
    models.Position.objects.create(consumer=query, partition=-1, position=20, number=20)
    assert expire_topic(topic)[0] == 3

    assert [said[3:6] for said in told] == [(21, 100, 80), (101, 200, 100), (201, 300, 100)]
    query.delete()


def test_a_stream_that_stopped_at_an_event_that_expires_goes_on_behind_it(make_topic, make_consumer):
    topic = make_topic(segment_size=100, retention_events=1, keep_unread=False)
    seen = []

    def handler(event):
        if event.value == 5:
            raise ValueError("poison")
        seen.append(event.value)

    reader = make_consumer(topic, handler=handler, retry=Backoff(attempts=1), on_exhausted="stop")
    publish_range(topic, 120)
    run_once(reader)
    assert position_of(reader).stopped_at is not None
    assert expire_topic(topic)[0] == 1

    at = position_of(reader)
    assert (at.position, at.stopped_at, at.error) == (100, None, "")
    seen.clear()
    run_once(reader)
    assert seen == list(range(101, 121))


@pytest.mark.slow
def test_a_reader_of_the_log_is_named_and_not_a_consumer(make_topic, make_consumer, connect, told):
    topic = make_topic(segment_size=100, retention_events=1, keep_unread=False)
    make_consumer(topic, handler=print)
    publish_range(topic, 150)
    with a_session_reads(connect, topic) as reader:
        segments_gone, _, kept_for, waits_for = expire_topic(topic)
        assert (segments_gone, kept_for) == (0, None)
        assert_named(waits_for, reader)
    assert told == []
    assert not Intervention.objects.exists()


def test_a_redriven_dead_letter_keeps_no_segment(make_topic, make_queue):
    topic = make_topic(segment_size=100, retention=DAY)
    queue = make_queue(topic)
    publish_range(topic, 120)
    deliveries(queue).exclude(event_id=5).delete()
    event = Event.objects.at(topic, 5)
    models.DeadLetter.objects.create(
        consumer_id=queue.subscription.consumer_id,
        event_id=5,
        partition=0,
        number=5,
        value=5,
        metadata={},
        published_at=event.published_at,
        logged_at=event.logged_at,
        attempts=1,
        error="no",
        redrive_at=ClockTimestamp(),
    )
    age(topic, 120)

    assert expire_topic(topic) == (2, 120, None, None)
    assert values(queue.claim(1)) == [5]
    models.DeadLetter.objects.all().delete()


def test_a_very_long_retention_is_for_ever(make_topic):
    topic = make_topic(segment_size=100, retention=timedelta.max)
    publish_range(topic, 120)
    assert expire_topic(topic) == (0, 0, None, None)
    assert not divided(topic)


@pytest.mark.slow
def test_there_are_not_more_and_more_segments_while_a_consumer_keeps_them(make_topic, make_consumer):
    topic = make_topic(segment_size=1_000, retention=timedelta(microseconds=1))
    make_consumer(topic, handler=print)
    made = []
    for _ in range(retention.MOST_PARTS + 5):
        publish_range(topic, 1)
        made.append(divided(topic))
    assert made.count(True) == retention.MOST_PARTS - 1
    assert log_of(topic) == list(range(1, retention.MOST_PARTS + 6))


def test_a_large_segment_is_not_looked_through(make_topic, monkeypatch):
    topic = make_topic(segment_size=1_000, retention=timedelta(microseconds=1))
    publish_range(topic, 120)
    monkeypatch.setattr(retention, "LARGEST_PART", 1_000)
    assert not divided(topic)


@pytest.mark.slow
def test_a_delivery_that_is_given_back_in_between_moves_no_other_before_its_turn(
    make_topic, make_consumer, make_queue, told, monkeypatch
):
    """Whatever was moved in the same transaction is rolled back, and it is looked again."""
    topic = make_topic(segment_size=100, retention_events=1, keep_unread=False)
    reader = make_consumer(topic, name="reader", handler=print)
    queue = make_queue(topic, name="queue")
    publish_range(topic, 150)
    hands = []
    forget_free = drop_unread._forget_free

    def claimed_meanwhile(using, row, old, deadline):
        forget_free(using, row, old, deadline)
        if not hands:
            models.Delivery.objects.create(consumer_id=row.pk, event_id=50, received_at=ClockTimestamp())
            hands.append(1)

    monkeypatch.setattr(drop_unread, "_forget_free", claimed_meanwhile)
    moves = []
    moved_positions = drop_unread._moved_positions

    def counted(*arguments):
        moves.append(position_of(reader).position)
        return moved_positions(*arguments)

    monkeypatch.setattr(drop_unread, "_moved_positions", counted)
    assert expire_topic(topic)[0] == 1

    assert moves == [0, 0], "the first time it was rolled back"
    assert [(said[0], said[5]) for said in told] == [("queue", 100), ("queue", 1), ("reader", 100)]
    assert pending(queue) == list(range(101, 151))


# A pause, for a dump


@pytest.mark.long
def test_while_it_is_paused_nothing_goes_and_no_consumer_loses_a_delivery(make_topic, make_queue):
    topic = make_topic(segment_size=100, retention=DAY, keep_unread=False)
    queue = make_queue(topic)
    publish_range(topic, 150)
    age(topic, 150)
    until = retention.pause("default", timedelta(hours=1))
    assert until is not None

    waits = expire_topic(topic)
    assert waits[:3] == (0, 0, None)
    assert waits[3].startswith("the end of a pause, at ")
    assert len(pending(queue)) == 150
    retention.pause("default", timedelta(0))
    models.MaintenanceStep.objects.update(paused_until=ClockTimestamp())  # the time is over
    assert expire_topic(topic)[:2] == (2, 150)


def test_a_pause_waits_for_a_segment_that_is_being_dropped(make_topic, in_thread, connect):
    """What drops it may be frozen meanwhile: when the pause is there, nothing of before it drops anything."""
    topic = make_topic(segment_size=100, retention=DAY)
    publish_range(topic, 150)
    age(topic, 150)
    models.MaintenanceStep.objects.create(name="retention", started_at=ClockTimestamp())
    with retention.writing("default", row_of_topic(topic).pk) as now:
        retention.remove("default", now, retention.outlived("default", now))
        pausing = in_thread(retention.pause, "default", timedelta(hours=1))
        waiting = WAITS_FOR_A_LOCK + " AND query LIKE '%maintenancestep%'"
        wait_until(lambda: connect(autocommit=True).execute(waiting).fetchall(), what="a pause that waits")
    assert pausing.result() is not None
    assert log_of(topic) == list(range(101, 151))
    with pytest.raises(retention.Paused), retention.writing("default", row_of_topic(topic).pk) as now:
        retention.remove("default", now, retention.outlived("default", now))
    retention.pause("default", None)
    models.MaintenanceStep.objects.all().delete()
