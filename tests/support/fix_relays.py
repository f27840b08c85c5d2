"""Relays for tests, with real brokers: declared, registered, served, and then gone."""

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

from django_events import Backoff, declarations
from django_events.consuming import registration
from tests.support.brokers import NATS, REDIS, MockKafka, Nats, Redis
from tests.support.fix_consumers import forget_consumers

RelayFactory = Callable[..., declarations.DeclaredRelay]
PATIENT = Backoff(attempts=3, base=timedelta(hours=1))  # tests end pauses themselves


@pytest.fixture(scope="session")
def one_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    if REDIS is None:
        pytest.skip("redis-server is not installed: apt-get install redis-server")
    server = Redis(tmp_path_factory.mktemp("redis"))
    yield server
    server.close()


@pytest.fixture
def redis(one_redis: Redis) -> Iterator[Redis]:
    """An empty Redis, which the settings have as "redis". A test that stops it starts it again."""
    one_redis.clear()
    with override_settings(DJANGO_EVENTS={"BROKERS": {"redis": one_redis.options}}):
        yield one_redis


@pytest.fixture(scope="session")
def one_nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    if NATS is None:
        pytest.skip("nats-server is not installed: apt-get install nats-server")
    server = Nats(tmp_path_factory.mktemp("nats"))
    yield server
    server.close()


@pytest.fixture
def nats(one_nats: Nats) -> Iterator[Nats]:
    """A NATS without streams, which the settings have as "nats". A test that stops it starts it again."""
    one_nats.clear()
    with override_settings(DJANGO_EVENTS={"BROKERS": {"nats": one_nats.options}}):
        yield one_nats


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[MockKafka]:
    """A cluster of librdkafka's, which the settings have as "kafka"."""
    with (
        closing(MockKafka(tmp_path)) as cluster,
        override_settings(DJANGO_EVENTS={"BROKERS": {"kafka": cluster.options}}),
    ):
        yield cluster


@pytest.fixture
def make_relay(make_topic: Any) -> Iterator[RelayFactory]:
    """Declare relays for one test and register them; their rows are gone when it ends."""
    made: list[declarations.DeclaredConsumer] = []

    def make(
        topic: declarations.DeclaredTopic, *, to: Any, name: str = "relay", **options: Any
    ) -> declarations.DeclaredRelay:
        declared = declarations.relay(topic, to=to, name=name, **{"retry": PATIENT, **options})
        made.append(declared)
        declarations.consumers.check()
        registration.register("default", declared)
        return declared

    yield make
    forget_consumers(made)
