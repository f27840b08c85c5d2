"""A message of a broker as an event of a topic: a CloudEvent, what `transform` makes of it, or what can't be read.

    event = event_of(inbox, topic, message)      # Unreadable says why it is none
    event = unreadable_event(inbox, topic, message, reason)

Each event says in its metadata which inbox took it in, and which message it was.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from json import JSONDecoder
from typing import Any, NamedTuple
from urllib.parse import unquote

from django.db import DatabaseError, InterfaceError

from django_events.bridges.inboxes.sources import InboxMessage
from django_events.conf import settings
from django_events.contracts.cloudevents import TRACE
from django_events.contracts.contract import VERSION
from django_events.database_errors import kind_of
from django_events.declarations import DeclaredInbox, DeclaredTopic
from django_events.declarations.limits import is_storable
from django_events.drafts import UNSET, Draft
from django_events.exceptions import InvalidEvent
from django_events.publishing.encoding import MAX_KEY_LENGTH, Encoded, WrittenJson, encode, encode_draft
from django_events.retries import Ignore, RetryLater

UNREADABLE = "inbox.unreadable"  # the type of events that are messages which can't be read
KAFKA, NATS, AMQP = "ce_", "ce-", ("cloudevents:", "cloudevents_")  # in front of attributes beside the payload
STRUCTURED = "application/cloudevents+json"
LONGEST_REASON = 1_000
BLANKS = b" \t\r\n"  # of JSON
LONGEST_NUMBER = 300  # characters of one with decimals
MOST_DIGITS = 9  # of the version of a schema
MOST_KNOWN = 1_000  # names of headers, and content types, of which it is remembered what they mean


class Unreadable(Exception):
    """A message is none of the events that the inbox can take. `again` says that another attempt may help.

    The text of an error of `transform` may have the payload in it, as `said`: it is kept where the payload is kept, in
    the event, and goes neither to the row of the inbox nor to the log.
    """

    def __init__(self, reason: str, *, again: bool = False, said: str = "") -> None:
        super().__init__(reason)
        self.again = again
        self.whole = f"{reason}: {said}" if said else reason


class _Taken(NamedTuple):
    """What a CloudEvent becomes. A `Draft` takes as long to make as all else that is done with its attributes."""

    value: Any
    body: Any
    type: Any
    key: Any
    metadata: dict[str, Any]


def event_of(inbox: DeclaredInbox, topic: DeclaredTopic, message: InboxMessage) -> Encoded | None:
    """The event that a message becomes, encoded; None if `transform` leaves it out.

    Unreadable says why it can't be one. RetryLater and errors of the database that are no message's fault go on. Any
    other error, in whatever place a message can cause one, is about the message.
    """
    try:
        return _event_of(inbox, topic, message)
    except (RetryLater, DatabaseError, InterfaceError, Unreadable):
        raise
    except Exception as error:
        raise Unreadable(f"{type(error).__name__} while it was read", said=_text_of(error)) from error


def _event_of(inbox: DeclaredInbox, topic: DeclaredTopic, message: InboxMessage) -> Encoded | None:
    draft: Draft | _Taken | None
    if inbox.transform is not None:
        draft = _transformed(inbox, message)
    else:
        draft = message.draft or _cloudevent(message, described=bool(topic.schemas))
    if draft is None:
        return None
    metadata = draft.metadata if draft.metadata is not None else {}
    if isinstance(metadata, Mapping):
        metadata = {**metadata, "inbox": inbox.name, "message": message.address}
    try:
        if isinstance(draft, _Taken):
            return encode(topic, draft.value, draft.body, draft.type, draft.key, metadata, None)
        if draft.shard_by is not None:
            raise Unreadable(
                "transform gave it a shard_by, and an inbox publishes in the database that it is served on."
            )
        return encode_draft(topic, draft, metadata=metadata)
    except InvalidEvent as error:  # it names values
        raise Unreadable(f"Topic {topic.name!r} refuses what it becomes", said=str(error)) from error


def unreadable_event(inbox: DeclaredInbox, topic: DeclaredTopic, message: InboxMessage, reason: str) -> Encoded:
    """A message that can't be read, as an event with all that it has; InvalidEvent if the topic takes no such event."""
    try:
        return encode_draft(topic, _unreadable(inbox, message, reason))
    except InvalidEvent:
        raise
    except Exception as error:
        raise InvalidEvent(f"{type(error).__name__} while such an event was made.") from error


def _unreadable(inbox: DeclaredInbox, message: InboxMessage, reason: str) -> Draft:
    key = message.key if message.key is not None and is_storable(message.key) else None
    metadata = {
        "inbox": inbox.name,
        "message": message.address,
        "error": _storable(reason[:LONGEST_REASON])[:LONGEST_REASON],
        "headers": {_storable(name): _storable(text) for name, text in message.headers.items()},
    }
    if message.subject is not None:
        metadata["subject"] = _storable(message.subject)
    if message.sent_at is not None:
        metadata["sent_at"] = message.sent_at.isoformat()
    if message.fields:
        metadata["fields"] = {
            _storable(name): b64encode(value).decode()
            for name, value in message.fields.items()
            if value is not message.body  # which is `data` of Redis
        }
    return Draft(
        body=message.body or b"",
        type=UNREADABLE,
        key=key if key is None or len(key) <= MAX_KEY_LENGTH else None,
        metadata=metadata,
    )


def _transformed(inbox: DeclaredInbox, message: InboxMessage) -> Draft | None:
    assert inbox.transform is not None  # noqa: S101
    try:
        draft = inbox.transform(message)
    except Ignore:
        return None
    except RetryLater:
        raise
    except Exception as error:
        kind = kind_of(error)
        if isinstance(error, (DatabaseError, InterfaceError)) and (kind.passes or kind.of_server):
            raise
        raise Unreadable(f"transform raised {type(error).__name__}", again=True, said=_text_of(error)) from error
    if draft is not None and not isinstance(draft, Draft):
        raise Unreadable(f"transform returned {type(draft).__name__}, expected a Draft, or None to leave it out.")
    return draft


def _cloudevent(message: InboxMessage, *, described: bool) -> _Taken:
    """A CloudEvent, structured or with its attributes beside the payload, as relays write them.

    A value of a topic that is `described` by schemas is decoded. Others are stored as they came.
    """
    if (reason := message.headers.get("unreadable")) is not None:  # of the log of another site, which knows its events
        raise Unreadable(reason)
    content_type = message.headers.get("content-type") or message.headers.get("content_type", "")
    is_structured, is_json = _form_of(content_type)
    if is_structured:
        return _structured(message)
    attributes = _attributes(message.headers)
    if "id" not in attributes:
        raise Unreadable("It is no CloudEvent. What other messages mean, a function says: inbox(…, transform=…)")
    trace = {name: message.headers[name] for name in TRACE if name in message.headers}
    if not is_json:
        return _taken(message, attributes, trace, body=message.body or b"")
    try:
        value = message.json() if described else _value_of(message)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"Its payload is no JSON: {error}") from error
    return _taken(message, attributes, trace, value=value)


class _IsWrittenAnew(Exception):
    """A number is written in a way in which it can't be stored, or not be read again."""


def _refuse_constant(text: str) -> float:
    raise _IsWrittenAnew


def _refuse_unusual(text: str) -> float:
    if len(text) > LONGEST_NUMBER or "e" in text or "E" in text:
        raise _IsWrittenAnew
    return 0.0


_check = JSONDecoder(parse_float=_refuse_unusual, parse_constant=_refuse_constant).raw_decode


def _value_of(message: InboxMessage) -> Any:
    """The value: its text, if that is JSON that can be stored as it is. Its numbers are not rounded then.

    Decoding and encoding it takes longer than all else that is done with a message.
    """
    body, most = message.body, settings.MAX_PAYLOAD_BYTES
    if body is not None and b"\\u" not in body and (most is None or len(body) <= most):
        with suppress(_IsWrittenAnew, ValueError, RecursionError):
            _, end = _check(text := body.strip(BLANKS).decode())
            if end == len(text):
                return WrittenJson(text)
    return message.json()  # which says what is wrong with it, if anything is


@lru_cache(maxsize=MOST_KNOWN)
def _form_of(content_type: str) -> tuple[bool, bool]:
    """Whether a message is a structured CloudEvent, and whether its payload is JSON."""
    return content_type.partition(";")[0].strip().lower() == STRUCTURED, (
        not content_type or "json" in content_type.lower()
    )


def _attributes(headers: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for name, text in headers.items():
        attribute, is_quoted = _attribute_of(name)
        if attribute is not None:
            found[attribute] = unquote(text) if is_quoted else text
    return found


@lru_cache(maxsize=MOST_KNOWN)
def _attribute_of(header: str) -> tuple[str | None, bool]:
    """Which attribute of a CloudEvent a header has, if any, and whether that is percent-encoded."""
    if header.startswith(KAFKA):
        return header[len(KAFKA) :], False
    if header.startswith(NATS):
        return header[len(NATS) :], True
    return (header[len(AMQP[0]) :] if header.startswith(AMQP) else None), False


def _structured(message: InboxMessage) -> _Taken:
    try:
        whole = message.json()
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"It is no JSON: {error}") from error
    if not isinstance(whole, dict) or not isinstance(whole.get("id"), str):
        raise Unreadable("It says that it is a CloudEvent, and has no attributes of one.")
    trace = {name: text for name in TRACE if isinstance(text := whole.pop(name, None), str)}
    value, encoded = whole.pop("data", None), whole.pop("data_base64", None)
    if encoded is None:
        return _taken(message, whole, trace, value=value)
    try:
        body = b64decode(encoded, validate=True)
    except (TypeError, ValueError) as error:
        raise Unreadable(f"Its data_base64 can't be decoded: {error}") from error
    return _taken(message, whole, trace, body=body)


def _taken(
    message: InboxMessage,
    given: dict[str, Any],
    trace: Mapping[str, str],
    *,
    value: Any = UNSET,
    body: Any = UNSET,
) -> _Taken:
    """An event of the attributes that are given: all but its type are kept in the metadata, under `ce`."""
    kind, key = given.pop("type", ""), given.get("subject")
    metadata: dict[str, Any] = {**trace, "ce": given}
    if "schemaversion" in given:
        version = str(given["schemaversion"])
        if version.isascii() and version.isdigit() and len(version) <= MOST_DIGITS and int(version):
            metadata[VERSION] = int(version)
    return _Taken(value, body, kind, message.key if message.key is not None else key, metadata)


def _text_of(error: Exception) -> str:
    """What an error says; nothing if it can't say it."""
    try:
        return str(error)
    except Exception:
        return ""


def _storable(text: str) -> str:
    """A text that JSON in PostgreSQL takes; what it doesn't take is written out."""
    return text if is_storable(text) else text.encode("unicode_escape", "backslashreplace").decode()
