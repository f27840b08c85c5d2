"""Subscriptions in the admin: tried, made, shown, removed, and by permission."""

from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.test import override_settings

from django_events.models import Consumer, DeadLetter, Intervention
from django_events.operations import subscribe
from tests.integration.admin.conftest import address, topic_of
from tests.support.fix_queues import fill_topic

pytestmark = [pytest.mark.django_db, pytest.mark.requirement("P4")]

FORM = {
    "name": "acme",
    "types": "",
    "keys": "",
    "where": "$.tenant == $tenant",
    "metadata": "",
    "vars": '{"tenant": "acme"}',
    "days": "7",
    "start": "end",
    "reason": "a new customer",
}


@pytest.fixture
def page(things):
    fill_topic(things, {"tenant": "acme"}, {"tenant": "other"})
    yield address("topic", topic_of(things), "subscribe")
    Consumer.objects.filter(subscribed=True).delete()


def test_it_is_tried_and_then_made(olga, page):
    tried = olga.get(page, FORM).content.decode()
    assert "1 of the newest 2 events match." in tried
    assert not Consumer.objects.filter(name="acme").exists()

    done = olga.post(page, FORM, follow=True)

    assert "Subscription acme gets its events of things from 3 on." in done.content.decode()
    row = Consumer.objects.get(name="acme")
    assert (row.subscribed, row.vars, row.expires_after) == (True, {"tenant": "acme"}, timedelta(days=7))
    recorded = Intervention.objects.get(action="subscribe")
    assert (recorded.by, recorded.details["reason"]) == ("olga", "a new customer")
    assert "Subscription acme" in LogEntry.objects.get().change_message
    shown = olga.get(address("consumer", row)).content.decode()
    assert "A subscription: no app declares it" in shown
    assert "$tenant" in shown and "7 d" in shown and "Unsubscribe…" in shown


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"name": ""}, "This field is required."),
        ({"name": "A B"}, "is not valid"),
        ({"where": "$.tenant ="}, "PostgreSQL can&#x27;t use"),
        ({"vars": "{}"}, "names $tenant, and vars has no such value"),
        ({"vars": "{"}, "Enter a valid JSON."),
        ({"keys": "a.>.b"}, "it can only be last"),
        ({"days": "0"}, "greater than or equal to 1"),
    ],
)
def test_what_can_t_be_made_is_said(olga, page, said, message):
    for answer in (olga.get(page, FORM | said), olga.post(page, FORM | said)):
        assert message in answer.content.decode()
        assert "Subscribe now" not in answer.content.decode()
    assert not Consumer.objects.filter(subscribed=True).exists()


def test_it_may_stay_for_ever_and_begin_in_the_past(olga, page):
    olga.post(page, FORM | {"days": "", "start": "beginning"})

    row = Consumer.objects.get(name="acme")
    assert (row.expires_after, row.filled_until) == (None, 0)
    assert "it stays" in olga.get(address("consumer", row)).content.decode()


def test_a_predicate_is_no_way_to_masked_fields(olga, page):
    with override_settings(DJANGO_EVENTS={"MASKED_FIELDS": ["tenant"]}):
        for answer in (olga.get(page, FORM), olga.post(page, FORM)):
            assert "a predicate would tell what is in them" in answer.content.decode()
            assert "of the newest" not in answer.content.decode()
        assert not Consumer.objects.filter(subscribed=True).exists()


def test_it_is_removed_when_that_is_confirmed(olga, things, page):
    olga.post(page, FORM)
    fill_topic(things, {"tenant": "acme"})
    row = Consumer.objects.get(name="acme")
    act = address("consumer", row, "act/unsubscribe")
    assert "with all events that it has not handled" in olga.get(act).content.decode()
    letter = DeadLetter.objects.create(
        consumer=row, event_id=3, partition=0, number=3, type="t", value={}, metadata={},
        published_at=row.registered_at, logged_at=row.registered_at, attempts=3, error="ValueError: 1",
    )  # fmt: skip
    assert "has 1 dead letters, which would be lost" in olga.post(act, {"reason": "left us"}).content.decode()
    letter.refresh_from_db()

    done = olga.post(act, {"reason": "left us", "force": "on"}, follow=True)

    assert "Subscription acme of things is removed." in done.content.decode()
    assert not Consumer.objects.filter(name="acme").exists()
    assert Intervention.objects.filter(action="unregister", by="olga", details__reason="left us").exists()


def test_only_a_subscription_has_that_action(olga, things, make_consumer):
    make_consumer(things, handler=print, mode="queue")
    row = Consumer.objects.get(name="reader")

    assert "Unsubscribe…" not in olga.get(address("consumer", row)).content.decode()
    said = olga.post(address("consumer", row, "act/unsubscribe"), {"reason": ""}).content.decode()
    assert "is declared by an app, or was, and no subscription" in said


def test_both_need_their_permissions(sign_in, things, page):
    subscribe("other", things, expires_after=None)
    act = address("consumer", Consumer.objects.get(name="other"), "act/unsubscribe")
    eve = sign_in("view_topic", "view_event", "view_consumer", "rewind_consumer", name="eve")
    for client_page in (page, act):
        assert eve.get(client_page).status_code == 403
        assert eve.post(client_page, FORM).status_code == 403
    assert "Subscribe…" not in eve.get(address("topic", topic_of(things))).content.decode()

    ada = sign_in("view_topic", "view_event", "view_consumer", "subscribe_consumer", "unsubscribe_consumer", name="ada")
    assert "Subscribe…" in ada.get(address("topic", topic_of(things))).content.decode()
    assert ada.post(page, FORM).status_code == 302
    assert ada.post(act, {"reason": ""}).status_code == 302
    assert list(Consumer.objects.filter(subscribed=True).values_list("name", flat=True)) == ["acme"]
