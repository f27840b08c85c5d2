"""Since when a relay's target is away: the same for each worker that tries, until something is sent."""

import json
from datetime import timedelta

import pytest
from django.core.management import call_command

from django_events import Backoff
from django_events.bridges.relays import outages
from django_events.bridges.relays.relaying import Relaying
from django_events.bridges.relays.targets import TargetUnavailable
from django_events.consuming.handlers import FailedAt
from django_events.models import Consumer, DeadLetter
from django_events.models.functions import ClockTimestamp
from django_events.observing.lag import standings
from django_events.observing.problems import find_problems
from django_events.observing.state import RELAY_FAILING, read
from django_events.operations import redrive, retry_now, rewind, skip
from tests.support.fix_consumers import end_pauses, exhaust, position_of, positions, serve_due
from tests.support.fix_queues import fill_topic
from tests.support.fix_relays import received
from tests.support.own_target import Own

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X20")]


class Door(Own):
    """A target, and its bridge, which takes so many messages, and no more."""

    def __init__(self):
        self.takes = 0
        self.taken = []

    def send(self, messages):
        sent = messages[: self.takes]
        self.takes -= len(sent)
        self.taken += [one.address for one in sent]
        if len(sent) < len(messages):
            raise TargetUnavailable("it is shut", acknowledged=len(sent))
        return [None] * len(messages)


@pytest.fixture
def door():
    return Door()


@pytest.fixture
def shut(things, make_relay, door):
    """A relay that has found its target away an hour ago, with three events to send."""
    relay = make_relay(things, to=door)
    fill_topic(things, 1, 2, 3)
    serve_due(relay)
    positions(relay).update(failing_since=ClockTimestamp() - timedelta(hours=1))
    return relay


def since(relay):
    return position_of(relay).failing_since


def minutes(relay):
    """How long ago that is."""
    return positions(relay).values_list(ClockTimestamp() - since(relay), flat=True).get() / timedelta(minutes=1)


def try_again(relay):
    """By another worker, which knows nothing of the outage."""
    end_pauses(relay)
    serve_due(relay)


def test_it_is_noted_when_the_outage_begins_and_when_it_ends(things, make_relay, door):
    relay = make_relay(things, to=door)
    fill_topic(things, 1, 2)
    assert since(relay) is None
    serve_due(relay)
    assert 0 <= minutes(relay) < 2
    assert f"nothing can be sent since {since(relay):%Y-%m-%d %H:%M:%S} UTC" in position_of(relay).error

    door.takes = 9
    try_again(relay)
    assert (since(relay), position_of(relay).error, position_of(relay).position) == (None, "", 2)


def test_another_worker_goes_on_with_the_same_outage(shut):
    before = since(shut)
    try_again(shut)
    try_again(shut)

    assert since(shut) == before
    assert f"nothing can be sent since {before:%Y-%m-%d %H:%M:%S} UTC" in position_of(shut).error
    assert 60 <= minutes(shut) < 62


def test_an_outage_that_another_worker_saw_the_end_of_is_not_the_one_that_begins(things, make_relay, door):
    """The partition was away and came back: this worker's own outage is over."""
    relay = make_relay(things, to=door, retry=Backoff(base=timedelta(seconds=4)))
    fill_topic(things, 1, 2)
    events, relaying = received(), Relaying(relay)
    with pytest.raises(FailedAt) as first:
        relaying(events)
    with pytest.raises(FailedAt) as second:
        relaying(events[1:])  # another one has sent the first
    relaying.close()

    assert second.value.error.since > first.value.error.since
    assert second.value.error.after <= timedelta(seconds=4)


def test_a_rewind_to_where_this_worker_was_in_an_outage_long_ago_is_none_of_that(things, make_relay, door, monkeypatch):
    """Another one went on since, and the target is away again."""
    monkeypatch.setattr(outages, "KNOWN_FOR", 0.0)
    relay = make_relay(things, to=door)
    fill_topic(things, 1, 2)
    events, relaying = received(), Relaying(relay)
    with pytest.raises(FailedAt) as first:
        relaying(events)
    door.takes = 2
    serve_due(relay)
    rewind(relay, to=1)
    with pytest.raises(FailedAt) as second:
        relaying(events)
    relaying.close()

    assert second.value.error.since > first.value.error.since


def test_what_is_sent_in_front_ends_it_and_another_one_begins(shut, door):
    door.takes = 1
    try_again(shut)

    assert (position_of(shut).position, door.taken) == (1, ["things/1"])
    assert 0 <= minutes(shut) < 2


def test_in_a_batch_too(shut, door):
    door.takes, relaying = 1, Relaying(shut)
    with pytest.raises(FailedAt) as failed:
        relaying(received())

    assert (failed.value.index, door.taken) == (1, ["things/1"])
    assert failed.value.error.since - since(shut) > timedelta(minutes=59)


def test_an_error_of_the_event_itself_ends_it(things, make_relay, door):
    broken = []

    def transform(event):
        assert not broken
        return event.value

    relay = make_relay(things, to=door, transform=transform)
    fill_topic(things, 1)
    serve_due(relay)
    assert since(relay) is not None
    broken.append("it")
    try_again(relay)

    assert (since(relay), position_of(relay).attempts) == (None, 1)


def test_trying_at_once_is_no_new_outage_and_moving_on_is_none(shut):
    before = since(shut)
    retry_now(shut)
    assert since(shut) == before
    serve_due(shut)
    assert since(shut) == before
    skip(shut, 1, reason="it is not wanted")
    assert since(shut) is None

    serve_due(shut)
    assert since(shut) is not None
    rewind(shut, to=1)
    assert since(shut) is None


def test_a_dead_letter_that_is_sent_again_begins_no_outage_of_its_partition(things, make_relay, door):
    broken = [1]

    def transform(event):
        assert event.value not in broken
        return event.value

    relay = make_relay(things, to=door, transform=transform)
    fill_topic(things, 1)
    exhaust(relay)
    broken.clear()
    redrive(DeadLetter.objects.all())
    serve_due(relay)

    assert "nothing can be sent since" in DeadLetter.objects.get().error
    assert since(relay) is None


def test_problems_bridges_and_the_metric_say_it(shut, capsys):
    def metric():
        return [one.value for one in read("default") if one.metric is RELAY_FAILING]

    try_again(shut)
    noted = since(shut)
    [problem] = [one for one in find_problems("default", [], None, standings("default")) if one.kind == "retrying"]
    assert f"nothing can be sent since {noted:%Y-%m-%d %H:%M:%S} UTC" in problem.what
    call_command("events", "bridges", "--format", "json")
    [told] = json.loads(capsys.readouterr().out)["relays"]
    assert told["failing_since"].startswith(f"{noted:%Y-%m-%dT%H:%M:%S}")
    call_command("events", "bridges")
    assert "failing since" in capsys.readouterr().out
    [seconds] = metric()
    assert 3_600 <= seconds < 3_700

    Consumer.objects.filter(name=shut.name).update(paused_at=ClockTimestamp())
    assert metric() == [0]


def test_the_metric_is_of_relays_and_zero_while_they_send(things, make_relay, make_consumer, door):
    make_consumer(things, handler=lambda event: None, name="other")
    relay = make_relay(things, to=door)
    door.takes = 9
    fill_topic(things, 1)
    serve_due(relay)

    assert [(one.labels[1], one.value) for one in read("default") if one.metric is RELAY_FAILING] == [("relay", 0)]
