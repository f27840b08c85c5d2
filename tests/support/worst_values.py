"""The worst JSON that PostgreSQL takes, each with a name: as SQL, because much of it no Python could send.

`EXPANDING` are small where they are stored, and enormous or too deep where they are read. `UNDECODED` can be read as
text, and not decoded by Python. `STRANGE` are only unusual: every reader has to show them as they are.
"""

from collections.abc import Callable
from typing import Any

EXPANDING = {
    "numbers of 131,001 digits": "('[' || repeat('1e131000,', 8999) || '1]')::jsonb",
    "one list of them in an object": """('{"a": {"b": [' || repeat('-1e131000,', 8999) || '1]}}')::jsonb""",
    "zeros with 16,383 decimals": "('[' || repeat('0e-16383,', 22500) || '1]')::jsonb",
    "13,000 arrays in each other": "(repeat('[', 13000) || repeat(']', 13000))::jsonb",
}
UNDECODED = {
    "an integer of 5,001 digits": """'{"n": 1e5000}'::jsonb""",
    "3,000 arrays in each other": "(repeat('[', 3000) || repeat(']', 3000))::jsonb",
    "1,500 objects in each other": """(repeat('{"a":', 1500) || '1' || repeat('}', 1500))::jsonb""",
}
STRANGE = {
    "JSON null": "'null'::jsonb",
    "a number of 309 digits": "'1.7976931348623157e308'::jsonb",
    "a number of 324 decimals": "'4.9e-324'::jsonb",
    "an integer of 4,300 digits": "('1' || repeat('0', 4299))::jsonb",
    "a key of 100,000 characters": """('{"' || repeat('k', 100000) || '": 1}')::jsonb""",
    "a key of no characters": """'{"": ""}'::jsonb""",
    "two keys of one name": """'{"a": 1, "a": 2}'::jsonb""",
    "characters of four bytes": """'"\U0001f9ea\\u0007\\"\\\\ "'::jsonb""",
    "100,000 control characters": "to_jsonb(repeat(chr(1), 100000))",
    "decimals that are zeros": "to_jsonb(1.5000000000000000000000)",
    "an infinity as text": """'"Infinity"'::jsonb""",
}
ALL = {**EXPANDING, **UNDECODED, **STRANGE}


def nested(depth: int, kind: type = list) -> Any:
    """Lists or objects in each other."""
    value: Any = 1
    for _ in range(depth):
        value = [value] if kind is list else {"a": value}
    return value


def text_of(name: str) -> str:
    """The JSON of one as text in SQL, before PostgreSQL has made jsonb of it."""
    return f"({ALL[name].removesuffix('::jsonb')})::text"


# The same for those who publish with Python, as far as Python has such values at all.
IN_PYTHON: dict[str, Callable[[], Any]] = {
    "numbers of 131,001 digits": lambda: [10**131_000] * 9,
    "13,000 arrays in each other": lambda: nested(13_000),
    "an integer of 5,001 digits": lambda: {"n": 10**5_000},
    "3,000 arrays in each other": lambda: nested(3_000),
    "1,500 objects in each other": lambda: nested(1_500, dict),
    "JSON null": lambda: None,
    "a number of 309 digits": lambda: 1.7976931348623157e308,
    "a number of 324 decimals": lambda: 4.9e-324,
    "an integer of 4,300 digits": lambda: 10**4_299,
    "a key of 100,000 characters": lambda: {"k" * 100_000: 1},
    "a key of no characters": lambda: {"": ""},
    "two keys of one name": lambda: {1: 1, "1": 2},
    "characters of four bytes": lambda: '\U0001f9ea\x07"\\ ',
    "100,000 control characters": lambda: "\1" * 100_000,
    "an infinity as text": lambda: "Infinity",
}
REFUSED_IN_PYTHON = {*EXPANDING, *UNDECODED, "two keys of one name"}
