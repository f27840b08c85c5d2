"""The part of an event's payload that pages show: laid out by PostgreSQL, cut, and masked."""

from typing import Any, NamedTuple, TypeVar

from django.db.models import BigIntegerField, Case, F, Func, Model, QuerySet, TextField, Value, When
from django.db.models.functions import Left, Length
from django.db.models.sql.compiler import SQLCompiler

from django_events.masking import hides, masked, whole
from django_events.models.functions import ReadableText, Stored
from django_events.phrases import without_turning

SHOWN = 65_536  # characters of a payload on the page of its event, unless all are asked for
GLANCE = 200  # characters of one in a list
SMALL = 8_192  # bytes on disk; what is larger is not unpacked for a list

UNREADABLE = (
    "(It has numbers of more than 4,300 digits, or 900 decimals, or is nested more than 5,000 deep: it is not "
    "made into text.)"
)

M = TypeVar("M", bound=Model)


class OctetLength(Func):
    """SQL: how many bytes a text has, as it was sent and not as it is stored."""

    function = "octet_length"
    output_field = BigIntegerField()


class Pretty(Func):
    """SQL: a value laid out in lines; null where that may be larger than memory."""

    function = "jsonb_pretty"
    output_field = TextField()

    def as_sql(self, compiler: SQLCompiler, connection: Any, **extra: Any) -> tuple[str, list[Any]]:  # type: ignore[override]
        layout, given = super().as_sql(compiler, connection, **extra)
        text, _ = compiler.compile(ReadableText(self.source_expressions[0]))
        return f"CASE WHEN ({text}) IS NOT NULL THEN {layout} END", list(given)


def glance() -> Case:
    """An expression: the begin of a value's layout, for lists; null if it is large, or if there is a body."""
    small = When(value_bytes__lte=SMALL, then=Left(Pretty(F("value")), GLANCE * 3))
    return Case(small, default=Value(None), output_field=TextField())


def at_a_glance(layout: str | None) -> str | None:
    """The begin of a value in one line, masked."""
    if layout is None:
        return None
    line = without_turning(" ".join(part.strip() for part in masked(layout.split("\n"))))
    return line if len(line) <= GLANCE else f"{line[:GLANCE]}…"


def body_shown(body: bytes) -> str | None:
    """Bytes as text, or as hexadecimal digits. None if the site masks fields, because the bytes may have them."""
    if hides():
        return None
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return body.hex(" ")
    return text


class Payload(NamedTuple):
    """What is shown of a payload: the value or the body, and the metadata; and what isn't."""

    value: str | None
    body: str | None
    metadata: str
    size: int
    cut: bool
    hidden: bool

    @property
    def erased(self) -> bool:
        return self.value is None and self.body is None and not self.hidden


def readable(rows: QuerySet[M]) -> QuerySet[M]:
    """Events or dead letters with the layouts of their payloads, and without the payloads: Python needn't read them."""
    layouts = {"value_layout": Pretty(F("value")), "metadata_layout": Pretty(F("metadata"))}
    length = OctetLength(ReadableText(F("value")))
    sizes = {"value_bytes": Stored(F("value")), "value_length": length, "body_bytes": Length("body")}
    readable_rows: QuerySet[M] = rows.defer("value", "metadata").annotate(**layouts, **sizes)
    return readable_rows


def of(row: Any, *, everything: bool = False) -> Payload:
    """The payload of a row that is readable, as a page shows it."""
    value = None if row.value_bytes is None else _whole(row.value_layout)
    body = None if row.body is None else body_shown(bytes(row.body))
    given = [value, body, _whole(row.metadata_layout)]
    texts = [one if one is None else without_turning(one) for one in given]
    limit = None if everything else SHOWN
    return Payload(
        value=texts[0] if texts[0] is None else texts[0][:limit],
        body=texts[1] if texts[1] is None else texts[1][:limit],
        metadata=(texts[2] or "")[:limit],
        size=row.body_bytes if row.body is not None else (row.value_length or row.value_bytes or 0),
        cut=not everything and any(len(text) > SHOWN for text in texts if text),
        hidden=row.body is not None and body is None,
    )


def _whole(layout: str | None) -> str:
    """A masked layout, or the reason why there is none."""
    return UNREADABLE if layout is None else whole(layout)
