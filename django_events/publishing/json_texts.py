"""Values as JSON, by an encoder in C that is made once.

    encode = made_once(DjangoJSONEncoder(sort_keys=True))
    encode({"b": 1, "a": 2})

Python's own `encode` makes it anew for each value, which takes as long as to encode a small one.
"""

from collections.abc import Callable
from importlib import import_module
from json import JSONEncoder
from typing import Any


def made_once(encoder: JSONEncoder) -> Callable[[Any], str]:
    """`encoder.encode` without an indent; that itself, where this Python has no such encoder in C."""
    parts: Any = import_module("json.encoder")

    def default(value: Any) -> Any:
        return encoder.default(value)  # as it is by then: sites put another one into the class

    def make() -> Any:
        return parts.c_make_encoder(
            {},  # what it is within at the moment
            default,
            parts.encode_basestring_ascii if encoder.ensure_ascii else parts.encode_basestring,
            None,
            encoder.key_separator,
            encoder.item_separator,
            encoder.sort_keys,
            encoder.skipkeys,
            encoder.allow_nan,
        )

    try:
        if "".join(make()(_ASKED, 0)) != encoder.encode(_ASKED):
            return encoder.encode
    except (AttributeError, TypeError):
        return encoder.encode
    free: list[Any] = []  # those that encode nothing now: two values at once would be within one another

    def encode(value: Any) -> str:
        try:
            made = free.pop()
        except IndexError:
            made = make()
        text = "".join(made(value, 0))
        free.append(made)  # not after an error: then it takes itself for within a value that is over
        return text

    return encode


_ASKED = {"b": [1, 2.5, None, True], "a": {"c": "\u00e4\n"}}
