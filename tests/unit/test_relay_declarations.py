"""Relays as apps declare them: what is wrong with them, and what they cost without their extras."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

from django_events import DeclaredRelay, declarations, jetstream, kafka, rabbitmq, redis_stream, relay, sns, sqs
from django_events.bridges.brokers import HIDDEN, said
from django_events.bridges.relays.targets import TargetUnavailable
from django_events.exceptions import HandlerNotFound
from django_events.testing import isolate_declarations

pytestmark = pytest.mark.requirement("X20")

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
for client in ("redis", "nats", "confluent_kafka", "aiohttp", "amqp", "boto3"):
    sys.modules[client] = None  # as if it weren't installed
import django
django.setup()
from django_events import jetstream, kafka, rabbitmq, redis_stream, relay, sns, sqs
from django_events.exceptions import HandlerNotFound
for extra, target in [
    ("redis", redis_stream("s")),
    ("nats", jetstream("s", stream="S")),
    ("kafka", kafka("t")),
    ("rabbitmq", rabbitmq("q")),
    ("aws", sqs("q")),
    ("aws", sns("arn:aws:sns:eu-west-1:123456789012:t")),
]:
    declared = relay("orders", to=target, name="relay")
    assert list(declared.problems()) == []
    try:
        declared.load()
    except HandlerNotFound as error:
        assert f"pip install 'django-events-pg[{extra}]'" in str(error), error
    else:
        raise AssertionError("it was loaded")
"""


@pytest.mark.slow
def test_without_their_clients_relays_are_declared_and_say_what_to_install():
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "testproject.settings"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


@isolate_declarations()
def declared(**options: Any) -> DeclaredRelay:
    return relay("orders", **{"to": redis_stream("shop.orders"), "name": "relay", **options})


@pytest.mark.parametrize(
    "to",
    [
        redis_stream("s"),
        redis_stream(lambda event: event.type, maxlen=10),
        jetstream("s", stream="S"),
        kafka("t"),
        rabbitmq("q"),
        rabbitmq("", exchange="fan"),
        rabbitmq(lambda event: event.type, exchange="shop"),
        sqs("shop-orders.fifo"),
        sqs("https://sqs.eu-west-1.amazonaws.com/123456789012/orders"),
        sns("arn:aws:sns:eu-west-1:123456789012:orders.fifo"),
    ],
)
def test_a_relay_that_is_right_has_no_problem(to):
    assert list(declared(to=to).problems()) == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"to": "redis"}, "has to='redis', expected a target"),
        ({"to": redis_stream("")}, "redis_stream has ''"),
        ({"to": redis_stream("s", maxlen=0)}, "maxlen=0"),
        ({"to": jetstream("s", stream="a.b")}, "stream='a.b'"),
        ({"to": jetstream("", stream="S")}, "jetstream has ''"),
        ({"to": jetstream("shop.>", stream="S")}, "jetstream has 'shop.>'"),
        ({"to": kafka("")}, "kafka has ''"),
        ({"to": kafka("shop orders")}, "kafka has 'shop orders'"),
        ({"form": "avro"}, "form='avro'"),
        ({"to": rabbitmq("")}, "rabbitmq has neither a queue nor an exchange"),
        ({"to": rabbitmq("k" * 256)}, "expected a routing key of at most 255 bytes"),
        ({"to": rabbitmq("k", exchange=None)}, "rabbitmq has exchange=None"),
        ({"to": sqs("a b")}, "sqs has 'a b'"),
        ({"to": sqs("q.FIFO")}, "sqs has 'q.FIFO'"),
        ({"to": sns("orders")}, "sns has 'orders'"),
        ({"to": sqs("q"), "form": "cloudevent_binary"}, "expected 'cloudevent' or 'value'"),
        ({"transform": 3}, "transform=3"),
        ({"batch_size": 0}, "batch_size=0"),
    ],
)
def test_what_is_wrong_is_said(options, problem):
    wrong = declared(**options)

    assert [said for said in wrong.problems() if problem in said]
    with pytest.raises(HandlerNotFound):
        wrong.load()


def test_a_relay_is_a_stream_consumer_outside_of_the_settling_transaction():
    one = declared()

    assert (one.mode, one.transactional, one.partitioned, one.batch_size) == ("stream", False, True, 500)
    assert isinstance(one, declarations.DeclaredConsumer)


def test_what_an_error_says_has_nothing_secret_of_the_options():
    options = {
        "url": "redis://worker:p%40ss@10.0.0.5:6379/0",
        "password": "hunter-two",
        "nested": [{"sasl.password": "deep-one"}],
        "nkeys_seed_str": b"SUAM",
        "host": "10.0.0.5",
    }
    error = ValueError("no hunter-two, deep-one, p%40ss, p@ss or SUAM for worker at 10.0.0.5")

    found = said(error, options)
    assert found == f"ValueError: no {HIDDEN}, {HIDDEN}, {HIDDEN}, {HIDDEN} or {HIDDEN} for {HIDDEN} at 10.0.0.5"


@pytest.mark.parametrize(
    ("options", "text", "found"),
    [
        # One character, which the words around it would tell.
        ({"password": "a"}, "invalid password 'a' of a user", HIDDEN),
        ({"password": "1"}, "no answer of 127.0.0.1:11", HIDDEN),
        ({"password": "ä"}, "ä", HIDDEN),
        ({"url": "redis://worker:x@host"}, "can't read 'x' as a port", HIDDEN),
        ({"url": "redis://worker:tops3cret/2@host"}, "can't read '2@host'", HIDDEN),
        ({"password": "a"}, "no answer", "no answer"),
        ({"password": "?"}, "a word?", HIDDEN),
        # Two or three, which are a part of other words.
        ({"username": "app"}, "app may not use this application", f"{HIDDEN} may not use this application"),
        ({"password": "/2x"}, "can't read tops3cret/2x, but 2x", f"can't read tops3cret{HIDDEN}, but 2x"),
        ({"password": "x.+"}, "x.+, xyz and x.++", f"{HIDDEN}, xyz and {HIDDEN}+"),
        # Behind a character that is escaped, of which the last letter or digit is no part of a word.
        ({"password": "ab1"}, "can't send b'\\x00app\\x00ab1'", f"can't send b'\\x00app\\x00{HIDDEN}'"),
        ({"password": "ab1"}, "can't send 'app\\nab1'", f"can't send 'app\\n{HIDDEN}'"),
        ({"password": "ab1"}, "no port in app%3Aab1%40host", f"no port in app%3A{HIDDEN}%40host"),
        # More.
        ({"password": "word"}, "a password", f"a pass{HIDDEN}"),
    ],
)
def test_a_short_secret_is_in_no_error_and_can_not_be_guessed_from_what_is_left(options, text, found):
    assert said(ValueError(text), options) == f"ValueError: {found}"


@pytest.mark.parametrize("login", [":first/w0rdrest", "default:first#w0rdrest", "worker:first?w0rdrest"])
def test_a_password_that_a_client_splits_is_in_no_error_in_no_part(login):
    options = {"redis": {"url": f"redis://{login}@127.0.0.1:1/0"}, "nats": {"servers": [f"nats://{login}@127.0.0.1:1"]}}
    options["kafka"] = {"bootstrap.servers": "127.0.0.1:1", "none.password": "first", "log_level": "w0rdrest"}
    with override_settings(DJANGO_EVENTS={"BROKERS": options}):
        for target in redis_stream("s"), jetstream("s", stream="S"), kafka("t"):
            bridge = target.bridge()
            with pytest.raises(TargetUnavailable) as unavailable:
                bridge.open()
            bridge.close()
            assert "first" not in str(unavailable.value)
            assert "w0rdrest" not in str(unavailable.value)
    assert said(ValueError("first, w0rdrest"), options) == f"ValueError: {HIDDEN}, {HIDDEN}"


def test_the_settings_show_no_brokers():
    from django_events.conf import Settings, problems

    assert "hunter" not in repr(Settings(BROKERS={"redis": {"password": "hunter"}}))
    [problem] = problems({"BROKERS": ["hunter"]})
    assert "hunter" not in problem
    [problem] = problems({"BROKERS": {"redis": "redis://:hunter@host"}})
    assert "hunter" not in problem
    assert "'redis'" in problem


@pytest.mark.parametrize(
    ("target", "shown"),
    [
        (redis_stream("shop.orders"), "redis shop.orders"),
        (jetstream("shop.orders", stream="ORDERS", broker="nats here"), "nats here ORDERS"),
        (kafka(lambda event: event.type), "kafka (by a function)"),
        (rabbitmq("shop.orders"), "rabbitmq shop.orders"),
        (rabbitmq(lambda event: event.type, exchange="shop"), "rabbitmq shop (by a function)"),
        (sqs("orders.fifo"), "aws orders.fifo"),
        (sns("arn:aws:sns:eu-west-1:123456789012:t"), "aws arn:aws:sns:eu-west-1:123456789012:t"),
    ],
)
def test_a_relay_says_where_it_sends(target: Any, shown: str):
    assert declared(to=target).sends_to == shown


@isolate_declarations()
def test_two_relays_do_not_share_a_transactional_id():
    for name, broker in (("one", "kafka"), ("two", "kafka"), ("elsewhere", "other")):
        relay("orders", to=kafka("shop.orders", transactional_id="x", broker=broker), name=name)
    said = [(one.name, text) for one, text in declarations.consumers.problems() if "transactional_id" in text]

    assert [name for name, _ in said] == ["two"]
    assert "as relay 'one' has" in said[0][1]


def test_a_target_that_says_nothing_of_itself_is_shown_by_its_class():
    class Mainframe:
        """A site's own."""

    assert declared(to=Mainframe()).sends_to == "Mainframe"
