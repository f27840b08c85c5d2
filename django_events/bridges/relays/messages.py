"""What a relay sends of an event: a CloudEvent, or its value.

message = message_of(event, relay, route)

All forms carry the event's address, source and time and the relay's name as attributes: by them a reader finds
doubles, and a relay finds out what a target has, and whether another one fills it.
"""

from base64 import b64encode
from typing import TYPE_CHECKING, Any

from django_events.bridges.relays.targets import RelayMessage, Route
from django_events.contracts import cloudevents
from django_events.contracts.cloudevents import BYTES, JSON, MEDIA_TYPE, NAMES, Names, names_behind
from django_events.event_columns import EVENT
from django_events.exceptions import UnreadableEvent
from django_events.masking import hides
from django_events.received import ReceivedEvent

if TYPE_CHECKING:
    from django_events.declarations import DeclaredRelay

NULLS = (None, "null")  # a value that was erased or is null, as it is stored: it need not be decoded
ID, KEY, VALUE, BODY = map(EVENT.index, ("id", "key", "value", "body"))
MOST_BESIDE = 16_384  # bytes: what is beside a body has fewer, however long the key, the type and the names are


def message_of(
    event: ReceivedEvent, relay: "DeclaredRelay", route: Route, *, redriven: bool = False, names: Names = NAMES
) -> RelayMessage | None:
    """An event as the relay sends it; None if its `transform` leaves it out. It raises what `transform` raises."""
    returned: bytes | None = None
    if relay.transform is not None and not event.erased:
        sent = relay.transform(event)
        if sent is None:
            return None
        returned = sent if isinstance(sent, bytes) else None
        event = _with_value(event, sent)
    columns = event.columns
    value, stored = columns[VALUE], columns[BODY]
    body: bytes | None
    try:
        media_type, body = _payload(event, value, stored, returned)
        if relay.form == "cloudevent":
            media_type, body = MEDIA_TYPE, _structured(event, body, returned)
        elif stored is None and value in NULLS:
            body = None
    except (ValueError, RecursionError) as error:  # a surrogate, or lists in lists in lists
        raise UnreadableEvent(f"It can't be written as JSON: {type(error).__name__}: {error}") from error
    named, trace = cloudevents.described(event, columns, names)
    address = named[names.id]
    if relay.form != "cloudevent_binary":
        named = {name: named[name] for name in (names.id, names.source, names.time)}
    named[names.relay] = relay.name
    headers = {"content-type": media_type, **trace} if trace else {"content-type": media_type}
    return RelayMessage(columns[ID], address, route, columns[KEY], named, headers, body, redriven)


def names_of(bridge: object) -> Names:
    """What the attributes of messages are called that a bridge sends."""
    return names_behind(getattr(bridge, "prefix", ""))


def _payload(event: ReceivedEvent, value: Any, body: Any, returned: bytes | None) -> tuple[str, bytes]:
    """The payload with its media type. A value is sent as it is stored: decoding it would round its numbers.

    Bytes that `transform` returned are the site's own: fields are masked in what is JSON.
    """
    if returned is not None:
        return BYTES, returned
    if isinstance(value, str) and body is None and not hides():
        return JSON, value.encode()
    return cloudevents.payload(event)


def _structured(event: ReceivedEvent, written: bytes, returned: bytes | None) -> bytes:
    if returned is not None:
        data = {"data_base64": b64encode(returned).decode()}
    elif event.erased or event.body is not None:
        data = cloudevents.data(event)
    else:
        around = cloudevents.encoded(cloudevents.around(event, {}))
        return around.removesuffix(b"}") + b',"data":' + written + b"}"
    return cloudevents.encoded(cloudevents.around(event, data))


def _with_value(event: ReceivedEvent, value: Any) -> ReceivedEvent:
    """The same event with what `transform` made of it."""
    columns = list(event.columns)
    if isinstance(value, bytes):
        columns[VALUE], columns[BODY] = None, value
    else:
        try:
            columns[VALUE], columns[BODY] = cloudevents.encoded(value).decode(), None
        except (TypeError, ValueError, RecursionError) as error:
            raise UnreadableEvent(f"What transform returned is no JSON: {type(error).__name__}: {error}") from error
    return type(event)(event.topic, columns, consumer=event.consumer, attempt=event.attempt, database=event.database)
