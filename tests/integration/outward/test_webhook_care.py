"""What is told of webhook endpoints that don't work, and what maintenance forgets of them."""

from datetime import timedelta

import pytest

from django_events import Backoff
from django_events.consuming.subscribed import idle
from django_events.maintaining.pruning import forget_webhook_attempts
from django_events.models import Consumer, Delivery, Position, WebhookAttempt, WebhookEndpoint
from django_events.models.functions import ClockTimestamp
from django_events.observing.lag import standings
from django_events.observing.problems import find_problems
from django_events.operations import erase, pause, resume
from tests.support.fix_queues import fill_topic
from tests.support.fix_webhooks import send_all

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("P10")]

LONG_AGO = timedelta(hours=1)


def told():
    found = find_problems("default", [], None, standings("default"))
    return {one.kind: one for one in found if one.subject.consumer == "partner"}


def test_an_endpoint_that_works_is_no_problem(things, make_webhook, receiver):
    make_webhook(things, receiver.url("/ok"))
    fill_topic(things, "a")
    send_all()

    assert told() == {}


def test_a_disabled_endpoint_is_an_error_and_a_paused_one_a_warning(things, make_webhook, receiver):
    make_webhook(things, receiver.url("/status/410"))
    fill_topic(things, "a", "b")
    send_all()

    [(kind, problem)] = told().items()
    assert (kind, problem.severity) == ("webhook disabled", "error")
    assert "2 events behind" in problem.what and "410 Gone" in problem.what
    assert problem.remedy == "manage.py events resume partner"
    resume("partner")
    WebhookEndpoint.objects.update(disabled_because="")
    pause("partner")
    assert told()["paused"].severity == "warning"


def test_an_endpoint_that_fails_for_long_is_told(things, make_webhook, receiver):
    make_webhook(things, receiver.url("/status/400"), retry=Backoff(attempts=9, base=timedelta(hours=1)))
    fill_topic(things, "a")
    send_all()
    assert "webhook fails" not in told()
    WebhookEndpoint.objects.update(failing_since=ClockTimestamp() - LONG_AGO)

    assert "1 event behind" in told()["webhook fails"].what
    assert "unserved" not in told()


def test_an_endpoint_that_no_process_serves_is_told(things, make_webhook, receiver):
    make_webhook(things, receiver.url("/ok"))
    fill_topic(things, "a")
    send_all()
    fill_topic(things, "b")
    Position.objects.filter(consumer__name="partner").update(served_at=ClockTimestamp() - LONG_AGO)
    Delivery.objects.filter(consumer__name="partner").update(received_at=ClockTimestamp() - LONG_AGO)
    Consumer.objects.filter(name="partner").update(registered_at=ClockTimestamp() - LONG_AGO)

    assert "run_webhooks" in told()["unserved"].remedy


def test_an_endpoint_that_expires_is_served_by_its_worker(things, make_webhook, receiver):
    make_webhook(things, receiver.url("/ok"))
    make_webhook(things, receiver.url("/ok"), name="stays")
    Consumer.objects.filter(name="partner").update(expires_after=timedelta(hours=1))
    Position.objects.update(served_at=ClockTimestamp() - 2 * LONG_AGO)
    assert [of for of, _ in idle("default")] == [Consumer.objects.get(name="partner").pk]
    send_all()

    assert idle("default") == []
    assert (
        Position.objects.get(consumer__name="stays").served_at
        < Position.objects.get(consumer__name="partner").served_at
    )


def test_what_a_receiver_answered_to_an_erased_event_is_erased_too(things, make_webhook, receiver):
    make_webhook(things, receiver.url("/status/200"))
    fill_topic(things, "a", key="olga")
    fill_topic(things, "b", key="ada")
    send_all()
    erase(things, key="olga", reason="asked for")

    assert dict(WebhookAttempt.objects.values_list("event_id", "excerpt")) == {1: "", 2: "this is 200"}


def test_maintenance_forgets_old_attempts(things, make_webhook, receiver):
    make_webhook(things, receiver.url("/ok"))
    fill_topic(things, "a", "b", "c")
    send_all()
    old = WebhookAttempt.objects.filter(event_id__lte=2)
    old.update(at=ClockTimestamp() - timedelta(days=8))

    assert forget_webhook_attempts("default", most=1) == 1
    assert forget_webhook_attempts("default") == 1
    assert forget_webhook_attempts("default") == 0
    assert [one.event_id for one in WebhookAttempt.objects.all()] == [3]
