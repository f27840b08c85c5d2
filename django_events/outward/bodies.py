"""What is sent of an event: a JSON object around its value, or a CloudEvent.

message = written(event, "json")

The same event is the same message in each attempt, but for the signature, which has the time of the attempt. Several
events are a list of them, as far as they fit together.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from django_events.contracts import cloudevents
from django_events.contracts.cloudevents import encoded
from django_events.contracts.contract import VERSION
from django_events.exceptions import UnreadableEvent
from django_events.received import ReceivedEvent

JSON, CLOUDEVENT, CLOUDEVENT_BINARY = "json", "cloudevent", "cloudevent_binary"
LARGEST_BATCH = 1_000_000  # bytes


class Message(NamedTuple):
    """What is sent of some events, without its signature."""

    id: str
    headers: dict[str, str]
    body: bytes
    events: int = 1  # how many of those that were asked for are in it


def written(event: ReceivedEvent, form: str) -> Message:
    """What is sent of an event; UnreadableEvent if its payload can't be read, or can't be JSON."""
    try:
        trace = cloudevents.trace(event)
        if form == CLOUDEVENT_BINARY:
            headers, body = cloudevents.binary(event)
        elif form == CLOUDEVENT:
            headers, body = {"content-type": cloudevents.MEDIA_TYPE}, encoded(_one(event, form))
        else:
            headers, body = {"content-type": "application/json"}, encoded(_one(event, form))
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
            part = encoded(_one(event, form))
        except (UnreadableEvent, ValueError, RecursionError) as error:
            if parts:  # it comes first the next time
                break
            raise UnreadableEvent(f"It can't be written as JSON: {type(error).__name__}: {error}") from error
        if parts and sum(map(len, parts)) + len(part) > LARGEST_BATCH:
            break
        parts.append(part)
    kind = cloudevents.BATCH_MEDIA_TYPE if form == CLOUDEVENT else "application/json"
    first, ids = events[0], [event.id for event in events[: len(parts)]]
    digest = hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()[:16]
    name = f"{first.topic}/{ids[0]}-{ids[-1]}/{digest}"
    return Message(name, {"content-type": kind}, b"[" + b",".join(parts) + b"]", len(parts))


def _one(event: ReceivedEvent, form: str) -> dict[str, Any]:
    """An event as one JSON object."""
    return cloudevents.structured(event) if form == CLOUDEVENT else _plain(event)


def _plain(event: ReceivedEvent) -> dict[str, Any]:
    """As Standard Webhooks recommends: `type`, `timestamp` and `data`; beside them, where the event is in the log."""
    version = cloudevents.schema_version(event)
    return {
        "type": event.type,
        "timestamp": cloudevents.moment(event),
        "id": event.address,
        "topic": event.topic,
        "key": event.key,
        **({} if version is None else {VERSION: version}),
        **cloudevents.data(event),
    }
