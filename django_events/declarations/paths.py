"""Paths into a value, as in jsonpath, as far as they name members: `$.customer`, `$.lines[0].sku`, `$."first name"`."""

import re
from typing import Any

_STEP = re.compile(r'\.(?P<name>[^\W\d]\w*)|\."(?P<quoted>[^"\\]+)"|\[(?P<index>[0-9]+)\]')
EXPECTED = "expected a path of members, like '$.customer' or '$.lines[0].sku', or a function of the event"


def wrong_path(path: str) -> str | None:
    """Why this is no such path, or None."""
    return None if path.startswith("$") and _steps(path) is not None else EXPECTED


def steps(path: str) -> tuple[str | int, ...]:
    """The members that a path leads through, one after the other."""
    found = _steps(path)
    if found is None:
        raise ValueError(f"{path!r}: {EXPECTED}")
    return found


def at(value: Any, members: tuple[str | int, ...]) -> Any:
    """What is there in a decoded value; None if nothing is."""
    for member in members:
        if isinstance(member, str):
            value = value.get(member) if isinstance(value, dict) else None
        else:
            value = value[member] if isinstance(value, list) and member < len(value) else None
    return value


def _steps(path: str) -> tuple[str | int, ...] | None:
    found: list[str | int] = []
    position = 1
    while position < len(path):
        step = _STEP.match(path, position)
        if step is None:
            return None
        found.append(int(step["index"]) if step["index"] else step["name"] or step["quoted"])
        position = step.end()
    return tuple(found)
