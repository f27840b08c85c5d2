"""What a webhook is, before it is sent: its body, its signature, and what follows from an answer. No database."""

import base64
import json
import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from django.test import override_settings
from standardwebhooks import Webhook, WebhookVerificationError

from django_events.exceptions import Invalid, UnreadableEvent
from django_events.outward.bodies import written
from django_events.outward.exchange import LONGEST_REST, WebhookAnswer, rest_asked_for
from django_events.outward.signing import new_secret, refuse_secret, signed
from django_events.received import ReceivedEvent

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
THEN = datetime(2026, 3, 1, 12, tzinfo=UTC)
WHEN = "2026-03-01T12:00:00.250000+00:00"
TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def received(value="{}", *, key="k", body=None, metadata="{}", type="order.placed", event_id=1042):
    columns = (event_id, 0, 7, type, key, value, body, metadata, WHEN, WHEN)
    return ReceivedEvent("orders", columns, consumer="partner", database="default")


@pytest.mark.requirement("P10")
def test_its_own_library_verifies_the_signature():
    secret, message = new_secret(), written(received('{"total": 12, "name": "Zoë"}'), "json")
    timestamp = int(time.time())
    headers = signed([secret], message_id=message.id, timestamp=timestamp, body=message.body)

    assert Webhook(secret).verify(message.body, headers)["data"] == {"total": 12, "name": "Zoë"}
    assert headers["webhook-id"] == "orders/1042"
    for other in (
        {**headers, "webhook-id": "orders/1043"},
        {**headers, "webhook-timestamp": str(timestamp - 1)},
        {
            **headers,
            "webhook-signature": signed([new_secret()], message_id="x", timestamp=1, body=b"")["webhook-signature"],
        },
    ):
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(message.body, other)
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(message.body + b" ", headers)


@pytest.mark.requirement("P10")
def test_while_a_secret_rotates_a_receiver_with_either_takes_the_message():
    old, new = new_secret(), new_secret()
    headers = signed([new, old], message_id="orders/1", timestamp=int(time.time()), body=b"{}")

    assert Webhook(old).verify(b"{}", headers) == Webhook(new).verify(b"{}", headers) == {}
    assert len(headers["webhook-signature"].split(" ")) == 2


@pytest.mark.parametrize(
    "secret",
    [
        "",
        "whsec_",
        "whsec_short",
        "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "whsec_" + "A" * 200,
        "whsec_not base64 at all, or is it",
    ],
)
def test_a_secret_that_receivers_would_not_take_is_refused_and_not_shown(secret):
    with pytest.raises(Invalid) as refused:
        refuse_secret(secret)

    assert not secret or secret == "whsec_" or secret not in str(refused.value)
    refuse_secret(new_secret())
    refuse_secret("whsec_" + base64.b64encode(b"x" * 24).decode())


def test_the_body_says_where_the_event_is_in_the_log():
    message = written(received('{"total": 12}', metadata=json.dumps({"traceparent": TRACEPARENT})), "json")

    assert json.loads(message.body) == {
        "type": "order.placed",
        "timestamp": "2026-03-01T12:00:00.250000Z",
        "id": "orders/1042",
        "topic": "orders",
        "key": "k",
        "data": {"total": 12},
    }
    assert message.headers == {"content-type": "application/json", "traceparent": TRACEPARENT}


@pytest.mark.requirement("X10")
@pytest.mark.parametrize("trace", ["", 7, None, "a\r\nb: c", "x" * 600, "ü"])
def test_what_is_no_trace_becomes_no_header(trace):
    assert "traceparent" not in written(received(metadata=json.dumps({"traceparent": trace})), "json").headers


def test_a_cloud_event_has_its_attributes_in_the_body_or_in_headers():
    event = received('{"total": 12}', key="Zoë 1%", metadata=json.dumps({"traceparent": TRACEPARENT}))
    whole, apart = written(event, "cloudevent"), written(event, "cloudevent_binary")

    attributes = {
        "specversion": "1.0",
        "id": "orders/1042",
        "source": "/orders",
        "type": "order.placed",
        "time": "2026-03-01T12:00:00.250000Z",
        "subject": "Zoë 1%",
        "traceparent": TRACEPARENT,
    }
    assert json.loads(whole.body) == {**attributes, "data": {"total": 12}}
    assert whole.headers["content-type"].startswith("application/cloudevents+json")
    assert json.loads(apart.body) == {"total": 12}
    assert apart.headers == {
        **{f"ce-{name}": text for name, text in attributes.items()},
        "ce-subject": "Zo%C3%AB%201%25",
        "content-type": "application/json",
        "traceparent": TRACEPARENT,
    }


@pytest.mark.parametrize("form", ["json", "cloudevent", "cloudevent_binary"])
def test_bytes_and_what_was_erased_can_be_told_from_a_value(form):
    bytes_, erased, null = (
        written(received(None, body=b"\0\xff"), form),
        written(received(None), form),
        written(received("null"), form),
    )
    if form == "cloudevent_binary":
        assert (bytes_.body, bytes_.headers["content-type"]) == (b"\0\xff", "application/octet-stream")
        assert (erased.body, erased.headers["ce-erased"]) == (b"null", "true")
        assert (null.body, "ce-erased" in null.headers) == (b"null", False)
    else:
        assert base64.b64decode(json.loads(bytes_.body)["data_base64"]) == b"\0\xff"
        assert json.loads(erased.body)["data"] is None
        assert "erased" in json.loads(erased.body)
        assert "erased" not in json.loads(null.body)


@pytest.mark.parametrize("form", ["json", "cloudevent", "cloudevent_binary"])
def test_fields_that_are_masked_do_not_leave_the_site(form):
    with override_settings(DJANGO_EVENTS={"MASKED_FIELDS": ["IBAN"]}):
        value = written(received('{"customer": {"iban": "DE02"}, "total": 1}'), form)
        body = written(received(None, body=b"DE02"), form)

    assert b"DE02" not in value.body + body.body
    assert b'"total":1' in value.body


@pytest.mark.parametrize("value", ['"\\ud800"', "[" * 3_000 + "]" * 3_000])
def test_a_payload_that_is_no_json_for_others_says_so(value):
    with pytest.raises(UnreadableEvent):
        written(received(value), "json")


@pytest.mark.parametrize("key", ["a\r\nwebhook-id: x", "☃", " ", 'a"b'])
def test_a_key_adds_no_header(key):
    subject = written(received(key=key), "cloudevent_binary").headers["ce-subject"]

    assert subject.isascii()
    assert subject.isprintable()
    assert " " not in subject


def test_a_status_from_200_to_299_is_delivery():
    assert [status for status in range(100, 600) if WebhookAnswer(status=status, seconds=0).delivered] == [
        *range(200, 300)
    ]
    assert WebhookAnswer(status=410, seconds=0).gone
    assert "redirects are not followed" in str(WebhookAnswer(status=302, seconds=0).failure)
    assert str(WebhookAnswer(status=429, seconds=0).failure) == "429 Too Many Requests"
    assert str(WebhookAnswer(status=None, seconds=0, error="No answer").failure) == "No answer"
    assert WebhookAnswer(status=204, seconds=0).failure is None


@pytest.mark.parametrize(
    ("status", "header", "seconds"),
    [
        (429, "120", 120),
        (503, " 7 ", 7),
        (503, "0", 0),
        (429, "99999999999", None),
        (429, "9999999999", LONGEST_REST.total_seconds()),
        (429, format_datetime(THEN + timedelta(minutes=2), usegmt=True), 120),
        (429, format_datetime(THEN - timedelta(minutes=2), usegmt=True), 0),
        (429, "Sunday, 06-Nov-94 08:49:37 GMT", 0),
        (429, "-5", None),
        (429, "soon", None),
        (429, "", None),
        (429, None, None),
        (500, "120", None),
        (200, "120", None),
    ],
)
def test_a_busy_receiver_says_how_long_it_rests(status, header, seconds):
    rest = rest_asked_for(status, header, now=THEN)

    assert (None if rest is None else rest.total_seconds()) == seconds
