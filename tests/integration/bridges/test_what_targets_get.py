"""What each target gets of an event: its trace, nulls, what was erased, and what a rewind sends again."""

import json
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from django_events import Draft, jetstream, publish_many, redis_stream, sns, sqs
from django_events import kafka as kafka_topic
from django_events import rabbitmq as rabbitmq_queue
from django_events.operations import erase, rewind
from tests.support.fix_consumers import dead_letters, exhaust, serve_due
from tests.support.fix_queues import fill_topic
from tests.support.fix_topics import transfer_all

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X20")]

TRACE = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "vendor=7"}


class Got(NamedTuple):
    """A message as a reader of the target finds it, by the names of CloudEvents."""

    address: str
    key: str | None
    named: dict[str, str]
    body: str | None


class Target(NamedTuple):
    name: str
    to: Any
    read: Callable[[], list[Got]]  # all that was sent, or that is new where reading takes it away


def to_redis(redis):
    def read():
        return [plain(one, one.attributes.get("key"), "ce_") for one in redis.entries()]

    return Target("redis", redis_stream("shop.things"), read)


def to_nats(nats):
    nats.add_stream("THINGS-0", "shop.things.0")

    def read():
        return [plain(one, one.attributes.get("ce-subject"), "ce-") for one in nats.entries("THINGS")]

    return Target("nats", jetstream("shop.things", stream="THINGS"), read)


def to_kafka(kafka):
    def read():
        return [plain(one, one.id, "ce_") for one in kafka.entries("shop.things")]

    return Target("kafka", kafka_topic("shop.things"), read)


def to_rabbitmq(rabbitmq):
    rabbitmq.declare("things")

    def read():
        rabbitmq.clear()
        found = rabbitmq.entries("things")
        return [plain(one, one.attributes.get("cloudEvents:subject"), "cloudEvents:") for one in found]

    return Target("rabbitmq", rabbitmq_queue("things"), read)


def to_sqs(aws, queue="things.fifo"):
    aws.make_queue(queue)
    return Target("sqs", sqs(queue), lambda: from_queue(aws, queue))


def to_sns(aws):
    aws.make_queue("copies.fifo")
    arn = aws.make_topic("things.fifo", "copies.fifo")
    return Target("sns", sns(arn), lambda: from_queue(aws, "copies.fifo"))


def plain(entry, key, prefix):
    named = {name.removeprefix(prefix): text for name, text in entry.attributes.items()}
    return Got(entry.address, key, named, entry.data)


def from_queue(aws, queue):
    found = []
    for one in aws.messages(queue):
        named = {
            name.removeprefix("ce_"): value["StringValue"] for name, value in one.get("MessageAttributes", {}).items()
        }
        found.append(Got(named["id"], one["Attributes"].get("MessageGroupId"), named, one["Body"]))
    return sorted(found, key=lambda got: int(got.address.partition("/")[2]))


TARGETS = {
    "redis": (to_redis, "redis"),
    "nats": (to_nats, "nats"),
    "kafka": (to_kafka, "kafka"),
    "rabbitmq": (to_rabbitmq, "rabbitmq"),
    "sqs": (to_sqs, "aws"),
    "sns": (to_sns, "aws"),
}


@pytest.fixture(params=["redis", "nats", *(pytest.param(name, marks=pytest.mark.slow) for name in list(TARGETS)[2:])])
def target(request):
    make, broker = TARGETS[request.param]
    yield make(request.getfixturevalue(broker))
    if request.param == "rabbitmq":
        request.getfixturevalue(broker).remove("things")


def test_a_trace_and_the_version_of_a_schema_are_headers(things, make_relay, target):
    publish_many(things, [Draft(value=1, key="k", metadata={**TRACE, "schema_version": 3}), Draft(value=2, key="k")])
    transfer_all()
    serve_due(make_relay(things, to=target.to))

    first, second = target.read()
    assert {name: first.named[name] for name in TRACE} == TRACE
    assert not set(second.named) & set(TRACE)
    if target.name in ("sqs", "sns"):  # whose messages have at most ten attributes
        assert {**TRACE, "schemaversion": "3"}.items() <= json.loads(first.body).items()
    else:
        assert first.named["schemaversion"] == "3"
        assert "schemaversion" not in second.named


@pytest.mark.parametrize("form", ["value", "cloudevent"])
def test_a_null_is_a_null_and_in_kafka_a_tombstone_with_its_key(things, make_relay, target, form):
    fill_topic(things, {"n": 1}, None, "null", key="Ada")
    fill_topic(things, "erased", key="Bob")
    erase(things, ids=[4], reason="asked for")
    serve_due(make_relay(things, to=target.to, form=form))

    found = target.read()
    bodies = {one.address: one.body for one in found}
    null = None if target.name == "kafka" else "null"
    if form == "value":
        assert bodies == {"things/1": '{"n": 1}', "things/2": null, "things/3": '"null"', "things/4": null}
    else:
        data = {address: json.loads(body)["data"] for address, body in bodies.items()}
        assert data == {"things/1": {"n": 1}, "things/2": None, "things/3": "null", "things/4": None}
    if target.name in ("kafka", "redis", "sqs", "sns"):  # the others have a key in CloudEvents alone
        assert {one.address: one.key for one in found if one.address in ("things/2", "things/4")} == {
            "things/2": "Ada",
            "things/4": "Bob",
        }


def test_what_was_erased_is_a_null_with_its_key_also_where_transform_had_left_it_out(things, make_relay, target):
    asked = []

    def transform(event):
        asked.append(event.id)
        return None if event.key == "Bob" else event.value

    fill_topic(things, {"n": 1}, key="Ada")
    fill_topic(things, {"n": 2}, key="Bob")
    relay = make_relay(things, to=target.to, transform=transform)
    assert serve_due(relay) == 2
    assert [one.address for one in target.read()] == ["things/1"]

    erase(things, ids=[2], reason="asked for")
    rewind(relay, to=2)
    fill_topic(things, {"n": 3}, key="Ada")
    assert serve_due(relay) == 2
    [erased] = [one for one in target.read() if one.address == "things/2"]
    assert erased.key == "Bob"
    if target.name in ("sqs", "sns"):
        said = json.loads(erased.body)
        assert (said["subject"], said["data"], said["erased"]) == ("Bob", None, True)
    else:
        assert (erased.body, erased.named["erased"]) == (None if target.name == "kafka" else "null", "true")
    assert asked == [1, 2, 3]


def test_the_function_of_a_target_is_asked_where_the_null_of_an_erased_event_goes(things, make_relay, redis):
    fill_topic(things, {"land": "it"}, key="Ada", type="order")
    erase(things, ids=[1], reason="asked for")
    to_lands = make_relay(things, to=redis_stream(lambda event: event.value["land"]), name="to-lands")
    exhaust(to_lands)
    serve_due(make_relay(things, to=redis_stream(lambda event: f"shop.{event.type}"), name="to-types"))

    [entry] = redis.entries()
    assert (entry.address, entry.data) == ("things/1", "null")
    [letter] = dead_letters(to_lands)
    assert "TypeError: 'NoneType' object is not subscriptable" in letter.error


@pytest.fixture
def rewound(request):
    """A target by its name; `sqs` is a queue that isn't FIFO, `fifo` is one."""
    if request.param in ("sqs", "fifo"):
        return to_sqs(request.getfixturevalue("aws"), "plain" if request.param == "sqs" else "things.fifo")
    make, broker = TARGETS[request.param]
    return make(request.getfixturevalue(broker))


@pytest.mark.parametrize(
    "rewound", [pytest.param(name, marks=pytest.mark.slow) for name in ("kafka", "sqs", "fifo", "sns")], indirect=True
)
def test_a_rewind_sends_again_what_the_target_can_not_compare(things, make_relay, rewound, request):
    """Those of Redis, JetStream and RabbitMQ are in their own files. AWS drops what comes again within five minutes."""
    relay = make_relay(things, to=rewound.to)
    fill_topic(things, 1, 2, key="Ada")
    assert serve_due(relay) == 2
    rewind(relay, to=1)
    fill_topic(things, 3, key="Ada")
    assert serve_due(relay) == 3

    times = 1 if request.node.callspec.params["rewound"] in ("fifo", "sns") else 2
    assert Counter(one.address for one in rewound.read()) == {"things/1": times, "things/2": times, "things/3": 1}
