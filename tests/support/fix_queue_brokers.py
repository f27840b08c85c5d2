"""A RabbitMQ and an AWS of moto's for tests, which share them."""

from collections.abc import Iterator

import pytest
from django.test import override_settings

from tests.support.aws_server import Aws
from tests.support.rabbit_server import RABBITMQ, RabbitMQ


@pytest.fixture(scope="session")
def one_rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    if RABBITMQ is None:
        pytest.skip("rabbitmq-server is not installed: apt-get install rabbitmq-server")
    server = RabbitMQ(tmp_path_factory.mktemp("rabbitmq"))
    yield server
    server.close()


@pytest.fixture
def rabbitmq(one_rabbitmq: RabbitMQ) -> Iterator[RabbitMQ]:
    """A RabbitMQ with one empty queue, which the settings have as "rabbitmq". A test that stops it starts it again."""
    one_rabbitmq.clear()
    with override_settings(DJANGO_EVENTS={"BROKERS": {"rabbitmq": one_rabbitmq.options}}):
        yield one_rabbitmq


@pytest.fixture(scope="session")
def one_aws() -> Iterator[Aws]:
    server = Aws()
    yield server
    server.close()


@pytest.fixture
def aws(one_aws: Aws) -> Iterator[Aws]:
    """An AWS without queues and topics, which the settings have as "aws"."""
    one_aws.clear()
    with override_settings(DJANGO_EVENTS={"BROKERS": {"aws": one_aws.options}}):
        yield one_aws
