"""What relays make of an event: nothing of it is lost, and masked fields are not in it."""

import json
from base64 import b64decode

import pytest
from django.test import override_settings

from django_events import DeclaredRelay, redis_stream
from django_events.bridges.relays.messages import message_of
from django_events.bridges.relays.targets import Route
from django_events.received import ReceivedEvent

pytestmark = pytest.mark.requirement("X20")

MOMENT = "2026-01-01T00:00:00+00:00"
VALUE = '{"card": "4711", "big": 12345678901234567890.123456789}'


def sent(form, transform=None):
    event = ReceivedEvent("orders", [1, 0, 1, "t", "k", VALUE, None, "{}", MOMENT, MOMENT], database="default")
    relay = DeclaredRelay(
        name="r", topics=("orders",), handler="x", to=redis_stream("o"), transform=transform, form=form
    )
    body = message_of(event, relay, Route("o")).body
    return body.decode()


@pytest.mark.parametrize("form", ["cloudevent_binary", "cloudevent", "value"])
def test_numbers_keep_their_digits(form):
    assert "12345678901234567890.123456789" in sent(form)
    found = json.loads(sent(form))
    assert (found["data"] if form == "cloudevent" else found)["card"] == "4711"


@override_settings(DJANGO_EVENTS={"MASKED_FIELDS": ["card"]})
def test_masked_fields_are_in_no_form_and_bytes_of_a_transform_are_sent_as_they_are():
    for form in "cloudevent_binary", "cloudevent", "value":
        assert "4711" not in sent(form)
        assert "4711" not in sent(form, lambda event: [event.value])
    assert sent("cloudevent_binary", lambda event: b"4711") == sent("value", lambda event: b"4711") == "4711"
    assert b64decode(json.loads(sent("cloudevent", lambda event: b"4711"))["data_base64"]) == b"4711"
