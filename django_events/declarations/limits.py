"""What a name, a number and a text in a declaration may be."""

import json
import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, overload

NAME = re.compile(r"[a-z][a-z0-9_.-]{0,62}")
NAME_RULE = (
    "it starts with a small letter and goes on with at most 62 small letters, digits, dots, dashes or underscores"
)
MAX_PARTITIONS = 1_000
MIN_SEGMENT_SIZE = 100
MAX_BATCH = 10_000
MAX_PENDING = 2**40
SHORTEST_LEASE, LONGEST_LEASE = timedelta(seconds=1), timedelta(days=1)


def check_number(what: str, option: str, value: Any, low: int, high: int) -> Iterator[str]:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        yield f"{what} has {option}={value!r}, expected a whole number from {low:,} to {high:,}."


def is_storable(text: Any) -> bool:
    """Whether it is a text that PostgreSQL takes."""
    return isinstance(text, str) and "\0" not in text and not any("\ud800" <= c <= "\udfff" for c in text)


def is_json(value: Any) -> bool:
    """Whether it is a value that PostgreSQL takes as jsonb."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return is_storable(text) and "\\u0000" not in text and not re.search(r"\\ud[89a-f]", text)


@overload
def texts(given: Sequence[str]) -> tuple[str, ...]: ...


@overload
def texts(given: Sequence[str] | None) -> tuple[str, ...] | None: ...


def texts(given: Sequence[str] | None) -> tuple[str, ...] | None:
    """What a declaration is given as texts. A single text is taken as a sequence of one, not of its letters."""
    return None if given is None else (given,) if isinstance(given, str) else tuple(given)


def rest_is_last(text: str) -> bool:
    """Whether a pattern of types or keys means something: `>` is the rest, so it can only be the last token."""
    return ">" not in text.split(".")[:-1]
