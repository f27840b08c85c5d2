"""Workers that hand out only what came to a queue in a stretch of time: the backlog of last night, first or alone."""

from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from django_events import Draft, models, publish_many
from django_events.models.functions import ClockTimestamp
from tests.support.fix_consumers import dead_letters, run_once, write_order, written
from tests.support.fix_queues import deliveries, end_pauses, fill_topic, pending
from tests.support.fix_topics import transfer_all

pytestmark = [pytest.mark.usefixtures("transactional_db", "shelf"), pytest.mark.requirement("D4")]

HOUR = timedelta(hours=1)


def write_value(event):
    write_order(event.value)


def run(*arguments, threads=1):
    call_command("run_consumer", "queue", "--once", "--threads", str(threads), *arguments, verbosity=0)


def at(moment):
    return moment.isoformat()


@pytest.fixture(params=[False, True], ids=["unordered", "ordered"])
def night(request, things, make_queue):
    """A queue with nine events: three of yesterday, three of the night, three of now."""
    queue = make_queue(things, handler=write_value, ordered=request.param)
    publish_many(things, [Draft(value=str(n), key=f"k{n}") for n in range(9)])
    transfer_all()
    now = timezone.now()
    for first, age in ((1, 24 * HOUR), (4, 8 * HOUR), (7, timedelta(minutes=1))):
        deliveries(queue).filter(event_id__gte=first, event_id__lt=first + 3).update(received_at=now - age)
    return queue


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 4])
def test_only_what_came_in_the_window_is_handled_and_then_it_ends(night, threads):
    now = timezone.now()
    run("--received-since", at(now - 10 * HOUR), "--received-until", at(now - 2 * HOUR), threads=threads)
    assert sorted(written()) == ["3", "4", "5"]
    assert pending(night) == [1, 2, 3, 7, 8, 9]

    run("--received-until", "12h", threads=threads)
    assert pending(night) == [7, 8, 9]
    assert run_once(night.subscription.consumer) == 3
    assert sorted(written()) == [str(n) for n in range(9)]


def test_a_key_does_not_overtake_itself(things, make_queue):
    queue = make_queue(things, handler=write_value, ordered=True)
    fill_topic(things, "a", "b", key="k")
    deliveries(queue).filter(event_id=1).update(received_at=timezone.now() - 9 * HOUR)
    run("--received-since", "1h")
    assert written() == []
    run("--received-until", "1h")
    run("--received-since", "1h")
    assert written() == ["a", "b"]


def test_nothing_is_made_that_would_be_received_now(things, make_queue):
    queue = make_queue(things, handler=write_value, live=False)
    fill_topic(things, "a")
    run("--received-since", "1h")
    assert pending(queue) == []
    assert run_once(queue.subscription.consumer) == 1


def test_what_fails_in_a_window_is_tried_again_in_it_and_dies_as_always(things, make_queue):
    def fail(event):
        raise ValueError(event.value)

    queue = make_queue(things, handler=fail)
    fill_topic(things, "bad", "good")
    deliveries(queue).filter(event_id=1).update(received_at=timezone.now() - 9 * HOUR)
    for _ in range(3):
        run("--received-until", "1h")
        if deliveries(queue).filter(visible_at__isnull=False).exists():
            end_pauses(queue)
    assert [letter.event_id for letter in dead_letters(queue.subscription.consumer)] == [1]
    assert [one.attempts for one in deliveries(queue)] == [0]


def test_a_window_far_behind_the_oldest_is_not_searched_from_the_beginning_each_second(things, make_queue):
    queue = make_queue(things)
    fill_topic(things, *range(20))
    since = timezone.now() + HOUR
    deliveries(queue).filter(event_id__gt=15).update(received_at=since + HOUR)
    queue.since = since
    claimed = queue.claim(2)
    queue._round._began = 0.0  # as if a second were over
    claimed = [*claimed.attempts, *queue.claim(3).attempts]
    assert claimed == [16, 17, 18, 19, 20]
    assert queue._after == 20
    models.Delivery.objects.filter(event_id=16).update(token=None)  # another worker gave it back
    assert list(queue.claim(2).attempts) == [16]


def test_a_stream_has_no_such_window(things, make_consumer, make_queue):
    make_consumer(things, handler=print, name="stream")
    make_queue(things)
    with pytest.raises(CommandError, match="Consumer 'stream' is a stream, which handles the events of a partition in"):
        call_command("run_consumer", "queue", "stream", "--once", "--received-since", "1h")
    with pytest.raises(CommandError, match="--received-since is not before --received-until"):
        call_command("run_consumer", "queue", "--once", "--received-since", "1h", "--received-until", "2h")
    with pytest.raises(CommandError, match="is no time, expected 2h, for two hours ago, or one"):
        call_command("run_consumer", "queue", "--once", "--received-since", "soon")
    assert not models.Delivery.objects.filter(received_at__gt=ClockTimestamp()).exists()
