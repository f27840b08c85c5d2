"""A session that holds a lock keeps no operator waiting for long: the verb refuses, and names that session."""

from functools import partial

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
from tests.support.fix_database import WAITS_FOR_A_LOCK
from tests.support.fix_queues import fill_topic
from tests.support.processes import wait_until

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


@pytest.mark.slow
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.few(2)
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


@pytest.mark.parametrize("verb", ["redrive", "discard"])
def test_a_dead_letter_that_died_of_something_else_meanwhile_is_left_alone(dead, connect, in_thread, monkeypatch, verb):
    """A worker handles it again and settles it while an operator waits for its lock."""
    monkeypatch.setattr(locks, "LOCK_TIMEOUT", "60s")
    act = {"redrive": redrive, "discard": partial(discard, reason="a test")}[verb]
    chosen = models.DeadLetter.objects.of(dead).matching(error="ValueError: no")
    worker = connect()
    worker.execute("UPDATE django_events_deadletter SET error = 'LookupError: gone', fingerprint = 'LookupError: gone'")
    done, looking = in_thread(act, chosen), connect(autocommit=True)
    wait_until(lambda: looking.execute(WAITS_FOR_A_LOCK).fetchall(), what="an operator who waits")
    worker.commit()

    assert done.result(90) == 0
    assert [letter.redrive_at for letter in dead_letters(dead)] == [None]
    assert not models.Intervention.objects.exists()


def test_two_operators_at_once_decide_about_each_dead_letter_once(dead, in_thread):
    make = models.DeadLetter.objects.of(dead).get()
    for event_id in range(2, 30):
        make.pk, make.event_id, make.key = None, event_id, str(event_id)
        make.save(force_insert=True)
    letters = models.DeadLetter.objects.of(dead).matching(error="ValueError")
    both = [in_thread(discard, letters.all(), reason=f"operator {number}") for number in range(2)]

    assert sorted(one.result(90) for one in both) == [0, 29]
    assert [row.details["count"] for row in models.Intervention.objects.filter(action="discard")] == [29]


@pytest.mark.slow
def test_the_command_says_it_in_a_line(dead, connect):
    holder = connect(application_name="psql")
    holder.execute(CONSUMER)

    with pytest.raises(CommandError, match=named(holder)) as refused:
        call_command("events", "pause", dead.name)
    assert refused.value.returncode == Exit.FAILED
    assert "\n" not in str(refused.value)


@pytest.mark.slow
@pytest.mark.usefixtures("transactional_db")
def test_the_admin_says_it_beside_the_question(dead, connect, admin_client):
    row = models.Consumer.objects.get(name=dead.name)
    holder = connect(application_name="psql")
    holder.execute(CONSUMER)

    address = reverse("admin:django_events_consumer_change", args=[row.pk]).replace("change", "act/pause")
    answer = admin_client.post(address, follow=True)

    assert f"locked, by session {holder.info.backend_pid} of " in answer.content.decode()
    row.refresh_from_db()
    assert row.paused_at is None


@pytest.mark.slow
def test_a_pause_of_retention_names_who_has_its_row(connect, monkeypatch):
    monkeypatch.setattr(retention, "PATIENCE", "500ms")
    models.MaintenanceStep.objects.create(name="retention", started_at=models.functions.ClockTimestamp())
    holder = connect(application_name="psql")
    holder.execute("SELECT FROM django_events_maintenancestep FOR UPDATE")

    with pytest.raises(CommandError, match=named(holder)):
        call_command("events", "maintain", pause="1h")
