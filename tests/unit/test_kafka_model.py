"""The Kafka of the tests' own, as librdkafka finds it: transactions, fences, faults, and what a kill leaves."""

import random
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.support.kafka_broker import ModelBroker, PartitionLog, RequestRefused
from tests.support.kafka_model import ModelKafka
from tests.support.kafka_wire import TRANSACTIONAL, BatchHeader, ErrorCode, crc32c
from tests.support.processes import wait_until

SOURCE = TopicPartition("source", 0, 7, "up to things/7")
# A producer that is in the middle of a transaction, until it is killed.
UNFINISHED = """
import signal, sys
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": sys.argv[1], "transactional.id": "relay", "log_level": 0})
producer.init_transactions(20)
producer.begin_transaction()
producer.produce("things", b"of one that was killed")
assert producer.flush(20) == 0
print("open", flush=True)
signal.pause()
"""


@pytest.fixture
def model(tmp_path: Path) -> Iterator[ModelKafka]:
    with closing(ModelKafka(tmp_path, partitions=1)) as kafka:
        yield kafka


def producer_of(model: ModelKafka, **options: Any) -> Producer:
    """The next producer of one transactional id, without what it says on stderr."""
    defaults = {"bootstrap.servers": model.servers, "transactional.id": "relay", "log_level": 0, "linger.ms": 1}
    producer = Producer({**defaults, **{name.replace("_", "."): value for name, value in options.items()}})
    producer.init_transactions(20)
    return producer


def begin(producer: Producer, *values: bytes) -> None:
    producer.begin_transaction()
    for value in values:
        producer.produce("things", value)
    assert producer.flush(20) == 0


def group_of(model: ModelKafka) -> Consumer:
    options = {"bootstrap.servers": model.servers, "group.id": "relay", "log_level": 0}
    return Consumer({**options, "isolation.level": "read_committed"})


def send_offset(producer: Producer, model: ModelKafka) -> None:
    with closing(group_of(model)) as group:
        producer.send_offsets_to_transaction([SOURCE], group.consumer_group_metadata(), 20)


def values(model: ModelKafka, **options: Any) -> list[bytes | None]:
    return [message.value for message in model.messages("things", **options)]


def test_messages_are_read_as_they_were_sent(model):
    model.publish("things", [b"one", None], key="Zoë", headers=[("ce_id", b"things/1")])
    model.publish("things", [b"three"])

    assert [tuple(message) for message in model.messages()] == [
        ("things", 0, 0, "Zoë".encode(), b"one", [("ce_id", b"things/1")]),
        ("things", 0, 1, "Zoë".encode(), None, [("ce_id", b"things/1")]),
        ("things", 0, 2, None, b"three", []),
    ]
    assert model.watermarks("things", 0) == (0, 3)


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_messages_are_read_as_they_were_sent(model, codec):
    producer = producer_of(model, compression_type=codec)
    begin(producer, *[b"x" * 1_000] * 10)
    producer.commit_transaction(20)

    assert values(model) == [b"x" * 1_000] * 10


def test_a_transaction_is_read_when_it_is_committed(model):
    producer = producer_of(model)
    begin(producer, b"one", b"two")
    assert model.transaction("relay") == ("open", 0)
    assert (values(model), values(model, committed=False)) == ([], [b"one", b"two"])

    producer.commit_transaction(20)

    assert model.transaction("relay") == ("committed", 0)
    assert values(model) == [b"one", b"two"]


def test_a_transaction_that_was_aborted_is_not_read(model):
    producer = producer_of(model)
    begin(producer, b"one")
    producer.commit_transaction(20)
    begin(producer, b"two")
    producer.abort_transaction(20)
    begin(producer, b"three")
    producer.commit_transaction(20)

    assert values(model) == [b"one", b"three"]
    assert values(model, committed=False) == [b"one", b"two", b"three"]


def test_a_transaction_of_several_partitions_and_topics_is_one(model):
    model.topic("things", partitions=3)
    producer = producer_of(model)
    producer.begin_transaction()
    for partition in range(3):
        producer.produce("things", b"%d" % partition, partition=partition)
    producer.produce("others", b"3")
    assert producer.flush(20) == 0
    assert model.messages() == []

    producer.commit_transaction(20)

    assert [(one.topic, one.partition, one.value) for one in model.messages()] == [
        ("others", 0, b"3"),
        ("things", 0, b"0"),
        ("things", 1, b"1"),
        ("things", 2, b"2"),
    ]


def test_an_offset_counts_from_the_commit_on(model):
    producer = producer_of(model)
    begin(producer, b"one")
    send_offset(producer, model)
    assert model.offsets("relay") == {}

    producer.commit_transaction(20)

    assert model.offsets("relay") == {("source", 0): (7, "up to things/7")}
    with closing(group_of(model)) as group:
        [found] = group.committed([TopicPartition("source", 0)], timeout=20)
    assert (found.offset, found.metadata) == (7, "up to things/7")


def test_an_offset_of_a_transaction_that_was_aborted_counts_nothing(model):
    producer = producer_of(model)
    begin(producer, b"one")
    send_offset(producer, model)
    producer.abort_transaction(20)

    assert model.offsets("relay") == {}


@pytest.mark.slow
def test_a_consumer_waits_for_an_offset_of_an_open_transaction(model):
    producer = producer_of(model)
    begin(producer, b"one")
    send_offset(producer, model)

    with closing(group_of(model)) as group:
        with pytest.raises(KafkaException) as refused:
            group.committed([TopicPartition("source", 0)], timeout=1)
        assert refused.value.args[0].code() == KafkaError._TIMED_OUT
        producer.commit_transaction(20)
        [found] = group.committed([TopicPartition("source", 0)], timeout=20)
    assert found.offset == 7


def test_an_offset_without_a_transaction_is_kept(model):
    with closing(group_of(model)) as group:
        group.commit(offsets=[SOURCE], asynchronous=False)
    model.kill()
    model.start()

    assert model.offsets("relay") == {("source", 0): (7, "up to things/7")}


@pytest.mark.parametrize("attempt", ["a message", "an offset", "a commit", "an abort"])
def test_a_second_producer_of_an_id_fences_the_first_one(model, attempt):
    first = producer_of(model)
    begin(first, b"of the first")
    second = producer_of(model)

    with pytest.raises(KafkaException) as refused:
        match attempt:
            case "a message":
                first.produce("things", b"too late")
                first.flush(20)
                first.commit_transaction(20)
            case "an offset":
                send_offset(first, model)
            case "a commit":
                first.commit_transaction(20)
            case "an abort":
                first.abort_transaction(20)
    assert refused.value.args[0].code() == KafkaError._FENCED
    assert refused.value.args[0].fatal()

    begin(second, b"of the second")
    second.commit_transaction(20)
    assert values(model) == [b"of the second"]


def test_a_producer_that_has_nothing_open_is_fenced_by_its_next_transaction(model):
    first = producer_of(model)
    producer_of(model)
    first.begin_transaction()
    first.produce("things", b"too late")

    with pytest.raises(KafkaException) as refused:
        first.commit_transaction(20)
    assert refused.value.args[0].code() == KafkaError._FENCED
    assert values(model, committed=False) == []


@pytest.mark.slow
def test_a_transaction_whose_producer_was_killed_is_aborted_by_the_next_one(model):
    killed = subprocess.Popen([sys.executable, "-c", UNFINISHED, model.servers], stdout=subprocess.PIPE, text=True)
    with killed:
        assert killed.stdout.readline() == "open\n"
        killed.kill()
    assert model.transaction("relay") == ("open", 0)

    begin(producer_of(model), b"one")

    assert values(model) == []
    assert model.transaction("relay") == ("open", 2)
    producer_of(model)
    assert values(model, committed=False) == [b"of one that was killed", b"one"]


@pytest.mark.slow
def test_a_transaction_that_takes_too_long_is_aborted_and_its_producer_fenced(model):
    producer = producer_of(model, transaction_timeout_ms=1_000)
    begin(producer, b"one")
    wait_until(lambda: model.transaction("relay") == ("aborted", 1), what="an abort")

    with pytest.raises(KafkaException) as refused:
        producer.commit_transaction(20)
    assert refused.value.args[0].code() == KafkaError._FENCED


@pytest.mark.parametrize("effect", ["lose", *(pytest.param(one, marks=pytest.mark.slow) for one in ("mute", "cut"))])
def test_a_batch_that_comes_again_is_there_once(model, effect):
    producer = producer_of(model, socket_timeout_ms=500, transaction_timeout_ms=60_000)
    model.fault(effect, "Produce")
    begin(producer, b"one", b"two")
    model.wait_until_struck()
    producer.commit_transaction(20)

    assert values(model, committed=False) == [b"one", b"two"]


@pytest.mark.parametrize(
    "api",
    [
        "EndTxn",
        *(
            pytest.param(one, marks=pytest.mark.slow)
            for one in ("AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit")
        ),
    ],
)
def test_a_request_whose_answer_was_lost_is_repeated(model, api):
    producer = producer_of(model)
    model.fault("lose", api)
    begin(producer, b"one")
    send_offset(producer, model)
    producer.commit_transaction(20)

    model.wait_until_struck()
    assert values(model) == [b"one"]
    assert model.offsets("relay") == {("source", 0): (7, "up to things/7")}


@pytest.mark.slow
def test_a_commit_whose_answer_was_lost_is_there_for_the_next_producer(model):
    producer = producer_of(model)
    begin(producer, b"one")
    send_offset(producer, model)
    model.fault("lose", "EndTxn")
    model.fault("swallow", "EndTxn", times=-1)
    with pytest.raises(KafkaException) as refused:
        producer.commit_transaction(1)
    assert refused.value.args[0].code() == KafkaError._TIMED_OUT
    assert refused.value.args[0].retriable()

    producer_of(model)

    assert model.transaction("relay") == ("empty", 1)
    assert values(model) == [b"one"]
    assert model.offsets("relay") == {("source", 0): (7, "up to things/7")}


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_the_next_producer_waits_for_the_end_of_what_was_decided(model, killed):
    model.delay_markers(1)
    producer = producer_of(model)
    begin(producer, b"one")
    send_offset(producer, model)
    producer.commit_transaction(20)
    assert model.transaction("relay") == ("committing", 0)
    assert (values(model), model.offsets("relay")) == ([], {})
    if killed:
        model.kill()
        model.start()

    producer_of(model)

    assert values(model) == [b"one"]
    assert model.offsets("relay") == {("source", 0): (7, "up to things/7")}


@pytest.mark.slow
def test_a_kill_leaves_what_was_acknowledged(model):
    model.topic("small", partitions=3, max_bytes=500)
    model.publish("things", [b"zero"])
    producer = producer_of(model)
    begin(producer, b"one")
    send_offset(producer, model)
    producer.commit_transaction(20)
    begin(producer, b"two")
    model.kill()
    model.start()

    assert model.transaction("relay") == ("open", 0)
    assert (values(model), values(model, committed=False)) == ([b"zero", b"one"], [b"zero", b"one", b"two"])
    assert model.offsets("relay") == {("source", 0): (7, "up to things/7")}
    producer.produce("things", b"three")
    producer.commit_transaction(20)
    assert values(model) == [b"zero", b"one", b"two", b"three"]
    assert model.watermarks("small", 2) == (0, 0)


@pytest.mark.slow
def test_a_start_leaves_out_what_a_kill_cut_off(model):
    model.publish("things", [b"one"])
    journal = model.folder / "kafka.journal"
    whole = journal.read_bytes()
    other = Producer({"bootstrap.servers": model.servers, "log_level": 0})
    other.produce("things", b"two")
    assert other.flush(20) == 0
    model.kill()
    journal.write_bytes(journal.read_bytes()[: len(whole) + 20])
    model.start()
    model.publish("things", [b"three"])

    assert values(model) == [b"one", b"three"]


@pytest.mark.slow
def test_a_producer_waits_while_it_is_frozen(model):
    producer = producer_of(model)
    begin(producer, b"one")
    model.freeze()
    with pytest.raises(KafkaException) as refused:
        producer.commit_transaction(0.5)
    assert refused.value.args[0].code() == KafkaError._TIMED_OUT

    model.thaw()
    producer.commit_transaction(20)
    assert values(model) == [b"one"]


@pytest.mark.slow
def test_a_commit_that_is_held_until_the_next_producer_is_there_is_refused(model):
    first = producer_of(model)
    begin(first, b"one")
    model.fault("hold", "EndTxn")
    with pytest.raises(KafkaException):
        first.commit_transaction(0.5)
    model.wait_until_held()
    second = producer_of(model)

    model.release()

    with pytest.raises(KafkaException) as refused:
        first.commit_transaction(20)
    assert refused.value.args[0].code() == KafkaError._FENCED
    begin(second, b"two")
    second.commit_transaction(20)
    assert values(model) == [b"two"]


def test_an_error_that_a_test_wants_is_the_answer(model):
    producer = producer_of(model)
    model.fault("TRANSACTIONAL_ID_AUTHORIZATION_FAILED", "EndTxn")
    begin(producer, b"one")

    with pytest.raises(KafkaException) as refused:
        producer.commit_transaction(20)
    assert refused.value.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert model.transaction("relay") == ("open", 0)


def test_a_batch_that_is_too_large_is_refused(model):
    model.topic("things", partitions=1, max_bytes=500)
    refused = []
    producer = Producer({"bootstrap.servers": model.servers, "log_level": 0})
    producer.produce("things", b"x" * 500, on_delivery=lambda error, _: refused.append(error.code()))
    assert producer.flush(20) == 0

    assert refused == [KafkaError.MSG_SIZE_TOO_LARGE]
    assert values(model) == []


@pytest.mark.slow
@pytest.mark.parametrize(("trouble", "aborted"), [("a refusal", 2), ("no answer in time", 1)])
def test_a_producer_goes_on_behind_an_error_with_its_next_epoch(model, trouble, aborted):
    """A batch that was refused leaves a gap in the numbers, which librdkafka finds out in the next transaction."""
    model.topic("things", partitions=1, max_bytes=500)
    producer = producer_of(model, message_timeout_ms=1_000, socket_timeout_ms=500)
    if trouble == "no answer in time":
        model.fault("swallow", "Produce", times=-1)
    for number in range(aborted):
        producer.begin_transaction()
        producer.produce("things", b"x" * (500 if trouble == "a refusal" and number == 0 else 1))
        with pytest.raises(KafkaException) as refused:
            producer.commit_transaction(20)
        assert refused.value.args[0].txn_requires_abort()
        model.release()
        producer.abort_transaction(20)

    begin(producer, b"one")
    producer.commit_transaction(20)
    assert model.transaction("relay") == ("committed", 1)
    assert values(model, committed=False) == [b"one"]


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_what_goes_with_its_offset_is_there_once_whatever_happens(model, seed):
    """Sixty numbers, a few in a transaction, while answers are lost, requests refused, and the model is killed.

    Where librdkafka goes back to its bootstrap servers by itself, as soon as it has lost all brokers, it waits without
    end for the group's coordinator, whatever the timeout of `send_offsets_to_transaction`.
    """
    dice = random.Random(seed)
    effects = ["lose", "mute", "cut", "NOT_COORDINATOR", "CONCURRENT_TRANSACTIONS", "UNKNOWN_TOPIC_OR_PARTITION"]
    apis = ["Produce", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn", "InitProducerId"]
    model.topic("things", partitions=1)
    model.delay_markers(0.1)
    where, at, producers = TopicPartition("source", 0), 0, 0
    while at < 60:
        with suppress(KafkaException), closing(group_of(model)) as group:
            producers += 1
            producer = producer_of(model, socket_timeout_ms=300, metadata_recovery_strategy="none")
            [found] = group.committed([where], timeout=20)
            at = max(found.offset, 0)
            while at < 60:
                if dice.random() < 0.3:
                    model.fault(dice.choice(effects), dice.choice(apis))
                producer.begin_transaction()
                behind = min(at + dice.randint(1, 5), 60)
                for number in range(at, behind):
                    producer.produce("things", b"%d" % number)
                if dice.random() < 0.1:
                    producer.flush(20)
                    model.kill()
                    model.start()
                if dice.random() < 0.15:
                    break  # the next producer finds it open
                next_one = [TopicPartition("source", 0, behind)]
                producer.send_offsets_to_transaction(next_one, group.consumer_group_metadata(), 20)
                producer.commit_transaction(dice.choice([0.2, 20]))
                at = behind
        model.release()

    producer_of(model)
    assert values(model) == [b"%d" % number for number in range(60)]
    assert producers > 1


@pytest.mark.slow
def test_a_topic_that_is_not_there_is_made_only_where_that_is_wanted(tmp_path):
    with closing(ModelKafka(tmp_path, creates=False)) as model:
        refused = []
        patience = {"topic.metadata.propagation.max.ms": 100}
        producer = Producer({"bootstrap.servers": model.servers, "log_level": 0, **patience})
        producer.produce("things", b"one", on_delivery=lambda error, _: refused.append(error.code()))
        assert producer.flush(20) == 0
        assert refused == [KafkaError.UNKNOWN_TOPIC_OR_PART]

        model.topic("things")
        model.publish("things", [b"two"])
        assert values(model) == [b"two"]


def batch(*, sequence: int, epoch: int = 0, attributes: int = 0, count: int = 2) -> tuple[bytes, BatchHeader]:
    header = BatchHeader(0, 49, 0, 2, 0, attributes, count - 1, 0, 0, 1, epoch, sequence, count)
    return struct.pack(">qiibIhiqqqhii", *header), header


def refusal(log: PartitionLog, **values: int) -> ErrorCode:
    with pytest.raises(RequestRefused) as refused:
        log.take(*batch(**values))
    return refused.value.code


def test_batches_are_taken_in_the_order_of_their_numbers():
    log = PartitionLog()
    assert [log.take(*batch(sequence=number)) for number in (0, 2, 4)] == [0, 2, 4]
    assert [log.take(*batch(sequence=number)) for number in (0, 2, 4)] == [0, 2, 4], "they are there already"
    assert refusal(log, sequence=7) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(log, sequence=6, epoch=1) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert log.take(*batch(sequence=0, epoch=1)) == 6
    assert refusal(log, sequence=6) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.end == 8


def test_numbers_begin_again_behind_the_largest():
    log = PartitionLog()
    log.take(*batch(sequence=2**31 - 2))
    assert log.take(*batch(sequence=0)) == 2


@pytest.mark.parametrize(
    ("partitions", "sequence", "epoch", "answer"),
    [
        ([0], 0, 0, ErrorCode.NONE),
        ([1], 0, 0, ErrorCode.INVALID_TXN_STATE),
        ([], 0, 0, ErrorCode.INVALID_TXN_STATE),
        ([0], 2, 0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
        ([0], 0, 1, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
def test_a_transactional_batch_is_taken_for_a_partition_of_the_transaction(partitions, sequence, epoch, answer):
    broker, now = ModelBroker(port=0, partitions=2, creates=True), time.time()
    broker.handle("Metadata", [["things"], True], now)
    broker.handle("InitProducerId", ["relay", 60_000, -1, -1], now)
    if partitions:
        broker.handle("AddPartitionsToTxn", ["relay", 1, 0, [["things", partitions]]], now)
    data, _ = batch(sequence=sequence, epoch=epoch, attributes=TRANSACTIONAL)

    [[_, [found]]], _ = broker.handle("Produce", ["relay", -1, 1_000, [["things", [[0, data]]]]], now)

    assert found[1] == answer


def test_the_checksum_is_castagnolis():
    assert crc32c(b"123456789") == 0xE3069283
