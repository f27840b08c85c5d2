"""What commands show of an event's payload, whatever is in it: one that can't be read is no reason to show no other.

for row in shown(Event.objects.using(using).peek("orders")):
    content(row), payload_data(row)
"""

import json
from typing import Any, NamedTuple, TypeVar

from django.core.management.base import BaseCommand
from django.db.models import Case, F, Func, QuerySet, TextField, When
from django.db.models.fields import BinaryField
from django.db.models.functions import Length

from django_events.management.reporting import cell, printable, printable_lines
from django_events.masking import hides, without_masked
from django_events.models.functions import ReadableText, Stored
from django_events.phrases import moment

LARGEST = 16_777_216  # bytes as they are stored; what is larger is no help on a terminal

Q = TypeVar("Q", bound="QuerySet[Any]")


class Loaded(NamedTuple):
    """A JSON value, or why there is none."""

    value: Any = None
    unreadable: str | None = None


def shown(rows: Q) -> Q:
    """Events, dead letters or scheduled events with what is to be shown of them, instead of their payloads."""
    sizes: dict[str, Func] = {"value_bytes": Stored(F("value")), "body_bytes": Length("body")}
    texts = {
        "value_text": Case(When(value_bytes__lte=LARGEST, then=ReadableText(F("value"))), output_field=TextField()),
        "metadata_text": ReadableText(F("metadata")),
        "body_shown": Case(When(body_bytes__lte=LARGEST, then=F("body")), output_field=BinaryField()),
    }
    found: Q = rows.defer("value", "body", "metadata").annotate(**sizes).annotate(**texts)
    return found


def content(row: Any) -> Any:
    """The value as it is stored, masked, or what stands in its place."""
    if is_erased(row):
        return "(erased)"
    if row.body_bytes is not None:
        return f"{row.body_bytes:,} bytes"
    value, unreadable = _value(row)
    return json.dumps(value, ensure_ascii=False) if unreadable is None else f"({unreadable})"


def event_line(command: BaseCommand, address: str, event: Any, what: Any) -> str:
    """An event on one line: its address, the time, the type, the key and what it has in it, as far as there are."""
    style = command.style
    parts = [
        style.MIGRATE_LABEL(address),
        moment(event.logged_at),
        style.SUCCESS(printable(event.type)) if event.type else "",
        style.WARNING(printable(event.key)) if event.key else "",
        cell(what),
    ]
    return "  ".join(part for part in parts if part)


def payload(row: Any) -> str:
    """All of it, for reading."""
    if is_erased(row):
        return "(erased)"
    if row.body_bytes is not None and hides():
        return "(Bytes are not shown while fields are masked: what is in them is unknown.)"
    if row.body_bytes is not None and row.body_shown is None:
        return f"({_too_large(row.body_bytes)})"
    if row.body_bytes is not None:
        return printable_lines(bytes(row.body_shown).decode(errors="replace"))
    value, unreadable = _value(row)
    if unreadable is not None:
        return f"({unreadable})"
    return printable_lines(json.dumps(value, ensure_ascii=False, indent=2))


def is_erased(row: Any) -> bool:
    """Whether its payload was erased; the JSON null is a value, too."""
    if row.value_bytes is not None or row.body_bytes is not None:
        return False
    metadata, _ = _metadata(row)
    return isinstance(metadata, dict) and "erased" in metadata


def payload_data(row: Any) -> dict[str, Any]:
    """The payload for programs, masked as it is for people.

    `hidden` says that there is a body that isn't shown, `unreadable` why there is no value, no body or no metadata.
    """
    hidden = row.body_bytes is not None and hides()
    value, unreadable = _value(row)
    metadata, unreadable_metadata = _metadata(row)
    if row.body_bytes is not None and row.body_shown is None and not hidden:
        unreadable = _too_large(row.body_bytes)
    return {
        "value": value,
        "body": None if hidden or row.body_shown is None else bytes(row.body_shown),
        "hidden": hidden,
        "erased": is_erased(row),
        "unreadable": unreadable or unreadable_metadata,
        "metadata": metadata,
    }


def loaded(text: str) -> Loaded:
    """JSON as Python has it, masked. What PostgreSQL takes may have more digits, or be deeper, than Python takes."""
    try:
        value = without_masked(json.loads(text))
        json.dumps(value)
    except (ValueError, RecursionError) as error:
        return Loaded(unreadable=f"Python can't read these {len(text):,} characters of JSON: {error}")
    return Loaded(value)


def _value(row: Any) -> Loaded:
    if row.value_bytes is None:
        return Loaded()
    if row.value_text is not None:
        return loaded(row.value_text)
    if row.value_bytes > LARGEST:
        return Loaded(unreadable=_too_large(row.value_bytes))
    return Loaded(unreadable=_too_long(row.value_bytes))


def _metadata(row: Any) -> Loaded:
    return Loaded(unreadable="The metadata can't be read.") if row.metadata_text is None else loaded(row.metadata_text)


def _too_large(size: int) -> str:
    return f"It has {size:,} bytes as it is stored, and {LARGEST:,} are shown at most."


def _too_long(size: int) -> str:
    return (
        "It has numbers of more than 4,300 digits, or 900 decimals, or is nested more than 5,000 deep: "
        f"{size:,} bytes as it is stored, which are not made into text."
    )
