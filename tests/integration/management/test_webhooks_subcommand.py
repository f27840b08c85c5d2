"""`events webhooks`: endpoints with their states and attempts, tests, and new secrets."""

import sys
from datetime import timedelta

import pytest

from django_events import publish
from django_events.models import Intervention, WebhookEndpoint, WebhookSecret
from django_events.operations import pause
from tests.integration.management.test_events_command import events
from tests.support.fix_topics import transfer_all
from tests.support.fix_webhooks import send_all

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("P10")]

__all__ = ["events"]  # a fixture

SECRET = "whsec_"


def send(topic, *values):
    for value in values:
        publish(topic, value)
    transfer_all()
    send_all()


def test_endpoints_are_listed_with_their_state_and_last_attempt(events, things, make_webhook, receiver):
    assert events("webhooks").out == "No webhook endpoints.\n"
    make_webhook(things, receiver.url("/ok?token=hidden"))
    make_webhook(things, receiver.url("/status/410"), name="gone")
    make_webhook(things, receiver.url("/status/400"), name="fails")
    make_webhook(things, receiver.url("/ok"), name="paused")
    pause("paused")
    send(things, 1)

    rows = {row["endpoint"]: row for row in events("webhooks", "--format", "json").data}
    assert {name: (row["state"], row["last_status"]) for name, row in rows.items()} == {
        "partner": ("works", 204),
        "gone": ("disabled", 410),
        "fails": ("fails", 400),
        "paused": ("paused", None),
    }
    assert "410 Gone" in rows["gone"]["because"] and rows["gone"]["since"]
    assert rows["partner"]["last_at"] and rows["partner"]["url"].endswith("/ok…")
    table = events("webhooks")
    assert table.code == 0 and "partner" in table.out and "hidden" not in table.out


def test_attempts_are_shown_newest_first(events, things, make_webhook, receiver):
    make_webhook(things, receiver.url("/status/400"))
    assert events("webhooks", "attempts", "partner").out == "No attempts.\n"
    send(things, 1, 2)

    rows = events("webhooks", "attempts", "partner", "--format", "json").data
    assert sorted((row["event_id"], row["attempt"], row["status"]) for row in rows) == [
        (event_id, attempt, 400) for event_id in (1, 2) for attempt in (1, 2, 3)
    ]
    assert [row["at"] for row in rows] == sorted((row["at"] for row in rows), reverse=True)
    of_one = events("webhooks", "attempts", "partner", "--event", 2, "--last", 2, "--format", "json").data
    assert [(row["event_id"], row["attempt"]) for row in of_one] == [(2, 3), (2, 2)]
    assert "400" in events("webhooks", "attempts", "partner").out


def test_a_test_says_by_its_exit_code_whether_it_was_delivered(events, things, make_webhook, receiver):
    make_webhook(things, receiver.url("/ok"))
    answer = events("webhooks", "test", "partner", "--format", "json")
    assert (answer.code, answer.data["delivered"], answer.data["status"]) == (0, True, 204)
    WebhookEndpoint.objects.filter(consumer__name="partner").update(url=receiver.url("/status/503"))
    answer = events("webhooks", "test", "partner")
    assert answer.code == 1
    assert "Not delivered: 503 Service Unavailable" in answer.out
    ids = [row["event_id"] for row in events("webhooks", "attempts", "partner", "--format", "json").data]
    assert len(ids) == 2 and max(ids) < 0


def test_a_test_says_what_it_needs(events, things, make_webhook, receiver, monkeypatch):
    make_webhook(things, receiver.url("/ok"))
    monkeypatch.setitem(sys.modules, "django_events.outward.sending", None)
    answer = events("webhooks", "test", "partner")
    assert answer.code == 2
    assert "pip install 'django-events-pg[webhooks]'" in answer.err


def test_a_new_secret_is_shown_once(events, things, make_webhook, receiver):
    first = make_webhook(things, receiver.url("/ok"))
    answer = events("webhooks", "new-secret", "partner", "--keep", "2h", "--by", "ada", "--format", "json")
    assert answer.code == 0
    assert answer.data["secret"].startswith(SECRET) and answer.data["secret"] != first
    assert answer.data["keep_seconds"] == timedelta(hours=2).total_seconds()
    assert WebhookSecret.objects.filter(signs_until=None).get().secret == answer.data["secret"]
    assert WebhookSecret.objects.count() == 2
    assert Intervention.objects.latest("id").by == "ada"
    said = events("webhooks", "new-secret", "partner", "--keep", "0s")
    assert SECRET in said.out and "Former ones sign no more." in said.out
    assert WebhookSecret.objects.count() == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "code", "said"),
    [
        (["attempts"], 2, "Say what to do with which endpoint"),
        (["list", "partner"], 2, "Say what to do with which endpoint"),
        (["attempts", "partnr"], 2, "Did you mean 'partner'"),
        (["test", "nothing"], 2, "There is no webhook endpoint 'nothing'"),
        (["new-secret", "nothing"], 2, "There is no webhook endpoint 'nothing'"),
        (["new-secret", "partner", "--keep", "900d"], 2, "expected a timedelta from zero to a year"),
        (["remove", "partner"], 2, "invalid choice"),
    ],
)
def test_what_makes_no_sense_is_refused(events, things, make_webhook, receiver, given, code, said):
    make_webhook(things, receiver.url("/ok"))
    answer = events("webhooks", *given)
    assert (answer.code, answer.out) == (code, "")
    assert said in answer.err


def test_the_list_asks_three_times_however_many_endpoints_there_are(
    events, things, make_webhook, receiver, django_assert_num_queries
):
    for number in range(5):
        make_webhook(things, receiver.url("/ok"), name=f"partner{number}")
    send(things, 1)
    with django_assert_num_queries(3):
        assert len(events("webhooks", "--format", "json").data) == 5
