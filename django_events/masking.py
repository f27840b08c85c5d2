"""Payloads without what stands under the keys in MASKED_FIELDS: for pages and for what commands print.

PostgreSQL writes each key of a layout on a line of its own, so a layout is masked line by line, however deep it is:
nothing has to understand all of it.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from django_events.conf import settings

HIDDEN = "•••"
MASK = f'"{HIDDEN}"'
KEY = re.compile(r'( *)("(?:[^"\\]|\\.)*"): ?(.*)')


def hides() -> bool:
    """Whether something is to be masked. Bodies are not shown at all then: it may be in them."""
    return bool(settings.MASKED_FIELDS)


def is_masked(name: str) -> bool:
    """Whether what stands under this key is not shown."""
    return name.casefold() in _names()


def without_masked(value: Any) -> Any:
    """A value, at any depth without what is to be masked."""
    names = _names()

    def mask(part: dict[str, Any]) -> dict[str, Any]:
        return {key: HIDDEN if key.casefold() in names else inner for key, inner in part.items()}

    return json.loads(json.dumps(value), object_hook=mask) if names else value


def whole(layout: str) -> str:
    """A layout, masked."""
    return "\n".join(masked(layout.split("\n")))


def masked(lines: Iterable[str]) -> Iterator[str]:
    """The lines of a layout, without what stands under a key that is to be masked."""
    names = _names()
    hidden: str | None = None  # the begin of the line whose braces are being left out
    for line in lines:
        indent = line[: len(line) - len(line.lstrip(" "))]
        if hidden is not None:
            if hidden.startswith(f'{indent}"'):  # as far to the left: here they close
                yield _mask(hidden, line)
                hidden = None
            continue
        found = KEY.fullmatch(line) if names else None
        if found is None or _name(found[2]) not in names:
            yield line
        elif found[3] in ("{", "["):
            hidden = f"{indent}{found[2]}: "
        else:
            yield _mask(f"{indent}{found[2]}: ", line)
    if hidden is not None:  # it was cut
        yield _mask(hidden, "")


def _mask(begin: str, end: str) -> str:
    return f"{begin}{MASK}{',' if end.endswith(',') else ''}"


def _name(token: str) -> str:
    try:
        return str(json.loads(token)).casefold()
    except ValueError:
        return ""


def _names() -> set[str]:
    return {name.casefold() for name in settings.MASKED_FIELDS}
