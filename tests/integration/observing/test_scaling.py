"""How many workers a lag asks for: by samples, and plainly not where they don't tell it."""

import json
import math
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from django_events import models
from django_events.consuming.registered import registered
from django_events.observing.lag import standings
from django_events.observing.scaling import KEPT_UP, NOT_AT_WORK, STOOD_STILL, wanted
from django_events.observing.state import read
from tests.support.fix_queues import fill_topic

pytestmark = pytest.mark.usefixtures("transactional_db")

MINUTE = timedelta(minutes=1)


def stored(name, *moments, age=MINUTE):
    """Samples of a minute each, the last one so old: the lag, and how many were handled; of a stream, the log's end."""
    row = models.Consumer.objects.get(name=name)
    now = timezone.now()
    for index, (lag, counted) in enumerate(moments):
        at = now - age - (len(moments) - 1 - index) * MINUTE
        end, handled = (0, counted) if row.mode == "queue" else (counted, 0)
        models.Sample.objects.create(
            at=at.replace(second=0, microsecond=0),
            taken_at=at,
            published=0,
            handled=0,
            lag=lag,
            buffered=0,
            topics={row.topic_id: [end, 0]},
            consumers={row.pk: [lag, handled, 0, 0]},
        )


def work(queue, *, workers):
    """As if so many had something in hand."""
    models.DeliveryLease.objects.bulk_create(
        models.DeliveryLease(
            token=number + 1,
            consumer_id=queue.subscription.consumer_id,
            leased_until=timezone.now() + timedelta(hours=1),
            holder=f"host:{number}",
            event_ids=[],
        )
        for number in range(workers)
    )


def asked(name, **options):
    [one] = wanted("default", standings("default", registered("default", name)), **options)
    return one


def test_it_asks_for_what_arrives_and_for_the_lag(things, make_queue):
    queue = make_queue(things)
    fill_topic(things, *range(600))
    work(queue, workers=2)
    # 1,200 a minute arrive, and two workers handle 600: one does 5 a second.
    stored("queue", (1_000, 0), (1_600, 600), (2_200, 1_200))
    one = asked("queue")

    assert (one.arriving, one.per_worker, one.busy, one.catching_up) == (20.0, 5.0, 2 * MINUTE, 1.0)
    assert one.workers == math.ceil(21 / 5)
    assert asked("queue", within=MINUTE).workers == math.ceil(30 / 5)
    assert asked("queue", per_event=timedelta(seconds=0.5)).workers == math.ceil(21 / 2)
    assert asked("queue", working=4).workers == math.ceil(21 / 2.5)


def test_minutes_in_which_it_ran_out_of_work_tell_nothing_of_its_speed(things, make_queue):
    queue = make_queue(things)
    work(queue, workers=1)
    stored("queue", (0, 0), (0, 60), (900, 120), (900, 720), (0, 1_620))
    assert asked("queue").per_worker == 10.0  # the fourth: at both ends more than a second's work was waiting


def test_of_a_stream_what_its_filter_leaves_out_is_passed_too(lanes, make_consumer):
    make_consumer(lanes, handler=print, name="stream", types=["rare"])
    row = models.Position.objects.filter(consumer__name="stream", partition__in=[0, 1])
    row.update(token=7, leased_until=timezone.now() + timedelta(hours=1), holder="host:1")
    stored("stream", (6_000, 6_000), (6_000, 7_200), (6_000, 8_400))
    one = asked("stream")

    assert (one.arriving, one.per_worker, one.working, one.limit) == (20.0, 20.0, 1, 4)
    assert one.workers == 1
    assert asked("stream", per_event=timedelta(seconds=1)).workers == 20


@pytest.mark.parametrize(
    ("moments", "workers", "why"),
    [
        ([(9, 0), (9, 60)], 1, "The samples don't suffice: 2 samples of the last 15 min know it, expected 3"),
        ([(0, 0), (0, 60), (0, 120)], 1, KEPT_UP),
        ([(9_000, 0), (9_000, 600), (9_000, 1_200)], 0, NOT_AT_WORK),
    ],
)
def test_where_the_samples_do_not_tell_it_the_reason_is_said(things, make_queue, moments, workers, why):
    queue = make_queue(things)
    work(queue, workers=workers)
    stored("queue", *moments)
    one = asked("queue")
    assert one.workers is None
    assert one.why.startswith(why)


def test_one_that_stands_still_and_old_samples_are_said(things, make_queue):
    make_queue(things)
    fill_topic(things, 1, 2)
    stored("queue", (2, 0), (2, 0), (2, 0))
    assert asked("queue").why == STOOD_STILL
    models.Sample.objects.all().delete()
    stored("queue", (2, 0), (2, 0), (2, 0), age=6 * MINUTE)
    assert "the newest 6 min old" in asked("queue").why
    models.Consumer.objects.filter(name="queue").update(paused_at=timezone.now())
    assert asked("queue").why == "It is paused: no worker would help."


def test_the_command_says_the_number_and_what_it_assumes(lanes, make_consumer, capsys):
    make_consumer(lanes, handler=print, name="stream")
    stored("stream", (6_000, 6_000), (6_000, 7_200), (6_000, 8_400))
    call_command("events", "scale", "stream", "--per-event", "0.5")
    said = capsys.readouterr()
    assert "stream asks for 10 workers: threads of run_consumer." in said.out
    assert "lanes: a stream has one worker in each partition, so more than 4 have nothing to do." in said.out
    assert "events go on arriving as in the last 15 min" in said.err
    assert "an event takes as long as you said" in said.err

    call_command("events", "scale", "stream", "--format", "json")
    data = json.loads(capsys.readouterr().out)
    assert (data["workers"], data["topics"][0]["why"]) == (None, NOT_AT_WORK)
    with pytest.raises(CommandError, match="'0' is no time for an event"):
        call_command("events", "scale", "stream", "--per-event", "0")
    with pytest.raises(CommandError, match="'0s' is too short"):
        call_command("events", "scale", "stream", "--within", "0s")


def test_an_autoscaler_gets_it_as_a_metric_and_none_where_it_is_not_known(things, make_queue):
    queue = make_queue(things)
    work(queue, workers=2)
    of = [m for m in read("default") if m.metric.full_name == "django_events_consumer_workers_wanted"]
    assert "queue" not in {m.labels[1] for m in of}
    stored("queue", (1_000, 0), (1_600, 600), (2_200, 1_200))
    of = [m for m in read("default") if m.metric.full_name == "django_events_consumer_workers_wanted"]
    assert [(m.labels, m.value) for m in of] == [(("default", "queue", "things"), 4)]
