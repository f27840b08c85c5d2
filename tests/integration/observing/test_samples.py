"""Samples for charts: what is in them, one a minute however many take them, and nothing that they could hold up."""

from datetime import timedelta
from itertools import pairwise

import pytest
from django.db import connection
from django.db.models import F, Max
from django.test import override_settings
from django.utils import timezone

from django_events import Backoff, Draft, publish_many
from django_events.models import Consumer, Delivery, Event, Sample, Topic
from django_events.observing import samples
from django_events.observing.samples import OfConsumer, OfTopic, Total, latest, of_consumer, take, totals
from django_events.statements import log_table
from tests.support.fix_consumers import serve_due
from tests.support.fix_queues import fill_topic
from tests.support.fix_topics import transfer_all

pytestmark = pytest.mark.usefixtures("transactional_db")

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


def stored(*ages: timedelta, **columns: object) -> None:
    """Samples of earlier minutes."""
    now = timezone.now().replace(second=0, microsecond=0)
    counts = {"published": 0, "handled": 0, "lag": 0, "buffered": 0, **columns}
    Sample.objects.bulk_create(Sample(at=now - age, taken_at=now - age, **counts) for age in ages)


def ignore_or_fail(event):
    if event.value == "bad":
        raise ValueError("bad")


def test_a_sample_is_how_far_everything_is(lanes, things, make_consumer, make_queue):
    reader = make_consumer(lanes, handler=ignore_or_fail, retry=Backoff(attempts=1))
    queue = make_queue(things)
    publish_many(lanes, [Draft(value=value) for value in ["good", "good", "bad"]])
    transfer_all()
    serve_due(reader)
    fill_topic(things, 1, 2)
    publish_many(lanes, [Draft(value="good")] * 4)
    transfer_all()
    publish_many(things, [Draft(value=3)] * 5)
    of_lanes, of_things = Topic.objects.get(name="lanes").pk, Topic.objects.get(name="things").pk
    row = Consumer.objects.get(name="reader")
    elsewhere = sum(
        topic["id__max"]
        for topic in Event.objects.exclude(topic_id__in=[of_lanes, of_things]).values("topic_id").annotate(Max("id"))
    )

    assert take("default")
    [sample] = Sample.objects.all()
    assert sample.at.second == sample.at.microsecond == 0
    assert sample.topics[str(of_lanes)] == [7, 0]
    assert sample.topics[str(of_things)] == [2, 5]
    *counts, behind = sample.consumers[str(row.pk)]
    assert counts == [4, 2, 1, 1] and behind > 0
    *counts, behind = sample.consumers[str(queue.subscription.consumer_id)]
    assert counts == [2, 0, 0, 0] and behind > 0
    assert (sample.published, sample.buffered) == (elsewhere + 9, 5)
    assert sample.lag == sum(counts[0] for counts in sample.consumers.values())
    assert sample.handled == sum(counts[1] for counts in sample.consumers.values())
    assert len(sample.topics) == Topic.objects.count()


def test_there_is_one_a_minute_however_many_take_them(in_thread):
    taken = [done.result() for done in [in_thread(take, "default") for _ in range(12)]]

    assert Sample.objects.count() == len([one for one in taken if one]) in (1, 2)  # the minute may end meanwhile


def test_a_look_that_finds_one_is_a_single_short_transaction(django_assert_max_num_queries):
    while not take("default"):
        pass
    with django_assert_max_num_queries(4):  # its settings, and the look
        assert not take("default")


def test_old_samples_are_deleted_with_the_next_one():
    stored(timedelta(days=3), timedelta(days=2, minutes=5), timedelta(days=1))
    assert take("default")

    ages = [timezone.now() - at for at in Sample.objects.order_by("at").values_list("at", flat=True)]
    assert [round(age / HOUR) for age in ages] == [24, 0]


def test_a_site_may_do_without():
    with override_settings(DJANGO_EVENTS={"SAMPLES_KEPT": None}):
        assert not take("default")
    assert not Sample.objects.exists()


def test_what_is_counted_is_shared_by_many_queues(things, make_queue, monkeypatch):
    monkeypatch.setattr(samples, "COUNTED_OF_QUEUES", 6)
    before = Consumer.objects.filter(mode="queue").count()
    queues = [make_queue(things, name=f"queue-{i}") for i in range(2)]
    fill_topic(things, *range(9))
    assert take("default")

    [sample] = Sample.objects.all()
    lags = [sample.consumers[str(queue.subscription.consumer_id)][0] for queue in queues]
    assert lags == [max(6 // (before + 2), 1)] * 2


@pytest.mark.parametrize("mode", ["stream", "queue"])
def test_a_sample_says_how_old_the_oldest_event_is_that_was_not_passed(things, make_consumer, mode):
    late = make_consumer(things, handler=print, mode=mode)
    fill_topic(things, *range(3))
    with connection.cursor() as cursor:
        log = log_table(Topic.objects.get(name="things").pk)
        cursor.execute(f"UPDATE {log} SET logged_at = logged_at - interval '5 minutes'")
    Delivery.objects.update(received_at=F("received_at") - 5 * MINUTE)
    assert take("default")

    row = Consumer.objects.get(name=late.name)
    [before] = of_consumer("default", row.pk, HOUR)
    assert before.lag == 3
    assert before.behind is not None and 300 <= before.behind < 400
    serve_due(late)
    Sample.objects.all().delete()
    assert take("default")
    assert of_consumer("default", row.pk, HOUR)[0].behind == 0


# --- taken by the transfer


def test_charts_read_what_was_stored_in_order_of_time():
    counts = {"published": 7, "handled": 5, "lag": 2, "buffered": 1}
    stored(3 * MINUTE, MINUTE, 2 * MINUTE, 90 * MINUTE, topics={"7": [70, 1]}, consumers={"9": [2, 5, 4, 3]}, **counts)
    at = sorted(Sample.objects.values_list("at", flat=True))[1:]

    assert totals("default", HOUR) == [Total(one, 7, 5, 2, 1) for one in at]
    assert of_consumer("default", 9, HOUR) == [OfConsumer(one, 2, 5, 4, 3) for one in at]
    assert of_consumer("default", 7, HOUR) == []


@pytest.mark.slow
@pytest.mark.parametrize(("period", "minutes"), [(HOUR, 1), (6 * HOUR, 2), (48 * HOUR, 12)])
def test_a_chart_has_not_too_many_points_and_the_newest_is_one(period, minutes):
    stored(*(MINUTE * i for i in range(1, 3_000)), consumers={"9": [2, 5, 4, 3]})
    step, before = minutes * MINUTE, timezone.now() - period
    points = [one.at for one in totals("default", period)]
    after = timezone.now() - period

    assert before < points[0] <= after + step
    assert {later - earlier for earlier, later in pairwise(points[1:-1])} == {step}
    assert points[-1] == Sample.objects.latest("at").at
    assert len(points) <= samples.POINTS + 1
    # A minute that ends meanwhile takes the first point with it.
    assert [one.at for one in of_consumer("default", 9, period)] in (points, points[1:])


def test_the_latest_sample_for_rates_is_some_seconds_old():
    assert latest("default") is None
    stored(5 * MINUTE, 2 * MINUTE, -MINUTE, published=7, topics={"7": [70, 1]}, consumers={"9": [2, 5, 4, 3]})
    whole = latest("default")

    assert whole is not None
    at = sorted(Sample.objects.values_list("at", flat=True))[1]
    assert whole.total == Total(at, 7, 0, 0, 0)
    assert whole.topics == {7: OfTopic(at, 70, 1)}
    assert whole.consumers == {9: OfConsumer(at, 2, 5, 4, 3)}


def test_a_rate_is_never_below_zero():
    assert samples.per_second(100, 160, MINUTE) == 1.0
    assert samples.per_second(100, 40, MINUTE) == 0.0
    assert samples.per_second(100, 160, timedelta(0)) == 0.0
