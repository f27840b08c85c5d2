"""What is done in a named database asks no router: it may answer with a replica, or with another database."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections, transaction
from django.test import override_settings

from django_events import Backoff, Draft, declarations, publish, publish_many
from django_events.consuming import registration
from django_events.models import DeadLetter, Position
from django_events.observing.verifying.proving import verify
from django_events.operations import discard, erase, lag, pause, redrive, resume, retry_now, rewind, unregister
from django_events.syncing import sync
from django_events.testing import drain
from django_events.workers.maintaining import run_steps
from tests.support.fix_consumers import run_once
from tests.support.fix_database import login
from tests.support.fix_topics import drop_topics, transfer_all

pytestmark = pytest.mark.usefixtures("transactional_db")


class Nowhere:
    """Reads go to a replica that can't be reached, and what is written without a name somewhere else."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "replica"

    db_for_write = db_for_read


@pytest.fixture
def astray():
    connections.settings["replica"] = login(HOST="127.0.0.1", PORT="1")
    try:
        with override_settings(DATABASE_ROUTERS=[Nowhere()]):
            yield
    finally:
        connections["replica"].close()
        del connections["replica"], connections.settings["replica"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["stream", "queue"])
def test_workers_and_operators_use_the_database_that_is_named(things, make_consumer, mode, request):
    def handler(event):
        if event.value == "poison":
            raise ValueError(event.value)

    reader = make_consumer(things, handler=handler, mode=mode, retry=Backoff(attempts=1))
    request.getfixturevalue("astray")
    publish_many(things, [Draft(value=v, key=str(v)) for v in ("a", "poison", "b")], using="default")
    publish(things, "later", publish_at=datetime.now(UTC) + timedelta(days=1), using="default")
    transfer_all()

    run_once(reader)
    assert lag(reader, using="default") == 0
    letters = DeadLetter.objects.using("default").filter(consumer__name=reader.name)
    assert [letter.value for letter in letters] == ["poison"]
    redrive(letters)
    run_once(reader)
    discard(letters, reason="a test")

    pause(reader, using="default", by="a test")
    resume(reader, using="default", by="a test")
    rewind(reader, to=1, using="default", by="a test")
    run_once(reader)
    retry_now(reader, using="default", by="a test")
    erase(things, key="a", using="default", by="a test", reason="a test")
    assert [o.error for o in run_steps("default") if o.error] == []
    assert not list(verify("default").offenders)
    for command in (["status"], ["doctor"], ["dead-letters"], ["topics"], ["consumers"]):
        call_command("events", *command, "--database", "default")
    discard(letters, reason="a test")
    declarations.consumers.discard(reader)
    unregister(reader.name, using="default", by="a test")


def test_drain_of_a_test_reads_no_replica(things, make_consumer, request):
    seen: list[Any] = []
    reader = make_consumer(things, handler=lambda event: seen.append(event.value))
    request.getfixturevalue("astray")
    with transaction.atomic("default"):
        publish(things, "a", using="default")
        assert drain(reader, using="default") == 1
        transaction.set_rollback(True, "default")

    assert seen == ["a"]


def test_topics_and_consumers_are_made_where_they_are_said_to_be(make_topic, make_consumer, request):
    queue = make_consumer(make_topic("made"), handler=print, mode="queue", name="made_queue")
    request.getfixturevalue("astray")
    late = declarations.topic("made_late")
    try:
        declarations.consumers.discard(queue)
        queue = declarations.consumer("made", name="made_queue", mode="queue", ordered=True)(print)
        sync("default")
        assert Position.objects.using("default").filter(consumer__name="made_queue").count() == 1
        registration.sync("default")
    finally:
        declarations.registry.discard(late)
        declarations.consumers.discard(queue)
        with override_settings(DATABASE_ROUTERS=[]):
            drop_topics(["made_late"])
