"""What became of one event: each state of a stream and of a queue, and who has it in hand since when."""

import json
from datetime import timedelta

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from django_events import Backoff, Draft, declarations, publish, publish_many
from django_events.exceptions import EventExpired
from django_events.models import Consumer, DeadLetter, Event
from django_events.operations import pause, rewind
from tests.support.fix_consumers import lease_of, run_once
from tests.support.fix_queues import fill_topic
from tests.support.fix_topics import transfer_all

pytestmark = pytest.mark.usefixtures("transactional_db")

ONCE = Backoff(attempts=1)
LATER = Backoff(attempts=5, base=timedelta(hours=1), cap=timedelta(hours=1))


def fail(event):
    raise ValueError(f"no {event.id}")


def fates(topic, id=1):
    return {one.consumer: one for one in Event.objects.at(topic, id).fate()}


@pytest.mark.slow
@pytest.mark.requirement("X16")
def test_a_stream_tells_of_each_state(make_topic, make_consumer):
    topic = make_topic()
    make_consumer(topic, name="waits", handler=print)
    pause("waits")
    declared = [
        make_consumer(topic, name="handles", handler=lambda event: None),
        make_consumer(topic, name="filters", handler=print, types=["other"]),
        make_consumer(topic, name="gives_up", handler=fail, retry=ONCE),
        make_consumer(topic, name="tries_again", handler=fail, retry=LATER),
    ]
    fill_topic(topic, 1)
    run_once(*declared)
    make_consumer(topic, name="came_later", handler=print, start="end")
    told = fates(topic)

    assert {name: one.state for name, one in told.items()} == {
        "came_later": "passed",
        "filters": "filtered out",
        "gives_up": "dead",
        "handles": "handled",
        "tries_again": "retrying",
        "waits": "pending",
    }
    assert told["gives_up"].dead_letter_id == DeadLetter.objects.get().pk
    assert told["gives_up"].since == DeadLetter.objects.get().dead_at
    assert (told["tries_again"].attempts, told["tries_again"].error.splitlines()[-1]) == (1, "ValueError: no 1")
    assert told["tries_again"].until - timezone.now() > timedelta(minutes=40)
    assert {one.holder for one in told.values()} == {""}


@pytest.mark.requirement("X16")
def test_a_queue_tells_of_each_state_and_who_has_it_in_hand(make_topic, make_queue, make_consumer):
    topic = make_topic()
    queue = make_queue(topic, name="works", handler=print)
    make_queue(topic, name="gives_up", handler=fail, retry=ONCE)
    tries = make_queue(topic, name="tries_again", handler=fail, retry=LATER)
    make_queue(topic, name="remembers", handler=lambda event: None, history=timedelta(days=1))
    fill_topic(topic, 1)
    consumers = {one.name: one for one in declarations.consumers}
    run_once(consumers["gives_up"], consumers["tries_again"], consumers["remembers"])
    assert fates(topic)["works"].state == "pending"
    claimed = queue.claim(1)
    told = fates(topic)

    assert {name: one.state for name, one in told.items()} == {
        "gives_up": "dead",
        "remembers": "handled",
        "tries_again": "retrying",
        "works": "leased",
    }
    assert told["works"].holder == "a test"
    assert told["works"].attempts == 1, "the one under way"
    assert told["works"].since <= timezone.now() < told["works"].until
    assert told["tries_again"].until > told["works"].until
    assert (claimed is not None, tries is not None) == (True, True)


def test_an_event_of_a_batch_in_hand_is_pending(make_topic, make_consumer):
    topic = make_topic()
    reader = make_consumer(topic, handler=fail, retry=Backoff(attempts=5, base=timedelta(0)))
    fill_topic(topic, 1)
    lease = lease_of(reader)

    assert (lease is not None, fates(topic)["reader"].state) == (True, "pending"), "it isn't known at which it is"


def test_what_is_not_there_is_said(make_topic):
    topic = make_topic(segment_size=100, retention_events=1)
    publish_many(topic, [Draft(value=n) for n in range(5)])
    transfer_all()
    with pytest.raises(Event.DoesNotExist):
        Event.objects.at(topic, 6)
    assert not issubclass(Event.DoesNotExist, EventExpired)
    with pytest.raises(CommandError, match="There is no event things/6"):
        call_command("events", "fate", "things/6")


# The command


@pytest.mark.slow
def test_the_command_says_it_consumer_by_consumer(make_topic, make_consumer, capsys):
    topic = make_topic()
    gives_up = make_consumer(topic, name="gives_up", handler=fail, retry=ONCE)
    publish(topic, {"secret": 1}, type="paid", key="7")
    transfer_all()
    run_once(gives_up)
    call_command("events", "fate", "things/1")
    printed = capsys.readouterr().out
    [line] = [line.split() for line in printed.splitlines() if line.startswith("gives_up")]
    assert line[:4] == ["gives_up", "dead", "letter", "1"]
    assert "ValueError: no 1" in printed
    assert "secret" not in printed
    call_command("events", "fate", "things/1", "--format", "json")
    told = json.loads(capsys.readouterr().out)

    assert (told["address"], told["type"], told["key"]) == ("things/1", "paid", "7")
    assert [(one["consumer"], one["state"], one["attempts"]) for one in told["consumers"]] == [("gives_up", "dead", 1)]


def test_an_address_without_a_topic_is_wrong_usage(make_topic):
    make_topic()
    with pytest.raises(CommandError, match="say the topic too, like orders/7") as raised:
        call_command("events", "fate", "7")
    assert raised.value.returncode == 2


def test_a_topic_that_no_consumer_reads(make_topic, capsys):
    fill_topic(make_topic(), 1)
    call_command("events", "fate", "things/1")
    assert "No consumer reads topic things." in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.requirement("X16")
def test_what_a_rewind_left_out_was_not_handled(make_topic, make_consumer):
    topic = make_topic()
    seen = []
    reader = make_consumer(topic, name="reader", handler=lambda event: seen.append(event.id))
    fill_topic(topic, *range(1, 7))
    rewind("reader", to=3)
    run_once(reader)
    assert seen == [3, 4, 5, 6]

    def states():
        return [fates(topic, id)["reader"].state for id in range(1, 7)]

    assert states() == ["left out"] * 2 + ["handled"] * 4
    rewind("reader", to=2)
    assert states() == ["left out", *["pending"] * 5]
    rewind("reader", to=5)
    run_once(reader)
    assert states() == ["left out"] * 4 + ["handled"] * 2
    rewind("reader", to="beginning")
    run_once(reader)
    assert states() == ["handled"] * 6


@pytest.mark.slow
@pytest.mark.requirement("X16")
@pytest.mark.parametrize("history", [None, timedelta(days=1)])
def test_a_queue_that_a_rewind_moved_says_what_it_knows(make_topic, make_consumer, history):
    topic = make_topic()
    queue = make_consumer(topic, name="queue", mode="queue", handler=lambda event: None, history=history)
    fill_topic(topic, 1, 2)
    run_once(queue)
    fill_topic(topic, 3, 4)
    rewind("queue", to="end")
    fill_topic(topic, 5)
    run_once(queue)

    told = [fates(topic, id)["queue"].state for id in range(1, 6)]
    assert told == ["handled", "handled", "rewound", "rewound", "handled"]


@pytest.mark.requirement("X16")
def test_the_rewind_of_an_earlier_consumer_of_the_name_says_nothing(make_topic, make_consumer):
    topic = make_topic()
    make_consumer(topic, name="reader", handler=print)
    fill_topic(topic, 1, 2)
    rewind("reader", to="end")
    assert fates(topic)["reader"].state == "left out"
    Consumer.objects.filter(name="reader").update(registered_at=timezone.now())

    assert fates(topic)["reader"].state == "passed"
