"""What relays make of an event: nothing of it is lost, and masked fields are not in it."""

import json
from base64 import b64decode

import pytest
from django.test import override_settings

from django_events import DeclaredRelay, jetstream, redis_stream
from django_events.bridges.relays.jetstream import _size_of
from django_events.bridges.relays.messages import MOST_BESIDE, message_of, names_of
from django_events.bridges.relays.targets import Route
from django_events.contracts import cloudevents
from django_events.publishing.encoding import MOST_DIGITS
from django_events.received import ReceivedEvent

pytestmark = pytest.mark.requirement("X20")

MOMENT = "2026-01-01T00:00:00+00:00"
VALUE = '{"card": "4711", "big": 12345678901234567890.123456789}'


TRACE = {"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "vendor=7"}


def made(form="cloudevent_binary", transform=None, *, value=VALUE, metadata="{}"):
    event = ReceivedEvent("orders", [1, 0, 1, "t", "k", value, None, metadata, MOMENT, MOMENT], database="default")
    relay = DeclaredRelay(
        name="r", topics=("orders",), handler="x", to=redis_stream("o"), transform=transform, form=form
    )
    return message_of(event, relay, Route("o"))


def sent(form, transform=None):
    return made(form, transform).body.decode()


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


@pytest.mark.parametrize("form", ["cloudevent_binary", "cloudevent", "value"])
def test_a_trace_is_beside_each_form_and_a_version_of_a_schema_is_what_the_cloudevent_says(form):
    metadata = json.dumps({**TRACE, "schema_version": 3, "other": "kept here"})
    for transform in None, lambda event: [event.value["card"]], lambda event: b"bytes":
        message = made(form, transform, metadata=metadata)
        about = json.loads(message.body) if form == "cloudevent" else message.attributes
        assert {name: text for name, text in message.headers.items() if name != "content-type"} == TRACE
        assert about.get("schemaversion") == (None if form == "value" else "3")
        if form == "cloudevent":
            assert {name: about[name] for name in TRACE} == TRACE
        else:
            assert message.attributes.keys() >= {"id", "source", "time", "relay"}
    assert set(made(form).headers) == {"content-type"}


@pytest.mark.parametrize(
    "broken", [7, "", "x" * 513, "00-é", "a\nb", ["00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"]]
)
def test_a_trace_that_no_header_can_have_is_left_out(broken):
    message = made(metadata=json.dumps({"traceparent": broken, "tracestate": "vendor=7"}))
    assert "traceparent" not in message.headers
    assert message.headers["tracestate"] == "vendor=7"


def test_what_a_bridge_adds_to_a_message_is_in_no_other():
    """No bridge should, and one that does changes its own message only."""
    for form in "cloudevent_binary", "cloudevent", "value":
        first, second = made(form), made(form)
        first.headers["added"] = first.attributes["added"] = "here"
        assert "added" not in {**second.headers, **second.attributes, **made(form).headers}


def test_what_is_beside_a_body_is_never_as_large_as_it_is_taken_for():
    """So the size of a message is counted only where its body could make it too large."""
    longest = dict.fromkeys(cloudevents.TRACE, "v" * cloudevents.LONGEST_TRACE)
    columns = [2**63 - 1, 0, 1, "€" * 200, "€" * 512, "1", None, json.dumps({**longest, "schema_version": 2**64})]
    event = ReceivedEvent("t" * 63, [*columns, MOMENT, MOMENT], database="default")
    relay = DeclaredRelay(name="r" * 63, topics=("t",), handler="x", to=redis_stream("o"))
    message = message_of(event, relay, Route("o"))
    assert set(message.headers) == {"content-type", *longest}
    assert 4_000 < message.size < MOST_BESIDE


def test_headers_of_jetstream_are_never_as_large_as_they_are_taken_for():
    """They are percent-encoded, and say what is expected of the stream: of small bodies they are not added up."""
    longest = dict.fromkeys(cloudevents.TRACE, "v" * cloudevents.LONGEST_TRACE)
    metadata = json.dumps({**longest, "schema_version": int("9" * MOST_DIGITS)})
    columns = [2**63 - 1, 0, 1, "\U0001f600" * 200, "\U0001f600" * 512, "1", None, metadata, MOMENT, MOMENT]
    event = ReceivedEvent("t" * 63, columns, database="default")
    target = jetstream("things", stream="S" * 255)
    relay = DeclaredRelay(name="r" * 63, topics=("t",), handler="x", to=target)
    bridge = target.bridge()
    message = message_of(event, relay, Route("things", target.stream), redriven=True, names=names_of(bridge))
    bridge._newest = {target.stream: (event.id, message.attributes["ce-time"])}
    reply = f"_INBOX.{'i' * 22}.{2**63}"
    headers = bridge._headers(message, target.stream, 2**63, f"{message.address}@{reply}", reply)
    bridge.close()
    assert headers.keys() >= {"ce-subject", "Relay-Newest", "Nats-Expected-Last-Msg-Id", *longest}
    assert 10_000 < _size_of(headers) < MOST_BESIDE


def test_an_erased_event_is_a_null_with_its_key_and_no_transform_is_asked():
    def transform(event):
        raise AssertionError("it is asked about an event that was erased")

    for form in "cloudevent_binary", "value":
        message = made(form, transform, value=None)
        assert (message.key, message.body) == ("k", None)
    assert made("cloudevent_binary", transform, value=None).attributes["erased"] == "true"
    data = json.loads(made("cloudevent", transform, value=None).body)
    assert (data["id"], data["subject"], data["data"], data["erased"]) == ("orders/1", "k", None, True)


def test_a_null_has_no_body_unless_it_is_in_a_cloudevent():
    assert made("cloudevent_binary", value="null").body is None
    assert made("value", value="null").body is None
    data = json.loads(made("cloudevent", value="null").body)
    assert (data["data"], "erased" in data) == (None, False)
    assert made(transform=lambda event: event.value, value="null") is None  # what transform leaves out
