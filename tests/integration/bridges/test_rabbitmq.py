"""Relays to a real RabbitMQ: what is sent, what is returned or refused, and what an outage costs."""

import json
import struct
from contextlib import closing
from datetime import timedelta
from socket import MSG_PEEK

import amqp
import pytest
import trustme
from django.test import override_settings

from django_events import Backoff
from django_events import rabbitmq as rabbitmq_queue
from django_events.bridges.relays import rabbitmq as bridge
from django_events.bridges.relays.answers import Unroutable
from django_events.bridges.relays.targets import RelayMessage, Route, TargetUnavailable
from django_events.models import DeadLetter
from django_events.operations import redrive, rewind
from tests.support.fix_consumers import dead_letters, end_pauses, exhaust, position_of, run_once, serve_due, working
from tests.support.fix_queues import fill_topic
from tests.support.fix_relays import received
from tests.support.processes import wait_until

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X20"), pytest.mark.slow]


@pytest.fixture(autouse=True)
def queue(rabbitmq):
    rabbitmq.declare("things")
    yield
    rabbitmq.remove("things")


def addresses(rabbitmq, queue="things"):
    return [entry.address for entry in rabbitmq.entries(queue)]


def waits(relay):
    """Why it waits, with nothing lost and no attempt counted."""
    assert dead_letters(relay) == []
    assert position_of(relay).retry_at is not None
    error = position_of(relay).error
    assert "nothing can be sent since" in error
    return error


def test_each_event_is_a_persistent_message_with_the_attributes_of_a_cloudevent(things, make_relay, rabbitmq):
    fill_topic(things, {"n": 1}, None, type="order.placed", key="Zoë")
    relay = make_relay(things, to=rabbitmq_queue("things"))
    assert serve_due(relay) == 2

    first, second = rabbitmq.entries("things")
    assert (first.address, json.loads(first.data)) == ("things/1", {"n": 1})
    assert (second.address, second.data) == ("things/2", "null")
    named = {name.removeprefix("cloudEvents:"): text for name, text in first.attributes.items()}
    assert {
        name: named[name] for name in ("id", "type", "source", "subject", "relay", "content-type", "delivery_mode")
    } == {
        "id": "things/1",
        "type": "order.placed",
        "source": "/things",
        "subject": "Zoë",
        "relay": "relay",
        "content-type": "application/json",
        "delivery_mode": 2,
    }


def test_a_queue_has_the_order_of_its_key_over_many_batches(lanes, make_relay, rabbitmq):
    for n in range(30):
        for key in "abcd":
            fill_topic(lanes, n, key=key)
    run_once(make_relay(lanes, to=rabbitmq_queue("things"), batch_size=7), threads=3)

    by_key: dict[str, list[str]] = {}
    for entry in rabbitmq.entries("things"):
        by_key.setdefault(entry.attributes["cloudEvents:subject"], []).append(entry.data)
    assert by_key == {key: [str(n) for n in range(30)] for key in "abcd"}


def test_a_queue_may_be_a_stream_which_keeps_what_was_read(things, make_relay, rabbitmq):
    rabbitmq.declare("parcel-stream", kind="stream")
    fill_topic(things, *range(5))
    assert serve_due(make_relay(things, to=rabbitmq_queue("parcel-stream"), batch_size=2)) == 5

    found = rabbitmq.stream("parcel-stream", 5)
    assert found == rabbitmq.stream("parcel-stream", 5) == [f"things/{id}" for id in range(1, 6)]
    rabbitmq.remove("parcel-stream")


def test_where_an_event_goes_may_be_a_function_of_it(things, make_relay, rabbitmq):
    rabbitmq.declare("placed", exchange="shop", key="order.placed")
    rabbitmq.declare("things", exchange="shop", key="order.*")
    fill_topic(things, 1, type="order.placed")
    fill_topic(things, 2, type="order.paid")
    serve_due(make_relay(things, to=rabbitmq_queue(lambda event: event.type, exchange="shop")))

    assert addresses(rabbitmq) == ["things/1", "things/2"]
    rabbitmq.clear()
    assert addresses(rabbitmq, "placed") == ["things/1"]


def test_without_its_queue_a_relay_waits_and_says_which(things, make_relay, rabbitmq):
    rabbitmq.remove("things")
    fill_topic(things, 1, 2)
    relay = make_relay(things, to=rabbitmq_queue("things"))
    run_once(relay)

    assert "no queue gets what the default exchange is sent with the routing key 'things'" in waits(relay)
    rabbitmq.declare("things")
    end_pauses(relay)
    run_once(relay)
    assert addresses(rabbitmq) == ["things/1", "things/2"]


def test_without_its_exchange_a_relay_waits_and_says_which(things, make_relay, rabbitmq):
    fill_topic(things, 1)
    relay = make_relay(things, to=rabbitmq_queue("things", exchange="nowhere"))
    run_once(relay)

    assert "no exchange 'nowhere'" in waits(relay)


def test_a_routing_key_of_an_event_that_no_queue_gets_is_tried_again_and_then_a_dead_letter(
    things, make_relay, rabbitmq
):
    rabbitmq.declare("things", exchange="shop", key="known")
    fill_topic(things, 1, type="known")
    fill_topic(things, 2, type="unknown")
    fill_topic(things, 3, type="known")
    relay = make_relay(things, to=rabbitmq_queue(lambda event: event.type, exchange="shop"))
    exhaust(relay)

    assert list(dict.fromkeys(addresses(rabbitmq))) == ["things/1", "things/3"]  # each turn is a worker of its own
    [letter] = dead_letters(relay)
    assert (letter.event_id, letter.attempts) == (2, 3)
    assert "no queue gets what exchange 'shop' is sent with the routing key 'unknown'" in letter.error
    rabbitmq.declare("things", exchange="shop", key="unknown")
    redrive(DeadLetter.objects.all())
    serve_due(relay)
    assert addresses(rabbitmq)[-1] == "things/2"


@pytest.mark.parametrize("key_of_second", ["late", "other"])
def test_a_queue_that_is_bound_in_the_midst_of_a_batch_has_the_order_of_its_key(
    things, make_relay, rabbitmq, monkeypatch, key_of_second
):
    """The first event of a key is returned, and by then the queue is there for those behind it."""
    rabbitmq.declare("things", exchange="shop", key="known")
    fill_topic(things, 1, type="known", key="a")
    fill_topic(things, 2, type="late", key="b")
    fill_topic(things, 3, type=key_of_second, key="b")
    fill_topic(things, 4, 5, type="known", key="a")
    relay = make_relay(things, to=rabbitmq_queue(lambda event: event.type, exchange="shop"))
    publish = amqp.Channel.basic_publish

    def publish_and_bind(channel, message, *arguments, routing_key, **named):
        publish(channel, message, *arguments, routing_key=routing_key, **named)
        if routing_key == "late":
            channel.basic_qos(0, 0, False)  # its answer comes when the message has been returned
            for key in ("late", "other"):
                rabbitmq.declare("things", exchange="shop", key=key)

    monkeypatch.setattr(amqp.Channel, "basic_publish", publish_and_bind)
    run_once(relay)
    assert "no queue gets" in position_of(relay).error
    assert addresses(rabbitmq) == ["things/1", "things/4", "things/5"]
    end_pauses(relay)
    run_once(relay)

    assert dead_letters(relay) == []
    first_times = list(dict.fromkeys(addresses(rabbitmq)))  # each turn is a worker of its own
    assert first_times == ["things/1", "things/4", "things/5", "things/2", "things/3"]


def test_a_queue_that_is_unbound_in_the_midst_of_a_batch_ends_with_the_newest_of_a_key(
    things, make_relay, rabbitmq, monkeypatch
):
    """What was behind a returned event of its key, and got there before it, is sent once more behind it."""
    for key in ("late", "other"):
        rabbitmq.declare("things", exchange="shop", key=key)
        fill_topic(things, key, type=key, key="b")
    fill_topic(things, 3, type="late", key="b")
    fill_topic(things, 4, type="other", key="b")
    publish, turns = amqp.Channel.basic_publish, iter([rabbitmq.unbind, rabbitmq.bind])

    def publish_and_unbind(channel, message, *arguments, **named):
        if message.properties["message_id"] == "things/3":
            next(turns, lambda *names: None)("things", "shop", "late")
        publish(channel, message, *arguments, **named)

    monkeypatch.setattr(amqp.Channel, "basic_publish", publish_and_unbind)
    to = rabbitmq_queue(lambda event: event.type, exchange="shop")
    relay = make_relay(things, to=to, batch_size=2, retry=Backoff(attempts=5, base=timedelta(milliseconds=50)))
    with working(relay):  # one process, which remembers what is acknowledged
        wait_until(lambda: position_of(relay).position == 4, what="all of it")

    assert dead_letters(relay) == []
    assert addresses(rabbitmq) == [f"things/{n}" for n in (1, 2, 4, 3, 4)]


def message(id, queue, key=None):
    attributes = {"id": f"things/{id}"}
    return RelayMessage(id, f"things/{id}", Route(queue), key, attributes, {"content-type": "text/plain"}, b"1")


def test_what_got_ahead_of_a_refused_message_of_its_key_is_sent_again_behind_it(rabbitmq, monkeypatch):
    rabbitmq.declare("tiny", **{"x-max-length": 1, "x-overflow": "reject-publish"}, kind="classic")
    publish = amqp.Channel.basic_publish

    def publish_and_read(channel, sent, *arguments, **named):
        if sent.properties["message_id"] == "things/3":
            channel.basic_qos(0, 0, False)  # its answer comes when the message in front of it was refused
            with closing(rabbitmq.connection()) as connection:
                connection.channel().queue_purge("tiny")
        publish(channel, sent, *arguments, **named)

    monkeypatch.setattr(amqp.Channel, "basic_publish", publish_and_read)
    with closing(rabbitmq_queue("tiny").bridge()) as opened:
        opened.open()
        assert opened.send([message(1, "tiny", "k")]) == [None]
        messages = [message(2, "tiny", "k"), message(3, "tiny", "k"), message(4, "things", "other")]
        with pytest.raises(TargetUnavailable, match="refused to take it") as raised:
            opened.send(messages)
    assert addresses(rabbitmq, "tiny") == ["things/3"]
    assert raised.value.ahead == {"things/4"}


def test_a_late_answer_to_a_message_says_nothing_of_one_of_the_next_batch(rabbitmq, monkeypatch):
    with closing(rabbitmq_queue(lambda event: event.type).bridge()) as opened:
        opened.open()
        assert opened.send([message(1, "things")]) == [None]
        drain = amqp.Connection.drain_events

        def drain_until_returned(connection, timeout=None):
            if isinstance(opened._answers[0], Unroutable):
                raise TimeoutError
            return drain(connection, timeout)

        with monkeypatch.context() as patched:
            patched.setattr(amqp.Connection, "drain_events", drain_until_returned)
            [returned] = opened.send([message(2, "nowhere"), message(3, "things")])
        assert isinstance(returned, Unroutable)
        socket, acknowledged = opened._connection.sock, struct.pack(">HHQ", 60, 80, 3)
        wait_until(lambda: acknowledged in socket.recv(1_000, MSG_PEEK), what="the answer that is too late")
        taken, returned = opened.send([message(4, "things"), message(5, "nowhere")])
    assert taken is None
    assert isinstance(returned, Unroutable)


def test_a_rewind_sends_all_again_also_what_was_acknowledged_behind_a_refused_one(things, make_relay, rabbitmq):
    rabbitmq.declare("things", exchange="shop", key="known")
    for n, kind in enumerate(["known", "unknown", *["known"] * 5]):
        fill_topic(things, n, type=kind)
    to = rabbitmq_queue(lambda event: event.type, exchange="shop")
    relay = make_relay(things, to=to, batch_size=3, retry=Backoff(attempts=2, base=timedelta(milliseconds=50)))
    sent = [f"things/{id}" for id in (1, 3, 4, 5, 6, 7)]
    with working(relay):  # one process, which remembers what is acknowledged
        wait_until(lambda: position_of(relay).position == 7, what="all that can be sent")
        assert sorted(set(addresses(rabbitmq))) == sent
        rabbitmq.clear()
        rewind(relay, to=1)
        wait_until(lambda: position_of(relay).position == 7, what="all of it again")

    assert sorted(set(addresses(rabbitmq))) == sent


def test_a_routing_key_that_is_too_long_is_refused_by_itself(things, make_relay, rabbitmq):
    fill_topic(things, 1, key="k" * 300)
    fill_topic(things, 2, key="things")
    relay = make_relay(things, to=rabbitmq_queue(lambda event: event.key))
    serve_due(relay)

    assert addresses(rabbitmq) == ["things/2"]
    [letter] = dead_letters(relay)
    assert "longer than 255 bytes" in letter.error


def test_a_message_that_is_larger_than_the_server_takes_is_refused_by_itself(things, make_relay, rabbitmq):
    fill_topic(things, 1, 2, "x" * 300_000, 4, "y" * 300_000, 6)
    relay = make_relay(things, to=rabbitmq_queue("things"))
    serve_due(relay)

    assert sorted(set(addresses(rabbitmq))) == [f"things/{n}" for n in (1, 2, 4, 6)]
    assert [(one.event_id, one.attempts) for one in dead_letters(relay)] == [(3, 1), (5, 1)]
    assert dead_letters(relay)[0].error == "MessageRefused: It has 300002 bytes, and RabbitMQ takes 200000."


def test_a_full_queue_that_refuses_is_waited_for(things, make_relay, rabbitmq):
    rabbitmq.declare("small", **{"x-max-length": 3, "x-overflow": "reject-publish"}, kind="classic")
    fill_topic(things, *range(1, 11))
    relay = make_relay(things, to=rabbitmq_queue("small"))
    seen: list[str] = []
    for _ in range(10):
        run_once(relay)
        seen += addresses(rabbitmq, "small")
        rabbitmq.clear()
        if position_of(relay).position == 10:
            break
        assert "refused to take it" in waits(relay)
        end_pauses(relay)

    first = list(dict.fromkeys(seen))
    assert sorted(first, key=lambda address: int(address.partition("/")[2])) == [f"things/{n}" for n in range(1, 11)]


def test_a_server_that_is_low_on_memory_is_waited_for_and_gets_one_message_of_each_attempt(
    things, make_relay, rabbitmq, monkeypatch
):
    fill_topic(things, *range(1, 51))
    relay = make_relay(things, to=rabbitmq_queue("things"))
    rabbitmq.control("set_vm_memory_high_watermark", "absolute", "1")
    try:
        for _ in range(2):
            run_once(relay)
            assert "low on memory or disk" in waits(relay)
            end_pauses(relay)
    finally:
        rabbitmq.control("set_vm_memory_high_watermark", "0.8")
    run_once(relay)

    found = addresses(rabbitmq)
    assert list(dict.fromkeys(found)) == [f"things/{n}" for n in range(1, 51)]
    assert len(found) <= 52


def test_a_connection_that_ended_while_it_was_idle_is_replaced_before_anything_is_sent(
    things, make_relay, rabbitmq, monkeypatch, caplog
):
    monkeypatch.setattr(bridge, "IDLE", 0.0)
    relay = make_relay(things, to=rabbitmq_queue("things"))
    fill_topic(things, 1)
    handler = relay.load()
    handler(received())
    rabbitmq.control("close_all_connections", "test")
    handler(received())
    handler.close()

    assert addresses(rabbitmq) == ["things/1", "things/1"]
    assert "can't send" not in caplog.text


def test_a_dead_letter_that_is_redriven_comes_behind(things, make_relay, rabbitmq):
    broken = [2]
    fill_topic(things, 1, 2, 3, key="k")

    def transform(event):
        assert event.value not in broken
        return event.value

    relay = make_relay(things, to=rabbitmq_queue("things"), transform=transform)
    exhaust(relay)
    broken.clear()
    redrive(DeadLetter.objects.all())
    serve_due(relay)

    assert addresses(rabbitmq) == ["things/1", "things/3", "things/2"]


def test_an_outage_counts_no_attempt(things, make_relay, rabbitmq):
    relay = make_relay(
        things, to=rabbitmq_queue("parcels")
    )  # a server that is killed may lose a queue that it just made
    fill_topic(things, 1, 2)
    serve_due(relay)
    rabbitmq.kill()
    try:
        fill_topic(things, 3, 4)
        for _ in range(2):
            run_once(relay)
            waits(relay)
            end_pauses(relay)
    finally:
        rabbitmq.start()

    def is_over():
        end_pauses(relay)
        run_once(relay)
        return position_of(relay).position == 4

    wait_until(is_over, what="a queue that has found its messages again")
    assert list(dict.fromkeys(addresses(rabbitmq, "parcels"))) == [f"things/{n}" for n in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"userid": "worker", "password": "tops3cret"}, "ACCESS_REFUSED"),
        ({"port": 5672}, "amqp has no option 'port'."),
        ({"virtual_host": "tops3cret/none"}, "NOT_ALLOWED"),
        ({"host": "127.0.0.1:1"}, "ConnectionRefusedError"),
    ],
)
def test_what_is_wrong_with_the_settings_is_said_without_secrets(things, make_relay, rabbitmq, wrong, said):
    fill_topic(things, 1)
    relay = make_relay(things, to=rabbitmq_queue("things"))
    with override_settings(DJANGO_EVENTS={"BROKERS": {"rabbitmq": {**rabbitmq.options, **wrong}}}):
        run_once(relay)

    error = waits(relay)
    assert said in error
    if "password" in wrong:
        assert "tops3cret" not in error


def test_by_tls_it_sends_to_the_server_whose_certificate_it_knows(things, make_relay, rabbitmq, tmp_path):
    fill_topic(things, "x" * 150_000, 2)
    relay = make_relay(things, to=rabbitmq_queue("things"))
    stranger = tmp_path / "stranger.pem"
    trustme.CA().cert_pem.write_to_path(str(stranger))
    for authority in (stranger, rabbitmq.authority):
        tls = {"ca_certs": str(authority), "server_hostname": "localhost"}
        options = {**rabbitmq.options, "host": f"127.0.0.1:{rabbitmq.tls_port}", "ssl": tls}
        with override_settings(DJANGO_EVENTS={"BROKERS": {"rabbitmq": options}}):
            run_once(relay)
        if authority == stranger:
            assert "certificate verify failed" in waits(relay)
            end_pauses(relay)

    assert addresses(rabbitmq) == ["things/1", "things/2"]


def test_close_lets_go_of_a_server_that_is_frozen(things, make_relay, rabbitmq):
    opened = rabbitmq_queue("things").bridge()
    opened.open()
    rabbitmq.freeze()
    try:
        with closing(opened):
            pass
    finally:
        rabbitmq.thaw()
