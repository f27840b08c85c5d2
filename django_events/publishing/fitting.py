"""A value without the fields that are too large: for content that users write, whose save must not fail.

value, omitted = fitting({"id": 7, "body": "x" * 10_000_000}, most=1_048_576)  # {"id": 7}, ["body"]
"""

from collections.abc import Mapping
from typing import Any

from django_events.publishing.encoding import to_json

EVERYTHING = "*"


def fitting(value: Any, *, most: int) -> tuple[Any, list[str]]:
    """What of a value has so many bytes at most, and the names of what was left out: the largest first, until it fits.

    Of a value that is no object, nothing is left.
    """
    if _size(value) <= most:
        return value, []
    if not isinstance(value, Mapping):
        return None, [EVERYTHING]
    left: Any = dict(value)
    omitted: list[str] = []
    for name in sorted(value, key=lambda name: _size({name: value[name]}), reverse=True):
        del left[name]
        omitted.append(name)
        if _size(left) <= most:
            break
    return left, omitted


def _size(value: Any) -> int:
    text = to_json("value", value)
    return len(text) if text.isascii() else len(text.encode())
