"""Relays to a real Redis: what is sent, what is there already, what is refused, and what an outage costs."""

import json
from contextlib import closing
from datetime import timedelta

import pytest
from django.test import override_settings
from redis.backoff import NoBackoff
from redis.retry import Retry

from django_events import Backoff, redis_stream
from django_events.bridges.relays.redis_streams import RedisBridge
from django_events.bridges.relays.relaying import Relaying
from django_events.bridges.relays.targets import Newest, Route, TargetUnavailable
from django_events.checks.bridges import check_relays
from django_events.consuming.handlers import FailedAt
from django_events.models import DeadLetter, Event
from django_events.models.functions import ClockTimestamp
from django_events.observing.lag import standings
from django_events.observing.problems import find_problems
from django_events.operations import redrive, repartition, rewind
from django_events.retries import RetryLater
from tests.support.fix_consumers import (
    dead_letters,
    end_pauses,
    exhaust,
    position_of,
    positions,
    run_once,
    serve_due,
    tell_workers,
    working,
)
from tests.support.fix_queues import fill_topic
from tests.support.fix_relays import received
from tests.support.own_target import Own
from tests.support.processes import wait_until

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X20")]


def addresses(redis, stream="*"):
    return [entry.address for entry in redis.entries(stream)]


def retrying():
    """What is said of what is tried again, with what to do about it."""
    found = find_problems("default", [], None, standings("default"))
    [[what, remedy]] = [(one.what, one.remedy) for one in found if one.kind == "retrying"]
    return what, remedy


def test_each_event_is_an_entry_under_its_own_id(things, make_relay, redis):
    fill_topic(things, {"n": 1}, {"n": 2}, {"n": 3}, type="order.placed", key="Ada")
    relay = make_relay(things, to=redis_stream("shop.things"))
    assert serve_due(relay) == 3

    entries = redis.entries()
    assert [(one.log, one.id, one.address) for one in entries] == [
        ("shop.things:0", f"{n}-0", f"things/{n}") for n in (1, 2, 3)
    ]
    event = Event.objects.get(pk=(Event.objects.first().topic_id, 1))
    assert entries[0].attributes | {"data": json.loads(entries[0].data)} == {
        "ce_specversion": "1.0",
        "ce_id": "things/1",
        "ce_source": "/things",
        "ce_type": "order.placed",
        "ce_subject": "Ada",
        "ce_relay": "relay",
        "ce_time": event.published_at.isoformat().replace("+00:00", "Z"),
        "content_type": "application/json",
        "key": "Ada",
        "data": {"n": 1},
    }


def test_a_rewind_sends_nothing_again(things, make_relay, redis):
    relay = make_relay(things, to=redis_stream("shop.things"))
    fill_topic(things, 1, 2, 3)
    serve_due(relay)
    rewind(relay, to=1)
    fill_topic(things, 4)
    assert serve_due(relay) == 4

    assert addresses(redis) == [f"things/{n}" for n in (1, 2, 3, 4)]


@pytest.mark.slow
def test_partitions_have_streams_of_their_own_and_one_reader_has_one(lanes, make_relay, redis):
    for key in "abcdefgh":
        fill_topic(lanes, 1, 2, key=key)
    run_once(
        make_relay(lanes, to=redis_stream("each"), name="each"),
        make_relay(lanes, to=redis_stream("all"), name="all", partitioned=False),
        threads=3,
    )

    ids = [event.pk[1] for event in Event.objects.order_by("id")]
    assert [entry.event_id for entry in redis.entries("all")] == ids
    by_partition = {}
    for event in Event.objects.order_by("id"):
        by_partition.setdefault(f"each:{event.partition}", []).append(event.id)
    found = {}
    for entry in redis.entries("each:*"):
        found.setdefault(entry.log, []).append(entry.event_id)
    assert found == by_partition
    assert len(found) > 1


def test_types_and_a_function_say_what_goes_where(things, make_relay, redis):
    fill_topic(things, 1, type="order.placed")
    fill_topic(things, 2, type="stock.low")
    fill_topic(things, 3, type="order.paid")
    run_once(make_relay(things, to=redis_stream(lambda event: f"shop.{event.type}"), types=["order.*"]))

    assert [(one.log, one.address) for one in redis.entries()] == [
        ("shop.order.paid:0", "things/3"),
        ("shop.order.placed:0", "things/1"),
    ]


def test_a_transform_changes_and_leaves_out(things, make_relay, redis):
    fill_topic(things, *range(4))

    def transform(event):
        return None if event.value == 1 else event.value.to_bytes(2, "big") if event.value == 2 else {"is": event.value}

    relay = make_relay(things, to=redis_stream("t"), transform=transform)
    assert serve_due(relay) == 4

    assert [(one.address, one.data) for one in redis.entries()] == [
        ("things/1", '{"is":0}'),
        ("things/3", "\0\2"),
        ("things/4", '{"is":3}'),
    ]
    assert redis.entries()[1].attributes["content_type"] == "application/octet-stream"


@pytest.mark.parametrize("form", ["cloudevent", "value"])
def test_other_forms(things, make_relay, redis, form):
    fill_topic(things, {"n": 1}, type="order.placed", key="Ada")
    serve_due(make_relay(things, to=redis_stream("t"), form=form))

    [entry] = redis.entries()
    assert {name for name in entry.attributes if name.startswith("ce_")} == {
        "ce_id",
        "ce_source",
        "ce_time",
        "ce_relay",
    }
    data = json.loads(entry.data)
    if form == "value":
        assert data == {"n": 1}
    else:
        assert (data["id"], data["type"], data["data"]) == ("things/1", "order.placed", {"n": 1})
        assert entry.attributes["content_type"].startswith("application/cloudevents+json")


def test_masked_fields_are_hidden(things, make_relay, redis):
    fill_topic(things, {"name": "Ada", "card": {"number": "4111"}})
    options = {"BROKERS": {"redis": redis.options}, "MASKED_FIELDS": ["number"]}
    with override_settings(DJANGO_EVENTS=options):
        serve_due(make_relay(things, to=redis_stream("plain"), name="plain"))
        serve_due(make_relay(things, to=redis_stream("moved"), name="moved", transform=lambda event: [event.value]))

    assert not any("4111" in entry.data for entry in redis.entries())
    assert len(redis.entries()) == 2


def test_a_transform_that_raises_is_a_handlers_failure_and_its_neighbours_go_on(things, make_relay, redis):
    fill_topic(things, *range(5))
    relay = make_relay(things, to=redis_stream("t"), transform=lambda event: 1 / (event.value - 2))
    exhaust(relay)

    assert addresses(redis) == [f"things/{n}" for n in (1, 2, 4, 5)]
    [letter] = dead_letters(relay)
    assert (letter.event_id, letter.attempts) == (3, 3)
    assert "ZeroDivisionError" in letter.error


def test_a_dead_letter_that_is_redriven_comes_behind_and_later_events_behind_it(things, make_relay, redis):
    broken = [3]
    fill_topic(things, *range(1, 6))

    def transform(event):
        assert event.value not in broken
        return event.value

    relay = make_relay(things, to=redis_stream("t"), transform=transform)
    exhaust(relay)
    broken.clear()
    redrive(DeadLetter.objects.all())
    serve_due(relay)
    fill_topic(things, 6)
    serve_due(relay)

    assert [(one.id, one.address) for one in redis.entries()] == [
        *((f"{n}-0", f"things/{n}") for n in (1, 2, 4, 5)),
        ("5-1", "things/3"),
        ("6-0", "things/6"),
    ]
    assert not DeadLetter.objects.exists()
    rewind(relay, to=1)
    serve_due(relay)
    assert len(redis.entries()) == 6


@pytest.mark.slow
def test_an_outage_counts_no_attempt_and_is_said_once(things, make_relay, redis, caplog):
    relay = make_relay(things, to=redis_stream("t"), retry=Backoff(attempts=1, base=timedelta(hours=1)))
    redis.kill()
    try:
        fill_topic(things, 1, 2, 3)
        with caplog.at_level("INFO"):
            for _ in range(4):
                run_once(relay)
                assert position_of(relay).retry_at is not None
                end_pauses(relay)
    finally:
        redis.start()
    position = position_of(relay)
    assert (position.position, position.attempts, dead_letters(relay)) == (0, 0, [])
    assert "nothing can be sent since" in position.error
    assert "Connection refused" in position.error
    run_once(relay)

    assert addresses(redis) == ["things/1", "things/2", "things/3"]
    assert position_of(relay).error == ""


@pytest.mark.slow
def test_one_process_says_once_that_its_target_is_away_and_once_that_it_is_back(things, make_relay, redis, caplog):
    relay = make_relay(things, to=redis_stream("t"), retry=Backoff(base=timedelta(seconds=4)))
    fill_topic(things, 1)
    [event] = received()
    relaying = Relaying(relay)
    redis.kill()
    pauses = []
    try:
        with caplog.at_level("INFO", logger="django_events.relays"):
            for _ in range(3):
                with pytest.raises(FailedAt) as failed:
                    relaying([event])
                assert isinstance(failed.value.error, RetryLater)
                pauses.append(failed.value.error.after.total_seconds())
    finally:
        redis.start()
    with caplog.at_level("INFO", logger="django_events.relays"):
        relaying([event])
        relaying.close()

    said = [record.getMessage() for record in caplog.records if record.name == "django_events.relays"]
    assert len(said) == 2
    assert "Relay relay can't send since" in said[0]
    assert "things/1 and all behind it wait" in said[0]
    assert "can send again" in said[1]
    assert "3 tries" in said[1]
    assert 3 <= pauses[0] <= 4 < 6 <= pauses[1] <= 8 < 12 <= pauses[2] <= 16


@pytest.mark.slow
def test_a_redis_that_lost_what_it_acknowledged_gets_only_that_again(things, make_relay, redis, caplog):
    """A failover lost the last two. The connection that was there is gone, which by itself is no outage."""
    relay = make_relay(things, to=redis_stream("t"), retry=Backoff(base=timedelta(milliseconds=100)))
    fill_topic(things, *range(5))
    with working(relay):
        wait_until(lambda: len(redis.entries()) == 5)
        with redis.client() as client:
            client.client_kill_filter(_type="normal", skipme=True)
        fill_topic(things, 5)
        tell_workers()
        wait_until(lambda: len(redis.entries()) == 6)
        assert "can't send since" not in caplog.text

        with redis.client() as client:
            kept = client.xrange("t:0", count=3)
            client.delete("t:0")
            for entry_id, fields in kept:
                client.xadd("t:0", fields, id=entry_id)
            client.client_kill_filter(_type="normal", skipme=True)
        fill_topic(things, 6)
        tell_workers()
        wait_until(lambda: "lost what it had acknowledged" in position_of(relay).error)
        assert "was things/6, and is 3 now. Rewind to event 4" in position_of(relay).error
        rewind(relay, to=4)
        wait_until(lambda: position_of(relay).position == 7)

    assert addresses(redis) == [f"things/{n}" for n in range(1, 8)]


@pytest.mark.parametrize("by", ["a password", "a function", "retries"])
def test_a_bridge_keeps_to_its_connection_whatever_the_settings_say(redis, by):
    """Another one may be to a server that has lost entries, which only `newest` of a new bridge finds out."""
    logged_in = []

    def log_in(connection):
        connection.on_connect()
        logged_in.append(connection)

    more = {"a function": {"redis_connect_func": log_in}, "retries": {"retry": Retry(NoBackoff(), 3)}}.get(by, {})
    known = {"BROKERS": {"redis": {**redis.options, **more}}}
    with override_settings(DJANGO_EVENTS=known), closing(redis_stream("t").bridge()) as bridge:
        bridge.open()
        assert bridge.newest("t:0") == Newest(0)
        with redis.client() as client:
            client.client_kill_filter(_type="normal", skipme=True)
        for _ in range(2):
            with pytest.raises(TargetUnavailable):
                bridge.newest("t:0")
    assert len(logged_in) == (by == "a function")


def test_a_stream_of_another_writer_is_refused(things, make_relay, redis):
    relay = make_relay(things, to=redis_stream("t"))
    with redis.client() as client:
        client.xadd("t:0", {"hello": "world"})
    fill_topic(things, 1)
    serve_due(relay)

    position = position_of(relay)
    assert position.position == 0
    assert "is not of a relay" in position.error
    assert dead_letters(relay) == []


def test_a_stream_of_another_topic_is_refused(things, make_topic, make_relay, redis):
    other = make_topic("others")
    fill_topic(other, 1, 2, 3)
    fill_topic(things, 1, 2, 3, 4)
    serve_due(make_relay(other, to=redis_stream("t"), name="first"))
    relay = make_relay(things, to=redis_stream("t"))
    serve_due(relay)

    assert "others/3" in position_of(relay).error
    assert len(redis.entries()) == 3


def test_a_stream_of_another_relay_of_the_topic_is_refused_and_a_check_says_it(things, make_relay, redis):
    fill_topic(things, 1, 3, type="a")
    fill_topic(things, 2, type="b")
    serve_due(make_relay(things, to=redis_stream("t"), name="first", types=["a"]))
    relay = make_relay(things, to=redis_stream("t"), types=["b"])
    serve_due(relay)

    assert (position_of(relay).position, addresses(redis)) == (0, ["things/1", "things/2"])
    assert "filled by the relay 'first'" in position_of(relay).error
    [found] = check_relays()
    assert found.id == "django_events.E019"
    assert "'first' and 'relay' fill the same stream, 't' of 'redis'" in found.msg


def test_a_log_that_was_restored_is_refused(things, make_relay, redis):
    """The target has events that this log hasn't, or has others under their ids: nothing may be taken for sent."""
    relay = make_relay(things, to=redis_stream("t"))
    fill_topic(things, *range(5))
    with redis.client() as client:
        client.xadd("t:0", {"ce_id": "things/9", "ce_time": "2026-01-01T00:00:00Z", "data": "0"}, id="9-0")
        serve_due(relay)
        assert "ends at 5" in position_of(relay).error

        client.delete("t:0")
        client.xadd("t:0", {"ce_id": "things/2", "ce_time": "2026-01-01T00:00:00Z", "data": "0"}, id="2-0")
        end_pauses(relay)
        serve_due(relay)
    assert "another event things/2" in position_of(relay).error
    assert position_of(relay).position == 0


def test_a_redis_that_is_full_is_an_outage(things, make_relay, redis):
    relay = make_relay(things, to=redis_stream("t"))
    with redis.client() as client:
        client.config_set("maxmemory", 1)
        client.config_set("maxmemory-policy", "noeviction")
        try:
            fill_topic(things, 1, 2)
            serve_due(relay)
            assert "maxmemory" in position_of(relay).error
        finally:
            client.config_set("maxmemory", 0)
    exhaust(relay)

    assert addresses(redis) == ["things/1", "things/2"]
    assert dead_letters(relay) == []


def test_credentials_are_in_no_error(things, make_relay, redis):
    relay = make_relay(things, to=redis_stream("t"))
    fill_topic(things, 1)
    secret = {"url": f"redis://worker:hunter-two@127.0.0.1:{redis.port}/0", "password": "hunter-two"}
    with override_settings(DJANGO_EVENTS={"BROKERS": {"redis": secret}}):
        serve_due(relay)

    position = position_of(relay)
    assert position.position == 0
    assert position.error
    assert "hunter-two" not in position.error
    assert "hunter-two" not in repr(relay)


def test_a_broker_that_the_settings_lack_is_named(things, make_relay, redis):
    relay = make_relay(things, to=redis_stream("t", broker="rdis"))
    fill_topic(things, 1)
    serve_due(relay)

    assert "'rdis'" in position_of(relay).error
    assert "Did you mean 'redis'" in position_of(relay).error


@pytest.mark.slow
def test_maxlen_trims_and_still_nothing_is_doubled(things, make_relay, redis):
    relay = make_relay(things, to=redis_stream("t", maxlen=100), batch_size=500)
    fill_topic(things, *range(2_000))
    serve_due(relay)
    with redis.client() as client:
        assert client.xlen("t:0") < 500
        client.xtrim("t:0", maxlen=0, approximate=False)
    rewind(relay, to=1)
    serve_due(relay)

    assert redis.entries() == []


def test_one_redrive_before_anything_else_hides_no_event_and_doubles_none(things, make_relay, redis):
    """What a bridge knows of its target it has asked, and a dead letter that it sent tells it nothing."""
    fill_topic(things, *range(1, 7))
    relay = make_relay(things, to=redis_stream("t"))
    events = received()
    first, second = Relaying(relay), Relaying(relay)
    first.redriven(events[2:3])
    first(events[:2])
    first(events[3:5])
    first.close()
    second.redriven(events[4:5])
    second(events[3:])
    second.close()

    assert addresses(redis) == [f"things/{n}" for n in (3, 1, 2, 4, 5, 5, 6)]


def test_a_dead_letter_goes_where_its_key_is_after_the_topic_was_divided_anew(lanes, make_relay, redis):
    """Readers of the streams of former partitions may be through with them, and those of JetStream may be gone."""
    broken = set()

    def transform(event):
        assert event.value not in broken
        return event.value

    for n in range(20):
        fill_topic(lanes, n, key=f"k{n}")
    relay = make_relay(lanes, to=redis_stream("lanes"), transform=transform)
    late = Event.objects.filter(partition__gt=1).order_by("id").first()
    broken.add(late.value)
    exhaust(relay)
    repartition(lanes, 2)
    serve_due(relay)
    fill_topic(lanes, "the next of its key", key=late.key)
    serve_due(relay)
    broken.clear()
    redrive(DeadLetter.objects.all())
    serve_due(relay)

    assert dead_letters(relay) == []
    [there] = {entry.log for entry in redis.entries("lanes:*") if "the next of its key" in entry.data}
    assert [entry.log for entry in redis.entries("lanes:*") if entry.address == f"lanes/{late.id}"] == [there]
    assert there in ("lanes:0", "lanes:1")


def test_a_dead_letter_is_not_sent_to_the_stream_of_another_relay(things, make_relay, redis):
    fill_topic(things, *range(1, 4))
    with closing(Relaying(make_relay(things, to=redis_stream("t"), name="other"))) as other:
        other(received())
    with closing(Relaying(make_relay(things, to=redis_stream("t")))) as relaying, pytest.raises(FailedAt) as failed:
        relaying.redriven(received()[1:2])

    assert "filled by the relay 'other'" in str(failed.value.error)
    assert addresses(redis) == ["things/1", "things/2", "things/3"]


def test_a_key_of_another_type_that_an_event_names_is_tried_again_and_then_a_dead_letter(things, make_relay, redis):
    with redis.client() as client:
        client.set("taken:0", "a text")
    fill_topic(things, *range(1, 6))
    relay = make_relay(things, to=redis_stream(lambda event: "taken" if event.value == 3 else "t"))
    exhaust(relay)

    assert addresses(redis) == ["things/1", "things/2", "things/4", "things/5"]
    assert ["'taken:0', and it is no stream" in dead.error for dead in dead_letters(relay)] == [True]


@pytest.mark.parametrize(
    ("entry_id", "fields"),
    [
        ("1-0", {b"\xff": b"1", b"ce_id": b"things/1", b"ce_time": b"yesterday"}),
        ("1-1", {b"\xff": b"1"}),  # as of two that were added in one millisecond
    ],
)
def test_an_entry_of_another_program_is_said_to_be_none_of_a_relay(things, make_relay, redis, entry_id, fields):
    with redis.client() as client:
        client.xadd("t:0", fields, id=entry_id)
    fill_topic(things, 1)
    relay = make_relay(things, to=redis_stream("t"))
    serve_due(relay)

    assert "is not of a relay" in position_of(relay).error


def test_no_payload_is_in_an_error_of_an_older_client(redis):
    """Before its version 6 it quotes the command that failed."""
    said = "Command # 1 (XADD t:0 2-0 data {'card': '4111'}) of pipeline caused error: OOM command not allowed"
    unavailable = RedisBridge(redis_stream("t"))._unavailable(RuntimeError(said))

    assert str(unavailable) == "Redis 'redis': RuntimeError: OOM command not allowed"


def test_several_redrives_together_have_ids_of_their_own_in_each_stream(things, make_relay, redis):
    """Redis refuses an id that it has: with one id for two of them, all would be refused for ever."""
    for n in range(1, 7):
        fill_topic(things, n, type="odd" if n % 2 else "even")
    relaying = Relaying(make_relay(things, to=redis_stream(lambda event: event.type)))
    events = received()
    relaying(events[4:])
    relaying.redriven(events[:4])
    relaying.close()

    assert [(one.log, one.id, one.address) for one in redis.entries()] == [
        ("even:0", "6-0", "things/6"),
        ("even:0", "6-1", "things/2"),
        ("even:0", "6-2", "things/4"),
        ("odd:0", "5-0", "things/5"),
        ("odd:0", "5-1", "things/1"),
        ("odd:0", "5-2", "things/3"),
    ]


def test_a_log_made_anew_is_refused_also_behind_a_redriven_dead_letter(things, make_relay, redis):
    """The dead letter says nothing of what is in front of it: the entry that the stream has there does."""
    fill_topic(things, *range(1, 7))
    relay = make_relay(things, to=redis_stream("t"))
    events = received(former=True)
    before = Relaying(relay)
    before(events[:5])
    before.redriven(events[2:3])
    before.close()
    now = Relaying(relay)
    with pytest.raises(FailedAt) as failed:
        now(received()[5:])
    now.close()

    assert "another event things/5" in str(failed.value.error)
    assert len(redis.entries()) == 6


def test_an_event_for_which_the_function_says_no_stream_is_refused_by_itself(things, make_relay, redis):
    fill_topic(things, 1, 3, key="a")
    fill_topic(things, 2)
    fill_topic(things, 4, key="a")
    relay = make_relay(things, to=redis_stream(lambda event: event.key))
    serve_due(relay)

    assert addresses(redis) == ["things/1", "things/2", "things/4"]
    [letter] = dead_letters(relay)
    assert (letter.event_id, letter.attempts) == (3, 1)
    assert "is not the name of a stream" in letter.error


@pytest.mark.slow
def test_workers_that_end_in_an_outage_make_no_dead_letter_of_an_event(things, make_relay, redis):
    """Each worker counts its attempt before it begins, and none of them comes to say that the target was down."""
    relay = make_relay(things, to=redis_stream("t"), retry=Backoff(attempts=3, base=timedelta(hours=1)))
    fill_topic(things, 1, 2)
    redis.kill()
    try:
        for _ in range(4):
            run_once(relay)
            end_pauses(relay)
            positions(relay).update(attempted=1, attempts=2)  # as two workers left it that were killed meanwhile
        run_once(relay)
    finally:
        redis.start()

    assert (position_of(relay).attempts, dead_letters(relay)) == (0, [])


@pytest.mark.slow
def test_an_outage_is_a_problem_that_names_no_failure(things, make_relay, redis):
    relay = make_relay(things, to=redis_stream("t"))
    fill_topic(things, 1, 2)
    redis.kill()
    try:
        run_once(relay)
    finally:
        redis.start()
    what, remedy = retrying()
    assert what.startswith("partition 0: things/1 and all behind it wait, next at 20")
    assert "Connection refused" in what
    assert remedy == "To try again now: manage.py events retry-now relay"

    positions(relay).update(retry_at=ClockTimestamp() - timedelta(hours=1))
    what, remedy = retrying()
    assert what.startswith("partition 0: things/1 and all behind it wait, due since 20")
    assert "Z, and no worker takes them. TargetUnavailable: " in what
    assert remedy == "Is one running? manage.py run_consumer relay"


class Broken(Own):
    """One with an error in it that says a secret."""

    def send(self, messages):
        raise ConnectionError("no answer from worker:hunter-two")


class Forgetful(Own):
    """A broker that goes down in the middle of a batch, and comes back without the last event that it acknowledged."""

    has = 0

    def route(self, event, partition):
        return Route("paper", "paper")

    def newest(self, log):
        return Newest(self.has)

    def send(self, messages):
        self.has = messages[0].event_id
        raise TargetUnavailable("down", acknowledged=2)


def test_a_target_that_lost_what_it_acknowledged_in_front_of_an_outage_is_noticed(things, make_relay):
    fill_topic(things, *range(4))
    relay = make_relay(things, to=Forgetful())
    events, relaying = received(), Relaying(relay)
    with pytest.raises(FailedAt) as first:
        relaying(events)
    with pytest.raises(FailedAt) as second:
        relaying(events[first.value.index :])

    assert first.value.index == 2
    assert "was things/2, and is 1 now. Rewind to event 2" in str(second.value.error)


def test_an_error_in_a_sites_own_bridge_is_an_outage_that_says_where_and_no_secret(things, make_relay, caplog):
    relay = make_relay(things, to=Broken())
    fill_topic(things, 1, 2)
    with caplog.at_level("DEBUG"):
        run_once(relay)

    assert (position_of(relay).position, dead_letters(relay)) == (0, [])
    assert "ConnectionError in the bridge, test_redis_streams.py:" in position_of(relay).error
    assert "hunter-two" not in position_of(relay).error + caplog.text


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_a_worker_that_another_one_was_ahead_of_leaves_no_event_out(things, make_relay, redis, ahead):
    fill_topic(things, *range(1, 9))
    relay = make_relay(things, to=redis_stream("t"))
    events = received()
    one, other = Relaying(relay), Relaying(relay)
    one(events[:1])
    other(events[1 : 1 + ahead])
    one(events[ahead:])  # the other one has sent the first of these
    one.close()
    other.close()

    assert addresses(redis) == [f"things/{n}" for n in range(1, 9)]
