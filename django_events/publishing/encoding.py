"""Checks and encodes an event before anything is written."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any, NamedTuple

from django.core.serializers.json import DjangoJSONEncoder

from django_events import telemetry
from django_events.conf import settings
from django_events.contracts.checking import described, refuse_strange_model, stamped
from django_events.declarations import DeclaredTopic
from django_events.drafts import UNSET, Draft, Unset
from django_events.exceptions import InvalidEvent
from django_events.publishing.context import CAUSED_BY, has_context, lone_cause, with_context
from django_events.publishing.json_texts import made_once

MAX_TYPE_LENGTH = 200
MAX_KEY_LENGTH = 512
# Times that every time zone and every client can express.
EARLIEST, LATEST = datetime(1900, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
LONGEST_WINDOW = timedelta(days=36_500)

# What Python can parse with its default limits, however deep its stack is already.
MOST_DIGITS, DEEPEST = 4_300, 500
_DIGITS = re.compile(rf"[0-9]{{{MOST_DIGITS + 1}}}")
_NUMBERS = re.compile(r"-?[0-9]+(?![0-9.eE])")
_TEXTS = re.compile(r'"(?:[^"\\]|\\.)*"')
_SQUARE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_OPEN = ord("[")

_OPTIONS: dict[str, Any] = {"allow_nan": False, "ensure_ascii": False, "separators": (",", ":")}
_encode = DjangoJSONEncoder(**_OPTIONS).encode
# Sorting fails where text and other keys meet in one object; it costs nothing to speak of.
_encode_sorted = made_once(DjangoJSONEncoder(**_OPTIONS, sort_keys=True))


class BufferRow(NamedTuple):
    """An encoded event that is published now and each time, in the order of `copy`."""

    value: str | None
    type: str
    key: str | None
    body: bytes | None
    metadata: str
    partition: int | None

    @property
    def bytes(self) -> int:
        """About how many bytes it has: characters of a text that is not ASCII count as the longest."""
        texts = (self.value, self.type, self.key, self.metadata)
        return len(self.body or b"") + sum(len(t) if t.isascii() else 4 * len(t) for t in texts if t)


class Conditional(NamedTuple):
    """An encoded event that is published at a time to come, or only if its dedup key is not taken."""

    row: BufferRow
    publish_at: datetime | None
    dedup_key: str | None
    dedup_window: timedelta | None

    @property
    def bytes(self) -> int:
        return self.row.bytes + 4 * len(self.dedup_key or "")


Encoded = BufferRow | Conditional

# The rest of an event that has a value, a type and a key.
PLAIN = (None, "{}", None)


def encode(
    topic: DeclaredTopic,
    value: Any,
    body: bytes | Unset,
    type: str,
    key: str | None,
    metadata: Mapping[str, Any] | None,
    partition: int | None,
    publish_at: datetime | None = None,
    dedup_key: str | None = None,
    dedup_window: timedelta | None = None,
) -> Encoded:
    """Check one event and encode it for the buffer. InvalidEvent says what is wrong with it."""
    if (value is UNSET) is (body is UNSET):
        raise InvalidEvent(
            "An event has exactly one of value and body, "
            f"got {'neither' if value is UNSET else 'both'}. Use value for JSON (None is JSON null), body for bytes."
        )
    kind, version, check = type, None, None
    if topic.schemas:
        value, kind, version, check = described(topic, value, body, type, metadata)
    elif value.__class__ is not dict and value.__class__ is not WrittenJson:
        refuse_strange_model(topic, value)
    lone = None
    if has_context():
        lone = lone_cause() if metadata is None and telemetry.tracing is None else None
        if lone is None:
            metadata = with_context(metadata)
    if telemetry.tracing is not None and (metadata is None or isinstance(metadata, Mapping)):
        metadata = telemetry.carried(metadata)
    _check_text("type", kind, MAX_TYPE_LENGTH)
    if key is not None:
        _check_text("key", key, MAX_KEY_LENGTH)
    if partition is not None:
        _check_partition(topic, partition)
    if body is not UNSET and not isinstance(body, (bytes, bytearray, memoryview)):
        raise InvalidEvent(f"body is {_kind_only(body)}, expected bytes. Encode it, or publish it as value.")
    written = _encoded(metadata) if lone is None else f'{{"{CAUSED_BY}":"{lone}"}}'  # an address needs no escapes
    row = BufferRow(
        None if value is UNSET else to_json("value", value),
        kind,
        key,
        None if body is UNSET else bytes(body),
        written if version is None else stamped(written, version),
        partition,
    )
    if check is not None and row.value is not None and not check(row.value):
        row = row._replace(metadata=written)  # it is of no version that is known, so it counts as the first
    # A character has 4 bytes at most, so most events need no closer look.
    most = settings.MAX_PAYLOAD_BYTES
    if most is not None and (len(row.value or "") + len(row.body or b"") + len(row.metadata)) * 4 > most:
        _check_size(row, most)
    if publish_at is None and dedup_key is None and dedup_window is None:
        return row
    _check_time(publish_at)
    return Conditional(row, publish_at, dedup_key, window(dedup_key, dedup_window))


def encode_draft(topic: DeclaredTopic, draft: Draft, *, metadata: Mapping[str, Any] | None = None) -> Encoded:
    """The same of a draft, with other metadata than it has if they are given."""
    return encode(
        topic,
        draft.value,
        draft.body,
        draft.type,
        draft.key,
        draft.metadata if metadata is None else metadata,
        draft.partition,
        draft.publish_at,
        draft.dedup_key,
        draft.dedup_window,
    )


class WrittenJson(str):
    """A value that is JSON already. What makes one has checked that it is; it is no public name."""


def _told_place(field: str, value: Any) -> str:
    """Where in a value the first thing is that JSON has no text for; empty where that is all of it, or is not found."""
    try:
        path = _path_of_wrong(value, frozenset())
    except RecursionError:
        return ""
    return f" It is {field}{path}." if path else ""


def _path_of_wrong(value: Any, around: frozenset[int]) -> str | None:
    """Where it is, in a value that is not one of those around it; a thing within itself is wrong there."""
    if id(value) in around:
        return ""
    if isinstance(value, dict | list | tuple):
        around |= {id(value)}
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        paths = ((name, _path_of_wrong(one, around)) for name, one in inner)
        return next((f"[{name!r:.100}]{path}" for name, path in paths if path is not None), None)
    try:
        _encode_distinct(value)
    except (TypeError, ValueError):
        return ""
    return None


def to_json(field: str, value: Any) -> str:
    """Encode a JSON value as Django does (dates, Decimals, UUIDs), refusing what jsonb can't hold."""
    try:
        text = str(value) if value.__class__ is WrittenJson else _encode_distinct(value)
    except RecursionError as error:
        raise InvalidEvent(_too_deep(field)) from error
    except (TypeError, ValueError) as error:
        if "int_max_str_digits" in str(error):
            raise InvalidEvent(_too_long(field)) from error
        raise InvalidEvent(f"{field} can't be written as JSON: {error}.{_told_place(field, value)}") from error
    if len(text) > MOST_DIGITS and _DIGITS.search(text):
        _check_digits(field, text)
    if text.count("[") + text.count("{") > DEEPEST and _may_be_deep(text):
        _check_depth(field, text)
    if "\\u0000" in text and "\\u0000" in text.replace("\\\\", ""):
        raise InvalidEvent(
            f"{field} contains the character U+0000, which PostgreSQL can't store in JSON. "
            "Remove it, or publish the data as body."
        )
    if not text.isascii():
        _check_encodable(field, text)
    return text


def _check_digits(field: str, text: str) -> None:
    """Refuse numbers with too many digits: this process may allow more than the one that reads the event."""
    if any(_DIGITS.search(token) for token in _NUMBERS.findall(_TEXTS.sub("", text))):
        raise InvalidEvent(_too_long(field))


def _may_be_deep(text: str) -> bool:
    """Whether much is left after the innermost brackets were taken away a few times; those in texts may mislead."""
    brackets = text.encode(errors="surrogatepass").translate(_SQUARE, _NO_BRACKETS)
    for _ in range(10):
        brackets = brackets.replace(b"[]", b"")
    return len(brackets) > DEEPEST


def _check_depth(field: str, text: str) -> None:
    brackets = _TEXTS.sub("", text).encode(errors="surrogatepass").translate(_SQUARE, _NO_BRACKETS)
    if max(accumulate(1 if bracket == _OPEN else -1 for bracket in brackets), default=0) > DEEPEST:
        raise InvalidEvent(_too_deep(field))


def _too_long(field: str) -> str:
    return (
        f"{field} contains a whole number of more than {MOST_DIGITS:,} digits, which Python refuses to read again. "
        "Publish it as text, with str() or hex()."
    )


def _too_deep(field: str) -> str:
    return (
        f"{field} has lists or objects in each other more than {DEEPEST} deep, which not every reader can read again. "
        "Make it flatter, or publish the data as body."
    )


def _encode_distinct(value: Any) -> str:
    """Encode, unless keys like 1 and "1" become the same: jsonb would keep the last of them only."""
    try:
        return _encode_sorted(value)
    except TypeError:
        text = _encode(value)
    json.loads(text, object_pairs_hook=_refuse_doubles)
    return text


def _refuse_doubles(pairs: list[tuple[str, Any]]) -> None:
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        double = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"two keys of one object are both {double!r} in JSON")


def _encoded(metadata: Any) -> str:
    if not metadata and metadata in (None, {}):
        return "{}"
    if not isinstance(metadata, Mapping):
        raise InvalidEvent(f"metadata is {_kind_only(metadata)}, expected a mapping, like {{'user': 7}}.")
    return to_json("metadata", dict(metadata))


def _check_text(field: str, text: Any, longest: int) -> None:
    if not isinstance(text, str):
        raise InvalidEvent(f"{field} is {_kind(text)}, expected text. Use str(...) if that is what you mean.")
    if len(text) > longest:
        raise InvalidEvent(f"{field} has {len(text)} characters, at most {longest} are possible: {text[:40]!r}…")
    if "\0" in text:
        raise InvalidEvent(f"{field} contains the character U+0000, which PostgreSQL can't store: {text[:40]!r}.")
    if not text.isascii():
        _check_encodable(field, text)


def _check_encodable(field: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidEvent(
            f"{field} contains half a surrogate pair ({text[error.start]!r}), which is not text."
        ) from error


def _check_partition(topic: DeclaredTopic, partition: Any) -> None:
    if isinstance(partition, bool) or not isinstance(partition, int):
        raise InvalidEvent(f"partition is {_kind(partition)}, expected a whole number.")
    if not 0 <= partition < topic.partitions:
        raise InvalidEvent(
            f"Topic {topic.name!r} has no partition {partition}: it has {topic.partitions}, "
            f"so 0 to {topic.partitions - 1} are possible. Leave partition out to place events by their key."
        )


def _check_size(row: BufferRow, most: int) -> None:
    for field, text in (("value", row.value), ("body", row.body), ("metadata", row.metadata)):
        size = len(text.encode() if isinstance(text, str) else text or b"")
        if size > most:
            raise InvalidEvent(
                f"{field} has {size:,} bytes, at most {most:,} are allowed by DJANGO_EVENTS['MAX_PAYLOAD_BYTES']. "
                "Keep the data elsewhere and publish where it is, or raise the setting. "
                "An @outbox leaves such fields out with too_large='omit'."
            )


def _check_time(publish_at: Any) -> None:
    if publish_at is None:
        return
    if not isinstance(publish_at, datetime) or publish_at.utcoffset() is None:
        raise InvalidEvent(
            f"publish_at is {_kind(publish_at)}, expected a datetime with a time zone, "
            "like datetime.now(UTC) + timedelta(hours=1)."
        )
    if not EARLIEST <= publish_at <= LATEST:
        raise InvalidEvent(f"publish_at is {_kind(publish_at)}, expected a year from {EARLIEST.year} to {LATEST.year}.")


def window(dedup_key: Any, dedup_window: Any = None) -> timedelta | None:
    """For how long the dedup key stays taken; None without a key."""
    if dedup_key is None:
        if dedup_window is not None:
            raise InvalidEvent("dedup_window is given without a dedup_key.")
        return None
    _check_text("dedup_key", dedup_key, MAX_KEY_LENGTH)
    taken_for = settings.DEDUP_WINDOW if dedup_window is None else dedup_window
    if not isinstance(taken_for, timedelta) or not timedelta(0) < taken_for <= LONGEST_WINDOW:
        longest = f"at most {LONGEST_WINDOW.days:,} days"
        raise InvalidEvent(f"dedup_window is {_kind(taken_for)}, expected a timedelta above zero, and {longest}.")
    return taken_for


def _kind(value: Any) -> str:
    return f"{value!r:.60} ({type(value).__name__})"


def _kind_only(payload: Any) -> str:
    """The type of a payload, without its content: error messages are logged."""
    return f"of type {type(payload).__name__}"
