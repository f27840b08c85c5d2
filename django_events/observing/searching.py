"""Events of a topic that contain a text, newest first, and never more than can be read in a moment.

search("orders", "O'Brien", start=yesterday)  # Searched(ids=[1042, 987], oldest=1, newest=1100)
"""

import json
import re
from datetime import datetime

from django_events import declarations, models, sql
from django_events.consuming import log_positions
from django_events.exceptions import Invalid
from django_events.log.inventory import existing
from django_events.masking import hides, without_masked
from django_events.models.functions import LOOKED_AT_CLOSELY
from django_events.outcomes import Searched
from django_events.statements import as_text, log_table

SQL = sql.beside(__name__)

PORTION = 1_000  # ids that a statement reads: each is short, and the search ends soon after it has found enough


def search(
    topic: declarations.DeclaredTopic | str,
    text: str,
    *,
    type: str | None = None,
    key: str | None = None,
    key_prefix: str | None = None,
    partition: int | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    before: int | None = None,
    limit: int = 20,
    last: int = 100_000,
    using: str | None = None,
) -> Searched:
    """The newest events whose value, metadata or body contains a text: among `last` of a time, and before an id.

    Capitals and small letters are the same there, but in a body. What MASKED_FIELDS hides is not found.
    """
    using = using or models.Event.objects.db
    if not text or "\0" in text:
        raise Invalid("A text to search for has at least one character, and none of them is the character 0.")
    if key is not None and key_prefix is not None:
        raise Invalid("A search is for a key or for a key_prefix: name one of them.")
    row = existing(using, topic)
    lower = log_positions.find(using, row, "beginning" if start is None else start)
    upper = log_positions.find(using, row, "end" if end is None else end)
    upper = max(upper if before is None else min(upper, before), lower)
    lower = max(lower, upper - last)
    found: list[int] = []
    at = upper
    while at > lower and len(found) < limit:
        step = max(lower, at - PORTION)
        statement = SQL.containing.on(
            log=log_table(row.pk),
            topic_id=row.pk,
            lower=step,
            upper=at,
            value=as_text("e", "value", small=LOOKED_AT_CLOSELY),
            metadata=as_text("e", "metadata", small=LOOKED_AT_CLOSELY),
        )
        rows = sql.fetch(
            using,
            statement,
            type=type,
            key=key,
            key_prefix=key_prefix,
            partition=partition,
            patterns=[f"%{_escaped(needle)}%" for needle in _needles(text)],
            bytes=None if hides() else text.encode(),
            most=PORTION if hides() else limit - len(found),
        )
        seen = [one_id for one_id, *layouts in rows if not hides() or any(_is_shown(text, one) for one in layouts)]
        found += seen[: limit - len(found)]
        at = found[-1] if len(found) == limit else step
    return Searched(found, oldest=at, newest=upper - 1)


def _needles(text: str) -> list[str]:
    """The text as it is, and as it stands in a string of JSON."""
    return list(dict.fromkeys([text, json.dumps(text, ensure_ascii=False)[1:-1]]))


def _escaped(text: str) -> str:
    return re.sub(r"([\\%_])", r"\\\1", text)


def _is_shown(text: str, layout: str | None) -> bool:
    """Whether it is found in what isn't masked. What Python can't read is shown nowhere."""
    try:
        shown = json.dumps(without_masked(json.loads(layout or "null")), ensure_ascii=False).casefold()
    except (ValueError, RecursionError):
        return False
    return any(needle.casefold() in shown for needle in _needles(text))
