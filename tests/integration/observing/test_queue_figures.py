"""What becomes of a queue's events, in numbers: each is in one state, and each state is told wherever people look."""

import json
from datetime import timedelta

import pytest
from django.core.management import call_command

from django_events import Backoff, models
from django_events.consuming.queues.server import redrive_some
from django_events.metrics.exposition import text
from django_events.models.functions import ClockTimestamp
from django_events.observing.lag import standings
from django_events.observing.queues import figures
from django_events.observing.state import IN_HAND, QUEUE_EVENTS, QUEUE_OLDEST, read
from django_events.operations import redrive
from tests.support.fix_queues import another, expire, fail, fill_topic, finish, settle

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("S13")]

HOUR = timedelta(hours=1)
NOTHING = {"available": 0, "in hand": 0, "waiting": 0, "retrying": 0, "dead": 0}


def figures_of(name="queue", **options):
    [row] = models.Consumer.objects.filter(name=name)
    found = [one for one in standings("default") if one.consumer == name]
    return figures("default", found, **options)[row.pk]


def numbers(**options):
    return {state: one.events for state, one in figures_of(**options).states()}


def make_older(by, *event_ids):
    models.Delivery.objects.filter(event_id__in=event_ids).update(received_at=ClockTimestamp() - by)


@pytest.fixture
def queue(make_topic, make_queue):
    return make_queue(make_topic("letters"), retry=Backoff(attempts=2, base=HOUR))


@pytest.fixture
def busy(queue):
    """Six events: two available, one in hand, two tried again in an hour, one dead."""
    fill_topic("letters", *range(1, 7))
    fail(first := queue.claim(1), first.events[0])
    fail(second := queue.claim(1), second.events[0])
    third = queue.claim(1)
    settle(third, failure=third.judge(third.events[0].with_attempt(2), ValueError("bad")))
    return queue.claim(1)


def test_each_event_is_in_one_state(busy, queue):
    assert numbers() == {"available": 2, "in hand": 1, "waiting": 0, "retrying": 2, "dead": 1}

    finish(busy)
    assert numbers() == {"available": 2, "in hand": 0, "waiting": 0, "retrying": 2, "dead": 1}
    finish(another(queue).claim(10))
    assert numbers() == {**NOTHING, "retrying": 2, "dead": 1}
    models.Delivery.objects.update(visible_at=ClockTimestamp())
    assert numbers() == {**NOTHING, "available": 2, "dead": 1}
    busy = another(queue).claim(10)
    assert numbers() == {**NOTHING, "in hand": 2, "dead": 1}
    finish(busy)


def test_the_oldest_of_each_is_told_by_when_it_came(busy):
    make_older(2 * HOUR, 6)
    make_older(3 * HOUR, 4)
    make_older(4 * HOUR, 2)
    models.Delivery.objects.filter(event_id=4).update(last_at=ClockTimestamp() - HOUR)
    models.DeadLetter.objects.update(dead_at=ClockTimestamp() - 5 * HOUR)

    found = figures_of()
    hours = {state: one.oldest and one.oldest // HOUR for state, one in found.states()}
    assert hours == {"available": 2, "in hand": 3, "waiting": None, "retrying": 4, "dead": 5}
    assert found.longest_in_hand // HOUR == 1


def test_what_a_lost_worker_has_is_in_hand_until_it_is_taken_over(busy, queue):
    expire(busy)
    assert numbers()["in hand"] == 1

    taken = another(queue).claim(1)
    assert taken.lost_token == busy.token
    assert numbers()["in hand"] == 1
    finish(taken)
    assert numbers()["in hand"] == 0
    assert models.DeliveryLease.objects.count() == 0


def test_a_delay_is_waiting_and_no_retry(make_topic, make_queue):
    make_queue(make_topic("letters"), delay=HOUR)
    fill_topic("letters", 1, 2)

    assert numbers() == {**NOTHING, "waiting": 2}


def test_a_dead_letter_that_is_redriven_is_no_dead_letter_twice(busy, queue):
    redrive(models.DeadLetter.objects.all(), by="a test")
    assert numbers()["dead"] == 1

    redrive_some(queue.subscription)  # as a worker does it
    assert numbers() == {"available": 3, "in hand": 1, "waiting": 0, "retrying": 2, "dead": 0}


def test_numbers_are_counted_up_to_a_limit_and_say_so(busy, queue):
    found = figures_of(counted=1)
    assert (found.available.events, found.available.more) == (0, True)  # the oldest two are tried again later
    assert (found.retrying.events, found.retrying.more) == (1, True)
    assert (found.dead.events, found.dead.more) == (1, False)
    assert (str(found.retrying), str(found.dead)) == ("≥ 1", "1")


def test_deliveries_that_a_rewind_left_behind_the_end_of_the_filling_do_not_count(queue):
    fill_topic("letters", 1, 2, 3)
    models.Consumer.objects.filter(name="queue").update(live=False, filled_until=1)

    assert numbers() == {**NOTHING, "available": 1}
    models.Consumer.objects.filter(name="queue").update(live=True)
    assert numbers() == {**NOTHING, "available": 3}


@pytest.mark.slow
def test_commands_and_metrics_tell_them(busy, capsys):
    make_older(2 * HOUR, 4, 6)
    for subcommand in ("status", "consumers"):
        call_command("events", subcommand)
        lines = capsys.readouterr().out.splitlines()
        [heading] = [number for number, line in enumerate(lines) if line.split()[:2] == ["queue", "topic"]]
        assert lines[heading].split() == ["queue", "topic", "available", "in", "hand", "waiting", "retrying", "dead"]
        [row] = [line for line in lines[heading:] if line.startswith("queue ") and "letters" in line]
        assert "2, 2 h" in row
        assert "1, 2 h" in row
    call_command("events", "consumers", "queue", "--format", "json")
    [told] = json.loads(capsys.readouterr().out)
    states = {state: told["queue"][state]["events"] for state in ("available", "in_hand", "retrying", "dead")}
    assert states == {"available": 2, "in_hand": 1, "retrying": 2, "dead": 1}
    assert told["queue"]["waiting"] == {"events": 0, "more": False, "oldest": None}
    assert told["queue"]["available"]["oldest"] > 7_000

    found = read("default")
    of_queue = [one for one in found if "queue" in one.labels]
    metrics = {(one.metric, one.labels[-1]): one.value for one in of_queue}
    assert metrics[QUEUE_EVENTS, "in_hand"] == 1
    assert metrics[QUEUE_EVENTS, "retrying"] == 2
    assert metrics[QUEUE_OLDEST, "available"] > 7_000
    assert metrics[QUEUE_OLDEST, "waiting"] == 0
    assert [one.value >= 0 for one in of_queue if one.metric is IN_HAND] == [True]
    line = 'django_events_queue_events{database="default",consumer="queue",topic="letters",state="in_hand"} 1.0'
    assert line in text(found)


def test_a_stream_has_none(make_topic, make_consumer, capsys):
    make_consumer(make_topic("letters"), handler=print, name="stream")
    fill_topic("letters", 1)

    call_command("events", "consumers", "stream")
    assert "available" not in capsys.readouterr().out
    call_command("events", "consumers", "stream", "--format", "json")
    [told] = json.loads(capsys.readouterr().out)
    assert told["queue"] is None
    assert not [one for one in read("default") if one.metric is QUEUE_EVENTS and "stream" in one.labels]
