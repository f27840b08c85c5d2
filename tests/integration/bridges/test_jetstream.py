"""Relays to a real NATS JetStream: what is sent, what is there already, what is refused, and what an outage costs."""

import json
from contextlib import closing

import pytest
from django.test import override_settings
from nats.js.api import RetentionPolicy

from django_events import jetstream
from django_events.bridges.relays.relaying import Relaying
from django_events.consuming.handlers import FailedAt
from django_events.models import DeadLetter
from django_events.operations import redrive, rewind
from tests.support.fix_consumers import dead_letters, end_pauses, exhaust, position_of, run_once, serve_due
from tests.support.fix_queues import fill_topic
from tests.support.fix_relays import received

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X20")]


def addresses(nats, prefix="THINGS"):
    return [entry.address for entry in nats.entries(prefix)]


@pytest.fixture
def stream(nats):
    nats.add_stream("THINGS-0", "shop.*.0")


def test_each_event_is_a_message(things, make_relay, nats, stream):
    fill_topic(things, {"n": 1}, {"n": 2}, {"n": 3}, type="order.placed", key="Zoë 100%")
    relay = make_relay(things, to=jetstream("shop.things", stream="THINGS"))
    assert serve_due(relay) == 3

    entries = nats.entries()
    assert [(one.log, one.id, one.address) for one in entries] == [
        ("THINGS-0", "shop.things.0", f"things/{n}") for n in (1, 2, 3)
    ]
    headers = entries[0].attributes
    assert headers["ce-subject"] == "Zo%C3%AB%20100%25"
    assert headers["Nats-Msg-Id"].startswith("things/1@")
    assert {name: headers[name] for name in ("ce-type", "ce-source", "content-type")} == {
        "ce-type": "order.placed",
        "ce-source": "/things",
        "content-type": "application/json",
    }
    assert json.loads(entries[0].data) == {"n": 1}


def test_a_stream_of_another_relay_of_the_topic_is_refused(things, make_relay, nats, stream):
    fill_topic(things, 1, 3, type="a")
    fill_topic(things, 2, type="b")
    to = jetstream("shop.things", stream="THINGS")
    serve_due(make_relay(things, to=to, name="first", types=["a"]))
    relay = make_relay(things, to=to, types=["b"])
    serve_due(relay)

    assert (position_of(relay).position, addresses(nats)) == (0, ["things/1", "things/2"])
    assert "filled by the relay 'first'" in position_of(relay).error


def test_a_rewind_sends_nothing_again(things, make_relay, nats, stream):
    relay = make_relay(things, to=jetstream("shop.things", stream="THINGS"))
    fill_topic(things, 1, 2, 3)
    serve_due(relay)
    rewind(relay, to=1)
    fill_topic(things, 4)
    assert serve_due(relay) == 4

    assert addresses(nats) == [f"things/{n}" for n in (1, 2, 3, 4)]


@pytest.mark.slow
def test_one_reader_fills_one_stream_by_subjects_of_each_event(lanes, make_relay, nats):
    nats.add_stream("LANES", "lanes.>")
    for key in "abcdefgh":
        fill_topic(lanes, 1, 2, key=key)
    to = jetstream(lambda event: f"lanes.{event.key}", stream="LANES")
    run_once(make_relay(lanes, to=to, partitioned=False), threads=3)

    entries = nats.entries("LANES")
    assert [one.event_id for one in entries] == list(range(1, 17))
    assert {one.id for one in entries} == {f"lanes.{key}" for key in "abcdefgh"}


@pytest.mark.slow
def test_what_was_read_and_deleted_is_not_sent_again_within_the_servers_window(things, make_relay, nats):
    """A work queue keeps no message that was taken: the server's own memory of ids is all there is."""
    nats.add_stream("THINGS-0", "shop.*.0", retention=RetentionPolicy.WORK_QUEUE)
    relay = make_relay(things, to=jetstream("shop.things", stream="THINGS"))
    fill_topic(things, 1, 2, 3)
    serve_due(relay)
    nats.ask(taken)
    rewind(relay, to=2)
    fill_topic(things, 4, 5)
    serve_due(relay)

    assert addresses(nats) == ["things/4", "things/5"]


async def taken(context):
    """All that a work queue has, which forgets it."""
    subscribed = await context.pull_subscribe("shop.things.0", durable="reader")
    for message in await subscribed.fetch(10, timeout=5):
        await message.ack_sync()


def test_a_purged_stream_gets_again_what_is_rewound_at_once(things, make_relay, nats, stream):
    """Within the server's window, too, which keeps ids of messages that are gone."""
    relay = make_relay(things, to=jetstream("shop.things", stream="THINGS"))
    fill_topic(things, 1, 2, 3)
    serve_due(relay)
    nats.ask(lambda context: context.purge_stream("THINGS-0"))
    rewind(relay, to=1)
    serve_due(relay)

    assert addresses(nats) == ["things/1", "things/2", "things/3"]


@pytest.mark.parametrize("forgets", ["purged", pytest.param("work queue", marks=pytest.mark.slow)])
def test_events_of_a_log_made_anew_are_others_than_those_of_the_former_one(things, make_relay, nats, forgets):
    """The server remembers the former ones by their ids, and their addresses are the same."""
    retention = RetentionPolicy.WORK_QUEUE if forgets == "work queue" else RetentionPolicy.LIMITS
    nats.add_stream("THINGS-0", "shop.*.0", retention=retention)
    fill_topic(things, 1, 2, 3)
    relay = make_relay(things, to=jetstream("shop.things", stream="THINGS"))
    with closing(Relaying(relay)) as former:
        former(received(former=True))
    nats.ask(taken if forgets == "work queue" else lambda context: context.purge_stream("THINGS-0"))
    serve_due(relay)

    assert addresses(nats) == ["things/1", "things/2", "things/3"]


@pytest.mark.parametrize("subject", ["$JS.API.STREAM.PURGE.THINGS", "_INBOX.a", "shop." + "x" * 5_000, "shop.\ud800"])
def test_what_an_event_says_is_no_order_to_the_server_and_holds_nothing_up(things, make_relay, nats, subject):
    nats.add_stream("THINGS", "shop.>")
    fill_topic(things, *range(3))
    to = jetstream(lambda event: subject if event.value == 1 else "shop.a", stream="THINGS")
    relay = make_relay(things, to=to, partitioned=False)
    exhaust(relay)

    assert addresses(nats) == ["things/1", "things/3"]
    assert [(dead.event_id, "no '$' in front" in dead.error) for dead in dead_letters(relay)] == [(2, True)]


def test_a_subject_of_an_event_that_no_stream_takes_is_tried_again_and_then_a_dead_letter(things, make_relay, nats):
    nats.add_stream("THINGS", "shop.>")
    fill_topic(things, *range(3))
    to = jetstream(lambda event: "other.a" if event.value == 1 else "shop.a", stream="THINGS")
    relay = make_relay(things, to=to, partitioned=False)
    exhaust(relay)

    assert addresses(nats) == ["things/1", "things/3"]
    assert ["no stream takes its subject" in dead.error for dead in dead_letters(relay)] == [True]


def test_the_last_message_of_another_program_is_said_to_be_none_of_a_relay(things, make_relay, nats, stream):
    nats.publish("shop.things.0", b"{}", **{"ce-id": "0b7e3f1c-9d", "ce-source": "x"})
    fill_topic(things, 1)
    relay = make_relay(things, to=jetstream("shop.things", stream="THINGS"))
    serve_due(relay)

    assert "is not of a relay" in position_of(relay).error


def test_a_dead_letter_that_is_redriven_comes_behind_and_later_events_behind_it(things, make_relay, nats, stream):
    broken = [3]
    fill_topic(things, *range(1, 6))

    def transform(event):
        assert event.value not in broken
        return event.value

    relay = make_relay(things, to=jetstream("shop.things", stream="THINGS"), transform=transform)
    exhaust(relay)
    broken.clear()
    redrive(DeadLetter.objects.all())
    serve_due(relay)
    rewind(relay, to=1)
    serve_due(relay)
    fill_topic(things, 6)
    serve_due(relay)

    assert addresses(nats) == [f"things/{n}" for n in (1, 2, 4, 5, 3, 6)]
    assert not DeadLetter.objects.exists()


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["server", "stream"])
def test_a_message_that_is_too_large_is_refused_by_itself(things, make_relay, nats, limit):
    """Both by what the server says when a client connects, and by a stream's own limit, which it says afterwards."""
    nats.add_stream("THINGS-0", "shop.*.0", max_msg_size=None if limit == "server" else 10_000)
    large = "x" * (1_048_500 if limit == "server" else 20_000)
    fill_topic(things, 1, 2, large, 4, 5)
    relay = make_relay(things, to=jetstream("shop.things", stream="THINGS"))
    serve_due(relay)

    assert addresses(nats) == [f"things/{n}" for n in (1, 2, 4, 5)]
    [letter] = dead_letters(relay)
    assert (letter.event_id, letter.attempts) == (3, 1)
    assert letter.error.startswith("MessageRefused: ")


@pytest.mark.slow
def test_an_outage_counts_no_attempt(things, make_relay, nats, stream):
    relay = make_relay(things, to=jetstream("shop.things", stream="THINGS"))
    fill_topic(things, 1, 2)
    serve_due(relay)
    nats.kill()
    try:
        fill_topic(things, 3, 4)
        for _ in range(4):
            run_once(relay)
            assert position_of(relay).retry_at is not None
            end_pauses(relay)
    finally:
        nats.start()
    assert (position_of(relay).position, dead_letters(relay)) == (2, [])
    assert "nothing can be sent since" in position_of(relay).error
    run_once(relay)

    assert addresses(nats) == ["things/1", "things/2", "things/3", "things/4"]


def test_a_stream_that_is_not_there_is_named(things, make_relay, nats):
    fill_topic(things, 1)
    relay = make_relay(things, to=jetstream("shop.things", stream="THINGS"))
    serve_due(relay)

    assert "has no stream 'THINGS-0'" in position_of(relay).error


@pytest.mark.parametrize("when", ["before", "between"])
def test_another_writer_in_the_stream_is_refused(things, make_relay, nats, stream, when):
    relay = make_relay(things, to=jetstream("shop.things", stream="THINGS"))
    if when == "between":
        fill_topic(things, 1)
        serve_due(relay)
    nats.publish("shop.hello.0", b"world")
    fill_topic(things, 2)
    serve_due(relay)

    assert "is not of a relay" in position_of(relay).error
    assert dead_letters(relay) == []


def test_a_stream_that_is_full_is_an_outage(things, make_relay, nats):
    nats.add_stream("THINGS-0", "shop.*.0", max_msgs=2, discard="new")
    relay = make_relay(things, to=jetstream("shop.things", stream="THINGS"))
    fill_topic(things, 1, 2, 3, 4)
    serve_due(relay)

    position = position_of(relay)
    assert (position.position, dead_letters(relay)) == (2, [])
    assert "maximum messages exceeded" in position.error
    nats.ask(lambda context: context.purge_stream("THINGS-0"))
    exhaust(relay)
    assert addresses(nats) == ["things/3", "things/4"]


@pytest.mark.slow
def test_credentials_are_in_no_error(things, make_relay, nats):
    relay = make_relay(things, to=jetstream("shop.things", stream="THINGS"))
    fill_topic(things, 1)
    secret = {"servers": ["nats://worker:hunter-two@127.0.0.1:1"], "password": "hunter-two", "connect_timeout": 1}
    with override_settings(DJANGO_EVENTS={"BROKERS": {"nats": secret}}):
        serve_due(relay)

    assert "Connect call failed" in position_of(relay).error
    assert "hunter-two" not in position_of(relay).error


def test_one_redrive_before_anything_else_hides_no_event_and_doubles_no_other(things, make_relay, nats, stream):
    """What a bridge knows of its target it has asked, and a dead letter that it sent tells it nothing."""
    fill_topic(things, *range(1, 7))
    relay = make_relay(things, to=jetstream("shop.things", stream="THINGS"))
    events = received()
    first, second = Relaying(relay), Relaying(relay)
    first.redriven(events[2:3])
    first(events[:2])
    first(events[3:5])
    first.close()
    second.redriven(events[4:5])
    second(events[3:])
    second.close()

    assert addresses(nats) == [f"things/{n}" for n in (3, 1, 2, 4, 5, 5, 6)]


@pytest.mark.slow
@pytest.mark.parametrize("known", [True, False], ids=["sent", "asked"])
def test_a_log_made_anew_is_refused_also_behind_a_redriven_dead_letter(
    things, make_relay, nats, stream, known, monkeypatch
):
    """A dead letter says which event is in front of it, and when that was published."""
    fill_topic(things, *range(1, 7))
    relay = make_relay(things, to=jetstream("shop.things", stream="THINGS"))
    events = received(former=True)
    before = Relaying(relay)
    before([*events[:2], *events[3:5]])
    if not known:
        before.close()
    with monkeypatch.context() as former:
        former.setattr(before, "_refuse_stranger", lambda found, log: None)  # it has the former log
        before.redriven(events[2:3])
    before.close()
    now = Relaying(relay)
    with pytest.raises(FailedAt) as failed:
        now(received()[5:])
    now.close()

    assert "another event things/5" in str(failed.value.error)
    assert addresses(nats) == [f"things/{n}" for n in (1, 2, 4, 5, 3)]


@pytest.mark.slow
@pytest.mark.parametrize("key", ["a b", "a\r\nPUB evil 0\r\n", "*", ">", "a..b", ""])
def test_an_event_whose_key_makes_no_subject_is_refused_by_itself(things, make_relay, nats, key):
    nats.add_stream("THINGS-0", "things.>")
    fill_topic(things, 1, 2, key="a")
    fill_topic(things, 3, key=key)
    fill_topic(things, 4, key="a")
    relay = make_relay(things, to=jetstream(lambda event: f"things.{event.key or ''}", stream="THINGS"))
    serve_due(relay)

    assert addresses(nats) == ["things/1", "things/2", "things/4"]
    [letter] = dead_letters(relay)
    assert (letter.event_id, letter.attempts) == (3, 1)
    assert "is not a subject" in letter.error


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_a_worker_that_another_one_was_ahead_of_leaves_no_event_out(things, make_relay, nats, stream, ahead):
    """What it sends first is refused, and what follows must be, too, though its number fits what the other added."""
    fill_topic(things, *range(1, 9))
    relay = make_relay(things, to=jetstream("shop.things", stream="THINGS"))
    events = received()
    one, other = Relaying(relay), Relaying(relay)
    one(events[:1])
    other(events[1 : 1 + ahead])
    one(events[1 + ahead :])
    one.close()
    other.close()

    assert addresses(nats) == [f"things/{n}" for n in range(1, 9)]
