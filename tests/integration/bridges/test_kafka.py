"""Relays to librdkafka's own cluster: what is sent, in which partition, what is refused, and what an outage costs."""

import json

import pytest
from django.test import override_settings

from django_events import kafka as kafka_topic
from django_events.models import DeadLetter
from django_events.operations import redrive
from tests.support.fix_consumers import dead_letters, end_pauses, exhaust, position_of, run_once, serve_due
from tests.support.fix_queues import fill_topic

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("X20")]


def addresses(kafka, topic="shop.things"):
    return sorted(entry.address for entry in kafka.entries(topic))


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
