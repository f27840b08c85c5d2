"""Relays to Kafka by transactions: each event is there once, also of two that write at once, whatever is lost."""

import gc
import json
import os
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from django.db import connections
from django.test import override_settings

from django_events import Backoff, declarations
from django_events import kafka as kafka_topic
from django_events.bridges.relays import kafka_transactions
from django_events.bridges.relays.relaying import Relaying
from django_events.bridges.relays.targets import Overtaken, TargetUnavailable
from django_events.consuming.handlers import FailedAt
from django_events.models import DeadLetter
from django_events.models.functions import ClockTimestamp
from django_events.operations import redrive, repartition, rewind
from django_events.testing import check_target
from tests.support.fix_consumers import dead_letters, exhaust, position_of, positions, serve_due, working
from tests.support.fix_queues import fill_topic
from tests.support.fix_relays import received
from tests.support.kafka_model import ModelKafka
from tests.support.processes import wait_until

KAFKA = os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "")

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X20"), pytest.mark.slow]


@pytest.fixture
def model(tmp_path):
    with (
        closing(ModelKafka(tmp_path)) as model,
        override_settings(DJANGO_EVENTS={"BROKERS": {"kafka": {**model.options, "timeout": 3.0}}}),
    ):
        yield model


@pytest.fixture
def make_transactional(things, make_relay):
    def make(**options):
        return make_relay(things, to=kafka_topic("shop.things", transactional_id="to-kafka"), **options)

    return make


def addresses(model, topic="shop.things"):
    return sorted((entry.address for entry in model.entries(topic)), key=lambda address: int(address.split("/")[1]))


def serve_until(relay, last):
    """Serve it, over its pauses."""

    def is_passed():
        positions(relay).filter(retry_at__isnull=False).update(retry_at=ClockTimestamp())
        serve_due(relay)
        return position_of(relay).position == last

    wait_until(is_passed, what=f"event {last}")


def of(*ids):
    return [f"things/{n}" for n in ids]


def test_each_event_is_there_once_and_the_position_with_it(things, make_transactional, model):
    fill_topic(things, *range(5), key="k")
    relay = make_transactional()
    assert serve_due(relay) == 5
    rewind(relay, to=1)
    assert serve_due(relay) == 5

    assert addresses(model) == of(1, 2, 3, 4, 5)
    [(offset, said)] = model.offsets("to-kafka-0").values()
    assert (offset, json.loads(said)["id"], json.loads(said)["relay"]) == (5, "things/5", relay.name)


@pytest.mark.parametrize("effect", ["lose", "cut"])
@pytest.mark.parametrize("api", ["AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "Produce", "EndTxn"])
def test_what_is_lost_on_the_way_doubles_nothing(things, make_transactional, model, api, effect):
    relay = make_transactional()
    fill_topic(things, 0, key="k")
    serve_due(relay)
    fill_topic(things, *range(9), key="k")
    model.fault(effect, api)
    serve_due(relay)
    model.wait_until_struck()
    serve_until(relay, 10)

    assert addresses(model) == of(*range(1, 11))


def test_an_answer_that_does_not_come_in_time_doubles_nothing(things, make_transactional, model):
    """Also when the end of the transaction, which was decided, is complete only when the next producer asks for it."""
    relay = make_transactional()
    fill_topic(things, *range(9), key="k")
    model.delay_markers(1.0)
    model.fault("mute", "EndTxn")
    assert serve_due(relay) == 0
    assert position_of(relay).position == 0
    serve_until(relay, 9)

    assert addresses(model) == of(*range(1, 10))


@pytest.mark.parametrize("api", ["Produce", "EndTxn"])
def test_of_two_workers_the_later_one_goes_on_and_the_former_commits_nothing(things, make_transactional, model, api):
    """The former one was held up with its batch, or its commit, on the way, which comes when the other has sent it."""
    relay = make_transactional()
    fill_topic(things, *range(9), key="k")
    events = received()
    first, second = Relaying(relay), Relaying(relay)
    first(events[:3])
    model.fault("hold", api)
    with pytest.raises(FailedAt, match="nothing can be sent since"):
        first(events[3:])
    second(events[3:6])
    model.release()
    second(events[6:])
    first(events[3:])
    first.close()
    second.close()

    assert addresses(model) == of(*range(1, 10))


def test_a_worker_that_wakes_up_commits_nothing_that_it_has_not_asked_for(things, make_transactional, model):
    relay = make_transactional()
    fill_topic(things, *range(9), key="k")
    events = received()
    first, second = Relaying(relay), Relaying(relay)
    first(events[:3])
    second(events[3:6])
    [opened] = first._opened.values()
    with pytest.raises(Overtaken):
        opened.bridge.send(first._batch(events[3:], opened, redriven=False).messages)
    assert addresses(model) == of(*range(1, 7))
    opened.newest.clear()  # as the relay does then
    first(events[3:])
    first.close()
    second.close()

    assert addresses(model) == of(*range(1, 10))


def test_what_a_killed_worker_had_not_committed_is_gone(things, make_transactional, model):
    relay = make_transactional()
    fill_topic(things, *range(6), key="k")
    events = received()
    killed, other = Relaying(relay), Relaying(relay)
    model.fault("swallow", "EndTxn", times=-1)
    with pytest.raises(FailedAt):
        killed(events[:4])
    assert len(model.messages("shop.things", committed=False)) >= 4
    assert addresses(model) == []
    model.release()
    other(events)
    other.close()
    killed.close()

    assert addresses(model) == of(*range(1, 7))


def test_a_broker_that_is_killed_keeps_it_once(things, make_transactional, model):
    relay = make_transactional()
    fill_topic(things, *range(3), key="k")
    serve_due(relay)
    model.kill()
    fill_topic(things, *range(3), key="k")
    assert serve_due(relay) == 0
    model.start()
    serve_until(relay, 6)

    assert addresses(model) == of(*range(1, 7))


def test_a_message_that_the_broker_refuses_stops_none_of_its_neighbours(things, make_transactional, model):
    model.topic("shop.things", partitions=1, max_bytes=3_000)
    fill_topic(things, 1, "x" * 5_000, 3, key="k")
    relay = make_transactional()
    serve_until(relay, 3)

    assert addresses(model) == of(1, 3)
    assert [letter.event_id for letter in DeadLetter.objects.all()] == [2]
    assert "Kafka refuses it" in DeadLetter.objects.get().error
    model.topic("shop.things", partitions=1, max_bytes=1_000_000)
    redrive(DeadLetter.objects.all())
    serve_due(relay)
    fill_topic(things, 4, key="k")
    serve_until(relay, 4)

    assert [entry.address for entry in model.entries("shop.things")] == of(1, 3, 2, 4)
    assert dead_letters(relay) == []
    assert model.offsets("to-kafka-0")["shop.things", 0][0] == 4


def test_another_relay_with_the_same_id_is_refused(things, make_transactional, model):
    """As one that was renamed, or another site's."""
    fill_topic(things, 1)
    former = make_transactional()
    serve_due(former)
    declarations.consumers.discard(former)
    other = make_transactional(name="other")
    assert serve_due(other) == 0

    assert "'to-kafka-0' is filled by the relay 'relay', and 'other'" in position_of(other).error
    assert addresses(model) == of(1)


def test_producers_that_are_replaced_end_at_once(things, make_transactional, model):
    """Not when Python collects them: until then they would go on, and keep out those that come after."""
    relay = make_transactional()
    fill_topic(things, *range(3), key="k")
    events = received()
    gc.disable()
    try:
        before = threads()
        for _ in range(5):
            relaying = Relaying(relay)
            relaying(events)
            relaying.close()
        wait_until(lambda: threads() <= before, what="the end of the clients' threads")
    finally:
        gc.enable()


def threads():
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.mark.parametrize("by", [{}, {"transactional_id": "to-kafka"}], ids=["plain", "transactions"])
def test_a_message_larger_than_the_queue_of_the_client_is_a_dead_letter(things, make_relay, model, by):
    options = {**model.options, "queue.buffering.max.kbytes": 100}
    with override_settings(DJANGO_EVENTS={"BROKERS": {"kafka": options}}):
        fill_topic(things, 1, "x" * 200_000, 3, key="k")
        serve_until(make_relay(things, to=kafka_topic("shop.things", **by)), 3)

    assert addresses(model) == of(1, 3)
    assert [letter.event_id for letter in DeadLetter.objects.all()] == [2]


def test_what_one_partition_of_kafka_has_answered_is_not_sent_again_with_what_another_has_not(
    things, make_relay, model
):
    model.topic("shop.things", partitions=2)
    for n in range(20):
        fill_topic(things, n, key=f"k{n}")
    events, relaying = received(), Relaying(make_relay(things, to=kafka_topic("shop.things")))
    model.fault("swallow", "Produce")  # each partition's messages are one request
    with pytest.raises(FailedAt) as failed:
        relaying(events)
    assert isinstance(failed.value.error, TargetUnavailable)
    there = addresses(model)
    relaying(events[failed.value.index :])
    relaying.close()

    assert 0 < len(there) < 20
    assert addresses(model) == of(*range(1, 21))


def test_an_offset_of_another_program_is_told(things, make_transactional, model):
    from confluent_kafka import Consumer, TopicPartition

    model.topic("shop.things")
    with closing(Consumer({"bootstrap.servers": model.servers, "group.id": "to-kafka-0"})) as other:
        other.commit(offsets=[TopicPartition("shop.things", 0, 7)], asynchronous=False)
    fill_topic(things, 1)
    relay = make_transactional()
    serve_due(relay)

    assert (
        "the group 'to-kafka-0' has an offset of 'shop.things' that no relay has committed" in position_of(relay).error
    )
    assert addresses(model) == []


def test_each_partition_has_a_producer_of_its_own(lanes, make_relay, model):
    for n in range(20):
        fill_topic(lanes, n, key=f"k{n}")
    relay = make_relay(lanes, to=kafka_topic("lanes", transactional_id="lanes"))
    for _ in range(3):
        serve_due(relay)

    assert sorted(int(entry.data) for entry in model.entries("lanes")) == list(range(20))
    assert sum(bool(model.offsets(f"lanes-{n}")) for n in range(lanes.partitions)) > 1


@pytest.fixture
def threads_of_a_worker():
    """Two threads, each of which does what it is given, and says how that ended."""
    with ExitStack() as stack:
        pools = [stack.enter_context(ThreadPoolExecutor(1)) for _ in range(2)]
        yield [lambda work, *given, pool=pool: pool.submit(work, *given).result() for pool in pools]
        for pool in pools:
            pool.submit(connections.close_all).result()


def epochs(model, *ids):
    """How many producers each transactional id had, but for the first."""
    return [epoch for _, epoch in map(model.transaction, ids)]


def test_the_threads_of_a_worker_share_a_producer(things, make_transactional, model, threads_of_a_worker):
    """A partition that moves from one to the other and back keeps no producer out."""
    relay = make_transactional()
    fill_topic(things, *range(12), key="k")
    events, relaying = received(), Relaying(relay)
    first, second = threads_of_a_worker
    for begin in range(0, 12, 4):
        first(relaying, events[begin : begin + 2])
        second(relaying, events[begin + 2 : begin + 4])
    relaying.close()

    assert addresses(model) == of(*range(1, 13))
    assert epochs(model, "to-kafka-0") == [0]


def test_a_thread_sends_nothing_that_another_one_has_sent(things, make_transactional, model, threads_of_a_worker):
    """The other one lost its lease before it could settle what it had sent, by the producer that both have."""
    relay = make_transactional()
    fill_topic(things, *range(9), key="k")
    events, relaying = received(), Relaying(relay)
    first, second = threads_of_a_worker
    first(relaying, events[:3])
    second(relaying, events[3:6])
    first(relaying, events[3:])
    relaying.close()

    assert addresses(model) == of(*range(1, 10))
    assert epochs(model, "to-kafka-0") == [0]


def test_one_thread_at_a_time_has_a_producer(things, make_transactional, model, threads_of_a_worker):
    relay = make_transactional()
    fill_topic(things, *range(4), key="k")
    events, relaying = received(), Relaying(relay)
    first, second = threads_of_a_worker
    first(relaying, events[:2])
    with relaying._shared.held("to-kafka-0", {}), pytest.raises(FailedAt) as failed:
        second(relaying, events[2:])
    assert "Another thread of this worker still sends by the transactional id 'to-kafka-0'" in str(failed.value.error)
    second(relaying, events[2:])
    relaying.close()

    assert addresses(model) == of(*range(1, 5))
    assert epochs(model, "to-kafka-0") == [0]


@pytest.mark.parametrize("api", ["Produce", "EndTxn"])
def test_a_thread_that_was_held_up_doubles_nothing_when_it_goes_on(
    things, make_transactional, model, threads_of_a_worker, api
):
    """Its batch, or its commit, comes to Kafka when another thread has sent the same events."""
    relay = make_transactional()
    fill_topic(things, *range(9), key="k")
    events, relaying = received(), Relaying(relay)
    first, second = threads_of_a_worker
    first(relaying, events[:3])
    model.fault("hold", api)
    with pytest.raises(FailedAt):
        first(relaying, events[3:6])
    second(relaying, events[3:6])
    model.release()
    second(relaying, events[6:8])
    first(relaying, events[8:])
    relaying.close()

    assert addresses(model) == of(*range(1, 10))


def test_an_error_of_one_partition_leaves_the_producers_of_others(lanes, make_relay, model):
    for n in range(20):
        fill_topic(lanes, n, key=f"k{n}")
    relay = make_relay(lanes, to=kafka_topic("lanes", transactional_id="lanes"))
    by_partition = {}
    for event in received(topic="lanes"):
        by_partition.setdefault(event.partition, []).append(event)
    (one, events), (other, others) = list(by_partition.items())[:2]
    relaying = Relaying(relay)
    relaying(events[:1])
    relaying(others[:1])
    model.fault("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "EndTxn", times=-1)
    with pytest.raises(FailedAt) as failed:
        relaying(events[1:])
    assert "authorization failed" in str(failed.value.error)
    model.release()
    relaying(others[1:])
    relaying(events[1:])
    relaying.close()

    replaced, kept = epochs(model, f"lanes-{one}", f"lanes-{other}")
    assert (replaced > 0, kept) == (True, 0)


def test_there_are_as_many_producers_as_partitions_however_many_threads_take_them_by_turns(lanes, make_relay, model):
    relay = make_relay(lanes, to=kafka_topic("lanes", transactional_id="lanes"))
    with working(relay, threads=3):
        for first in range(0, 200, 20):
            for n in range(first, first + 20):
                fill_topic(lanes, n, key=f"k{n}")
            wait_until(lambda end=first + 20: len(model.entries("lanes")) == end, what="all events in Kafka")

    assert epochs(model, *(f"lanes-{n}" for n in range(4))) == [0, 0, 0, 0]
    assert sorted(int(entry.data) for entry in model.entries("lanes")) == list(range(200))


def test_a_producer_that_is_not_used_any_more_ends(lanes, make_relay, model, monkeypatch):
    """Its partition may be another worker's by now. When it comes back, the next producer knows what is there."""
    for n in range(20):
        fill_topic(lanes, n, key=f"k{n}")
    relay = make_relay(lanes, to=kafka_topic("lanes", transactional_id="lanes"))
    by_partition = {}
    for event in received(topic="lanes"):
        by_partition.setdefault(event.partition, []).append(event)
    (one, events), (other, others) = list(by_partition.items())[:2]
    relaying = Relaying(relay)
    relaying(events[:1])
    monkeypatch.setattr(kafka_transactions, "UNUSED", 0.0)
    before = threads()
    relaying(others)
    wait_until(lambda: threads() <= before, what="the end of the first producer's threads")
    relaying(events)
    relaying.close()

    assert epochs(model, f"lanes-{one}", f"lanes-{other}") == [1, 0]
    assert addresses(model, "lanes") == sorted(
        (event.address for event in events + others), key=lambda address: int(address.split("/")[1])
    )


@pytest.mark.parametrize("api", ["AddPartitionsToTxn", "Produce", "AddOffsetsToTxn", "TxnOffsetCommit"])
def test_a_login_without_the_right_is_told_so_and_not_what_the_client_makes_of_it(
    things, make_transactional, model, api
):
    fill_topic(things, *range(3), key="k")
    relay = make_transactional()
    answer = "GROUP_AUTHORIZATION_FAILED" if "Offset" in api else "TOPIC_AUTHORIZATION_FAILED"
    model.fault(answer, api, times=-1)
    serve_due(relay)
    said = position_of(relay).error
    assert ("Group" if "Offset" in api else "Topic") + " authorization failed" in said
    assert "Purged" not in said and "Erroneous state" not in said
    model.release()
    serve_until(relay, 3)

    assert addresses(model) == of(1, 2, 3)


def test_a_dead_letter_says_that_its_topic_is_one_that_the_login_may_not_see(things, make_relay, model):
    """Kafka says no more of a topic that isn't there, so it may not be there, either."""
    fill_topic(things, 1, type="hidden", key="k")
    relay = make_relay(things, to=kafka_topic(lambda event: event.type), retry=Backoff(attempts=1))
    model.fault("TOPIC_AUTHORIZATION_FAILED", "Metadata", times=-1)
    serve_due(relay)

    [letter] = dead_letters(relay)
    assert (
        "its login may not see the topic 'hidden', if there is one (Broker: Topic authorization failed)" in letter.error
    )


def test_a_dead_letter_is_sent_by_the_partition_that_it_is_in_by_now(lanes, make_relay, model):
    """By the producer of its former partition, it would keep out the worker that has that one."""
    broken = set()

    def transform(event):
        assert event.value not in broken
        return event.value

    relay = make_relay(lanes, to=kafka_topic("lanes", transactional_id="lanes"), transform=transform)
    for n in range(20):
        fill_topic(lanes, n, key=f"k{n}")
    late = next(event for event in received(topic="lanes") if event.partition > 1)
    broken.add(late.value)
    exhaust(relay)
    assert [letter.event_id for letter in dead_letters(relay)] == [late.id]
    before = epochs(model, f"lanes-{late.partition}")
    repartition(lanes, 2)
    serve_due(relay)
    broken.clear()
    redrive(DeadLetter.objects.all())
    serve_due(relay)

    assert dead_letters(relay) == []
    assert sorted(int(entry.data) for entry in model.entries("lanes")) == list(range(20))
    assert epochs(model, f"lanes-{late.partition}") == before


def test_a_function_says_the_id_of_a_database(things, make_relay, model):
    """Shards relay to one Kafka, and each has ids of its own."""
    fill_topic(things, 1, 2)
    relay = make_relay(things, to=kafka_topic("shop.things", transactional_id=lambda alias: f"shop-{alias}"))
    serve_due(relay)

    assert addresses(model) == of(1, 2)
    assert model.offsets("shop-default-0")["shop.things", 0][0] == 2


@pytest.mark.parametrize(
    ("function", "does"),
    [
        ({"default": None}.get, "says None"),
        ({"default": ""}.get, "says ''"),
        ({"default": 7}.get, "says 7"),
        ({"other": "shop"}.__getitem__, "raised KeyError"),
    ],
)
def test_a_function_that_says_no_id_holds_up_its_relay_and_kills_no_event(things, make_relay, model, function, does):
    fill_topic(things, 1, 2)
    relay = make_relay(things, to=kafka_topic("shop.things", transactional_id=function))
    serve_due(relay)

    assert f"The function of transactional_id {does} of 'default', expected a text." in position_of(relay).error
    assert (position_of(relay).attempts, position_of(relay).retry_at is None) == (0, False)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ({"transactional.id": "x"}, "has 'transactional.id'. No two producers can share one"),
        ({"default.topic.config": {"message.timeout.ms": 1}}, "has 'default.topic.config'. It would override"),
    ],
    ids=["id", "topic"],
)
def test_settings_that_no_relay_can_use_are_told(things, make_relay, model, option, said):
    fill_topic(things, 1)
    with override_settings(DJANGO_EVENTS={"BROKERS": {"kafka": {**model.options, **option}}}):
        relay = make_relay(things, to=kafka_topic("shop.things"))
        serve_due(relay)

    assert said in position_of(relay).error


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (lambda: kafka_topic("t", transactional_id=""), "has transactional_id='', expected a text"),
        (lambda: kafka_topic(lambda event: event.type, transactional_id="x"), "with transactions the topic is a name"),
    ],
    ids=["empty", "function"],
)
def test_what_can_not_be_declared_is_told(target, said):
    assert [said in problem for problem in target().problems()] == [True]


def test_a_function_whose_topic_is_not_there_holds_up_nothing_for_ever(things, make_relay, tmp_path):
    """It is tried as often as `retry` says: a topic that is made soon gets the event."""
    with (
        closing(ModelKafka(tmp_path, creates=False)) as model,
        override_settings(DJANGO_EVENTS={"BROKERS": {"kafka": model.options}}),
    ):
        model.topic("good")
        for kind in ("good", "bad", "good"):
            fill_topic(things, kind, type=kind, key="k")
        relay = make_relay(things, to=kafka_topic(lambda event: event.type), retry=Backoff(attempts=2))
        serve_due(relay)
        assert "Kafka 'kafka': it has no topic 'bad'" in position_of(relay).error
        assert position_of(relay).attempts == 1
        serve_until(relay, 3)

        assert addresses(model, "good") == of(1, 3)
        assert [letter.event_id for letter in DeadLetter.objects.all()] == [2]


def test_a_topic_that_is_not_there_is_an_outage_that_ends_when_it_is_made(things, make_relay, tmp_path):
    with (
        closing(ModelKafka(tmp_path, creates=False)) as model,
        override_settings(DJANGO_EVENTS={"BROKERS": {"kafka": {**model.options, "timeout": 2.0}}}),
    ):
        fill_topic(things, 1)
        relay = make_relay(things, to=kafka_topic("shop.things"), retry=Backoff(attempts=1))
        serve_due(relay)
        assert "Kafka 'kafka': it has no topic 'shop.things'" in position_of(relay).error
        assert (position_of(relay).attempts, position_of(relay).failed) == (0, 0)
        model.topic("shop.things")
        serve_until(relay, 1)

        assert addresses(model) == of(1)


def test_all_promises_of_a_target_are_kept(model):
    target = kafka_topic("promises", transactional_id="promises")

    found = check_target(
        target, received=lambda: [one.address for one in model.entries("promises")], stop=model.kill, start=model.start
    )

    assert {name for name, said in found.items() if said != "kept"} <= {"refused", "empty"}


@pytest.mark.skipif(not KAFKA, reason="KAFKA_BOOTSTRAP_SERVERS names no Kafka")
def test_a_real_kafka_has_each_event_once_when_two_take_turns(things, make_relay):
    """The topic and the group have names of their own; the topic is deleted at the end."""
    from confluent_kafka import Consumer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic

    name, admin = f"django-events-test-{uuid.uuid4().hex}", AdminClient({"bootstrap.servers": KAFKA})
    admin.create_topics([NewTopic(name, num_partitions=1, replication_factor=1)])[name].result(20)
    reading = {"bootstrap.servers": KAFKA, "group.id": f"{name}-reader", "isolation.level": "read_committed"}
    try:
        with override_settings(DJANGO_EVENTS={"BROKERS": {"kafka": {"bootstrap.servers": KAFKA}}}):
            relay = make_relay(things, to=kafka_topic(name, transactional_id=name))
            fill_topic(things, *range(60))
            events = received()
            first, second = Relaying(relay), Relaying(relay)
            for start in range(0, 60, 20):
                first(events[start : start + 20])
                second(events[start : start + 20])
            first.close()
            second.close()
        with closing(Consumer(reading)) as consumer:
            consumer.assign([TopicPartition(name, 0, 0)])
            read = [json.loads(message.value()) for message in consumer.consume(61, timeout=20)]
        assert read == list(range(60))
    finally:
        admin.delete_topics([name])[name].result(20)
