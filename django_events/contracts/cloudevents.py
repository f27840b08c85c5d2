"""An event as a CloudEvent 1.0: structured, as one JSON object, or binary, with its attributes as headers.

    headers, body = binary(event)

Whatever sends events elsewhere renders them here, so that the same event is the same CloudEvent everywhere. Masked
fields are left out of it.
"""

import json
import re
from base64 import b64encode
from collections.abc import Mapping
from functools import cache
from typing import Any
from urllib.parse import quote

from django_events.contracts.contract import VERSION
from django_events.event_columns import EVENT
from django_events.masking import hides, without_masked
from django_events.received import ReceivedEvent

MEDIA_TYPE = "application/cloudevents+json; charset=utf-8"
BATCH_MEDIA_TYPE = "application/cloudevents-batch+json; charset=utf-8"
TRACE = ("traceparent", "tracestate")  # in the metadata, by W3C Trace Context
LONGEST_TRACE = 512  # characters of a header that receivers take
METADATA, PUBLISHED_AT = EVENT.index("metadata"), EVENT.index("published_at")
MOMENT = len("2026-01-31 12:34:56.123456+00")  # as PostgreSQL writes it; it leaves out zeros at the end

_PLAIN = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')  # what a header may have as it is
_IS_PLAIN = re.compile(f"[{re.escape(_PLAIN)}]*").fullmatch


def structured(event: ReceivedEvent) -> dict[str, Any]:
    """An event as one JSON object."""
    return around(event, data(event))


def around(event: ReceivedEvent, payload: Mapping[str, Any]) -> dict[str, Any]:
    """A payload as one JSON object with the attributes of an event."""
    return {**attributes(event), **trace(event), **payload}


def binary(event: ReceivedEvent) -> tuple[dict[str, str], bytes]:
    """The attributes of an event as headers, and its payload itself as the body."""
    headers = {f"ce-{name}": quoted(text) for name, text in attributes(event).items()}
    headers |= {f"ce-{name}": text for name, text in trace(event).items()}
    content_type, body = payload(event)
    return {**headers, "content-type": content_type}, body


def quoted(text: str) -> str:
    """An attribute as a header has it, percent-encoded. Most need nothing of that, which is found out sooner."""
    return text if _IS_PLAIN(text) else quote(text, safe=_PLAIN)


def payload(event: ReceivedEvent) -> tuple[str, bytes]:
    """The payload itself with its media type, as it is beside the attributes in binary mode."""
    if (body := event.body) is not None:
        return "application/octet-stream", b"" if hides() else body
    return "application/json", encoded(None if event.erased else without_masked(event.value))


def attributes(event: ReceivedEvent) -> dict[str, str]:
    """The attributes of a CloudEvent. `source` and `id` together are unique: the address is unique by itself.

    `schemaversion` is an extension: the version of its schema, if it says one.
    """
    found = {
        "specversion": "1.0",
        "id": event.address,
        "source": _source(event.topic),
        "type": event.type or event.topic,
        "time": moment(event),
    }
    version = schema_version(event)
    if event.key:
        found["subject"] = event.key
    if event.erased:
        found["erased"] = "true"
    if version is not None:
        found["schemaversion"] = str(version)
    return found


@cache
def _source(topic: str) -> str:
    return f"/{quote(topic)}"


def data(event: ReceivedEvent) -> dict[str, Any]:
    """The payload. Bytes are base64; they are left out where fields are masked, because one may be in them."""
    if event.erased:
        return {"data": None, "erased": True}
    if (body := event.body) is not None:
        return {"data_base64": None if hides() else b64encode(body).decode()}
    return {"data": without_masked(event.value)}


def trace(event: ReceivedEvent) -> dict[str, str]:
    """The trace that the event belongs to, which the receiver goes on with."""
    if not (metadata := _metadata(event)):
        return {}
    found = {name: metadata[name] for name in TRACE if name in metadata}
    return {
        name: text
        for name, text in found.items()
        if isinstance(text, str) and 0 < len(text) <= LONGEST_TRACE and text.isascii() and text.isprintable()
    }


def schema_version(event: ReceivedEvent) -> int | None:
    """The version of its schema, if its metadata say one."""
    version = _metadata(event).get(VERSION)
    return version if isinstance(version, int) and not isinstance(version, bool) else None


def _metadata(event: ReceivedEvent) -> Mapping[str, Any]:
    """Its metadata, if there is anything in them that a CloudEvent says. Most have nothing, and needn't be decoded.

    PostgreSQL writes these names in a jsonb as they are. Both of TRACE begin alike.
    """
    stored = event.columns[METADATA]
    if stored == "{}":
        return {}
    if isinstance(stored, str) and VERSION not in stored and "trace" not in stored:
        return {}
    return event.metadata


def moment(event: ReceivedEvent) -> str:
    """When it was published."""
    stored = event.columns[PUBLISHED_AT]
    if isinstance(stored, str) and len(stored) == MOMENT and stored.endswith("+00"):
        return f"{stored[:10]}T{stored[11:-3]}Z"
    return event.published_at.isoformat().replace("+00:00", "Z")


def encoded(value: Any) -> bytes:
    """A value as JSON on the wire."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
