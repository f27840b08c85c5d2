"""What a name, a number and a text in a declaration may be."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, overload

from django_events.exceptions import Invalid

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


def refuse_no_duration(what: str, value: Any) -> None:
    """Invalid unless it is a timedelta: a number doesn't say of what."""
    if not isinstance(value, timedelta):
        raise Invalid(f"{what}={value!r}, expected a timedelta, like timedelta(seconds=5).")


def refuse_no_id(what: str, value: Any, *, instead: str = "") -> None:
    """Invalid for what is no id of an event and can't be made one, like an address; Django's own texts are let through.

    An expression of a query may stand for one.
    """
    is_id = hasattr(value, "__index__") or (isinstance(value, str) and value.isascii() and value.isdigit())
    if not is_id and not hasattr(value, "resolve_expression"):
        raise Invalid(f"{what}={value!r}, expected the id of an event, like 1042 of orders/1042. {instead}".rstrip())


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


def names_of(topics: Iterable[object]) -> tuple[str, ...]:
    """The names of declared topics, or of those that are named; Invalid for what is neither, like a list of them."""
    for one in topics:
        if isinstance(one, Iterable) and not isinstance(one, str):
            raise Invalid(f"A topic is {one!r:.200}, expected a declared topic or its name. Give each as an argument.")
    return tuple(str(one) for one in topics)


def named(given: Any) -> tuple[tuple[str, str], ...]:
    """A mapping in a declaration as pairs. What is none is kept as it is, for the check that says so."""
    if given is None:
        return ()
    if isinstance(given, Mapping):
        return tuple(given.items())
    return tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)


def rest_is_last(text: str) -> bool:
    """Whether a pattern of types or keys means something: `>` is the rest, so it can only be the last token."""
    return ">" not in text.split(".")[:-1]
