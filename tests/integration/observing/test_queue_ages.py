"""For how long a queue is behind: since its oldest event that isn't settled came, whatever became of it so far."""

import json
from contextlib import suppress
from datetime import timedelta

import pytest
from django.core.management import call_command
from django.db.models import F

from django_events import Backoff, RetryLater, models
from django_events.consuming.programs.handed_out import hand_out, nack
from django_events.models.functions import ClockTimestamp
from django_events.observing.lag import oldest_waits, standings
from django_events.observing.problems import find_problems
from django_events.observing.state import BEHIND, read
from tests.support.fix_consumers import run_once
from tests.support.fix_queues import expire, fill_topic, finish, queue_of

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("S13")]

HOUR = timedelta(hours=1)


@pytest.fixture
def partner(make_topic, make_consumer):
    """A queue of calls to a partner that is down: each is to be tried again in an hour."""

    def call(event):
        raise OSError("the partner is down")

    return make_consumer(
        make_topic("calls"),
        handler=call,
        name="partner",
        mode="queue",
        retry=Backoff(attempts=3, base=HOUR),
        lease=timedelta(seconds=30),
    )


def make_older(by):
    """As if deliveries had been received earlier, and had not been served since."""
    for delivery in models.Delivery.objects.all():
        models.Delivery.objects.filter(pk=delivery.pk).update(received_at=delivery.received_at - by)
    models.Consumer.objects.update(registered_at=F("registered_at") - by)
    models.Position.objects.filter(served_at__isnull=False).update(served_at=ClockTimestamp() - by)


def age(consumer, **options):
    [row] = models.Consumer.objects.filter(name=consumer.name)
    return oldest_waits("default", [row.pk], **options).get(row.pk)


def told(kind):
    return [one.what for one in find_problems("default", [], None, standings("default")) if one.kind == kind]


def remedies(kind):
    return [one.remedy for one in find_problems("default", [], None, standings("default")) if one.kind == kind]


@pytest.mark.slow
def test_what_waits_for_a_retry_is_behind(partner, capsys):
    fill_topic("calls", 1, 2, 3)
    run_once(partner)
    make_older(HOUR)

    assert HOUR < age(partner) < 2 * HOUR
    [metric] = [one.value for one in read("default") if one.metric is BEHIND and one.labels[1] == "partner"]
    assert metric > 3_600
    call_command("events", "status", "--format", "json")
    [consumer] = [one for one in json.loads(capsys.readouterr().out)["consumers"] if one["consumer"] == "partner"]
    assert consumer["behind"] is not None
    call_command("events", "health", "--consumer", "partner")
    assert "partner is 3 events behind, the oldest for 1 h" in capsys.readouterr().out
    assert told("unserved") == []  # its next attempt is not due: a worker could do nothing


def test_what_is_in_hand_is_behind(partner):
    fill_topic("calls", 1, 2)
    hand = queue_of(partner).claim(2)
    make_older(HOUR)

    assert age(partner) > HOUR
    assert age(partner, due=True) is None
    assert told("unserved") == []
    finish(hand)
    assert age(partner) is None


def test_a_worker_that_froze_with_all_there_is_is_a_problem(partner):
    fill_topic("calls", 1)
    hand = queue_of(partner).claim(1)
    expire(hand)
    make_older(HOUR)

    assert age(partner, due=True) > HOUR
    [what] = told("unserved")
    assert what.startswith("1 event behind, the oldest for 1 h")
    finish(queue_of(partner, holder="another").claim(1))
    assert told("unserved") == []


def test_a_retry_that_is_due_and_has_no_worker_is_a_problem(partner):
    fill_topic("calls", 1)
    run_once(partner)
    models.Delivery.objects.update(visible_at=ClockTimestamp() - HOUR)
    make_older(2 * HOUR)

    assert len(told("unserved")) == 1


def test_a_delay_that_was_asked_for_is_no_waiting(make_topic, make_consumer):
    slow = make_consumer(make_topic("later"), handler=print, name="slow", mode="queue", delay=2 * HOUR)
    fill_topic("later", 1)
    run_once(slow)
    assert models.Delivery.objects.count() == 1
    make_older(HOUR)
    assert age(slow) == timedelta(0)

    make_older(2 * HOUR)
    assert HOUR < age(slow) < HOUR + timedelta(minutes=10)


def test_what_a_handler_put_off_is_behind_and_no_problem(make_topic, make_consumer):
    def later(event):
        raise RetryLater(HOUR)

    consumer = make_consumer(make_topic("off"), handler=later, name="off", mode="queue")
    fill_topic("off", 1)
    run_once(consumer)
    make_older(timedelta(minutes=30))

    assert age(consumer) > timedelta(minutes=30)
    assert told("unserved") == []


def test_a_consumer_that_was_registered_just_now_is_no_problem(make_topic, make_consumer):
    make_consumer(make_topic("old"), handler=print, name="new", mode="queue")
    fill_topic("old", 1)
    make_older(HOUR)
    assert len(told("unserved")) == 1

    models.Consumer.objects.update(registered_at=ClockTimestamp())
    assert told("unserved") == []


def test_of_a_consumer_that_was_never_served_the_former_code_is_named(partner):
    fill_topic("calls", 1)
    make_older(HOUR)
    command = "Is one running? manage.py run_consumer partner"
    assert remedies("unserved") == [f"{command}, or restart those that run: they have the former code"]

    run_once(partner)
    models.Delivery.objects.update(visible_at=ClockTimestamp() - HOUR)
    make_older(HOUR)
    assert remedies("unserved") == [command]


def test_a_handler_that_can_not_be_imported_is_why_no_worker_handles_it(make_topic, make_consumer):
    make_consumer(make_topic("broken"), handler="no_such_module.handle", name="broken", mode="queue")
    fill_topic("broken", 1)
    make_older(HOUR)

    [what] = told("unserved")
    assert what.startswith("1 event behind, the oldest for 1 h")
    assert ": no worker can handle them. The handler 'no_such_module.handle' of consumer 'broken', declared at " in what
    assert what.endswith("can't be imported: ModuleNotFoundError: No module named 'no_such_module'")
    assert remedies("unserved") == ["Deploy what is missing, and restart the workers."]


def test_what_a_program_gave_back_is_due_since_then(make_topic, make_consumer):
    make_consumer(make_topic("jobs"), handler=None, name="jobs", mode="queue")
    fill_topic("jobs", 1)
    nack(hand_out("jobs", 1).token, after=HOUR, error="busy")
    [what] = told("retrying")
    assert what.startswith("jobs/1 failed 1 time, next at 20") and what.endswith("Z. Reported: busy")

    models.Delivery.objects.update(visible_at=ClockTimestamp() - HOUR)
    [what] = told("retrying")
    assert what.startswith("jobs/1 failed 1 time, is due since 20")
    assert what.endswith("Z, and no program claims it. Reported: busy")
    assert remedies("retrying") == ["Is the program running that claims from it? By hand: manage.py events claim jobs"]
    hand_out("jobs", 1)
    assert told("retrying") == []


def test_a_retry_that_no_worker_takes_is_due_since_then(partner):
    fill_topic("calls", 1)
    run_once(partner)
    models.Delivery.objects.update(visible_at=ClockTimestamp() - HOUR)

    [what] = told("retrying")
    assert "Z, and no worker takes it. OSError: the partner is down" in what


def test_consumers_without_a_worker_are_one_problem_for_people(make_topic, make_consumer, capsys):
    make_topic("many")
    for name in ("audit", "invoicing", "ledger"):
        make_consumer("many", handler=print, name=name, mode="queue")
    make_consumer("many", handler="no_such_module.handle", name="broken", mode="queue")
    fill_topic("many", 1)
    make_older(HOUR)

    for subcommand in ("status", "doctor"):
        with suppress(SystemExit):
            call_command("events", subcommand)
        out = capsys.readouterr().out
        assert "3 consumers are unserved, no worker handles their events: audit, invoicing, ledger." in out
        assert "→ Is one running? manage.py run_consumer audit invoicing ledger" in out
        assert "no worker handles them" not in out
        assert "The handler 'no_such_module.handle'" in " ".join(out.split())
    call_command("events", "status", "--format", "json")
    found = json.loads(capsys.readouterr().out)["findings"]
    assert [one["consumer"] for one in found if one["kind"] == "unserved"] == ["audit", "broken", "invoicing", "ledger"]
