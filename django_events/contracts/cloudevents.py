"""An event as a CloudEvent 1.0: structured, as one JSON object, or binary, with its attributes as headers.

    headers, body = binary(event)

Whatever sends events elsewhere renders them here, so that the same event is the same CloudEvent everywhere. Masked
fields are left out of it.
"""

import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import quote

from django_events.contracts.contract import VERSION
from django_events.event_columns import EVENT
from django_events.masking import hides, without_masked
from django_events.received import ReceivedEvent

MEDIA_TYPE = "application/cloudevents+json; charset=utf-8"
BATCH_MEDIA_TYPE = "application/cloudevents-batch+json; charset=utf-8"
BYTES, JSON = "application/octet-stream", "application/json"
TRACE = ("traceparent", "tracestate")  # in the metadata, by W3C Trace Context
LONGEST_TRACE = 512  # characters of a header that receivers take
METADATA, PUBLISHED_AT = EVENT.index("metadata"), EVENT.index("published_at")
MOMENT = len("2026-01-31 12:34:56.123456+00")  # as PostgreSQL writes it; it leaves out zeros at the end

_PLAIN = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')  # what a header may have as it is
_IS_PLAIN = re.compile(f"[{re.escape(_PLAIN)}]*").fullmatch


class Names(NamedTuple):
    """What the attributes are called that an event may have, and the relay that sends it."""

    specversion: str
    id: str
    source: str
    type: str
    time: str
    subject: str
    erased: str
    schemaversion: str
    relay: str


NAMES = Names(*Names._fields)


@cache
def names_behind(prefix: str) -> Names:
    """The names of attributes behind a prefix, as a broker's headers have them."""
    return Names(*(f"{prefix}{name}" for name in NAMES))


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
        return BYTES, b"" if hides() else body
    return JSON, encoded(None if event.erased else without_masked(event.value))


def attributes(event: ReceivedEvent) -> dict[str, str]:
    """The attributes of a CloudEvent. `source` and `id` together are unique: the address is unique by itself.

    `schemaversion` is an extension: the version of its schema, if it says one.
    """
    return described(event, event.columns)[0]


def trace(event: ReceivedEvent) -> dict[str, str]:
    """The trace that the event belongs to, which the receiver goes on with."""
    return _trace(_metadata(event, event.columns))


def described(
    event: ReceivedEvent, columns: Sequence[Any], names: Names = NAMES
) -> tuple[dict[str, str], dict[str, str]]:
    """The attributes and the trace of an event, whose columns the caller has at hand.

    A relay asks this of each event: the columns are looked at here, because each property costs as much as all of it.
    """
    topic = event.topic
    event_id, _, _, kind, key, value, body, stored, published_at, _ = columns
    found = {
        names.specversion: "1.0",
        names.id: f"{topic}/{event_id}",
        names.source: _source(topic),
        names.type: kind or topic,
        names.time: _written(published_at) or moment(event),
    }
    if key:
        found[names.subject] = key
    if value is None and body is None:
        found[names.erased] = "true"
    if stored == "{}" or not (metadata := _metadata(event, columns)):
        return found, {}
    if (version := _version(metadata)) is not None:
        found[names.schemaversion] = str(version)
    return found, _trace(metadata)


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


def _trace(metadata: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: text
        for name in TRACE
        if isinstance(text := metadata.get(name), str)
        and 0 < len(text) <= LONGEST_TRACE
        and text.isascii()
        and text.isprintable()
    }


def schema_version(event: ReceivedEvent) -> int | None:
    """The version of its schema, if its metadata say one."""
    return _version(_metadata(event, event.columns))


def _version(metadata: Mapping[str, Any]) -> int | None:
    version = metadata.get(VERSION)
    return version if isinstance(version, int) and not isinstance(version, bool) else None


def _metadata(event: ReceivedEvent, columns: Sequence[Any]) -> Mapping[str, Any]:
    """Its metadata, if there is anything in them that a CloudEvent says. Most have nothing, and needn't be decoded.

    PostgreSQL writes these names in a jsonb as they are. Both of TRACE begin alike.
    """
    stored = columns[METADATA]
    if stored == "{}" or (isinstance(stored, str) and VERSION not in stored and "trace" not in stored):
        return {}
    return event.metadata


def moment(event: ReceivedEvent) -> str:
    """When it was published."""
    return _written(event.columns[PUBLISHED_AT]) or event.published_at.isoformat().replace("+00:00", "Z")


def _written(stored: Any) -> str | None:
    """A time as PostgreSQL writes nearly all of them, as a CloudEvent has it."""
    if isinstance(stored, str) and len(stored) == MOMENT and stored.endswith("+00"):
        return stored[:-3].replace(" ", "T") + "Z"
    return None


def encoded(value: Any) -> bytes:
    """A value as JSON on the wire."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
