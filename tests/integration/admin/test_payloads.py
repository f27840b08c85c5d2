"""Payloads of all kinds are shown, and none of them does any harm."""

import json
import re
from html import unescape

import pytest
from django.db import connection
from django.test import override_settings

from django_events import Backoff
from django_events.admin import payloads
from django_events.models import DeadLetter, Event
from django_events.statements import log_table
from django_events.testing import drain
from tests.integration.admin.conftest import address, topic_of
from tests.support.fix_topics import transfer_all

pytestmark = pytest.mark.django_db

HOSTILE = '</pre><script>alert("x")</script><img src=x onerror=alert(1)>{{ 7|add:7 }}\' "&lt;'


def shown(client, topic, event_id=1, query=""):
    answer = client.get(address("topic", topic_of(topic), f"log/{event_id}") + query)
    assert answer.status_code == 200
    return answer.content.decode()


@pytest.mark.slow
@pytest.mark.requirement("X5")
def test_html_in_payload_key_and_type_is_text(olga, things):
    things.publish({HOSTILE: HOSTILE}, key=HOSTILE, type=HOSTILE, metadata={HOSTILE: HOSTILE})
    transfer_all()

    for page in ("log/1", "log"):
        told = olga.get(address("topic", topic_of(things), page)).content.decode()
        assert "<script>alert" not in told
        assert "<img src=x" not in told
        assert "&lt;script&gt;" in told
    assert olga.get(address("topic", topic_of(things), "log"), {"key": HOSTILE}).status_code == 200


def test_numbers_are_shown_as_they_are_stored(olga, things):
    numbers = ["1.10", "123456789012345678901234567890", "1e400", "0.1000000000000000055"]
    with connection.cursor() as cursor:
        cursor.execute("SELECT django_events_publish('things', %s::jsonb)", [f"[{', '.join(numbers)}]"])
    transfer_all()

    told = shown(olga, things)
    for number in ("1.10", "123456789012345678901234567890", "1" + "0" * 400, "0.1000000000000000055"):
        assert number in told


@pytest.mark.parametrize(
    ("depth", "masked"),
    [(200, []), (5_000, ["secret"]), (200, ["secret"]), pytest.param(5_000, [], marks=pytest.mark.long)],
)
@pytest.mark.few(1)
def test_deep_json_is_shown(olga, things, depth, masked):
    with connection.cursor() as cursor:
        cursor.execute("SELECT django_events_publish('things', %s::jsonb)", ["[" * depth + "]" * depth])
    transfer_all()

    with override_settings(DJANGO_EVENTS={"MASKED_FIELDS": masked}):
        assert "[" in shown(olga, things)
        assert olga.get(address("topic", topic_of(things), "log")).status_code == 200


def test_what_is_long_is_cut_until_all_of_it_is_asked_for(olga, things):
    things.publish({"text": "x" * 500_000, "the last key": "the very end"})
    transfer_all()

    told = shown(olga, things)
    assert len(told) < 150_000
    assert "the very end" not in told
    assert "the very end" in shown(olga, things, query="?all")
    assert len(olga.get(address("topic", topic_of(things), "log")).content) < 50_000


@pytest.mark.parametrize(
    ("body", "text"),
    [(b"plain <b>text</b>", "plain &lt;b&gt;text&lt;/b&gt;"), (b"\xff\x00\x01", "ff 00 01"), (b"", "")],
)
def test_bytes_are_shown_as_text_or_in_hex(olga, things, body, text):
    things.publish(body=body)
    transfer_all()

    assert text in shown(olga, things)


def test_null_is_a_value(olga, things):
    things.publish(None)
    transfer_all()

    assert ">null</pre>" in shown(olga, things)


@pytest.fixture
def secretive(things):
    things.publish(
        {
            "Password": "hunter2",
            "card": {"number": "4111", "deep": {"more": ["4112"]}},
            "list": [{"card": ["4113"], "open": "shown"}],
            "last": "visible",
        },
        metadata={"password": "hunter3", "source": "web"},
    )
    things.publish(body=b'{"password": "hunter4"}')
    transfer_all()
    return things


def test_fields_are_masked_everywhere(olga, secretive):
    with override_settings(DJANGO_EVENTS={"MASKED_FIELDS": ["password", "card"]}):
        pages = [shown(olga, secretive), olga.get(address("topic", topic_of(secretive), "log")).content.decode()]
        body = shown(olga, secretive, 2)
    for told in [*pages, body]:
        assert not [secret for secret in ("hunter", "411") if secret in told]
    assert "•••" in pages[0]
    assert "visible" in pages[0] and "shown" in pages[0] and "web" in pages[0]
    assert "Not shown" in body


@pytest.mark.slow
@pytest.mark.parametrize("masked", [[], ["password"]])
def test_an_erased_event_is_said_to_be_erased(olga, things, make_consumer, masked):
    def fails(event):
        raise ValueError("no")

    make_consumer(things, handler=fails, retry=Backoff(attempts=1))
    things.publish({"n": 1})
    things.publish(None)
    drain(raise_errors=False)
    blank = """SET value = NULL, body = NULL, metadata = '{"erased": "2026-11-20T13:05:00Z"}' WHERE """
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {log_table(topic_of(things).pk)} {blank} id = 1")
        cursor.execute(f"UPDATE django_events_deadletter {blank} event_id = 1")

    with override_settings(DJANGO_EVENTS={"MASKED_FIELDS": masked}):
        event, null = shown(olga, things, 1), shown(olga, things, 2)
        listed = olga.get(address("topic", topic_of(things), "log")).content.decode()
        letters = [olga.get(address("deadletter", row)).content.decode() for row in DeadLetter.objects.order_by("pk")]
    for told in (event, letters[0]):
        assert "It was erased." in told
        assert "2026-11-20T13:05:00Z" in told
    for told in (null, letters[1]):
        assert "It was erased." not in told
    assert listed.count("<em>erased</em>") == 1
    assert "Publish again" in null and "Publish again" not in event


def test_nothing_is_masked_unless_it_is_said(olga, secretive):
    assert "hunter2" in shown(olga, secretive)
    assert "hunter4" in shown(olga, secretive, 2)


@pytest.mark.parametrize(
    "value",
    [
        {"secret": 1},
        {"a": {"secret": {"b": 1}}, "c": [{"secret": []}, {"secret": {}}, 2]},
        {'se"cret\\': 1, "secret": "x\ny", "z": None},
        [[{"secret": [[1]]}]],
        {"SECRET": 1.5, "\u00e4": {"Secret": "\u2028"}},
        "secret",
    ],
)
def test_masking_removes_exactly_what_stands_under_the_key(things, value):
    def without(part):
        if isinstance(part, dict):
            return {k: "•••" if k.casefold() == "secret" else without(v) for k, v in part.items()}
        return [without(one) for one in part] if isinstance(part, list) else part

    things.publish(value)
    transfer_all()
    [row] = payloads.readable(Event.objects.of(things))
    with override_settings(DJANGO_EVENTS={"MASKED_FIELDS": ["secret"]}):
        masked = payloads.of(row).value
    assert json.loads(masked) == without(value)


@pytest.mark.slow
@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x1c"])
def test_what_looks_like_an_end_of_a_line_ends_no_mask(olga, things, separator):
    things.publish(
        {"secret": f"x{separator}hunter2", "s": {"secret": [f"{separator}hunter2"]}}, key=separator, type="t"
    )
    transfer_all()
    with override_settings(DJANGO_EVENTS={"MASKED_FIELDS": ["secret"]}):
        for page in ("log", "log/1", "log/1?all"):
            path = address("topic", topic_of(things), page).replace("?all/", "/?all")
            assert "hunter2" not in olga.get(path).content.decode(), page


@pytest.mark.parametrize("length", range(100, 700, 37))
def test_a_mask_holds_where_a_payload_is_cut(length):
    value = {"open": "x" * length, "secret": {"deep": ["hunter2"] * 9}, "list": [{"secret": "hunter2"}] * 9}
    layout = json.dumps(value, indent=4)[:600]
    with override_settings(DJANGO_EVENTS={"MASKED_FIELDS": ["secret"]}):
        assert "hunter" not in (payloads.at_a_glance(layout) or "")


HOSTILE_KEYS = ["a\nb", "'; DROP TABLE x; --", "100% %s %(x)s", "\u202egnorw\u202c", "k" * 512, '"&<', " ", "a\\0", "٣"]


@pytest.mark.slow
@pytest.mark.parametrize("key", HOSTILE_KEYS)
def test_hostile_keys_and_types_are_found_and_followed(olga, things, key):
    for _ in range(2):
        things.publish({}, key=key, type=key[:200])
    transfer_all()
    told = shown(olga, things)
    link = re.search(r'href="([^"]*[?]key=[^"]*)"', told)[1]
    found = olga.get(unescape(link)).context["found"].events
    assert [event["id"] for event in found] == [2, 1]
    assert found[0]["key"] == key
