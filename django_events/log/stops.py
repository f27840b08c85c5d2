"""Why a consumer stops before an event is handled: a sentence of ours, and behind it what the database said.

The database's words may hold a value of the event. `erase()` replaces them, and keeps the sentence: it says where the
consumer stopped.
"""

import re

FILTER_FAILS = "Its filter fails on {where}."
UNREADABLE = "What follows can't be read."

# A regular expression for Python and PostgreSQL: its group is the sentence.
STOPS = "^({}).*$".format(
    "|".join(re.escape(one).replace(re.escape("{where}"), "[^/]*/[0-9]+") for one in (FILTER_FAILS, UNREADABLE))
)


def filter_fails(where: str, said: str) -> str:
    """Of an event, or of one that comes behind another: `where` ends with its address, as in `orders/1042`."""
    return f"{FILTER_FAILS.format(where=where)} {said}"


def unreadable(said: str) -> str:
    """Of what comes behind the position."""
    return f"{UNREADABLE} {said}"
