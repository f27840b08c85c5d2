"""A session that holds a lock keeps no operator waiting for long: the verb refuses, and names that session."""

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction
from django.urls import reverse

from django_events import Backoff, declarations, models
from django_events.exceptions import InUse
from django_events.log import retention
from django_events.operating import locks
from django_events.operations import discard, pause, redrive, resume, retry_now, unregister
from django_events.workers.loop import Exit
from tests.support.fix_consumers import dead_letters, run_once
from tests.support.fix_queues import fill_topic

pytestmark = pytest.mark.usefixtures("transactional_db", "shelf")

CONSUMER = "SELECT FROM django_events_consumer FOR UPDATE"
POSITIONS = "SELECT FROM django_events_position FOR UPDATE"
LETTERS = "SELECT FROM django_events_deadletter FOR UPDATE"


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(locks, "LOCK_TIMEOUT", "500ms")


@pytest.fixture
def dead(things, make_consumer):
    """A consumer that isn't declared any more, with a dead letter."""

    def fail(event):
        raise ValueError("no")

    reader = make_consumer(things, handler=fail, retry=Backoff(attempts=1))
    fill_topic(things, "a")
    run_once(reader)
    declarations.consumers.discard(reader)
    assert len(dead_letters(reader)) == 1
    return reader


def named(session):
    return rf"locked, by session {session.info.backend_pid} of {session.info.user} .*idle in transaction after SELECT"


VERBS = {
    "pause": (CONSUMER, lambda reader: pause(reader)),
    "resume": (POSITIONS, lambda reader: resume(reader)),
    "retry_now": (POSITIONS, lambda reader: retry_now(reader)),
    "redrive": (LETTERS, lambda reader: redrive(dead_letters(reader))),
    "discard": (LETTERS, lambda reader: discard(dead_letters(reader), reason="a test")),
    "unregister": (POSITIONS, lambda reader: unregister(reader)),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_a_lock_keeps_waiting_names_its_holder(dead, connect, verb):
    lock, act = VERBS[verb]
    models.Position.objects.update(stopped_at=models.functions.ClockTimestamp())
    holder = connect(application_name="psql")
    holder.execute(lock)

    with pytest.raises(InUse, match=named(holder)):
        act(dead)
    with transaction.atomic():
        with pytest.raises(InUse, match="Nothing was changed"):
            act(dead)
        assert models.Consumer.objects.filter(name=dead.name, paused_at=None).exists()  # it can go on
    holder.rollback()
    assert not models.Intervention.objects.exists()
    if verb == "unregister":
        models.DeadLetter.objects.all().delete()
    assert act(dead)


def test_the_command_says_it_in_a_line(dead, connect):
    holder = connect(application_name="psql")
    holder.execute(CONSUMER)

    with pytest.raises(CommandError, match=named(holder)) as refused:
        call_command("events", "pause", dead.name)
    assert refused.value.returncode == Exit.FAILED
    assert "\n" not in str(refused.value)


@pytest.mark.django_db(transaction=True)
def test_the_admin_says_it_beside_the_question(dead, connect, admin_client):
    row = models.Consumer.objects.get(name=dead.name)
    holder = connect(application_name="psql")
    holder.execute(CONSUMER)

    address = reverse("admin:django_events_consumer_change", args=[row.pk]).replace("change", "act/pause")
    answer = admin_client.post(address, follow=True)

    assert f"locked, by session {holder.info.backend_pid} of " in answer.content.decode()
    row.refresh_from_db()
    assert row.paused_at is None


def test_a_pause_of_retention_names_who_has_its_row(connect, monkeypatch):
    monkeypatch.setattr(retention, "PATIENCE", "500ms")
    models.MaintenanceStep.objects.create(name="retention", started_at=models.functions.ClockTimestamp())
    holder = connect(application_name="psql")
    holder.execute("SELECT FROM django_events_maintenancestep FOR UPDATE")

    with pytest.raises(CommandError, match=named(holder)):
        call_command("events", "maintain", pause="1h")
