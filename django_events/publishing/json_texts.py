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
    try:
        made = parts.c_make_encoder(
            None,  # no watch over what is within itself: that ends as what is nested too deep
            encoder.default,
            parts.encode_basestring_ascii if encoder.ensure_ascii else parts.encode_basestring,
            None,
            encoder.key_separator,
            encoder.item_separator,
            encoder.sort_keys,
            encoder.skipkeys,
            encoder.allow_nan,
        )
        if "".join(made(_ASKED, 0)) != encoder.encode(_ASKED):
            return encoder.encode
    except (AttributeError, TypeError):
        return encoder.encode

    def encode(value: Any) -> str:
        try:
            return "".join(made(value, 0))
        except RecursionError:
            return encoder.encode(value)  # which says so if a thing is within itself

    return encode


_ASKED = {"b": [1, 2.5, None, True], "a": {"c": "\u00e4\n"}}
