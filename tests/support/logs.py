"""A log for those who read it without Django: its address, and how events get into it."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from psycopg.conninfo import make_conninfo

from django_events import Draft, publish_many
from django_events.log.transfer import Transfer
from django_events.models.buffer import BufferedEvent
from tests.support.fix_topics import TopicFactory
from tests.support.processes import wait_until


@pytest.fixture
def dsn(transactional_db: None) -> str:
    """The test's database, as Spark is told it."""
    parameters = connection.get_connection_params()
    for django_only in ("cursor_factory", "context", "client_encoding", "prepare_threshold"):
        parameters.pop(django_only, None)
    return make_conninfo("", **parameters)


@pytest.fixture
def log(make_topic: TopicFactory) -> Callable[..., Any]:
    """Make a topic with events in its log."""

    def fill(*drafts: Draft, topic: Any = None, **options: Any) -> Any:
        topic = topic or make_topic(**options)
        with transaction.atomic():
            publish_many(topic, drafts)
        move()
        return topic

    return fill


def move() -> None:
    """Everything that is published into the log, also what waits for sessions that are about to end."""
    transfer = Transfer("default")

    def is_empty() -> bool:
        while transfer.move() or transfer.left:
            pass
        transfer.setbacks.raise_first()
        return not BufferedEvent.objects.exists()

    wait_until(is_empty, what="the transfer of all events")
