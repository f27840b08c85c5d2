"""Shorter ways to a CloudEvent, which most events go: they give what the long way gives."""

import json
from datetime import UTC, datetime
from urllib.parse import quote

import pytest
from django.test import override_settings
from hypothesis import example, given
from hypothesis import strategies as st

from django_events.contracts import cloudevents
from django_events.received import ReceivedEvent

TEXT = st.text(st.characters(exclude_categories=("Cs",)))


WRITTEN = "2026-01-31 12:34:56.123456+00"


def received(*, type="made", key="k", value="{}", body=None, metadata="{}", published_at=WRITTEN):
    return ReceivedEvent("orders", (1, 0, 1, type, key, value, body, metadata, published_at, published_at))


@given(TEXT)
@example("orders/1042")
@example("50 %")
@example('a "b"')
def test_an_attribute_in_a_header_is_percent_encoded_where_it_has_to_be(text):
    unchanged = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
    assert cloudevents.quoted(text) == quote(text, safe=unchanged)


@given(st.datetimes(min_value=datetime(1, 1, 2), max_value=datetime(9999, 12, 30)), st.sampled_from([None, 0, 120_000]))
def test_the_time_is_the_same_however_postgresql_writes_it(moment, microsecond):
    if microsecond is not None:
        moment = moment.replace(microsecond=microsecond)
    fraction = f".{moment.microsecond:06d}".rstrip("0") if moment.microsecond else ""
    stored = f"{moment:%H:%M:%S}{fraction}+00"
    stored = f"{moment.year:04d}-{moment.month:02d}-{moment.day:02d} {stored}"
    expected = moment.replace(tzinfo=UTC).isoformat().replace("+00:00", "Z")
    assert cloudevents.moment(received(published_at=stored)) == expected
    assert cloudevents.moment(received(published_at=moment.replace(tzinfo=UTC))) == expected


@given(
    st.dictionaries(
        st.sampled_from(["traceparent", "tracestate", "schema_version", "traces", "other"]), st.integers(1, 9)
    ),
    TEXT,
)
def test_metadata_are_left_undecoded_only_where_they_say_nothing_of_it(metadata, text):
    metadata = {name: n if name == "schema_version" else f"of {n}" for name, n in metadata.items()} | {"note": text}
    # As PostgreSQL writes a jsonb: ASCII as it is.
    event = received(metadata=json.dumps(metadata, ensure_ascii=False))
    whole = received(metadata=metadata)
    assert cloudevents.attributes(event) == cloudevents.attributes(whole)
    assert cloudevents.trace(event) == cloudevents.trace(whole)


TRACED = '{"schema_version": 2, "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}'
FOR_OTHERS = [
    (
        {"key": 'ü "50 %"', "value": '{"total": "1.10", "lines": []}', "metadata": TRACED},
        {"total": "1.10", "lines": []},
    ),
    ({"type": "", "key": None, "value": "[1, null]"}, [1, None]),
    ({"value": '"text"'}, "text"),
    ({"value": "null"}, None),
    ({"value": None, "body": b"\x00\xff"}, b"\x00\xff"),
    ({"value": None}, None),  # erased
]


@pytest.mark.requirement("P10")
@pytest.mark.parametrize(("fields", "data"), FOR_OTHERS)
@pytest.mark.parametrize("mode", ["structured", "binary"])
def test_the_sdk_of_cloudevents_reads_each_event(mode, fields, data):
    http = pytest.importorskip("cloudevents.core.bindings.http", reason="cloudevents is not installed: it is in [test]")
    event = received(**fields)
    if mode == "binary":
        headers, content = cloudevents.binary(event)
    else:
        headers, content = {"content-type": cloudevents.MEDIA_TYPE}, cloudevents.encoded(cloudevents.structured(event))
    read = http.from_http_event(http.HTTPMessage(headers, content))
    attributes = read.get_attributes()
    assert (attributes["id"], attributes["source"], attributes["type"]) == (
        "orders/1",
        "/orders",
        event.type or "orders",
    )
    assert (attributes["specversion"], attributes["time"]) == ("1.0", event.published_at)
    assert attributes.get("subject") == event.key
    assert attributes.get("schemaversion") == ("2" if "metadata" in fields else None)
    assert attributes.get("traceparent") == event.metadata.get("traceparent")
    assert read.get_data() == data


@pytest.mark.requirement("P10")
def test_the_sdk_of_cloudevents_reads_an_event_whose_bytes_are_masked():
    http = pytest.importorskip("cloudevents.core.bindings.http", reason="cloudevents is not installed: it is in [test]")
    event = received(value=None, body=b"4111")
    with override_settings(DJANGO_EVENTS={"MASKED_FIELDS": ["card"]}):
        content = cloudevents.encoded(cloudevents.structured(event))
    assert not http.from_http_event(http.HTTPMessage({"content-type": cloudevents.MEDIA_TYPE}, content)).get_data()
