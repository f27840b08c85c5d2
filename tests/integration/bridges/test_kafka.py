"""Relays to librdkafka's own cluster: what is sent, in which partition, what is refused, and what an outage costs."""

import ctypes
import json
from datetime import timedelta
from pathlib import Path

import confluent_kafka
import pytest
from django.test import override_settings

from django_events import Backoff
from django_events import kafka as kafka_topic
from django_events.bridges.relays import kafka_producer
from django_events.bridges.relays.answers import UNANSWERED, Unroutable
from django_events.bridges.relays.relaying import Relaying
from django_events.bridges.relays.targets import RelayMessage, Route
from django_events.consuming.handlers import FailedAt
from django_events.models import DeadLetter
from django_events.operations import redrive
from tests.support.fix_consumers import dead_letters, end_pauses, exhaust, position_of, run_once, serve_due
from tests.support.fix_queues import fill_topic
from tests.support.fix_relays import received

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X20")]


def addresses(kafka, topic="shop.things"):
    return sorted(entry.address for entry in kafka.entries(topic))


@pytest.mark.slow
def test_each_event_is_a_message_and_a_null_is_a_tombstone(things, make_relay, kafka):
    fill_topic(things, {"n": 1}, None, type="order.placed", key="Zoë")
    relay = make_relay(things, to=kafka_topic("shop.things"))
    assert serve_due(relay) == 2

    first, second = kafka.entries("shop.things")
    assert (first.address, first.id, json.loads(first.data)) == ("things/1", "Zoë", {"n": 1})
    assert (second.address, second.id, second.data) == ("things/2", "Zoë", None)
    assert first.log == second.log
    assert first.attributes["ce_subject"] == "Zoë"
    assert {name: first.attributes[name] for name in ("ce_type", "ce_source", "content-type")} == {
        "ce_type": "order.placed",
        "ce_source": "/things",
        "content-type": "application/json",
    }


@pytest.mark.slow
def test_a_client_whose_queue_is_smaller_than_a_batch_sends_all_of_it(things, make_relay, kafka):
    fill_topic(things, *range(50))
    with override_settings(DJANGO_EVENTS={"BROKERS": {"kafka": {**kafka.options, "queue.buffering.max.messages": 10}}}):
        assert serve_due(make_relay(things, to=kafka_topic("shop.things"))) == 50

    assert addresses(kafka) == sorted(f"things/{n}" for n in range(1, 51))


NEEDED = {"enable.idempotence": True, "acks": "all", "message.timeout.ms": 0}


@pytest.mark.parametrize(
    "given",
    [
        {"enable.idempotence": False, "acks": 0, "message.timeout.ms": 1},
        {"request.required.acks": 1, "delivery.timeout.ms": 1},  # other names of the same
    ],
)
def test_what_keeps_a_relay_from_losing_is_not_for_the_settings_to_say(things, make_relay, kafka, monkeypatch, given):
    made, producer = [], confluent_kafka.Producer

    def make(options):
        made.append(options)
        return producer(options)

    monkeypatch.setattr(kafka_producer, "Producer", make)
    fill_topic(things, 1, 2)
    with override_settings(DJANGO_EVENTS={"BROKERS": {"kafka": {**kafka.options, **given, "client.id": "shop"}}}):
        assert serve_due(make_relay(things, to=kafka_topic("shop.things"))) == 2

    [options] = made
    assert {name: options[name] for name in NEEDED} == NEEDED
    assert not options.keys() & (given.keys() - NEEDED.keys())
    assert options["client.id"] == "shop"
    assert addresses(kafka) == ["things/1", "things/2"]


def murmur2(key: bytes) -> int:
    """As Java's clients have it: the seed is 0x9747b28c, and the partition the number without its sign, modulo."""
    m, h = 0x5BD1E995, 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for begin in range(0, whole, 4):
        k = int.from_bytes(key[begin : begin + 4], "little") * m % 2**32
        h = (h * m % 2**32) ^ ((k ^ k >> 24) * m % 2**32)
    if rest := key[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m % 2**32
    h = (h ^ h >> 13) * m % 2**32
    return h ^ h >> 15


VECTORS = {  # of Kafka's own test, by UtilsTest
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}


@pytest.mark.slow
def test_the_partition_of_a_key_is_the_one_that_javas_clients_choose(things, make_relay, kafka):
    assert {key: murmur2(key.encode()) for key in VECTORS} == {key: hash % 2**32 for key, hash in VECTORS.items()}
    keys = [*VECTORS, "Zoë", *(f"customer-{n}" for n in range(30))]
    for key in keys:
        fill_topic(things, key, key=key)
    serve_due(make_relay(things, to=kafka_topic("shop.things")))

    entries = kafka.entries("shop.things")
    partitions = kafka.partitions("shop.things")
    assert partitions > 1
    assert {entry.id: entry.log for entry in entries} == {
        key: f"shop.things/{murmur2(key.encode()) % 2**31 % partitions}" for key in keys
    }


@pytest.mark.slow
def test_the_order_of_a_key_is_kept_and_keys_are_spread(lanes, make_relay, kafka):
    for n in range(10):
        for key in "abcdefgh":
            fill_topic(lanes, n, key=key)
    run_once(make_relay(lanes, to=kafka_topic("lanes")), threads=3)

    by_key: dict[str, list[str]] = {}
    for entry in kafka.entries("lanes"):
        by_key.setdefault(entry.id, []).append(entry.data)
    assert by_key == {key: [str(n) for n in range(10)] for key in "abcdefgh"}
    assert len({entry.log for entry in kafka.entries("lanes")}) > 1


def test_a_message_that_is_too_large_is_refused_by_itself(things, make_relay, kafka):
    fill_topic(things, 1, 2, "x" * 1_020_000, 4, 5, key="k")
    relay = make_relay(things, to=kafka_topic("shop.things"))
    serve_due(relay)

    assert addresses(kafka) == [f"things/{n}" for n in (1, 2, 4, 5)]
    [letter] = dead_letters(relay)
    assert (letter.event_id, letter.attempts) == (3, 1)
    assert letter.error.startswith("MessageRefused: ")


@pytest.mark.slow
def test_a_dead_letter_that_is_redriven_comes_behind(things, make_relay, kafka):
    broken = [2]
    fill_topic(things, 1, 2, 3, key="k")

    def transform(event):
        assert event.value not in broken
        return event.value

    relay = make_relay(things, to=kafka_topic("shop.things"), transform=transform)
    exhaust(relay)
    broken.clear()
    redrive(DeadLetter.objects.all())
    serve_due(relay)

    assert [entry.address for entry in kafka.entries("shop.things")] == ["things/1", "things/3", "things/2"]


@pytest.mark.slow
def test_an_outage_counts_no_attempt(things, make_relay, kafka):
    relay = make_relay(things, to=kafka_topic("shop.things"))
    fill_topic(things, 1, 2, key="k")
    serve_due(relay)
    kafka.kill()
    try:
        fill_topic(things, 3, 4, key="k")
        for _ in range(2):
            run_once(relay)
            assert position_of(relay).retry_at is not None
            end_pauses(relay)
    finally:
        kafka.start()
    assert (position_of(relay).position, dead_letters(relay)) == (2, [])
    assert "nothing can be sent since" in position_of(relay).error
    run_once(relay)

    assert set(addresses(kafka)) == {"things/1", "things/2", "things/3", "things/4"}


@pytest.mark.slow
def test_credentials_are_in_no_error(things, make_relay):
    relay = make_relay(things, to=kafka_topic("shop.things"))
    fill_topic(things, 1)
    secret = {
        "bootstrap.servers": "127.0.0.1:1",
        "sasl.mechanism": "PLAIN",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.username": "worker",
        "sasl.password": "hunter-two",
        "timeout": 1.0,
    }
    with override_settings(DJANGO_EVENTS={"BROKERS": {"kafka": secret}}):
        serve_due(relay)

    assert position_of(relay).error
    assert "hunter-two" not in position_of(relay).error


def test_an_option_that_is_wrong_is_named(things, make_relay, kafka):
    relay = make_relay(things, to=kafka_topic("shop.things"))
    fill_topic(things, 1)
    with override_settings(DJANGO_EVENTS={"BROKERS": {"kafka": {**kafka.options, "no.such.option": 1}}}):
        serve_due(relay)

    assert "no.such.option" in position_of(relay).error


@pytest.mark.slow
@pytest.mark.parametrize("key", ["a b", "..", "é", "x" * 250, ""])
def test_an_event_whose_key_makes_no_topic_is_refused_by_itself(things, make_relay, kafka, key):
    fill_topic(things, 1, 2, key="shop.things")
    fill_topic(things, 3, key=key)
    fill_topic(things, 4, key="shop.things")
    relay = make_relay(things, to=kafka_topic(lambda event: event.key))
    serve_due(relay)

    assert addresses(kafka) == ["things/1", "things/2", "things/4"]
    [letter] = dead_letters(relay)
    assert (letter.event_id, letter.attempts) == (3, 1)
    assert "is not the name of a topic" in letter.error


@pytest.fixture
def refusing(tmp_path):
    """A cluster in this process, whose answers a test can say: librdkafka's own functions, which Python lacks."""
    [path] = (Path(confluent_kafka.__file__).parents[1] / "confluent_kafka.libs").glob("librdkafka-*")
    library = ctypes.CDLL(str(path))
    for function in "conf_new", "new", "mock_cluster_new":
        getattr(library, f"rd_kafka_{function}").restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    said = ctypes.create_string_buffer(500)
    client = ctypes.c_void_p(library.rd_kafka_new(0, ctypes.c_void_p(library.rd_kafka_conf_new()), said, 500))
    cluster = ctypes.c_void_p(library.rd_kafka_mock_cluster_new(client, 1))
    for topic in b"good", b"bad":
        library.rd_kafka_mock_topic_create(cluster, topic, 1, 1)
    servers = library.rd_kafka_mock_cluster_bootstraps(cluster).decode()
    with override_settings(DJANGO_EVENTS={"BROKERS": {"kafka": {"bootstrap.servers": servers, "timeout": 3.0}}}):
        yield library, cluster, servers
    library.rd_kafka_mock_cluster_destroy(cluster)
    library.rd_kafka_destroy(client)


def ends_at(servers, topic):
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "tests", "log_level": 0})
    try:
        return consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, 0), timeout=10)[1]
    finally:
        consumer.close()


def sent_to(servers, topic):
    """The addresses of what is in a topic, in its order."""
    consumer = confluent_kafka.Consumer({"bootstrap.servers": servers, "group.id": "tests", "log_level": 0})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    try:
        messages = consumer.consume(ends_at(servers, topic), timeout=30)
        return [dict(message.headers())["ce_id"].decode() for message in messages]
    finally:
        consumer.close()


@pytest.mark.slow
@pytest.mark.parametrize("code", [confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE, 87])  # 87: INVALID_RECORD
def test_a_record_batch_that_is_refused_makes_no_dead_letter_of_a_neighbour(things, make_relay, refusing, code):
    library, cluster, servers = refusing
    fill_topic(things, *range(5), key="k")
    relay = make_relay(things, to=kafka_topic("good"))
    answers = (ctypes.c_int * 1)(code)
    library.rd_kafka_mock_push_request_errors_array(cluster, ctypes.c_int16(0), ctypes.c_size_t(1), answers)
    serve_due(relay)

    assert dead_letters(relay) == []
    assert position_of(relay).position == 5
    assert ends_at(servers, "good") == 5


@pytest.mark.slow
@pytest.mark.parametrize("given_up", [0, 1])
def test_what_is_sent_alone_overtakes_nothing_that_was_given_up(things, make_relay, refusing, monkeypatch, given_up):
    """A broker lacks replicas for one record batch, and refuses the other one. Then it has its replicas again."""
    library, cluster, servers = refusing
    fill_topic(things, *range(2), key="k")
    few = {"bootstrap.servers": servers, "timeout": 1.0, "batch.num.messages": 1, "retry.backoff.ms": 10}
    lacking, too_large = confluent_kafka.KafkaError.NOT_ENOUGH_REPLICAS, confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE
    codes = [*([lacking, too_large] if given_up == 0 else [too_large]), *[lacking] * 1_000]
    answers = (ctypes.c_int * len(codes))(*codes)
    library.rd_kafka_mock_push_request_errors_array(cluster, ctypes.c_int16(0), ctypes.c_size_t(len(codes)), answers)
    give_up = kafka_producer.KafkaProducer.give_up

    def recover(producer):
        told = give_up(producer)
        library.rd_kafka_mock_clear_request_errors(cluster, ctypes.c_int16(0))
        return told

    monkeypatch.setattr(kafka_producer.KafkaProducer, "give_up", recover)
    events = received()
    with override_settings(DJANGO_EVENTS={"BROKERS": {"kafka": few}}):
        relaying = Relaying(make_relay(things, to=kafka_topic("good")))
        with pytest.raises(FailedAt) as failed:
            relaying(events)
        assert failed.value.index == given_up
        assert "no answer in time" in str(failed.value.error)
        relaying(events[failed.value.index :])
        relaying.close()

    assert sent_to(servers, "good") == ["things/1", "things/2"]


@pytest.mark.slow
def test_what_the_client_says_later_of_what_it_gave_up_changes_no_answer(refusing, monkeypatch):
    library, cluster, servers = refusing
    codes = [confluent_kafka.KafkaError.NOT_ENOUGH_REPLICAS] * 1_000
    given = (ctypes.c_int * len(codes))(*codes)
    library.rd_kafka_mock_push_request_errors_array(cluster, ctypes.c_int16(0), ctypes.c_size_t(len(codes)), given)

    def silently(producer):
        producer.client.purge(blocking=False)
        return False

    monkeypatch.setattr(kafka_producer.KafkaProducer, "give_up", silently)
    address = {"id": "things/1", "source": "/things"}
    message = RelayMessage(1, "things/1", Route("good"), "k", address, {"content-type": "text/plain"}, b"1")
    producer = kafka_producer.KafkaProducer("kafka", {"bootstrap.servers": servers, "timeout": 1.0})
    answers, refused = producer.answers_to([message])
    assert len(producer.client)  # what it has to say
    assert producer.client.flush(10) == 0

    assert (answers, refused) == ([UNANSWERED], None)


@pytest.mark.slow
def test_a_topic_by_a_function_that_takes_nothing_doubles_nothing_in_the_others(things, make_relay, refusing):
    """It counts as an attempt, as if it weren't there: Kafka says the same of both to a login that may not see it."""
    library, cluster, servers = refusing
    library.rd_kafka_mock_topic_set_error(cluster, b"bad", 29)  # not authorized
    for n in range(12):
        fill_topic(things, n, type="bad" if n == 1 else "good", key="k")
    relay = make_relay(things, to=kafka_topic(lambda event: event.type))
    events = received()
    relaying = Relaying(relay)
    for first in 0, 1, 1:
        with pytest.raises(FailedAt) as failed:
            relaying(events[first:])
        assert events[first:][failed.value.index].id == 2
        assert isinstance(failed.value.error, Unroutable)
    assert ends_at(servers, "good") == 1  # what is behind waits
    library.rd_kafka_mock_topic_set_error(cluster, b"bad", 0)
    relaying(events[1:])
    relaying.close()

    assert (ends_at(servers, "good"), ends_at(servers, "bad")) == (11, 1)


@pytest.mark.slow
def test_a_topic_that_takes_nothing_is_an_outage_whose_pauses_grow(things, make_relay, refusing, caplog):
    library, cluster, servers = refusing
    library.rd_kafka_mock_topic_set_error(cluster, b"bad", 29)  # not authorized
    fill_topic(things, *range(3), key="k")
    relay = make_relay(things, to=kafka_topic("bad"), retry=Backoff(base=timedelta(seconds=4)))
    events, relaying, pauses = received(), Relaying(relay), []
    with caplog.at_level("INFO", logger="django_events.relays"):
        for _ in range(3):
            with pytest.raises(FailedAt) as failed:
                relaying(events)
            pauses.append(failed.value.error.after.total_seconds())
    assert 3 <= pauses[0] <= 4 < 6 <= pauses[1] <= 8 < 12 <= pauses[2] <= 16
    assert len([one for one in caplog.records if one.name == "django_events.relays"]) == 1
    library.rd_kafka_mock_topic_set_error(cluster, b"bad", 0)
    relaying(events)
    relaying.close()

    assert ends_at(servers, "bad") == 3
