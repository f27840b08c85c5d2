"""Inboxes as apps declare them: what is wrong with them, and what they cost without their extras."""

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from django_events import (
    DeclaredInbox,
    inbox,
    jetstream_source,
    kafka_source,
    log_source,
    rabbitmq_source,
    redis_source,
    sqs_source,
)
from django_events.testing import isolate_declarations

pytestmark = pytest.mark.requirement("X21")

ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
for client in ("redis", "nats", "confluent_kafka", "aiohttp", "amqp", "boto3"):
    sys.modules[client] = None  # as if it weren't installed
import django
django.setup()
from django_events import inbox, jetstream_source, kafka_source, rabbitmq_source, redis_source, sqs_source
from django_events.exceptions import NotReady
for extra, source in {
    "redis": redis_source("s"),
    "nats": jetstream_source("S"),
    "kafka": kafka_source("s"),
    "rabbitmq": rabbitmq_source("q"),
    "aws": sqs_source("q"),
}.items():
    declared = inbox("orders", source=source, name="orders-in")
    assert list(declared.problems()) == []
    try:
        source.check_installed()
    except NotReady as error:
        assert f"pip install 'django-events-pg[{extra}]'" in str(error), error
    else:
        raise AssertionError("it is installed")
"""


def test_without_their_clients_inboxes_are_declared_and_say_what_to_install():
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "testproject.settings"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, cwd=ROOT, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr


@isolate_declarations()
def declared(**options: Any) -> DeclaredInbox:
    return inbox("orders", **{"source": redis_source("orders"), "name": "orders-in", **options})


@pytest.mark.parametrize(
    "source",
    [
        redis_source("s"),
        jetstream_source("S", broker="other"),
        kafka_source("s.s"),
        rabbitmq_source("q"),
        sqs_source("q.fifo"),
    ],
)
def test_an_inbox_that_is_right_has_no_problem(source):
    assert list(declared(source=source).problems()) == []
    assert list(declared(source=source, most_buffered=None, most_lag={"billing": 1}).problems()) == []


def test_an_inbox_with_limits_can_be_a_key():
    assert hash(declared(most_lag={"billing": 5})) == hash(declared(most_lag={"billing": 5}))


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"name": "Orders in"}, "Inbox name 'Orders in' is not valid"),
        ({"source": "redis"}, "has source='redis', expected a source"),
        ({"source": redis_source("")}, "redis_source has ''"),
        ({"source": jetstream_source("a.b")}, "jetstream_source has 'a.b'"),
        ({"source": kafka_source("a b")}, "kafka_source has 'a b'"),
        ({"source": rabbitmq_source("")}, "rabbitmq_source has ''"),
        ({"source": rabbitmq_source("q", exclusive=1)}, "rabbitmq_source has exclusive=1"),
        ({"source": rabbitmq_source("q", window=timedelta(0))}, "rabbitmq_source has window="),
        ({"source": sqs_source("a b")}, "sqs_source has 'a b'"),
        ({"source": sqs_source("q", visibility=timedelta(days=1))}, "sqs_source has visibility="),
        ({"source": sqs_source("q", visibility=timedelta(seconds=1.5))}, "expected whole seconds"),
        ({"source": sqs_source("q"), "start": "end"}, "a queue has no places"),
        ({"transform": 3}, "transform=3"),
        ({"start": ""}, "start=''"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"on_unreadable": "drop"}, "on_unreadable='drop'"),
        ({"expired": True}, "expired=True"),
        ({"retry": 3}, "retry=3"),
        ({"most_buffered": 0}, "most_buffered=0"),
        ({"most_buffered": "many"}, "most_buffered='many'"),
        ({"most_lag": ["billing"]}, "most_lag=['billing'], expected names of consumers with numbers"),
        ({"most_lag": {3: 5}}, "most_lag={3: 5}"),
        ({"most_lag": {"billing": 0}}, "most_lag of 'billing'=0, expected a whole number"),
        ({"source": log_source("o", broker="s"), "keep_ids": True, "most_buffered": 5}, "waits for no consumer"),
        ({"source": log_source("o", broker="s"), "keep_ids": True, "most_lag": {"billing": 5}}, "Leave most_buffered"),
    ],
)
def test_what_is_wrong_is_said(options, problem):
    assert [said for said in declared(**options).problems() if problem in said]
