"""The worst JSON that PostgreSQL takes, each with a name: as SQL, because much of it no Python could send.

`EXPANDING` are small where they are stored, and enormous or too deep where they are read. `UNDECODED` can be read as
text, and not decoded by Python. `STRANGE` are only unusual: every reader has to show them as they are.
"""

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
