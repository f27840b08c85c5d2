"""Brokers for tests: a process has one of each kind, and each test finds it empty."""

import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.test import override_settings

from tests.support.aws_server import Aws, Sns, StandardAws, StandardSns
from tests.support.brokers import NATS, REDIS, MockKafka, Nats, Redis
from tests.support.kafka_model import ModelKafka
from tests.support.nats_cluster import NatsCluster
from tests.support.proxies import SilentProxy
from tests.support.rabbit_server import RABBITMQ, RabbitMQ


class Kind(NamedTuple):
    make: Callable[[Path], Any]
    program: str | None  # None where it isn't installed
    package: str = ""


KINDS = {
    "redis": Kind(Redis, REDIS, "redis-server"),
    "nats": Kind(Nats, NATS, "nats-server"),
    "nats-cluster": Kind(NatsCluster, NATS, "nats-server"),
    "kafka": Kind(MockKafka, sys.executable),
    "kafka-transactions": Kind(ModelKafka, sys.executable),
    "rabbitmq": Kind(RabbitMQ, RABBITMQ, "rabbitmq-server"),
    **{one.name: Kind(one, sys.executable) for one in (Aws, StandardAws, Sns, StandardSns)},
}


def make_broker(name: str, folder: Path) -> Any:
    """A broker with its files in a folder. Where it isn't installed, the test is skipped."""
    make, program, package = KINDS[name]
    if program is None:
        pytest.skip(f"{package} is not installed: apt-get install {package}")
    return make(folder)


def proxy_to(broker: Any) -> SilentProxy:
    """A proxy in front of a broker. One of Kafka says to its clients where it is: there, to who comes by the proxy."""
    if not isinstance(broker, ModelKafka):
        return SilentProxy(f"tcp://127.0.0.1:{broker.port}")
    proxy = SilentProxy(f"tcp://127.0.0.1:{broker.inner_port}")
    broker.proxied_at(proxy.port)
    return proxy


def shared(name: str, folders: pytest.TempPathFactory) -> Iterator[Any]:
    with closing(make_broker(name, folders.mktemp(name))) as broker:
        yield broker


def configured(broker: Any) -> Iterator[Any]:
    """The settings have it, under the name of its kind."""
    with override_settings(DJANGO_EVENTS={"BROKERS": {broker.name: broker.options}}):
        yield broker


def emptied(broker: Any) -> Iterator[Any]:
    broker.clear()
    yield from configured(broker)


@pytest.fixture(scope="session")
def one_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    yield from shared("redis", tmp_path_factory)


@pytest.fixture
def redis(one_redis: Redis) -> Iterator[Redis]:
    """An empty Redis. A test that stops it starts it again."""
    yield from emptied(one_redis)


@pytest.fixture(scope="session")
def one_nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    yield from shared("nats", tmp_path_factory)


@pytest.fixture
def nats(one_nats: Nats) -> Iterator[Nats]:
    """A NATS without streams. A test that stops it starts it again."""
    yield from emptied(one_nats)


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[MockKafka]:
    """A cluster of librdkafka's, of the test's own: it can't forget topics."""
    with closing(make_broker("kafka", tmp_path)) as cluster:
        yield from configured(cluster)


@pytest.fixture(scope="session")
def one_rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    yield from shared("rabbitmq", tmp_path_factory)


@pytest.fixture
def rabbitmq(one_rabbitmq: RabbitMQ) -> Iterator[RabbitMQ]:
    """A RabbitMQ with one empty queue. A test that stops it starts it again."""
    one_rabbitmq.forget()
    yield from emptied(one_rabbitmq)


@pytest.fixture(scope="session")
def one_aws(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aws]:
    yield from shared("aws", tmp_path_factory)


@pytest.fixture
def aws(one_aws: Aws) -> Iterator[Aws]:
    """An AWS without queues and topics."""
    yield from emptied(one_aws)
