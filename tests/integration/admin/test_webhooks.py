"""Webhook endpoints in the admin: added, tried, given a new secret, paused; and what the pages never show."""

import re

import pytest
from django.contrib.admin.models import LogEntry

from django_events.models import Consumer, Intervention, WebhookAttempt, WebhookEndpoint, WebhookSecret
from tests.integration.admin.conftest import address
from tests.support.fix_queues import fill_topic
from tests.support.fix_webhooks import send_all

pytestmark = [pytest.mark.usefixtures("transactional_db"), pytest.mark.requirement("P10")]

PAGE = "/admin/django_events/webhookendpoint/"


def said(response):
    return [str(message) for message in response.context["messages"]]


def act(client, action, *, name="partner", **given):
    row = WebhookEndpoint.objects.get(consumer__name=name)
    return client.post(PAGE, {"action": action, "_selected_action": [row.pk], **given}, follow=True)


@pytest.mark.slow
def test_an_endpoint_is_added_and_its_secret_is_shown_once(olga, sign_in, things, make_webhook, receiver):
    make_webhook(things, receiver.url("/other"), name="other")
    given = {
        "name": "partner",
        "topic": "things",
        "url": receiver.url("/ok?token=abc"),
        "types": "order.* stock.low",
        "keys": "",
        "where": "",
        "start": "beginning",
        "form": "cloudevent",
        "concurrency": "3",
        "batch_size": "1",
        "ordered": "on",
    }
    assert "Add a webhook endpoint" in olga.get(PAGE).content.decode()
    assert olga.get(f"{PAGE}add/").status_code == 200
    viewer = sign_in("view_webhookendpoint", name="ada")
    assert viewer.get(f"{PAGE}add/").status_code == viewer.post(f"{PAGE}add/", given).status_code == 403
    assert "Add a webhook endpoint" not in viewer.get(PAGE).content.decode()
    page = olga.post(f"{PAGE}add/", given)
    try:
        [secret] = re.findall("whsec_[A-Za-z0-9+/=]+", page.content.decode())
        assert "no-store" in page["Cache-Control"]
        row = WebhookEndpoint.objects.select_related("consumer").get(consumer__name="partner")
        assert WebhookSecret.objects.get(endpoint=row).secret == secret
        assert (row.form, row.concurrency, row.consumer.ordered) == ("cloudevent", 3, True)
        assert row.consumer.types == ["order.*", "stock.low"]
        assert Intervention.objects.filter(action="webhook", by="olga", consumer="partner").exists()
        fill_topic(things, {"n": 1}, type="order.placed")
        send_all()
        for shown in (olga.get(PAGE), olga.get(address("webhookendpoint", row))):
            text = shown.content.decode()
            assert "/ok" in text
            for hidden in (secret, secret.removeprefix("whsec_"), "token=abc"):
                assert hidden not in text
        assert "204" in olga.get(address("webhookendpoint", row)).content.decode()
        refused = olga.post(f"{PAGE}add/", given).content.decode()
        assert "There is a consumer" in refused
        assert "whsec_" not in refused
        assert (
            "10.0.0.1" in olga.post(f"{PAGE}add/", {**given, "name": "x", "url": "https://10.0.0.1/"}).content.decode()
        )
    finally:
        Consumer.objects.filter(name="partner").delete()


@pytest.mark.slow
def test_an_endpoint_is_tried_paused_and_given_a_new_secret(olga, sign_in, things, make_webhook, receiver):
    first = make_webhook(things, receiver.url("/status/200"))
    viewer = sign_in("view_webhookendpoint", name="ada")
    for action in ("test", "new_secret", "pause", "resume"):
        act(viewer, action, decided="yes")
    assert not receiver.requests
    assert WebhookSecret.objects.get().secret == first

    assert said(act(olga, "test"))[0].startswith("partner: 200 after ")
    assert receiver.requests[0].json()["type"] == "webhook.test"
    assert "Give these endpoints a new secret?" in act(olga, "new_secret").content.decode()
    assert WebhookSecret.objects.count() == 1
    shown = act(olga, "new_secret", decided="yes").content.decode()
    newest = WebhookSecret.objects.get(signs_until=None).secret
    assert newest in shown
    assert first not in shown
    assert WebhookSecret.objects.count() == 2
    assert said(act(olga, "pause")) == ["partner is paused."]
    assert Consumer.objects.get(name="partner").paused_at is not None
    assert "paused" in olga.get(PAGE).content.decode()
    assert said(act(olga, "resume")) == ["partner goes on."]
    assert Consumer.objects.get(name="partner").paused_at is None
    written = "".join(one.change_message for one in LogEntry.objects.all())
    assert newest not in written


def test_what_a_receiver_answers_is_no_markup(olga, things, make_webhook, receiver):
    make_webhook(things, receiver.url("/ok"))
    row = WebhookEndpoint.objects.get()
    WebhookAttempt.objects.create(
        endpoint=row, event_id=1, attempt=1, seconds=0.1, status=500, excerpt="<script>alert(1)</script>"
    )
    WebhookEndpoint.objects.update(disabled_because="<b>gone</b>")
    Consumer.objects.filter(name="partner").update(paused_at=row.created_at)

    for page in (PAGE, address("webhookendpoint", row)):
        text = olga.get(page).content.decode()
        assert "<script>alert(1)" not in text
        assert "<b>gone" not in text
        assert "gone" in text
