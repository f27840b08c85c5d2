"""A value without the fields that are too large: for content that users write, whose save must not fail.

value, omitted = fitting({"id": 7, "body": "x" * 10_000_000}, most=1_048_576)  # {"id": 7}, ["body"]
"""

from collections.abc import Mapping
from typing import Any

from django_events.publishing.encoding import to_json
from django_events.publishing.fields import CHANGED

EVERYTHING = "*"


def fitting(value: Any, *, most: int) -> tuple[Any, list[str]]:
    """What of a value has so many bytes at most, and the names of what was left out: the largest first, until it fits.

    A field is left out of the value and of what changed. Of a value that is no object, nothing is left.
    """
    if _size(value) <= most:
        return value, []
    if not isinstance(value, Mapping):
        return None, [EVERYTHING]
    left: Any = dict(value)
    omitted: list[str] = []
    for name in sorted(_names(left), key=lambda name: _size_of(left, name), reverse=True):
        left = _without(left, name)
        omitted.append(name)
        if _size(left) <= most:
            break
    return left, omitted


def _names(value: Mapping[str, Any]) -> list[str]:
    changed = _changed(value)
    own = [name for name in value if name != CHANGED or not isinstance(value[CHANGED], Mapping)]
    return list(dict.fromkeys([*own, *changed]))


def _changed(value: Mapping[str, Any]) -> Mapping[str, Any]:
    changed = value.get(CHANGED)
    return changed if isinstance(changed, Mapping) else {}


def _size_of(value: Mapping[str, Any], name: str) -> int:
    changed = _changed(value)
    return sum(_size({name: of[name]}) for of in (value, changed) if name in of)


def _without(value: Mapping[str, Any], name: str) -> dict[str, Any]:
    left = {other: inner for other, inner in value.items() if other != name or other == CHANGED}
    if name in (changed := _changed(value)):
        left[CHANGED] = {other: inner for other, inner in changed.items() if other != name}
    elif name == CHANGED:
        del left[CHANGED]
    return left


def _size(value: Any) -> int:
    text = to_json("value", value)
    return len(text) if text.isascii() else len(text.encode())
