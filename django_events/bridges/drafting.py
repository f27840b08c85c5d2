"""A message of a broker as an event of a topic: a CloudEvent, what `transform` makes of it, or what can't be read.

    event = event_of(inbox, topic, message)      # Unreadable says why it is none
    event = unreadable_event(inbox, topic, message, reason)

Each event says in its metadata which inbox took it in, and which message it was.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import unquote

from django.db import DatabaseError, InterfaceError

from django_events.bridges.sources import InboxMessage
from django_events.contracts.cloudevents import TRACE
from django_events.contracts.contract import VERSION
from django_events.declarations import DeclaredInbox, DeclaredTopic
from django_events.declarations.limits import is_storable
from django_events.drafts import UNSET, Draft
from django_events.exceptions import InvalidEvent
from django_events.publishing.encoding import MAX_KEY_LENGTH, Encoded, encode
from django_events.retries import Ignore, RetryLater

UNREADABLE = "inbox.unreadable"  # the type of events that are messages which can't be read
PREFIXES = ("ce_", "ce-")  # of attributes that are beside the payload: Kafka and Redis, NATS
STRUCTURED = "application/cloudevents+json"
LONGEST_REASON = 1_000


class Unreadable(Exception):
    """A message is none of the events that the inbox can take. `again` says that another attempt may help."""

    def __init__(self, reason: str, *, again: bool = False) -> None:
        super().__init__(reason)
        self.again = again


def event_of(inbox: DeclaredInbox, topic: DeclaredTopic, message: InboxMessage) -> Encoded | None:
    """The event that a message becomes, encoded; None if `transform` leaves it out.

    Unreadable says why it can't be one. RetryLater and errors of the database, which are no message's fault, go on.
    """
    draft = _transformed(inbox, message) if inbox.transform is not None else _cloudevent(message)
    if draft is None:
        return None
    if draft.shard_by is not None:
        raise Unreadable("transform gave it a shard_by, and an inbox publishes in the database that it is served on.")
    metadata = draft.metadata if draft.metadata is not None else {}
    if isinstance(metadata, Mapping):
        draft = replace(draft, metadata={**metadata, **_marks(inbox, message)})
    try:
        return _encoded(topic, draft)
    except InvalidEvent as error:
        raise Unreadable(str(error)) from error


def unreadable_event(inbox: DeclaredInbox, topic: DeclaredTopic, message: InboxMessage, reason: str) -> Encoded:
    """A message that can't be read, as an event with all that it has; InvalidEvent if the topic takes no such event."""
    key = message.key if message.key is not None and is_storable(message.key) else None
    metadata = {
        **_marks(inbox, message),
        "error": _storable(reason[:LONGEST_REASON]),
        "headers": {_storable(name): _storable(text) for name, text in message.headers.items()},
    }
    if message.fields:
        metadata["fields"] = {
            _storable(name): b64encode(value).decode() for name, value in message.fields.items() if name != "data"
        }
    draft = Draft(
        body=message.body or b"",
        type=UNREADABLE,
        key=key if key is None or len(key) <= MAX_KEY_LENGTH else None,
        metadata=metadata,
    )
    return _encoded(topic, draft)


def _encoded(topic: DeclaredTopic, draft: Draft) -> Encoded:
    return encode(
        topic,
        draft.value,
        draft.body,
        draft.type,
        draft.key,
        draft.metadata,
        draft.partition,
        draft.publish_at,
        draft.dedup_key,
        draft.dedup_window,
    )


def _marks(inbox: DeclaredInbox, message: InboxMessage) -> dict[str, Any]:
    return {"inbox": inbox.name, "message": message.address}


def _transformed(inbox: DeclaredInbox, message: InboxMessage) -> Draft | None:
    assert inbox.transform is not None  # noqa: S101
    try:
        draft = inbox.transform(message)
    except Ignore:
        return None
    except (RetryLater, DatabaseError, InterfaceError):
        raise
    except Exception as error:
        raise Unreadable(f"transform raised {type(error).__name__}: {error}", again=True) from error
    if draft is not None and not isinstance(draft, Draft):
        raise Unreadable(f"transform returned {type(draft).__name__}, expected a Draft, or None to leave it out.")
    return draft


def _cloudevent(message: InboxMessage) -> Draft:
    """A CloudEvent, structured or with its attributes beside the payload, as relays write them."""
    content_type = message.headers.get("content-type", message.headers.get("content_type", ""))
    if content_type.partition(";")[0].strip().lower() == STRUCTURED:
        return _structured(message)
    attributes = {
        name[len(PREFIXES[0]) :]: unquote(text) if name.startswith("ce-") else text
        for name, text in message.headers.items()
        if name.startswith(PREFIXES)
    }
    if "id" not in attributes:
        raise Unreadable("It is no CloudEvent. What other messages mean, a function says: inbox(…, transform=…)")
    trace = {name: text for name in TRACE if (text := message.headers.get(name)) is not None}
    if content_type and "json" not in content_type:
        return _draft(message, attributes, trace, body=message.body or b"")
    try:
        value = message.json()
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"Its payload is no JSON: {error}") from error
    return _draft(message, attributes, trace, value=value)


def _structured(message: InboxMessage) -> Draft:
    try:
        whole = message.json()
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"It is no JSON: {error}") from error
    if not isinstance(whole, dict) or not isinstance(whole.get("id"), str):
        raise Unreadable("It says that it is a CloudEvent, and has no attributes of one.")
    trace = {name: text for name in TRACE if isinstance(text := whole.pop(name, None), str)}
    value, encoded = whole.pop("data", None), whole.pop("data_base64", None)
    if encoded is None:
        return _draft(message, whole, trace, value=value)
    try:
        body = b64decode(encoded, validate=True)
    except (TypeError, ValueError) as error:
        raise Unreadable(f"Its data_base64 can't be decoded: {error}") from error
    return _draft(message, whole, trace, body=body)


def _draft(
    message: InboxMessage,
    attributes: Mapping[str, Any],
    trace: Mapping[str, str],
    *,
    value: Any = UNSET,
    body: Any = UNSET,
) -> Draft:
    """An event of these attributes; all but its type and its key are kept in the metadata, under `ce`."""
    given = dict(attributes)
    kind, key = given.pop("type", ""), given.get("subject")
    version = str(given.get("schemaversion", ""))
    metadata = {**trace, "ce": given, **({VERSION: int(version)} if version.isascii() and version.isdigit() else {})}
    return Draft(
        value=value, body=body, type=kind, key=message.key if message.key is not None else key, metadata=metadata
    )


def _storable(text: str) -> str:
    """A text that JSON in PostgreSQL takes; what it doesn't take is written out."""
    return text if is_storable(text) else text.encode("unicode_escape", "backslashreplace").decode()
