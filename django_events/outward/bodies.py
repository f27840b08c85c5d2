"""What is sent of an event: a JSON object around its value, or a CloudEvent.

message = written(event, "json")

The same event is the same message in each attempt, but for the signature, which has the time of the attempt. Several
events are a list of them, as far as they fit together.
"""

import hashlib
import json
from base64 import b64encode
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import quote

from django_events.exceptions import UnreadableEvent
from django_events.masking import hides, without_masked
from django_events.received import ReceivedEvent

JSON, CLOUDEVENT, CLOUDEVENT_BINARY = "json", "cloudevent", "cloudevent_binary"
TRACE = ("traceparent", "tracestate")  # in the metadata, by W3C Trace Context
LARGEST_BATCH = 1_000_000  # bytes
LONGEST_TRACE = 512  # characters of a header that receivers take

_UNSAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')  # what CloudEvents doesn't encode


class Message(NamedTuple):
    """What is sent of some events, without its signature."""

    id: str
    headers: dict[str, str]
    body: bytes
    events: int = 1  # how many of those that were asked for are in it


class BinaryParts(NamedTuple):
    """A CloudEvent in binary mode: what says which event it is, beside its payload itself."""

    attributes: dict[str, str]
    trace: dict[str, str]
    content_type: str
    body: bytes


def written(event: ReceivedEvent, form: str) -> Message:
    """What is sent of an event; UnreadableEvent if its payload can't be read, or can't be JSON."""
    try:
        trace = _trace(event)
        if form == CLOUDEVENT_BINARY:
            headers, body = _binary(event, trace)
        elif form == CLOUDEVENT:
            headers = {"content-type": "application/cloudevents+json; charset=utf-8"}
            body = _encoded(_one(event, form))
        else:
            headers, body = {"content-type": "application/json"}, _encoded(_one(event, form))
    except (ValueError, RecursionError) as error:  # a surrogate, or lists in lists in lists
        raise UnreadableEvent(f"It can't be written as JSON: {type(error).__name__}: {error}") from error
    return Message(event.address, {**headers, **trace}, body)


def listed(events: Sequence[ReceivedEvent], form: str) -> Message:
    """The first of these events as a list, as many as fit together, at least one; UnreadableEvent if that one can't be.

    Its id names the events that are in it. A list is sent in the first attempt at its events only, see `Hand.next`.
    """
    parts: list[bytes] = []
    for event in events:
        try:
            part = _encoded(_one(event, form))
        except (UnreadableEvent, ValueError, RecursionError) as error:
            if parts:  # it comes first the next time
                break
            raise UnreadableEvent(f"It can't be written as JSON: {type(error).__name__}: {error}") from error
        if parts and sum(map(len, parts)) + len(part) > LARGEST_BATCH:
            break
        parts.append(part)
    kind = "application/cloudevents-batch+json; charset=utf-8" if form == CLOUDEVENT else "application/json"
    first, ids = events[0], [event.id for event in events[: len(parts)]]
    digest = hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()[:16]
    name = f"{first.topic}/{ids[0]}-{ids[-1]}/{digest}"
    return Message(name, {"content-type": kind}, b"[" + b",".join(parts) + b"]", len(parts))


def _one(event: ReceivedEvent, form: str) -> dict[str, Any]:
    """An event as one JSON object."""
    return {**_attributes(event), **_trace(event), **_data(event)} if form == CLOUDEVENT else _plain(event)


def _plain(event: ReceivedEvent) -> dict[str, Any]:
    """As Standard Webhooks recommends: `type`, `timestamp` and `data`; beside them, where the event is in the log."""
    return {
        "type": event.type,
        "timestamp": _moment(event.published_at),
        "id": event.address,
        "topic": event.topic,
        "key": event.key,
        **_data(event),
    }


def _data(event: ReceivedEvent) -> dict[str, Any]:
    """The payload. Bytes are base64; they are left out where fields are masked, because one may be in them."""
    if event.erased:
        return {"data": None, "erased": True}
    if (body := event.body) is not None:
        return {"data_base64": None if hides() else b64encode(body).decode()}
    return {"data": without_masked(event.value)}


def _attributes(event: ReceivedEvent) -> dict[str, str]:
    """The attributes of a CloudEvent. `source` and `id` together are unique: the address is unique by itself."""
    attributes = {
        "specversion": "1.0",
        "id": event.address,
        "source": f"/{quote(event.topic)}",
        "type": event.type or event.topic,
        "time": _moment(event.published_at),
    }
    return attributes | ({"subject": event.key} if event.key else {}) | ({"erased": "true"} if event.erased else {})


def _binary(event: ReceivedEvent, trace: dict[str, str]) -> tuple[dict[str, str], bytes]:
    """A CloudEvent whose attributes are headers and whose body is the payload itself."""
    binary = binary_parts(event)
    headers = {f"ce-{name}": quote(text, safe=_UNSAFE) for name, text in binary.attributes.items()}
    headers |= {f"ce-{name}": text for name, text in trace.items()}
    return {**headers, "content-type": binary.content_type}, binary.body


def binary_parts(event: ReceivedEvent) -> BinaryParts:
    """A CloudEvent in binary mode, for protocols that have headers of their own; UnreadableEvent as of `written`."""
    attributes, trace = _attributes(event), _trace(event)
    if (body := event.body) is not None:
        return BinaryParts(attributes, trace, "application/octet-stream", b"" if hides() else body)
    try:
        written = _encoded(None if event.erased else without_masked(event.value))
    except (ValueError, RecursionError) as error:
        raise UnreadableEvent(f"It can't be written as JSON: {type(error).__name__}: {error}") from error
    return BinaryParts(attributes, trace, "application/json", written)


def _trace(event: ReceivedEvent) -> dict[str, str]:
    """The trace that the event belongs to, which the receiver goes on with."""
    found = {name: event.metadata.get(name) for name in TRACE}
    return {
        name: text
        for name, text in found.items()
        if isinstance(text, str) and 0 < len(text) <= LONGEST_TRACE and text.isascii() and text.isprintable()
    }


def _encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def _moment(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
