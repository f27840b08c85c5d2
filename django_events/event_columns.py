"""The columns of an event, named once. Python takes them from here, and SQL files write `{event_columns}` for them.

In a file, `{event_columns of e}` stands for `e.id, e.partition, …`. `MACROS` says what else a file may write. Django is
not needed for it.
"""

import re

# What a publisher says, which stays the same from the buffer to a dead letter; and in the order of a COPY.
SAID = ("type", "key", "value", "body", "metadata")
DRAFTED = ("value", "type", "key", "body", "metadata", "partition")
# What a dead letter has beside the id of its event; and what the log and the buffer have.
COPIED = ("partition", "number", *SAID, "published_at", "logged_at")
EVENT = ("id", *COPIED)
BUFFERED = ("topic_id", "partition", *SAID)

_LISTS = {"said": SAID, "copied": COPIED, "event": EVENT, "buffered": BUFFERED, "drafted": DRAFTED}
_CASTS = {"value": "::jsonb", "body": "::bytea", "metadata": "::jsonb"}

MACROS = re.compile(r"\{(?:(said|copied|event|buffered|drafted)_columns(?: of (\w+))?|copied_(parameters|updates))\}")


def expanded(text: str) -> str:
    """The text of an SQL file with the columns written out."""
    return MACROS.sub(_expansion, text)


def _expansion(macro: re.Match[str]) -> str:
    columns, row, other = macro.groups()
    if other == "parameters":
        return ", ".join(f"%({name})s{_CASTS.get(name, '')}" for name in COPIED)
    if other == "updates":
        return ", ".join(f"{name} = excluded.{name}" for name in COPIED)
    return ", ".join(f"{row}.{name}" if row else name for name in _LISTS[columns])
