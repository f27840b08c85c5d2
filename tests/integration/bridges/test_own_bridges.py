"""The targets and sources of this package keep the promises that a site's own have to keep."""

from contextlib import closing
from dataclasses import replace
from datetime import timedelta

import pytest
from django.test import override_settings

from django_events import (
    jetstream,
    jetstream_source,
    kafka_source,
    rabbitmq_source,
    redis_source,
    redis_stream,
    sns,
    sqs,
    sqs_source,
)
from django_events import kafka as kafka_topic
from django_events import rabbitmq as to_rabbitmq
from django_events.testing import check_source, check_target

pytestmark = pytest.mark.requirement("X20", "X21")

SECRET = "hunter-two"


def unchecked(found):
    return {name for name, said in found.items() if said != "kept"}


@pytest.mark.slow
def test_redis_streams_as_a_target(redis):
    found = check_target(
        redis_stream("sent"),
        received=lambda: [entry.address for entry in redis.entries("sent:0")],
        stop=redis.kill,
        start=redis.start,
        secrets=[SECRET],
    )
    assert unchecked(found) == {"refused"}


@pytest.mark.slow
def test_redis_streams_as_a_source(redis):
    def put(bodies):
        with redis.client() as client:
            for body in bodies:
                client.xadd("bank", {"data": body})

    def remove(number):
        with redis.client() as client:
            client.xtrim("bank", maxlen=client.xlen("bank") - number, approximate=False)

    def replace():
        with redis.client() as client:
            client.delete("bank")

    found = check_source(
        redis_source("bank"), put=put, remove=remove, replace=replace, stop=redis.kill, start=redis.start
    )
    assert unchecked(found) == set()


@pytest.mark.slow
def test_jetstream_as_a_target(nats):
    nats.add_stream("SENT-0", "sent.0")
    found = check_target(
        jetstream("sent", stream="SENT"),
        received=lambda: [entry.address for entry in nats.entries("SENT-0")],
        stop=nats.kill,
        start=nats.start,
    )
    assert unchecked(found) == {"empty", "refused"}


@pytest.mark.slow
def test_jetstream_as_a_source(nats):
    nats.add_stream("BANK", "bank")
    removed = []

    def put(bodies):
        async def publish(context):
            for body in bodies:
                await context.publish("bank", body)

        nats.ask(publish)

    def remove(number):
        removed.append(number)
        nats.ask(lambda context: context.purge_stream("BANK", seq=sum(removed) + 1))

    def replace():
        nats.clear()
        nats.add_stream("BANK", "bank")

    found = check_source(
        jetstream_source("BANK"), put=put, remove=remove, replace=replace, stop=nats.kill, start=nats.start
    )
    assert unchecked(found) == set()


@pytest.mark.slow
def test_kafka_as_a_target(kafka):
    found = check_target(
        kafka_topic("sent"),
        received=lambda: [entry.address for entry in kafka.entries("sent")],
        refused=None,
        stop=kafka.kill,
        start=kafka.start,
    )
    assert unchecked(found) == {"empty", "newest", "overtaken", "refused"}


@pytest.mark.slow
def test_kafka_as_a_source(kafka):
    """Its topics have four partitions, and can't be deleted: see `test_inbox_from_a_real_kafka`."""
    kafka.publish("bank", [])
    found = check_source(
        kafka_source("bank"),
        put=lambda bodies: [kafka.publish("bank", [body], key=body) for body in bodies],
        stop=kafka.kill,
        start=kafka.start,
    )
    assert unchecked(found) == {"gone", "replaced"}


@pytest.mark.slow
def test_secrets_of_a_login_are_in_no_error(redis):
    """A wrong password: all that is asked is refused, and each promise that says so is checked for it."""
    wrong = {**redis.options, "password": SECRET}
    with (
        override_settings(DJANGO_EVENTS={"BROKERS": {"redis": wrong}}),
        pytest.raises(AssertionError) as raised,
    ):
        check_target(redis_stream("sent"), received=list, secrets=[SECRET])
    assert "has a secret in it" not in str(raised.value)


@pytest.mark.slow
def test_rabbitmq_as_a_target(rabbitmq):
    """A classic queue is there as soon as its server is; a quorum queue elects a leader first, and answers late."""
    rabbitmq.declare("sent", kind="classic")
    seen = []

    def received():
        with closing(rabbitmq.connection()) as connection:
            channel = connection.channel()
            channel.auto_decode = False  # bodies are bytes
            while (found := channel.basic_get("sent", no_ack=True)) is not None:
                seen.append(found.properties["message_id"])
        return seen

    found = check_target(to_rabbitmq("sent"), received=received, stop=rabbitmq.kill, start=rabbitmq.start, seconds=60)
    assert unchecked(found) == {"empty", "newest", "overtaken", "refused"}
    rabbitmq.remove("sent")


@pytest.mark.slow
@pytest.mark.parametrize("in_order", [True, False], ids=["fifo", "standard"])
@pytest.mark.parametrize("service", ["sqs", "sns"])
def test_sqs_and_sns_as_targets(aws, service, in_order):
    name = "sent.fifo" if in_order else "sent"
    aws.make_queue(name)
    target = sqs(name) if service == "sqs" else sns(aws.make_topic(name, name))
    found = check_target(
        target,
        received=lambda: [entry.address for entry in aws.entries(name)],
        refused=lambda message: replace(message, body=b"\xff"),  # no text
        stop=aws.kill,
        start=aws.start,
        secrets=[aws.options["aws_secret_access_key"]],
        in_order=in_order,
    )
    assert unchecked(found) == {"empty", "newest", "overtaken"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bank.fifo", "bank"])
def test_sqs_as_a_source(aws, name):
    aws.make_queue(name)
    found = check_source(
        sqs_source(name, visibility=timedelta(seconds=3)),
        put=lambda bodies: [aws.put(name, body.decode()) for body in bodies],
        stop=aws.kill,
        start=aws.start,
        secrets=[aws.options["aws_secret_access_key"]],
        is_text=True,
    )
    assert unchecked(found) == set()


@pytest.mark.slow
@pytest.mark.parametrize("exclusive", [True, False])
def test_rabbitmq_as_a_source(rabbitmq, exclusive):
    rabbitmq.declare("bank", kind="classic")
    found = check_source(
        rabbitmq_source("bank", exclusive=exclusive),
        put=lambda bodies: rabbitmq.put("bank", bodies),
        stop=rabbitmq.kill,
        start=rabbitmq.start,
        seconds=60,
    )
    rabbitmq.remove("bank")
    assert unchecked(found) == set()
