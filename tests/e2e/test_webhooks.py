"""People add webhook endpoints and subscriptions, and see what comes of them, on every screen."""

import re

import pytest
from playwright.sync_api import expect

from django_events import Draft, publish_many
from django_events.models import Consumer, WebhookEndpoint, WebhookSecret
from django_events.operations import pause, subscribe, unsubscribe
from tests.e2e.people import superuser
from tests.e2e.pictures import picture
from tests.e2e.screens import on_every_screen
from tests.e2e.test_admin import headless, name_of, narrow_enough, pale, unlabelled
from tests.support.fix_topics import transfer_all
from tests.support.fix_webhooks import send_all

pytestmark = pytest.mark.requirement("P4", "P10")

ROOT = "/admin/django_events/"


@pytest.fixture
def olga(page, login):
    login(page, superuser("olga"))
    return page


@pytest.fixture
def partners(things, make_webhook, receiver):
    """Endpoints that work, fail, are disabled and are paused, with their attempts."""
    make_webhook(things, receiver.url("/ok"))
    make_webhook(things, receiver.url("/status/400"), name="broken")
    make_webhook(things, receiver.url("/status/410"), name="gone")
    make_webhook(things, receiver.url("/ok"), name="resting")
    pause("resting")
    publish_many(things, [Draft(value={"n": n}, type="thing.made", key="a") for n in range(5)])
    transfer_all()
    send_all()
    return things


def looks_right(page, name, request):
    assert narrow_enough(page), f"{name} is wider than the screen"
    assert unlabelled(page) == [], name
    assert headless(page) == [], name
    assert pale(page) == [], name
    picture(page, f"{name}-{name_of(request)}")


@pytest.mark.slow
@on_every_screen
@pytest.mark.few(1)
def test_endpoints_fit_on_every_screen(partners, olga, request):
    endpoint = WebhookEndpoint.objects.get(consumer__name="broken")
    pages = {
        "webhooks": f"{ROOT}webhookendpoint/",
        "webhook": f"{ROOT}webhookendpoint/{endpoint.pk}/change/",
        "webhook-add": f"{ROOT}webhookendpoint/add/",
        "subscribe": f"{ROOT}topic/{endpoint.consumer.topic_id}/subscribe/",
    }
    for name, address in pages.items():
        assert olga.goto(address).status == 200, name
        looks_right(olga, name, request)
    olga.goto(pages["webhooks"])
    expect(olga.get_by_role("row", name=re.compile("gone disabled.*410 Gone"))).to_be_visible()
    olga.goto(pages["webhook"])
    expect(olga.get_by_text("this is 400").first).to_be_visible()
    expect(olga.get_by_role("heading", name="broken")).to_be_visible()


@pytest.mark.slow
def test_an_endpoint_is_added_tried_and_given_a_new_secret(things, make_webhook, receiver, olga):
    make_webhook(things, receiver.url("/ok"), name="first")
    olga.goto(f"{ROOT}webhookendpoint/")
    olga.locator("#content").get_by_role("link", name=re.compile("Add")).first.click()
    olga.get_by_label("Name").fill("first")
    olga.get_by_label("URL").fill(receiver.url("/ok"))
    olga.get_by_label("Topic").select_option("things")
    olga.locator("#content").get_by_role("button").last.click()
    expect(olga.get_by_text("There is a consumer 'first' already.")).to_be_visible()
    olga.get_by_label("Name").fill("second")
    olga.locator("#content").get_by_role("button").last.click()
    expect(olga.get_by_text(re.compile("whsec_"))).to_be_visible()
    picture(olga, "webhook-added")
    assert WebhookSecret.objects.get(endpoint__consumer__name="second").secret in olga.content()

    olga.goto(f"{ROOT}webhookendpoint/")
    assert "whsec_" not in olga.content()
    olga.get_by_role("row", name=re.compile("second")).get_by_role("checkbox").check()
    olga.get_by_label("Action:").select_option("test")
    olga.get_by_role("button", name=re.compile("Go|Run")).click()
    expect(olga.get_by_text(re.compile("second: 204 after", re.IGNORECASE))).to_be_visible()
    unsubscribe("second")


@pytest.mark.slow
def test_a_subscription_is_tried_made_and_removed(things, olga):
    publish_many(things, [Draft(value={"n": n}, type="thing.made", key="a") for n in range(5)])
    transfer_all()
    subscribe("acme", things, keys=["a"], expires_after=None)
    row = Consumer.objects.get(name="acme")
    try:
        olga.goto(f"{ROOT}consumer/{row.pk}/change/")
        olga.get_by_role("link", name="Unsubscribe").click()
        picture(olga, "unsubscribe")
        olga.get_by_role("button", name="Unsubscribe").click()
        expect(olga.get_by_text(re.compile("acme")).first).to_be_visible()
        assert not Consumer.objects.filter(name="acme").exists()
    finally:
        if Consumer.objects.filter(name="acme").exists():
            unsubscribe("acme", force=True)
